//! `fabcache bench`: measurements.

mod server;
mod store;
mod trace;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use fabcache_bench::server::Candidate;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures memcached-protocol servers side by side
    Server(server::Arguments),
    /// Measures miss ratios of the store beside reference policies
    Trace(Box<trace::Arguments>),
    /// Measures the store by itself, in this process
    Store(store::Arguments),
}

/// Measures.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Server(arguments) => server::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
    }
}

/// A server as options name it.
fn candidate(text: &str) -> Result<Candidate> {
    let (name, program) = text.split_once('=').with_context(|| format!("{text:?} is not NAME=PROGRAM"))?;
    Ok(Candidate { name: name.to_owned(), program: PathBuf::from(program), flags: Vec::new() })
}
