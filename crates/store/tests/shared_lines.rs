//! No cache line is written by two threads on a GET: the region is read-only to the processor while two threads read.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;

use common::{SetClock, set, store_with};
use fabcache_store::{Detail, EvictionPolicy, Get, Handle, Located, Probe, Store, StoreOptions};
use rustix::mm::{MprotectFlags, mprotect};

const MEMORY_BYTES: u64 = 4 << 20;
const KEYS: usize = 2_000;
/// Reads after which an item's frequency and the window of its last access are noted as they stay.
const WARM_UP_READS: usize = 8;
/// Bytes of a line that two processors write in turns, as `CachePadded` assumes them.
const LINE_BYTES: usize = 64;

/// A store of `KEYS` items, and handles for two threads. The simulation, which takes a sample of the keys behind a lock,
/// is off; the clock stands.
fn filled() -> (Arc<Store>, SetClock, [Handle; 2]) {
    let options = StoreOptions { threads: 2, eviction: EvictionPolicy::S3Fifo, ..StoreOptions::default() };
    let (store, clock) = store_with(MEMORY_BYTES, options);
    let handles = [(); 2].map(|()| Handle::new(&store));
    for i in 0..KEYS {
        set(&handles[0], key(i).as_bytes(), &[7; 100]).expect("memory is free");
    }
    (store, clock, handles)
}

/// Twice as many keys are read as there are items: each second read misses.
fn key(i: usize) -> String {
    format!("key{i}")
}

/// Reads every key alone and in batches; returns the numbers of hits.
fn read_all(handle: &Handle) -> [usize; 2] {
    let keys: Vec<String> = (0..2 * KEYS).map(key).collect();
    let mut out = Vec::new();
    let (mut single, mut batched) = (0, 0);
    for key in &keys {
        out.clear();
        let read = handle.get(key.as_bytes(), Detail::Basic, true, &mut out, |_, _| ());
        single += usize::from(matches!(read, Get::Hit(..)));
    }
    for keys in keys.chunks(32) {
        let mut probes = [Probe::NONE; 32];
        handle.probe_many(keys.iter().map(String::as_bytes), &mut probes);
        for (key, probe) in keys.iter().zip(&probes) {
            out.clear();
            if let Located::Item(item) = handle.locate(key.as_bytes(), probe) {
                batched += usize::from(handle.append_value(&item, &mut out));
            }
        }
    }
    [single, batched]
}

/// A copy of the region, by the file that readers map.
fn copy(store: &Store) -> Vec<u8> {
    let mut bytes = vec![0; store.region_bytes() as usize];
    let mut at = 0;
    while at < bytes.len() {
        let read = rustix::io::pread(store.region().expect("a memory file"), &mut bytes[at..], at as u64)
            .expect("a memory file");
        assert!(read > 0, "the file is as long as the region");
        at += read;
    }
    bytes
}

/// Returns how many words of 8 bytes changed.
fn changed(store: &Store, before: &[u8]) -> usize {
    let now = copy(store);
    let pages = now.chunks(4096).zip(before.chunks(4096)).filter(|(now, before)| now != before);
    pages.map(|(now, before)| now.chunks(8).zip(before.chunks(8)).filter(|(a, b)| a != b).count()).sum()
}

/// Makes the region read-only, or writable again: a store to it, even of the same bytes, and a compare-exchange, even one
/// that fails, then end the process.
fn protect(store: &Store, flags: MprotectFlags) {
    let (base, len) = (store.region_base().as_ptr(), store.region_bytes() as usize);
    // SAFETY: the range is the store's whole mapping, which lives. It stays readable, so references into it stay valid;
    // no thread writes to it while it is read-only, or this test is to end.
    unsafe { mprotect(base.cast(), len, flags) }.expect("the store's own mapping");
}

#[test]
fn reads_write_no_shared_line() {
    let (store, _clock, handles) = filled();
    let fresh = copy(&store);
    assert_eq!(read_all(&handles[0]), [KEYS, KEYS]);
    // A write would be seen: the first reads raise the frequency in the item's slot, and do nothing else.
    assert_eq!(changed(&store, &fresh), KEYS);
    for _ in 0..WARM_UP_READS {
        read_all(&handles[1]);
    }
    let warm = copy(&store);
    protect(&store, MprotectFlags::READ);
    let reads = handles.map(|handle| {
        std::thread::spawn(move || (0..4).for_each(|_| assert_eq!(read_all(&handle), [KEYS, KEYS])))
    });
    reads.into_iter().for_each(|reads| reads.join().expect("every read is right"));
    protect(&store, MprotectFlags::READ | MprotectFlags::WRITE);
    assert_eq!(changed(&store, &warm), 0);
    // Nor did a read start again because of the other, or wait for its lock.
    let sums = store.sums();
    assert_eq!((sums.read_retries, sums.locked_reads), (0, 0));
}

#[test]
fn reads_note_the_last_access_once_for_each_window() {
    let (store, clock, handles) = filled();
    for _ in 0..WARM_UP_READS {
        read_all(&handles[0]);
    }
    // An item's window ends after 1, 3, 7, 15 … seconds of its segment: 15 notes at most in an item's life.
    let mut notes = Vec::new();
    for second in 1..=32 {
        clock.advance(1);
        store.tick();
        let before = copy(&store);
        read_all(&handles[0]);
        let noted = changed(&store, &before);
        if noted > 1 {
            notes.push(second);
            assert!((KEYS..=KEYS + 1).contains(&noted), "{noted} words: each item's state, and the clock");
            let before = copy(&store);
            read_all(&handles[1]);
            assert_eq!(changed(&store, &before), 0, "second {second}");
        }
    }
    assert_eq!(notes, [1, 3, 7, 15, 31]);
}

#[test]
fn counters_of_threads_lie_on_lines_of_their_own() {
    type Padded = crossbeam_utils::CachePadded<fabcache_store::counters::StoreCounters>;
    assert!(align_of::<Padded>() >= LINE_BYTES);
    assert_eq!(size_of::<Padded>() % LINE_BYTES, 0);
}
