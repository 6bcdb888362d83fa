//! Models of items between memory and flash.
//!
//! Segments have one page, and so each item has its own.

use std::sync::Arc;

use fabcache_layout::item::Item;
use fabcache_layout::reader::Location;
use loom::thread;

use super::page::PAGE_BYTES;
use super::retirement::RetireReason;
use super::segments::{FlashSegments, Kind};
use super::{Demotion, Fetched, Flash, FlashOptions, FlashReadResult, FlashWrite, PageBuffer};
use crate::models::outside::{Versions, at, both_modes, by_key, location, open, value};
use crate::models::{check, store_with_flash};
use crate::{Change, Detail, Get, Handle, NewValue, OutOfMemory, Payload, Store, Value, Write};

/// The device: its contents are no part of the models.
type Device = Arc<std::sync::Mutex<Vec<u8>>>;

fn store() -> (Arc<Store>, Device) {
    const SEGMENTS: usize = 4;
    let store = store_with_flash(FlashOptions::of_device(SEGMENTS as u64, PAGE_BYTES as u64));
    (store, Arc::new(std::sync::Mutex::new(vec![0; SEGMENTS * PAGE_BYTES])))
}

fn flash_of(store: &Store) -> &Flash {
    store.flash.as_ref().expect("it was made with one")
}

fn set(handle: &Handle, version: u64) {
    let value = value(version);
    let write = Write { cas: Some(1), ..Write::plain(NewValue::Is(Value::Bytes(&value))) };
    handle.overwrite(b"a", |_| (Change::Write(write), ())).expect("memory enough");
}

/// Lets the item leave memory.
fn demote(store: &Store) -> Demotion {
    let hash = store.hash(b"a");
    let group = store.index.lock(hash);
    let Some(found) = group.find(hash, |_| true) else { return Demotion::Refused };
    let item = Item::read(&store.memory, found.slot.offset()).expect("in the region");
    store.demote(flash_of(store), &group, hash, found, &item)
}

/// Writes what is staged to the device.
fn write(store: &Store, device: &Device) -> (FlashWrite, PageBuffer) {
    let mut write = store.take_flash_write().expect("an item is staged");
    let (buffer, at, len) = (write.take_buffer(), write.offset() as usize, write.byte_len());
    device.lock().expect("no thread fails")[at..at + len].copy_from_slice(&buffer[..len]);
    (write, buffer)
}

/// Stores the first version, and moves it to flash.
fn move_to_flash(handle: &Handle, device: &Device) {
    let store = handle.store();
    set(handle, 1);
    assert!(matches!(demote(store), Demotion::Staged(_)));
    let (write, buffer) = write(store, device);
    handle.finish_flash_write(write, buffer, true);
    flash_of(store).log().close_segment(&flash_of(store).segments);
    handle.publish_written(flash_of(store));
    assert_eq!(flash_of(store).segments.kind(0), Kind::Sealed);
}

/// Reads the key from flash.
fn fetch(handle: &Handle, device: &Device) -> Option<Fetched> {
    let mut read = handle.read_flash(b"a")?;
    loop {
        let offset = read.offset() as usize;
        let (mut buffer, range) = read.take_buffer();
        let bytes = &mut buffer[range];
        let len = bytes.len();
        bytes.copy_from_slice(&device.lock().expect("no thread fails")[offset..offset + len]);
        match handle.finish_flash_read(read, buffer, Ok(len), b"a", false) {
            FlashReadResult::Item(item) => return Some(Fetched::Item(item)),
            FlashReadResult::Others(others) => return Some(Fetched::Others(others)),
            FlashReadResult::Miss(_) => return None,
            FlashReadResult::More(more) => read = more,
        }
    }
}

fn get(handle: &Handle, device: &Device) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match handle.get(b"a", Detail::Basic, false, &mut out, |_, _| {}) {
        Get::Hit(_, Payload::Copied) => Some(out),
        Get::Hit(_, Payload::Pinned(pinned)) => Some(pinned.copy()),
        Get::Miss(_) => None,
        Get::OnFlash => match fetch(handle, device)? {
            Fetched::Item(item) => Some(item.value().to_vec()),
            Fetched::Others(_) => None,
        },
    }
}

/// Stores the item in memory again.
fn promote(handle: &Handle, fetched: Fetched) {
    handle.use_fetched(fetched);
    match handle.store_fetched(b"a") {
        Ok(()) | Err(OutOfMemory::OnFlash) => handle.forget_fetched(),
        Err(why) => panic!("{why}"),
    };
}

/// Lets compaction read the segment of the item, and append that to the log.
fn move_on_flash(handle: &Handle, device: &Device) {
    let flash = flash_of(handle.store());
    handle.begin_compaction(flash);
    // It is measured, and then moved.
    for _ in 0..2 {
        let mut read = handle.take_maintenance_read().expect("the segment is read");
        let (mut buffer, range) = read.take_buffer();
        let (at, len) = (read.offset() as usize, range.len());
        buffer[range].copy_from_slice(&device.lock().expect("no thread fails")[at..at + len]);
        handle.finish_maintenance_read(read, buffer, Ok(len));
    }
    assert_eq!(flash.counters.items_moved.get(), 1);
}

#[test]
fn flash_segment_is_not_freed_while_it_is_read() {
    check(2, || {
        let (store, device) = store();
        let main = Handle::new(&store);
        move_to_flash(&main, &device);
        let reader = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let read = Handle::new(&store).read_flash(b"a");
                if read.is_some() {
                    assert_ne!(flash_of(&store).segments.kind(0), Kind::Free, "it is read");
                }
            })
        };
        set(&main, 2);
        main.retire(flash_of(&store), &[(0, RetireReason::Room)], &mut || {});
        flash_of(&store).free_retired();
        reader.join().expect("read");
        flash_of(&store).free_retired();
        assert_eq!(flash_of(&store).segments.kind(0), Kind::Free);
        assert_eq!(get(&main, &device).as_deref(), Some(&value(2)[..]));
    });
}

#[test]
fn search_for_dead_segments_misses_no_death() {
    check(3, || {
        let segments = Arc::new(FlashSegments::new(1, &[PAGE_BYTES as u64], PAGE_BYTES as u64));
        segments.count_live_in(0);
        let killer = {
            let segments = Arc::clone(&segments);
            thread::spawn(move || segments.count_dead_in(0))
        };
        // Another search may come between.
        let mut is_found = false;
        for _ in 0..2 {
            if segments.take_change() {
                is_found = segments.use_of(0).live == 0;
            }
        }
        killer.join().expect("dead");
        assert!(is_found || segments.take_change(), "the last search found it, or another follows");
    });
}

#[test]
fn item_returns_to_flash_unless_its_segment_is_retired() {
    check(2, || {
        let (store, device) = store();
        let main = Handle::new(&store);
        move_to_flash(&main, &device);
        promote(&main, fetch(&main, &device).expect("it is on flash"));
        let retiring = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                Handle::new(&store).retire(flash_of(&store), &[(0, RetireReason::Room)], &mut || {});
                flash_of(&store).free_retired();
            })
        };
        let is_returned = demote(&store) == Demotion::Returned;
        retiring.join().expect("retired");
        assert_eq!(flash_of(&store).segments.kind(0), Kind::Free);
        let hash = store.hash(b"a");
        let is_on_flash = store.index.lock(hash).find_on_flash(hash, |_| true).is_some();
        assert!(!is_on_flash, "no slot leads to a free segment");
        // Else it is being written again.
        assert!(is_returned || get(&main, &device).as_deref() == Some(&value(1)[..]));
    });
}

/// An item goes to flash beside a writer, and readers outside see neither a miss nor an older version.
fn published_beside_readers(mode: usize, is_written: bool) {
    check(2, move || {
        let (store, device) = store();
        let main = Handle::new(&store);
        set(&main, 1);
        let mut reader = open(&store, both_modes(&store)[mode].clone());
        let kept: Location = location(&mut reader, &store);
        let versions = Versions::new();
        assert!(matches!(demote(&store), Demotion::Staged(_)));
        let (write, buffer) = write(&store, &device);
        let publisher = {
            let (store, versions) = (Arc::clone(&store), Arc::clone(&versions));
            thread::spawn(move || {
                let handle = Handle::new(&store);
                handle.finish_flash_write(write, buffer, true);
                if is_written {
                    set(&handle, 2);
                    versions.note(2);
                }
            })
        };
        versions.read(|| at(&mut reader, &store, kept));
        versions.read(|| by_key(&mut reader, &store));
        publisher.join().expect("published");
        versions.read(|| at(&mut reader, &store, kept));
        let last = if is_written { 2 } else { 1 };
        assert_eq!(get(&main, &device).as_deref(), Some(&value(last)[..]));
    });
}

#[test]
fn demoted_item_is_not_missed_on_the_same_host() {
    published_beside_readers(0, false);
}

#[test]
fn demoted_item_is_not_missed_remotely() {
    published_beside_readers(1, false);
}

#[test]
fn without_dead_mark_fails_demoted_item_on_the_same_host() {
    published_beside_readers(0, true);
}

#[test]
fn without_dead_mark_fails_demoted_item_remotely() {
    published_beside_readers(1, true);
}

#[test]
fn item_replaced_while_it_is_published_stays() {
    check(2, || {
        let (store, device) = store();
        let main = Handle::new(&store);
        set(&main, 1);
        assert!(matches!(demote(&store), Demotion::Staged(_)));
        let (write, buffer) = write(&store, &device);
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || set(&Handle::new(&store), 2))
        };
        main.finish_flash_write(write, buffer, true);
        writer.join().expect("written");
        assert_eq!(get(&main, &device).as_deref(), Some(&value(2)[..]));
        assert_eq!(store.usage().items, 1);
    });
}

#[test]
fn promoted_item_does_not_replace_a_newer_one() {
    check(2, || {
        let (store, device) = store();
        let main = Handle::new(&store);
        move_to_flash(&main, &device);
        let mut reader = open(&store, both_modes(&store)[0].clone());
        let versions = Versions::new();
        let promoter = {
            let (store, device) = (Arc::clone(&store), Arc::clone(&device));
            thread::spawn(move || {
                let handle = Handle::new(&store);
                if let Some(fetched @ Fetched::Item(_)) = fetch(&handle, &device) {
                    promote(&handle, fetched);
                }
            })
        };
        versions.read(|| by_key(&mut reader, &store));
        set(&main, 2);
        versions.note(2);
        versions.read(|| by_key(&mut reader, &store));
        promoter.join().expect("promoted");
        versions.read(|| by_key(&mut reader, &store));
        assert_eq!(get(&main, &device).as_deref(), Some(&value(2)[..]));
    });
}

/// Moves the item on flash, from a segment with a dead one, and lets a thread change it meanwhile.
fn moved_beside(change: impl FnOnce(&Handle, &Device) + Send + 'static) -> (Handle, Device) {
    let (store, device) = store();
    let main = Handle::new(&store);
    move_to_flash(&main, &device);
    flash_of(&store).segments.count_written(0, 0, 0);
    move_on_flash(&main, &device);
    let (write, buffer) = write(&store, &device);
    let other = {
        let (store, device) = (Arc::clone(&store), Arc::clone(&device));
        thread::spawn(move || change(&Handle::new(&store), &device))
    };
    main.finish_flash_write(write, buffer, true);
    main.retire(flash_of(&store), &[(0, RetireReason::NoItems)], &mut || {});
    flash_of(&store).free_retired();
    other.join().expect("changed");
    (main, device)
}

#[test]
fn item_changed_while_it_is_moved_on_flash_stays() {
    check(2, || {
        let (main, device) = moved_beside(|handle, _| set(handle, 2));
        assert_eq!(get(&main, &device).as_deref(), Some(&value(2)[..]));
        assert_eq!(main.store().index.items(), 1);
        let live: u32 = flash_of(main.store()).segments.uses().map(|segment| segment.live).sum();
        assert_eq!(live, 0, "no slot leads to flash");
    });
}

#[test]
fn item_is_read_while_it_is_moved_on_flash() {
    check(2, || {
        let (main, device) = moved_beside(|handle, device| {
            assert_eq!(get(handle, device).as_deref(), Some(&value(1)[..]));
        });
        flash_of(main.store()).free_retired();
        assert_eq!(flash_of(main.store()).segments.kind(0), Kind::Free);
        assert_eq!(get(&main, &device).as_deref(), Some(&value(1)[..]));
    });
}

#[test]
fn item_promoted_while_it_is_moved_on_flash_is_there() {
    check(2, || {
        let (main, device) = moved_beside(|handle, device| {
            if let Some(fetched @ Fetched::Item(_)) = fetch(handle, device) {
                promote(handle, fetched);
            }
            demote(handle.store());
        });
        flash_of(main.store()).free_retired();
        assert_eq!(flash_of(main.store()).segments.kind(0), Kind::Free);
        assert_eq!(get(&main, &device).as_deref(), Some(&value(1)[..]));
        assert_eq!(main.store().index.items(), 1);
    });
}
