//! Measures the fabric: `fabcache bench fabric ours=target/release/fabcached --against memcached=/usr/bin/memcached`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::fabric::report::Results;
use fabcache_bench::fabric::{self, Plan};
use fabcache_bench::report::{Header, ServersHeader, save};
use fabcache_bench::server::MeasuredProgram;

use super::common::this_program;
use super::{output, program};

/// The provider, the servers, the sizes, and the duration.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The server, as NAME=PROGRAM; without one, libfabric is measured by itself
    #[arg(value_name = "NAME=PROGRAM", value_parser = program)]
    server: Option<MeasuredProgram>,
    /// memcached, over TCP; skipped if the program does not exist
    #[arg(long, value_name = "NAME=PROGRAM", value_parser = program, requires = "server")]
    against: Option<MeasuredProgram>,
    /// libfabric provider and interface [default: a loopback interface]
    #[arg(long, value_name = "PROVIDER[,INTERFACE]", default_value = "tcp;ofi_rxm")]
    provider: String,
    /// The client's interface, if it differs; both are on this host
    #[arg(long, value_name = "INTERFACE")]
    client_interface: Option<String>,
    /// Also measure clients that choose between reads and requests (auto), and multigets
    #[arg(long, requires = "server")]
    auto: bool,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        default_values_t = [4, 64, 512, 4096, 16_384, 65_536, 262_144, 1_048_576])]
    sizes: Vec<usize>,
    /// Value sizes in bytes that are also measured with windows
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 4096, 65_536])]
    window_sizes: Vec<usize>,
    /// Numbers of operations in flight
    #[arg(long, short, value_name = "NUMBER", value_delimiter = ',', default_values_t = [1, 8, 32])]
    windows: Vec<usize>,
    /// Number of interleaved rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of a round
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Use few sizes and short rounds, for a check in seconds
    #[arg(long, conflicts_with_all = ["sizes", "window_sizes", "rounds", "seconds"])]
    quick: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Arguments of the remote end of plain libfabric.
#[derive(Debug, Args)]
pub struct PeerArguments {
    /// The provider, as one word
    identity: String,
    /// Bytes of each read, write and message
    bytes: usize,
}

/// Maximum value size, which servers accept by default.
const BYTES_MAX: usize = 1 << 20;
/// Maximum number of operations in flight, for which an endpoint has room.
const WINDOW_MAX: usize = 64;

impl Arguments {
    fn plan(&self) -> Result<Plan> {
        let sizes = self.sizes.iter().chain(&self.window_sizes);
        for bytes in sizes {
            ensure!((1..=BYTES_MAX).contains(bytes), "a size is from 1 to {BYTES_MAX} bytes, not {bytes}");
        }
        for window in &self.windows {
            ensure!((1..=WINDOW_MAX).contains(window), "a window is from 1 to {WINDOW_MAX}, not {window}");
        }
        ensure!(
            self.seconds.is_finite() && self.seconds > 0.0 && self.seconds <= 60.0,
            "--seconds is more than 0 and at most 60"
        );
        let plan = Plan {
            requirements: fabric::requirements(&self.provider)?,
            client_interface: self.client_interface.clone(),
            chooses: self.auto,
            value_bytes: self.sizes.clone(),
            window_value_bytes: self.window_sizes.clone(),
            windows: self.windows.clone(),
            rounds: self.rounds,
            round: Duration::from_secs_f64(self.seconds),
            program: this_program()?,
        };
        if !self.quick {
            return Ok(plan);
        }
        let (value_bytes, window_value_bytes) = (vec![64, 4096, 65_536], vec![64]);
        Ok(Plan { value_bytes, window_value_bytes, rounds: 1, round: Duration::from_millis(20), ..plan })
    }
}

/// Runs the benchmark, and prints tables.
///
/// # Errors
/// The provider does not exist; a server does not start, has no fabric or answers wrongly; or the
/// results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let plan = arguments.plan()?;
    let provider = fabric::provider(&plan.requirements)?;
    let own = fabric::client_end(&provider, plan.client_interface.as_deref())?;
    let at = plan.client_interface.iter().map(|_| format!(" at {}", own.interface)).collect::<String>();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(cpus >= 2, "two CPUs are needed, one for the server and one for the client");
    let against = arguments.against.as_ref().filter(|against| {
        let found = std::process::Command::new(&against.program).arg("-V").output().is_ok();
        if !found {
            eprintln!("not compared with {}: cannot find {}", against.name, against.program.display());
        }
        found
    });
    output::check(&[("--json", arguments.json.as_deref())])?;
    let mut progress = super::progress();
    let (reads, figures) = fabric::measure(arguments.server.as_ref(), against, &plan, &mut progress)?;
    progress("");
    let servers: Vec<MeasuredProgram> =
        [arguments.server.as_ref(), against].into_iter().flatten().cloned().collect();
    let results = Results {
        header: ServersHeader {
            run: Header::now(),
            servers: super::versions(&servers),
            method: format!(
                "{provider}, network {}; peer and servers (-t 1) on CPU {} and client{at} on CPU {}, one thread, keys of 20 bytes; \
                 the peer polls without a pause; medians of {} interleaved rounds of {:?}, ratios of the same rounds",
                provider.fabric,
                fabric::SERVER_CPU,
                fabric::CLIENT_CPU,
                plan.rounds,
                plan.round
            ),
        },
        provider: provider.to_string(),
        reads,
        figures,
    };
    let kept = arguments.json.as_deref().map_or(Ok(()), |path| save(&results, path));
    output::print(&results.table())?;
    kept
}

/// Runs the remote end of plain libfabric.
///
/// # Errors
/// The provider cannot be opened, or fails.
pub fn peer(arguments: &PeerArguments) -> Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    fabric::peer::run(&arguments.identity, arguments.bytes, &mut input, &mut output)
}
