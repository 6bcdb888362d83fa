//! Readers of a memory file go on while its server is killed and its successors take the file over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fabcache_client::{Transport, Ttl};
use fabcache_testbed::random::SplitMix64;

use crate::common::process::{Leftover, Server, patient, socket_path, until_up};
use crate::other_users::MemoryFile;

const KEYS: usize = 64;
const KILLS: usize = 20;
const READERS: u64 = 3;

/// The least version of each key that a read beginning now may return: one that was acknowledged, or read before.
type Floors = [AtomicU64; KEYS];

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").replace(' ', "-").into_bytes()
}

/// A value that tells its key and version, of a length that changes.
fn value(number: usize, version: u64) -> Vec<u8> {
    let head = format!("{number}:{version}:").into_bytes();
    let len = [16, 100, 3_000, 40_000][version as usize % 4];
    head.iter().copied().cycle().take(len).collect()
}

fn version_of(number: usize, found: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(&found[..found.len().min(40)]).into_owned();
    let version = text.split(':').nth(1).and_then(|version| version.parse().ok());
    let version = version.unwrap_or_else(|| panic!("key {number} has {text:?}"));
    assert!(found == value(number, version), "key {number} has a torn or foreign value: {text:?}");
    version
}

/// Writes keys one after the other, each with its next version, as long as servers come up.
fn write(path: &str, floors: &Floors, ended: &AtomicBool) {
    let cache = patient(path);
    for version in 1.. {
        for (number, floor) in floors.iter().enumerate() {
            // The same write again until it is acknowledged: its version may be stored already.
            while cache.set(&key(number), &value(number, version), Ttl::NEVER).is_err() {
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

/// Reads keys at random; returns the hits and how many of them while memory was shared.
fn read(path: &str, seed: u64, floors: &Floors, ended: &AtomicBool) -> (u64, u64) {
    let (cache, mut random, mut hits, mut shared) = (patient(path), SplitMix64::new(seed), 0, 0);
    while !ended.load(Ordering::Relaxed) {
        let number = random.below(KEYS);
        let floor = floors[number].load(Ordering::SeqCst);
        let Ok(found) = cache.get(&key(number)) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let Some(item) = found else { continue };
        let version = version_of(number, &item.value);
        assert!(version >= floor, "key {number} has version {version} after {floor}");
        floors[number].fetch_max(version, Ordering::SeqCst);
        hits += 1;
        shared += u64::from(cache.transports()[0] == Some(Transport::SharedMemory));
    }
    (hits, shared)
}

#[test]
fn readers_go_on_while_servers_are_killed_and_take_over() {
    let file = MemoryFile::new("restarts", rustix::process::geteuid().as_raw());
    let socket = Leftover(socket_path("restarts"));
    let path = &socket.0;
    let flags = format!("-m 16 --shm-same-user -e {}", file.path().display());
    let (floors, ended) = (std::array::from_fn(|_| AtomicU64::new(0)), AtomicBool::new(false));
    let (floors, ended): (&Floors, _) = (&floors, &ended);
    let mut server = Server::started(path, &flags);
    let read = thread::scope(|scope| {
        let readers: Vec<_> =
            (0..READERS).map(|seed| scope.spawn(move || read(path, seed, floors, ended))).collect();
        let writer = scope.spawn(move || write(path, floors, ended));
        let mut random = SplitMix64::new(u64::from(std::process::id()));
        for _ in 0..KILLS {
            thread::sleep(Duration::from_millis(random.between(5, 120) as u64));
            server.0.kill();
            server = Server::started(path, &flags);
        }
        let probe = patient(path);
        until_up(|| probe.get(b"up").is_ok());
        ended.store(true, Ordering::Relaxed);
        writer.join().expect("it wrote");
        readers.into_iter().map(|reader| reader.join().expect("it read")).collect::<Vec<_>>()
    });
    for (hits, shared) in read {
        assert!(shared > 100 && hits >= shared, "{hits} hits, {shared} of them from shared memory");
    }
}
