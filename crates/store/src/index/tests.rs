//! The index alone, over a made-up heap in which each "item" is the hash of its key.

use std::collections::HashMap;
use std::ops::ControlFlow;

use fabcache_layout::sync::Ordering;
use fabcache_layout::{Geometry, KeyHash, Memory, Slot};

use super::Index;
use super::lookup::Search;
use super::resize::{Growth, Rehash};
use super::walk::Cursor;
use crate::backing::{Backing, BackingOptions};
use crate::bounds::GROUP_LOCKS_MIN;

/// A region whose upper half holds hashes, one in each eight bytes.
struct World {
    memory: Memory,
    index: Index,
    next_segment: std::sync::atomic::AtomicU32,
    geometry: Geometry,
    next_item: u64,
    _backing: Backing,
}

impl Rehash for Memory {
    fn hash_at(&self, offset: u64) -> KeyHash {
        KeyHash(self.load(offset, Ordering::Relaxed))
    }

    fn may_evict(&self) -> bool {
        true
    }

    fn evict(&self, slot: Slot, _unlink: impl FnOnce()) {
        panic!("there is memory enough for {slot:?}");
    }
}

impl World {
    fn new(bytes: u64) -> World {
        let backing = Backing::create(&BackingOptions::default(), bytes).expect("memory for a test");
        // SAFETY: the backing lives as long as the world, and no references into it are formed.
        let memory = unsafe { Memory::new(backing.base(), bytes) };
        let geometry = Geometry::of(bytes, bytes).expect("large enough");
        let next_segment = std::sync::atomic::AtomicU32::new(0);
        let take = || take_segment(&next_segment, &geometry);
        let index =
            Index::new(memory.clone(), geometry, GROUP_LOCKS_MIN, take).expect("memory for the first tables");
        World { memory, index, next_segment, geometry, next_item: bytes / 2, _backing: backing }
    }

    fn insert(&mut self, hash: KeyHash) -> u64 {
        let offset = self.next_item;
        self.next_item += 8;
        self.memory.store(offset, hash.0, Ordering::Relaxed);
        let slot = Slot::item(hash.tag(), offset, 0, 0);
        loop {
            let inserted = self.index.lock(hash).insert(hash, slot);
            if inserted.is_ok() {
                return offset;
            }
            let take = || take_segment(&self.next_segment, &self.geometry);
            self.index.add_chain_memory(hash, &take).expect("memory for chains");
        }
    }

    fn find(&self, hash: KeyHash) -> Option<u64> {
        let locked = self.index.lock(hash).find(hash, |slot| self.memory.hash_at(slot.offset()) == hash);
        let (search, _) = self.index.search(hash, |seen| {
            if self.memory.hash_at(seen.slot.offset()) == hash {
                ControlFlow::Break(seen.slot)
            } else {
                ControlFlow::Continue(())
            }
        });
        let found = match search {
            Search::Found(slot) => Some(slot.offset()),
            Search::Absent => None,
            Search::Changed => panic!("nothing else is going on"),
        };
        assert_eq!(locked.map(|at| at.slot.offset()), found, "both lookups agree");
        found
    }

    fn remove(&self, hash: KeyHash) {
        let group = self.index.lock(hash);
        let at = group.find(hash, |slot| self.memory.hash_at(slot.offset()) == hash).expect("the key exists");
        group.clear(at.at);
    }

    fn grow(&self, hash: KeyHash) -> Growth {
        let take = || take_segment(&self.next_segment, &self.geometry);
        self.index.grow(self.index.partition_of(hash), true, &self.memory, &take)
    }

    fn walk(&self, cursor: Cursor, seen: &mut Vec<u64>) -> Cursor {
        self.index.walk(cursor, &self.memory, |at, hash| {
            assert_eq!(self.memory.hash_at(at.slot.offset()), hash);
            seen.push(hash.0);
        })
    }
}

fn take_segment(next: &std::sync::atomic::AtomicU32, geometry: &Geometry) -> Option<u64> {
    let segment = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    (segment < geometry.segments / 2 - 1).then(|| geometry.segment_offset(segment))
}

fn hashes(count: u64) -> impl Iterator<Item = KeyHash> {
    (1..=count).map(|n| KeyHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n.rotate_left(40)))
}

#[test]
fn keys_are_found_while_tables_grow() {
    let mut world = World::new(64 << 20);
    let mut offsets = HashMap::new();
    for (n, hash) in hashes(200_000).enumerate() {
        offsets.insert(hash, world.insert(hash));
        if world.index.wants_growth(world.index.partition_of(hash), true) {
            world.grow(hash);
        }
        if n % 1_000 == 0 {
            assert_eq!(world.find(hash), Some(offsets[&hash]));
        }
    }
    assert_eq!(world.index.items(), 200_000);
    assert!(world.index.home_slots() > 200_000, "the tables grew");
    for (hash, offset) in &offsets {
        assert_eq!(world.find(*hash), Some(*offset));
        assert_eq!(world.find(KeyHash(hash.0 ^ 1 << 20)), None);
    }
    for hash in offsets.keys() {
        world.remove(*hash);
        assert_eq!(world.find(*hash), None);
    }
    assert_eq!(world.index.items(), 0);
}

#[test]
fn colliding_keys_are_chained() {
    let mut world = World::new(64 << 20);
    // The same partition, group, bucket and tag: only the key itself distinguishes them.
    let same: Vec<KeyHash> = (0..2_000u64).map(|n| KeyHash(0xabcd << 48 | n << 20)).collect();
    for hash in &same {
        world.insert(*hash);
    }
    assert!(world.index.chain_buckets() > 100);
    for hash in &same {
        assert!(world.find(*hash).is_some());
    }
    while world.grow(same[0]) != Growth::None {}
    for hash in &same {
        assert!(world.find(*hash).is_some(), "a rebuilt table has them all");
        world.remove(*hash);
        assert!(world.find(*hash).is_none());
    }
    assert_eq!(world.index.items(), 0);
}

#[test]
fn walk_visits_each_key_once_while_tables_grow() {
    let mut world = World::new(64 << 20);
    let before: Vec<KeyHash> = hashes(20_000).collect();
    for hash in &before {
        world.insert(*hash);
    }
    let mut later = hashes(120_000).skip(20_000);
    let mut seen = Vec::new();
    let mut cursor = Cursor::START;
    while !cursor.is_done() {
        cursor = world.walk(cursor, &mut seen);
        for hash in later.by_ref().take(200) {
            world.insert(hash);
            world.grow(hash);
        }
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "no key was seen twice");
    for hash in &before {
        assert!(seen.binary_search(&hash.0).is_ok(), "{hash:?} existed throughout");
    }
    assert!(world.index.home_slots() > 25_000, "the tables grew meanwhile");
}

#[test]
fn failed_growth_keeps_the_tables() {
    let mut world = World::new(64 << 20);
    let some: Vec<KeyHash> = hashes(8_150).collect();
    for hash in &some {
        world.insert(*hash);
    }
    // Use up the available buckets first.
    let partitions = 0..world.geometry.partitions();
    let mut blocked = 0;
    for partition in partitions {
        while world.index.wants_growth(partition, true) {
            if world.index.grow(partition, true, &world.memory, &|| None) == Growth::Blocked {
                blocked += 1;
                break;
            }
        }
    }
    assert!(blocked > 0);
    for hash in &some {
        assert!(world.find(*hash).is_some());
    }
    let waiting = some.iter().find(|hash| world.index.wants_growth(world.index.partition_of(**hash), true));
    let grown = world.grow(*waiting.expect("some table was blocked"));
    assert_eq!(grown, Growth::Finished, "with memory its one group is moved");
}
