//! `fabcache bench`: measurements.

mod server;

use anyhow::Result;
use clap::Subcommand;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures memcached-protocol servers side by side
    Server(server::Arguments),
}

/// Measures.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Server(arguments) => server::run(&arguments),
    }
}
