//! Writers against readers, and a ledger of what each read may return. `FABCACHE_TORTURE_READS` is the minimum number of
//! reads without the server.
//!
//! Values repeat their key and version throughout, and the ledger records the versions of each key that were started and
//! acknowledged. So readers detect a wrong value, a torn one, and one older than a write acknowledged before the read.

pub mod ledger;
pub mod readers;
#[path = "../../../../store/tests/outside/value.rs"]
pub mod value;
pub mod writers;

use std::thread;
use std::time::{Duration, Instant};

use fabcache_client::Client;
use fabcache_testbed::wait::amount;

use crate::common::process::stat;
use ledger::Ledger;
use readers::Sort;

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
    /// Keys that the ledger tracks, for each server.
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
}

/// Returns the sum of a number that each server reports.
pub fn sum(controls: &[Client], topic: &str, name: &str) -> u64 {
    controls.iter().map(|control| stat(control, topic, name)).sum()
}

/// Beyond so many times the required reads of each server, everything else must have been seen. Requests wait as
/// long as their client does.
const READS_MAX_TIMES: u64 = 50;

/// Writes of each server from one flush to the next: enough to fill memory more than once.
fn stored_between_flushes(scenario: Scenario) -> u64 {
    if scenario == Scenario::Long { 600 } else { amount(6_000, 3_000) as u64 }
}

/// The required number of reads without the server.
fn enough(scenario: Scenario) -> u64 {
    let usual = if scenario == Scenario::Long { 2_000 } else { 6_000 };
    let named = std::env::var("FABCACHE_TORTURE_READS").ok();
    named.map_or(amount(usual, 600) as u64, |number| {
        number.parse().expect("FABCACHE_TORTURE_READS is a number")
    })
}

/// Where memory is short, flushes everything now and then, until every required event was seen or a thread failed. There is one
/// client of each server, and the first one's flush covers all.
///
/// # Panics
/// Something is still to be seen after far more reads.
pub fn keep_house(scenario: Scenario, sorts: &[Sort], controls: &[Client], ledger: &Ledger) {
    let reads = enough(scenario);
    let hits = (reads / 100).max(3 * readers::window() as u64);
    let between_flushes = stored_between_flushes(scenario) * controls.len() as u64;
    let (began, index_before) = (Instant::now(), sum(controls, "", "hash_bytes"));
    let mut flushed_at = 0;
    while ledger.goes_on() {
        thread::sleep(Duration::from_millis(20));
        if scenario != Scenario::Roomy && ledger.stored() - flushed_at > between_flushes {
            let _alone = ledger.flushing.write().expect("no thread panics while it writes");
            controls[0].flush(0).expect("answered");
            ledger.count_flush();
            flushed_at = ledger.stored();
        }
        let has_seen = match scenario {
            Scenario::Short | Scenario::Long => ledger.flushes() > 0 && sum(controls, "", "evictions") > 0,
            Scenario::Roomy => ledger.ended() > 0 && sum(controls, "", "hash_bytes") > index_before,
        };
        let have_all_hit = sorts.iter().all(|sort| ledger.hits(*sort) >= hits);
        if has_seen && have_all_hit && ledger.reads() >= reads {
            return println!("{:.1?}", began.elapsed());
        }
        assert!(
            ledger.reads() < reads * READS_MAX_TIMES * controls.len() as u64,
            "after {} reads and {} writes, {} flushes, something is still to be seen: {:?} found",
            ledger.reads(),
            ledger.stored(),
            ledger.flushes(),
            sorts.iter().map(|sort| (sort, ledger.hits(*sort))).collect::<Vec<_>>()
        );
    }
}
