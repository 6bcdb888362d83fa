//! A server process that is measured.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::process::{Cpus, Process};

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(10);

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
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts a server on a free port of this host, which is returned, with `flags` beside its own.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(candidate: &Candidate, flags: &[&str]) -> Result<(Server, SocketAddr)> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
        let address = free.local_addr()?;
        drop(free);
        let port = address.port().to_string();
        let listening = ["-l", "127.0.0.1", "-p", &port];
        let server = Server::spawn(candidate, &listening, flags, &|| TcpStream::connect(address).is_ok())?;
        Ok((server, address))
    }

    /// Starts a server on a Unix socket only.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_unix(candidate: &Candidate, socket: &Path, flags: &[&str]) -> Result<Server> {
        let path = socket.to_str().with_context(|| format!("{} is not text", socket.display()))?;
        Server::spawn(candidate, &["-s", path], flags, &|| UnixStream::connect(socket).is_ok())
    }

    fn spawn(
        candidate: &Candidate,
        listening: &[&str],
        flags: &[&str],
        is_up: &dyn Fn() -> bool,
    ) -> Result<Server> {
        let mut command = Command::new(&candidate.program);
        command.args(["-u", "root"]).args(listening).args(flags).args(&candidate.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child =
            command.spawn().with_context(|| format!("cannot start {}", candidate.program.display()))?;
        let mut server = Server { child };
        let until = Instant::now() + PATIENCE;
        while !is_up() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{} ended at once: {status}", candidate.name);
            }
            if Instant::now() > until {
                bail!("{} does not listen", candidate.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Its process.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Memory that it alone has, in bytes.
    ///
    /// # Errors
    /// The system does not tell.
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

    /// CPU time of all its threads so far.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process().cpu_time()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(id) = Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(id, Signal::TERM);
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
