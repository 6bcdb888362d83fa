//! Models of readers that the server does not see, concurrent with writers and the server's own reads: what one read
//! saw, or an answer confirmed, no later read sees undone.
//!
//! Each must fail without the guard that it tests (`fabcache_layout::sync::without`): `cargo xtask loom` runs these as
//! well. The dead mark and MOVED protect both kinds of readers; the generation, checked after the
//! bytes, those of the same host, and remote ones at cached locations, for the state that no checksum covers.

use std::sync::Arc;

use fabcache_layout::header;
use fabcache_layout::reader::remote::{Arrival, Now, RemoteOptions};
use fabcache_layout::reader::{Hit, Location, Mapped, ReadOutcome, Remote, Validation, Value};
use fabcache_layout::sync::{AtomicU64, Ordering, fence};
use loom::thread;

use super::{Expiry, Handle, LATER, check, expiry_of, get, reclaim, set, store, store_that_uses};
use crate::{Change, Store};

/// The versions of one key: each value is a digit; the last, 9, means deleted. A value that was confirmed or read is
/// the oldest that a read starting now may return.
#[derive(Debug)]
pub(crate) struct Versions(AtomicU64);

const REMOVED: u64 = 9;

impl Versions {
    pub(crate) fn new() -> Arc<Versions> {
        Arc::new(Versions(AtomicU64::new(1)))
    }

    pub(crate) fn note(&self, version: u64) {
        self.0.fetch_max(version, Ordering::AcqRel);
    }

    /// Checks a read's result; None is a read without a result.
    pub(crate) fn read(&self, read: impl FnOnce() -> Option<u64>) {
        let floor = self.0.load(Ordering::Acquire);
        if let Some(version) = read() {
            assert!(version >= floor, "version {version} after {floor} was answered or read");
            self.note(version);
        }
    }
}

fn version_of(value: &[u8]) -> u64 {
    assert!(value.iter().all(|byte| *byte == value[0]), "a torn value: {value:?}");
    u64::from(value[0] - b'0')
}

/// A value of this version, longer than a word.
pub(crate) fn value(version: u64) -> [u8; 9] {
    [b'0' + version as u8; 9]
}

pub(crate) fn both_modes(store: &Store) -> [Validation; 2] {
    [Validation::SameHost, Validation::Remote(store.secret().clone())]
}

pub(crate) fn open(store: &Store, mode: Validation) -> Mapped {
    Mapped::open(store.memory.clone(), mode).expect("a region")
}

pub(crate) fn by_key(reader: &mut Mapped, store: &Store) -> Option<u64> {
    reader.begin(store.now());
    let outcome = reader.get(b"a").0;
    seen(&outcome, |hit| version_of(reader.value(hit)))
}

/// As one of many keys that are read together.
fn together(reader: &mut Mapped, store: &Store) -> Option<u64> {
    reader.begin(store.now());
    let mut version = None;
    reader.get_many(1, |_| b"a", |_, _, outcome, value| version = seen(&outcome, |_| version_of(value)));
    version
}

fn seen(outcome: &ReadOutcome, version: impl FnOnce(&Hit) -> u64) -> Option<u64> {
    match outcome {
        ReadOutcome::Hit(hit) => Some(version(hit)),
        ReadOutcome::Miss(_) => Some(REMOVED),
        ReadOutcome::Fallback(_) => None,
        ReadOutcome::Stale(_) | ReadOutcome::Gone => unreachable!("a GET by key in shared memory is neither"),
    }
}

pub(crate) fn at(reader: &mut Mapped, store: &Store, location: Location) -> Option<u64> {
    reader.begin(store.now());
    match reader.get_at(b"a", location).0 {
        ReadOutcome::Hit(hit) => Some(version_of(reader.value(&hit))),
        _ => None,
    }
}

pub(crate) fn location(reader: &mut Mapped, store: &Store) -> Location {
    reader.begin(store.now());
    let ReadOutcome::Hit(hit) = reader.get(b"a").0 else { panic!("the item exists") };
    hit.location
}

fn of_server(handle: &Handle) -> Option<u64> {
    Some(get(handle, b"a").map_or(REMOVED, |value| version_of(&value)))
}

fn remove(handle: &Handle) {
    handle.mutate(b"a", |_| (Change::Remove, ())).expect("removing needs no memory");
}

/// Returns a store with the key's first version, its handle, and a reader that knows where the item is.
fn with_first_version(mode: usize) -> (Arc<Store>, Handle, Arc<Versions>, Mapped, Location) {
    let (store, _) = store();
    let main = Handle::new(&store);
    set(&main, b"a", &value(1), Expiry::NEVER);
    let mut reader = open(&store, both_modes(&store)[mode].clone());
    let kept = location(&mut reader, &store);
    (store, main, Versions::new(), reader, kept)
}

/// Replaces the key, and then removes it.
fn replace_and_remove(handle: &Handle, versions: &Versions) {
    set(handle, b"a", &value(2), Expiry::NEVER);
    versions.note(2);
    remove(handle);
    versions.note(REMOVED);
}

/// A writer that replaces the key and removes it, and readers of each kind.
fn reads_of_all_kinds(preemptions: usize, mode: usize) {
    check(preemptions, move || {
        let (store, main, versions, mut reader, kept) = with_first_version(mode);
        let writer = {
            let (store, versions) = (Arc::clone(&store), Arc::clone(&versions));
            thread::spawn(move || {
                replace_and_remove(&Handle::new(&store), &versions);
            })
        };
        versions.read(|| by_key(&mut reader, &store));
        versions.read(|| at(&mut reader, &store, kept));
        versions.read(|| of_server(&main));
        writer.join().expect("written");
        versions.read(|| by_key(&mut reader, &store));
    });
}

#[test]
fn without_dead_mark_fails_reads_of_all_kinds_on_the_same_host() {
    reads_of_all_kinds(1, 0);
}

#[test]
fn without_dead_mark_fails_remote_reads_of_all_kinds() {
    reads_of_all_kinds(1, 1);
}

/// A reader that has seen the new version reads the old one no more. The writer is the main thread, so that a reader
/// runs whole between two of its stores.
fn old_version_at_its_location(mode: usize) {
    check(1, move || {
        let (store, main, versions, mut reader, kept) = with_first_version(mode);
        let reading = {
            let (store, versions) = (Arc::clone(&store), Arc::clone(&versions));
            thread::spawn(move || {
                versions.read(|| by_key(&mut reader, &store));
                versions.read(|| at(&mut reader, &store, kept));
            })
        };
        replace_and_remove(&main, &versions);
        reading.join().expect("read");
    });
}

#[test]
fn old_version_is_not_read_at_its_location_on_the_same_host() {
    old_version_at_its_location(0);
}

#[test]
fn old_version_is_not_read_at_its_location_remotely() {
    old_version_at_its_location(1);
}

/// The key's place is reused for the same key.
fn a_place_that_is_used_again(preemptions: usize, mode: usize, keeps: bool) {
    check(preemptions, move || {
        let (store, _) = store();
        let main = Handle::new(&store);
        let expiry = expiry_of(&store, LATER);
        set(&main, b"a", &value(1), expiry);
        store.segments.seal_open(|_| true);
        let versions = Versions::new();
        let mut reader = open(&store, both_modes(&store)[mode].clone());
        let kept = location(&mut reader, &store);
        let writer = {
            let (store, versions) = (Arc::clone(&store), Arc::clone(&versions));
            thread::spawn(move || {
                let handle = Handle::new(&store);
                set(&handle, b"a", &value(2), expiry);
                versions.note(2);
                reclaim(&handle);
                store.segments.seal_open(|_| true);
                set(&handle, b"a", &value(3), expiry);
                versions.note(3);
            })
        };
        if keeps {
            versions.read(|| at(&mut reader, &store, kept));
            versions.read(|| by_key(&mut reader, &store));
        } else {
            versions.read(|| together(&mut reader, &store));
        }
        writer.join().expect("written");
        assert_eq!(by_key(&mut reader, &store), Some(3));
    });
}

#[test]
fn without_generation_fails_cached_location_on_the_same_host() {
    a_place_that_is_used_again(1, 0, true);
}

#[test]
fn cached_location_is_read_remotely() {
    a_place_that_is_used_again(2, 1, true);
}

#[test]
fn without_generation_fails_lookup_by_key_on_the_same_host() {
    a_place_that_is_used_again(1, 0, false);
}

#[test]
fn lookup_by_key_is_read_remotely() {
    a_place_that_is_used_again(1, 1, false);
}

/// A remote reader, which validates cached locations with the counters of emptied segments.
fn fetching(store: &Store, in_order: bool) -> Remote<Vec<u8>, u64> {
    // As a thread of the server that holds it.
    store.memory.store_u32(fabcache_layout::format::LIVENESS_AT, 1, Ordering::Relaxed);
    let birth = header::read(&store.memory).expect("a region");
    let options = RemoteOptions { gets: 1, in_order, locations: 1, ..RemoteOptions::default() };
    Remote::new(&birth, store.secret().clone(), options).expect("a sound one")
}

fn fetched(remote: &mut Remote<Vec<u8>, u64>, store: &Store) -> Option<u64> {
    let now = || Now { second: store.now(), ns: 0 };
    remote.get(b"a", 0, now());
    while let Some(fetch) = remote.next_fetch(0) {
        let mut bytes = vec![0; fetch.len];
        store.memory.copy_out(fetch.offset, &mut bytes);
        // The next fetch is ordered after this one.
        fence(Ordering::Acquire);
        remote.take(fetch.id, Arrival::Buffer(bytes), now());
    }
    let completed = remote.next_completed().expect("nothing is left to be fetched");
    match (completed.outcome, completed.buffer) {
        (ReadOutcome::Hit(Hit { value: Value::Fetched { at, len }, .. }), Some(bytes)) => {
            Some(version_of(&bytes[at..at + len]))
        }
        (ReadOutcome::Miss(_), _) => Some(REMOVED),
        (ReadOutcome::Fallback(_), _) => None,
        other => unreachable!("{other:?}"),
    }
}

/// The same place, and a reader that learns from counters whether its segment was emptied.
fn a_place_that_is_used_again_and_counted(preemptions: usize, in_order: bool) {
    check(preemptions, move || {
        let (store, _) = store();
        let main = Handle::new(&store);
        let expiry = expiry_of(&store, LATER);
        set(&main, b"a", &value(1), expiry);
        store.segments.seal_open(|_| true);
        let versions = Versions::new();
        let mut remote = fetching(&store, in_order);
        // The generation becomes known with its counter.
        for _ in 0..2 {
            assert_eq!(fetched(&mut remote, &store), Some(1));
        }
        let writer = {
            let (store, versions) = (Arc::clone(&store), Arc::clone(&versions));
            thread::spawn(move || {
                let handle = Handle::new(&store);
                set(&handle, b"a", &value(2), expiry);
                versions.note(2);
                reclaim(&handle);
                store.segments.seal_open(|_| true);
                set(&handle, b"a", &value(3), expiry);
                versions.note(3);
            })
        };
        versions.read(|| fetched(&mut remote, &store));
        writer.join().expect("written");
        assert_eq!(fetched(&mut remote, &store), Some(3));
    });
}

#[test]
fn cached_location_is_validated_by_a_following_read() {
    a_place_that_is_used_again_and_counted(1, false);
}

#[test]
fn cached_location_is_validated_by_ordered_reads() {
    a_place_that_is_used_again_and_counted(1, true);
}

/// A reader never sees an older state than another reader has seen, by any path.
#[test]
fn two_readers_agree() {
    check(1, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", &value(1), Expiry::NEVER);
        let versions = Versions::new();
        let [mut here, mut elsewhere] = both_modes(&store).map(|mode| open(&store, mode));
        let kept = [location(&mut here, &store), location(&mut elsewhere, &store)];
        let other = {
            let (store, versions) = (Arc::clone(&store), Arc::clone(&versions));
            thread::spawn(move || versions.read(|| by_key(&mut elsewhere, &store)))
        };
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                set(&Handle::new(&store), b"a", &value(2), Expiry::NEVER);
            })
        };
        versions.read(|| at(&mut here, &store, kept[0]));
        writer.join().expect("written");
        other.join().expect("read");
    });
}

/// The key's group moves to another table.
fn a_group_that_moves(mode: usize) {
    check(1, move || {
        let (store, _) = store_that_uses(288);
        let main = Handle::new(&store);
        set(&main, b"a", &value(1), Expiry::NEVER);
        for other in [b"b", b"c"] {
            set(&main, other, b"", Expiry::NEVER);
        }
        let mut reader = open(&store, both_modes(&store)[mode].clone());
        location(&mut reader, &store);
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                // One more than the table should hold.
                let handle = Handle::new(&store);
                set(&handle, b"d", b"", Expiry::NEVER);
                assert_eq!(store.sums().tables_resized, 1);
            })
        };
        let seen = by_key(&mut reader, &store);
        assert!(seen.is_none_or(|seen| seen == 1), "the item existed throughout");
        writer.join().expect("written");
        assert_eq!(by_key(&mut reader, &store), Some(1));
    });
}

#[test]
fn without_moved_fails_moving_group_on_the_same_host() {
    a_group_that_moves(0);
}

#[test]
fn without_moved_fails_moving_group_read_remotely() {
    a_group_that_moves(1);
}
