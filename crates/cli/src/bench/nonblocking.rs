//! `fabcache bench nonblocking`: the time of non-blocking operations.

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::nonblocking::calls::{Api, Drain};
use fabcache_bench::nonblocking::{Keys, NonBlocking, table};

use super::common::Common;
use super::sizes::SizeArguments;

/// Rounds of a full run.
const ROUNDS: u32 = 5;

/// The calls, sizes and windows.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Non-blocking calls, comma-separated: i (iset and iget), b (bset and bget)
    #[arg(long, value_name = "NAMES", default_value = "i,b", value_delimiter = ',', value_parser = Api::of_name)]
    api: Vec<Api>,
    /// Requests per window, from 1 to 1024; several are comma-separated
    #[arg(long, short, value_name = "NUMBERS", default_value = "32", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: Vec<u32>,
    /// How windows are completed, comma-separated: wait (for one after the other), test (all in turn)
    #[arg(long, value_name = "NAMES", default_value = "wait", value_delimiter = ',', value_parser = Drain::of_name)]
    drain: Vec<Drain>,
    /// Distributions of keys, comma-separated: random, zipf (Zipf's law with the exponent 1.01)
    #[arg(long, value_name = "NAMES", default_value = "random", value_delimiter = ',', value_parser = Keys::of_name)]
    keys: Vec<Keys>,
    #[command(flatten)]
    sizes: SizeArguments,
    /// Operations per round [default: 1000, with --quick 192]
    #[arg(long, short, value_name = "NUMBER")]
    iterations: Option<u64>,
    /// Items per size; fewer if all sizes would exceed half of the servers' memory
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    items: u64,
}

/// Runs the benchmark, and prints OHB's rows with blocking calls beside them.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let sizes = arguments.sizes.powers()?;
    ensure!(
        arguments.iterations != Some(0) && (1..=u64::from(u32::MAX)).contains(&arguments.items),
        "--iterations and --items are at least 1, and items at most {}",
        u32::MAX
    );
    let standard = NonBlocking::standard(common.quick, common.verify, common.key_bytes)?;
    let experiment = NonBlocking {
        apis: arguments.api.clone(),
        sizes,
        iterations: arguments.iterations.unwrap_or(standard.iterations),
        windows: arguments.window.iter().map(|window| *window as usize).collect(),
        drains: arguments.drain.clone(),
        keys: arguments.keys.clone(),
        keys_max: arguments.items,
        ..standard
    };
    common.measure(&experiment, ROUNDS, table)
}
