//! The flash tier on devices that fail, stall or return other bytes, and items of every kind there and back: an item is lost
//! at most, and never wrong.
#![cfg(not(loom))]

mod common;

use std::collections::HashMap;

use common::flash::{Fault, Tier, flash_options, no_fault};
use fabcache_store::{
    Change, Expiry, Fetched, FlashOptions, FlashRead, FlashState, FlashSums, FlashWrite, NewValue,
    PageBuffer, Put, StoreOptions, Value, Write,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

/// Of some thousand items, so many may be lost: a new key may replace another one unread.
const LOST_MAX: u64 = 10;

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
    let mut seen = HashMap::new();
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
    let refused = sums(&tier).refused - refused;
    assert!(sums(&tier).objects_written > 30_000 && refused <= LOST_MAX, "{:?}", sums(&tier));
    let found =
        (0..24).filter_map(|n| value(&tier, &key(n)).map(|found| assert!(found == long(n), "item {n}")));
    assert!(found.count() > 8);
}

/// Writes that a device has taken and not ended.
type Held = Vec<(FlashWrite, PageBuffer)>;

/// Takes the writes that are due.
fn hold(tier: &Tier, held: &mut Held) {
    while let Some(mut write) = tier.store().take_flash_write() {
        let buffer = write.take_buffer();
        held.push((write, buffer));
    }
}

/// Ends one of the writes.
fn end(tier: &Tier, (write, buffer): (FlashWrite, PageBuffer), succeeds: bool) {
    let (device, at, len) = (write.device(), write.offset() as usize, write.byte_len());
    if succeeds {
        tier.devices.borrow_mut()[device][at..at + len].copy_from_slice(&buffer[..len]);
    }
    tier.handle.finish_flash_write(write, buffer, succeeds);
}

/// Stores items, more than memory holds; the device does what `drive` says.
fn fill(tier: &Tier, items: u64, mut drive: impl FnMut()) {
    for n in 0..items {
        set(tier, &key(n), &pattern(n, 400));
        if tier.store().is_short_of_memory() || n % 64 == 0 {
            drive();
        }
    }
}

/// Returns how many of the items are found, each with its value.
fn found(tier: &Tier, items: u64) -> u64 {
    let is_found =
        |n: &u64| value(tier, &key(*n)).map(|found| assert!(found == pattern(*n, 400), "item {n}"));
    (0..items).filter(|n| is_found(n).is_some()).count() as u64
}

#[test]
fn failing_writes_leave_a_store_in_memory() {
    let tier = Tier::new(2 << 20, &[32, 32], StoreOptions::default());
    let items = 10_000;
    fill(&tier, items, || tier.write_all(|_, _| false));
    let failed = sums(&tier);
    assert!(failed.write_errors > 0 && failed.refused > 1_000 && failed.objects_used == 0, "{failed:?}");
    assert_eq!(failed.state, FlashState::Failing);
    let in_memory = found(&tier, items);
    assert!(in_memory > 2_000, "{in_memory} in memory");
    // After a while the devices are tried again.
    tier.clock.advance(11);
    fill(&tier, items, || tier.drive());
    let working = sums(&tier);
    assert!(working.objects_used > 5_000 && working.state == FlashState::Working, "{working:?}");
    assert!(found(&tier, items) > items - items / 10);
}

#[test]
fn items_whose_writes_fail_are_not_read_from_flash() {
    for seed in 0..3 {
        let tier = Tier::new(2 << 20, &[16, 16], StoreOptions::default());
        let items = 10_000;
        let mut random = SplitMix64::new(seed);
        fill(&tier, items, || {
            tier.write_all(|_, _| random.below(3) > 0);
            tier.clock.advance(2);
        });
        let of_some = sums(&tier);
        assert!(of_some.write_errors > 0 && of_some.objects_used > 500, "{of_some:?}");
        found(&tier, items);
        let read = sums(&tier);
        assert_eq!(read.bad_pages, 0, "no slot leads to a failed write");
        // A key that was evicted may match the slot of another one.
        assert!(read.mismatches <= 3, "{read:?}");
    }
}

#[test]
fn other_device_is_used_beside_a_failing_one() {
    let tier = Tier::new(2 << 20, &[32, 32], StoreOptions::default());
    let items = 20_000;
    fill(&tier, items, || {
        tier.write_all(|device, _| device == 1);
        tier.clock.advance(1);
    });
    let sums_then = sums(&tier);
    assert!(sums_then.write_errors > 5 && sums_then.objects_used > 5_000, "{sums_then:?}");
    assert!(found(&tier, items) > sums_then.objects_used);
    assert_eq!(sums(&tier).bad_pages, 0);
}

/// Stores an item; reads flash first if the slot of another item matches, as without eviction a write has to.
fn store(tier: &Tier, n: u64) {
    let value = pattern(n, 400);
    let write = || Write::plain(NewValue::Is(Value::Bytes(&value)));
    tier.mutate(&key(n), |_| (Change::Write(write()), ())).expect("there is room");
}

/// Evicted items go to the devices that are written to, until their segments are reused; nothing waits for a pause to end.
#[test]
fn other_device_takes_all_items_while_one_is_lost_or_fails() {
    for (evict, is_lost) in [(true, true), (true, false), (false, true), (false, false)] {
        let tier = Tier::new(2 << 20, &[32, 32], StoreOptions { evict, ..StoreOptions::default() });
        // 2.6 times memory; both devices are in use before.
        let (before, items) = (6_000, 12_000);
        for n in 0..items {
            if n == before && is_lost {
                tier.store().set_flash_device_lost(0, true);
            }
            store(&tier, n);
            tier.write_all(|device, _| n < before || device == 1);
            tier.handle.maintain_flash(|| {});
        }
        let sums = sums(&tier);
        assert_eq!(sums.refused, 0, "evicts: {evict}, lost: {is_lost}: {sums:?}");
        let missing = items - found(&tier, items);
        // Those of the buffers that were begun before.
        let lost_max = if evict { 2 * 1_200 } else { 0 };
        assert!(missing <= lost_max, "evicts: {evict}, lost: {is_lost}: {missing} are missing, {sums:?}");
        if is_lost {
            let errors = sums.write_errors;
            tier.store().set_flash_device_lost(0, false);
            let opened = || {
                let segments = tier.store().flash_segments(0, 32);
                segments.iter().map(|segment| segment.sequence).max()
            };
            let last = opened();
            for n in items..items + 2_000 {
                store(&tier, n);
                tier.drive();
            }
            assert!(opened() > last, "the device is written to again");
            assert_eq!(self::sums(&tier).write_errors, errors);
        }
    }
}

#[test]
fn stalled_device_leaves_a_store_in_memory() {
    for devices in [&[16][..], &[16, 16]] {
        let tier = Tier::new(2 << 20, devices, StoreOptions::default());
        let mut held = Held::new();
        set(&tier, b"hot", b"value");
        for n in 0..20_000 {
            set(&tier, &key(n), &pattern(n, 400));
            assert_eq!(value(&tier, b"hot").as_deref(), Some(&b"value"[..]), "in memory, and read often");
            // Of two devices the second one works.
            hold(&tier, &mut held);
            for at in (0..held.len()).rev().filter(|_| devices.len() == 2) {
                if held[at].0.device() == 1 {
                    end(&tier, held.swap_remove(at), true);
                }
            }
            // Some time, as many sets take at least.
            tier.clock.advance_ms(u64::from(n % 4 == 0));
        }
        let stalled = sums(&tier);
        assert!(!tier.store().is_short_of_memory() && stalled.refused > 10_000, "{stalled:?}");
        assert!(stalled.io_queue > 0 && stalled.objects_used <= 1_000, "{stalled:?}");
        let in_memory = found(&tier, 20_000);
        assert!(in_memory > 2_000, "{in_memory} in memory");
        // The writes end after all.
        held.into_iter().for_each(|write| end(&tier, write, true));
        fill(&tier, 10_000, || tier.drive());
        assert!(sums(&tier).objects_used > 5_000, "{:?}", sums(&tier));
        assert!(found(&tier, 10_000) > 9_000);
    }
}

#[test]
fn writers_wait_a_second_for_a_device_and_five_without_eviction() {
    for (evict, ms) in [(true, 1_000), (false, 5_000)] {
        let tier = Tier::new(2 << 20, &[16], StoreOptions { evict, ..StoreOptions::default() });
        let mut held = Held::new();
        let mut n = 0;
        while !tier.store().is_short_of_memory() {
            set(&tier, &key(n), &pattern(n, 400));
            hold(&tier, &mut held);
            n += 1;
        }
        tier.clock.advance_ms(ms);
        assert!(tier.store().is_short_of_memory(), "the device may be slow");
        tier.clock.advance_ms(1);
        assert!(!tier.store().is_short_of_memory(), "it is too slow to wait for");
        while let Some(write) = held.pop() {
            end(&tier, write, true);
            hold(&tier, &mut held);
        }
        assert_eq!((sums(&tier).io_queue, sums(&tier).refused), (0, 0));
    }
}

/// Reads items with faulty reads; each is right or a miss. Returns how many were found.
fn found_with(tier: &Tier, items: std::ops::Range<u64>, fault: Fault) -> u64 {
    _ = tier.fault.replace(fault);
    let is_found = |n: &u64| value(tier, &key(*n)).map(|found| assert!(found == pattern(*n, 60), "item {n}"));
    let found = items.filter(|n| is_found(n).is_some()).count() as u64;
    _ = tier.fault.replace(no_fault());
    found
}

/// Stores short items.
fn set_range(tier: &Tier, items: std::ops::Range<u64>) {
    for n in items {
        set(tier, &key(n), &pattern(n, 60));
        if tier.store().is_short_of_memory() || n % 64 == 0 {
            tier.drive();
        }
    }
}

/// A tier with so many short items on flash, and others.
fn tier_of(items: u64) -> Tier {
    let segments = 24 + items / 2_000;
    let tier = Tier::new(6 << 20, &[segments, segments], StoreOptions::default());
    set_range(&tier, 0..items + 80_000);
    let lost = (0..items).filter(|n| tier.handle.read_flash(&key(*n)).is_none()).count() as u64;
    assert!(lost <= items / 2_000, "{lost} of {items}, {:?}", sums(&tier));
    tier
}

#[test]
fn faulty_reads_are_misses_and_counted() {
    let tier = tier_of(60_000);
    let error = || std::io::Error::other("a fault");
    let mut random = SplitMix64::new(1);
    let mut other = SplitMix64::new(2);
    let earlier = tier.devices.borrow().clone();
    let faults: [(&str, Fault); 7] = [
        ("error", Box::new(move |_, _, _| Err(error()))),
        ("short", Box::new(|_, _, bytes| Ok(bytes.len() - 1))),
        ("empty", Box::new(|_, _, _| Ok(0))),
        (
            "zeros",
            Box::new(|_, _, bytes| {
                bytes.fill(0);
                Ok(bytes.len())
            }),
        ),
        (
            "random",
            Box::new(move |_, _, bytes| {
                bytes.fill_with(|| random.next_u64() as u8);
                Ok(bytes.len())
            }),
        ),
        (
            "other page",
            Box::new(move |devices, (device, offset), bytes| {
                let pages = devices[device].len() / 4096;
                let at =
                    (offset + 4096 * (1 + other.below(pages - 1))) % (devices[device].len() - bytes.len());
                bytes.copy_from_slice(&devices[device][at..at + bytes.len()]);
                Ok(bytes.len())
            }),
        ),
        (
            "other device",
            Box::new(|devices, (device, offset), bytes| {
                bytes.copy_from_slice(&devices[1 - device][offset..offset + bytes.len()]);
                Ok(bytes.len())
            }),
        ),
    ];
    for (i, (name, fault)) in (0..).zip(faults) {
        let before = sums(&tier);
        let range = i * 6_000..(i + 1) * 6_000;
        let found = found_with(&tier, range, fault);
        let since = sums(&tier).since(&before);
        let lost = since.bad_pages + since.read_errors;
        assert!(lost > 1_000 && found + lost + LOST_MAX >= 6_000, "{name}: {found} found, {since:?}");
        assert_eq!(since.read_errors > 0, i < 3, "{name}: {since:?}");
    }
    let found = found_with(&tier, 42_000..60_000, no_fault());
    assert!(found + LOST_MAX >= 18_000, "{found} found");
    // Segments are used again, and a device returns what was there before.
    set_range(&tier, 150_000..450_000);
    let before = sums(&tier);
    let fault: Fault = Box::new(move |_, (device, offset), bytes| {
        bytes.copy_from_slice(&earlier[device][offset..offset + bytes.len()]);
        Ok(bytes.len())
    });
    let found = found_with(&tier, 350_000..400_000, fault);
    let since = sums(&tier).since(&before);
    assert!(before.pages_evicted > 32 && since.bad_pages > 30_000, "{found} found, {since:?}");
}

/// `FABCACHE_FLIPS=100000` flips so many.
#[test]
fn flipped_bits_are_misses() {
    let count = std::env::var("FABCACHE_FLIPS").map_or(30_000, |count| count.parse().expect("a number"));
    let tier = tier_of(count);
    let mut random = SplitMix64::new(count);
    let flip: Fault = Box::new(move |_, _, bytes| {
        let bit = random.below(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        Ok(bytes.len())
    });
    let found = found_with(&tier, 0..count, flip);
    let sums = sums(&tier);
    assert!(
        sums.bad_pages > count / 2 && found + sums.bad_pages + count / 2_000 >= count,
        "{found} found, {sums:?}"
    );
}

/// What is known of a key.
struct Known {
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
}

/// Random operations on a device that ends writes late, in any order, and some of them with an error; a part of the reads is
/// faulty, or ends late.
fn run(seed: u64, segments: &[u64], faults: usize) {
    let tier =
        Tier::new(2 << 20, segments, StoreOptions { cas: seed.is_multiple_of(2), ..StoreOptions::default() });
    let mut random = SplitMix64::new(seed);
    let mut bytes = SplitMix64::new(seed);
    _ = tier.fault.replace(Box::new(move |_, _, read| {
        if bytes.below(1_000) < faults {
            let bit = bytes.below(read.len() * 8);
            read[bit / 8] ^= 1 << (bit % 8);
        }
        if bytes.below(1_000) < faults { Err(std::io::Error::other("a fault")) } else { Ok(read.len()) }
    }));
    let mut known: HashMap<u64, Known> = HashMap::new();
    let mut held = Held::new();
    let mut pending: Vec<(u64, Box<FlashRead>, Vec<Vec<u8>>)> = Vec::new();
    let (mut hits, mut promoted) = (0, 0);
    for step in 0..50_000u64 {
        let n = random.below(8_000) as u64;
        let name = key(n);
        let now = tier.store().now();
        known.retain(|_, known| {
            known.expiry == Expiry::NEVER || known.expiry.second() > now || step % 64 != 0
        });
        let is_there = |known: &Known| known.expiry == Expiry::NEVER || known.expiry.second() > now;
        let len = if random.below(60) == 0 { random.below(50_000) } else { random.below(1_000) };
        let mut changed = None;
        match random.below(24) {
            0..=7 => {
                let expiry = [0, 0, 3, 60][random.below(4)];
                let expiry = Expiry::from_client(expiry, now, tier.store().clock_origin());
                let value = pattern(step, len);
                let put = Put { key: &name, value: &value, flags: n as u32, expiry };
                let probe = tier.handle.probe_for_write(&name);
                tier.handle.put(&put, &probe).expect("something may be evicted");
                changed = Some(Known { value, flags: n as u32, expiry });
            }
            8 | 9 => {
                let part = pattern(step, len % 90);
                let done = tier.mutate(&name, |existing| match existing.info {
                    Ok(info) => {
                        let value = NewValue::Appended(Value::Bytes(&part));
                        let write = Write { flags: info.flags, expiry: info.expiry, ..Write::plain(value) };
                        (Change::Write(write), true)
                    }
                    Err(_) => (Change::Keep, false),
                });
                match (done.expect("something may be evicted").0, known.remove(&n).filter(is_there)) {
                    (true, Some(old)) => {
                        changed = Some(Known { value: [&old.value[..], &part].concat(), ..old });
                    }
                    (existed, _) => assert!(!existed, "step {step}: {n} was deleted or never stored"),
                }
            }
            10 => {
                let done = tier.mutate(&name, |existing| (Change::Remove, existing.info.is_ok()));
                let existed = done.expect("removing needs no memory").0;
                assert!(!existed || known.get(&n).is_some_and(is_there), "step {step}: {n}");
                known.remove(&n);
            }
            11 => {
                // As gat does.
                let done = tier.mutate(&name, |existing| match existing.info {
                    Ok(info) => {
                        let write =
                            Write { flags: info.flags, same_item: true, ..Write::plain(NewValue::Same) };
                        (Change::Write(Write { cas: Some(info.cas), ..write }), true)
                    }
                    Err(_) => (Change::Keep, false),
                });
                match (done.expect("something may be evicted").0, known.remove(&n).filter(is_there)) {
                    (true, Some(old)) => changed = Some(Known { expiry: Expiry::NEVER, ..old }),
                    (existed, _) => assert!(!existed, "step {step}: {n} was deleted or never stored"),
                }
            }
            12 => hold(&tier, &mut held),
            13 | 14 if !held.is_empty() => {
                let write = held.swap_remove(random.below(held.len()));
                let fails = random.below(1_000) < faults;
                end(&tier, write, !fails);
            }
            15 => {
                tier.handle.maintain_flash(|| {});
                tier.clock.advance_ms(random.below(200) as u64);
                tier.handle.maintain();
            }
            16 if random.below(400) == 0 => {
                tier.handle.flush(Expiry::AT_ONCE);
                known.clear();
                pending.clear();
            }
            17 => {
                if let (Some(read), Some(known)) = (tier.handle.read_flash(&name), known.get(&n)) {
                    pending.push((n, read, vec![known.value.clone()]));
                }
            }
            18 if !pending.is_empty() => {
                let (n, read, values) = pending.swap_remove(random.below(pending.len()));
                if let Some(Fetched::Item(item)) = tier.finish(read, &key(n)) {
                    assert!(
                        values.iter().any(|value| value[..] == *item.value()),
                        "step {step}: {n} was read"
                    );
                    tier.handle.promote(item);
                    promoted += 1;
                }
            }
            _ => match (tier.get(&name), known.get(&n).filter(|known| is_there(known))) {
                (Some((info, found)), Some(known)) => {
                    assert!(found == known.value && info.flags == known.flags, "step {step}: {n}");
                    assert_eq!(info.expiry, known.expiry, "step {step}: {n}");
                    hits += 1;
                }
                (Some(_), None) => panic!("step {step}: {n} was deleted, expired or never stored"),
                (None, _) => _ = known.remove(&n),
            },
        }
        if let Some(changed) = changed {
            // A read that was begun before may find this one, if it goes on to another slot.
            let reads = pending.iter_mut().filter(|read| read.0 == n);
            reads.for_each(|read| read.2.push(changed.value.clone()));
            known.insert(n, changed);
        }
    }
    let sums = sums(&tier);
    assert!(hits > 1_000 && promoted > 0 && sums.objects_written > 100, "{hits} hits, {promoted}, {sums:?}");
    if faults == 0 {
        assert_eq!((sums.bad_pages, sums.read_errors, sums.write_errors), (0, 0, 0));
    }
}

#[test]
fn late_devices_never_lead_to_a_wrong_value() {
    (0..2).for_each(|seed| run(seed, &[4, 4], 0));
    (2..4).for_each(|seed| run(seed, &[40, 40], 0));
}

#[test]
fn faulty_devices_never_lead_to_a_wrong_value() {
    (10..12).for_each(|seed| run(seed, &[4, 4], 20));
    (13..16).for_each(|seed| run(seed, &[40, 40], 200));
}

#[test]
fn without_eviction_nothing_is_lost_by_a_device() {
    for stalls in [false, true] {
        let tier = Tier::new(2 << 20, &[16, 16], StoreOptions { evict: false, ..StoreOptions::default() });
        let mut held = Held::new();
        let mut stored = Vec::new();
        let put = |n: u64| {
            let (name, value) = (key(n), pattern(n, 400));
            let probe = tier.handle.probe_for_write(&name);
            let put = Put { key: &name, value: &value, flags: 7, expiry: Expiry::NEVER };
            tier.handle.put(&put, &probe).is_ok()
        };
        for n in 0..10_000 {
            if put(n) {
                stored.push(n);
            }
            match stalls {
                true => hold(&tier, &mut held),
                false => tier.write_all(|_, _| false),
            }
            tier.clock.advance_ms(u64::from(n % 8 == 0));
        }
        assert!(stored.len() > 2_000 && stored.len() < 8_000, "{} are stored", stored.len());
        let found = |n: &u64| value(&tier, &key(*n)) == Some(pattern(*n, 400));
        assert!(stored.iter().all(found));
        // The devices work again.
        held.into_iter().for_each(|write| end(&tier, write, true));
        tier.clock.advance(11);
        tier.drive();
        for n in 20_000..24_000 {
            if put(n) {
                stored.push(n);
            }
            tier.drive();
            tier.clock.advance_ms(10);
            tier.handle.maintain();
        }
        let newer = stored.iter().filter(|n| **n >= 20_000).count();
        assert!(newer > 3_900, "{newer} are stored since, {:?}", sums(&tier));
        let is_lost = |n: &&u64| value(&tier, &key(**n)) != Some(pattern(**n, 400));
        let lost = stored.iter().filter(is_lost).count();
        assert!(lost == 0, "{lost} are lost, {:?}", sums(&tier));
    }
}
