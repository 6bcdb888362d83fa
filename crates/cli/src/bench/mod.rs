//! `fabcache bench`: measurements.

mod blocks;
mod common;
mod compare;
mod dissect;
mod dummy;
mod fabric;
mod hybrid;
mod latency;
mod load;
mod memory;
mod mixture;
mod multiget;
mod nonblocking;
pub mod output;
mod policies;
mod report;
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
use fabcache_bench::server::Candidate;
use fabcache_testbed::cleanup;
use serde::Serialize;

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures how long a call takes, by the size of its value
    Latency(latency::Arguments),
    /// Measures where the time of a call goes, hop by hop
    Dissect(dissect::Arguments),
    /// Is a server that does nothing but answer, to measure what clients can do at most
    Dummy(dummy::Arguments),
    /// Measures what an operation takes that is not waited for by itself
    Nonblocking(nonblocking::Arguments),
    /// Measures large values written in blocks, then read back in order
    Blocks(blocks::Arguments),
    /// Measures what many clients get at once: in a closed loop, at a given rate, or up to a bound of latency
    Throughput(throughput::Arguments),
    /// Measures many clients with values of very different sizes, as the Olio benchmark has them
    Mixture(mixture::Arguments),
    /// Measures requests for many keys beside requests for one
    Multiget(multiget::Arguments),
    /// Is a process of clients: what a benchmark with --processes starts
    #[command(hide = true)]
    Worker,
    /// Measures servers side by side, and starts and stops them
    Compare(Box<compare::Arguments>),
    /// Measures gets of working sets larger than the servers' memory, with a penalty for misses
    Hybrid(hybrid::Arguments),
    /// Replays traces on servers, for hit ratio and speed
    Trace(Box<trace::Arguments>),
    /// Measures miss ratios of the store beside reference policies
    Policies(Box<policies::Arguments>),
    /// Measures the store by itself, in this process
    Store(store::Arguments),
    /// Measures a server through the memory that it shares with its clients
    Shm(shm::Arguments),
    /// Measures a fabric (RDMA, by libfabric) by itself, and a server over it
    Fabric(fabric::Arguments),
    /// Is the other end of a fabric: what `fabric` starts
    #[command(hide = true)]
    FabricPeer(fabric::PeerArguments),
    /// Measures how many items servers hold in the memory they take
    Memory(memory::Arguments),
    /// Makes a page of results that were kept as JSON
    Report(report::Arguments),
}

/// Measures.
pub fn run(command: Command) -> Result<()> {
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
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Policies(arguments) => policies::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
        Command::Shm(arguments) => shm::run(&arguments),
        Command::Fabric(arguments) => fabric::run(&arguments),
        Command::FabricPeer(arguments) => fabric::peer(&arguments),
        Command::Memory(arguments) => memory::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
    }
}

/// A server as options name it.
fn candidate(text: &str) -> Result<Candidate> {
    let (name, program) = text.split_once('=').with_context(|| format!("{text:?} is not NAME=PROGRAM"))?;
    Ok(Candidate { name: name.to_owned(), program: PathBuf::from(program), flags: Vec::new() })
}

/// Names of servers, and what their `-V` says.
fn versions(servers: &[Candidate]) -> Vec<(String, String)> {
    servers.iter().map(|server| (server.name.clone(), version(server))).collect()
}

fn version(server: &Candidate) -> String {
    let output = std::process::Command::new(&server.program).arg("-V").output();
    output
        .map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Keeps results if requested: as a picture, as JSON.
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
