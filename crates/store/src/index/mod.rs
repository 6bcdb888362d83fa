//! The index: from the hash of a key to the slot that points to its item.
//!
//! Keys are spread over partitions; each has a table of groups, in hash order. A group is 32 home buckets and a few
//! overflow buckets, all under one of the server's locks. A key is in its home bucket, else in the neighbour bucket
//! (both are adjacent, one read), else in the group's overflow area, whose last slot may link to further buckets. They
//! are few: who can read the hash seed can make keys collide, and may harm only the keys of one group.
//! Nothing is ever moved to make room, so a reader that saw all places of a key saw the key if it was there.
//!
//! - `lookup.rs`: reading without locks.
//! - `group.rs`: reading and writing under the group's lock.
//! - `resize.rs`: growing a table, a group at a time.
//! - `flash.rs`: slots of items on flash.
//! - `restore.rs`: saving and restoring the process's part; `recover.rs`: rebuilding it after a kill; `tables.rs`: the
//!   tables that the region names; `sums.rs`: checksums of groups.
//! - `walk.rs`: visiting everything, in hash order.
//! - `blocks.rs`: memory for tables.
//!
//! Locks: a writer holds one group's lock and takes no other. Only the resizer holds several, and `resizing` admits one
//! resizer at a time, so there is no deadlock.

pub mod blocks;
pub mod flash;
pub mod group;
pub mod lookup;
pub mod recover;
pub mod resize;
#[cfg(not(loom))]
pub mod restore;
mod sums;
mod tables;
pub mod walk;

#[cfg(all(test, not(loom)))]
mod flash_tests;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

use crossbeam_utils::CachePadded;
use fabcache_layout::directory::{self, Head};
use fabcache_layout::format::{BUCKET_BYTES, BUCKETS_PER_GROUP, GROUP_BYTES, SLOTS_PER_BUCKET};
use fabcache_layout::geometry::BucketOffsets;
use fabcache_layout::slot::FREQUENCY_MAX;
use fabcache_layout::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use fabcache_layout::{Bucket, Geometry, KeyHash, Memory, Slot};

use crate::bounds::{LOAD_MAX_FULL_PER_128, LOAD_MAX_ROOMY_PER_128};
use blocks::{Blocks, ChainBuckets};
use group::LockedGroup;
use recover::Recovery;

/// The index needs a segment, and none is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoIndexBlock;

/// Why a group has no place for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// The table has no chain bucket ready ([`Index::add_chain_memory`]).
    NoBucket,
    /// The group's chain is as long as it may be.
    GroupFull,
}

/// The server's own part of a partition.
#[derive(Debug, Default)]
struct Partition {
    /// Items in it; changed under group locks, read to decide on growth.
    items: AtomicU32,
    /// The next group to move, while it grows. Under `resizing`.
    next_group: AtomicU32,
    /// Chain buckets that the next group to move needs, as far as known. Under `resizing`.
    chains_needed: AtomicU64,
    /// Items of the partition when that was counted: with fewer, the group may need fewer. Under `resizing`.
    chains_needed_items: AtomicU32,
    /// Chain buckets of the two tables.
    chains: Mutex<[ChainBuckets; 2]>,
}

/// The index of one region.
#[derive(Debug)]
pub struct Index {
    memory: Memory,
    geometry: Geometry,
    partitions: Box<[CachePadded<Partition>]>,
    locks: Box<[CachePadded<Mutex<()>>]>,
    blocks: Blocks,
    resizing: Mutex<()>,
    /// The partition that is growing now, plus one. One at a time, so that only one has two tables: the index never
    /// returns memory. Written under `resizing`.
    growing: AtomicU32,
    /// Groups of all tables, counting both while one grows.
    groups: AtomicU64,
    chain_buckets: AtomicU64,
    /// Some groups may be unchecked since a kill. Read by every request, written once.
    is_recovering: AtomicBool,
    recovery: Option<Box<Recovery>>,
}

/// A slot's place and its content when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Offset of the slot in the region.
    pub at: u64,
    /// Its word.
    pub slot: Slot,
}

/// The home bucket of a hash in its partition's current table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeBucket {
    /// The partition's head when the bucket was looked up.
    pub version: u64,
    at: u64,
}

impl HomeBucket {
    /// None: no bucket is in the region's header.
    pub const NONE: HomeBucket = HomeBucket { version: 0, at: 0 };
}

impl Index {
    /// Returns an index with one group in each partition, its blocks from `take_segment`, its groups under `locks`
    /// locks.
    pub fn new(
        memory: Memory,
        geometry: Geometry,
        locks: usize,
        take_segment: impl Fn() -> Option<u64>,
    ) -> Result<Index, NoIndexBlock> {
        let index = Index::empty(memory, geometry, locks);
        for partition in 0..index.geometry.partitions() {
            index.make_table(partition, 0, 1, &take_segment)?;
            let head = Head { current: 0, groups: 1, next_groups: None, version: 0 };
            index.store_head(partition, head);
        }
        Ok(index)
    }

    /// Returns an index that knows of no table.
    fn empty(memory: Memory, geometry: Geometry, locks: usize) -> Index {
        Index {
            partitions: (0..geometry.partitions()).map(|_| CachePadded::default()).collect(),
            locks: (0..locks).map(|_| CachePadded::new(Mutex::new(()))).collect(),
            blocks: Blocks::new(&geometry),
            resizing: Mutex::new(()),
            growing: AtomicU32::new(0),
            groups: AtomicU64::new(0),
            chain_buckets: AtomicU64::new(0),
            is_recovering: AtomicBool::new(false),
            recovery: None,
            memory,
            geometry,
        }
    }

    /// Returns whether groups may be unchecked since a kill (`recover.rs`).
    #[inline]
    pub fn is_recovering(&self) -> bool {
        // Acquire: pairs with the release of `end_recovery`.
        self.is_recovering.load(Ordering::Acquire)
    }

    /// Items in the index.
    pub fn items(&self) -> u64 {
        self.partitions.iter().map(|p| u64::from(p.items.load(Ordering::Relaxed))).sum()
    }

    /// Home slots of all tables.
    pub fn home_slots(&self) -> u64 {
        self.groups.load(Ordering::Relaxed) * (BUCKETS_PER_GROUP * SLOTS_PER_BUCKET) as u64
    }

    /// Returns the bytes of all tables and chains.
    pub fn bytes(&self) -> u64 {
        self.groups.load(Ordering::Relaxed) * GROUP_BYTES
            + self.chain_buckets.load(Ordering::Relaxed) * BUCKET_BYTES
    }

    /// Some table is growing.
    pub fn is_growing(&self) -> bool {
        self.growing_partition().is_some()
    }

    /// Returns the number of chain buckets.
    pub fn chain_buckets(&self) -> u64 {
        self.chain_buckets.load(Ordering::Relaxed)
    }

    /// The partition of a hash.
    #[inline]
    pub fn partition_of(&self, hash: KeyHash) -> usize {
        hash.partition(self.geometry.partition_bits)
    }

    #[inline]
    fn head_word(&self, partition: usize) -> u64 {
        directory::load_head(&self.memory, &self.geometry, partition)
    }

    /// Checks that no table of the partition was replaced since its head was `word`. Of the loads since then, only
    /// that of a block number is not an acquire: the fence makes a reader that saw a later table's number see the
    /// later head too.
    #[inline]
    fn is_head_still(&self, partition: usize, word: u64) -> bool {
        fence(Ordering::Acquire);
        self.head_word(partition) == word
    }

    fn store_head(&self, partition: usize, head: Head) {
        let at = directory::head_offset(&self.geometry, partition);
        self.memory.store(at, head.to_word(), Ordering::Release);
    }

    #[inline]
    fn load_slot(&self, at: u64) -> Slot {
        #[cfg(all(test, not(loom)))]
        tests::count_slot_load();
        // Acquire: pairs with the release of `store_slot`, so that the item behind a slot is whole.
        Slot(self.memory.load(at, Ordering::Acquire))
    }

    #[inline]
    fn store_slot(&self, at: u64, slot: Slot) {
        self.memory.store(at, slot.0, Ordering::Release);
    }

    /// Returns the slot as it is now, if it still points to the same item.
    #[inline]
    pub fn reload(&self, seen: SlotSnapshot) -> Option<Slot> {
        let slot = self.load_slot(seen.at);
        slot.same_item(seen.slot).then_some(slot)
    }

    /// Counts a read of the item: one compare-exchange, not retried, none once it is saturated.
    #[inline]
    pub fn count_read(&self, seen: SlotSnapshot) {
        self.count_reads(seen, 1);
    }

    /// Adds reads to the item's count in the same way.
    #[inline]
    pub fn count_reads(&self, seen: SlotSnapshot, reads: u8) {
        let frequency = seen.slot.frequency();
        let raised = frequency.saturating_add(reads).min(FREQUENCY_MAX);
        if raised != frequency {
            let _ = self.memory.compare_exchange(
                seen.at,
                seen.slot.0,
                seen.slot.with_frequency(raised).0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Prefetches the head of the hash's partition.
    #[inline]
    pub fn prefetch_head(&self, hash: KeyHash) {
        self.memory.prefetch(directory::head_offset(&self.geometry, self.partition_of(hash)));
    }

    /// Prefetches the home bucket. Returns where it is, and for [`Index::is_current`] since when.
    #[inline(always)]
    pub fn prefetch(&self, hash: KeyHash) -> HomeBucket {
        let version = self.head_word(self.partition_of(hash));
        let head = Head::from_word(version);
        let places = directory::bucket_offsets(&self.memory, &self.geometry, hash, head.current, head.groups);
        // A stale head may name a group that the table no longer has.
        let Some(BucketOffsets { home: at, .. }) = places else { return HomeBucket::NONE };
        self.memory.prefetch(at);
        HomeBucket { version, at }
    }

    /// Prefetches the items that the home bucket points to, and returns the first slot, or an empty one. The items are
    /// not read, so the bucket may change meanwhile.
    #[inline]
    pub fn prefetch_items(&self, hash: KeyHash, home: HomeBucket) -> SlotSnapshot {
        let mut first = SlotSnapshot { at: home.at, slot: Slot::EMPTY };
        if home == HomeBucket::NONE {
            return first;
        }
        for (i, slot) in Bucket::load(&self.memory, home.at).items(hash.tag()) {
            self.memory.prefetch(slot.offset());
            if first.slot == Slot::EMPTY {
                first = SlotSnapshot { at: home.at + 8 * i as u64, slot };
            }
        }
        first
    }

    /// Locks the group of `hash`.
    pub fn lock(&self, hash: KeyHash) -> LockedGroup<'_> {
        debug_assert!(self.is_checked(hash), "the group is not recovered");
        let partition = self.partition_of(hash);
        let bits = self.geometry.partition_bits;
        loop {
            let word = self.head_word(partition);
            let head = Head::from_word(word);
            let (guard, group) = self.lock_group(partition, head.current, hash.group(bits, head.groups));
            // The table may have been replaced during the wait, but the group cannot have moved without its lock. The
            // head is read last: loads from a moved group may be another table's by then.
            let is_moved = self.is_group_moved(group);
            if self.is_head_still(partition, word) && !is_moved {
                return LockedGroup::new(self, guard, partition, (head.current, head.groups), group);
            }
            let Some(next_groups) = head.next_groups else { continue };
            drop(guard);
            let table = 1 - head.current;
            let (guard, group) = self.lock_group(partition, table, hash.group(bits, next_groups));
            let word = self.head_word(partition);
            let now = Head::from_word(word);
            let is_next = now.current != table && now.next_groups == Some(next_groups);
            let is_current = now.current == table && now.groups == next_groups;
            let moved_here = is_current || is_next && self.is_source_moved(partition, now, hash);
            let is_ours = (is_next || is_current) && moved_here && !self.is_group_moved(group);
            if is_ours && self.is_head_still(partition, word) {
                return LockedGroup::new(self, guard, partition, (table, next_groups), group);
            }
        }
    }

    /// Locks the group of `hash`, whose home bucket was looked up before: a hint.
    #[inline]
    pub fn lock_probed(&self, hash: KeyHash, home: HomeBucket) -> LockedGroup<'_> {
        debug_assert!(self.is_checked(hash), "the group is not recovered");
        if home != HomeBucket::NONE {
            let partition = self.partition_of(hash);
            let head = Head::from_word(home.version);
            let position = hash.position(self.geometry.partition_bits, head.groups);
            let guard = self.locks[self.lock_of(partition, head.current, position.group)]
                .lock()
                .expect("no thread panics while it holds a group lock");
            let group = home.at - position.bucket as u64 * BUCKET_BYTES;
            // As in `lock`. The head is unchanged since before the bucket was looked up, so the group is its table's.
            let is_moved = self.is_group_moved(group);
            if self.is_head_still(partition, home.version) && !is_moved {
                return LockedGroup::new(self, guard, partition, (head.current, head.groups), group);
            }
        }
        self.lock(hash)
    }

    /// Locks the group of `hash` if that needs no waiting and no table is growing.
    pub fn try_lock(&self, hash: KeyHash) -> Option<LockedGroup<'_>> {
        debug_assert!(self.is_checked(hash), "the group is not recovered");
        let partition = self.partition_of(hash);
        let word = self.head_word(partition);
        let head = Head::from_word(word);
        if head.next_groups.is_some() {
            return None;
        }
        let group = hash.group(self.geometry.partition_bits, head.groups);
        let guard = self.locks[self.lock_of(partition, head.current, group)].try_lock().ok()?;
        let offset = directory::group_offset(&self.memory, &self.geometry, partition, head.current, group)?;
        let same = self.is_head_still(partition, word);
        same.then(|| LockedGroup::new(self, guard, partition, (head.current, head.groups), offset))
    }

    /// Returns whether the key's group of the current table has moved.
    fn is_source_moved(&self, partition: usize, head: Head, hash: KeyHash) -> bool {
        let group = hash.group(self.geometry.partition_bits, head.groups);
        directory::group_offset(&self.memory, &self.geometry, partition, head.current, group)
            .is_some_and(|group| self.is_group_moved(group))
    }

    /// A moved group's slots all read MOVED; the first one is written last.
    #[inline]
    fn is_group_moved(&self, group: u64) -> bool {
        self.load_slot(group).is_moved()
    }

    #[inline]
    fn lock_group(&self, partition: usize, table: usize, group: u32) -> (MutexGuard<'_, ()>, u64) {
        let guard = self.locks[self.lock_of(partition, table, group)]
            .lock()
            .expect("no thread panics while it holds a group lock");
        let offset = directory::group_offset(&self.memory, &self.geometry, partition, table, group);
        // A stale head may name a group that the table no longer has; the caller checks the head again.
        (guard, offset.unwrap_or(self.geometry.directory))
    }

    /// The offset of a group of a table that cannot go meanwhile.
    fn group_start(&self, partition: usize, table: usize, group: u32) -> u64 {
        directory::group_offset(&self.memory, &self.geometry, partition, table, group)
            .expect("the table's blocks are the index's")
    }

    #[inline]
    fn lock_of(&self, partition: usize, table: usize, group: u32) -> usize {
        let mixed = (partition as u64) << 32 | u64::from(group) << 1 | table as u64;
        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((mixed * self.locks.len() as u64) >> 32) as usize
    }

    /// Returns whether the partition holds more than its table should. `roomy`: memory is free.
    #[inline]
    pub fn wants_growth(&self, partition: usize, roomy: bool) -> bool {
        let head = Head::from_word(self.head_word(partition));
        head.next_groups.is_some() || self.is_overfull(partition, head.groups, roomy)
    }

    fn is_overfull(&self, partition: usize, groups: u32, roomy: bool) -> bool {
        let load_max = if roomy { LOAD_MAX_ROOMY_PER_128 } else { LOAD_MAX_FULL_PER_128 };
        let home_slots = groups * (BUCKETS_PER_GROUP * SLOTS_PER_BUCKET) as u32;
        let items = self.partitions[partition].items.load(Ordering::Relaxed);
        u64::from(items) * 128 > u64::from(home_slots) * u64::from(load_max)
            && groups < self.geometry.groups_max()
    }
}
