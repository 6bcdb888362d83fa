//! `cargo xtask torture`: one process writes at full rate while others read its region directly.
//!
//! Runs the program that `cargo test` runs briefly, built for release and for any number of reads. Then
//! tests built without the guard that they are about; these must fail. With `--fabric` the readers
//! use a libfabric provider, and must detect wrong values when built without the checks for whole
//! items. With `--openshmem` the PEs of a job are the readers, and must detect dead items over tcp.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use fabcache_testbed::fabric::ENVIRONMENT;
use fabcache_testbed::openshmem::SERVER_VARIABLE;

use crate::clients::install::make_packages_ready;
use crate::openshmem::TCP;
use crate::process::Interrupt;
use crate::workspace;

/// Guards that can be compiled out, and the tests that must then fail.
const CONTROLS: &[(&str, &str, &str)] = &[
    ("behind", "remote", "overwritten_state_word_is_not_trusted"),
    ("behind", "remote", "status_line_older_than_the_item_does_not_validate_it"),
    ("grace", "grace", "emptied_segment_is_reused_after_the_grace_period"),
    ("lease", "remote", "flushed_item_is_not_read_with_an_older_status_line"),
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
    /// Instead kill a server with a memory file so often in each scenario, under load, and check what the next one has
    #[arg(long, value_name = "N", conflicts_with_all = ["readers", "fabric"])]
    kill: Option<u64>,
    /// Over this provider of libfabric instead, such as tcp;ofi_rxm; so many reads without the server in each scenario
    #[arg(long, value_name = "PROVIDER", conflicts_with = "readers")]
    fabric: Option<String>,
    /// Between the PEs of OpenSHMEM jobs instead; so many reads in each scenario and arrangement
    #[arg(long, conflicts_with_all = ["readers", "kill", "fabric"])]
    openshmem: bool,
}

/// Builds the program and runs it.
///
/// # Errors
/// A value was wrong, or too few reads were one-sided.
pub fn run(args: &Args) -> Result<()> {
    if let Some(kills) = args.kill {
        return kill_servers(kills);
    }
    if let Some(provider) = &args.fabric {
        return over_fabric(args, provider);
    }
    if args.openshmem {
        return between_pes(args);
    }
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--release", "--package", "fabcache-store", "--test", "outside", "--"]);
    cargo.args(["--reads", &args.reads.to_string(), "--readers", &args.readers.to_string()]);
    let status = cargo.status();
    ensure!(status.context("cargo cannot be started")?.success(), "reading from outside failed; see above");
    check_controls()
}

/// Kills servers at random moments.
fn kill_servers(kills: u64) -> Result<()> {
    let mut cargo = workspace::cargo();
    // Built as part of the workspace, to reuse the build of its tests.
    cargo.args(["test", "--quiet", "--workspace", "--test", "kill", "--"]);
    cargo.args(["--nocapture", "--test-threads=1"]).env("FABCACHE_KILLS", kills.to_string());
    let status = cargo.status().context("cargo cannot be started")?;
    ensure!(status.success(), "a server that was killed brought a value back; see above");
    Ok(())
}

/// Guards that remote readers are built without, and the test that must then find wrong values: dead
/// items, and torn ones.
const WITHOUT_CHECKS: &[(&[&str], &str)] = &[
    (&["dead_mark"], "reads_are_right_while_memory_is_short"),
    (&["behind", "checksum", "generation", "grace", "lease"], "reads_are_right_while_values_are_long"),
];

/// Enough reads for the wrong values to appear.
const WITHOUT_CHECKS_READS: &str = "100000";

/// Reads over the fabric, with all guards and then without.
fn over_fabric(args: &Args, provider: &str) -> Result<()> {
    let torture = |without: &[&str], reads: &str, test: &str| -> Result<Command> {
        let mut cargo = workspace::cargo();
        cargo.args([
            "test",
            "--quiet",
            "--release",
            "--package",
            "fabcache-client",
            "--test",
            "fabric_torture",
        ]);
        if !without.is_empty() {
            workspace::leave_out(&mut cargo, without)?;
        }
        cargo.args(["--", "--ignored", "--test-threads=1", "--nocapture", test]);
        cargo.envs(ENVIRONMENT.iter().copied()).env("FABCACHE_PROVIDER", provider);
        cargo.env("FABCACHE_TORTURE_READS", reads);
        Ok(cargo)
    };
    let status = torture(&[], &args.reads.to_string(), "")?.status().context("cargo cannot be started")?;
    ensure!(status.success(), "reading over the fabric failed; see above");
    for (without, test) in WITHOUT_CHECKS {
        let output =
            torture(without, WITHOUT_CHECKS_READS, test)?.output().context("cargo cannot be started")?;
        must_detect(without, test, &output)?;
    }
    Ok(())
}

/// Checks that the test reported a wrong value.
fn must_detect(without: &[&str], test: &str, output: &Output) -> Result<()> {
    let reported = [&output.stdout[..], &output.stderr].concat();
    let reported = String::from_utf8_lossy(&reported);
    let found = WRONG.iter().find(|wrong| reported.contains(*wrong));
    let found = found
        .with_context(|| format!("{test} does not detect wrong values without the checks:\n{reported}"))?;
    println!("without {}: {test} says \"{found}\", as it must", without.join(", "));
    Ok(())
}

/// PEs, and what they read.
struct Arrangement {
    pes: usize,
    /// UCX's transports; none for those that it chooses.
    transports: Option<&'static str>,
    /// What the names of the tests contain.
    tests: &'static str,
}

/// Over tcp, long values may take so long that requests end without an answer.
const ARRANGEMENTS: [Arrangement; 3] = [
    Arrangement { pes: 2, transports: None, tests: "" },
    Arrangement { pes: 4, transports: None, tests: "" },
    Arrangement { pes: 2, transports: TCP, tests: "memory_is_short" },
];

/// Reads between the PEs of jobs, with all guards and then without. The servers read, and are built for release.
fn between_pes(args: &Args) -> Result<()> {
    let interrupt = Interrupt::register()?;
    make_packages_ready(&workspace::folder().join("tests/openshmem"), &interrupt)
        .context("NOT RUN: OpenSHMEM is missing")?;
    let torture =
        |server: &Path, Arrangement { pes, transports, .. }: &Arrangement, reads: &str, test: &str| {
            let mut cargo = workspace::cargo();
            cargo.args(["test", "--quiet", "--package", "fabcache-client", "--test", "openshmem", "--"]);
            cargo.args(["--ignored", "--test-threads=1", "--nocapture", test]);
            cargo.env(SERVER_VARIABLE, server).env("FABCACHE_PES", pes.to_string());
            cargo.env("FABCACHE_TORTURE_READS", reads);
            match transports {
                Some(transports) => cargo.env("UCX_TLS", transports),
                None => cargo.env_remove("UCX_TLS"),
            };
            cargo
        };
    let server = workspace::build_server()?;
    for arrangement in &ARRANGEMENTS {
        println!("{} PEs over {}", arrangement.pes, arrangement.transports.unwrap_or("shared memory"));
        let test = format!("one_sided::reads_are_right_while_{}", arrangement.tests);
        let status = torture(&server, arrangement, &args.reads.to_string(), &test).status();
        ensure!(
            status.context("cargo cannot be started")?.success(),
            "reading between PEs failed; see above"
        );
    }
    // A read by loads is too short for a change within it to be likely: its guards have loom models. Long values, which show the
    // other guards of reads by getmem, are too slow over tcp: `--fabric` reads them in the same way.
    let (without, test) = WITHOUT_CHECKS[0];
    let server = workspace::build_server_without(without)?;
    for arrangement in ARRANGEMENTS.iter().filter(|arrangement| arrangement.transports == TCP) {
        let output = torture(&server, arrangement, WITHOUT_CHECKS_READS, test).output();
        must_detect(without, test, &output.context("cargo cannot be started")?)?;
    }
    Ok(())
}

/// The messages with which a reader reports a wrong value.
const WRONG: &[&str] =
    &["a torn or foreign value", "was answered", "flushed before", "had ended", "a value of"];

/// Runs the tests without their guards; each must fail.
fn check_controls() -> Result<()> {
    let mut guards: Vec<&str> = CONTROLS.iter().map(|(without, ..)| *without).collect();
    guards.dedup();
    for (without, program, test) in CONTROLS {
        let run = |arguments: &[&str]| {
            let mut cargo = workspace::cargo();
            cargo.args(["test", "--quiet", "--package", "fabcache-store", "--test", program]);
            cargo.args(arguments);
            workspace::leave_out(&mut cargo, &guards)?;
            cargo.output().context("cargo cannot be started")
        };
        ensure!(run(&["--no-run"])?.status.success(), "the tests do not build without {without}");
        let output = run(&["--", "--exact", test])?;
        let reported = String::from_utf8_lossy(&output.stdout);
        ensure!(
            reported.contains(&format!("test {test} ... FAILED")) || reported.contains("1 failed"),
            "{test} holds without {without}: it does not detect the error"
        );
        println!("without {without}: {test} FAILED, as it must");
    }
    Ok(())
}
