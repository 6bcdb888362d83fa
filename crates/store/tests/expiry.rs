//! Memory of expired items is reclaimed in time, without accesses, and for a proportional amount of work.
#![cfg(not(loom))]

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{SetClock, delete, get, plain, set, set_with, store};
use fabcache_store::{Change, Detail, Expiry, Handle, NewValue, Store, StoreOptions};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;
use proptest::prelude::*;

/// An item's expected expiry (0 for never) and TTL.
#[derive(Clone, Copy, Debug)]
struct ExpectedItem {
    expiry: u32,
    ttl: u32,
    bytes: u64,
}

impl ExpectedItem {
    fn is_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }

    /// Returns whether its memory must be reclaimed by now.
    fn is_overdue(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry + (self.ttl / 100).max(2) <= now
    }
}

/// A store and its expected contents.
struct World {
    handle: Handle,
    clock: SetClock,
    known: HashMap<u32, ExpectedItem>,
}

fn key(i: u32) -> Vec<u8> {
    format!("key-{i}").into_bytes()
}

impl World {
    fn new(memory_bytes: u64) -> World {
        let (store, clock) = store(memory_bytes, true, 1);
        World { handle: Handle::new(&store), clock, known: HashMap::new() }
    }

    fn now(&self) -> u32 {
        self.handle.store().now()
    }

    fn expiry(&self, ttl: u32) -> Expiry {
        Expiry::from_client(ttl.into(), self.now(), self.handle.store().clock_origin())
    }

    fn set(&mut self, i: u32, ttl: u32, len: usize) {
        let expiry = self.expiry(ttl);
        set_with(&self.handle, &key(i), &pattern(i, len), 0, expiry).expect("memory is free");
        self.known.insert(i, ExpectedItem { expiry: expiry.second(), ttl, bytes: len as u64 });
    }

    fn touch(&mut self, i: u32, ttl: u32) {
        let now = self.now();
        let Some(known) = self.known.get(&i).copied().filter(|known| !known.is_expired(now)) else { return };
        let expiry = self.expiry(ttl);
        let write = fabcache_store::Write { expiry, same_item: true, ..plain(NewValue::Same) };
        self.handle.mutate(&key(i), |_| (Change::Write(write), ())).expect("memory is free");
        self.known.insert(i, ExpectedItem { expiry: expiry.second(), ttl, ..known });
    }

    fn delete(&mut self, i: u32) {
        let there = delete(&self.handle, &key(i));
        let now = self.now();
        assert_eq!(there, self.known.remove(&i).is_some_and(|known| !known.is_expired(now)));
    }

    /// Advances the clock second by second, as the housekeeper sees it, or at once.
    fn pass(&mut self, seconds: u64, at_once: bool) {
        for _ in 0..if at_once { 1 } else { seconds } {
            self.clock.advance(if at_once { seconds } else { 1 });
            self.handle.maintain();
            self.check();
        }
    }

    /// Live items are at least the valid ones, and at most those not overdue.
    fn check(&self) {
        let now = self.now();
        let usage = self.handle.store().usage();
        let sum = |of: &dyn Fn(&ExpectedItem) -> bool| {
            let of = self.known.values().filter(|known| of(known));
            of.fold((0, 0), |(items, bytes), known| (items + 1, bytes + known.bytes))
        };
        let (least, least_bytes) = sum(&|known| !known.is_expired(now));
        let (most, most_bytes) = sum(&|known| !known.is_overdue(now));
        assert!((least..=most).contains(&usage.items), "{least} to {most} at {now}: {usage:?}");
        let overhead = usage.item_bytes - least_bytes.min(usage.item_bytes);
        assert!(usage.item_bytes >= least_bytes, "{least_bytes} at {now}: {usage:?}");
        // Overhead of headers, keys and chunk tables: less than 64 bytes per item, and per 4 KiB of a value.
        let most_bytes = most_bytes + most * 64 + most_bytes / 64;
        assert!(usage.item_bytes <= most_bytes, "{most_bytes} at {now}, {overhead} over: {usage:?}");
    }

    fn items_checked(&self) -> u64 {
        self.handle.store().sums().reclaim_items_checked
    }
}

#[test]
fn expired_memory_is_reclaimed_in_time_for_any_mix() {
    let mut world = World::new(16 << 20);
    let mut random = SplitMix64::new(7);
    let mut below = |n: u32| random.below(n as usize) as u32;
    for round in 0..700 {
        for i in 0..8 {
            let ttl = match below(8) {
                0 => 0,
                1..4 => 1 + below(60),
                4..6 => 60 + below(900),
                6 => 300,
                _ => 1 + below(50_000),
            };
            let len = if below(100) == 0 { 30_000 } else { below(300) as usize };
            world.set(if below(4) == 0 { below(500) } else { 1_000 + round * 8 + i }, ttl, len);
        }
        world.touch(below(500), 1 + below(400));
        world.delete(below(500));
        world.pass(1, false);
    }
    world.known.retain(|_, known| known.expiry != 0);
    assert!(world.known.len() > 2_000);
}

#[test]
fn short_lived_item_among_long_lived_ones_is_reclaimed() {
    let mut world = World::new(64 << 20);
    for i in 0..20_000 {
        world.set(i, [61, 599, 3_601][i as usize % 3], 100);
    }
    world.pass(620, false);
    assert_eq!(world.handle.store().usage().items, 20_000 / 3);
}

#[test]
fn segments_of_expired_items_are_freed() {
    let mut world = World::new(16 << 20);
    let free = world.handle.store().usage().segments_free;
    // Includes a chunked value, whose head lies elsewhere.
    world.set(0, 30, 3 << 20);
    for i in 1..30_000 {
        world.set(i, 30, 100);
    }
    assert!(world.handle.store().usage().segments_free < free - 100);
    world.pass(40, false);
    let usage = world.handle.store().usage();
    assert_eq!((usage.items, usage.item_bytes), (0, 0));
    let index = usage.segments_index;
    assert!(usage.segments_free + index >= free, "{usage:?}");
}

#[test]
fn work_is_proportional_to_expired_items() {
    let mut world = World::new(64 << 20);
    for i in 0..150_000 {
        set(&world.handle, format!("endless-{i}").as_bytes(), &[b'v'; 60]).expect("memory is free");
    }
    for round in 0..100 {
        for i in 0..300 {
            world.set(round * 300 + i, 40, 60);
        }
        for i in 0..30 {
            world.set(100_000 + round * 30 + i, 20_000, 60);
        }
        world.clock.advance(1);
        world.handle.maintain();
    }
    world.clock.advance(60);
    world.handle.maintain();
    assert_eq!(world.handle.store().usage().items, 150_000 + 3_000);
    let checked = world.items_checked();
    println!("{checked} checks for 30000 expired items");
    // Each item is checked a few times while its open segment fills up, and when it expires.
    assert!(checked < 30_000 * 20, "{checked} checks for 30000 expired items");
    let before = world.items_checked();
    (0..100).for_each(|_| world.handle.maintain());
    assert_eq!(world.items_checked(), before, "nothing expires, and nothing is checked");
}

#[test]
fn items_expiring_together_are_visited_once_in_short_batches() {
    let mut world = World::new(64 << 20);
    for i in 0..100_000 {
        world.set(i, 100, 60);
    }
    world.pass(100, true);
    let before = world.items_checked();
    world.clock.advance(2);
    let (mut last, mut parts, mut longest) = (before, 0, 0);
    world.handle.maintain_with(|| {
        let checked = world.items_checked();
        longest = longest.max(checked - last);
        (last, parts) = (checked, parts + 1);
    });
    assert_eq!(world.handle.store().usage().items, 0);
    // Some were written twice, as the index grew in between.
    let checked = world.items_checked() - before;
    assert!((100_000..100_100).contains(&checked), "{checked} checks, not one per item");
    let most = u64::from(fabcache_store::bounds::MAINTENANCE_STEP_ITEMS);
    assert!(longest <= most && parts >= 100_000 / most, "{parts} parts of at most {longest}");
    assert_eq!(world.handle.store().sums().reclaimed, 100_000);
}

#[test]
fn flushed_items_are_reclaimed_without_access() {
    let mut world = World::new(16 << 20);
    for i in 0..20_000 {
        world.set(i, [0, 50_000][i as usize % 2], 100);
    }
    let free = world.handle.store().usage().segments_free;
    world.handle.flush(Expiry::AT_ONCE);
    world.known.clear();
    world.pass(1, false);
    let usage = world.handle.store().usage();
    assert!(usage.item_bytes == 0 && usage.segments_free > free, "{usage:?}");
}

#[test]
fn overwritten_expired_and_flushed_items_count_as_reclaimed() {
    let mut world = World::new(16 << 20);
    let counts = |world: &World| {
        let sums = world.handle.store().sums();
        (sums.reclaimed, sums.expired_unfetched)
    };
    for i in 0..3 {
        world.set(i, 1, 100);
    }
    get(&world.handle, &key(1)).expect("a valid item");
    world.clock.advance(2);
    world.handle.store().tick();
    world.set(0, 0, 100);
    assert_eq!(counts(&world), (1, 1), "expired, and never read");
    world.set(1, 0, 100);
    assert_eq!(counts(&world), (2, 1), "expired, and read");
    world.set(1, 0, 100);
    assert_eq!(counts(&world), (2, 1), "valid");
    world.handle.flush(Expiry::AT_ONCE);
    world.set(1, 0, 100);
    assert_eq!(counts(&world), (3, 1), "flushed");
}

#[test]
fn without_eviction_expired_items_make_room_for_others() {
    let (store, clock) = store(8 << 20, false, 1);
    let handle = Handle::new(&store);
    let expiry = |ttl| Expiry::from_client(ttl, store.now(), store.clock_origin());
    let mut stored = 0;
    while set_with(&handle, format!("key{stored}").as_bytes(), &[0; 500], 0, expiry([30, 90_000][stored % 2]))
        .is_ok()
    {
        stored += 1;
    }
    clock.advance(32);
    handle.maintain();
    for i in 0..stored / 3 {
        set(&handle, format!("new{i}").as_bytes(), &[1; 500]).expect("half of memory has expired");
    }
    assert!((0..stored).filter(|i| i % 2 == 1).all(|i| get(&handle, format!("key{i}").as_bytes()).is_some()));
}

#[derive(Clone, Debug)]
enum Op {
    Set { i: u32, ttl: u32, len: usize },
    Touch { i: u32, ttl: u32 },
    Delete { i: u32 },
    Get { i: u32 },
    Pass { seconds: u64 },
    Jump { seconds: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let ttl = || prop_oneof![1 => Just(0u32), 4 => 1u32..20, 4 => 1u32..400, 1 => 1u32..2_000_000];
    let i = || 0u32..200;
    prop_oneof![
        10 => (i(), ttl(), prop_oneof![9 => 0usize..400, 1 => 0usize..60_000])
            .prop_map(|(i, ttl, len)| Op::Set { i, ttl, len }),
        3 => (i(), ttl()).prop_map(|(i, ttl)| Op::Touch { i, ttl }),
        1 => i().prop_map(|i| Op::Delete { i }),
        2 => i().prop_map(|i| Op::Get { i }),
        4 => (1u64..5).prop_map(|seconds| Op::Pass { seconds }),
        1 => prop_oneof![1u64..1_000, 1u64..1_000_000].prop_map(|seconds| Op::Jump { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn expired_memory_is_reclaimed_in_time_after_any_operations(ops in prop::collection::vec(op(), 1..400)) {
        let mut world = World::new(16 << 20);
        for op in ops {
            match op {
                Op::Set { i, ttl, len } => world.set(i, ttl, len),
                Op::Touch { i, ttl } => world.touch(i, ttl),
                Op::Delete { i } => world.delete(i),
                Op::Get { i } => {
                    let now = world.now();
                    let valid = world.known.get(&i).is_some_and(|known| !known.is_expired(now));
                    prop_assert_eq!(get(&world.handle, &key(i)).is_some(), valid);
                }
                Op::Pass { seconds } => world.pass(seconds, false),
                Op::Jump { seconds } => world.pass(seconds, true),
            }
        }
    }
}

#[test]
fn due_flush_that_must_wait_for_leases_is_left_to_maintenance() {
    const LEASE: Duration = Duration::from_millis(50);
    let clock = SetClock::default();
    let store = StoreOptions { lease: LEASE, time: Box::new(clock.clone()), ..StoreOptions::default() };
    let handle = Handle::new(&Arc::new(Store::open(store).expect("memory for a test")));
    let store = handle.store();
    set(&handle, b"key", b"value").expect("memory is free");
    let flush_at = store.now() + 2;
    handle.flush(Expiry::from_client(2, store.now(), store.clock_origin()));
    clock.advance(1);
    store.tick();
    assert_eq!(store.now(), flush_at - 1, "no flush is due");
    clock.advance(3);
    store.tick();
    assert_eq!(store.now(), flush_at - 1, "no second after an outstanding flush is published");
    let began = Instant::now();
    handle.maintain();
    assert!(began.elapsed() >= LEASE);
    assert_eq!(store.now(), flush_at + 2);
    assert!(handle.describe(b"key", Detail::Full, false).is_err(), "the item is flushed");
    clock.advance(1);
    store.tick();
    assert_eq!(store.now(), flush_at + 3);
}
