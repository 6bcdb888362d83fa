//! Without eviction, overwritten and deleted items on flash make room for others.
#![cfg(not(loom))]

mod common;

use std::collections::HashMap;

use common::flash::{SEGMENT_BYTES, Tier, flash_options};
use fabcache_store::{Change, FlashOptions, FlashSums, NewValue, OutOfMemory, StoreOptions, Value, Write};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn tier(flash: FlashOptions) -> Tier {
    let options = StoreOptions { evict: false, flash: Some(flash), ..StoreOptions::default() };
    Tier::new(2 << 20, &[], options)
}

fn sums(tier: &Tier) -> FlashSums {
    tier.store().flash_sums().expect("there is a tier")
}

/// Stores a value, while flash makes room for it. Returns whether there was room.
fn put(tier: &Tier, n: usize, value: &[u8]) -> bool {
    for _ in 0..40 {
        let write = Write::plain(NewValue::Is(Value::Bytes(value)));
        match tier.mutate(&key(n), |_| (Change::Write(write), ())) {
            Ok(_) => return true,
            Err(why) => assert_eq!(why, OutOfMemory::Full),
        }
        tier.drive();
        tier.handle.maintain();
        tier.clock.advance_ms(20);
    }
    false
}

/// Replaces random items, of whose bytes memory and flash can hold `live_percent`. None is lost, and no write is refused.
fn overwrite(segments: &[u64], live_percent: u64, writes: usize, value_max: usize) {
    let tier = tier(flash_options(segments));
    let bytes = (2 << 20) + segments.iter().sum::<u64>() * SEGMENT_BYTES;
    let keys = (bytes * live_percent / 100) as usize / (value_max / 2 + 60);
    let mut random = SplitMix64::new(live_percent);
    let mut versions = HashMap::new();
    let len = |version: u64| 1 + version as usize * 7_919 % value_max;
    for version in 0..writes as u64 {
        // First each once.
        let n = if (version as usize) < keys { version as usize } else { random.below(keys) };
        let is_stored = put(&tier, n, &pattern(version, len(version)));
        assert!(is_stored, "write {version} to {keys} keys, {:?}", sums(&tier));
        versions.insert(n, version);
    }
    for (n, version) in versions {
        let found = tier.get(&key(n)).map(|(_, value)| value);
        assert!(found == Some(pattern(version, len(version))), "key {n}");
    }
    let sums = sums(&tier);
    assert_eq!((sums.objects_evicted, sums.bad_pages, tier.store().sums().evictions), (0, 0, 0));
    assert!(sums.moved > 100, "{sums:?}");
}

#[test]
fn overwritten_items_make_room() {
    overwrite(&[16], 60, 40_000, 800);
    overwrite(&[8, 8], 70, 40_000, 800);
}

#[test]
fn overwritten_long_values_make_room() {
    overwrite(&[40], 50, 4_000, 30_000);
}

#[test]
fn items_change_while_they_are_moved() {
    let tier = tier(flash_options(&[16]));
    let mut random = SplitMix64::new(3);
    let mut known: HashMap<usize, u64> = HashMap::new();
    let mut reads = Vec::new();
    for version in 0..60_000u64 {
        let n = random.below(12_000);
        match random.below(8) {
            0 => {
                let removed = tier.mutate(&key(n), |existing| (Change::Remove, existing.info.is_ok()));
                assert_eq!(removed.expect("it needs no memory").0, known.remove(&n).is_some());
            }
            1 => {
                let found = tier.get(&key(n)).map(|(_, value)| value);
                assert!(found == known.get(&n).map(|version| pattern(*version, 300)), "key {n}");
            }
            // Reads and writes end late, in any order.
            2 => reads.extend(tier.handle.take_maintenance_read()),
            3 if !reads.is_empty() => {
                let (read, what) = reads.swap_remove(random.below(reads.len()));
                reads.extend(tier.finish_for_store(read, what));
            }
            4 if random.below(4) == 0 => tier.write_all(|_, _| true),
            4 if random.below(10) == 0 => tier.handle.maintain_flash(|| {}),
            _ => {
                let value = pattern(version, 300);
                let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
                let mut stored = tier.mutate(&key(n), |_| (Change::Write(write), ()));
                if stored.is_err() {
                    tier.write_all(|_, _| true);
                    stored = tier.mutate(&key(n), |_| (Change::Write(write), ()));
                }
                if stored.is_ok() {
                    known.insert(n, version);
                }
            }
        }
    }
    for (n, version) in known {
        let found = tier.get(&key(n)).map(|(_, value)| value);
        assert!(found == Some(pattern(version, 300)), "key {n}");
    }
    let sums = sums(&tier);
    assert!(sums.objects_evicted == 0 && sums.moved > 500, "{sums:?}");
}
