//! The index alone, over a made-up heap in which each "item" is the hash of its key.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use crossbeam_utils::CachePadded;
use fabcache_layout::directory::Head;
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::{Mutex, Ordering};
use fabcache_layout::{Geometry, KeyHash, Memory, Slot};

use super::blocks::ChainUse;
use super::lookup::Search;
use super::resize::{Growth, Rehash};
use super::walk::Cursor;
use super::{Index, NoIndexBlock, NoPlace, SlotSnapshot};
use crate::backing::{Backing, Memfd};
use crate::bounds::{CHAIN_BUCKETS_MAX, GROUP_LOCKS_MIN};

thread_local! {
    static SLOTS_LOADED: Cell<u64> = const { Cell::new(0) };
}

/// Counts a slot that is loaded under a group's lock.
pub(super) fn count_slot_load() {
    SLOTS_LOADED.set(SLOTS_LOADED.get() + 1);
}

/// A region whose upper half holds hashes, one in each eight bytes.
pub(super) struct World {
    memory: Memory,
    pub(super) index: Index,
    next_segment: std::sync::atomic::AtomicU32,
    pub(super) geometry: Geometry,
    next_item: u64,
    /// Whether growth may evict, and the keys that it evicted.
    evicts: bool,
    pub(super) evicted: RefCell<Vec<KeyHash>>,
    /// The keys of items on flash by page, and those that growth has asked for.
    pub(super) on_flash: RefCell<HashMap<u32, KeyHash>>,
    pub(super) read: RefCell<HashSet<u32>>,
    _backing: Memfd,
}

impl Rehash for World {
    fn hash_at(&self, offset: u64) -> Option<KeyHash> {
        Some(KeyHash(self.memory.load(offset, Ordering::Relaxed)))
    }

    fn hashes_on_flash(&self, slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>> {
        let page = |seen: SlotSnapshot| FlashItem::from_slot(seen.slot).expect("a slot on flash").page;
        let read = |(seen, _): &(SlotSnapshot, KeyHash)| !self.read.borrow_mut().insert(page(*seen));
        let unread = slots.iter().filter(|slot| !read(slot)).count();
        let hash = |(seen, _): &(SlotSnapshot, KeyHash)| Some(self.on_flash.borrow()[&page(*seen)]);
        (unread == 0).then(|| slots.iter().map(hash).collect())
    }

    fn discard(&self, seen: SlotSnapshot, _unlink: impl FnOnce()) {
        panic!("{seen:?} is discarded");
    }

    fn may_evict(&self) -> bool {
        self.evicts
    }

    fn evict(&self, hash: KeyHash, seen: SlotSnapshot, unlink: impl FnOnce()) {
        assert!(self.evicts && self.hash_at(seen.slot.offset()) == Some(hash));
        unlink();
        self.evicted.borrow_mut().push(hash);
    }
}

impl World {
    pub(super) fn new(bytes: u64) -> World {
        let backing = Memfd::create(bytes, false).expect("memory for a test");
        // SAFETY: the backing lives as long as the world, and no references into it are formed.
        let memory = unsafe { Memory::new(backing.base(), bytes) };
        let geometry = Geometry::of(bytes, bytes).expect("large enough");
        let next_segment = std::sync::atomic::AtomicU32::new(0);
        let take = || take_segment(&next_segment, &geometry);
        let index =
            Index::new(memory.clone(), geometry, GROUP_LOCKS_MIN, take).expect("memory for the first tables");
        World {
            memory,
            index,
            next_segment,
            geometry,
            next_item: bytes / 2,
            evicts: true,
            evicted: RefCell::default(),
            on_flash: RefCell::default(),
            read: RefCell::default(),
            _backing: backing,
        }
    }

    pub(super) fn insert(&mut self, hash: KeyHash) -> u64 {
        self.try_insert(hash).expect("room in its group")
    }

    fn try_insert(&mut self, hash: KeyHash) -> Result<u64, NoPlace> {
        let offset = self.next_item;
        self.next_item += 8;
        self.memory.store(offset, hash.0, Ordering::Relaxed);
        let slot = Slot::item(hash.tag(), offset, 0, 0);
        loop {
            let group = self.index.lock(hash);
            match group.place_for(hash, ChainUse::Bounded) {
                Ok(at) => {
                    group.insert_at(at, slot);
                    return Ok(offset);
                }
                Err(NoPlace::GroupFull) => return Err(NoPlace::GroupFull),
                Err(NoPlace::NoBucket) => {}
            }
            drop(group);
            let take = || take_segment(&self.next_segment, &self.geometry);
            self.index.add_chain_memory(hash, &take).expect("memory for chains");
        }
    }

    /// Inserts keys from `hashes` until their group is full.
    fn fill(&mut self, hashes: impl Iterator<Item = KeyHash>) -> Vec<KeyHash> {
        hashes.take_while(|hash| self.try_insert(*hash).is_ok()).collect()
    }

    pub(super) fn find(&self, hash: KeyHash) -> Option<u64> {
        let locked = self.index.lock(hash).find(hash, |slot| self.hash_at(slot.offset()) == Some(hash));
        let (search, _) = self.index.search(hash, |seen| {
            if self.hash_at(seen.slot.offset()) == Some(hash) {
                ControlFlow::Break(seen.slot)
            } else {
                ControlFlow::Continue(())
            }
        });
        let found = match search {
            Search::Found(slot) => Some(slot.offset()),
            Search::Absent | Search::OnFlash(_) => None,
            // A chain too long to be searched without the lock.
            Search::Changed => locked.map(|at| at.slot.offset()),
        };
        assert_eq!(locked.map(|at| at.slot.offset()), found, "both lookups agree");
        found
    }

    fn remove(&self, hash: KeyHash) {
        let group = self.index.lock(hash);
        let at = group.find(hash, |slot| self.hash_at(slot.offset()) == Some(hash)).expect("the key exists");
        group.clear(at.at);
    }

    pub(super) fn grow(&self, hash: KeyHash) -> Growth {
        self.grow_as(hash, true)
    }

    /// Moves a group, as if memory were free or not.
    pub(super) fn grow_as(&self, hash: KeyHash, roomy: bool) -> Growth {
        let take = || take_segment(&self.next_segment, &self.geometry);
        self.index.grow(self.index.partition_of(hash), roomy, self, &take)
    }

    /// Returns how many groups the partition of a key has.
    pub(super) fn groups_of(&self, hash: KeyHash) -> u32 {
        self.index.tables_of(self.index.partition_of(hash))[0].1
    }

    fn walk(&self, cursor: Cursor, seen: &mut Vec<u64>) -> Cursor {
        self.index.walk(cursor, self, |at, hash| {
            assert_eq!(self.hash_at(at.slot.offset()), Some(hash));
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

/// Hashes of one partition, group, bucket and tag: only the keys themselves differ.
fn colliding(start: u64) -> impl Iterator<Item = KeyHash> {
    (0..10_000).map(move |n| KeyHash(start + (n << 20)))
}

/// Slots that a key may use: home, neighbour, the overflow area and its chain. Each bucket but the last has a link.
const USABLE_SLOTS: u64 = 8 + 8 + 4 * 8 + CHAIN_BUCKETS_MAX as u64 * 7;

#[test]
fn colliding_keys_are_chained_up_to_a_bound() {
    let mut world = World::new(64 << 20);
    let same = world.fill(colliding(0xabcd << 48));
    assert_eq!(same.len() as u64, USABLE_SLOTS);
    assert_eq!(world.index.chain_buckets(), u64::from(CHAIN_BUCKETS_MAX));
    for hash in &same {
        assert!(world.find(*hash).is_some());
    }
    while world.grow(same[0]) != Growth::None {}
    assert!(world.evicted.borrow().is_empty());
    for hash in &same {
        assert!(world.find(*hash).is_some(), "a rebuilt table has them all");
        world.remove(*hash);
        assert!(world.find(*hash).is_none());
    }
    assert_eq!(world.index.items(), 0);
}

#[test]
fn work_on_colliding_keys_is_bounded() {
    let mut world = World::new(64 << 20);
    world.fill(colliding(0xabcd << 48));
    let mut other = colliding(0xabcd << 48).skip(9_000);
    SLOTS_LOADED.set(0);
    for hash in other.by_ref().take(100) {
        assert!(world.find(hash).is_none() && world.try_insert(hash) == Err(NoPlace::GroupFull));
    }
    // To find nothing, and no place: each usable slot once or twice, and the links.
    let loaded = SLOTS_LOADED.get() / 100;
    assert!(loaded < 3 * USABLE_SLOTS, "{loaded} slots for a write");
    SLOTS_LOADED.set(0);
    assert_eq!(world.grow(other.next().expect("another")), Growth::Finished, "its one group moves");
    let loaded = SLOTS_LOADED.get();
    assert!(loaded < USABLE_SLOTS * USABLE_SLOTS, "{loaded} slots for a move");
}

/// Fills two groups with keys that go to one group of the next table: those at both sides of half of the hashes.
fn two_groups_that_merge() -> (World, Vec<KeyHash>) {
    let mut world = World::new(64 << 20);
    let half = 1 << (63 - world.geometry.partition_bits);
    let (mut below, mut above) = (colliding(half - (10_000 << 20)), colliding(half));
    let mut keys = Vec::new();
    for hash in below.by_ref().take(130).chain(above.by_ref().take(130)) {
        world.insert(hash);
        keys.push(hash);
    }
    while world.grow(keys[0]) != Growth::None {}
    keys.extend(world.fill(below));
    keys.extend(world.fill(above));
    assert_eq!(keys.len() as u64, 2 * USABLE_SLOTS, "both of two groups are full");
    (world, keys)
}

#[test]
fn growth_evicts_what_finds_no_room_in_a_full_group() {
    let (world, keys) = two_groups_that_merge();
    while world.grow(keys[0]) != Growth::None {}
    let evicted = world.evicted.borrow();
    // Keys of the two groups have neighbouring home buckets, so one bucket more is usable.
    let usable = USABLE_SLOTS + fabcache_layout::format::SLOTS_PER_BUCKET as u64;
    assert_eq!(evicted.len() as u64, keys.len() as u64 - usable);
    for hash in &keys {
        assert_eq!(world.find(*hash).is_none(), evicted.contains(hash));
    }
    assert_eq!(world.index.items(), usable);
}

#[test]
fn growth_without_eviction_keeps_every_key() {
    let (mut world, keys) = two_groups_that_merge();
    world.evicts = false;
    while world.grow(keys[0]) != Growth::None {}
    for hash in &keys {
        assert!(world.find(*hash).is_some(), "{hash:?}");
    }
    assert_eq!(world.index.items(), keys.len() as u64);
    let more = world.fill(colliding(keys[0].0 ^ 1 << 40));
    assert!(more.len() < 8, "writes fill the last bucket of the chain and add none");
    for hash in keys.iter().chain(&more) {
        world.remove(*hash);
    }
    assert_eq!(world.index.items(), 0);
}

/// Takes all free blocks.
fn drain(index: &Index) -> Vec<u64> {
    std::iter::from_fn(|| index.blocks.take(1, &|| None).ok()).flatten().collect()
}

/// Starts to merge two groups without eviction, until there is no memory to move the second one; returns the blocks
/// that were free, too.
fn blocked_growth() -> (World, Vec<KeyHash>, Vec<u64>) {
    let (mut world, keys) = two_groups_that_merge();
    world.evicts = false;
    let partition = world.index.partition_of(keys[0]);
    // Enough for the next table, and not for its chains.
    let taken = Cell::new(0);
    let take = || (taken.replace(1) == 0).then(|| take_segment(&world.next_segment, &world.geometry))?;
    let free = drain(&world.index);
    let mut growth = Growth::Moved;
    while growth == Growth::Moved {
        growth = world.index.grow(partition, true, &world, &take);
        // Nothing is left of that segment.
        drain(&world.index);
    }
    assert_eq!(growth, Growth::Blocked, "the second group brings more than there is room for");
    (world, keys, free)
}

#[test]
fn growth_without_eviction_waits_for_memory() {
    let (world, keys, free) = blocked_growth();
    for hash in &keys {
        assert!(world.find(*hash).is_some(), "{hash:?}");
    }
    SLOTS_LOADED.set(0);
    let partition = world.index.partition_of(keys[0]);
    for _ in 0..100 {
        assert_eq!(world.index.grow(partition, true, &world, &|| None), Growth::Blocked);
    }
    assert_eq!(SLOTS_LOADED.get(), 0, "the group is not searched again in vain");
    let (last, keys) = keys.split_last().expect("there are keys");
    world.remove(*last);
    SLOTS_LOADED.set(0);
    let _ = world.index.grow(partition, true, &world, &|| None);
    let searched = SLOTS_LOADED.get();
    let _ = world.index.grow(partition, true, &world, &|| None);
    assert!(
        searched > 0 && SLOTS_LOADED.get() == searched,
        "with fewer items it may fit: it is searched once"
    );
    world.index.blocks.give_back(free);
    while world.grow(keys[0]) != Growth::None {}
    for hash in keys {
        assert!(world.find(*hash).is_some(), "{hash:?}");
    }
    assert_eq!(world.index.items(), keys.len() as u64);
}

#[test]
fn growth_takes_memory_without_a_lock() {
    let (mut world, keys) = two_groups_that_merge();
    world.evicts = false;
    let taken = Cell::new(0);
    // It may wait, and no write may wait for that.
    let take = || {
        let is_free = |lock: &CachePadded<Mutex<()>>| lock.try_lock().is_ok();
        assert!(world.index.locks.iter().all(is_free), "memory is taken while a group is locked");
        taken.set(taken.get() + 1);
        take_segment(&world.next_segment, &world.geometry)
    };
    drain(&world.index);
    while world.index.grow(world.index.partition_of(keys[0]), true, &world, &take) != Growth::None {
        drain(&world.index);
    }
    assert!(taken.get() > 1, "chains need more than what was taken for the table");
    assert_eq!(world.index.items(), keys.len() as u64);
}

#[test]
fn write_needs_chain_memory_only_of_the_table_that_its_group_is_in() {
    let (world, keys, free) = blocked_growth();
    let (moved, unmoved) = (keys[0], keys[keys.len() - 1]);
    let partition = world.index.partition_of(moved);
    let current = Head::from_word(world.index.head_word(partition)).current;
    let ready = || [current, 1 - current].map(|table| world.index.chains(partition)[table].ready());
    for chains in &mut *world.index.chains(partition) {
        chains.reserve(chains.ready());
    }
    assert_eq!(ready(), [0, 0]);
    let add = |hash| world.index.add_chain_memory(hash, &|| None);
    assert_eq!(add(unmoved), Err(NoIndexBlock));
    world.index.blocks.give_back([free[0]]);
    assert_eq!(add(unmoved), Ok(()), "the other table's lack is none of its own");
    assert!(ready()[0] > 0 && add(moved) == Err(NoIndexBlock));
    world.index.blocks.give_back([free[1]]);
    assert!(add(moved) == Ok(()) && ready()[1] > 0);
}

#[test]
fn walk_visits_each_key_once_while_tables_grow() {
    let mut world = World::new(64 << 20);
    let before: Vec<KeyHash> = hashes(12_000).collect();
    for hash in &before {
        world.insert(*hash);
    }
    let mut later = hashes(120_000).skip(12_000);
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
    let some: Vec<KeyHash> = hashes(16_300).collect();
    for hash in &some {
        world.insert(*hash);
    }
    // Use up the available buckets first.
    let partitions = 0..world.geometry.partitions();
    let mut blocked = 0;
    for partition in partitions {
        while world.index.wants_growth(partition, true) {
            if world.index.grow(partition, true, &world, &|| None) == Growth::Blocked {
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
