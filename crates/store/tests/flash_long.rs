//! Items of several flash segments, and what changes while they are read.
#![cfg(not(loom))]

mod common;

use common::flash::{SEGMENT_BYTES, Tier};
use fabcache_store::dump::Cursor;
use fabcache_store::{
    Change, Detail, EvictionPolicy, Fetched, FlashRead, FlashReadResult, FlashSums, Get, NewValue,
    StoreOptions, Value, VisitResult, VisitedKey, VisitedOnFlash, Write,
};
use fabcache_testbed::bytes::pattern;

const LONG: &[u8] = b"long";
const LONG_BYTES: usize = 3 * SEGMENT_BYTES as usize - 10_000;
const PAGE_BYTES: usize = 4096;

fn sums(tier: &Tier) -> FlashSums {
    tier.store().flash_sums().expect("there is a tier")
}

fn set(tier: &Tier, key: &[u8], value: &[u8]) {
    let write = Write::plain(NewValue::Is(Value::Bytes(value)));
    tier.mutate(key, |_| (Change::Write(write), ())).expect("it fits");
}

fn is_on_flash(tier: &Tier, key: &[u8]) -> bool {
    matches!(tier.handle.get(key, Detail::Basic, false, &mut Vec::new(), |_, _| {}), Get::OnFlash)
}

/// Returns a tier where the long item is on flash, in three segments.
fn tier() -> Tier {
    let tier =
        Tier::new(8 << 20, &[64], StoreOptions { eviction: EvictionPolicy::Lru, ..StoreOptions::default() });
    set(&tier, LONG, &pattern(1, LONG_BYTES));
    push_out(&tier);
    tier
}

/// Stores other items until the long one is on flash, and some of those.
fn push_out(tier: &Tier) {
    for n in 0..40_000 {
        set(tier, format!("other-{n}").as_bytes(), &pattern(n, 700));
        if tier.store().is_short_of_memory() {
            tier.drive();
        }
        if n > 20_000 && n % 256 == 0 && is_on_flash(tier, LONG) {
            return;
        }
    }
    panic!("it stays in memory: {:?}", sums(tier));
}

/// Returns the slots on flash that a walk visits.
fn walk(tier: &Tier) -> Vec<VisitedOnFlash> {
    let (mut cursor, mut on_flash) = (Cursor::START, Vec::new());
    while !cursor.is_done() {
        cursor = tier.handle.walk_all(cursor, |_| {}, |_| {}, |visited| on_flash.push(visited));
    }
    on_flash
}

/// Does what one request of a read reads; returns the buffer and the number of bytes.
fn fill(tier: &Tier, read: &mut FlashRead) -> (fabcache_store::PageBuffer, usize) {
    let at = read.offset() as usize;
    let (mut buffer, range) = read.take_buffer();
    let len = range.len();
    buffer[range].copy_from_slice(&tier.devices.borrow()[0][at..at + len]);
    (buffer, len)
}

/// Visits an item on flash, of which no more than a key is read.
fn visit(tier: &Tier, visited: &VisitedOnFlash) -> Option<VisitedKey> {
    let mut read = tier.handle.read_visited(visited)?;
    let (buffer, len) = fill(tier, &mut read);
    assert!(len <= 2 * PAGE_BYTES, "{len} bytes are read");
    match tier.handle.finish_visit(read, buffer, Ok(len)) {
        VisitResult::Item(item) => Some(item),
        other => panic!("{other:?}"),
    }
}

#[test]
fn visits_read_no_values() {
    let tier = tier();
    let mut keys: Vec<VisitedKey> = walk(&tier).iter().filter_map(|visited| visit(&tier, visited)).collect();
    let long = keys.iter().find(|item| *item.key == *LONG).expect("it is there");
    assert_eq!(long.info.len, LONG_BYTES as u64);
    assert!(long.is_between(Cursor::START, Cursor::END));
    let count = keys.len();
    keys.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    keys.dedup_by(|a, b| a.key == b.key);
    assert!(keys.len() == count && count > 100, "{count} items are on flash");
    assert_eq!(sums(&tier).bad_pages, 0);
}

/// With another key's item instead, a list of keys would have that one twice, and this one not at all.
#[test]
fn visit_reports_that_the_item_has_left_flash() {
    let tier = tier();
    let is_long = |visited: &&VisitedOnFlash| visit(&tier, visited).is_some_and(|item| *item.key == *LONG);
    let visited = *walk(&tier).iter().find(is_long).expect("it is there");
    let mut read = tier.handle.read_visited(&visited).expect("it is there");
    let (buffer, len) = fill(&tier, &mut read);
    tier.mutate(LONG, |_| (Change::Remove, ())).expect("removing needs no memory");
    let mismatches = sums(&tier).mismatches;
    assert!(matches!(tier.handle.finish_visit(read, buffer, Ok(len)), VisitResult::Changed));
    assert_eq!((sums(&tier).bad_pages, sums(&tier).mismatches), (0, mismatches));
    assert!(tier.handle.read_visited(&visited).is_none());
}

/// Reads the first pages of the long item, which tell how long it is; lets `change` happen before their bytes are taken.
fn read_beside(tier: &Tier, change: impl FnOnce()) -> FlashReadResult {
    let mut read = tier.handle.read_flash(LONG).expect("it is on flash");
    let (buffer, len) = fill(tier, &mut read);
    assert!(len < LONG_BYTES);
    change();
    tier.handle.finish_flash_read(read, buffer, Ok(len), LONG, true)
}

fn remove(tier: &Tier) {
    tier.mutate(LONG, |_| (Change::Remove, ())).expect("removing needs no memory");
}

#[test]
fn item_that_changes_between_two_reads_is_looked_up_again() {
    // It is removed.
    let first = tier();
    let result = read_beside(&first, || remove(&first));
    assert!(matches!(result, FlashReadResult::Others(_)), "{result:?}");
    assert!(!is_on_flash(&first, LONG) && first.get(LONG).is_none());
    // It is replaced.
    set(&first, LONG, b"new");
    assert_eq!(first.get(LONG).map(|(_, value)| value), Some(b"new".to_vec()));
    // It returns to memory.
    let second = tier();
    let result = read_beside(&second, || {
        let fetched = second.fetch(LONG).expect("it is on flash");
        second.handle.use_fetched(fetched);
        second.handle.store_fetched(LONG).expect("there is room");
        second.handle.forget_fetched();
    });
    let FlashReadResult::Others(others) = result else { panic!("{result:?}") };
    assert!(second.handle.read_flash_beyond(others).is_err());
    assert!(second.get(LONG).is_some_and(|(_, value)| value == pattern(1, LONG_BYTES)));
    assert_eq!([&first, &second].map(|tier| sums(tier).bad_pages), [0, 0]);
}

#[test]
fn item_that_is_replaced_and_moves_to_flash_again_is_read_there() {
    let tier = tier();
    let result = read_beside(&tier, || {
        remove(&tier);
        set(&tier, LONG, &pattern(2, LONG_BYTES));
        push_out(&tier);
    });
    let FlashReadResult::More(read) = result else { panic!("{result:?}") };
    let Some(Fetched::Item(item)) = tier.finish(read, LONG) else { panic!("it is on flash") };
    assert!(*item.value() == pattern(2, LONG_BYTES));
    assert_eq!(sums(&tier).bad_pages, 0);
}

/// Few segments are free, and one is sealed whose item is linked only after it is written in others.
#[test]
fn segments_of_an_item_that_is_being_written_stay() {
    let mut on_flash = 0;
    for before in (1_600..3_000).step_by(50) {
        let options = StoreOptions { eviction: EvictionPolicy::Lru, ..StoreOptions::default() };
        let tier = Tier::new(8 << 20, &[16], options);
        let other = |n: usize| set(&tier, format!("other-{n}").as_bytes(), &pattern(n as u64, 700));
        // Maintenance comes after each write.
        let write_one = || {
            let Some(mut write) = tier.store().take_flash_write() else { return };
            let (buffer, at, len) = (write.take_buffer(), write.offset() as usize, write.byte_len());
            tier.devices.borrow_mut()[0][at..at + len].copy_from_slice(&buffer[..len]);
            tier.handle.finish_flash_write(write, buffer, true);
            tier.handle.maintain_flash(|| {});
        };
        (0..before).for_each(other);
        set(&tier, LONG, &pattern(1, LONG_BYTES));
        let mut left = 2_000;
        for n in before..before + 14_000 {
            other(n);
            write_one();
            left -= usize::from(is_on_flash(&tier, LONG));
            if left == 0 {
                break;
            }
        }
        // Others were written to the segments that are free since.
        if is_on_flash(&tier, LONG) {
            on_flash += 1;
            assert!(tier.get(LONG).is_some_and(|(_, value)| value == pattern(1, LONG_BYTES)), "{before}");
        }
    }
    assert!(on_flash > 5, "{on_flash}");
}
