//! Without eviction, overwritten and deleted items on flash make room for others.
#![cfg(not(loom))]

mod common;

use std::collections::HashMap;
use std::io;

use common::flash::{SEGMENT_BYTES, Tier, flash_options, no_fault};
use fabcache_store::{
    Change, Detail, Expiry, Fetched, FlashOptions, FlashSums, Get, ItemInfo, NewValue, OutOfMemory,
    StoreOptions, Value, Write,
};
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
    let len = |version: u64| 1 + version as usize * 7919 % value_max;
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
                let read = reads.swap_remove(random.below(reads.len()));
                reads.extend(tier.finish_for_store(read));
            }
            4 if random.below(4) == 0 => tier.write_all(|_, _| true),
            4 if random.below(10) == 0 => _ = tier.handle.maintain_flash(|| {}),
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

/// Writers that wait for memory reclaim nothing themselves.
#[test]
fn memory_becomes_free_when_flash_was_compacted() {
    let tier = tier(flash_options(&[16]));
    let value = pattern(1, 300);
    let mut stored = 0;
    while put(&tier, stored, &value) {
        stored += 1;
    }
    let write = |n: usize| {
        let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
        tier.mutate(&key(n), |_| (Change::Write(write), ())).is_ok()
    };
    for n in (0..stored).filter(|n| n % 3 == 0) {
        tier.mutate(&key(n), |_| (Change::Remove, ())).expect("it needs no memory");
    }
    let free = || tier.store().usage().segments_free;
    // All that can go without flash.
    while write(stored) {
        stored += 1;
    }
    let before = free();
    (0..200).for_each(|_| tier.drive());
    assert!(
        free() > before && write(stored),
        "{before} segments were free, now {}, {:?}",
        free(),
        sums(&tier)
    );
}

/// Stores items from a number on until one is refused, with a handle that waits, beside threads that do what the store requests,
/// maintain flash after writes, and do nothing from time to time. Returns the number of the refused one.
fn fill_waiting(tier: &Tier, from: usize) -> usize {
    tier.handle.wait_for_flash(true);
    let mut n = from;
    let mut waits = 0;
    loop {
        let value = value(n);
        let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
        match tier.mutate(&key(n), |_| (Change::Write(write), ())) {
            Ok(_) => (n, waits) = (n + 1, 0),
            Err(OutOfMemory::FlashBusy) => {
                waits += 1;
                assert!(waits < 100, "nothing happens, {:?}", sums(tier));
                let written = sums(tier).device_bytes_written;
                tier.write_all(|_, _| true);
                tier.read_for_store();
                let has_written = sums(tier).device_bytes_written > written;
                if has_written || tier.store().is_flash_room_requested() {
                    tier.handle.maintain_flash(|| {});
                }
            }
            Err(why) => {
                assert_eq!((why, tier.store().is_flash_progressing()), (OutOfMemory::Full, false));
                return n;
            }
        }
    }
}

#[test]
fn writers_wait_until_dead_segments_are_retired() {
    let tier = tier(flash_options(&[16]));
    let first = fill_waiting(&tier, 0);
    tier.handle.flush(Expiry::AT_ONCE);
    let stored = fill_waiting(&tier, first) - first;
    assert!(stored > first * 9 / 10, "{stored} of {first}, {:?}", sums(&tier));
    remove(&tier, first..first + stored);
    let stored = fill_waiting(&tier, 0);
    assert!(stored > first * 9 / 10, "{stored} of {first}, {:?}", sums(&tier));
}

#[test]
fn writers_wait_until_segments_are_compacted() {
    let tier = tier(flash_options(&[16]));
    let first = fill_waiting(&tier, 0);
    // Few bytes of a segment are dead: measuring it is followed by a pause.
    remove(&tier, (0..first).filter(|n| n % 30 == 1));
    let from = fill_waiting(&tier, first);
    assert_eq!(sums(&tier).moved, 0);
    remove(&tier, (0..first).filter(|n| n % 3 > 0 && n % 30 != 1));
    let end = fill_waiting(&tier, from);
    assert!(end - from > first / 2, "{} of {first}, {:?}", end - from, sums(&tier));
    check_all(&tier, &(0..first).step_by(3).collect::<Vec<_>>());
    check_all(&tier, &(first..end).collect::<Vec<_>>());
}

#[test]
fn pass_goes_on_without_a_write_once_the_budget_allows() {
    let flash = FlashOptions { write_bytes_per_second: Some(10_000), ..flash_options(&[16]) };
    let tier = tier(flash);
    with_holes(&tier, value);
    tier.handle.maintain_flash(|| {});
    while sums(&tier).moved == 0 {
        let read = tier.handle.take_maintenance_read().expect("a segment is compacted");
        tier.finish_for_store(read);
    }
    tier.clock.advance_ms(1_000);
    assert!(tier.handle.take_maintenance_read().is_some(), "{:?}", sums(&tier));
}

#[test]
fn writers_wait_for_readers_of_dead_segments() {
    let tier = tier(flash_options(&[16]));
    let first = fill_waiting(&tier, 0);
    let readers: Vec<_> = (0..first).filter_map(|n| tier.handle.read_flash(&key(n))).collect();
    tier.handle.flush(Expiry::AT_ONCE);
    let write = Write::plain(NewValue::Is(Value::Bytes(&[1; VALUE_BYTES])));
    let write = |n: usize| tier.mutate(&key(n), |_| (Change::Write(write), ()));
    let refused = (first..).find_map(|n| write(n).err());
    assert_eq!(refused, Some(OutOfMemory::FlashBusy));
    during(&tier, 4_500, || assert!(tier.store().is_flash_progressing()));
    // Those that do not end keep no writer waiting.
    during(&tier, 1_000, || {});
    assert_eq!(write(first * 2).err(), Some(OutOfMemory::Full));
    drop(readers);
    tier.handle.maintain_flash(|| {});
    assert!(fill_waiting(&tier, first * 3) > first * 7 / 2, "{:?}", sums(&tier));
}

/// Writers wait while maintenance goes on, however long it takes.
#[test]
fn long_maintenance_keeps_writers_waiting() {
    let tier = tier(flash_options(&[16]));
    let first = fill_waiting(&tier, 0);
    tier.handle.flush(Expiry::AT_ONCE);
    let write = Write::plain(NewValue::Is(Value::Bytes(&[1; VALUE_BYTES])));
    let mut n = first;
    while !tier.store().is_flash_room_requested() {
        n += usize::from(tier.mutate(&key(n), |_| (Change::Write(write), ())).is_ok());
        tier.write_all(|_, _| true);
    }
    let mut pauses = 0;
    tier.handle.maintain_flash(|| {
        assert!(tier.store().is_flash_progressing(), "after {pauses} pauses");
        tier.clock.advance_ms(6_000);
        pauses += 1;
    });
    assert!(pauses > 1 && !tier.store().is_flash_room_requested(), "{pauses}");
}

const VALUE_BYTES: usize = 300;

fn value(n: usize) -> Vec<u8> {
    pattern(n, VALUE_BYTES)
}

/// Removes items, wherever they are.
fn remove(tier: &Tier, items: impl Iterator<Item = usize>) {
    for n in items {
        tier.mutate(&key(n), |_| (Change::Remove, ())).expect("it needs no memory");
    }
}

/// Fills memory and flash with items, and removes two of three. Returns the numbers of the others.
fn with_holes(tier: &Tier, value: impl Fn(usize) -> Vec<u8>) -> Vec<usize> {
    let mut stored = 0;
    while put(tier, stored, &value(stored)) {
        stored += 1;
    }
    remove(tier, (0..stored).filter(|n| n % 3 > 0));
    (0..stored).step_by(3).collect()
}

fn is_on_flash(tier: &Tier, key: &[u8]) -> bool {
    matches!(tier.handle.get(key, Detail::Basic, false, &mut Vec::new(), |_, _| {}), Get::OnFlash)
}

/// Reads an item without returning it to memory.
fn peek(tier: &Tier, key: &[u8]) -> Option<(ItemInfo, Vec<u8>)> {
    if !is_on_flash(tier, key) {
        return common::get(&tier.handle, key);
    }
    match tier.fetch(key)? {
        Fetched::Item(item) => Some((item.info(tier.store().now()), item.value().to_vec())),
        Fetched::Others(_) => None,
    }
}

fn check_all(tier: &Tier, kept: &[usize]) {
    for n in kept {
        assert!(peek(tier, &key(*n)).map(|(_, value)| value) == Some(value(*n)), "key {n}, {:?}", sums(tier));
    }
}

/// Lets so much time pass in steps, and calls `step` in each.
fn during(tier: &Tier, ms: u64, mut step: impl FnMut()) {
    const STEP_MS: u64 = 100;
    for _ in 0..ms / STEP_MS {
        tier.clock.advance_ms(STEP_MS);
        tier.store().tick();
        tier.handle.maintain_flash(|| {});
        step();
    }
}

/// Returns how long at a time writers would wait while `step` happens every 100 ms, and a client writes.
fn longest_wait_ms(tier: &Tier, ms: u64, mut step: impl FnMut()) -> u64 {
    let (mut wait, mut longest) = (0, 0);
    during(tier, ms, || {
        step();
        let write = Write::plain(NewValue::Is(Value::Bytes(&[1; VALUE_BYTES])));
        let _ = tier.mutate(b"new", |_| (Change::Write(write), ()));
        tier.write_all(|_, _| true);
        wait = if tier.store().is_flash_progressing() { wait + 100 } else { 0 };
        longest = longest.max(wait);
    });
    longest
}

#[test]
fn stuck_compaction_keeps_no_writer_waiting() {
    let tier = tier(flash_options(&[16]));
    let kept = with_holes(&tier, value);
    tier.handle.maintain_flash(|| {});
    assert!(tier.store().is_flash_progressing(), "a segment is compacted");
    let read = tier.handle.take_maintenance_read().expect("it is read");
    let wait = longest_wait_ms(&tier, 30_000, || assert!(tier.handle.take_maintenance_read().is_none()));
    assert!((1..=5_500).contains(&wait), "{wait} ms");
    assert!(!tier.store().is_short_of_memory());
    // The read ends at last.
    tier.finish_for_store(read);
    (0..50).for_each(|_| tier.drive());
    assert!(sums(&tier).compacted > 0, "{:?}", sums(&tier));
    check_all(&tier, &kept);
}

#[test]
fn writers_wait_for_readers_of_an_emptied_segment() {
    let tier = tier(flash_options(&[16]));
    let stored = (0..).take_while(|n| put(&tier, *n, &value(*n))).count();
    // One segment has dead items.
    let read = |n: &usize| tier.handle.read_flash(&key(*n));
    let is_there = |n: &usize| read(n).is_some_and(|read| read.offset() / SEGMENT_BYTES == 3);
    let there: Vec<usize> = (0..stored).filter(is_there).collect();
    let (kept, removed) = there.split_at(there.len() / 3);
    remove(&tier, removed.iter().copied());
    let readers: Vec<_> = kept.iter().map(|n| read(n).expect("it is on flash")).collect();
    let before = sums(&tier);
    let is_compacted = || {
        tier.drive();
        sums(&tier).compacted > before.compacted
    };
    assert!((0..100).any(|_| is_compacted()), "{:?}", sums(&tier));
    during(&tier, 4_500, || {
        assert!(tier.store().is_flash_progressing());
        assert!(tier.handle.maintain_flash(|| {}), "room is short until readers end");
    });
    // A reader that does not end keeps no writer waiting.
    during(&tier, 1_000, || {});
    assert!(!tier.store().is_flash_progressing());
    let free = sums(&tier).pages_free;
    drop(readers);
    assert!(!tier.handle.maintain_flash(|| {}));
    assert!(sums(&tier).pages_free > free, "{free} segments were free, {:?}", sums(&tier));
}

#[test]
fn failing_reads_keep_no_writer_waiting_and_lose_nothing() {
    let tier = tier(flash_options(&[16]));
    let kept = with_holes(&tier, value);
    let (errors, moved) = (sums(&tier).read_errors, sums(&tier).moved);
    *tier.fault.borrow_mut() = Box::new(|_, _, _| Err(io::Error::other("no answer")));
    let wait = longest_wait_ms(&tier, 60_000, || tier.read_for_store());
    assert!(wait <= 5_500, "{wait} ms");
    // Each read is followed by a pause.
    let failed = sums(&tier).read_errors - errors;
    assert!((2..=8).contains(&failed), "{failed} reads failed");
    assert_eq!(sums(&tier).moved, moved);
    *tier.fault.borrow_mut() = no_fault();
    check_all(&tier, &kept);
    during(&tier, 90_000, || tier.drive());
    assert!(sums(&tier).compacted > 0, "{:?}", sums(&tier));
    check_all(&tier, &kept);
}

/// Returns the segments that are read for compaction in so many seconds.
fn segments_read(tier: &Tier, seconds: u64) -> Vec<u64> {
    let mut segments = Vec::new();
    during(tier, seconds * 1_000, || {
        while let Some(read) = tier.handle.take_maintenance_read() {
            segments.push(read.offset() / SEGMENT_BYTES);
            tier.finish_for_store(read);
        }
        tier.write_all(|_, _| true);
    });
    segments
}

#[test]
fn segment_with_a_damaged_page_is_left_for_a_while() {
    let tier = tier(flash_options(&[16]));
    let kept = with_holes(&tier, value);
    tier.handle.maintain_flash(|| {});
    let read = tier.handle.take_maintenance_read().expect("it is read");
    let damaged = read.offset() / SEGMENT_BYTES;
    let moved = sums(&tier).moved;
    *tier.fault.borrow_mut() = Box::new(move |_, (_, offset), bytes| {
        if offset as u64 / SEGMENT_BYTES == damaged && bytes.len() > 3 << 12 {
            bytes[(3 << 12) + 17] ^= 1;
        }
        Ok(bytes.len())
    });
    tier.finish_for_store(read);
    assert_eq!((sums(&tier).bad_pages, sums(&tier).moved), (1, moved));
    let segments = segments_read(&tier, 50);
    assert!(!segments.contains(&damaged) && !segments.is_empty(), "{damaged}: {segments:?}");
    assert_eq!(sums(&tier).bad_pages, 1);
    *tier.fault.borrow_mut() = no_fault();
    check_all(&tier, &kept);
    assert!(sums(&tier).compacted > 0, "{:?}", sums(&tier));
}

/// Only a read of the whole value finds such a page.
#[test]
fn segment_with_a_damaged_page_within_a_value_is_left() {
    const VALUE_BYTES: usize = 20_000;
    let value = |n: usize| pattern(n, VALUE_BYTES);
    let tier = tier(flash_options(&[16]));
    let kept = with_holes(&tier, value);
    tier.handle.maintain_flash(|| {});
    let read = tier.handle.take_maintenance_read().expect("it is read");
    let victim = read.offset() / SEGMENT_BYTES * SEGMENT_BYTES;
    let bytes = tier.devices.borrow()[0][victim as usize..(victim + SEGMENT_BYTES) as usize].to_vec();
    // The second page of a live value there.
    let begins = |n: &usize| {
        let value = value(*n);
        bytes.windows(64).position(|window| window == &value[..64])
    };
    let live = kept.iter().find_map(begins).expect("a live item is there");
    let (damaged, before) = (victim as usize + (live & !4_095) + 2 * 4_096, sums(&tier));
    *tier.fault.borrow_mut() = Box::new(move |_, (_, offset), bytes| {
        if let Some(byte) = damaged.checked_sub(offset).and_then(|at| bytes.get_mut(at + 99)) {
            *byte ^= 1;
        }
        Ok(bytes.len())
    });
    tier.finish_for_store(read);
    let after = sums(&tier);
    assert_eq!((after.bad_pages, after.moved), (before.bad_pages + 1, before.moved));
    let segments = segments_read(&tier, 50);
    assert!(!segments.contains(&(victim / SEGMENT_BYTES)) && !segments.is_empty(), "{segments:?}");
    *tier.fault.borrow_mut() = no_fault();
    kept.iter().for_each(|n| assert!(peek(&tier, &key(*n)).map(|(_, found)| found) == Some(value(*n))));
}

#[test]
fn segments_are_read_by_many_pages() {
    let tier = tier(flash_options(&[16]));
    with_holes(&tier, value);
    let compacted = sums(&tier).compacted;
    let segments = segments_read(&tier, 20);
    let compacted = (sums(&tier).compacted - compacted) as usize;
    assert!(compacted > 0 && segments.len() <= 3 * compacted + 3, "{compacted}: {segments:?}");
}

/// Compaction keeps to the write limit, and fills pages though memory is short and writes are taken after each item.
#[test]
fn compaction_keeps_to_the_write_limit_and_fills_pages() {
    const RATE: u64 = 4_000;
    const SHORT: usize = 60;
    let tier = tier(FlashOptions { write_bytes_per_second: Some(RATE), ..flash_options(&[16]) });
    let short = |n: usize| pattern(n, SHORT);
    with_holes(&tier, short);
    // The last segments that were never written are not limited.
    during(&tier, 5_000, || tier.drive());
    let before = sums(&tier);
    let mut last = before.bytes_moved;
    during(&tier, 20_000, || {
        tier.drive();
        // Ten seconds may be saved up, and nothing is written in advance.
        let moved = sums(&tier).bytes_moved - last;
        assert!(moved < RATE * 11, "{moved} bytes at once");
        last += moved;
    });
    let after = sums(&tier);
    let moved = after.bytes_moved - before.bytes_moved + after.bytes_written - before.bytes_written;
    assert!((RATE * 15..=RATE * 31).contains(&moved), "{moved} bytes in 20 seconds");
    let written = after.device_bytes_written - before.device_bytes_written;
    assert!(written < moved * 3 / 2 + (128 << 12), "{written} for {moved}");
}

#[test]
fn compaction_that_waits_for_the_write_limit_keeps_no_writer_waiting() {
    let tier = tier(FlashOptions { write_bytes_per_second: Some(5), ..flash_options(&[16]) });
    let kept = with_holes(&tier, value);
    let moved = sums(&tier).moved;
    let wait = longest_wait_ms(&tier, 60_000, || tier.read_for_store());
    assert!(wait <= 5_500 && sums(&tier).moved > moved, "{wait} ms, {:?}", sums(&tier));
    check_all(&tier, &kept);
}

#[test]
fn item_longer_than_a_segment_stays_and_blocks_nothing() {
    let tier = tier(flash_options(&[24]));
    let long = pattern(7, 600_000);
    assert!(put_named(&tier, b"long", &long));
    let kept = with_holes(&tier, value);
    assert!(is_on_flash(&tier, b"long"));
    let compacted = sums(&tier).compacted;
    let mut more = 0;
    while more < kept.len() && put(&tier, 1_000_000 + more, &value(more)) {
        more += 1;
    }
    assert!(more > kept.len() / 2, "{more} of {}, {:?}", kept.len(), sums(&tier));
    assert!(sums(&tier).compacted > compacted + 5, "{:?}", sums(&tier));
    assert!(peek(&tier, b"long").map(|(_, value)| value) == Some(long));
    check_all(&tier, &kept);
}

fn put_named(tier: &Tier, key: &[u8], value: &[u8]) -> bool {
    let write = Write::plain(NewValue::Is(Value::Bytes(value)));
    tier.mutate(key, |_| (Change::Write(write), ())).is_ok()
}

#[test]
fn items_that_are_flushed_while_they_are_moved_are_gone() {
    // Before an item is appended to the log, and after.
    for is_appended in [false, true] {
        let tier = tier(flash_options(&[16]));
        let kept = with_holes(&tier, value);
        tier.handle.maintain_flash(|| {});
        let read = tier.handle.take_maintenance_read().expect("it is measured");
        tier.finish_for_store(read);
        let read = tier.handle.take_maintenance_read().expect("it is moved");
        let moved = sums(&tier).moved;
        if is_appended {
            tier.finish_for_store(read);
            tier.handle.flush(Expiry::AT_ONCE);
        } else {
            tier.handle.flush(Expiry::AT_ONCE);
            tier.finish_for_store(read);
        }
        assert_eq!(sums(&tier).moved > moved, is_appended);
        (0..20).for_each(|_| tier.drive());
        assert!(kept.iter().all(|n| peek(&tier, &key(*n)).is_none()), "a flushed item is there");
        assert_eq!(sums(&tier).objects_used, 0);
        (0..1_000).for_each(|n| assert!(put(&tier, n, &value(n))));
    }
}

#[test]
fn items_that_change_while_they_are_moved_are_not_moved() {
    let tier = tier(flash_options(&[16]));
    let kept = with_holes(&tier, value);
    tier.handle.maintain_flash(|| {});
    for _ in 0..2 {
        let read = tier.handle.take_maintenance_read().expect("it is read");
        tier.finish_for_store(read);
    }
    let (removed, others) = kept.split_at(kept.len() / 3);
    let (replaced, others) = others.split_at(kept.len() / 3);
    remove(&tier, removed.iter().copied());
    for n in replaced {
        assert!(put(&tier, *n, &value(n + 1)));
    }
    (0..20).for_each(|_| tier.drive());
    assert!(removed.iter().all(|n| peek(&tier, &key(*n)).is_none()), "a removed item is there");
    for n in replaced {
        assert!(peek(&tier, &key(*n)).map(|(_, value)| value) == Some(value(n + 1)), "key {n}");
    }
    check_all(&tier, others);
}

#[test]
fn moved_items_keep_their_fields() {
    let tier = tier(flash_options(&[16]));
    let expiry = Expiry::from_client(100_000, tier.store().now(), tier.store().clock_origin());
    let bytes = value(1);
    let plain = Write::plain(NewValue::Is(Value::Bytes(&bytes)));
    let forms: [Write<'_>; 5] = [
        Write { flags: u32::MAX, expiry, ..plain },
        Write { stale: true, ..plain },
        Write { stale: true, token_sent: true, binary_key: true, flags: 5, ..plain },
        Write { cas: Some(u64::MAX - 5), ..plain },
        Write { fetched: true, ..plain },
    ];
    let names: [Vec<u8>; 5] = std::array::from_fn(|i| format!("form-{i}").into_bytes());
    for (name, form) in names.iter().zip(forms) {
        tier.mutate(name, |_| (Change::Write(form), ())).expect("there is room");
    }
    // Items of similar times to live lie together.
    for n in 0..1_000 {
        let form = Write { expiry, ..plain };
        tier.mutate(format!("like-{n}").as_bytes(), |_| (Change::Write(form), ())).expect("there is room");
    }
    tier.clock.advance_ms(50_000);
    tier.store().tick();
    let kept = with_holes(&tier, value);
    let fields = || {
        names.each_ref().map(|name| {
            assert!(is_on_flash(&tier, name), "{}", String::from_utf8_lossy(name));
            let (info, found) = peek(&tier, name).expect("it is there");
            assert!(found == bytes);
            ItemInfo { ttl: None, idle: 0, ..info }
        })
    };
    // This read counts, and compaction keeps the count.
    let before = fields().map(|info| ItemInfo { fetched: true, ..info });
    during(&tier, 5_000, || tier.drive());
    let mut more = 0;
    while put(&tier, 1_000_000 + more, &value(more)) {
        more += 1;
    }
    assert!(sums(&tier).moved > kept.len() as u64 / 2, "{:?}", sums(&tier));
    assert_eq!(fields(), before);
}

/// An item in memory whose segment on flash was compacted does not return there.
#[test]
fn promoted_items_do_not_return_to_a_compacted_segment() {
    let tier = tier(flash_options(&[16]));
    let kept = with_holes(&tier, value);
    let promoted: Vec<usize> =
        kept.iter().copied().filter(|n| is_on_flash(&tier, &key(*n))).step_by(7).collect();
    for n in &promoted {
        let promote = || {
            tier.handle.use_fetched(tier.fetch(&key(*n)).expect("it is there"));
            let stored = tier.handle.store_fetched(&key(*n));
            tier.handle.forget_fetched();
            stored.is_ok()
        };
        assert!((0..40).any(|_| promote() || {
            tier.drive();
            tier.handle.maintain();
            false
        }));
    }
    let mut more = 0;
    while put(&tier, 1_000_000 + more, &value(more)) {
        more += 1;
    }
    assert!(sums(&tier).compacted > 3 && sums(&tier).bad_pages == 0, "{:?}", sums(&tier));
    check_all(&tier, &kept);
    assert!(promoted.iter().any(|n| is_on_flash(&tier, &key(*n))), "they have left memory again");
}

#[test]
fn dense_segment_is_not_read_to_its_end() {
    const BYTES: u64 = 8 << 20;
    let (device_bytes, value) = (vec![4 * BYTES], pattern(1, 20_000));
    let tier = tier(FlashOptions { device_bytes, segment_bytes: BYTES, ..flash_options(&[0]) });
    let stored = (0..).take_while(|n| put(&tier, *n, &value)).count();
    remove(&tier, (0..stored).step_by(100));
    let mut ends = Vec::new();
    during(&tier, 20_000, || {
        while let Some(read) = tier.handle.take_maintenance_read() {
            ends.push(read.offset() % BYTES);
            tier.finish_for_store(read);
        }
    });
    let last = ends.iter().max().expect("a segment is read");
    assert!((BYTES * 3 / 4..BYTES * 15 / 16).contains(last), "{last}");
}

/// Bytes of a segment that several writes fill.
const LONG_SEGMENT_BYTES: u64 = 4 * SEGMENT_BYTES;

/// Fills memory and flash of such segments with items, and removes one of three. Returns the tier, and the numbers of the others.
fn with_few_holes() -> (Tier, Vec<usize>) {
    let tier = tier(FlashOptions {
        device_bytes: vec![6 * LONG_SEGMENT_BYTES],
        segment_bytes: LONG_SEGMENT_BYTES,
        ..flash_options(&[0])
    });
    let mut stored = 0;
    while put(&tier, stored, &value(stored)) {
        stored += 1;
    }
    remove(&tier, (0..stored).filter(|n| n % 3 == 0));
    (tier, (0..stored).filter(|n| n % 3 > 0).collect())
}

/// Compacts until one write of moved items to the last free segment has succeeded and the next one fails.
fn fail_while_the_reserve_is_used(tier: &Tier) {
    let mut reserve = None;
    for _ in 0..200 {
        if sums(tier).write_errors > 0 {
            return;
        }
        tier.read_for_store();
        tier.write_all(|_, offset| {
            let segment = offset / LONG_SEGMENT_BYTES;
            let is_next = reserve == Some(segment);
            if offset.is_multiple_of(LONG_SEGMENT_BYTES) {
                reserve = (sums(tier).pages_free == 0).then_some(segment);
            }
            !is_next
        });
        during(tier, 100, || {});
    }
    panic!("no write failed, {:?}", sums(tier));
}

#[test]
fn failed_write_to_the_last_segment_stops_nothing() {
    let (tier, kept) = with_few_holes();
    fail_while_the_reserve_is_used(&tier);
    assert_eq!(sums(&tier).pages_free, 0, "{:?}", sums(&tier));
    check_all(&tier, &kept);
    // The pause after the failure, and one after the pass.
    during(&tier, 15_000, || tier.drive());
    assert!(sums(&tier).pages_free > 0, "{:?}", sums(&tier));
    (0..kept.len() / 8).for_each(|n| {
        assert!(put(&tier, 1_000_000 + n, &value(n)), "{n}, {:?}", sums(&tier));
    });
    check_all(&tier, &kept);
}
