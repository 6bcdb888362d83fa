//! Shared by the experiment tests: a server in this process, and a runner for experiments.

// Not every test file uses every item.
#![allow(dead_code)]

pub mod clients;

use fabcache_bench::experiment::{self, Experiment, Plan, Progress};
use fabcache_bench::results::Results;
use fabcache_bench::target::{Target, Url};
use fabcache_client::Protocol;
use fabcache_testbed::local::LocalServer;

/// A server that is stopped when the test ends.
pub struct Running {
    server: LocalServer,
    socket: String,
}

impl Running {
    /// On a Unix socket, with shared memory.
    pub fn start(name: &str, flags: &str) -> Running {
        let path = std::env::temp_dir().join(format!("fabcache-bench-{name}-{}", std::process::id()));
        let socket = path.display().to_string();
        let flags = format!("-t 1 -s {socket} --shm {flags}");
        Running { server: LocalServer::start(&flags).expect("a server"), socket }
    }

    /// On a port of 127.0.0.1.
    pub fn tcp() -> Running {
        Running { server: LocalServer::tcp(""), socket: String::new() }
    }

    /// Where it is, as a URL of this way: `tcp` for one on a port, `unix` or `shm`.
    pub fn url(&self, way: &str) -> String {
        if way != "tcp" {
            return format!("{way}://{}", self.socket);
        }
        let local = self.server.server().local().first().map(ToString::to_string);
        format!("tcp://{}", local.expect("a port"))
    }

    /// Reached in this way, as [`Running::url`] has it.
    pub fn target(&self, way: &str, protocol: Protocol) -> Target {
        let url: Url = self.url(way).parse().expect("a URL");
        Target::new(way, &[url], protocol).expect("it is up")
    }
}

struct Silent;

impl Progress for Silent {
    fn begin(&self, _: u64) {}
    fn round(&self, _: &str) {}
}

/// Runs two rounds of each case on each target.
pub fn run(experiment: &dyn Experiment, targets: &[&Target]) -> anyhow::Result<Results> {
    let plan = Plan { rounds: 2, ..Plan::default() };
    let measured: Vec<_> = targets.iter().map(|target| (*target, None)).collect();
    experiment::run(experiment, &measured, &plan, &Silent)
}
