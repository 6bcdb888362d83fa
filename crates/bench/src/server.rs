//! A measured server process.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_testbed::server::ServerProcess;
use rustix::process::Signal;

use crate::process::{Cpus, Process};

/// A server that still runs so long after a signal has failed to stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// A server to measure: any program that takes memcached's flags.
#[derive(Clone, Debug)]
pub struct MeasuredProgram {
    /// Its name in tables.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Flags beside the common ones.
    pub flags: Vec<String>,
}

/// A running server. It is stopped when dropped.
#[derive(Debug)]
pub struct Server(ServerProcess);

impl Server {
    /// Starts a server on a free port of this host; returns the port. `flags` are added to its own.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start(program: &MeasuredProgram, flags: &[&str]) -> Result<(Server, SocketAddr)> {
        let command = |port: u16| program.command(&["-l", "127.0.0.1", "-p", &port.to_string()], flags);
        let (server, address) = ServerProcess::start_on_free_port(&program.name, &command)?;
        Ok((Server(server), address))
    }

    /// Starts a server on a Unix socket only.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start_unix(program: &MeasuredProgram, socket: &Path, flags: &[&str]) -> Result<Server> {
        let path = socket.to_str().with_context(|| format!("{} is not text", socket.display()))?;
        Server::launch(&program.name, program.command(&["-s", path], flags), &|| {
            UnixStream::connect(socket).is_ok()
        })
    }

    /// Runs `command`, and waits until `is_up`.
    ///
    /// # Errors
    /// The server does not start; the error has its exit status and the end of its output.
    pub fn launch(name: &str, command: Command, is_up: &dyn Fn() -> bool) -> Result<Server> {
        Ok(Server(ServerProcess::start(name, command, is_up)?))
    }

    /// Sends a signal, and returns the time until the process ended.
    ///
    /// # Errors
    /// The server does not end within a minute, or it fails; a server that SIGKILL ends does not fail.
    pub fn stop(mut self, signal: Signal) -> Result<Duration> {
        let begun = Instant::now();
        self.0.signal(signal);
        let ended = self.0.wait(STOP_TIME_MAX);
        let taken = begun.elapsed();
        let Some(status) = ended else {
            bail!("the server still runs {STOP_TIME_MAX:?} after signal {}", signal.as_raw());
        };
        let is_stopped = status.success() || signal == Signal::KILL;
        ensure!(is_stopped, "signal {} ended the server: {status}{}", signal.as_raw(), self.output_tail());
        Ok(taken)
    }

    /// Returns the exit status and the end of the output, if the server ends within this time.
    pub fn ended(&mut self, within: Duration) -> Option<String> {
        self.0.ended(within)
    }

    /// Returns the last lines of its output.
    pub fn output_tail(&self) -> String {
        self.0.output_tail()
    }

    /// Returns its process.
    pub fn process(&self) -> Process {
        Process(self.0.id())
    }

    /// Returns the memory that it does not share with other processes, in bytes.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.process().resident_bytes()
    }

    /// Pins all threads to CPUs.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin(&self, cpus: &Cpus) -> Result<()> {
        self.process().pin(cpus)
    }

    /// Returns the CPU time of all threads.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process().cpu_time()
    }
}

impl MeasuredProgram {
    /// Returns the command that starts the program with these listeners and flags.
    pub(crate) fn command(&self, listening: &[&str], flags: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-u", "root"]).args(listening).args(flags).args(&self.flags);
        command
    }
}
