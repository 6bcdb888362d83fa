//! `cargo xtask libmemcached`: what libfabcache.so does under libmemcached's names, beside Debian's libmemcached.

mod functions;
mod recorded;
mod requests;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Compares libfabcache.so with Debian's libmemcached 1.1.4.
#[derive(clap::Args)]
pub struct Args {
    /// Record anew what Debian's headers and library say, and write the table of functions in docs/libmemcached.md
    #[arg(long)]
    record: bool,
}

/// Runs all of it.
///
/// # Errors
/// Something that it needs is missing, or there is a difference.
pub fn run(args: &Args) -> Result<()> {
    let library = build_library()?;
    recorded::run(&library, args.record)?;
    functions::run(&library, args.record)?;
    requests::run(&library)
}

/// Builds libfabcache.so for release; where it is.
fn build_library() -> Result<PathBuf> {
    let target = workspace::target();
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--package", "fabcache-c", "--target-dir"]).arg(&target);
    let status = cargo.status().context("cargo cannot be started")?;
    ensure!(status.success(), "libfabcache.so does not build");
    Ok(target.join("release/libfabcache.so"))
}
