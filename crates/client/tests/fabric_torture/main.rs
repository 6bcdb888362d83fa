//! Writers against those who read over the fabric. `FABCACHE_PROVIDER` names libfabric's provider; so many seconds as
//! `FABCACHE_TORTURE_SECONDS` says.
//!
//! Values tell their key and version all through, and a ledger says what was begun and answered of each key. So readers know
//! a wrong value, a torn one, and one that is older than a write answered before they asked.

#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod readers;
#[path = "../../../store/tests/outside/value.rs"]
mod value;
mod writers;

use std::thread;
use std::time::{Duration, Instant};

use common::fabric::{beside, is_one_sided, options, over, served};
use common::process::stat;
use fabcache_client::{Client, FabricMode};
use ledger::Ledger;
use readers::{Sort, Tally};

/// Enough to fill memory more than once.
const STORED_BETWEEN_FLUSHES: u64 = 6_000;

/// What is going on while others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Memory is short: items are evicted, and segments used again, all the time. Everything is flushed now and then.
    Short,
    /// Nothing is evicted; the index grows. Half of the keys are never removed, so they are never missed.
    Roomy,
}

impl Scenario {
    /// Keys that the ledger knows.
    pub fn keys(self) -> usize {
        match self {
            Scenario::Short => 6_000,
            Scenario::Roomy => 2_000,
        }
    }

    /// Whether the key may be missed at any time.
    pub fn may_miss(self, key: usize) -> bool {
        self == Scenario::Short || key % 2 == 1
    }

    /// Whether the key's items end after a second. They are written rarely.
    pub fn ends(self, key: usize) -> bool {
        key % 16 == 1
    }

    fn flags(self) -> &'static str {
        match self {
            Scenario::Short => "-t 2 -m 2 -I 128k",
            Scenario::Roomy => "-t 2 -m 512 -I 4m",
        }
    }
}

/// Reads without the server in each scenario, and for how long they may take at most.
const READS: u64 = 6_000;
const TIME_MAX: Duration = Duration::from_secs(100);

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn torture(scenario: Scenario) {
    let (_server, address, path) = served(&format!("fabric-torture-{scenario:?}"), scenario.flags());
    let control = beside(&path.0);
    let ledger = Ledger::new(scenario);
    let reading: Vec<(Sort, Client)> =
        Sort::ALL.into_iter().map(|sort| (sort, over(&address, options(sort.mode())))).collect();
    let over = |mode| over(&address, options(mode));
    let writing = [beside(&path.0), over(FabricMode::Request), over(FabricMode::Auto)];
    writers::fill(scenario, &writing[0], &ledger);
    for (_, cache) in &reading {
        cache.get(&value::key(0)).expect("answered").expect("there");
    }
    let asked_before = stat(&control, "", "cmd_get");
    let tallies: Vec<(Sort, Tally)> = thread::scope(|scope| {
        let stop = ledger.stop_when_dropped();
        for (number, cache) in writing.iter().enumerate() {
            let ledger = &ledger;
            scope.spawn(move || writers::write(scenario, number, cache, ledger));
        }
        let readers: Vec<_> = reading
            .iter()
            .enumerate()
            .map(|(number, (sort, cache))| {
                let ledger = &ledger;
                scope.spawn(move || (*sort, readers::read(scenario, *sort, number as u64, cache, ledger)))
            })
            .collect();
        keep_house(scenario, &control, &ledger);
        drop(stop);
        readers.into_iter().map(|reader| reader.join().expect("nothing wrong was read")).collect()
    });
    let asked = stat(&control, "", "cmd_get") - asked_before;
    let evicted = stat(&control, "", "evictions");
    println!(
        "{scenario:?}: {} stored, {evicted} evicted, {} flushes, {} asked for when they had ended; {asked} gets asked the server",
        ledger.stored(),
        ledger.flushes(),
        ledger.ended()
    );
    for (sort, tally) in &tallies {
        println!("  {sort:?}: {tally:?}");
    }
    let of = |mode: &dyn Fn(FabricMode) -> bool| -> u64 {
        tallies.iter().filter(|(sort, _)| mode(sort.mode())).map(|(_, tally)| tally.reads()).sum()
    };
    let one_sided = of(&|mode| mode == FabricMode::OneSided);
    let others = of(&|mode| mode != FabricMode::OneSided);
    assert!(
        asked < others + one_sided / 5,
        "{one_sided} were to be read without the server, which saw {asked} gets, {others} of them others'"
    );
    assert!(tallies.iter().all(|(_, tally)| tally.hits > tally.reads() / 20), "items are there to be read");
    for (sort, cache) in &reading {
        assert!(is_one_sided(cache) || sort.mode() != FabricMode::OneSided, "{sort:?}");
    }
}

/// Flushes everything now and then, where memory is short, until all has been seen that is to be seen, or somebody has failed.
fn keep_house(scenario: Scenario, control: &Client, ledger: &Ledger) {
    let reads = from_environment("FABCACHE_TORTURE_READS").unwrap_or(READS);
    let time_max = from_environment("FABCACHE_TORTURE_SECONDS").map_or(TIME_MAX, Duration::from_secs);
    let began = Instant::now();
    let mut flushed_at = 0;
    while ledger.goes_on() {
        thread::sleep(Duration::from_millis(20));
        if scenario == Scenario::Short && ledger.stored() - flushed_at > STORED_BETWEEN_FLUSHES {
            let _alone = ledger.flushing.write().expect("no thread panics while it writes");
            control.flush(0).expect("answered");
            ledger.count_flush();
            flushed_at = ledger.stored();
        }
        let has_seen = match scenario {
            Scenario::Short => ledger.flushes() > 0 && stat(control, "", "evictions") > 0,
            Scenario::Roomy => ledger.ended() > 0,
        };
        if has_seen && ledger.reads() >= reads {
            return println!("{:.1?}", began.elapsed());
        }
        assert!(began.elapsed() < time_max, "{} reads, {} stored", ledger.reads(), ledger.stored());
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn memory_is_short() {
    torture(Scenario::Short);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn the_index_grows() {
    torture(Scenario::Roomy);
}

#[test]
#[ignore = "a server, run by the others"]
fn serve() {
    if std::env::var_os("FABCACHE_TEST_SOCKET").is_some() {
        common::process::serve();
    }
}
