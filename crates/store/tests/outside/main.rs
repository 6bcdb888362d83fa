//! One process writes at full rate; others map the region read-only, and read it without the server.
//!
//! Values repeat their key and version throughout, and a shared ledger records the versions of each key that were
//! started and acknowledged. So readers detect a wrong value, a torn one, and one older than a write acknowledged
//! before its GET began.
//!
//! `cargo test` runs it briefly; `cargo xtask torture --reads N` runs as many reads as asked for, with several readers.

#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod reader;
mod value;
mod window;
mod writers;

use std::process::{Command, ExitCode};
use std::time::Duration;

use ledger::Ledger;
use writers::Server;

/// Reads of each scenario by default.
const READS: u64 = 100_000;
/// The server's grace period for emptied segments.
const GRACE: Duration = Duration::from_micros(300);
/// The flush lease of windowed readers.
const LEASE: Duration = Duration::from_micros(400);
/// The environment variable that passes orders to reader processes.
const READER: &str = "FABCACHE_OUTSIDE_READER";

/// What happens while readers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Memory is short: items are evicted and segments reused all the time. Everything is flushed now and then.
    Short,
    /// Nothing is evicted; the index grows. Half of the keys are never removed, so they are never missed.
    Roomy,
}

impl Scenario {
    const ALL: [Scenario; 2] = [Scenario::Short, Scenario::Roomy];

    /// Keys that the ledger tracks.
    pub fn keys(self) -> usize {
        match self {
            Scenario::Short => 20_000,
            Scenario::Roomy => 8_000,
        }
    }

    /// Whether the key may be missed at any time.
    pub fn may_miss(self, key: usize) -> bool {
        self == Scenario::Short || key % 2 == 1
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Ok(order) = std::env::var(READER) {
        reader::run(&order);
        return ExitCode::SUCCESS;
    }
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    let number_after = |option: &str, otherwise: u64| {
        let given = args.iter().position(|arg| arg == option).and_then(|at| args.get(at + 1)?.parse().ok());
        given.unwrap_or(otherwise)
    };
    let (reads, readers) = (number_after("--reads", READS), number_after("--readers", 1).max(1));
    for (number, scenario) in Scenario::ALL.into_iter().enumerate() {
        println!("{scenario:?}: {reads} reads by {readers}");
        let server = Server::start(scenario);
        let program = std::env::current_exe().expect("this program has a name");
        let start = |reader| {
            let order = reader::order(number, reads / readers, reader, &server);
            Command::new(&program).env(READER, order).spawn().expect("this program starts")
        };
        let children: Vec<_> = (0..readers).map(start).collect();
        let done = children.into_iter().map(|mut child| child.wait().expect("a started child"));
        let failed: Vec<_> = done.filter(|status| !status.success()).collect();
        server.stop();
        if let Some(status) = failed.first() {
            println!("{} of the readers failed: {status}", failed.len());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
