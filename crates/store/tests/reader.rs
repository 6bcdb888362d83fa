//! A reader of the region sees what the server would reply, without asking it.
#![cfg(not(loom))]

mod common;

use std::sync::atomic::Ordering;

use common::outside::map_all;
use common::{SetClock, delete, get, set, set_with, store};
use fabcache_layout::Memory;
use fabcache_layout::format::STATUS_BYTES;
use fabcache_layout::header;
use fabcache_layout::reader::{
    FallbackReason, Fetched, Get, Hit, Location, Mapped, MetadataCache, Miss, ReadOutcome, Reader, Rejection,
    Step, Validation,
};
use fabcache_store::{Expiry, Handle};
use fabcache_testbed::bytes::pattern;

/// Opens readers of both kinds.
fn readers(handle: &Handle) -> [Mapped; 2] {
    let store = handle.store();
    [Validation::SameHost, Validation::Remote(store.secret().clone())]
        .map(|mode| Mapped::open(map_all(store.region().expect("a memory file")), mode).expect("a region"))
}

fn read(reader: &mut Mapped, handle: &Handle, key: &[u8]) -> Option<(Vec<u8>, Hit)> {
    reader.begin(handle.store().now());
    match reader.get(key).0 {
        ReadOutcome::Hit(hit) => Some((reader.value(&hit).to_vec(), hit)),
        ReadOutcome::Miss(_) => None,
        other => panic!("{other:?}"),
    }
}

fn stale(reader: &mut Mapped, handle: &Handle, key: &[u8], location: Location) -> Rejection {
    reader.begin(handle.store().now());
    match reader.get_at(key, location).0 {
        ReadOutcome::Stale(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_item_is_readable_while_the_index_grows() {
    let handle = Handle::new(&store(16 << 20, true, 1).0);
    let mut readers = readers(&handle);
    let key = |i: usize| format!("key{i}").into_bytes();
    let value = |i: usize| pattern(i as u64, [0, 1, 20, 200, 900][i % 5]);
    let count = 12_000;
    for i in 0..count {
        set_with(&handle, &key(i), &value(i), i as u32 % 3, Expiry::NEVER).expect("memory is free");
        for reader in &mut readers {
            let other = (i * 7_919) % (i + 1);
            let (found, hit) = read(reader, &handle, &key(other)).expect("nothing was removed");
            assert!(found == value(other) && hit.flags == other as u32 % 3, "key {other} after {i}");
            assert!(read(reader, &handle, &key(count + i)).is_none());
        }
    }
    assert!(handle.store().sums().tables_resized > 0);
    for i in (0..count).step_by(3) {
        assert!(delete(&handle, &key(i)));
    }
    for (i, reader) in (0..count).flat_map(|i| [(i, 0), (i, 1)]) {
        let found = read(&mut readers[reader], &handle, &key(i));
        assert_eq!(found.map(|(value, _)| value), (i % 3 != 0).then(|| value(i)), "key {i}");
    }
}

#[test]
fn long_values_are_read_from_their_chunks() {
    let handle = Handle::new(&store(64 << 20, true, 1).0);
    let mut readers = readers(&handle);
    for len in [40_000, 300_000, 5_000_000, 20_000_000] {
        let value = pattern(len as u64, len);
        set(&handle, b"long", &value).expect("memory is free");
        for reader in &mut readers {
            let (found, hit) = read(reader, &handle, b"long").expect("stored");
            assert!(found == value);
            let ReadOutcome::Hit(again) = reader.get_at(b"long", hit.location).0 else {
                panic!("the item exists")
            };
            assert_eq!((reader.value(&again), again.location), (&value[..], hit.location));
        }
    }
}

/// An event that happens to an item whose location a reader caches.
fn a_kept_location(expiry: i64, happens: impl Fn(&Handle, &SetClock), expected: &[Rejection]) {
    // Locations in both halves of an aligned word.
    for (padding, mode) in [(0, 0), (4, 0), (0, 1), (4, 1)] {
        let (store, clock) = store(4 << 20, true, 1);
        let handle = Handle::new(&store);
        let reader = &mut readers(&handle)[mode];
        set(&handle, b"before", &vec![b'x'; 40 + padding]).expect("memory is free");
        let expiry = Expiry::from_client(expiry, store.now(), store.clock_origin());
        set_with(&handle, b"key", b"value", 0, expiry).expect("memory is free");
        let location = read(reader, &handle, b"key").expect("stored").1.location;
        reader.begin(store.now());
        assert!(matches!(reader.get_at(b"key", location).0, ReadOutcome::Hit(_)));
        assert_eq!(stale(reader, &handle, b"other", location), Rejection::OtherKey);
        happens(&handle, &clock);
        let why = stale(reader, &handle, b"key", location);
        assert!(expected.contains(&why), "{why:?} instead of {expected:?}");
    }
}

#[test]
fn cached_locations_of_changed_items_are_stale() {
    let replace = |handle: &Handle, _: &SetClock| {
        set(handle, b"key", b"another").expect("memory is free");
    };
    a_kept_location(0, replace, &[Rejection::Dead]);
    a_kept_location(0, |handle, _| assert!(delete(handle, b"key")), &[Rejection::Dead]);
    a_kept_location(0, |handle, _| handle.flush(Expiry::AT_ONCE), &[Rejection::Flushed]);
    let wait = |handle: &Handle, clock: &SetClock| {
        clock.advance(5);
        handle.store().tick();
    };
    a_kept_location(5, wait, &[Rejection::Expired]);
    let recycle = |handle: &Handle, _: &SetClock| {
        for i in 0..40_000 {
            set(handle, format!("key{i}").as_bytes(), &[b'v'; 200]).expect("something is evicted");
        }
    };
    a_kept_location(0, recycle, &[Rejection::Recycled]);
}

#[test]
fn item_moved_by_reclaim_is_found_again() {
    let handle = Handle::new(&store(4 << 20, true, 1).0);
    let mut readers = readers(&handle);
    set(&handle, b"key", b"value").expect("memory is free");
    let mut moved = 0;
    let mut location = read(&mut readers[0], &handle, b"key").expect("stored").1.location;
    for i in 0..25_000 {
        set(&handle, format!("key{i}").as_bytes(), &[b'v'; 200]).expect("something is evicted");
        assert!(get(&handle, b"key").is_some(), "read items are kept");
        for reader in &mut readers {
            let (value, hit) = read(reader, &handle, b"key").expect("read items are kept");
            assert_eq!(value, b"value");
            moved += u32::from(hit.location != location);
            location = hit.location;
        }
    }
    assert!(moved > 0);
}

#[test]
fn missing_items_report_the_kind_of_miss() {
    let (store, clock) = store(4 << 20, true, 1);
    let handle = Handle::new(&store);
    let expiry = Expiry::from_client(5, store.now(), store.clock_origin());
    set_with(&handle, b"expires", b"value", 0, expiry).expect("memory is free");
    set(&handle, b"flushed", b"value").expect("memory is free");
    for mut reader in readers(&handle) {
        // By the reader's clock, though the server's is late.
        reader.begin(store.now() + 3);
        assert!(matches!(reader.get(b"expires").0, ReadOutcome::Hit(_)));
        clock.advance(2);
        store.tick();
        reader.begin(store.now() + 3);
        assert_eq!(reader.get(b"expires").0, ReadOutcome::Miss(Miss::Expired));
        reader.begin(store.now() + 4);
        assert_eq!(
            reader.get(b"flushed").0,
            ReadOutcome::Fallback(FallbackReason::Clock),
            "the server's clock is stopped"
        );
        reader.begin(store.now());
        assert_eq!(reader.get(b"absent").0, ReadOutcome::Miss(Miss::Absent));
        set_with(&handle, b"expires", b"value", 0, Expiry::from_client(5, store.now(), store.clock_origin()))
            .expect("memory is free");
    }
    handle.flush(Expiry::AT_ONCE);
    for mut reader in readers(&handle) {
        reader.begin(store.now());
        assert_eq!(reader.get(b"flushed").0, ReadOutcome::Miss(Miss::Flushed));
    }
}

#[test]
fn store_after_a_flush_within_a_batch_is_a_hit() {
    let handle = Handle::new(&store(4 << 20, true, 1).0);
    for mut reader in readers(&handle) {
        reader.begin(handle.store().now());
        handle.flush(Expiry::AT_ONCE);
        set(&handle, b"key", b"value").expect("memory is free");
        assert!(matches!(reader.get(b"key").0, ReadOutcome::Hit(_)));
    }
}

/// Runs a GET that fetches these bytes instead of the item's, and everything else from the current region.
fn get_with(
    get: Get<&[u8]>,
    reader: &Reader,
    known: &mut MetadataCache,
    memory: &Memory,
    item: &[u8],
) -> ReadOutcome {
    let mut get = get;
    let mut step = get.next(reader, known, Fetched::Nothing);
    loop {
        let mut bytes = item.to_vec();
        let fetched = match step {
            Step::Done(outcome) => return outcome,
            Step::Word(offset) => Fetched::Word(memory.load(offset, Ordering::Acquire)),
            Step::Value { .. } | Step::Chunks { .. } => unreachable!("values are not read in place"),
            Step::Bytes { len, .. } => {
                bytes.resize(len, 0);
                Fetched::Bytes(&bytes)
            }
        };
        step = get.next(reader, known, fetched);
    }
}

#[test]
fn overwritten_state_word_is_not_trusted() {
    for padding in [0, 4] {
        let handle = Handle::new(&store(4 << 20, true, 1).0);
        let store = handle.store();
        let memory = map_all(store.region().expect("a memory file"));
        let mut mapped = Mapped::open(memory.clone(), Validation::SameHost).expect("a region");
        set(&handle, b"before", &vec![b'x'; 40 + padding]).expect("memory is free");
        set(&handle, b"key", b"value").expect("memory is free");
        let location = read(&mut mapped, &handle, b"key").expect("stored").1.location;
        // All of it but the state word was fetched before the item was deleted and its segment reused; the state word
        // afterwards, when other bytes had been written there. They look like the state word of a live item.
        let mut item = vec![0; 64];
        memory.copy_out(location.offset, &mut item);
        assert!(delete(&handle, b"key"));
        let birth = header::read(&memory).expect("a region");
        let reader = Reader::new(&birth, Validation::Remote(store.secret().clone())).expect("sound");
        let mut known = MetadataCache::new(&reader);
        let mut line = [0; STATUS_BYTES];
        memory.copy_out(fabcache_layout::format::STATUS_AT, &mut line);
        known.begin(&line, store.now());
        let get = Get::at(&reader, &b"key"[..], location);
        let found = get_with(get, &reader, &mut known, &memory, &item);
        assert!(
            matches!(found, ReadOutcome::Hit(_)),
            "until its generation ends these bytes are the item's: {found:?}"
        );
        for i in 0..40_000 {
            set(&handle, format!("key{i}").as_bytes(), &[b'v'; 200]).expect("something is evicted");
        }
        let get = Get::at(&reader, &b"key"[..], location);
        let found = get_with(get, &reader, &mut known, &memory, &item);
        assert_eq!(found, ReadOutcome::Stale(Rejection::Recycled));
    }
}
