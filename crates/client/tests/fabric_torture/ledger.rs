//! What is known of each key: versions begun and answered.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::Scenario;
use crate::readers::Sort;

/// Counters, beside the keys.
pub const COUNTERS: usize = 6;

/// How long after its time an item may be found: a server's second, and what its clock is coarse.
const LATE_MS: u64 = 2_500;

/// One key, or counter. It has one writer.
#[derive(Debug, Default)]
pub struct Known {
    begun: AtomicU64,
    answered: AtomicU64,
    /// The last version with an end, and milliseconds of the ledger when that had come for sure.
    ending: AtomicU64,
    ended_ms: AtomicU64,
}

/// The state of a key before it was read.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    answered: u64,
    flushes: u64,
    /// The version that had ended.
    ended: Option<u64>,
}

#[derive(Debug)]
pub struct Ledger {
    keys: Vec<Known>,
    counters: Vec<Known>,
    began: Instant,
    flushes: AtomicU64,
    /// Held by writes, and alone by a flush, so that it is known which came first.
    pub flushing: RwLock<()>,
    stop: AtomicBool,
    /// Reads of keys whose last version had ended.
    ended: AtomicU64,
    /// Reads without the server.
    reads: AtomicU64,
    /// What each sort of reader found.
    hits: [AtomicU64; Sort::ALL.len()],
    stored: AtomicU64,
}

pub struct Stop<'a>(&'a Ledger);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Ledger {
    pub fn new(scenario: Scenario) -> Ledger {
        Ledger {
            keys: (0..scenario.keys()).map(|_| Known::default()).collect(),
            counters: (0..COUNTERS).map(|_| Known::default()).collect(),
            began: Instant::now(),
            flushes: AtomicU64::new(0),
            flushing: RwLock::new(()),
            stop: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            hits: Default::default(),
            stored: AtomicU64::new(0),
        }
    }

    /// Stops the other threads when one fails.
    pub fn stop_when_dropped(&self) -> Stop<'_> {
        Stop(self)
    }

    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    pub fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub fn hits(&self, sort: Sort) -> u64 {
        self.hits[sort as usize].load(Ordering::Relaxed)
    }

    pub fn count_hit(&self, sort: Sort) {
        self.hits[sort as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes answered.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    pub fn count_flush(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
    }

    fn ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Begins a write of the key; its version.
    pub fn begin(&self, key: usize) -> u64 {
        self.keys[key].begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The write was answered.
    pub fn answer(&self, key: usize, version: u64) {
        self.stored.fetch_add(1, Ordering::Relaxed);
        self.keys[key].answered.store(version, Ordering::SeqCst);
    }

    /// The same of one that ends after so many seconds.
    pub fn answer_ending(&self, key: usize, version: u64, seconds: u64) {
        let known = &self.keys[key];
        known.ended_ms.store(self.ms() + seconds * 1000 + LATE_MS, Ordering::SeqCst);
        known.ending.store(version, Ordering::SeqCst);
        self.answer(key, version);
    }

    /// Before the key is asked for.
    pub fn before(&self, key: usize) -> Before {
        let known = &self.keys[key];
        let answered = known.answered.load(Ordering::SeqCst);
        let ending = known.ending.load(Ordering::SeqCst);
        let has_ended = ending > 0 && known.ended_ms.load(Ordering::SeqCst) < self.ms();
        if has_ended && ending == answered {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        Before { answered, flushes: self.flushes(), ended: has_ended.then_some(ending) }
    }

    /// This version was found then, of a value that was stored after so many flushes.
    ///
    /// # Panics
    /// It must not have been.
    pub fn check(&self, key: usize, before: Before, version: u64, stored_after: u64) {
        let begun = self.keys[key].begun.load(Ordering::SeqCst);
        let Before { answered, flushes, ended } = before;
        assert!(version >= answered, "key {key}: version {version} after {answered} was answered");
        assert!(version <= begun, "key {key}: version {version}, but {begun} is the last begun");
        assert!(stored_after >= flushes, "key {key}: flushed before it was asked for");
        assert!(ended != Some(version), "key {key}: version {version} had ended");
    }

    /// It was not found then.
    ///
    /// # Panics
    /// It must have been.
    pub fn check_missed(&self, scenario: Scenario, key: usize, before: Before) {
        assert!(scenario.may_miss(key) || before.answered == 0, "key {key} is missed");
    }

    /// Begins to count to this.
    pub fn begin_counter(&self, counter: usize, number: u64) {
        self.counters[counter].begun.store(number, Ordering::SeqCst);
    }

    pub fn answer_counter(&self, counter: usize, number: u64) {
        self.counters[counter].answered.store(number, Ordering::SeqCst);
    }

    /// Returns a lower bound of the counter.
    pub fn counted(&self, counter: usize) -> u64 {
        self.counters[counter].answered.load(Ordering::SeqCst)
    }

    /// The last that was begun.
    pub fn counting(&self, counter: usize) -> u64 {
        self.counters[counter].begun.load(Ordering::SeqCst)
    }
}
