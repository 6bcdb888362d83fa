//! Clients of shared memory, and items that are on the server's flash.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::process::stat;
use common::{Running, client};
use fabcache_client::{Client, FastGet, Stored, Transport, Ttl};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::io_uring::is_there_for_files;

const ITEMS: usize = 2000;

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    pattern(n, 500 + n % 7 * 900)
}

/// Starts a server with 8 MB of memory and flash, whose clients read its memory; none where io_uring is refused.
fn start(flags: &str) -> Option<(Folder, Running, Client)> {
    let folder = Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "flash").expect("a folder");
    let socket: PathBuf = folder.path().join("socket");
    let device = folder.path().join("device");
    let flags = format!("-s {} --shm -m 8 --flash {}:257m -t 2 {flags}", socket.display(), device.display());
    if !is_there_for_files() {
        return None;
    }
    let server = Running::start(&flags);
    let cache = client(&format!("unix://{}", socket.display()));
    Some((folder, server, cache))
}

/// Stores the items, and then so much that most of them leave memory.
fn fill(cache: &Client) {
    for n in 0..ITEMS {
        cache.set(&key(n), &value(n), Ttl::NEVER).expect("stored");
    }
    for n in 0..3000 {
        cache.set(format!("fill-{n}").as_bytes(), &pattern(n, 4000), Ttl::NEVER).expect("stored");
    }
}

fn evictions(cache: &Client) -> u64 {
    stat(cache, "", "evictions") + stat(cache, "fabcache", "flash_items_evicted")
}

#[test]
fn items_on_flash_are_requested_from_the_server() {
    for flags in ["", "-M"] {
        let Some((_folder, _server, cache)) = start(flags) else { return };
        fill(&cache);
        assert_eq!(cache.transports(), [Some(Transport::SharedMemory)]);
        let before = stat(&cache, "fabcache", "flash_items_read");
        let mut missing = 0;
        for n in 0..ITEMS {
            match cache.get(&key(n)).expect("the server answers") {
                Some(item) => assert!(item.value == value(n), "{n}"),
                None => missing += 1,
            }
        }
        let reads = stat(&cache, "fabcache", "flash_items_read") - before;
        assert!(reads > ITEMS as u64 / 2, "{reads} reads of flash");
        assert!(missing <= 2 + evictions(&cache), "{missing} are missing");
        // The client's own reads never take an item on flash for a miss.
        let mut found = Vec::new();
        for n in 0..ITEMS {
            match cache.try_fast(&key(n), &mut found).expect("a key") {
                FastGet::Found { .. } => assert!(found == value(n), "{n}"),
                FastGet::NotFound => missing += 1,
                FastGet::Unknown => {}
            }
        }
        assert!(missing <= 4 + 2 * evictions(&cache), "{missing} are missing");
        // Changes, which the server makes, and then reads by the client itself.
        for n in 0..ITEMS {
            let is_there = cache.get(&key(n)).expect("the server answers").is_some();
            match n % 4 {
                0 => {
                    let stored = cache.append(&key(n), b"!").expect("the server answers");
                    assert_eq!(stored == Stored::Stored, is_there, "{n}");
                    let now = cache.get(&key(n)).expect("the server answers").map(|item| item.value);
                    assert_eq!(now, is_there.then(|| [value(n), b"!".to_vec()].concat()));
                }
                1 => {
                    assert_eq!(cache.delete(&key(n)).expect("the server answers"), is_there);
                    assert!(cache.get(&key(n)).expect("the server answers").is_none());
                }
                2 => {
                    cache.set(&key(n), b"7", Ttl::NEVER).expect("stored");
                    assert_eq!(cache.incr(&key(n), 5).expect("the server answers"), Some(12));
                }
                _ => assert_eq!(cache.touch(&key(n), Ttl::NEVER).expect("the server answers"), is_there),
            }
        }
    }
}

#[test]
fn many_keys_half_of_which_are_on_flash_are_read_at_once() {
    let Some((_folder, _server, cache)) = start("") else { return };
    fill(&cache);
    let hot: Vec<usize> = (ITEMS..ITEMS + 100).collect();
    for n in &hot {
        cache.set(&key(*n), &value(*n), Ttl::NEVER).expect("stored");
    }
    for first in (0..ITEMS).step_by(100) {
        let numbers: Vec<usize> =
            (first..first + 100).zip(&hot).flat_map(|(cold, hot)| [cold, *hot]).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|n| key(*n)).collect();
        let outcome = cache.get_many(&keys).expect("the server answers");
        let mut missing = 0;
        assert!(outcome.failed.is_empty());
        for (n, item) in numbers.iter().zip(&outcome.items) {
            match item {
                Some(item) => assert!(item.value == value(*n), "{n}"),
                None => missing += 1,
            }
        }
        assert!(missing <= 2 + evictions(&cache), "{missing} are missing");
    }
}

#[test]
fn gets_of_items_on_flash_are_requested_before_the_caller_waits() {
    let Some((folder, _server, cache)) = start("") else { return };
    fill(&cache);
    let other = client(&format!("unix://{}", folder.path().join("socket").display()));
    let reads = || stat(&other, "fabcache", "flash_items_read");
    let before = reads();
    let on_flash = (0..ITEMS).find(|n| {
        cache.get(&key(*n)).expect("the server answers");
        reads() > before
    });
    let first = on_flash.expect("an item is on flash") + 1;
    let before = reads();
    let requests: Vec<_> = (first..first + 32).map(|n| (n, cache.iget(key(n), Vec::new()))).collect();
    let begun = Instant::now();
    while reads() == before {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing is read before the caller waits");
    }
    for (n, mut request) in requests {
        if let Some(item) = request.wait().item().expect("the server answers") {
            assert!(item.value == value(n), "{n}");
        }
    }
}
