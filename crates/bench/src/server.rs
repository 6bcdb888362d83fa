//! A server process that is measured.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use fabcache_testbed::server::ServerProcess;

use crate::process::{Cpus, Process};

/// A server to measure: any program with memcached's flags.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name in tables.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Flags beside those of every candidate.
    pub flags: Vec<String>,
}

/// A running server. It is stopped when dropped.
#[derive(Debug)]
pub struct Server(ServerProcess);

impl Server {
    /// Starts a server on a free port of this host, which is returned, with `flags` beside its own.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(candidate: &Candidate, flags: &[&str]) -> Result<(Server, SocketAddr)> {
        let command = |port: u16| candidate.command(&["-l", "127.0.0.1", "-p", &port.to_string()], flags);
        let (server, address) = ServerProcess::start_on_free_port(&candidate.name, &command)?;
        Ok((Server(server), address))
    }

    /// Starts a server on a Unix socket only.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_unix(candidate: &Candidate, socket: &Path, flags: &[&str]) -> Result<Server> {
        let path = socket.to_str().with_context(|| format!("{} is not text", socket.display()))?;
        Server::launch(&candidate.name, candidate.command(&["-s", path], flags), &|| {
            UnixStream::connect(socket).is_ok()
        })
    }

    /// Starts whatever `command` is, and waits until it is up.
    ///
    /// # Errors
    /// It does not come up: how it ended, and the end of its output.
    pub fn launch(name: &str, command: Command, is_up: &dyn Fn() -> bool) -> Result<Server> {
        Ok(Server(ServerProcess::start(name, command, is_up)?))
    }

    /// Returns how it ended and the end of its output, if it ends within this time.
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

    /// Pins all its threads to CPUs.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin(&self, cpus: &Cpus) -> Result<()> {
        self.process().pin(cpus)
    }

    /// Returns the CPU time that all its threads have used.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process().cpu_time()
    }
}

impl Candidate {
    fn command(&self, listening: &[&str], flags: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-u", "root"]).args(listening).args(flags).args(&self.flags);
        command
    }
}
