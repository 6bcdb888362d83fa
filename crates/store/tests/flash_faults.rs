//! The flash tier on devices that fail, stall or return other bytes, and items of every kind there and back: an item is lost
//! at most, and never wrong.
#![cfg(not(loom))]

mod common;

use common::flash::{Tier, flash_options};
use fabcache_store::{Expiry, FlashOptions, FlashSums, Put, StoreOptions};
use fabcache_testbed::bytes::pattern;

fn set(tier: &Tier, key: &[u8], value: &[u8]) {
    let put = Put { key, value, flags: 7, expiry: Expiry::NEVER };
    let probe = tier.handle.probe_for_write(key);
    tier.handle.put(&put, &probe).expect("something may be evicted");
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(tier: &Tier, key: &[u8]) -> Option<Vec<u8>> {
    tier.get(key).map(|(_, value)| value)
}

fn sums(tier: &Tier) -> FlashSums {
    tier.store().flash_sums().expect("there is a tier")
}

/// Stores short items, which no test reads, until the tier has staged `items` others.
fn push_out(tier: &Tier, items: u64) {
    for n in 0.. {
        if sums(tier).objects_written >= items {
            return;
        }
        assert!(n < 1_000_000, "{:?}", sums(tier));
        set(tier, &format!("short-{n}").into_bytes(), b"short");
    }
}

/// Options of a tier to which only items of 200 bytes and more go.
fn selective(segments: &[u64]) -> StoreOptions {
    let flash = FlashOptions { item_bytes_min: 200, ..flash_options(segments) };
    StoreOptions { flash: Some(flash), ..StoreOptions::default() }
}

#[test]
fn newer_item_of_a_page_is_read() {
    let tier = Tier::new(2 << 20, &[], selective(&[8]));
    for version in 1..4 {
        set(&tier, b"key", &pattern(version, 300));
        push_out(&tier, version);
    }
    tier.drive();
    assert_eq!(value(&tier, b"key"), Some(pattern(3, 300)));
    assert_eq!(sums(&tier).objects_read, 1, "it was on flash");
}

#[test]
fn deleted_item_is_not_read_for_another_one_of_its_page() {
    let tier = Tier::new(2 << 20, &[], selective(&[8]));
    // Two keys whose slots on flash are the same: so many bits of their hashes tell them apart in no table of this size.
    let mut seen = std::collections::HashMap::new();
    let same = (0..8_000_000u64).find_map(|n| {
        let hash = tier.store().hash(&key(n));
        seen.insert(hash.0 >> 24, n).map(|other| (key(other), key(n)))
    });
    let (deleted, other) = same.expect("two of eight million have the same 40 bits, a birthday");
    set(&tier, &deleted, &pattern(1, 300));
    push_out(&tier, 1);
    assert!(common::delete(&tier.handle, &deleted));
    set(&tier, &other, &pattern(2, 300));
    push_out(&tier, 2);
    tier.drive();
    assert_eq!(value(&tier, &deleted), None);
    assert_eq!(sums(&tier).mismatches, 1, "the other one's slot may be its own");
    assert_eq!(value(&tier, &other), Some(pattern(2, 300)));
}

#[test]
fn long_items_leave_the_buffers_of_others() {
    let segment_bytes = 4 << 20;
    let flash = FlashOptions { device_bytes: vec![32 * segment_bytes], segment_bytes, ..flash_options(&[]) };
    let tier = Tier::new(24 << 20, &[], StoreOptions { flash: Some(flash), ..StoreOptions::default() });
    let long = |n: u64| pattern(n, 3 << 20);
    let short = |n: u64| {
        set(&tier, &key(n), &pattern(n, 1_000));
        if tier.store().is_short_of_memory() {
            tier.drive();
        }
    };
    (100..20_000).for_each(short);
    for n in 0..24 {
        set(&tier, &key(n), &long(n));
        tier.drive();
    }
    // Long values are evicted, too: they take more memory at once than is kept free.
    let refused = sums(&tier).refused;
    (20_000..60_000).for_each(short);
    assert!(sums(&tier).objects_written > 30_000 && sums(&tier).refused == refused, "{:?}", sums(&tier));
    let found =
        (0..24).filter_map(|n| value(&tier, &key(n)).map(|found| assert!(found == long(n), "item {n}")));
    assert!(found.count() > 8);
}
