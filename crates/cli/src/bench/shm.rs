//! Measures shared memory: `fabcache bench shm ours=target/release/fabcached --against memcached=/usr/bin/memcached`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::report::{Header, ServersHeader};
use fabcache_bench::server::MeasuredProgram;
use fabcache_bench::shm::plot::panels;
use fabcache_bench::shm::report::Results;
use fabcache_bench::shm::{self, Plan};

use super::{output, program};

/// The servers, the items, and the duration.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The server that shares its memory, as NAME=PROGRAM
    #[arg(value_name = "NAME=PROGRAM", value_parser = program)]
    server: MeasuredProgram,
    /// memcached, over its Unix socket; skipped if the program does not exist
    #[arg(long, value_name = "NAME=PROGRAM", value_parser = program)]
    against: Option<MeasuredProgram>,
    /// Numbers of resident items; 10^7 with values of 64 bytes take about 2 GB
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 1_000_000])]
    items: Vec<u64>,
    /// Value sizes in bytes, each measured with each number of items; keys have 20 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 512, 4096, 65_536, 524_288])]
    value_bytes: Vec<usize>,
    /// Maximum megabytes of resident keys and values; reduces the number of items if needed
    #[arg(long, default_value_t = 1024)]
    megabytes: u64,
    /// Number of interleaved rounds
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of a round
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Use huge pages, which must be reserved, for the server's memory
    #[arg(long, short = 'L')]
    huge_pages: bool,
    /// Use few items and short rounds, for a check in seconds
    #[arg(long, conflicts_with_all = ["items", "value_bytes", "rounds", "seconds"])]
    quick: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as an SVG figure to this file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl Arguments {
    fn plan(&self) -> Plan {
        let plan = Plan {
            items: self.items.clone(),
            value_bytes: self.value_bytes.clone(),
            resident_bytes_max: self.megabytes << 20,
            small_value_bytes: 64,
            rounds: self.rounds,
            round: Duration::from_secs_f64(self.seconds),
            huge_pages: self.huge_pages,
            idle_clients: 100,
            idle: Duration::from_secs(4),
        };
        if !self.quick {
            return plan;
        }
        let (items, value_bytes) = (vec![10_000], vec![64, 65_536]);
        let (round, idle) = (Duration::from_millis(20), Duration::from_secs(1));
        Plan { items, value_bytes, resident_bytes_max: 64 << 20, rounds: 3, round, idle, ..plan }
    }
}

/// Runs the benchmark, and prints tables.
///
/// # Errors
/// A server does not start, shares no memory or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(cpus >= 2, "two CPUs are needed, one for the server and one for the client");
    let against = arguments.against.as_ref().filter(|against| {
        let found = std::process::Command::new(&against.program).arg("-V").output().is_ok();
        if !found {
            eprintln!("not compared with {}: cannot find {}", against.name, against.program.display());
        }
        found
    });
    output::check(&[("--json", arguments.json.as_deref()), ("--plot", arguments.plot.as_deref())])?;
    let plan = arguments.plan();
    let mut progress = super::progress();
    let figures = shm::measure(&arguments.server, against, &plan, &mut progress)?;
    progress("");
    let servers: Vec<MeasuredProgram> =
        [Some(&arguments.server), against].into_iter().flatten().cloned().collect();
    let results = Results {
        header: ServersHeader {
            run: Header::now(),
            servers: super::versions(&servers),
            method: format!(
                "Unix sockets, the client library with one thread, servers (-t 1) on CPU {} and client on CPU {}, keys of \
                 20 bytes, every answer checked; {} of memory; medians of {} interleaved rounds of {:?}",
                shm::SERVER_CPU,
                shm::CLIENT_CPU,
                if plan.huge_pages { "huge pages" } else { "pages of 4 KiB" },
                plan.rounds,
                plan.round
            ),
        },
        figures,
    };
    let kept = super::keep(&results, panels, arguments.plot.as_deref(), arguments.json.as_deref());
    output::print(&results.table())?;
    kept
}
