//! `cargo xtask asan`: runs the whole suite under AddressSanitizer with leak detection.
//!
//! Needs a nightly toolchain. Documentation tests are left out, because they are not instrumented. The
//! region is copied by assembly, which the sanitizer does not check; it checks everything around that.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The target that the sanitizer supports; instrumented code has its own target folder.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests that cannot run under the sanitizer, and why.
const SKIPPED: &[(&str, &str)] = &[
    ("fabric_tests_run_where", "libfabric is not instrumented, and cargo xtask rdma runs them"),
    ("system_limits_are_reported", "the sanitizer's shadow memory needs all of the address space"),
];

/// Runs the tests under AddressSanitizer.
#[derive(clap::Args)]
pub struct Args {
    /// Only tests whose names contain this
    filter: Option<String>,
}

/// Builds and runs the tests.
///
/// # Errors
/// There is no nightly toolchain, the tests do not build, or one fails.
pub fn run(args: &Args) -> Result<()> {
    for (name, why) in SKIPPED {
        println!("NOT RUN: {name}: {why}");
    }
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "test", "--workspace", "--quiet", "--lib", "--bins", "--tests"]);
    command.args(["--profile", "asan", "--target", TARGET, "--target-dir"]);
    command.arg(workspace::target().join("asan")).args(["--no-fail-fast", "--"]).args(&args.filter);
    for (name, _) in SKIPPED {
        command.args(["--skip", name]);
    }
    // The outer cargo's settings belong to another toolchain.
    for variable in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR"] {
        command.env_remove(variable);
    }
    command.env("RUSTFLAGS", "-Zsanitizer=address").current_dir(workspace::folder());
    let status = command.status().context("rustup cannot be started")?;
    ensure!(
        status.success(),
        "AddressSanitizer or a test under it found something; it needs a nightly toolchain"
    );
    Ok(())
}
