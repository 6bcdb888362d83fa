//! Shared by the experiment tests: a server in this process, and a runner for experiments.

// Not every test file uses every item.
#![allow(dead_code)]

pub mod clients;

use fabcache_bench::experiment::{self, Experiment, Plan, Progress};
use fabcache_bench::results::Results;
use fabcache_bench::target::{Target, Url};
use fabcache_client::Protocol;
use fabcache_testbed::local::LocalServer;

/// A server in this process, stopped on drop.
pub struct TestServer {
    server: LocalServer,
    socket: String,
}

impl TestServer {
    /// Starts a server on a Unix socket, with shared memory.
    pub fn start(name: &str, flags: &str) -> TestServer {
        let (server, path) = LocalServer::unix(&format!("bench-{name}"), &format!("--shm {flags}"));
        TestServer { server, socket: path.display().to_string() }
    }

    /// Starts a server on a TCP port of 127.0.0.1.
    pub fn tcp() -> TestServer {
        TestServer { server: LocalServer::tcp(""), socket: String::new() }
    }

    /// Returns the server's URL for a transport: `tcp` after [`TestServer::tcp`], else `unix` or `shm`.
    pub fn url(&self, transport: &str) -> String {
        if transport != "tcp" {
            return format!("{transport}://{}", self.socket);
        }
        self.server.url()
    }

    /// Returns a target over a transport, as for [`TestServer::url`].
    pub fn target(&self, transport: &str, protocol: Protocol) -> Target {
        let url: Url = self.url(transport).parse().expect("a URL");
        Target::new(transport, &[url], protocol).expect("it is up")
    }
}

/// Reports nothing.
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _: u64) {}
    fn round(&self, _: &str) {}
}

/// Runs two rounds of each case on each target.
pub fn run(experiment: &dyn Experiment, targets: &[&Target]) -> anyhow::Result<Results> {
    let plan = Plan { rounds: 2, ..Plan::default() };
    let measured: Vec<_> = targets.iter().map(|target| (*target, None)).collect();
    experiment::run(experiment, &measured, &plan, &NoProgress)
}
