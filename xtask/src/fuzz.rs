//! `cargo xtask fuzz`: runs each target of `fuzz/` for a while, on inputs of earlier runs and on new
//! ones.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// Feeds random bytes to every parser.
#[derive(clap::Args)]
pub struct Args {
    /// Only these targets
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Builds and runs the targets, one per CPU at a time.
///
/// # Errors
/// cargo-fuzz or a nightly toolchain is missing, or a target failed: its output names the input.
pub fn run(args: &Args) -> Result<()> {
    let targets = targets()?;
    for name in &args.only {
        ensure!(targets.contains(name), "unknown fuzz target {name}; the targets are {}", targets.join(", "));
    }
    ensure!(fuzz(&["build"]).status()?.success(), "the fuzz targets do not build");
    let chosen: Vec<&String> =
        targets.iter().filter(|target| args.only.is_empty() || args.only.contains(target)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(target) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            feed(target, args.seconds)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

/// Runs one target.
fn feed(target: &str, seconds: u32) -> Result<()> {
    let time = format!("-max_total_time={seconds}");
    let output = fuzz(&["run", target, "--", &time, "-print_final_stats=1"]).output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{log}\nthe fuzz target {target} failed; its input is in fuzz/artifacts/{target}");
    }
    let executed = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("{target}: {} inputs passed", executed.context("libFuzzer said no statistics")?.trim());
    Ok(())
}

fn targets() -> Result<Vec<String>> {
    let output = fuzz(&["list"]).output().context("rustup cannot be started")?;
    if !output.status.success() {
        bail!(
            "fuzzing needs a nightly toolchain (rustup toolchain install nightly) and cargo-fuzz (cargo install \
             cargo-fuzz): {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn fuzz(words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).args(words);
    command.current_dir(workspace::folder());
    // The outer cargo's settings belong to another toolchain.
    for variable in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTFLAGS", "CARGO_TARGET_DIR"] {
        command.env_remove(variable);
    }
    command
}
