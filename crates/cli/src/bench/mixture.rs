//! `fabcache bench mixture`: values of very different sizes.

use anyhow::Result;
use clap::Args;
use fabcache_bench::mixture::{AVERAGE_BYTES, GET_SHARE, Mixture, table};

use super::common::Common;
use super::load::LoadArguments;

/// Rounds of a full run.
const ROUNDS: u32 = 3;

/// The sizes, and the load.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    load: LoadArguments,
    /// Average value sizes in bytes, from 52 to 12800, measured one by one
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [AVERAGE_BYTES])]
    average: Vec<f64>,
    /// Fraction of requests that read; the others store
    #[arg(long, value_name = "0 to 1", default_value_t = GET_SHARE)]
    get_share: f64,
}

/// Runs the benchmark, and prints a table.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let mut mixture = Mixture::standard(common.quick, common.verify, common.key_bytes)?;
    if let Some(clients) = &arguments.load.clients {
        mixture.clients.clone_from(clients);
    }
    mixture.averages.clone_from(&arguments.average);
    mixture.load.work.get_share = arguments.get_share;
    arguments.load.change(&mut mixture.load)?;
    mixture.check()?;
    common.measure(&mixture, ROUNDS, table)
}
