//! Readers and writers through all PEs at full rate. Most reads of other PEs' keys are one-sided.

use std::array;
use std::thread;

use fabcache_client::Client;

use crate::jobs::{read_under_load, started_patient, through, through_all};
use crate::torture::ledger::Ledger;
use crate::torture::readers::{self, Sort, Tally};
use crate::torture::writers::{self, WRITERS};
use crate::torture::{Scenario, keep_house, sum};

/// The readers of each PE.
const SORTS: [Sort; 3] = [Sort::Alone, Sort::Windows, Sort::Multiget];

/// The flags of each server. With less memory the index starts smaller, and grows sooner.
fn flags(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Short => "-m 2 -I 128k",
        Scenario::Long => "-m 8 -I 128k",
        Scenario::Roomy => "-m 64 -I 4m",
    }
}

/// Each writer writes keys of all PEs, and each reader reads them.
fn run(scenario: Scenario) {
    let job = started_patient(&format!("--openshmem-one-sided=true {}", flags(scenario)));
    let controls = through_all(&job);
    let ledger = Ledger::new(scenario, job.pes());
    let writing: [Client; WRITERS] = array::from_fn(|number| through(&job, number % job.pes()));
    writers::fill(scenario, &writing[0], &ledger, sum(&controls, "fabcache", "index_slots"));
    let one_sided = || sum(&controls, "fabcache", "openshmem_one_sided_reads");
    let one_sided_before = one_sided();
    let tallies: Vec<(usize, Sort, Tally)> = thread::scope(|scope| {
        let stop = ledger.stop_when_dropped();
        for (number, cache) in writing.iter().enumerate() {
            let ledger = &ledger;
            scope.spawn(move || writers::write(scenario, number, cache, ledger));
        }
        let mut reading = Vec::new();
        for (pe, sort) in (0..job.pes()).flat_map(|pe| SORTS.map(|sort| (pe, sort))) {
            let (cache, ledger, seed) = (through(&job, pe), &ledger, reading.len() as u64);
            reading
                .push(scope.spawn(move || (pe, sort, readers::read(scenario, sort, seed, &cache, ledger))));
        }
        keep_house(scenario, &SORTS, &controls, &ledger);
        drop(stop);
        reading.into_iter().map(|reader| reader.join().expect("nothing wrong was read")).collect()
    });
    let one_sided = one_sided() - one_sided_before;
    let reads: u64 = tallies.iter().map(|(.., tally)| tally.reads()).sum();
    println!(
        "{scenario:?}: {} stored, {} evicted, {} flushes, {} asked for when they had ended; {one_sided} of {reads} reads one-sided",
        ledger.stored(),
        sum(&controls, "", "evictions"),
        ledger.flushes(),
        ledger.ended()
    );
    for tally in &tallies {
        println!("  {tally:?}");
    }
    let of_others = reads - reads / job.pes() as u64;
    assert!(one_sided > of_others / 2, "{one_sided} of {of_others} reads of other PEs' keys were one-sided");
    assert!(tallies.iter().all(|(.., tally)| tally.hits > tally.reads() / 20), "items are there to be read");
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn reads_are_right_while_memory_is_short() {
    run(Scenario::Short);
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn reads_are_right_while_values_are_long() {
    run(Scenario::Long);
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn reads_are_right_while_the_index_grows() {
    run(Scenario::Roomy);
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn reads_are_right_under_load() {
    let job = started_patient("-m 16");
    read_under_load(&job, |pe| through(&job, pe), |_| (0..job.pes()).collect());
}
