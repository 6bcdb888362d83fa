//! The store under faults: no memory from the system or for the index, clock jumps, readers that never unpin.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{SetClock, delete, get, set, set_with, store};
use fabcache_store::clock::TimeSource;
use fabcache_store::{CreateError, Detail, Expiry, Get, Handle, Payload, PinnedValue, Store, StoreOptions};
use fabcache_testbed::bytes::pattern;

/// Clocks that may jump either way independently.
#[derive(Debug, Clone, Default)]
struct Jumping {
    monotonic_s: Arc<AtomicI64>,
    wall_s: Arc<AtomicI64>,
}

impl TimeSource for Jumping {
    fn monotonic(&self) -> (u64, u32) {
        ((100_000 + self.monotonic_s.load(Ordering::Relaxed)) as u64, 0)
    }

    fn wall(&self) -> (u64, u32) {
        ((1_700_000_000 + self.wall_s.load(Ordering::Relaxed)) as u64, 0)
    }
}

fn options(memory_bytes: u64) -> StoreOptions {
    StoreOptions {
        memory_bytes,
        memory_bytes_max: memory_bytes,
        time: Box::new(SetClock::default()),
        ..StoreOptions::default()
    }
}

fn in_seconds(handle: &Handle, seconds: i64) -> Expiry {
    Expiry::from_client(seconds, handle.store().now(), handle.store().clock_origin())
}

#[test]
fn unavailable_memory_is_a_clear_error() {
    let beyond_address_space = StoreOptions { memory_bytes_max: 1 << 46, ..options(64 << 20) };
    let error = Store::open(beyond_address_space).expect_err("more than a region can have");
    assert!(matches!(error, CreateError::TooLarge { .. }), "{error}");
    for bytes in [0, 1, 64 << 10] {
        let error = Store::open(options(bytes)).expect_err("too few bytes");
        assert!(matches!(error, CreateError::TooSmall { .. }), "{error}");
    }
}

/// Runs a test of this file in a process of its own, under limits that a shell sets.
fn under_limits(limits: &str, test: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        &format!("{limits}; exec \"$0\" --exact {test} --ignored"),
        program.to_str().expect("a path"),
    ]);
    let output = shell.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn system_limits_are_reported() {
    under_limits("ulimit -v 400000", "short_address_space_is_an_error");
    under_limits("ulimit -n 16", "short_descriptors_are_an_error");
}

#[test]
#[ignore = "under limits that system_limits_are_reported sets"]
fn short_address_space_is_an_error() {
    let error = Store::open(options(1 << 30)).expect_err("half of it is available");
    assert!(error.to_string().contains("cannot map 1073741824 bytes"), "{error}");
    works(Store::open(options(8 << 20)).expect("this much is available"));
}

#[test]
#[ignore = "under limits that system_limits_are_reported sets"]
fn short_descriptors_are_an_error() {
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let error = Store::open(options(8 << 20)).expect_err("all descriptors are in use");
    assert!(error.to_string().contains("cannot create a memory file"), "{error}");
    drop(held);
    works(Store::open(options(8 << 20)).expect("descriptors are free again"));
}

fn works(store: Store) {
    let handle = Handle::new(&Arc::new(store));
    set(&handle, b"k", b"v").expect("memory is free");
    assert_eq!(get(&handle, b"k").expect("it is there").1, b"v");
}

#[test]
fn full_index_refuses_or_evicts_and_recovers() {
    // One-byte values: a third of memory is index.
    let key = |i: usize| format!("{i:06}").into_bytes();
    let value = |i: usize| [i as u8];
    let handle = Handle::new(&store(2 << 20, false, 1).0);
    let mut count = 0;
    while set(&handle, &key(count), &value(count)).is_ok() {
        count += 1;
    }
    assert!(count > 30_000, "{count}");
    for i in 0..count {
        assert_eq!(get(&handle, &key(i)).expect("nothing is evicted").1, value(i));
    }
    for i in (0..count).step_by(2) {
        assert!(delete(&handle, &key(i)));
    }
    for i in count..count + count / 4 {
        set(&handle, &key(i), &value(i)).expect("half of memory is free");
    }
    for i in (1..count).step_by(2).chain(count..count + count / 4) {
        assert_eq!(get(&handle, &key(i)).expect("nothing is evicted").1, value(i));
    }

    let handle = Handle::new(&store(2 << 20, true, 1).0);
    for i in 0..2 * count {
        set(&handle, &key(i), &value(i)).expect("something is evicted");
        assert_eq!(get(&handle, &key(i)).expect("just stored").1, value(i));
    }
    let found = (0..2 * count)
        .filter_map(|i| get(&handle, &key(i)).map(|(_, found)| assert_eq!(found, value(i))))
        .count();
    assert!(found > count / 2, "{found} of at most {count}");
}

/// Pins a value, as for a client that does not read it.
fn pin(handle: &Handle, key: &[u8]) -> Option<PinnedValue> {
    match handle.get(key, Detail::Basic, true, &mut Vec::new(), |_, _| ()) {
        Get::Hit(_, Payload::Pinned(pinned)) => Some(pinned).filter(|pinned| !pinned.is_excess()),
        Get::Hit(_, Payload::Copied) => panic!("too short to be pinned"),
        Get::Miss(_) | Get::OnFlash => None,
    }
}

#[test]
fn slow_readers_holding_all_pins_block_no_writer() {
    const LEN: usize = 20_000;
    let key = |i: u64| format!("key{i}").into_bytes();
    for evict in [true, false] {
        let handle = Handle::new(&store(4 << 20, evict, 1).0);
        let mut stored = 0;
        while stored < 250 && set(&handle, &key(stored), &pattern(stored, LEN)).is_ok() {
            stored += 1;
        }
        let mut held: Vec<(u64, PinnedValue)> = Vec::new();
        for i in 0..stored {
            held.extend(pin(&handle, &key(i)).map(|pinned| (i, pinned)));
        }
        let usage = handle.store().usage();
        assert!(!held.is_empty() && usage.segments_pinned >= usage.segments / 4, "{usage:?}");
        assert!(held.len() < stored as usize, "not all values may be pinned");
        // Deletes all items, pinned ones included.
        for i in 0..stored {
            delete(&handle, &key(i));
        }
        // Three quarters of memory remain usable, again and again where eviction is on.
        let rounds = if evict { 400 } else { 90 };
        let mut refused = 0;
        for i in 1_000..1_000 + rounds {
            match set(&handle, &key(i), &pattern(i, LEN)) {
                Ok(_) => assert!(matches!(
                    handle.get(&key(i), Detail::Basic, false, &mut Vec::new(), |_, _| ()),
                    Get::Hit(..)
                )),
                Err(_) => refused += 1,
            }
        }
        assert_eq!(refused, 0, "{:?}", handle.store().usage());
        while !evict && set(&handle, &key(5_000 + refused), &pattern(1, LEN)).is_ok() {
            refused += 1;
        }
        for (i, pinned) in &held {
            assert!(pinned.slices().flatten().eq(&pattern(*i, LEN)), "key{i} changed under its reader");
        }
        // Without eviction memory is full, a quarter of it by pinned values, until the readers unpin.
        drop(held);
        handle.maintain();
        assert_eq!(handle.store().usage().segments_pinned, 0);
        for i in 0..20 {
            set(&handle, &key(9_000 + i), &pattern(i, LEN)).expect("a quarter of memory is free again");
            assert_eq!(get(&handle, &key(9_000 + i)).expect("just stored").1, pattern(i, LEN));
        }
    }
}

#[test]
fn jumps_of_the_wall_clock_change_nothing() {
    let time = Jumping::default();
    let handle = Handle::new(&Arc::new(
        Store::open(StoreOptions { time: Box::new(time.clone()), ..options(8 << 20) })
            .expect("memory for a test"),
    ));
    set_with(&handle, b"brief", b"1", 0, in_seconds(&handle, 100)).expect("memory is free");
    set_with(
        &handle,
        b"unix",
        b"2",
        0,
        Expiry::from_client(1_700_000_200, handle.store().now(), handle.store().clock_origin()),
    )
    .expect("memory is free");
    set(&handle, b"ever", b"3").expect("memory is free");
    for wall in [86_400 * 365, -86_400 * 365, 0] {
        time.wall_s.store(wall, Ordering::Relaxed);
        handle.maintain();
        for key in [&b"brief"[..], b"unix", b"ever"] {
            assert!(get(&handle, key).is_some(), "{wall}");
        }
    }
    for (monotonic, there) in
        [(99, [true, true, true]), (100, [false, true, true]), (200, [false, false, true])]
    {
        time.monotonic_s.store(monotonic, Ordering::Relaxed);
        handle.maintain();
        let found = [&b"brief"[..], b"unix", b"ever"].map(|key| get(&handle, key).is_some());
        assert_eq!(found, there, "after {monotonic} s");
    }
}

#[test]
fn time_that_jumps_ahead_expires_and_time_that_goes_back_revives_nothing() {
    let time = Jumping::default();
    let handle = Handle::new(&Arc::new(
        Store::open(StoreOptions { time: Box::new(time.clone()), ..options(8 << 20) })
            .expect("memory for a test"),
    ));
    set(&handle, b"ever", b"3").expect("memory is free");
    set_with(&handle, b"day", b"1", 0, in_seconds(&handle, 86_400)).expect("memory is free");
    set_with(&handle, b"month", b"2", 0, in_seconds(&handle, 86_400 * 30)).expect("memory is free");
    let there = || [&b"day"[..], b"month", b"ever"].map(|key| get(&handle, key).is_some());
    // The machine was suspended for two days.
    time.monotonic_s.store(2 * 86_400, Ordering::Relaxed);
    handle.store().tick();
    assert_eq!(there(), [false, true, true]);
    for monotonic in [86_000, 0, -50_000] {
        time.monotonic_s.store(monotonic, Ordering::Relaxed);
        handle.store().tick();
        assert_eq!(there(), [false, true, true], "{monotonic}");
        handle.maintain();
        assert_eq!(there(), [false, true, true], "{monotonic}");
    }
    // The second does not advance until time has caught up, so items stored meanwhile expire on time.
    let stands = handle.store().now();
    set_with(&handle, b"new", b"4", 0, in_seconds(&handle, 10)).expect("memory is free");
    time.monotonic_s.store(2 * 86_400 - 1, Ordering::Relaxed);
    handle.maintain();
    assert_eq!(handle.store().now(), stands);
    assert!(get(&handle, b"new").is_some());
    time.monotonic_s.store(2 * 86_400 + 10, Ordering::Relaxed);
    handle.maintain();
    assert!(get(&handle, b"new").is_none());
    // As far as seconds reach, and beyond.
    for monotonic in [i64::from(u32::MAX), i64::from(u32::MAX) * 2] {
        time.monotonic_s.store(monotonic, Ordering::Relaxed);
        handle.maintain();
        assert_eq!(there(), [false, false, true]);
        set(&handle, b"late", b"5").expect("memory is free");
        assert!(get(&handle, b"late").is_some());
    }
}

#[test]
fn delayed_flush_happens_once_despite_clock_jumps() {
    let time = Jumping::default();
    let handle = Handle::new(&Arc::new(
        Store::open(StoreOptions { time: Box::new(time.clone()), ..options(8 << 20) })
            .expect("memory for a test"),
    ));
    set(&handle, b"k", b"v").expect("memory is free");
    handle.flush(in_seconds(&handle, 60));
    time.monotonic_s.store(-1_000, Ordering::Relaxed);
    handle.maintain();
    assert!(get(&handle, b"k").is_some(), "the flush is not due yet");
    time.monotonic_s.store(1_000_000, Ordering::Relaxed);
    handle.maintain();
    assert!(get(&handle, b"k").is_none());
    set(&handle, b"k", b"w").expect("memory is free");
    time.monotonic_s.store(0, Ordering::Relaxed);
    handle.maintain();
    time.monotonic_s.store(2_000_000, Ordering::Relaxed);
    handle.maintain();
    assert_eq!(get(&handle, b"k").expect("not flushed again").1, b"w");
}
