//! `fabcache bench latency`: the time of a call by value size.

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::latency::{Latency, Operation, table};

use super::common::Common;
use super::sizes::SizeArguments;

/// Rounds of a full run.
const ROUNDS: u32 = 5;

/// The calls and sizes.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Calls: set, get, mix (nine gets, then a set), or all
    #[arg(long, short, value_name = "NAME", default_value = "all", value_parser = operations)]
    benchmark: Operations,
    #[command(flatten)]
    sizes: SizeArguments,
    /// Calls per round [default: 1000, with --quick 200]
    #[arg(long, short, value_name = "NUMBER")]
    iterations: Option<u64>,
    /// Number of items called in turn
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    keys: u64,
}

#[derive(Clone, Debug)]
struct Operations(Vec<Operation>);

fn operations(name: &str) -> Result<Operations> {
    Operation::of_name(name).map(Operations)
}

/// Runs the benchmark, and prints OHB's columns.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let sizes = arguments.sizes.powers()?;
    ensure!(arguments.iterations != Some(0) && arguments.keys > 0, "--iterations and --keys are at least 1");
    let standard = Latency::standard(common.quick, common.verify, common.key_bytes)?;
    let latency = Latency {
        operations: arguments.benchmark.0.clone(),
        sizes,
        iterations: arguments.iterations.unwrap_or(standard.iterations),
        keys: arguments.keys,
        ..standard
    };
    common.measure(&latency, ROUNDS, table)
}
