//! Writers against readers over the fabric. `FABCACHE_PROVIDER` names libfabric's provider; `FABCACHE_TORTURE_READS` is
//! the minimum number of reads without the server.
//!
//! Values repeat their key and version throughout, and a ledger records the versions of each key that were started and
//! acknowledged. So readers detect a wrong value, a torn one, and one older than a write acknowledged before the read.

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
use fabcache_testbed::wait::amount;
use ledger::Ledger;
use readers::{Sort, Tally};

/// What happens while readers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Memory is short: items are evicted and segments reused all the time. Everything is flushed now and then.
    Short,
    /// The same, with many values so long that they are chunked; chunks are read one after the other.
    Long,
    /// Nothing is evicted; the index grows. Half of the keys are never removed, so they are never missed.
    Roomy,
}

impl Scenario {
    /// Keys that the ledger tracks.
    fn keys(self) -> usize {
        match self {
            Scenario::Short => amount(6_000, 3_000),
            Scenario::Long => 300,
            Scenario::Roomy => amount(2_000, 800),
        }
    }

    /// Whether the key may be missed at any time.
    pub fn may_miss(self, key: usize) -> bool {
        self != Scenario::Roomy || key % 2 == 1
    }

    /// Whether the key's items expire after a second. They are written rarely.
    pub fn ends(self, key: usize) -> bool {
        key % 16 == 1
    }

    /// The server's flags. With less memory the index starts smaller, and grows sooner.
    fn flags(self) -> String {
        match self {
            Scenario::Short => "-t 2 -m 2 -I 128k".to_owned(),
            Scenario::Long => "-t 2 -m 8 -I 128k".to_owned(),
            Scenario::Roomy => format!("-t 2 -m {} -I 4m", amount(64, 16)),
        }
    }
}

/// Beyond this fraction of the required reads without the server, everything else must have been seen. Requests wait as
/// long as their client does.
const READS_MAX_TIMES: u64 = 50;

/// Writes from one flush to the next: enough to fill memory more than once.
fn stored_between_flushes(scenario: Scenario) -> u64 {
    if scenario == Scenario::Long { 600 } else { amount(6_000, 3_000) as u64 }
}

fn torture(scenario: Scenario) {
    let (_server, address, path) = served(&format!("fabric-torture-{scenario:?}"), &scenario.flags());
    let control = beside(&path.0);
    let ledger = Ledger::new(scenario);
    let reading: Vec<(Sort, Client)> =
        Sort::ALL.into_iter().map(|sort| (sort, over(&address, options(sort.mode())))).collect();
    let over = |mode| over(&address, options(mode));
    let writing = [beside(&path.0), over(FabricMode::Request), over(FabricMode::Auto)];
    writers::fill(scenario, &writing[0], &ledger, stat(&control, "fabcache", "index_slots"));
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
    let requested = stat(&control, "", "cmd_get") - asked_before;
    let evicted = stat(&control, "", "evictions");
    println!(
        "{scenario:?}: {} stored, {evicted} evicted, {} flushes, {} asked for when they had ended; {requested} gets asked the server",
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
    // Slow reads meet more concurrent changes.
    assert!(
        requested < others + one_sided / amount(5, 2) as u64,
        "{one_sided} were to be read without the server, which saw {requested} gets, {others} of them others'"
    );
    assert!(tallies.iter().all(|(_, tally)| tally.hits > tally.reads() / 20), "items are there to be read");
    for (sort, cache) in &reading {
        assert!(is_one_sided(cache) || sort.mode() != FabricMode::OneSided, "{sort:?}");
    }
}

/// The required number of reads without the server.
fn enough(scenario: Scenario) -> u64 {
    let usual = if scenario == Scenario::Long { 2_000 } else { 6_000 };
    let named = std::env::var("FABCACHE_TORTURE_READS").ok();
    named.map_or(amount(usual, 600) as u64, |number| {
        number.parse().expect("FABCACHE_TORTURE_READS is a number")
    })
}

/// Where memory is short, flushes everything now and then, until every required event was seen or a thread failed.
fn keep_house(scenario: Scenario, control: &Client, ledger: &Ledger) {
    let reads = enough(scenario);
    let hits = (reads / 100).max(3 * readers::window() as u64);
    let between_flushes = stored_between_flushes(scenario);
    let (began, index_before) = (Instant::now(), stat(control, "", "hash_bytes"));
    let mut flushed_at = 0;
    while ledger.goes_on() {
        thread::sleep(Duration::from_millis(20));
        if scenario != Scenario::Roomy && ledger.stored() - flushed_at > between_flushes {
            let _alone = ledger.flushing.write().expect("no thread panics while it writes");
            control.flush(0).expect("answered");
            ledger.count_flush();
            flushed_at = ledger.stored();
        }
        let has_seen = match scenario {
            Scenario::Short | Scenario::Long => ledger.flushes() > 0 && stat(control, "", "evictions") > 0,
            Scenario::Roomy => ledger.ended() > 0 && stat(control, "", "hash_bytes") > index_before,
        };
        let have_all_hit = Sort::ALL.into_iter().all(|sort| ledger.hits(sort) >= hits);
        if has_seen && have_all_hit && ledger.reads() >= reads {
            return println!("{:.1?}", began.elapsed());
        }
        assert!(
            ledger.reads() < reads * READS_MAX_TIMES,
            "after {} reads and {} writes, {} flushes, something is still to be seen: {:?} found",
            ledger.reads(),
            ledger.stored(),
            ledger.flushes(),
            Sort::ALL.map(|sort| (sort, ledger.hits(sort)))
        );
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_are_right_while_memory_is_short() {
    torture(Scenario::Short);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_are_right_while_values_are_long() {
    torture(Scenario::Long);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_are_right_while_the_index_grows() {
    torture(Scenario::Roomy);
}

#[test]
#[ignore = "a server, run by the others"]
fn serve() {
    if std::env::var_os("FABCACHE_TEST_SOCKET").is_some() {
        common::process::serve();
    }
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
