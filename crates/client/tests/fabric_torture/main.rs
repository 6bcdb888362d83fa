//! Writers against readers over the fabric. `FABCACHE_PROVIDER` names libfabric's provider.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/torture/mod.rs"]
mod torture;

use std::{slice, thread};

use common::fabric::{beside, is_one_sided, options, over, served};
use common::process::stat;
use fabcache_client::{Client, FabricMode};
use fabcache_testbed::wait::amount;
use torture::ledger::Ledger;
use torture::readers::{self, Sort, Tally};
use torture::{Scenario, keep_house, value, writers};

/// The server's flags. With less memory the index starts smaller, and grows sooner.
fn flags(scenario: Scenario) -> String {
    match scenario {
        Scenario::Short => "-t 2 -m 2 -I 128k".to_owned(),
        Scenario::Long => "-t 2 -m 8 -I 128k".to_owned(),
        Scenario::Roomy => format!("-t 2 -m {} -I 4m", amount(64, 16)),
    }
}

fn run(scenario: Scenario) {
    let (_server, address, path) = served(&format!("fabric-torture-{scenario:?}"), &flags(scenario));
    let control = beside(&path.0);
    let ledger = Ledger::new(scenario, 1);
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
        keep_house(scenario, &Sort::ALL, slice::from_ref(&control), &ledger);
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

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_are_right_while_memory_is_short() {
    run(Scenario::Short);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_are_right_while_values_are_long() {
    run(Scenario::Long);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_are_right_while_the_index_grows() {
    run(Scenario::Roomy);
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
