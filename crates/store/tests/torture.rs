//! Threads overwrite, delete, expire and evict at full rate while others read. Every value contains its key and version,
//! so that a reader detects a wrong value, a torn value, and one older than a write that was answered before the read.
#![cfg(not(loom))]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{delete, get, set_with, store};
use fabcache_store::bounds::RUN_SETS_MAX;
use fabcache_store::{Expiry, Handle, Probe, Put, Store};
use fabcache_testbed::random::SplitMix64;

const KEYS: usize = 3_000;
const WRITERS: usize = 3;
const READERS: usize = 3;
/// How long a run may go on until it has read and stored enough on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The versions of one key that were started and answered. Each key has one writer.
#[derive(Default)]
struct Versions {
    begun: AtomicU64,
    answered: AtomicU64,
    /// The last answered write was a delete.
    deleted: AtomicU64,
}

fn key(i: usize) -> Vec<u8> {
    format!("key-{i:06}-{}", "p".repeat(i % 40)).into_bytes()
}

/// A value that repeats its key and version throughout.
fn value(i: usize, version: u64, len: usize) -> Vec<u8> {
    let stamp = [(i as u64).to_le_bytes(), version.to_le_bytes()].concat();
    stamp.iter().copied().cycle().take(len.max(16)).collect()
}

fn check(i: usize, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("at least 16 bytes"));
    assert!(bytes == value(i, version, bytes.len()), "key {i}: a torn or foreign value");
    version
}

/// What all threads of one run share.
struct Torture {
    store: Arc<Store>,
    versions: Vec<Versions>,
    stop: AtomicBool,
    reads: AtomicU64,
    hits: AtomicU64,
}

impl Torture {
    /// Returns whether enough was read and stored for the run to mean anything.
    fn is_enough(&self) -> bool {
        let (reads, hits) = (self.reads.load(Ordering::Relaxed), self.hits.load(Ordering::Relaxed));
        reads > 1_000 && hits > reads / 10 && self.store.sums().total_items > 1_000
    }

    fn write(&self, writer: usize, len_max: usize) {
        let store = &self.store;
        let handle = Handle::new(store);
        let mut random = SplitMix64::new(writer as u64 + 1);
        while !self.stop.load(Ordering::Relaxed) {
            if random.below(16) == 0 {
                self.write_run(&handle, &mut random, writer);
                continue;
            }
            let i = random.below(KEYS / WRITERS) * WRITERS + writer;
            let known = &self.versions[i];
            let version = known.begun.load(Ordering::Relaxed) + 1;
            known.begun.store(version, Ordering::SeqCst);
            let removes = random.below(8) == 0;
            if removes {
                delete(&handle, &key(i));
            } else {
                let len = if random.below(50) == 0 { random.below(len_max) } else { random.below(300) };
                let ttl = [0, 0, 2, 30][random.below(4)];
                let expiry = Expiry::from_client(ttl, store.now(), store.clock_origin());
                set_with(&handle, &key(i), &value(i, version, len), 7, expiry).expect("eviction is allowed");
            }
            known.deleted.store(if removes { version } else { 0 }, Ordering::SeqCst);
            known.answered.store(version, Ordering::SeqCst);
        }
    }

    /// Stores several keys, most of them in one segment.
    fn write_run(&self, handle: &Handle, random: &mut SplitMix64, writer: usize) {
        let keys: BTreeSet<_> =
            (0..RUN_SETS_MAX).map(|_| random.below(KEYS / WRITERS) * WRITERS + writer).collect();
        let ttl = [0, 0, 2, 30][random.below(4)];
        let mut items = Vec::new();
        for i in keys {
            let known = &self.versions[i];
            let version = known.begun.load(Ordering::Relaxed) + 1;
            known.begun.store(version, Ordering::SeqCst);
            let ttl = if random.below(8) == 0 { 90 } else { ttl };
            let expiry = Expiry::from_client(ttl, self.store.now(), self.store.clock_origin());
            items.push((i, version, expiry, key(i), value(i, version, random.below(300))));
        }
        let puts: Vec<Put<'_>> = items
            .iter()
            .map(|(_, _, expiry, key, value)| Put { key, value, flags: 7, expiry: *expiry })
            .collect();
        let mut probes = [Probe::NONE; RUN_SETS_MAX];
        handle.probe_many(puts.iter().map(|put| put.key), &mut probes);
        handle.put_many(&puts, &probes, |_, _| ()).expect("eviction is allowed");
        for (i, version, ..) in items {
            self.versions[i].deleted.store(0, Ordering::SeqCst);
            self.versions[i].answered.store(version, Ordering::SeqCst);
        }
    }

    fn read(&self, reader: usize) {
        let handle = Handle::new(&self.store);
        let mut random = SplitMix64::new(reader as u64 + 100);
        while !self.stop.load(Ordering::Relaxed) {
            // Some keys are hot, so that readers and writers meet.
            let i = if random.below(2) == 0 { random.below(10) } else { random.below(KEYS) };
            let answered = self.versions[i].answered.load(Ordering::SeqCst);
            self.reads.fetch_add(1, Ordering::Relaxed);
            let Some((info, bytes)) = get(&handle, &key(i)) else { continue };
            self.hits.fetch_add(1, Ordering::Relaxed);
            assert_eq!(info.flags, 7);
            let version = check(i, &bytes);
            assert!(version >= answered, "key {i}: version {version} after {answered} was answered");
            assert!(version <= self.versions[i].begun.load(Ordering::SeqCst));
        }
    }
}

fn torture(memory_bytes: u64, len_max: usize, time: Duration) {
    let (store, clock) = store(memory_bytes, true, WRITERS + READERS + 1);
    let shared = Torture {
        store,
        versions: (0..KEYS).map(|_| Versions::default()).collect(),
        stop: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        hits: AtomicU64::new(0),
    };
    let shared = &shared;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || shared.write(writer, len_max));
        }
        let readers: Vec<_> = (0..READERS).map(|reader| scope.spawn(move || shared.read(reader))).collect();
        let handle = Handle::new(&shared.store);
        let end = Instant::now() + time;
        while Instant::now() < end || !shared.is_enough() && Instant::now() < end + TIME_LIMIT {
            std::thread::sleep(Duration::from_millis(20));
            clock.advance(1);
            handle.maintain();
        }
        shared.stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("no reader failed");
        }
    });
    println!("{:?} reads, {:?} hits\n{:?}", shared.reads, shared.hits, shared.store.sums());
    assert!(shared.is_enough());
    assert_eq!(shared.store.usage().segments_pinned, 0, "all pins are released");
}

fn seconds() -> Duration {
    let seconds = std::env::var("TORTURE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    Duration::from_secs(seconds)
}

#[test]
fn small_values_are_right_under_constant_eviction() {
    torture(1 << 20, 1_000, seconds());
}

#[test]
fn chunked_values_are_right_under_constant_eviction() {
    torture(4 << 20, 200_000, seconds());
}

#[test]
fn values_are_right_with_ample_memory() {
    torture(64 << 20, 50_000, seconds());
}
