//! A server in this process, for tests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use clap::Parser;
use fabcache_server::options::CommandLine;
use fabcache_server::{Server, Settings};
use fabcache_shmem::Process;
use fabcache_shmem::local::LocalProcess;

/// A server in this process. Dropping it stops the server, and panics if a thread of it failed.
pub struct LocalServer {
    server: Option<Server>,
}

impl LocalServer {
    /// Starts a server with these flags, separated by blanks.
    ///
    /// # Errors
    /// The flags are invalid, or the server cannot listen.
    pub fn start(flags: &str) -> Result<Self> {
        Self::start_in(flags, None)
    }

    /// Starts a server with these flags, as this PE of a job.
    ///
    /// # Errors
    /// As [`LocalServer::start`].
    pub fn start_in(flags: &str, process: Option<&dyn Process>) -> Result<Self> {
        let line = format!("fabcached {flags}");
        let parsed = CommandLine::try_parse_from(line.split_whitespace())?;
        let settings = Settings::new(&parsed.options, &|_| None)?;
        let server = Server::start_with_orders(settings, Vec::new(), process, channel())?;
        Ok(Self { server: Some(server) })
    }

    /// Starts a server with these flags over memory that no client can map: as the only PE of a job.
    ///
    /// # Errors
    /// As [`LocalServer::start`].
    pub fn over_unmappable_memory(flags: &str) -> Result<Self> {
        Self::alone(LocalProcess::start(1), flags)
    }

    /// Starts a server with these flags over memory of which clients map a part: as the only PE of a job.
    ///
    /// # Errors
    /// As [`LocalServer::start`].
    pub fn over_symmetric_memory(flags: &str) -> Result<Self> {
        Self::alone(LocalProcess::start_on_files(1), flags)
    }

    fn alone(mut job: Vec<LocalProcess>, flags: &str) -> Result<Self> {
        let process = job.pop().context("a job of one")?;
        Self::start_in(&format!("--fabric openshmem --openshmem-name alone {flags}"), Some(&process))
    }

    /// Takes over a running server.
    pub fn of(server: Server) -> Self {
        Self { server: Some(server) }
    }

    /// Starts a server of one worker on a free port of 127.0.0.1, with these flags too.
    ///
    /// # Panics
    /// As the errors of [`LocalServer::start`].
    pub fn tcp(flags: &str) -> Self {
        Self::start(&format!("-t 1 -l 127.0.0.1 -p -1 {flags}")).expect("the server starts")
    }

    /// Starts a server of one worker on a Unix socket, with these flags too. Returns the socket's path as well.
    ///
    /// # Panics
    /// As the errors of [`LocalServer::start`].
    pub fn unix(name: &str, flags: &str) -> (Self, PathBuf) {
        let path = socket_path(name);
        let server = Self::start(&format!("-t 1 -s {} {flags}", path.display())).expect("the server starts");
        (server, path)
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is dropped")
    }

    /// Returns the address of its TCP listener.
    ///
    /// # Panics
    /// It has none.
    pub fn address(&self) -> SocketAddr {
        let addresses = self.server().local().iter().map(|peer| peer.to_string());
        addresses.filter_map(|address| address.parse().ok()).next().expect("it listens on TCP")
    }

    /// Returns `tcp://ADDRESS:PORT`.
    ///
    /// # Panics
    /// It has no TCP listener.
    pub fn url(&self) -> String {
        format!("tcp://{}", self.address())
    }

    /// Stops the server.
    ///
    /// # Errors
    /// A thread of it failed.
    pub fn stop(mut self) -> Result<()> {
        self.server.take().expect("it runs until it is dropped").stop().context("a thread failed")
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let stopped = server.stop();
            if !std::thread::panicking() {
                stopped.expect("no thread failed");
            }
        }
    }
}

/// Returns a path for a Unix socket that no other test uses.
pub fn socket_path(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fabcache-{name}-{}-{number}", std::process::id()))
}
