//! `cargo xtask differential`: sends the same bytes to memcached 1.6.18 and fabcached, and compares the
//! answers.
//!
//! Starts both with the same flags on separate ports; `fabcache-differential` compares them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use fabcache_differential::run::run_and_print;
use fabcache_differential::saboteur::{Harm, Saboteur};
use fabcache_differential::{Options, RunArgs, Servers};
use fabcache_testbed::server::ServerProcess;

use crate::servers::server_command;
use crate::workspace;

/// The release that the comparison expects: Debian 12's.
const THEIR_RELEASE: &str = "1.6.18";

/// The path in Debian's package.
const THEIR_PROGRAM: &str = "/usr/bin/memcached";

/// Flags that mean the same to both. One thread: commands on several connections keep their order.
const FLAGS: &[&str] = &["-l", "127.0.0.1", "-U", "0", "-m", "256", "-I", "1m", "-t", "1", "-c", "1024"];

/// Commands of each part of the self-test.
const SELF_TEST_COMMANDS: u64 = 30_000;

/// Opportunities that the self-test skips between two harms.
const HARM_EVERY: u64 = 50;

/// Sends the same bytes to memcached 1.6.18 and to fabcached, and compares every answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server to test [default: the workspace's own, built for release]
    #[arg(long, value_name = "PATH")]
    ours: Option<PathBuf>,
    /// memcached 1.6.18 [default: Debian's, installed if it is missing]
    #[arg(long, value_name = "PATH")]
    theirs: Option<PathBuf>,
    /// Compare memcached with a memcached whose answers are altered in many ways, and fail if an alteration
    /// is not detected
    #[arg(long)]
    self_test: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs the comparison, or the self-test.
pub fn run(args: &Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signals cannot be handled")?;
    }
    let theirs = their_program(args.theirs.as_deref())?;
    let ours = match &args.ours {
        Some(program) => program.clone(),
        None if args.run.twin || args.self_test => theirs.clone(),
        None => workspace::build_server()?,
    };
    let (their_server, their_address) = start("theirs", &theirs)?;
    let (our_server, our_address) = start("ours", &ours)?;
    let servers = Servers { theirs: their_address, ours: our_address };
    let options = Options { stop: Arc::clone(&stop), ..args.run.options(servers) };
    let outcome = if args.self_test { self_test(&options) } else { run_and_print(&options) };
    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    for (name, mut server) in [("theirs", their_server), ("ours", our_server)] {
        if server.wait(Duration::ZERO).is_some() || server.has_panicked() {
            eprintln!("{name} failed{}", server.output_tail());
        }
    }
    outcome
}

/// Starts a server for a comparison; `name` is for errors.
///
/// # Errors
/// It does not come up.
pub(crate) fn start(name: &str, program: &Path) -> Result<(ServerProcess, SocketAddr)> {
    ServerProcess::start_on_free_port(name, &|port| {
        let mut command = server_command(program);
        command.args(FLAGS).args(["-p", &port.to_string()]);
        command
    })
}

/// Runs the self-test: each alteration must be detected.
fn self_test(options: &Options) -> Result<()> {
    for &harm in Harm::value_variants() {
        let saboteur = Saboteur::start(options.servers.ours, harm, HARM_EVERY)?;
        let options = Options {
            servers: Servers { ours: saboteur.address(), ..options.servers },
            commands: SELF_TEST_COMMANDS,
            twin: true,
            slow: false,
            shrink: false,
            coverage: false,
            ..options.clone()
        };
        let report = fabcache_differential::run(&options)?;
        ensure!(!options.stop.load(Ordering::Relaxed), "interrupted");
        ensure!(saboteur.done() > 0, "no opportunity for {harm:?}");
        ensure!(
            !report.differences.is_empty(),
            "{harm:?} was done {} times and not detected",
            saboteur.done()
        );
        println!("{harm:?} was noticed");
    }
    Ok(())
}

/// Returns the program to compare with; installs it if needed.
///
/// # Errors
/// It cannot be installed, or is of another release.
pub(crate) fn their_program(given: Option<&Path>) -> Result<PathBuf> {
    let program = given.unwrap_or(Path::new(THEIR_PROGRAM));
    if given.is_none() && !program.exists() {
        install().with_context(|| format!("{THEIR_PROGRAM} is missing and cannot be installed"))?;
    }
    let output = Command::new(program).arg("-V").output();
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        text.trim() == format!("memcached {THEIR_RELEASE}"),
        "{} is {:?}, but the comparison needs memcached {THEIR_RELEASE}",
        program.display(),
        text.trim(),
    );
    Ok(program.to_owned())
}

fn install() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root can install it");
    let apt_get = |words: &[&str]| -> Result<bool> {
        let mut command = Command::new("apt-get");
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        Ok(command.status().context("apt-get cannot be started")?.success())
    };
    let package = ["install", "--yes", "--quiet", "--no-install-recommends", "memcached"];
    // The package lists may be absent or old.
    let installed = apt_get(&package)? || (apt_get(&["update", "--quiet"])? && apt_get(&package)?);
    ensure!(installed, "apt-get does not install memcached");
    Ok(())
}
