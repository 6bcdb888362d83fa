//! Threads that overwrite, delete, expire and evict at full rate while others read. Every value tells its key and its
//! version, so that a reader knows a wrong one, a torn one, and one that is older than a write answered before.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{delete, get, set_with, store};
use fabcache_store::{Expiry, Handle};
use fabcache_testbed::random::SplitMix64;

const KEYS: usize = 3_000;
const WRITERS: usize = 3;
const READERS: usize = 3;
/// A busy machine may take longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is known of one key: writes begun and answered. Each key has one writer.
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

/// A value that says whose and which it is, all through.
fn value(i: usize, version: u64, len: usize) -> Vec<u8> {
    let stamp = [(i as u64).to_le_bytes(), version.to_le_bytes()].concat();
    stamp.iter().copied().cycle().take(len.max(16)).collect()
}

fn check(i: usize, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("at least 16 bytes"));
    assert!(bytes == value(i, version, bytes.len()), "key {i}: a torn or foreign value");
    version
}

fn torture(memory_bytes: u64, len_max: usize, time: Duration) {
    let (store, clock) = store(memory_bytes, true, WRITERS + READERS + 1);
    let versions: Arc<Vec<Versions>> = Arc::new((0..KEYS).map(|_| Versions::default()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    // Reads and hits of each reader.
    let counts: Arc<[[AtomicU64; 2]; READERS]> = Arc::default();
    let sum = |which: usize| counts.iter().map(|of| of[which].load(Ordering::Relaxed)).sum::<u64>();
    // So much at least, for anything to be said.
    let is_enough = || {
        let (reads, hits) = (sum(0), sum(1));
        reads > 1_000 && hits > reads / 10 && store.sums().total_items > 1_000
    };
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, versions, stop) = (Arc::clone(&store), Arc::clone(&versions), Arc::clone(&stop));
            scope.spawn(move || {
                let handle = Handle::new(&store);
                let mut random = SplitMix64::new(writer as u64 + 1);
                while !stop.load(Ordering::Relaxed) {
                    let i = random.below(KEYS / WRITERS) * WRITERS + writer;
                    let known = &versions[i];
                    let version = known.begun.load(Ordering::Relaxed) + 1;
                    known.begun.store(version, Ordering::SeqCst);
                    let removes = random.below(8) == 0;
                    if removes {
                        delete(&handle, &key(i));
                    } else {
                        let len =
                            if random.below(50) == 0 { random.below(len_max) } else { random.below(300) };
                        let ttl = [0, 0, 2, 30][random.below(4)];
                        let expiry = Expiry::from_client(ttl, store.now(), store.clock_origin());
                        set_with(&handle, &key(i), &value(i, version, len), 7, expiry)
                            .expect("eviction is allowed");
                    }
                    known.deleted.store(if removes { version } else { 0 }, Ordering::SeqCst);
                    known.answered.store(version, Ordering::SeqCst);
                }
            });
        }
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let (store, versions, stop) = (Arc::clone(&store), Arc::clone(&versions), Arc::clone(&stop));
                let counts = Arc::clone(&counts);
                scope.spawn(move || {
                    let handle = Handle::new(&store);
                    let mut random = SplitMix64::new(reader as u64 + 100);
                    let [reads, hits] = &counts[reader];
                    while !stop.load(Ordering::Relaxed) {
                        // Some keys are hot, so that readers and writers meet.
                        let i = if random.below(2) == 0 { random.below(10) } else { random.below(KEYS) };
                        let answered = versions[i].answered.load(Ordering::SeqCst);
                        reads.fetch_add(1, Ordering::Relaxed);
                        let Some((info, bytes)) = get(&handle, &key(i)) else { continue };
                        hits.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(info.flags, 7);
                        let version = check(i, &bytes);
                        assert!(
                            version >= answered,
                            "key {i}: version {version} after {answered} was answered"
                        );
                        assert!(version <= versions[i].begun.load(Ordering::SeqCst));
                    }
                })
            })
            .collect();
        let handle = Handle::new(&store);
        let end = Instant::now() + time;
        while Instant::now() < end || !is_enough() && Instant::now() < end + PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            clock.advance(1);
            handle.maintain();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("no reader failed");
        }
    });
    println!("{} reads, {} hits\n{:?}", sum(0), sum(1), store.sums());
    assert!(is_enough());
    // Quiet again, all that is left is right, and nothing leaks.
    let handle_count = store.usage();
    assert_eq!(handle_count.segments_pinned, 0);
}

fn seconds() -> Duration {
    let seconds = std::env::var("TORTURE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    Duration::from_secs(seconds)
}

#[test]
fn small_values_under_constant_eviction() {
    torture(1 << 20, 1_000, seconds());
}

#[test]
fn long_values_in_chunks_under_constant_eviction() {
    torture(4 << 20, 200_000, seconds());
}

#[test]
fn roomy_memory() {
    torture(64 << 20, 50_000, seconds());
}
