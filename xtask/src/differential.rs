//! `cargo xtask differential`: memcached 1.6.18 and fabcached side by side, the same bytes to both.
//!
//! Starts both with the same flags, on ports of their own, and has `fabcache-differential` compare them. The
//! servers are killed when this process ends, however it ends.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use fabcache_differential::run::run_and_print;
use fabcache_differential::saboteur::{Harm, Saboteur};
use fabcache_differential::{Options, RunArgs, Servers};
use rustix::process::Signal;

use crate::servers::START_TIME_MAX;
use crate::workspace;

/// The release that the comparison knows, which is Debian 12's.
const THEIR_RELEASE: &str = "1.6.18";

/// Where Debian's package puts it.
const THEIR_PROGRAM: &str = "/usr/bin/memcached";

/// Flags that mean the same to both. One thread: commands on several connections keep their order.
const FLAGS: &[&str] = &["-l", "127.0.0.1", "-U", "0", "-m", "256", "-I", "1m", "-t", "1", "-c", "1024"];

/// Lines of a server's output that are shown after a failure.
const LOG_LINES_MAX: usize = 40;

/// Commands of each part of the test of the test.
const SELF_TEST_COMMANDS: u64 = 30_000;

/// Opportunities that the test of the test lets pass between one harm and the next.
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
    /// Compare memcached with a memcached whose answers are altered, in each of many ways, and fail if one of
    /// the ways is not noticed
    #[arg(long)]
    self_test: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs the comparison, or the test of the test.
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
    let their_server = Server::start(&theirs)?;
    let our_server = Server::start(&ours)?;
    let servers = Servers { theirs: their_server.address, ours: our_server.address };
    let options = Options { stop: Arc::clone(&stop), ..args.run.options(servers) };
    let outcome = if args.self_test { self_test(&options) } else { run_and_print(&options) };
    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    for (name, server) in [("theirs", their_server), ("ours", our_server)] {
        server.show_log_if_broken(name);
    }
    outcome
}

/// Each way of altering answers must be noticed.
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
        ensure!(saboteur.done() > 0, "there was no opportunity for {harm:?}");
        ensure!(
            !report.differences.is_empty(),
            "{harm:?} was done {} times and not noticed",
            saboteur.done()
        );
        println!("{harm:?} was noticed");
    }
    Ok(())
}

/// The program to compare with, installed if need be.
fn their_program(given: Option<&Path>) -> Result<PathBuf> {
    let program = given.unwrap_or(Path::new(THEIR_PROGRAM));
    if given.is_none() && !program.exists() {
        install().with_context(|| format!("{THEIR_PROGRAM} is missing and cannot be installed"))?;
    }
    let output = Command::new(program).arg("-V").output();
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        text.trim() == format!("memcached {THEIR_RELEASE}"),
        "{} is {:?}, and what is compared with is memcached {THEIR_RELEASE}",
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
    // The lists of packages may be absent or old.
    let installed = apt_get(&package)? || (apt_get(&["update", "--quiet"])? && apt_get(&package)?);
    ensure!(installed, "apt-get does not install memcached");
    Ok(())
}

/// A server that is killed when this is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    fn start(program: &Path) -> Result<Self> {
        // Nothing holds the port between this and the server's start, and nothing else asks for one so fast.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let log = std::env::temp_dir().join(format!("differential-{}-{port}.log", std::process::id()));
        let output = File::create(&log).with_context(|| format!("{} cannot be created", log.display()))?;
        let mut command = Command::new(program);
        command.args(FLAGS).args(["-p", &port.to_string()]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are allowed: it
        // makes one system call (prctl) and touches no memory of its own.
        unsafe {
            command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        let mut server = Self { child, address, log };
        server.wait_until_up().inspect_err(|_| server.show_log(&program.to_string_lossy()))?;
        Ok(server)
    }

    fn wait_until_up(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("a server ended at once: {status}");
            }
            ensure!(Instant::now() < deadline, "a server does not answer");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What it wrote is of interest if it died, or one of its threads did.
    fn show_log_if_broken(mut self, name: &str) {
        if self.child.try_wait().is_ok_and(|status| status.is_some())
            || self.written().contains("panicked at")
        {
            self.show_log(name);
        }
    }

    fn written(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Shows the end of what the server wrote.
    fn show_log(&self, name: &str) {
        let text = self.written();
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
            eprintln!("{name}: {line}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}
