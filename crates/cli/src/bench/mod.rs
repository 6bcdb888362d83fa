//! `fabcache bench`: measurements.

mod server;
mod trace;

use anyhow::Result;
use clap::Subcommand;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures memcached-protocol servers side by side
    Server(server::Arguments),
    /// Measures miss ratios of the store beside reference policies
    Trace(trace::Arguments),
}

/// Measures.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Server(arguments) => server::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
    }
}
