//! The command-line tool: `fabcache bench server …`.
//!
//! - `bench/`: measurements, a file for each subcommand; what they do is in the crate `fabcache-bench`.

mod bench;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Works with memcached-compatible caches.
#[derive(Debug, Parser)]
#[command(name = "fabcache", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures servers and the store
    #[command(subcommand)]
    Bench(bench::Command),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Bench(command) => bench::run(command),
    }
}
