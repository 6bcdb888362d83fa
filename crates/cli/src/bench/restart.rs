//! `fabcache bench restart`: servers that keep their items in a memory file, stopped and started again.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabcache_bench::restart::servers::Servers;
use fabcache_bench::restart::{Restart, Stop, table};
use fabcache_bench::server::MeasuredProgram;

use super::run::RunArguments;

/// Numbers of items: with --quick, and otherwise.
const ITEMS: [&[u64]; 2] = [&[10_000], &[10_000, 1_000_000]];

/// The servers, and what they hold.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The server, as PROGRAM or NAME=PROGRAM; it takes memcached's flags -s, -m and -e
    #[arg(value_name = "PROGRAM", value_parser = program)]
    server: MeasuredProgram,
    /// The server to compare with, such as memcached
    #[arg(long, visible_alias = "against", value_name = "PROGRAM", value_parser = program)]
    base: Option<MeasuredProgram>,
    /// Numbers of items, separated by commas [default: 10000,1000000, with --quick 10000]; 5*10^7 take 13 GB
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    items: Vec<u64>,
    /// Bytes of a value; keys have 20
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_bytes: usize,
    /// How to stop the servers, separated by commas: clean (SIGUSR1), kill (SIGKILL)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "clean,kill", value_parser = Stop::of_name)]
    stop: Vec<Stop>,
    /// Where the memory files are, on tmpfs or DAX; the run removes them
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    dir: PathBuf,
    #[command(flatten)]
    run: RunArguments,
}

/// Parses a server: a program, named after its file unless a name is given.
fn program(text: &str) -> Result<MeasuredProgram> {
    if text.contains('=') {
        return super::program(text);
    }
    let program = PathBuf::from(text);
    let name = program.file_name().with_context(|| format!("{text:?} is not PROGRAM or NAME=PROGRAM"))?;
    Ok(MeasuredProgram { name: name.to_string_lossy().into_owned(), program, flags: Vec::new() })
}

/// Runs the benchmark, and prints a table.
///
/// # Errors
/// The items do not fit in memory, a server does not start, stop or answer rightly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let programs: Vec<MeasuredProgram> =
        [Some(&arguments.server), arguments.base.as_ref()].into_iter().flatten().cloned().collect();
    if let [server, base] = &programs[..] {
        ensure!(server.name != base.name, "two servers have the name {}; give NAME=PROGRAM", base.name);
    }
    arguments.run.check()?;
    let usual = ITEMS[usize::from(!arguments.run.quick)];
    let restart = Restart {
        items: if arguments.items.is_empty() { usual.to_vec() } else { arguments.items.clone() },
        stops: arguments.stop.clone(),
        value_bytes: arguments.value_bytes,
        verify: arguments.run.verify,
        directory: arguments.dir.clone(),
        servers: Servers::start(&programs)?,
    };
    restart.check()?;
    arguments.run.run(&restart, &restart.servers.targets(), table)
}
