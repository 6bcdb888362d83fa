//! One process writes at full rate; others have the region mapped to be read, and read it without the server.
//!
//! Values tell their key and version all through, and a ledger that both map says what was begun and answered of each
//! key. So the reader knows a wrong value, a torn one, and one that is older than a write answered before its GET began.
//!
//! `cargo test` runs it briefly; `cargo xtask torture --reads N` for as long as one likes, with as many readers.

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

/// Reads of each scenario when none are asked for.
const READS: u64 = 100_000;
/// For how long the server leaves alone what it emptied.
const GRACE: Duration = Duration::from_micros(300);
/// For how long readers of many at a time go by what they know of flushes.
const LEASE: Duration = Duration::from_micros(400);
/// Says to the program, when it starts itself again, what to read.
const READER: &str = "FABCACHE_OUTSIDE_READER";

/// What is going on while others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Memory is short: items are evicted, and segments used again, all the time. Everything is flushed now and then.
    Short,
    /// Nothing is evicted; the index grows. Half of the keys are never removed, so they are never missed.
    Roomy,
}

impl Scenario {
    const ALL: [Scenario; 2] = [Scenario::Short, Scenario::Roomy];

    /// Keys that the ledger knows.
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
        let done = children.into_iter().map(|mut child| child.wait().expect("it was started"));
        let failed: Vec<_> = done.filter(|status| !status.success()).collect();
        server.stop();
        if let Some(status) = failed.first() {
            println!("{} of the readers failed: {status}", failed.len());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
