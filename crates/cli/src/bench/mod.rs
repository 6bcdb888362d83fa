//! `fabcache bench`: measurements.

mod blocks;
mod common;
mod compare;
mod dissect;
mod dummy;
mod fabric;
mod flash;
mod hybrid;
mod latency;
mod load;
mod memory;
mod mixture;
mod multiget;
mod nonblocking;
mod openshmem;
pub mod output;
mod policies;
mod report;
mod restart;
mod run;
mod shm;
mod sizes;
mod store;
mod throughput;
mod trace;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use fabcache_bench::plot::{self, Panel};
use fabcache_bench::report as figures;
use fabcache_bench::server::MeasuredProgram;
use fabcache_testbed::cleanup;
use serde::Serialize;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures the time of a call by value size
    Latency(latency::Arguments),
    /// Measures where the time of a call goes, hop by hop
    Dissect(dissect::Arguments),
    /// Runs a server that only answers, to measure the limit of clients
    Dummy(dummy::Arguments),
    /// Measures the time of non-blocking operations
    Nonblocking(nonblocking::Arguments),
    /// Measures large values written in blocks, then read back in order
    Blocks(blocks::Arguments),
    /// Measures the throughput of many clients: in a closed loop, at a given rate, or up to a latency bound
    Throughput(throughput::Arguments),
    /// Measures many clients with values of very different sizes, as in the Olio benchmark
    Mixture(mixture::Arguments),
    /// Measures multigets beside single gets
    Multiget(multiget::Arguments),
    /// Runs a client process: started by benchmarks with --processes
    #[command(hide = true)]
    Worker,
    /// Starts servers, and measures them side by side
    Compare(Box<compare::Arguments>),
    /// Measures gets of working sets larger than the servers' memory, with a penalty for misses
    Hybrid(hybrid::Arguments),
    /// Measures restarts of servers that keep their items in a memory file (-e)
    Restart(restart::Arguments),
    /// Replays traces on servers, for hit ratio and speed
    Trace(Box<trace::Arguments>),
    /// Measures miss ratios of the store and of reference policies
    Policies(Box<policies::Arguments>),
    /// Measures the store by itself, in this process
    Store(store::Arguments),
    /// Measures a server through its shared memory
    Shm(shm::Arguments),
    /// Measures a fabric (RDMA, through libfabric), and a server over it
    Fabric(fabric::Arguments),
    /// Measures OpenSHMEM, and caches over it
    Openshmem(openshmem::Arguments),
    /// Runs the remote end of a fabric: started by `fabric`
    #[command(hide = true)]
    FabricPeer(fabric::PeerArguments),
    /// Measures how many items servers hold in their memory
    Memory(memory::Arguments),
    /// Writes a page from results kept as JSON
    Report(report::Arguments),
}

/// Runs a subcommand.
pub fn run(command: Command) -> Result<()> {
    if let Command::Openshmem(arguments) = &command
        && openshmem::is_in_job()
    {
        // SAFETY: the process has started no thread: signals are handled below.
        return unsafe { openshmem::run_in_job(arguments) };
    }
    cleanup::handle_signals()?;
    match command {
        Command::Latency(arguments) => latency::run(&arguments),
        Command::Dissect(arguments) => dissect::run(&arguments),
        Command::Dummy(arguments) => dummy::run(&arguments),
        Command::Nonblocking(arguments) => nonblocking::run(&arguments),
        Command::Blocks(arguments) => blocks::run(&arguments),
        Command::Throughput(arguments) => throughput::run(&arguments),
        Command::Mixture(arguments) => mixture::run(&arguments),
        Command::Multiget(arguments) => multiget::run(&arguments),
        Command::Worker => {
            fabcache_bench::engine::worker(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())
        }
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Hybrid(arguments) => hybrid::run(&arguments),
        Command::Restart(arguments) => restart::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Policies(arguments) => policies::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
        Command::Shm(arguments) => shm::run(&arguments),
        Command::Fabric(arguments) => fabric::run(&arguments),
        Command::Openshmem(arguments) => openshmem::run(&arguments),
        Command::FabricPeer(arguments) => fabric::peer(&arguments),
        Command::Memory(arguments) => memory::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
    }
}

/// Parses a server option.
fn program(text: &str) -> Result<MeasuredProgram> {
    let (name, program) = text.split_once('=').with_context(|| format!("{text:?} is not NAME=PROGRAM"))?;
    Ok(MeasuredProgram { name: name.to_owned(), program: PathBuf::from(program), flags: Vec::new() })
}

/// Returns the names and versions (`-V`) of servers.
fn versions(servers: &[MeasuredProgram]) -> Vec<(String, String)> {
    servers.iter().map(|server| (server.name.clone(), version(server))).collect()
}

fn version(server: &MeasuredProgram) -> String {
    let output = std::process::Command::new(&server.program).arg("-V").output();
    output
        .map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Keeps results if requested: as a figure, as JSON.
fn keep<R: Serialize>(
    results: &R,
    panels: impl FnOnce(&R) -> Vec<Panel>,
    picture: Option<&Path>,
    json: Option<&Path>,
) -> Result<()> {
    if let Some(path) = picture {
        plot::save(&panels(results), path)?;
    }
    json.map_or(Ok(()), |path| figures::save(results, path))
}

/// Shows progress on a terminal.
fn progress() -> impl FnMut(&str) {
    let shows = std::io::stderr().is_terminal();
    move |text| {
        if shows {
            eprint!("\r\x1b[K{text}");
        }
    }
}
