//! `cargo xtask torture`: one process writes at full rate, others read its region without asking it.
//!
//! The same program that `cargo test` runs briefly, built for release and for as many reads as one likes.

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Reads a region from another process while it is written.
#[derive(clap::Args)]
pub struct Args {
    /// Reads of each scenario
    #[arg(long, default_value_t = 10_000_000)]
    reads: u64,
    /// Processes that share them
    #[arg(long, default_value_t = 4)]
    readers: u64,
}

/// Builds the program and runs it.
///
/// # Errors
/// A wrong value was read, or too few reads could do without the server.
pub fn run(args: &Args) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--release", "--package", "fabcache-store", "--test", "outside", "--"]);
    cargo.args(["--reads", &args.reads.to_string(), "--readers", &args.readers.to_string()]);
    let status = cargo.status();
    ensure!(status.context("cargo cannot be started")?.success(), "reading from outside failed; see above");
    Ok(())
}
