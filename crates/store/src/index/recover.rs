//! The index after a kill: its slots say what is stored, and each is checked before the first request.
//!
//! A server that is killed leaves at most one group half moved, and slots whose item was about to be replaced or removed.
//! Writes are idempotent, so a kill during recovery only means that it begins again.

use std::collections::HashSet;

use crossbeam_utils::CachePadded;
use fabcache_layout::directory::{self, Head};
use fabcache_layout::format::{BUCKET_BYTES, BUCKETS_PER_GROUP, GROUP_BYTES, SLOTS_PER_BUCKET};
use fabcache_layout::geometry::BucketOffsets;
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex};
use fabcache_layout::{Geometry, KeyHash, Memory, Slot};

use super::blocks::{Blocks, ChainBuckets};
use super::restore::BlockNames;
use super::{Index, Partition};
use crate::bounds::CHAIN_BUCKETS_SEARCHED_MAX;
use crate::restart::Damaged;

/// The store's part in checking slots.
pub trait Survivors: Sync {
    /// Prefetches what [`Survivors::hash_of`] reads.
    fn prefetch(&self, slot: Slot);

    /// Returns the hash of the key of the slot's item if that is whole and valid.
    fn hash_of(&self, slot: Slot) -> Option<KeyHash>;

    /// Counts the slot's item as alive.
    fn keep(&self, slot: Slot, hash: KeyHash);
}

struct RecoveredPartition {
    partition: Partition,
    chain_buckets: u64,
    /// Items that were not kept.
    dropped: u64,
}

/// One table of one partition.
struct Table<'a, S> {
    index: &'a Index,
    survivors: &'a S,
    names: &'a Mutex<BlockNames>,
    partition: usize,
    table: usize,
    groups: u32,
    /// Where items of the table that keys move to are; those of the other one that are there too have moved.
    moved: HashSet<u64>,
    items: u32,
    /// Slots with an item that were cleared.
    dropped: std::cell::Cell<u64>,
    chains: Vec<u64>,
    chain_buckets: HashSet<u64>,
}

/// Where a slot is.
#[derive(Clone, Copy)]
enum SlotPlace {
    Home(usize),
    Overflow,
    /// The last slot of the overflow area or of a chain bucket, where a link may be.
    Last,
}

impl Index {
    /// Returns the index of a region whose server was killed, and the number of items that were not kept: clears each slot
    /// that no request may find. `is_index` says which segments are the index's. Works with so many threads.
    ///
    /// # Errors
    /// A server stores no such heads or block numbers; nothing was written.
    pub fn recover(
        memory: Memory,
        geometry: Geometry,
        locks: usize,
        is_index: impl Fn(u32) -> bool,
        threads: usize,
        survivors: &impl Survivors,
    ) -> Result<(Index, u64), Damaged> {
        let mut names = BlockNames::new(geometry, is_index);
        let mut index = Index::empty(memory, geometry, locks);
        index.find_tables(&mut names).map_err(|_| Damaged("the directory of its index"))?;
        let names = Mutex::new(names);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let recovered: Vec<(usize, RecoveredPartition)> = std::thread::scope(|scope| {
            let work = || {
                let mut recovered = Vec::new();
                loop {
                    let partition = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if partition >= geometry.partitions() {
                        return recovered;
                    }
                    recovered.push((partition, index.recover_partition(partition, &names, survivors)));
                }
            };
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut all = work();
            for worker in workers {
                all.extend(worker.join().expect("a thread that only reads and clears slots"));
            }
            all
        });
        let (mut chain_buckets, mut dropped) = (0, 0);
        for (number, recovered) in recovered {
            index.partitions[number] = CachePadded::new(recovered.partition);
            chain_buckets += recovered.chain_buckets;
            dropped += recovered.dropped;
        }
        let free = names.into_inner().expect("no thread panics while it names blocks").free();
        index.blocks = Blocks::with_free(&geometry, free);
        index.chain_buckets = AtomicU64::new(chain_buckets);
        Ok((index, dropped))
    }

    fn recover_partition<S: Survivors>(
        &self,
        partition: usize,
        names: &Mutex<BlockNames>,
        survivors: &S,
    ) -> RecoveredPartition {
        let head = Head::from_word(self.head_word(partition));
        let table = |table, groups| Table {
            index: self,
            survivors,
            names,
            partition,
            table,
            groups,
            moved: HashSet::new(),
            items: 0,
            dropped: std::cell::Cell::new(0),
            chains: Vec::new(),
            chain_buckets: HashSet::new(),
        };
        let mut current = table(head.current, head.groups);
        let mut other = table(1 - head.current, head.next_groups.unwrap_or(0));
        let mut next_group = 0;
        if head.next_groups.is_some() {
            let is_moved = |group| self.is_group_moved(current.group_offset(group));
            next_group = (0..head.groups).find(|group| !is_moved(*group)).unwrap_or(head.groups - 1);
            let mut found = HashSet::new();
            (0..other.groups).for_each(|group| other.recover_group(group, Some(&mut found)));
            current.moved = found;
        }
        for group in next_group..head.groups {
            if head.next_groups.is_some() && self.is_group_moved(current.group_offset(group)) {
                continue;
            }
            current.recover_group(group, None);
        }
        let items = current.items + other.items;
        let chain_buckets = (current.chain_buckets.len() + other.chain_buckets.len()) as u64;
        let dropped = current.dropped.get() + other.dropped.get();
        let mut chains = [current, other].map(Table::into_chains);
        if head.current == 1 {
            chains.reverse();
        }
        let partition = Partition {
            items: AtomicU32::new(items),
            next_group: AtomicU32::new(next_group),
            chains: Mutex::new(chains),
            ..Partition::default()
        };
        RecoveredPartition { partition, chain_buckets, dropped }
    }
}

impl<S: Survivors> Table<'_, S> {
    fn geometry(&self) -> &Geometry {
        &self.index.geometry
    }

    fn group_offset(&self, group: u32) -> u64 {
        let index = self.index;
        directory::group_offset(&index.memory, &index.geometry, self.partition, self.table, group)
            .expect("the table's blocks are the index's")
    }

    /// The chain buckets that are in use; their blocks have no others to give.
    fn into_chains(self) -> ChainBuckets {
        let block_bytes = self.geometry().block_bytes();
        let taken = self.chains.len() as u64 * (block_bytes / BUCKET_BYTES);
        ChainBuckets::with_blocks(self.chains, block_bytes, taken).expect("as many as the blocks have")
    }

    /// Checks the slots of a group, and adds where its items are to `found`.
    fn recover_group(&mut self, group: u32, mut found: Option<&mut HashSet<u64>>) {
        let start = self.group_offset(group);
        let homes = BUCKETS_PER_GROUP * SLOTS_PER_BUCKET;
        let slots = (GROUP_BYTES / 8) as usize;
        for at in (start..start + GROUP_BYTES).step_by(8) {
            let slot = self.index.load_slot(at);
            if slot.is_item() {
                self.survivors.prefetch(slot);
            }
        }
        let mut kept: Vec<(KeyHash, u64)> = Vec::new();
        for i in 0..slots {
            let place = match i {
                _ if i < homes => SlotPlace::Home(i / SLOTS_PER_BUCKET),
                _ if i + 1 < slots => SlotPlace::Overflow,
                _ => SlotPlace::Last,
            };
            self.recover_slot(start, group, start + 8 * i as u64, place, &mut kept);
        }
        self.recover_chain(start, group, start + GROUP_BYTES - 8, &mut kept);
        // A key has one slot. Of two it is unknown which is the later one.
        kept.sort_unstable();
        for same in kept.chunk_by(|(one, _), (other, _)| one == other) {
            for (hash, at) in same {
                let slot = self.index.load_slot(*at);
                if same.len() > 1 {
                    self.clear(*at, slot);
                    continue;
                }
                self.survivors.keep(slot, *hash);
                self.items += 1;
                if let Some(found) = &mut found {
                    found.insert(slot.offset());
                }
            }
        }
    }

    /// Follows the links behind a group, and cuts the chain at an invalid one.
    fn recover_chain(&mut self, start: u64, group: u32, mut last: u64, kept: &mut Vec<(KeyHash, u64)>) {
        for _ in 0..=CHAIN_BUCKETS_SEARCHED_MAX {
            let slot = self.index.load_slot(last);
            if !slot.is_special() {
                return;
            }
            let Some(bucket) =
                slot.link_offset().filter(|bucket| slot.is_link() && self.take_bucket(*bucket))
            else {
                return self.clear(last, slot);
            };
            last = bucket + BUCKET_BYTES - 8;
            for at in (bucket..last).step_by(8) {
                self.recover_slot(start, group, at, SlotPlace::Overflow, kept);
            }
            self.recover_slot(start, group, last, SlotPlace::Last, kept);
        }
        let slot = self.index.load_slot(last);
        if slot.is_special() {
            self.clear(last, slot);
        }
    }

    /// Takes a chain bucket that no other link names. Its block is this table's alone.
    fn take_bucket(&mut self, bucket: u64) -> bool {
        let geometry = *self.geometry();
        let Some(segment) = geometry.segment_of(bucket) else { return false };
        let within =
            (bucket - geometry.segment_offset(segment)) / geometry.block_bytes() * geometry.block_bytes();
        let block = geometry.segment_offset(segment) + within;
        let is_whole =
            bucket.is_multiple_of(BUCKET_BYTES) && bucket + BUCKET_BYTES <= block + geometry.block_bytes();
        if !is_whole || self.chain_buckets.contains(&bucket) {
            return false;
        }
        if !self.chains.contains(&block) {
            let number = (block / geometry.block_unit_bytes()) as u32;
            let mut names = self.names.lock().expect("no thread panics while it names blocks");
            if names.name(number).is_none() {
                return false;
            }
            self.chains.push(block);
        }
        self.chain_buckets.insert(bucket)
    }

    /// Keeps a slot whose item is valid and belongs there, marks one that has moved, and clears any other.
    fn recover_slot(
        &mut self,
        start: u64,
        group: u32,
        at: u64,
        place: SlotPlace,
        kept: &mut Vec<(KeyHash, u64)>,
    ) {
        let slot = self.index.load_slot(at);
        // Links are checked when they are followed.
        let is_link = matches!(place, SlotPlace::Last) && slot.link_offset().is_some();
        if slot.is_empty() || is_link {
            return;
        }
        if slot.is_item() && self.moved.contains(&slot.offset()) {
            return self.index.store_slot(at, Slot::MOVED.with_overflowed_of(slot));
        }
        // A half moved group has slots that read MOVED.
        if slot.is_moved() && !self.moved.is_empty() {
            return;
        }
        let hash = if slot.is_item() { self.survivors.hash_of(slot) } else { None };
        match hash {
            Some(hash) if self.belongs(start, group, place, slot, hash) => kept.push((hash, at)),
            _ => self.clear(at, slot),
        }
    }

    /// Returns whether a search for the key finds the slot.
    fn belongs(&self, start: u64, group: u32, place: SlotPlace, slot: Slot, hash: KeyHash) -> bool {
        let bits = self.geometry().partition_bits;
        let position = hash.position(bits, self.groups);
        let places = BucketOffsets::of(start, position.bucket);
        let is_reached = match place {
            SlotPlace::Home(bucket) => {
                let bucket = start + bucket as u64 * BUCKET_BYTES;
                bucket == places.home || bucket == places.neighbour
            }
            SlotPlace::Overflow | SlotPlace::Last => self.index.load_slot(places.home).is_overflowed(),
        };
        hash.partition(bits) == self.partition
            && position.group == group
            && slot.tag() == hash.tag()
            && is_reached
    }

    fn clear(&self, at: u64, slot: Slot) {
        self.dropped.set(self.dropped.get() + u64::from(slot.is_item()));
        self.index.store_slot(at, Slot::EMPTY.with_overflowed_of(slot));
    }
}
