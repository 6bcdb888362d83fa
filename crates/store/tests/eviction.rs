//! What eviction keeps, and how little repeated writes of the same keys cost others.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;

use common::{get, set, store, store_with};
use fabcache_store::{Change, EvictionPolicy, Handle, NewValue, Store, StoreOptions, Value};
use fabcache_testbed::bytes::pattern;

const MEMORY_BYTES: u64 = 4 << 20;
const KEYS: usize = 100_000;
const REQUESTS: usize = 50_000;
/// Operations of the other client per request.
const OTHERS: usize = 4;

/// Draws keys, the `n`th with a frequency of `1/n`.
struct Zipf {
    sums: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new() -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=KEYS).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Zipf { sums: sums.collect(), state: 7 }
    }

    fn random(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn draw(&mut self) -> usize {
        let at = self.random() as f64 / (1u64 << 31) as f64 * self.sums[KEYS - 1];
        self.sums.partition_point(|sum| *sum < at)
    }
}

fn fetch(handle: &Handle, key: &[u8], value: &[u8]) -> bool {
    let hit = get(handle, key).is_some();
    if !hit {
        set(handle, key, value).expect("something can be evicted");
    }
    hit
}

/// Returns the hit ratio while another client runs operations after each request.
fn hit_ratio(mut other: impl FnMut(&Handle, usize)) -> f64 {
    let (store, _) = store(MEMORY_BYTES / 4, true, 1);
    let handle = Handle::new(&store);
    let mut zipf = Zipf::new();
    let mut hits = 0;
    for request in 0..REQUESTS {
        let key = format!("key:{:012}", zipf.draw());
        hits += usize::from(fetch(&handle, key.as_bytes(), &[b'v'; 100]));
        for i in 0..OTHERS {
            other(&handle, request * OTHERS + i);
        }
    }
    assert!(store.sums().evictions > 5_000, "memory is full");
    hits as f64 / REQUESTS as f64
}

fn ignore(_: bool) {}

fn hot(i: usize) -> String {
    format!("hot:{:03}", i * 7 % 1_000)
}

#[track_caller]
fn costs_little(with: f64, without: f64) {
    println!("hit ratio {with:.4}, without {without:.4}");
    assert!(with > without * 0.98, "{with} is not near {without}");
}

#[test]
fn rewriting_one_key_uses_little_memory() {
    let without = hit_ratio(|handle, _| ignore(fetch(handle, b"hot", &[b'v'; 100])));
    costs_little(hit_ratio(|handle, _| ignore(set(handle, b"hot", &[b'v'; 100]).is_ok())), without);
}

#[test]
fn rewriting_a_thousand_keys_of_any_size_uses_little_memory() {
    let without = hit_ratio(|handle, i| ignore(fetch(handle, hot(i).as_bytes(), &[b'v'; 100])));
    let set_hot = |handle: &Handle, i: usize, len: usize| {
        set(handle, hot(i).as_bytes(), &vec![b'v'; len]).expect("something can be evicted");
    };
    costs_little(hit_ratio(|handle, i| set_hot(handle, i, 100)), without);
    // The same number of bytes in total: 20 and 180 in turn.
    costs_little(hit_ratio(|handle, i| set_hot(handle, i, if i % 3 == 0 { 180 } else { 60 })), without);
}

#[test]
fn incrementing_uses_little_memory() {
    let count = |handle: &Handle, i: usize| {
        let counter = format!("counter:{}", i % 100);
        let (counted, _) = handle
            .mutate(counter.as_bytes(), |existing| {
                let number = existing.value(20).map_or(0, |value| {
                    let digits = std::str::from_utf8(value).expect("digits");
                    digits.trim_end().parse().expect("a number")
                });
                let write = common::plain(NewValue::Number { number: number + 1, width: 0 });
                (Change::Write(write), number + 1)
            })
            .expect("something can be evicted");
        counted
    };
    let without =
        hit_ratio(|handle, i| ignore(fetch(handle, format!("counter:{}", i % 100).as_bytes(), b"1")));
    let mut last = 0;
    let with = hit_ratio(|handle, i| last = count(handle, i));
    costs_little(with, without);
    assert_eq!(last, (REQUESTS * OTHERS / 100) as u64, "an active counter is never evicted");
}

/// Returns a store full of items that were read several times among others that were not, so that it has learned to
/// give the latter little memory.
fn full_of_popular() -> (Arc<Store>, Handle, usize) {
    let (store, _) = store(MEMORY_BYTES, true, 1);
    let handle = Handle::new(&store);
    let popular = 10_000;
    let mut hits = 0;
    for round in 0..15 {
        if round < 12 {
            (0..30_000).for_each(|i| {
                let key = format!("unread:{round}:{i}");
                set(&handle, key.as_bytes(), &[b's'; 100]).expect("something can be evicted");
            });
        }
        let is_hit = |i: &usize| fetch(&handle, format!("popular:{i}").as_bytes(), &[b'v'; 100]);
        hits = (0..popular).filter(is_hit).count();
    }
    let share = store.eviction_balance().small_share;
    assert!(hits > popular * 99 / 100 && share < 0.5, "{hits} of {popular} hit, {share} for new items");
    (store, handle, popular)
}

/// Fills memory with items that are each read as often, right after they are stored.
fn full_of_read(reads: usize, eviction: EvictionPolicy) -> (Arc<Store>, Handle, usize) {
    let (store, _) = store_with(MEMORY_BYTES * 4, StoreOptions { eviction, ..StoreOptions::default() });
    let handle = Handle::new(&store);
    let mut stored = 0;
    while store.sums().evictions < 100 {
        let key = format!("old:{stored}");
        set(&handle, key.as_bytes(), &[b'v'; 500]).expect("memory is free, or something can be evicted");
        (0..reads).for_each(|_| assert!(get(&handle, key.as_bytes()).is_some()));
        stored += 1;
    }
    (store, handle, stored)
}

#[test]
fn burst_is_read_after_it_was_stored() {
    for reads in [1, 3] {
        let (_store, handle, stored) = full_of_read(reads, EvictionPolicy::Adaptive);
        for percent in [1, 10, 30, 65] {
            let count = stored * percent / 100;
            let key = |i: usize| format!("burst:{percent}:{i}");
            for i in 0..count {
                set(&handle, key(i).as_bytes(), &[b'v'; 500]).expect("something can be evicted");
            }
            let hits = (0..count).filter(|i| get(&handle, key(*i).as_bytes()).is_some()).count();
            assert!(
                hits >= count * 98 / 100,
                "{hits} of {count} hit in memory full of items read {reads} times"
            );
        }
    }
}

/// Returns whether a key is in the main queue after it was stored, read this many times, and stored again.
fn is_promoted_by_set(handle: &Handle, reads: u64) -> bool {
    // Hits are counted by queue for one key in 16.
    let key = (0..).map(|i| format!("overwritten:{reads}:{i}"));
    let key = { key }.find(|key| handle.store().hash(key.as_bytes()).0.is_multiple_of(16)).expect("endless");
    set(handle, key.as_bytes(), b"old").expect("something can be evicted");
    (0..reads).for_each(|_| assert!(get(handle, key.as_bytes()).is_some()));
    set(handle, key.as_bytes(), b"new").expect("something can be evicted");
    let before = handle.store().sums();
    assert!(get(handle, key.as_bytes()).is_some());
    let hits = handle.store().sums().since(&before);
    assert_eq!(hits.small_queue_hits + hits.main_queue_hits, 1);
    hits.main_queue_hits == 1
}

#[test]
fn set_promotes_an_item_that_was_read_as_often_as_promotion_asks_for() {
    for (eviction, least) in
        [(EvictionPolicy::Adaptive, 2), (EvictionPolicy::S3Fifo, 1), (EvictionPolicy::Lru, 0)]
    {
        let (store, _) = store_with(MEMORY_BYTES, StoreOptions { eviction, ..StoreOptions::default() });
        let handle = Handle::new(&store);
        for reads in 0..4 {
            let promoted = is_promoted_by_set(&handle, reads);
            assert_eq!(promoted, reads >= least, "{eviction:?}, read {reads} times");
        }
    }
}

#[test]
fn fixed_policies_keep_their_rules() {
    for (eviction, kept) in [(EvictionPolicy::S3Fifo, 0..25), (EvictionPolicy::Lru, 98..101)] {
        let (store, handle, stored) = full_of_read(1, eviction);
        assert_eq!(store.eviction_policy(), eviction);
        // Those that were read go round once, and then go.
        let count = stored * 65 / 100;
        for round in 0..2 {
            for i in 0..count {
                let key = format!("burst:{round}:{i}");
                set(&handle, key.as_bytes(), &[b'v'; 500]).expect("something can be evicted");
            }
        }
        let hits = (0..count).filter(|i| get(&handle, format!("burst:1:{i}").as_bytes()).is_some()).count();
        assert!(kept.contains(&(hits * 100 / count)), "{eviction:?}: {hits} of {count}");
    }
}

#[test]
fn share_of_new_items_follows_the_load() {
    let (store, handle, _) = full_of_popular();
    let low = store.eviction_balance().small_share;
    // Each is read once, when half as much as memory holds was stored after it.
    let delay = 12_000;
    let mut hits = 0;
    for i in 0..200_000 {
        set(&handle, format!("session:{i}").as_bytes(), &[b's'; 100]).expect("something can be evicted");
        if i >= delay {
            hits += usize::from(get(&handle, format!("session:{}", i - delay).as_bytes()).is_some());
        }
        if i == 100_000 {
            hits = 0;
        }
    }
    let balance = store.eviction_balance();
    assert!(balance.small_share > low + 0.1, "{low} before, {balance:?} after");
    assert!(hits > 97_000, "{hits} of 100000 sessions hit at the end");
}

#[test]
fn scan_does_not_evict_popular_items() {
    let (store, handle, popular) = full_of_popular();
    (0..200_000).for_each(|i| {
        set(&handle, format!("scan:{i}").as_bytes(), &[b's'; 100]).expect("something can be evicted");
    });
    assert!(store.sums().evictions > 100_000);
    let left = (0..popular).filter(|i| get(&handle, format!("popular:{i}").as_bytes()).is_some()).count();
    assert!(left > popular * 99 / 100, "{left} of {popular} are left");
}

#[test]
fn soon_rerequested_item_is_kept() {
    let (_store, handle, _) = full_of_popular();
    let store_all = |name: &str, range: std::ops::Range<usize>| {
        for i in range {
            set(&handle, format!("{name}:{i}").as_bytes(), &[b's'; 100]).expect("something can be evicted");
        }
    };
    store_all("returning", 0..1_000);
    store_all("scan", 0..25_000);
    let left = (0..1_000).filter(|i| get(&handle, format!("returning:{i}").as_bytes()).is_some()).count();
    assert!(left < 200, "unread items are evicted, but {left} are left");
    store_all("returning", 0..1_000);
    store_all("scan", 15_000..60_000);
    let left = (0..1_000).filter(|i| get(&handle, format!("returning:{i}").as_bytes()).is_some()).count();
    assert!(left > 800, "{left} are left");
}

#[test]
fn long_value_is_kept_or_evicted_whole() {
    let (store, handle, _) = full_of_popular();
    let value = pattern(1, 300_000);
    set(&handle, b"long", &value).expect("something can be evicted");
    for i in 0..100_000 {
        set(&handle, format!("scan:{i}").as_bytes(), &[b's'; 100]).expect("something can be evicted");
        if i % 1_000 == 0 {
            assert_eq!(get(&handle, b"long").expect("it is read constantly").1, value);
        }
    }
    let write = common::plain(NewValue::Is(Value::Bytes(b"short")));
    handle.mutate(b"long", |_| (Change::Write(write), ())).expect("something can be evicted");
    assert!(store.sums().evictions > 50_000);
}

/// Fills memory with long values that were popular once. Then short ones are requested in turn, among a scan, and fit
/// half of it.
#[test]
fn formerly_popular_items_are_evicted() {
    for (old_len, new_len) in [(3_000, 1_000), (50_000, 1_000)] {
        let (store, _) = store(MEMORY_BYTES, true, 1);
        let handle = Handle::new(&store);
        let olds = MEMORY_BYTES as usize * 85 / 100 / old_len;
        for _ in 0..10 {
            (0..olds)
                .for_each(|i| ignore(fetch(&handle, format!("old{i}").as_bytes(), &vec![b'v'; old_len])));
        }
        let news = MEMORY_BYTES as usize / 2 / new_len;
        let value = vec![b'n'; new_len];
        let mut hits = 0;
        for round in 0..30 {
            hits = 0;
            for i in 0..news {
                hits += usize::from(fetch(&handle, format!("new{i}").as_bytes(), &value));
                if i % 2 == 0 {
                    let scanned = format!("scan{round}-{i}");
                    set(&handle, scanned.as_bytes(), &value).expect("something can be evicted");
                }
            }
        }
        assert!(hits > news * 3 / 4, "old {old_len}: {hits} of {news} hit at the end");
    }
}
