//! Readers and writers through all PEs at full rate, while memory is short.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::versions::{StopWhenDropped, floors, read, write};
use crate::jobs::{amount, started_patient, through, until_done};

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn reads_are_right_under_load() {
    let reads = amount(4_000, 200_000) as u64;
    let job = started_patient("-m 16");
    let ledgers: Vec<_> = (0..job.pes()).map(|pe| floors(&format!("through{pe}"))).collect();
    let hits: Vec<AtomicU64> = (0..job.pes()).map(|_| AtomicU64::new(0)).collect();
    let (ended, ledgers) = (&AtomicBool::new(false), &ledgers);
    thread::scope(|scope| {
        for (pe, hits) in hits.iter().enumerate() {
            let writer = through(&job, pe);
            scope.spawn(move || write(&writer, &ledgers[pe], ended));
            for (number, ledger) in ledgers.iter().enumerate() {
                let reader = through(&job, pe);
                let seed = (pe * ledgers.len() + number) as u64;
                scope.spawn(move || {
                    read(&reader, seed, ledger, ended, || {
                        hits.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        }
        let _stop = StopWhenDropped(ended);
        let done = || hits.iter().map(|hits| hits.load(Ordering::Relaxed).min(reads)).sum();
        until_done(reads * job.pes() as u64, done);
    });
}
