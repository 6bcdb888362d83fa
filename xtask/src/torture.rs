//! `cargo xtask torture`: one process writes at full rate, others read its region without asking it.
//!
//! The same program that `cargo test` runs briefly, built for release and for as many reads as one likes. Then tests of the
//! same are built without what they are about, and must fail.

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// What the code can be built without, and the tests that must then fail.
const CONTROLS: &[(&str, &str, &str)] = &[
    ("behind", "remote", "a_state_that_was_written_over_is_not_the_items"),
    ("behind", "remote", "a_line_from_before_the_item_came_does_not_settle_it"),
    ("grace", "grace", "what_was_emptied_is_left_alone_for_a_while"),
];

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
    check_controls()
}

/// Has the tests fail that are about what the code is built without.
fn check_controls() -> Result<()> {
    let flags = CONTROLS.iter().map(|(without, ..)| flag(without)).collect::<Vec<_>>().join(" ");
    for (without, program, test) in CONTROLS {
        let run = |arguments: &[&str]| {
            let mut cargo = workspace::cargo();
            cargo.args(["test", "--quiet", "--package", "fabcache-store", "--test", program]);
            cargo.arg("--target-dir").arg(workspace::target().join("torture-without")).args(arguments);
            cargo.env("RUSTFLAGS", &flags).env_remove("CARGO_ENCODED_RUSTFLAGS");
            cargo.output().context("cargo cannot be started")
        };
        ensure!(run(&["--no-run"])?.status.success(), "the tests do not build without {without}");
        let output = run(&["--", "--exact", test])?;
        let told = String::from_utf8_lossy(&output.stdout);
        ensure!(
            told.contains(&format!("test {test} ... FAILED")) || told.contains("1 failed"),
            "{test} holds without {without}: it does not find what it is there to find"
        );
        println!("without {without}: {test} FAILED, as it must");
    }
    Ok(())
}

fn flag(without: &str) -> String {
    format!("--cfg fabcache_without=\"{without}\"")
}
