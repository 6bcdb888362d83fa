//! `fabcache bench hybrid`: working sets larger than the servers' memory.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use fabcache_bench::hybrid::{HOT_PERCENT, Hybrid, PENALTY, SPILL_FACTOR, Scan, VALUE_BYTES, table};

use super::common::Common;
use super::flash;

/// Rounds of a full run.
const ROUNDS: u32 = 3;

/// The amount of data, and the order of reads.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    servers: Option<StartedServers>,
    #[command(flatten)]
    common: Common,
    /// The order of reads: uniform, normal (four of five are of hot keys), or all
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = scans)]
    scan: Scans,
    /// Ratio of stored bytes to the servers' memory
    #[arg(long, value_name = "FACTOR", default_value_t = SPILL_FACTOR)]
    spill_factor: f64,
    /// The servers' total memory, in megabytes [default: as they report]
    #[arg(long, value_name = "MB")]
    memory: Option<u64>,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = VALUE_BYTES)]
    value_bytes: usize,
    /// Additional time of a miss, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = PENALTY.as_secs_f64() * 1e3)]
    penalty: f64,
    /// Add the penalty without sleeping
    #[arg(long)]
    no_sleep: bool,
    /// Store an item after a miss
    #[arg(long)]
    store_again: bool,
    /// Percentage of keys that are hot in the normal scan
    #[arg(long, value_name = "PERCENT", default_value_t = HOT_PERCENT)]
    hot: f64,
    /// Flush the servers first: ALL cached items are lost
    #[arg(long)]
    flush: bool,
    /// Gets per round [default: 5000, with --quick 500]
    #[arg(long, short, value_name = "NUMBER")]
    iterations: Option<u64>,
}

/// Servers that the benchmark starts.
#[derive(Debug, Subcommand)]
enum StartedServers {
    /// Starts servers with a flash tier, and measures them beside RAM only
    Flash(Box<flash::Arguments>),
}

#[derive(Clone, Debug)]
struct Scans(Vec<Scan>);

fn scans(name: &str) -> Result<Scans> {
    Scan::of_name(name).map(Scans)
}

/// Runs the benchmark, and prints latency and success rate.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    if let Some(StartedServers::Flash(arguments)) = &arguments.servers {
        return flash::run(arguments);
    }
    let common = &arguments.common;
    let Arguments { spill_factor, penalty, hot, .. } = *arguments;
    ensure!(
        spill_factor > 0.0 && spill_factor.is_finite(),
        "--spill-factor {spill_factor}: give one above 0"
    );
    ensure!((0.0..=60_000.0).contains(&penalty), "--penalty {penalty}: give from 0 to 60000 ms");
    ensure!(hot > 0.0 && hot <= 100.0, "--hot {hot}: give one above 0 and up to 100");
    ensure!((1..=1 << 30).contains(&arguments.value_bytes), "--value-bytes: give from 1 to {}", 1 << 30);
    ensure!(arguments.iterations != Some(0), "--iterations 0: give at least 1");
    let memory = arguments.memory.map(|megabytes| megabytes.checked_mul(1 << 20).filter(|bytes| *bytes > 0));
    ensure!(memory != Some(None), "--memory 0: give at least 1, in megabytes");
    let standard = Hybrid::standard(common.quick, common.verify, common.key_bytes)?;
    let hybrid = Hybrid {
        scans: arguments.scan.0.clone(),
        spill_factor,
        memory_bytes: memory.flatten(),
        value_bytes: arguments.value_bytes,
        penalty: Duration::from_secs_f64(penalty / 1e3),
        sleeps: !arguments.no_sleep,
        stores_again: arguments.store_again,
        hot_percent: hot,
        flushes: arguments.flush,
        reads: arguments.iterations.unwrap_or(standard.reads),
        ..standard
    };
    common.measure(&hybrid, ROUNDS, table)
}
