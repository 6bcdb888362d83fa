//! `fabcache bench multiget`: multigets beside single gets.

use anyhow::Result;
use clap::Args;
use fabcache_bench::multiget::{BATCH, Multiget, VALUE_BYTES, table};

use super::common::Common;
use super::load::LoadArguments;

/// Rounds of a full run.
const ROUNDS: u32 = 3;

/// The requests.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    load: LoadArguments,
    /// Keys per request, measured one by one
    #[arg(long, value_name = "NUMBER,…", value_delimiter = ',', default_values_t = [1, BATCH])]
    batch: Vec<usize>,
    /// Value sizes in bytes, measured one by one
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [VALUE_BYTES])]
    sizes: Vec<usize>,
}

/// Runs the benchmark, and prints a table.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let mut multiget = Multiget::standard(common.quick, common.verify, common.key_bytes)?;
    if let Some(clients) = &arguments.load.clients {
        multiget.clients.clone_from(clients);
    }
    multiget.batches.clone_from(&arguments.batch);
    multiget.sizes.clone_from(&arguments.sizes);
    arguments.load.change(&mut multiget.load)?;
    multiget.check()?;
    common.measure(&multiget, ROUNDS, table)
}
