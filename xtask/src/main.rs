//! Checks that need more than Rust's own test runner: `cargo xtask NAME`.

mod clients;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Checks that need more than `cargo test`.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run real memcached client libraries and tools against the server
    Clients(clients::Args),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Clients(args) => clients::run(&args),
    }
}
