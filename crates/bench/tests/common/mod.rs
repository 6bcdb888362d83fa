//! What tests of measurements share: a server in this process, and a run of an experiment on it.

// Not every test uses all of it.
#![allow(dead_code)]

pub mod clients;

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

    /// On a port of 127.0.0.1.
    pub fn tcp() -> Running {
        let parsed = CommandLine::try_parse_from(["fabcached", "-t", "1", "-l", "127.0.0.1", "-p", "-1"]);
        let settings = Settings::new(&parsed.expect("flags").options, &|_| None).expect("settings");
        Running {
            server: Some(Server::start(settings, Vec::new()).expect("a server")),
            socket: String::new(),
        }
    }

    /// Where it is, as a URL of this way: `tcp` for one on a port, `unix` or `shm`.
    pub fn url(&self, way: &str) -> String {
        if way != "tcp" {
            return format!("{way}://{}", self.socket);
        }
        let local = self.server.as_ref().expect("it runs").local().first().map(ToString::to_string);
        format!("tcp://{}", local.expect("a port"))
    }

    /// Reached in this way, as [`Running::url`] has it.
    pub fn target(&self, way: &str, protocol: Protocol) -> Target {
        let url: Url = self.url(way).parse().expect("a URL");
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
