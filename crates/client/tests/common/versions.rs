//! Writers and readers of keys whose versions only rise, also through restarts of their server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fabcache_client::{Client, Ttl};
use fabcache_testbed::random::SplitMix64;

const KEYS: usize = 64;

/// The least version of each key that a read beginning now may return: one that was acknowledged, or read before.
pub struct Floors {
    /// Where the names of the keys begin: each writer has its own keys.
    name: String,
    of: [AtomicU64; KEYS],
}

impl Floors {
    fn key(&self, number: usize) -> Vec<u8> {
        format!("{}-{number}", self.name).into_bytes()
    }

    /// A value that tells its key and version, of a length that changes.
    fn value(&self, number: usize, version: u64) -> Vec<u8> {
        let head = format!("{}-{number}:{version}:", self.name).into_bytes();
        let len = [24, 100, 3_000, 40_000][version as usize % 4];
        head.iter().copied().cycle().take(len).collect()
    }

    fn version_of(&self, number: usize, found: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(&found[..found.len().min(40)]).into_owned();
        let version = text.split(':').nth(1).and_then(|version| version.parse().ok());
        let version = version.unwrap_or_else(|| panic!("key {number} has {text:?}"));
        let is_whole = found == self.value(number, version);
        assert!(is_whole, "key {number} has a torn or foreign value: {text:?}");
        version
    }
}

/// Returns floors that any version reaches, for keys whose names begin so.
pub fn floors(name: &str) -> Floors {
    Floors { name: name.to_owned(), of: std::array::from_fn(|_| AtomicU64::new(0)) }
}

/// Writes keys one after the other, each with its next version, as long as servers come up.
pub fn write(cache: &Client, floors: &Floors, ended: &AtomicBool) {
    for version in 1.. {
        for (number, floor) in floors.of.iter().enumerate() {
            // The same write again until it is acknowledged: its version may be stored already.
            while cache.set(&floors.key(number), &floors.value(number, version), Ttl::NEVER).is_err() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
            floor.fetch_max(version, Ordering::SeqCst);
        }
        if ended.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Reads keys at random, and calls `hit` after each hit.
pub fn read(cache: &Client, seed: u64, floors: &Floors, ended: &AtomicBool, mut hit: impl FnMut()) {
    let mut random = SplitMix64::new(seed);
    while !ended.load(Ordering::Relaxed) {
        let number = random.below(KEYS);
        let floor = floors.of[number].load(Ordering::SeqCst);
        let Ok(found) = cache.get(&floors.key(number)) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let Some(item) = found else { continue };
        let version = floors.version_of(number, &item.value);
        assert!(version >= floor, "key {number} has version {version} after {floor}");
        floors.of[number].fetch_max(version, Ordering::SeqCst);
        hit();
    }
}

/// Ends the threads of a test, also if it fails.
pub struct StopWhenDropped<'e>(pub &'e AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
