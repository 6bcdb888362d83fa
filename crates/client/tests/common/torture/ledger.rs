//! The ledger: versions of each key that were started and acknowledged.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::Scenario;
use super::readers::Sort;

/// Number of counters, besides the keys.
pub const COUNTERS: usize = 6;

/// How long an expired item may still be found: a server's second, and the coarseness of its clock.
const LATE_MS: u64 = 2_500;

/// One key, or counter. It has one writer.
#[derive(Debug, Default)]
pub struct KeyVersions {
    begun: AtomicU64,
    answered: AtomicU64,
    /// The last version with a TTL, and the ledger's time in milliseconds by when it must have expired.
    ending: AtomicU64,
    ended_ms: AtomicU64,
}

/// The state of a key before a read.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    answered: u64,
    flushes: u64,
    /// The version that had expired.
    ended: Option<u64>,
}

#[derive(Debug)]
pub struct Ledger {
    keys: Vec<KeyVersions>,
    counters: Vec<KeyVersions>,
    began: Instant,
    flushes: AtomicU64,
    /// Read-locked by writes and write-locked by a flush, which orders them.
    pub flushing: RwLock<()>,
    stop: AtomicBool,
    /// Reads of keys whose last version had expired.
    ended: AtomicU64,
    /// Reads without the server.
    reads: AtomicU64,
    /// Hits of each sort of reader.
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
    /// Returns a ledger of the keys of so many servers.
    pub fn new(scenario: Scenario, servers: usize) -> Ledger {
        Ledger {
            keys: (0..scenario.keys() * servers).map(|_| KeyVersions::default()).collect(),
            counters: (0..COUNTERS).map(|_| KeyVersions::default()).collect(),
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

    /// Stops the other threads when this one fails.
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

    /// Returns the number of acknowledged writes.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    pub fn count_flush(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
    }

    fn ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Begins a write of the key; returns its version.
    pub fn begin(&self, key: usize) -> u64 {
        self.keys[key].begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records that the write was acknowledged.
    pub fn answer(&self, key: usize, version: u64) {
        self.stored.fetch_add(1, Ordering::Relaxed);
        self.keys[key].answered.store(version, Ordering::SeqCst);
    }

    /// Records that a write that expires in this many seconds was acknowledged.
    pub fn answer_ending(&self, key: usize, version: u64, seconds: u64) {
        let known = &self.keys[key];
        known.ended_ms.store(self.ms() + seconds * 1000 + LATE_MS, Ordering::SeqCst);
        known.ending.store(version, Ordering::SeqCst);
        self.answer(key, version);
    }

    /// Returns the key's state before a read.
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

    /// Checks a version that was found, of a value stored after `stored_after` flushes.
    ///
    /// # Panics
    /// The read must not have returned this version.
    pub fn check(&self, key: usize, before: Before, version: u64, stored_after: u64) {
        let begun = self.keys[key].begun.load(Ordering::SeqCst);
        let Before { answered, flushes, ended } = before;
        assert!(version >= answered, "key {key}: version {version} after {answered} was answered");
        assert!(version <= begun, "key {key}: version {version}, but {begun} is the last begun");
        assert!(stored_after >= flushes, "key {key}: flushed before it was asked for");
        assert!(ended != Some(version), "key {key}: version {version} had ended");
    }

    /// Checks a miss.
    ///
    /// # Panics
    /// The key must not be missed.
    pub fn check_missed(&self, scenario: Scenario, key: usize, before: Before) {
        assert!(scenario.may_miss(key) || before.answered == 0, "key {key} is missing");
    }

    /// Begins to increment the counter to this number.
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

    /// Returns the number that the last started increment leads to.
    pub fn counting(&self, counter: usize) -> u64 {
        self.counters[counter].begun.load(Ordering::SeqCst)
    }
}
