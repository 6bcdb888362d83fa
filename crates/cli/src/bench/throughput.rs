//! `fabcache bench throughput`: what many clients get at once.

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

/// Which requests, of how many clients, and when.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    load: LoadArguments,
    /// Bytes of a value, each number by itself
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',')]
    sizes: Option<Vec<usize>>,
    /// Part of requests that read; the others store
    #[arg(long, value_name = "0 to 1", default_value_t = 1.0)]
    get_share: f64,
    /// Open loop: all clients together make this many requests per second, for each number separately, and latency
    /// counts from when a request was due
    #[arg(long, value_name = "PER_S,…", value_delimiter = ',', conflicts_with = "saturate")]
    rate: Vec<f64>,
    /// How the requests of an open loop are spread over time
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,
    /// Search the highest rate whose p99 stays below a bound
    #[arg(long)]
    saturate: bool,
    /// That bound, in microseconds
    #[arg(long, value_name = "US", default_value_t = 1_000.0, requires = "saturate")]
    p99_us: f64,
}

/// How requests are spread over time.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arrivals {
    /// At random: many independent sources
    Poisson,
    /// At equal distances
    Even,
}

/// Measures, and prints a table.
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
