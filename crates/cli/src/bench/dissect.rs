//! `fabcache bench dissect`: where the time of a call goes.

use anyhow::{Result, bail, ensure};
use clap::Args;
use fabcache_bench::dissect::{Dissect, table};
use fabcache_bench::latency::Operation;

use super::common::{Common, this_program};

/// Rounds of a full run.
const ROUNDS: u32 = 5;

/// The calls and sizes. Each server is dissected separately.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Calls: get, set, or all
    #[arg(long, short, value_name = "NAME", default_value = "all", value_parser = operations)]
    benchmark: Operations,
    /// Bytes of values
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64,4096,65536")]
    sizes: Vec<usize>,
    /// Calls per round and stage [default: 2000, with --quick 100]
    #[arg(long, short, value_name = "NUMBER")]
    iterations: Option<u64>,
}

#[derive(Clone, Debug)]
struct Operations(Vec<Operation>);

fn operations(name: &str) -> Result<Operations> {
    Ok(Operations(match name.to_lowercase().as_str() {
        "get" => vec![Operation::Get],
        "set" => vec![Operation::Set],
        "all" => vec![Operation::Get, Operation::Set],
        _ => bail!("cannot dissect {name:?}; use get, set or all"),
    }))
}

/// Runs the benchmark, and prints bars.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    ensure!(!arguments.sizes.contains(&0), "--sizes has a 0; values have at least 1 byte");
    let standard = Dissect::standard(common.quick, common.verify, common.key_bytes)?;
    let dissect = Dissect {
        operations: arguments.benchmark.0.clone(),
        sizes: arguments.sizes.clone(),
        iterations: arguments.iterations.unwrap_or(standard.iterations),
        program: Some(this_program()?),
        server_cpus: common.server_cpus.clone(),
        ..standard
    };
    common.measure_all(&common.targets()?, &dissect, ROUNDS, table)
}
