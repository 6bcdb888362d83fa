//! What tests of measurements share: a server in this process, and a run of an experiment on it.

// Not every test uses all of it.
#![allow(dead_code)]

use clap::Parser;
use fabcache_bench::experiment::{self, Experiment, Plan, Progress};
use fabcache_bench::results::Results;
use fabcache_bench::target::{Target, Url};
use fabcache_client::Protocol;
use fabcache_server::options::CommandLine;
use fabcache_server::{Server, Settings};

/// A server that is stopped when the test ends.
pub struct Running {
    server: Option<Server>,
    socket: String,
}

impl Running {
    /// On a Unix socket, with shared memory.
    pub fn start(name: &str, flags: &str) -> Running {
        let path = std::env::temp_dir().join(format!("fabcache-bench-{name}-{}", std::process::id()));
        let socket = path.display().to_string();
        let line = format!("fabcached -t 1 -s {socket} --shm {flags}");
        let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("flags");
        let settings = Settings::new(&parsed.options, &|_| None).expect("settings");
        Running { server: Some(Server::start(settings, Vec::new()).expect("a server")), socket }
    }

    /// Reached in this way: `unix` or `shm`.
    pub fn target(&self, way: &str, protocol: Protocol) -> Target {
        let url: Url = format!("{way}://{}", self.socket).parse().expect("a URL");
        Target::new(way, &[url], protocol).expect("it is up")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread failed");
        }
    }
}

struct Silent;

impl Progress for Silent {
    fn begin(&self, _: u64) {}
    fn round(&self, _: &str) {}
}

/// Two rounds of each case on each target.
pub fn run(experiment: &dyn Experiment, targets: &[&Target]) -> anyhow::Result<Results> {
    let plan = Plan { rounds: 2, ..Plan::default() };
    let measured: Vec<_> = targets.iter().map(|target| (*target, None)).collect();
    experiment::run(experiment, &measured, &plan, &Silent)
}
