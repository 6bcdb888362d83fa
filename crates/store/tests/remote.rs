//! Many concurrent GETs over slow reads: each returns a reply that the server could have given during the call.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::fabric::Fabric;
use common::outside::map_all;
use common::{SetClock, delete, set, set_with, store};
use fabcache_layout::header;
use fabcache_layout::reader::remote::{Arrival, CompletedGet, Now, RemoteOptions};
use fabcache_layout::reader::{FallbackReason, Location, Miss, ReadOutcome, Rejection, Remote, Value};
use fabcache_store::liveness::Liveness;
use fabcache_store::{Expiry, Handle, Store, StoreOptions};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;
use proptest::prelude::*;

const GRACE_NS: u64 = 1_000_000;

/// A remote reader of a store, with a fabric to it.
fn remote(handle: &Handle, options: RemoteOptions) -> (Remote<Vec<u8>, u64>, Fabric) {
    let memory = map_all(handle.store().region().expect("a memory file"));
    let life = Liveness::keep(handle.store()).expect("a thread, and robust futexes");
    let birth = header::read(&memory).expect("a region");
    let remote = Remote::new(&birth, handle.store().secret().clone(), options).expect("a sound region");
    (remote, Fabric::new(memory, options.in_order).keeping(Box::new(life)))
}

fn both_orders() -> [RemoteOptions; 2] {
    [false, true].map(|in_order| RemoteOptions { in_order, ..RemoteOptions::default() })
}

/// How a GET at a cached location may be validated.
fn all_ways() -> [RemoteOptions; 3] {
    let [behind, in_order] = both_orders();
    [behind, in_order, RemoteOptions { grace_ns: GRACE_NS, ..behind }]
}

/// Returns the value of a hit.
fn value_of(done: &CompletedGet<Vec<u8>, u64>, fabric: &mut Fabric) -> Option<Vec<u8>> {
    match &done.outcome {
        ReadOutcome::Hit(hit) => Some(match (hit.value, &done.buffer) {
            (Value::Fetched { at, len }, Some(bytes)) => bytes[at..at + len].to_vec(),
            (Value::Placed, None) => fabric.take_value(done.id),
            other => panic!("{other:?}"),
        }),
        _ => None,
    }
}

fn now(handle: &Handle) -> u32 {
    handle.store().now()
}

fn at(handle: &Handle) -> Now {
    Now { second: now(handle), ns: 0 }
}

#[test]
fn hit_needs_two_fetches_and_one_at_a_cached_location() {
    // Fetches that prove to a GET by key that the item was not overwritten: none with the server's grace period, else
    // one.
    for (options, by_key) in all_ways().into_iter().zip([3.2, 3.2, 2.2]) {
        let handle = Handle::new(&store(16 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        let key = |i: u64| format!("key{i}").into_bytes();
        let content = |i: u64| pattern(i, [0, 1, 20, 200, 900, 1_500][i as usize % 6]);
        let count = 3_200;
        for i in 0..count {
            set_with(&handle, &key(i), &content(i), i as u32 % 3, Expiry::NEVER).expect("memory is free");
        }
        let (mut fetches, mut forgotten) = (Vec::new(), 0);
        for round in 0..3 {
            let before = fabric.posted;
            for from in (0..count).step_by(32) {
                (from..from + 32).for_each(|i| match round {
                    0 | 1 => remote.get_by_key(&key(i), i, at(&handle)),
                    _ => remote.get(&key(i), i, at(&handle)),
                });
                fabric.run(&mut remote, now(&handle));
                let mut seen = 0;
                while let Some(done) = remote.next_completed() {
                    assert_eq!(value_of(&done, &mut fabric), Some(content(done.token)), "key {}", done.token);
                    let ReadOutcome::Hit(hit) = done.outcome else { unreachable!("a hit has a value") };
                    assert_eq!(
                        (hit.flags, hit.frequency.is_none()),
                        (done.token as u32 % 3, done.was_cached)
                    );
                    assert!(round == 2 || !done.was_cached);
                    forgotten += u64::from(round == 2 && !done.was_cached);
                    seen += 1;
                }
                assert_eq!((seen, remote.gets_in_flight(), remote.fetches_in_flight()), (32, 0, 0));
            }
            let (all, lines) = (fabric.posted.0 - before.0, fabric.posted.1 - before.1);
            // A GET by key is a step behind those at cached locations, and may need a line of its own.
            assert!((0..=forgotten).contains(&(lines - count / 32)), "{lines} lines, {forgotten} by key");
            fetches.push((all - lines) as f64 / count as f64);
        }
        // Hashes map more keys to a cache set than it has ways in one run of thirty.
        assert!(forgotten < count / 100, "{forgotten} cached locations were evicted");
        assert!(fetches[1] < by_key, "{fetches:?} a GET by key");
        assert!(fetches[2] < 1.05, "{fetches:?} a GET at a cached location");
        for i in 0..64 {
            remote.get(&key(count + i), i, at(&handle));
        }
        fabric.run(&mut remote, now(&handle));
        while let Some(done) = remote.next_completed() {
            assert!(matches!(done.outcome, ReadOutcome::Miss(Miss::Absent)), "{:?}", done.outcome);
        }
    }
}

#[test]
fn lone_get_at_a_cached_location_fetches_the_status_line_if_useful() {
    for (options, at_once) in all_ways().into_iter().zip([1, 2, 2]) {
        let handle = Handle::new(&store(4 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"key", b"value").expect("memory is free");
        // The second GET learns the generation with the count, and the first the location.
        for _ in 0..3 {
            remote.get(b"key", 0, at(&handle));
            fabric.run(&mut remote, now(&handle));
            assert_eq!(
                value_of(&remote.next_completed().expect("over"), &mut fabric),
                Some(b"value".to_vec())
            );
        }
        let before = fabric.posted.0;
        remote.get(b"key", 0, at(&handle));
        fabric.post(&mut remote, &mut |_| 0);
        assert_eq!(fabric.posted.0 - before, at_once, "{options:?}");
        fabric.run(&mut remote, now(&handle));
        assert_eq!(fabric.posted.0 - before, 2, "item and line");
        assert!(matches!(remote.next_completed().expect("over").outcome, ReadOutcome::Hit(..)));
    }
}

#[test]
fn long_values_are_assembled_from_chunks() {
    for options in all_ways() {
        let handle = Handle::new(&store(64 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        for len in [40_000, 300_000, 5_000_000, 20_000_000] {
            let content = pattern(len as u64, len);
            set(&handle, b"long", &content).expect("memory is free");
            for kept in [false, true] {
                remote.get(b"long", 9, at(&handle));
                fabric.run(&mut remote, now(&handle));
                let done = remote.next_completed().expect("over");
                assert!(value_of(&done, &mut fabric).as_ref() == Some(&content), "{len}: {:?}", done.outcome);
                assert_eq!(done.was_cached, kept);
            }
        }
    }
}

/// An event that happens to an item whose location is cached.
fn a_kept_location(expires: bool, happens: impl Fn(&Handle, &SetClock), expected: Option<&[u8]>) {
    for options in all_ways() {
        let (store, clock) = store(4 << 20, true, 1);
        let handle = Handle::new(&store);
        let (mut remote, mut fabric) = remote(&handle, options);
        let expiry = Expiry::from_client(5, store.now(), store.clock_origin());
        let expiry = if expires { expiry } else { Expiry::NEVER };
        set_with(&handle, b"key", b"value", 0, expiry).expect("memory is free");
        for _ in 0..3 {
            remote.get(b"key", 0, at(&handle));
            fabric.run(&mut remote, now(&handle));
            assert!(matches!(remote.next_completed().expect("over").outcome, ReadOutcome::Hit(..)));
        }
        happens(&handle, &clock);
        remote.get(b"key", 1, at(&handle));
        fabric.run(&mut remote, now(&handle));
        let done = remote.next_completed().expect("over");
        assert_eq!(value_of(&done, &mut fabric).as_deref(), expected, "{:?}", done.outcome);
        assert!(
            !done.was_cached && matches!(done.outcome, ReadOutcome::Hit(..) | ReadOutcome::Miss(_)),
            "{:?}",
            done.outcome
        );
        assert!(remote.has_location(b"key") == expected.is_some(), "a stale location is dropped");
    }
}

#[test]
fn cached_locations_of_changed_items_return_nothing() {
    let replace = |handle: &Handle, _: &SetClock| {
        set(handle, b"key", b"another").expect("memory is free");
    };
    a_kept_location(false, replace, Some(b"another"));
    a_kept_location(false, |handle, _| assert!(delete(handle, b"key")), None);
    a_kept_location(false, |handle, _| handle.flush(Expiry::AT_ONCE), None);
    let wait = |handle: &Handle, clock: &SetClock| {
        clock.advance(5);
        handle.store().tick();
    };
    a_kept_location(true, wait, None);
    let recycled = |handle: &Handle, _: &SetClock| {
        assert!(delete(handle, b"key"));
        recycle(handle);
    };
    a_kept_location(false, recycled, None);
}

/// Reuses all memory.
fn recycle(handle: &Handle) {
    for i in 0..40_000 {
        set(handle, format!("key{i}").as_bytes(), &[b'v'; 200]).expect("something is evicted");
    }
}

/// Runs a GET at a cached location whose item was read before it was deleted and its segment reused, except for its
/// state word: that was read later, and looks like a live item's. `before` runs between the request for the item and
/// these events.
fn written_over(options: RemoteOptions, before: impl Fn(&mut Remote<Vec<u8>, u64>, &mut Fabric, &Handle)) {
    let handle = Handle::new(&store(4 << 20, true, 1).0);
    let (mut remote, mut fabric) = remote(&handle, options);
    set(&handle, b"key", b"value").expect("memory is free");
    let mut location = None;
    for _ in 0..3 {
        remote.get(b"key", 0, at(&handle));
        fabric.run(&mut remote, now(&handle));
        let Some(CompletedGet { outcome: ReadOutcome::Hit(hit), .. }) = remote.next_completed() else {
            panic!("the item exists")
        };
        location = Some(hit.location);
    }
    let Location { offset, .. } = location.expect("the item was found");
    let mut item = vec![0; 64];
    map_all(handle.store().region().expect("a memory file")).copy_out(offset, &mut item);
    remote.get(b"key", 1, at(&handle));
    let fetch = remote.next_fetch(0).expect("the item");
    assert_eq!(fetch.offset, offset);
    fabric.post_one(fetch, &mut |_| 0);
    before(&mut remote, &mut fabric, &handle);
    assert!(delete(&handle, b"key"));
    recycle(&handle);
    assert!(fabric.replace(offset, &item));
    fabric.run(&mut remote, now(&handle));
    while let Some(done) = remote.next_completed() {
        assert!(done.token != 1 || matches!(done.outcome, ReadOutcome::Miss(_)), "{:?}", done.outcome);
        assert!(done.token != 1 || done.rejections.of(Rejection::Recycled) == 1);
    }
}

#[test]
fn overwritten_state_word_is_not_trusted() {
    for options in all_ways() {
        written_over(options, |_, _, _| {});
    }
}

/// Runs a GET by key whose slot was read while the item existed, flushed; the item itself was read after its segment
/// was reused, with only its state word overwritten, by bytes that look like an unflushed item's.
#[test]
fn overwritten_state_word_does_not_revive_a_flushed_item() {
    for options in all_ways() {
        let handle = Handle::new(&store(4 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"key", b"value").expect("memory is free");
        let mut location = None;
        for _ in 0..2 {
            remote.get_by_key(b"key", 0, at(&handle));
            fabric.run(&mut remote, now(&handle));
            let Some(CompletedGet { outcome: ReadOutcome::Hit(hit), .. }) = remote.next_completed() else {
                panic!("the item exists")
            };
            location = Some(hit.location);
        }
        let Location { offset, .. } = location.expect("the item was found");
        let mut item = vec![0; 64];
        map_all(handle.store().region().expect("a memory file")).copy_out(offset, &mut item);
        handle.flush(Expiry::AT_ONCE);
        remote.get_by_key(b"key", 1, at(&handle));
        let mut first = |_| 0;
        loop {
            let fetch = remote.next_fetch(0).expect("slots, line, item");
            fabric.post_one(fetch, &mut first);
            if fetch.offset == offset {
                break;
            }
            if fabric.in_flight() == 2 {
                (0..2).for_each(|_| fabric.go_on(usize::MAX, &mut first));
                while fabric.hand_in(&mut remote, now(&handle), false, &mut first) {}
            }
        }
        recycle(&handle);
        // The state word's second byte is the flush epoch.
        item[1] = item[1].wrapping_add(1);
        assert!(fabric.replace(offset, &item));
        fabric.ns = GRACE_NS / 10 * 9;
        fabric.run(&mut remote, now(&handle));
        let done = remote.next_completed().expect("over");
        assert!(matches!(done.outcome, ReadOutcome::Miss(_)), "{options:?}: {:?}", done.outcome);
        assert_eq!(done.rejections.of(Rejection::Recycled), 1);
    }
}

#[test]
fn status_line_older_than_the_item_does_not_validate_it() {
    let line_first = |remote: &mut Remote<Vec<u8>, u64>, fabric: &mut Fabric, handle: &Handle| {
        // Another GET requests a line, which arrives before the item.
        remote.get_by_key(b"another", 2, at(handle));
        let fetches: Vec<_> = std::iter::from_fn(|| remote.next_fetch(0)).collect();
        let line = fetches.iter().find(|fetch| fetch.offset < 4096).expect("a line is requested");
        let mut bytes = vec![0; line.len];
        map_all(handle.store().region().expect("a memory file")).copy_out(line.offset, &mut bytes);
        remote.take(line.id, fabcache_layout::reader::remote::Arrival::Buffer(bytes), at(handle));
        fetches.iter().filter(|fetch| fetch.offset >= 4096).for_each(|fetch| {
            fabric.post_one(*fetch, &mut |_| 0);
        });
    };
    written_over(RemoteOptions::default(), line_first);
    // Nor if the server's grace period is shorter than the item's fetch.
    let later = |remote: &mut Remote<Vec<u8>, u64>, fabric: &mut Fabric, handle: &Handle| {
        line_first(remote, fabric, handle);
        fabric.ns = GRACE_NS / 10 * 9;
    };
    written_over(RemoteOptions { grace_ns: GRACE_NS, ..RemoteOptions::default() }, later);
}

/// Returns the nanoseconds since `began`.
fn since(began: Instant) -> u64 {
    began.elapsed().as_nanos() as u64
}

/// Runs a GET in real time; returns whether it hit, and the number of fetched lines.
fn timed(remote: &mut Remote<Vec<u8>, u64>, fabric: &mut Fabric, second: u32, began: Instant) -> (bool, u64) {
    fabric.ns = since(began);
    let before = fabric.posted.1;
    remote.get(b"key", 0, Now { second, ns: fabric.ns });
    fabric.run(remote, second);
    let done = remote.next_completed().expect("over");
    (value_of(&done, fabric).is_some(), fabric.posted.1 - before)
}

#[test]
fn flushed_item_is_not_read_with_an_older_status_line() {
    const LEASE: Duration = Duration::from_millis(40);
    for options in all_ways() {
        let store = StoreOptions { lease: LEASE, threads: 2, ..StoreOptions::default() };
        let store = Arc::new(Store::open(store).expect("memory for a test"));
        let [handle, mut flushing] = [(); 2].map(|()| Handle::new(&store));
        let grace_ns = options.grace_ns * 1_000;
        let (mut remote, mut fabric) = remote(&handle, RemoteOptions { grace_ns, ..options });
        let (began, second) = (Instant::now(), store.now());
        for round in 0..3 {
            set(&handle, b"key", b"value").expect("memory is free");
            handle.maintain();
            let lines: u64 = (0..4).map(|_| timed(&mut remote, &mut fabric, second, began).1).sum();
            // A slow machine may exceed the lease between any two GETs.
            assert!(lines > 0 || round > 0, "the first GET has no line yet");
            let requested = Instant::now();
            let flush = thread::spawn(move || {
                flushing.flush(Expiry::AT_ONCE);
                flushing
            });
            while !flush.is_finished() {
                timed(&mut remote, &mut fabric, second, began);
            }
            flushing = flush.join().expect("flushed");
            assert!(requested.elapsed() >= LEASE, "older lines have expired");
            assert!(!timed(&mut remote, &mut fabric, second, began).0, "{options:?}: the item was flushed");
        }
    }
}

#[test]
fn concurrent_flushes_wait_once() {
    const LEASE: Duration = Duration::from_millis(50);
    let store = StoreOptions { lease: LEASE, ..StoreOptions::default() };
    let handle = Handle::new(&Arc::new(Store::open(store).expect("memory for a test")));
    let memory = map_all(handle.store().region().expect("a memory file"));
    let lease = || {
        let mut line = [0; fabcache_layout::format::STATUS_AND_COUNTS_BYTES];
        memory.copy_out(fabcache_layout::format::STATUS_AT, &mut line);
        header::lease_of(&line)
    };
    for _ in 0..3 {
        assert_eq!(lease(), LEASE);
        let mut waited = 0;
        for _ in 0..40 {
            set(&handle, b"key", b"value").expect("memory is free");
            let began = Instant::now();
            handle.flush(Expiry::AT_ONCE);
            waited += u32::from(began.elapsed() >= LEASE);
            assert_eq!(lease(), Duration::ZERO, "otherwise the next flush waits as well");
        }
        // On a busy machine other flushes may take as long.
        assert!((1..20).contains(&waited), "{waited} of 40 waited");
        handle.maintain();
    }
}

/// A client's clock may be behind the region's: a line then reports a second that has begun.
#[test]
fn expired_item_is_not_read_with_an_older_status_line() {
    for (options, len) in all_ways().into_iter().flat_map(|options| [(options, 5), (options, 300_000)]) {
        let (clock, lease) = (SetClock::default(), Duration::from_millis(60));
        let store = StoreOptions { lease, time: Box::new(clock.clone()), ..StoreOptions::default() };
        let handle = Handle::new(&Arc::new(Store::open(store).expect("memory for a test")));
        let (mut remote, mut fabric) = remote(&handle, options);
        let second = now(&handle);
        let mut get = |ns: u64, has_location: bool| {
            fabric.ns = ns;
            let now = Now { second, ns };
            if has_location {
                remote.get(b"key", 0, now)
            } else {
                remote.get_by_key(b"key", 0, now)
            }
            fabric.run(&mut remote, second);
            let done = remote.next_completed().expect("over");
            assert!(done.was_cached == has_location || !matches!(done.outcome, ReadOutcome::Hit(..)));
            value_of(&done, &mut fabric).map(|value| value.len())
        };
        for expires_at in 1..4 {
            let expiry = Expiry::from_client(1, now(&handle), handle.store().clock_origin());
            set_with(&handle, b"key", &pattern(1, len), 0, expiry).expect("memory is free");
            let ns = expires_at * 1_000_000_000;
            for (after, has_location) in [(0, false), (1, true), (2, false), (3, true)] {
                assert_eq!(get(ns + after, has_location), Some(len), "{options:?}");
            }
            clock.advance(1);
            handle.store().tick();
            assert_eq!(get(ns + 4, expires_at == 1), None, "{options:?}: {expires_at}");
        }
    }
}

#[test]
fn lease_saves_the_status_line_fetch_of_later_gets() {
    for options in all_ways() {
        let lease = Duration::from_millis(60);
        let store = Arc::new(
            Store::open(StoreOptions { lease, ..StoreOptions::default() }).expect("memory for a test"),
        );
        let handle = Handle::new(&store);
        let is_graced = options.grace_ns > 0;
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"key", b"value").expect("memory is free");
        let get = |remote: &mut Remote<Vec<u8>, u64>, fabric: &mut Fabric, ns: u64| {
            fabric.ns = ns;
            let before = fabric.posted;
            remote.get(b"key", 0, Now { second: now(&handle), ns });
            fabric.run(remote, now(&handle));
            let done = remote.next_completed().expect("over");
            assert_eq!(value_of(&done, fabric), Some(b"value".to_vec()), "{options:?}");
            (fabric.posted.0 - before.0, fabric.posted.1 - before.1)
        };
        for ns in 0..3 {
            get(&mut remote, &mut fabric, ns);
        }
        // By a line that is known already, or by one fetched after the item.
        let alone = if is_graced { (1, 0) } else { (2, 1) };
        assert_eq!(get(&mut remote, &mut fabric, 1_000), alone, "{options:?}");
        assert_eq!(get(&mut remote, &mut fabric, lease.as_nanos() as u64 + 1_000), (2, 1), "{options:?}");
        // The grace period is over, the lease is not.
        let later = lease.as_nanos() as u64 + GRACE_NS;
        assert_eq!(get(&mut remote, &mut fabric, later), (2, 1), "{options:?}");
    }
}

/// A GET begins with a leased line after a newer line's fetch failed; the failed one does not validate its item.
#[test]
fn failed_status_line_fetch_is_not_awaited() {
    for in_order in [false, true] {
        let lease = Duration::from_millis(60);
        let store = StoreOptions { lease, ..StoreOptions::default() };
        let handle = Handle::new(&Arc::new(Store::open(store).expect("memory for a test")));
        let grace_ns = lease.as_nanos() as u64;
        let (mut remote, mut fabric) =
            remote(&handle, RemoteOptions { in_order, grace_ns, ..RemoteOptions::default() });
        set(&handle, b"key", b"value").expect("memory is free");
        let second = now(&handle);
        let mut get = |began: u64, came: u64, fails: bool| {
            remote.get(b"key", 0, Now { second, ns: began });
            fabric.ns = came;
            while remote.wants_fetch() || remote.fetches_in_flight() > 0 {
                fabric.post(&mut remote, &mut |_| 0);
                fabric.go_on(usize::MAX, &mut |_| 0);
                fabric.hand_in(&mut remote, second, fails && fabric.has_lines(), &mut |_| 0);
            }
            let done = remote.next_completed().expect("its fetches were posted");
            value_of(&done, &mut fabric).is_some()
        };
        for ns in 0..3 {
            assert!(get(ns, ns, false));
        }
        // The item arrived too late to be validated by the known line, and the next fetch fails.
        assert!(!get(1_000, grace_ns, true));
        // This GET began with the same line, and completed soon after the other was requested.
        assert!(get(2_000, grace_ns + 1_000, false));
    }
}

#[test]
fn get_with_a_failed_fetch_goes_to_the_server() {
    for options in all_ways() {
        let handle = Handle::new(&store(64 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"short", b"value").expect("memory is free");
        set(&handle, b"long", &pattern(1, 5_000_000)).expect("memory is free");
        let mut first = |_| 0;
        for failing in 0..60 {
            let key: &[u8] = if failing % 2 == 0 { b"short" } else { b"long" };
            remote.get(key, failing, at(&handle));
            let mut fetched = 0;
            while remote.gets_in_flight() > 0 {
                fabric.post(&mut remote, &mut first);
                fabric.go_on(usize::MAX, &mut first);
                if fabric.hand_in(&mut remote, now(&handle), fetched == failing / 2, &mut first) {
                    fetched += 1;
                }
            }
            let done = remote.next_completed().expect("over");
            let is_hit = value_of(&done, &mut fabric).is_some();
            let has_failed = fetched > failing / 2;
            let is_asking = matches!(done.outcome, ReadOutcome::Fallback(FallbackReason::NotFetched));
            assert!(if has_failed { is_asking || is_hit } else { is_hit }, "{failing}: {:?}", done.outcome);
            fabric.run(&mut remote, now(&handle));
            assert_eq!(remote.fetches_in_flight(), 0);
        }
        remote.get(b"long", 0, at(&handle));
        fabric.post(&mut remote, &mut first);
        remote.abandon();
        assert!(matches!(
            remote.next_completed().expect("over").outcome,
            ReadOutcome::Fallback(FallbackReason::NotFetched)
        ));
        assert_eq!((remote.gets_in_flight(), remote.fetches_in_flight()), (0, 0));
    }
}

#[test]
fn abandoned_region_is_not_trusted() {
    for options in all_ways() {
        let handle = Handle::new(&store(64 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"key", b"value").expect("memory is free");
        let long = pattern(1, 10_000_000);
        set(&handle, b"long", &long).expect("memory is free");
        let mut first = |_| 0;
        remote.get(b"long", 0, at(&handle));
        // Until its chunks are in flight.
        while !fabric.has_values() {
            fabric.post(&mut remote, &mut first);
            if !fabric.has_values() {
                fabric.go_on(usize::MAX, &mut first);
                fabric.hand_in(&mut remote, now(&handle), false, &mut first);
            }
        }
        let memory = map_all(handle.store().region().expect("a memory file"));
        remote.get(b"key", 1, at(&handle));
        let line = loop {
            let fetch = remote.next_fetch(0).expect("a line is requested");
            if fetch.offset < 4096 {
                break fetch;
            }
            fabric.post_one(fetch, &mut first);
        };
        let mut bytes = vec![0; line.len];
        memory.copy_out(line.offset, &mut bytes);
        bytes[16..24].fill(0);
        remote.take(line.id, Arrival::Buffer(bytes), at(&handle));
        assert!(
            remote.is_gone() && matches!(remote.next_completed().expect("over").outcome, ReadOutcome::Gone)
        );
        assert!(remote.next_completed().is_none(), "the other GET's value is still being written");
        fabric.run(&mut remote, now(&handle));
        let done = remote.next_completed().expect("over");
        assert!(done.token == 0 && matches!(done.outcome, ReadOutcome::Gone), "{:?}", done.outcome);
        remote.get(b"key", 2, at(&handle));
        assert!(matches!(remote.next_completed().expect("at once").outcome, ReadOutcome::Gone));
        assert_eq!((remote.gets_in_flight(), remote.fetches_in_flight()), (0, 0));
    }
}

/// A key's state from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    Nothing,
    Version(u64),
    /// The same value, evicted at some later moment.
    Expiring(u64),
}

/// A key's history.
struct KeyHistory(Vec<(u64, KeyState)>);

impl KeyHistory {
    fn note(&mut self, moment: u64, was: KeyState) {
        self.0.push((moment, was));
    }

    /// Returns whether a state matching `is` held at some moment from `from` on.
    fn had(&self, from: u64, is_so: impl Fn(KeyState) -> bool) -> bool {
        let first = self.0.iter().rposition(|(moment, _)| *moment <= from).unwrap_or(0);
        self.0[first..].iter().any(|(_, was)| is_so(*was))
    }
}

/// One run: writes and reads in small steps, in an order that random numbers give.
struct Run<'a> {
    handle: &'a Handle,
    clock: &'a SetClock,
    random: SplitMix64,
    moment: u64,
    /// Real time, for a store with a grace period; simulated time otherwise.
    began: Option<Instant>,
    past: Vec<KeyHistory>,
    /// Keys that may be lost at times, as memory is short.
    evicts: bool,
    begun: Vec<(usize, u64)>,
    fails: bool,
    /// One in this many write turns is taken: with small fetches GETs take long, and would find everything changed.
    pace: usize,
    /// Counts of completed GETs by result.
    hits: u64,
    kept: u64,
    misses: u64,
    requested: u64,
}

const KEYS: usize = 60;

impl Run<'_> {
    fn key(number: usize) -> Vec<u8> {
        format!("key-{number}").into_bytes()
    }

    /// Builds a key's value, which repeats version and length throughout.
    fn content(number: usize, version: u64) -> Vec<u8> {
        let seed = version * KEYS as u64 + number as u64;
        let len = match seed % 50 {
            0 => 30_000,
            1..5 => 3_000,
            _ => seed as usize * 7 % 300,
        };
        let mut content = version.to_le_bytes().to_vec();
        content.extend(pattern(seed + 1, len));
        content
    }

    /// Runs a write, or an event of time.
    fn write(&mut self) {
        self.moment += 1;
        let (moment, number) = (self.moment, self.random.below(KEYS));
        let (store, key) = (self.handle.store(), Run::key(number));
        match self.random.below(40) {
            0..4 => {
                delete(self.handle, &key);
                self.past[number].note(moment, KeyState::Nothing);
            }
            4 if self.random.once_in(6) => {
                self.handle.flush(Expiry::AT_ONCE);
                self.past.iter_mut().for_each(|past| past.note(moment, KeyState::Nothing));
            }
            5 if self.random.once_in(3) => {
                self.clock.advance(1);
                store.tick();
                self.handle.maintain();
            }
            6..9 if self.evicts => {
                for _ in 0..30 {
                    let filler = format!("filler-{}", self.random.below(100_000));
                    set(self.handle, filler.as_bytes(), &[b'f'; 700]).expect("something is evicted");
                }
            }
            6..9 => {
                // Grow the index.
                let filler = format!("filler-{moment}");
                set(self.handle, filler.as_bytes(), b"").expect("memory is free");
            }
            kind => {
                let expires = kind < 12;
                let expiry = if expires {
                    Expiry::from_client(2, store.now(), store.clock_origin())
                } else {
                    Expiry::NEVER
                };
                set_with(self.handle, &key, &Run::content(number, moment), 0, expiry).expect("memory");
                let was = if expires { KeyState::Expiring(moment) } else { KeyState::Version(moment) };
                self.past[number].note(moment, was);
            }
        }
    }

    fn check(&mut self, done: &CompletedGet<Vec<u8>, u64>, fabric: &mut Fabric) {
        let (number, from) = self.begun[done.token as usize];
        let past = &self.past[number];
        match &done.outcome {
            ReadOutcome::Hit(..) => {
                let found = value_of(done, fabric).expect("a hit has a value");
                let version = found.first_chunk().map(|version| u64::from_le_bytes(*version));
                let version = version.expect("every value holds its version");
                assert!(found == Run::content(number, version), "key {number}: a wrong value");
                assert!(
                    past.had(from, |was| was == KeyState::Version(version)
                        || was == KeyState::Expiring(version)),
                    "key {number}: {version} had ended when the GET began"
                );
                self.kept += u64::from(done.was_cached);
                self.hits += 1;
            }
            ReadOutcome::Miss(miss) => {
                let may_be = self.evicts || past.had(from, |was| !matches!(was, KeyState::Version(_)));
                assert!(may_be, "key {number}: {miss:?}, but it existed throughout");
                self.misses += 1;
            }
            ReadOutcome::Fallback(reason) => {
                assert!(self.fails || *reason != FallbackReason::NotFetched, "no fetch failed");
                assert!(
                    matches!(
                        reason,
                        FallbackReason::NotFetched | FallbackReason::Contended | FallbackReason::Clock
                    ),
                    "{done:?}"
                );
                self.requested += 1;
            }
            other => panic!("{other:?}"),
        }
    }

    fn go(&mut self, remote: &mut Remote<Vec<u8>, u64>, fabric: &mut Fabric, gets: usize) {
        let mut held = 0;
        while self.begun.len() < gets || remote.gets_in_flight() > 0 {
            // Fetches take a random time.
            fabric.ns = match self.began {
                Some(began) => began.elapsed().as_nanos() as u64,
                None => fabric.ns + self.random.below(3_000) as u64,
            };
            match self.random.below(12) {
                0 if self.random.once_in(self.pace) => self.write(),
                0 => {}
                1..4 if self.begun.len() < gets && remote.free_slots() > 0 => {
                    let number = self.random.below(KEYS);
                    let now = Now { second: self.handle.store().now(), ns: fabric.ns };
                    remote.get(&Run::key(number), self.begun.len() as u64, now);
                    self.begun.push((number, self.moment));
                }
                4 | 5 => {
                    let random = &mut self.random;
                    fabric.post(remote, &mut |n| random.below(n));
                }
                6 => held = self.random.below(8),
                _ if held > 0 => held -= 1,
                7..10 => {
                    let parts = 1 + self.random.below(20);
                    let random = &mut self.random;
                    fabric.go_on(parts, &mut |n| random.below(n));
                }
                _ => {
                    let fails = self.fails && self.random.once_in(40);
                    let random = &mut self.random;
                    fabric.hand_in(remote, self.handle.store().now(), fails, &mut |n| random.below(n));
                }
            }
            while let Some(done) = remote.next_completed() {
                self.check(&done, fabric);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// A store that is written to between any two steps of a read, with a clock that advances. It may grant a grace
    /// for emptied segments, and waits for as long before it flushes.
    #[test]
    fn gets_return_a_value_valid_during_the_call(seed: u64, in_order: bool, evicts: bool, fails: bool, waits: bool, leases: bool, gets in 1usize..65, fetches in 1usize..40) {
        let memory_bytes = if evicts { 2 << 20 } else { 16 << 20 };
        let clock = SetClock::default();
        let grace = if waits { Duration::from_millis(4) } else { Duration::ZERO };
        let lease = if leases { grace } else { Duration::ZERO };
        let store = StoreOptions { memory_bytes, memory_bytes_max: memory_bytes, time: Box::new(clock.clone()), grace, lease, ..StoreOptions::default() };
        let handle = Handle::new(&Arc::new(Store::open(store).expect("memory for a test")));
        let grace_ns = grace.as_nanos() as u64;
        let options = RemoteOptions { gets, fetches, in_order, grace_ns, gets_per_line: 4, locations: 40, ..RemoteOptions::default() };
        let (mut remote, mut fabric) = remote(&handle, options);
        let past = (0..KEYS).map(|_| KeyHistory(vec![(0, KeyState::Nothing)])).collect();
        let random = SplitMix64::new(seed);
        let mut run = Run { handle: &handle, clock: &clock, random, moment: 0, began: waits.then(Instant::now), past, evicts, begun: Vec::new(), fails, pace: 1 + gets / (4 * fetches), hits: 0, kept: 0, misses: 0, requested: 0 };
        for _ in 0..200 {
            run.write();
        }
        run.go(&mut remote, &mut fabric, 1_500);
        prop_assert_eq!(run.hits + run.misses + run.requested, 1_500);
        let few = if fails || evicts { 10 } else { 50 };
        prop_assert!(run.hits > few && (evicts || fails || gets > 16 || run.kept > 0), "{} hits, {} of them at cached locations", run.hits, run.kept);
        prop_assert!(fails || run.requested < 500, "{} fallbacks to the server", run.requested);
    }
}
