//! The flash tier against a map: a read returns the value that was stored last, wherever the item went meanwhile.
#![cfg(not(loom))]

mod common;

use std::collections::{HashMap, HashSet};

use common::flash::{SEGMENT_BYTES, Tier, flash_options};
use fabcache_store::{Change, Expiry, FlashOptions, NewValue, Put, StoreOptions, Value, Write};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

/// A new key may replace another one's item on flash, unread: once in about a hundred thousand.
const LOST_MAX: usize = 3;

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn put(tier: &Tier, n: u64, value: &[u8]) {
    let key = key(n);
    let put = Put { key: &key, value, flags: n as u32, expiry: Expiry::NEVER };
    let probe = tier.handle.probe_for_write(&key);
    tier.handle.put(&put, &probe).expect("it fits");
    if tier.store().is_short_of_memory() || n.is_multiple_of(64) {
        tier.drive();
    }
}

#[test]
fn more_items_than_memory_holds_are_all_read() {
    let tier = Tier::new(4 << 20, &[24, 24], StoreOptions::default());
    let value = |n: u64| pattern(n, 100 + (n % 7 * 150) as usize);
    let items = 12_000;
    (0..items).for_each(|n| put(&tier, n, &value(n)));
    let mut lost = 0;
    for n in 0..items {
        match tier.get(&key(n)) {
            Some((info, found)) => assert!(found == value(n) && info.flags == n as u32, "item {n}"),
            None => lost += 1,
        }
    }
    assert!(lost <= LOST_MAX, "{lost} items are lost");
    let sums = tier.store().flash_sums().expect("there is a tier");
    assert!(
        sums.objects_written > 5_000
            && sums.objects_evicted + sums.refused <= LOST_MAX as u64
            && sums.bad_pages == 0,
        "{sums:?}"
    );
    let amplification = sums.device_bytes_written as f64 / sums.bytes_written as f64;
    assert!(amplification < 1.1, "{amplification}: {sums:?}");
    assert!(tier.store().sums().evictions <= LOST_MAX as u64);
}

#[test]
fn unchanged_items_return_without_being_written() {
    let tier = Tier::new(4 << 20, &[48], StoreOptions::default());
    let items = 10_000;
    let mut lost = HashSet::new();
    (0..items).for_each(|n| put(&tier, n, &pattern(n, 500)));
    for _ in 0..6 {
        // Twice in a row, so that the second time brings an item on flash to memory.
        for n in (0..items).flat_map(|n| [n, n]) {
            match tier.get(&key(n)) {
                Some((_, found)) => assert_eq!(found, pattern(n, 500), "item {n}"),
                None => _ = lost.insert(n),
            }
            tier.drive();
        }
    }
    assert!(lost.len() <= LOST_MAX, "{lost:?} are lost");
    let sums = tier.store().flash_sums().expect("there is a tier");
    assert!(sums.recached > 1_000 && sums.returned > 1_000, "{sums:?}");
    assert!(sums.objects_written < 2 * items, "{sums:?}");
}

#[test]
fn reads_evict_nothing_while_devices_are_slow() {
    for len in [500, 300_000] {
        let tier = Tier::new(4 << 20, &[48], StoreOptions::default());
        let items = 24_000_000 / len as u64;
        (0..items).for_each(|n| put(&tier, n, &pattern(n, len)));
        tier.drive();
        let evictions = tier.store().sums().evictions;
        for n in (0..items).flat_map(|n| [n, n]) {
            // No write ends meanwhile.
            tier.get(&key(n));
        }
        let sums = tier.store().flash_sums().expect("there is a tier");
        assert!(sums.recached > 0, "{sums:?}");
        assert_eq!(tier.store().sums().evictions, evictions, "{sums:?}");
    }
}

/// One random operation sequence, with the options of the store.
fn run(seed: u64, options: StoreOptions, flash: &[u64], value_max: usize, is_complete: bool) {
    let evicts = options.evict;
    let tier = Tier::new(2 << 20, flash, options);
    let mut random = SplitMix64::new(seed);
    let mut known: HashMap<u64, (Vec<u8>, u32)> = HashMap::new();
    let mut version = seed << 32;
    let keys = 3_000;
    let mut lost = 0;
    for step in 0..40_000u32 {
        let n = random.below(keys) as u64;
        let len = if random.below(50) == 0 { random.below(value_max) } else { random.below(400) };
        version += 1;
        match random.below(20) {
            0..=6 => {
                let value = pattern(version, len);
                let name = key(n);
                let put = Put { key: &name, value: &value, flags: 7, expiry: Expiry::NEVER };
                let probe = tier.handle.probe_for_write(&name);
                match tier.handle.put(&put, &probe) {
                    Ok(_) => _ = known.insert(n, (value, 7)),
                    Err(why) if evicts => panic!("step {step}: {len} bytes, {why}"),
                    Err(_) => {
                        // Unchanged, or to be read first.
                        let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
                        let write = Write { flags: 7, ..write };
                        if tier.mutate(&key(n), |_| (Change::Write(write), ())).is_ok() {
                            known.insert(n, (value, 7));
                        }
                    }
                }
            }
            7 => {
                let existed = tier.mutate(&key(n), |existing| (Change::Remove, existing.info.is_ok()));
                let (existed, _) = existed.expect("removing needs no memory");
                assert!(!existed || known.contains_key(&n), "step {step}: {n} was deleted");
                known.remove(&n);
            }
            8 | 9 => {
                let part = pattern(version, len % 100);
                let done = tier.mutate(&key(n), |existing| match existing.info {
                    Ok(info) => {
                        let value = NewValue::Appended(Value::Bytes(&part));
                        let write = Write { flags: info.flags, same_item: true, ..Write::plain(value) };
                        (Change::Write(write), true)
                    }
                    Err(_) => (Change::Keep, false),
                });
                match done {
                    Ok((true, _)) => known.get_mut(&n).expect("it exists").0.extend_from_slice(&part),
                    Ok((false, _)) => lost += usize::from(known.remove(&n).is_some()),
                    Err(_) => assert!(!evicts, "something can be evicted"),
                }
            }
            10 => {
                let done = tier.mutate(&key(n), |existing| match existing.info {
                    Ok(info) => {
                        let write =
                            Write { flags: info.flags + 1, same_item: true, ..Write::plain(NewValue::Same) };
                        (Change::Write(write), true)
                    }
                    Err(_) => (Change::Keep, false),
                });
                if let Ok((true, _)) = done {
                    known.get_mut(&n).expect("it exists").1 += 1;
                }
            }
            11 => tier.drive(),
            12 if random.below(2_000) == 0 => {
                tier.handle.flush(Expiry::AT_ONCE);
                known.clear();
            }
            13 => tier.handle.maintain(),
            _ => match (tier.get(&key(n)), known.get(&n)) {
                (Some((info, found)), Some((value, flags))) => {
                    assert!(&found == value && info.flags == *flags, "step {step}: {n} is another value");
                }
                (Some(_), None) => panic!("step {step}: {n} was deleted or never stored"),
                (None, _) => lost += usize::from(known.remove(&n).is_some()),
            },
        }
        if tier.store().is_short_of_memory() {
            tier.drive();
        }
    }
    let lost_max = if is_complete && evicts { LOST_MAX } else { 0 };
    assert!(!is_complete || lost <= lost_max, "{lost} items are lost, {:?}", tier.store().flash_sums());
}

#[test]
fn random_operations_lose_nothing_while_flash_has_room() {
    for seed in 1..4 {
        // Longer values take more memory at once than is kept free.
        run(seed, StoreOptions::default(), &[64], 8_000, true);
    }
}

#[test]
fn random_operations_are_never_wrong_when_flash_is_full() {
    for seed in 10..14 {
        run(seed, StoreOptions::default(), &[3, 2], 60_000, false);
    }
}

#[test]
fn without_eviction_nothing_is_lost() {
    for seed in 20..23 {
        let options = StoreOptions { evict: false, ..StoreOptions::default() };
        run(seed, options, &[8], 20_000, true);
    }
}

#[test]
fn budget_limits_what_is_written() {
    let flash = FlashOptions { write_bytes_per_second: Some(1 << 20), ..flash_options(&[8]) };
    let tier = Tier::new(2 << 20, &[], StoreOptions { flash: Some(flash), ..StoreOptions::default() });
    (0..40_000).for_each(|n| put(&tier, n, &pattern(n, 500)));
    let sums = tier.store().flash_sums().expect("there is a tier");
    // All of flash once, and of what seems to be asked for again as much as may be overdrawn: the clock stands still.
    let most = 8 * SEGMENT_BYTES + (1 << 20) + SEGMENT_BYTES;
    assert!(sums.refused > 20_000 && sums.device_bytes_written < most, "{sums:?}");
}

#[test]
fn values_longer_than_a_flash_segment_go_on_in_the_next_ones() {
    let tier = Tier::new(8 << 20, &[60, 60], StoreOptions::default());
    let mut random = SplitMix64::new(7);
    let mut known: HashMap<u64, (u64, usize)> = HashMap::new();
    let mut read = [0; 2];
    for step in 0..1_500u64 {
        let n = random.below(30) as u64;
        if random.below(3) == 0 {
            let len = match random.below(3) {
                0 => random.below(3 * SEGMENT_BYTES as usize),
                1 => random.below(SEGMENT_BYTES as usize),
                _ => random.below(20_000),
            };
            let value = pattern(step, len);
            let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
            tier.mutate(&key(n), |_| (Change::Write(write), ())).expect("something can be evicted");
            known.insert(n, (step, len));
            tier.drive();
        } else if let Some((version, len)) = known.get(&n) {
            match tier.get(&key(n)) {
                Some((_, found)) => {
                    assert!(found == pattern(*version, *len), "step {step}: {n} of {len} bytes")
                }
                None => _ = known.remove(&n),
            }
            read[usize::from(known.contains_key(&n))] += 1;
        }
        if step % 200 == 199 {
            assert!(tier.store().flash_sums().is_some_and(|sums| sums.bad_pages + sums.read_errors == 0));
        }
    }
    assert!(read[1] > 700 && read[0] < 60, "{read:?} {:?}", tier.store().flash_sums());
}
