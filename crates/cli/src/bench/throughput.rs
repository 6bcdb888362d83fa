//! `fabcache bench throughput`: the throughput of many clients.

use anyhow::Result;
use clap::{Args, ValueEnum};
use fabcache_bench::engine;
use fabcache_bench::throughput::{Saturation, Throughput, table};

use super::common::Common;
use super::load::LoadArguments;

/// Rounds of a full run.
const ROUNDS: u32 = 3;
/// Seconds of a step of a search with --quick.
const STEP_SECONDS_QUICK: f64 = 0.1;

/// The requests, the clients, and the pace.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    load: LoadArguments,
    /// Value sizes in bytes, measured one by one
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',')]
    sizes: Option<Vec<usize>>,
    /// Fraction of requests that read; the others store
    #[arg(long, value_name = "0 to 1", default_value_t = 1.0)]
    get_share: f64,
    /// Open loop: all clients together make this many requests per second, for each number separately, and latency
    /// counts from when a request was due
    #[arg(long, value_name = "PER_S,…", value_delimiter = ',', conflicts_with = "saturate")]
    rate: Vec<f64>,
    /// Distribution of the requests of an open loop over time
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,
    /// Search the highest rate whose p99 stays below a bound
    #[arg(long)]
    saturate: bool,
    /// That bound, in microseconds
    #[arg(long, value_name = "US", default_value_t = 1_000.0, requires = "saturate")]
    p99_us: f64,
}

/// The distribution of requests over time.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arrivals {
    /// Poisson: many independent sources
    Poisson,
    /// At equal intervals
    Even,
}

/// Runs the benchmark, and prints a table.
///
/// # Errors
/// A server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let mut throughput = Throughput::standard(common.quick, common.verify, common.key_bytes)?;
    if let Some(clients) = &arguments.load.clients {
        throughput.clients.clone_from(clients);
    } else if arguments.saturate {
        throughput.clients = vec![16];
    }
    if common.quick && arguments.saturate {
        throughput.load.seconds = STEP_SECONDS_QUICK;
    }
    if let Some(sizes) = &arguments.sizes {
        throughput.sizes.clone_from(sizes);
    }
    throughput.rates.clone_from(&arguments.rate);
    throughput.arrivals = match arguments.arrivals {
        Arrivals::Poisson => engine::Arrivals::Poisson,
        Arrivals::Even => engine::Arrivals::Even,
    };
    throughput.load.work.get_share = arguments.get_share;
    arguments.load.change(&mut throughput.load)?;
    throughput.check()?;
    if arguments.saturate {
        let saturation = Saturation { throughput, p99_us_max: arguments.p99_us };
        return common.measure(&saturation, 1, table);
    }
    common.measure(&throughput, ROUNDS, table)
}
