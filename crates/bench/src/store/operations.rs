//! Nanoseconds of CPU time per operation by resident items, over all of them and over a few hot ones.

use std::time::{Duration, Instant};

use anyhow::Result;
use fabcache_store::{Expiry, Handle};
use serde::Serialize;

use super::Plan;
use super::floors::{self, Floors};
use super::keys::{BATCH, KEY_BYTES, delete, fill, get, increment, key, memory_for, set, store};
use super::scaling::thread_cpu_ns;
use crate::random::Random;
use fabcache_testbed::statistics::median;

/// Number of hot keys.
pub const HOT_KEYS: u64 = 64;
/// First number of the keys that are never stored.
const ABSENT: u64 = 1 << 60;
/// First number of the keys whose values are numbers.
const NUMBERS: u64 = 1 << 59;
/// First number of the keys that are stored when memory is full.
const NEW: u64 = 1 << 58;

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A GET that hits.
    GetHit,
    /// A GET that misses.
    GetMiss,
    /// A SET that replaces an item.
    Overwrite,
    /// A SET of a new item into full memory, with eviction.
    SetNew,
    /// A DELETE of a stored item.
    Delete,
    /// An INCR.
    Incr,
}

impl Operation {
    /// All operations, in the order of their measurement.
    pub const ALL: [Operation; 6] = [
        Operation::GetHit,
        Operation::GetMiss,
        Operation::Incr,
        Operation::Delete,
        Operation::Overwrite,
        Operation::SetNew,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::GetHit => "get, hit",
            Operation::GetMiss => "get, miss",
            Operation::Overwrite => "set, overwriting",
            Operation::SetNew => "set, new, evicting",
            Operation::Delete => "delete",
            Operation::Incr => "incr",
        }
    }

    /// Returns whether the value is copied from or to the caller, so that a copy is the floor.
    pub fn copies_value(self) -> bool {
        matches!(self, Operation::GetHit | Operation::Overwrite | Operation::SetNew)
    }

    /// Returns the number of the next key.
    fn number(self, random: &mut Random, over: u64, done: &mut u64) -> u64 {
        *done += 1;
        match self {
            Operation::GetHit | Operation::Overwrite => random.below(over as u32) as u64,
            // A new key each time: a deleted item cannot be deleted again.
            Operation::Delete => {
                (random.below(over as u32) as u64 / BATCH as u64 * BATCH as u64 + *done % BATCH as u64) % over
            }
            Operation::GetMiss => ABSENT + random.below(over as u32) as u64,
            Operation::SetNew => NEW + *done,
            Operation::Incr => NUMBERS + *done % HOT_KEYS,
        }
    }
}

/// Nanoseconds of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The operation.
    pub operation: Operation,
    /// Over all items.
    pub cold_ns: Option<f64>,
    /// Over 64 of them.
    pub hot_ns: Option<f64>,
}

/// Figures for one number of resident items.
#[derive(Clone, Debug, Serialize)]
pub struct Resident {
    /// Items resident.
    pub items: u64,
    /// The store's memory limit.
    pub memory_bytes: u64,
    /// The machine's floors.
    pub floors: Floors,
    /// The costs of the operations.
    pub costs: Vec<Cost>,
}

/// Measures all operations over so many items.
///
/// # Errors
/// Memory is exhausted.
pub fn measure(items: u64, plan: &Plan) -> Result<Resident> {
    let memory_bytes = memory_for(items, plan.value_bytes);
    let floors = floors::measure(memory_bytes, plan);
    let bench = Bench::new(items, plan.value_bytes)?;
    let costs = Operation::ALL.map(|operation| {
        let cold = !matches!(operation, Operation::Incr);
        let hot = !matches!(operation, Operation::SetNew | Operation::Delete);
        if operation == Operation::SetNew {
            bench.fill_up();
        }
        Cost {
            operation,
            cold_ns: cold.then(|| bench.time(operation, items, plan.time)),
            hot_ns: hot.then(|| bench.time(operation, HOT_KEYS, plan.time)),
        }
    });
    Ok(Resident { items, memory_bytes, floors, costs: costs.into() })
}

/// A store filled with items.
pub struct Bench {
    handle: Handle,
    value: Vec<u8>,
}

impl Bench {
    /// Returns a store with this many items.
    ///
    /// # Errors
    /// Memory is exhausted.
    pub fn new(items: u64, value_bytes: usize) -> Result<Bench> {
        let (store, _) = store(memory_for(items, value_bytes), 1)?;
        let handle = Handle::new(&store);
        fill(&handle, items, value_bytes);
        for number in 0..HOT_KEYS {
            set(&handle, &key(NUMBERS + number), b"1000000000", Expiry::NEVER);
        }
        // Grow the tables now, so that it does not happen during the first measurement.
        handle.maintain();
        Ok(Bench { handle, value: vec![b'v'; value_bytes] })
    }

    /// Stores new items until others are evicted.
    pub fn fill_up(&self) {
        let store = self.handle.store();
        let mut number = NEW << 1;
        while store.sums().evictions < 10_000 {
            (0..1_000).for_each(|i| set(&self.handle, &key(number + i), &self.value, Expiry::NEVER));
            number += 1_000;
        }
    }

    /// Performs the operation so many times; the overhead does not depend on the number.
    pub fn run(&self, operation: Operation, over: u64, count: u64) {
        let mut random = Random::new(1);
        let mut done = 0;
        let mut out = Vec::new();
        for _ in 0..count {
            self.once(operation, &key(operation.number(&mut random, over, &mut done)), &mut out);
        }
    }

    /// Returns the median nanoseconds over batches of keys made in advance.
    fn time(&self, operation: Operation, over: u64, time: Duration) -> f64 {
        let mut random = Random::new(7);
        let mut done = 0;
        let mut out = Vec::with_capacity(self.value.len());
        let mut keys = vec![[0; KEY_BYTES]; BATCH];
        let mut batches = Vec::new();
        let started = Instant::now();
        while batches.len() < 32 || started.elapsed() < time {
            keys.fill_with(|| key(operation.number(&mut random, over, &mut done)));
            let begun = thread_cpu_ns();
            for key in &keys {
                self.once(operation, key, &mut out);
            }
            batches.push((thread_cpu_ns() - begun) as f64 / BATCH as f64);
            if operation == Operation::Delete {
                keys.iter().for_each(|key| set(&self.handle, key, &self.value, Expiry::NEVER));
            }
        }
        // The first batches warm the caches.
        median(batches[8..].iter().copied())
    }

    #[inline]
    fn once(&self, operation: Operation, key: &[u8], out: &mut Vec<u8>) {
        match operation {
            Operation::GetHit => assert!(get(&self.handle, key, out)),
            Operation::GetMiss => assert!(!get(&self.handle, key, out)),
            Operation::Overwrite | Operation::SetNew => set(&self.handle, key, &self.value, Expiry::NEVER),
            Operation::Delete => drop(delete(&self.handle, key)),
            Operation::Incr => increment(&self.handle, key),
        }
    }
}
