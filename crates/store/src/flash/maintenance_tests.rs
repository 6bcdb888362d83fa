//! Reads that the store itself needs, of a device in memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fabcache_layout::KeyHash;
use fabcache_testbed::bytes::pattern;

use super::FlashOptions;
use crate::clock::SetClock;
use crate::index::SlotSnapshot;
use crate::{Expiry, Handle, OutOfMemory, Put, Store, StoreOptions};

const SEGMENT_BYTES: u64 = 256 << 10;
const SEGMENTS: u64 = 40;
const VALUE_BYTES: usize = 300;

struct World {
    handle: Handle,
    clock: SetClock,
    device: Vec<u8>,
    fails: bool,
}

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

impl World {
    /// Returns a store some of whose items are on flash.
    fn new(evict: bool) -> World {
        let clock = SetClock::default();
        let store = Store::open(StoreOptions {
            memory_bytes: 2 << 20,
            memory_bytes_max: 2 << 20,
            evict,
            flash: Some(FlashOptions::of_device(SEGMENTS, SEGMENT_BYTES)),
            time: Box::new(clock.clone()),
            ..StoreOptions::default()
        });
        let handle = Handle::new(&Arc::new(store.expect("memory for a test")));
        let mut world =
            World { handle, clock, device: vec![0; (SEGMENTS * SEGMENT_BYTES) as usize], fails: false };
        for n in 0..12_000 {
            let (key, value) = (key(n), pattern(n, VALUE_BYTES));
            let put = Put { key: &key, value: &value, flags: 0, expiry: Expiry::NEVER };
            match world.handle.put(&put, &world.handle.probe_for_write(&key)) {
                // The slot of another key matches this one.
                Ok(_) | Err(OutOfMemory::OnFlash) => {}
                Err(error) => panic!("item {n}: {error}"),
            }
            world.write();
            // The growing index may need keys.
            world.read();
        }
        world
    }

    fn write(&mut self) {
        while let Some(mut write) = self.handle.store().take_flash_write() {
            let (buffer, at, len) = (write.take_buffer(), write.offset() as usize, write.byte_len());
            self.device[at..at + len].copy_from_slice(&buffer[..len]);
            self.handle.finish_flash_write(write, buffer, true);
        }
    }

    /// Does the reads that the store needs; returns their number.
    fn read(&self) -> usize {
        let mut reads = 0;
        while let Some(mut next) = self.handle.take_maintenance_read() {
            reads += 1;
            loop {
                let mut read = next;
                let at = read.offset() as usize;
                let (mut buffer, range) = read.take_buffer();
                let len = range.len();
                buffer[range].copy_from_slice(&self.device[at..at + len]);
                let result = if self.fails { Err(io::Error::other("no answer")) } else { Ok(len) };
                match self.handle.finish_maintenance_read(read, buffer, result) {
                    Some(more) => next = more,
                    None => break,
                }
            }
        }
        reads
    }

    /// Returns the slots on flash of one group, with the hashes of their keys.
    fn slots(&self) -> Vec<(SlotSnapshot, KeyHash)> {
        let store = self.handle.store();
        let group = store.hash(&key(0));
        let in_group = |n: usize| {
            let hash = store.hash(&key(n));
            // In its own group: in another one, the slot of another key may match.
            let at = store.index.lock(hash).find_on_flash(hash, |_| true)?;
            let found = store.index.lock(group).find_slot_on_flash(at.slot)?;
            (found.at == at.at).then_some((at, hash))
        };
        let slots: Vec<_> = (0..12_000).filter_map(in_group).take(20).collect();
        assert!(slots.len() > 5, "{} in a group", slots.len());
        slots
    }
}

#[test]
fn growth_waits_for_keys_that_are_read() {
    let world = World::new(false);
    let (store, slots) = (world.handle.store(), world.slots());
    assert_eq!(store.hashes_on_flash(&slots[..2]), None);
    assert_eq!(world.read(), 2);
    // A key that was read is not read again.
    assert_eq!(store.hashes_on_flash(&slots[..4]), None);
    assert_eq!(world.read(), 2);
    let hashes = slots[..4].iter().map(|(_, hash)| Some(*hash)).collect();
    assert_eq!(store.hashes_on_flash(&slots[..4]), Some(hashes));
    assert_eq!(world.read(), 0);
    // Nor does growth wait for one that is no longer there.
    let removed = slots[5];
    assert_eq!(store.hashes_on_flash(&[removed]), None);
    store.unlink_from_flash(&store.index.lock(removed.1), removed.0);
    assert_eq!(world.read(), 0);
    assert_eq!(store.flash_sums().map(|sums| sums.objects_evicted), Some(0));
}

#[test]
fn failed_reads_of_growth_lose_nothing_without_eviction() {
    let mut world = World::new(false);
    let (store, slots) = (Arc::clone(world.handle.store()), world.slots());
    let wanted = &slots[..2];
    world.fails = true;
    assert_eq!(store.hashes_on_flash(wanted), None);
    assert_eq!(world.read(), 2);
    // They are read again after a while.
    world.fails = false;
    assert_eq!((store.hashes_on_flash(wanted), world.read()), (None, 0));
    world.clock.set(Duration::from_secs(1));
    assert_eq!((store.hashes_on_flash(wanted), world.read()), (None, 2));
    assert_eq!(store.hashes_on_flash(wanted), Some(wanted.iter().map(|(_, hash)| Some(*hash)).collect()));
    assert_eq!(store.flash_sums().map(|sums| (sums.read_errors, sums.objects_evicted)), Some((2, 0)));
}

#[test]
fn damaged_items_and_slow_devices_do_not_stop_growth() {
    let mut world = World::new(true);
    let (store, slots) = (Arc::clone(world.handle.store()), world.slots());
    assert_eq!(store.hashes_on_flash(&slots[..1]), None);
    world.device.fill(1);
    assert_eq!(world.read(), 1);
    let is_linked = |(at, hash): (SlotSnapshot, KeyHash)| {
        store.index.lock(hash).find_on_flash(hash, |slot| slot.same_item(at.slot)).is_some()
    };
    assert!(!is_linked(slots[0]) && is_linked(slots[1]));
    assert_eq!(store.hashes_on_flash(&slots[1..2]), None);
    world.clock.set(Duration::from_secs(2));
    world.handle.store().tick();
    assert_eq!(store.hashes_on_flash(&slots[1..2]), Some(vec![None]), "it is evicted");
}
