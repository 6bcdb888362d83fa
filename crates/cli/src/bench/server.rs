//! Measures servers side by side: `fabcache bench server ours=target/release/fabcached memcached=/usr/bin/memcached`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::report::{self, Header, Results, ServersHeader};
use fabcache_bench::server::Candidate;
use fabcache_bench::side_by_side::{self, Plan};

use super::candidate;

/// Which servers, and how long.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Servers, as NAME=PROGRAM; the last one is what the others are compared with
    #[arg(required = true, value_name = "NAME=PROGRAM", value_parser = candidate)]
    servers: Vec<Candidate>,
    /// Rounds of each workload on each server
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Seconds of a round
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Where the results go as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures them, and prints a table.
///
/// # Errors
/// A server does not come up or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let servers = &arguments.servers;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(cpus >= 2, "two CPUs are needed, one for the server and one for the client");
    let mut progress = super::progress();
    let plan = Plan {
        rounds: arguments.rounds,
        round: Duration::from_secs_f64(arguments.seconds),
        keys: 100_000,
        value_bytes: 100,
    };
    let capacity = side_by_side::capacity(servers, 100, &mut progress)?;
    let throughput = side_by_side::throughput(servers, &plan, &mut progress)?;
    progress("");
    let results = Results {
        header: ServersHeader {
            run: Header::now(),
            servers: super::versions(servers),
            method: format!(
                "TCP over loopback, text protocol, one connection, server (-t 1) on CPU 0 and client on CPU 1, 100000 \
                 keys of 20 bytes with values of 100, every answer compared; medians of {} interleaved rounds of {} s and of the ratios in each",
                plan.rounds, arguments.seconds
            ),
        },
        capacity,
        throughput,
    };
    print!("{}", results.table());
    if let Some(path) = &arguments.json {
        report::save(&results, path)?;
    }
    Ok(())
}
