//! The index after a kill: its slots say what is stored, and each is checked before a request uses it.
//!
//! The tables are found at the start, and a table that was growing is checked there. The groups of all others are checked
//! when a request first needs them, and by the thread that checks all in order. A server that is killed leaves slots
//! whose item was about to be replaced or removed, and one group half moved. Writes are idempotent, so a kill during
//! recovery only means that it begins again.
//!
//! After a clean stop the checksum of each group was saved. A group that has it is checked, and its items on flash are counted;
//! any other is cleared.
//!
//! Until the last group is checked no table grows, and nothing that a slot may point to is freed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use fabcache_layout::directory::Head;
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::format::{BUCKET_BYTES, BUCKETS_PER_GROUP, GROUP_BYTES, SLOTS_PER_BUCKET};
use fabcache_layout::geometry::BucketOffsets;
use fabcache_layout::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, without};
use fabcache_layout::{Geometry, KeyHash, Memory, Slot};

use super::Index;
use super::group::LockedGroup;
use super::tables::BlockNames;
use crate::restart::Damaged;

/// The store's part in checking slots.
pub trait Survivors {
    /// Prefetches what [`Survivors::hash_of`] reads.
    fn prefetch(&self, slot: Slot);

    /// Returns the hash of the key of the slot's item if that is whole and valid.
    fn hash_of(&self, slot: Slot) -> Option<KeyHash>;

    /// Counts the slot's item as alive.
    fn keep(&self, slot: Slot, hash: KeyHash);

    /// Counts the item of a slot on flash that a clean stop left as alive, if it is still there. Returns whether it is.
    fn keep_on_flash(&self, item: FlashItem) -> bool;
}

/// How far recovery is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Groups that a request could not use at the start.
    pub groups: u32,
    /// Of these, checked.
    pub groups_checked: u32,
    /// Items kept.
    pub kept: u64,
    /// Items dropped.
    pub dropped: u64,
    /// Groups whose checksum of the clean stop was wrong.
    pub groups_damaged: u32,
}

/// The groups of a region whose server was killed, and which of them are checked.
#[derive(Debug)]
pub(super) struct Recovery {
    tables: Box<[UncheckedTable]>,
    groups: u32,
    /// The checksum of each group, if its server stopped cleanly: a group that has it needs no other check.
    sums: Option<Box<[u32]>>,
    /// A bit for each group.
    checked: Box<[AtomicU64]>,
    /// Groups that are not checked.
    left: AtomicU32,
    /// The next group for [`Index::recover_next`].
    next: AtomicU32,
    found: Mutex<FoundBlocks>,
    kept: AtomicU64,
    dropped: AtomicU64,
    damaged: AtomicU32,
}

/// The table of a partition whose groups are to be checked: none if it was checked at the start.
#[derive(Clone, Copy, Debug)]
struct UncheckedTable {
    table: usize,
    groups: u32,
    /// The number of its first group among all.
    first: u32,
}

/// Which blocks have an owner.
#[derive(Debug)]
struct FoundBlocks {
    names: BlockNames,
    /// Blocks of chain buckets, and the partition and table of each.
    chains: HashMap<u64, (usize, usize)>,
    /// Chain buckets that a link names.
    buckets: HashSet<u64>,
}

/// Where a group is.
#[derive(Clone, Copy)]
struct GroupPlace {
    partition: usize,
    table: usize,
    /// Groups of the table.
    groups: u32,
    /// The group's number among them.
    group: u32,
    /// Its offset.
    start: u64,
}

/// The check of one group, under its lock or of a region that no other thread uses yet.
struct GroupCheck<'a, S> {
    index: &'a Index,
    recovery: &'a Recovery,
    survivors: &'a S,
    place: GroupPlace,
    /// Where items of the table that keys move to are; those of the other one that are there too have moved.
    moved: &'a HashSet<u64>,
    /// Of the table that keys move to: the groups of the other one, and the last of these that keys have come from.
    from: Option<(u32, u32)>,
    kept: Vec<(KeyHash, u64)>,
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
    /// Returns the index of a region whose server was killed, none of whose groups is checked but those of a table that
    /// was growing. `is_index` says which segments are the index's.
    ///
    /// # Errors
    /// A server stores no such heads or block numbers; nothing was written.
    pub fn recovering(
        memory: Memory,
        geometry: Geometry,
        locks: usize,
        is_index: impl Fn(u32) -> bool,
        survivors: &impl Survivors,
    ) -> Result<Index, Damaged> {
        let mut names = BlockNames::new(geometry, is_index);
        let mut index = Index::empty(memory, geometry, locks);
        index.find_tables(&mut names).map_err(|_| Damaged("the directory of its index"))?;
        let recovery = Recovery::new(&index, names, None);
        if let Some(partition) = index.growing_partition() {
            index.check_growing(&recovery, partition, survivors);
        }
        index.is_recovering = AtomicBool::new(true);
        index.recovery = Some(Box::new(recovery));
        Ok(index)
    }

    /// Returns how far the recovery is or, when it has ended, what it found. None was needed if there were no groups.
    pub fn recovery_progress(&self) -> RecoveryProgress {
        let Some(recovery) = &self.recovery else { return RecoveryProgress::default() };
        RecoveryProgress {
            groups: recovery.groups,
            groups_checked: recovery.groups - recovery.left.load(Ordering::Relaxed),
            kept: recovery.kept.load(Ordering::Relaxed),
            dropped: recovery.dropped.load(Ordering::Relaxed),
            groups_damaged: recovery.damaged.load(Ordering::Relaxed),
        }
    }

    /// Checks the group of `hash`, unless it is checked. The caller holds no lock of a group.
    pub fn recover(&self, hash: KeyHash, survivors: &impl Survivors) {
        let Some(recovery) = &self.recovery else { return };
        let partition = self.partition_of(hash);
        let table = recovery.tables[partition];
        if table.groups > 0 {
            let group = hash.group(self.geometry.partition_bits, table.groups);
            self.check_group(recovery, partition, group, survivors);
        }
    }

    /// Checks the next group, in their order; returns false when other threads have begun with the last ones.
    pub fn recover_next(&self, survivors: &impl Survivors) -> bool {
        let Some(recovery) = &self.recovery else { return false };
        if recovery.next.load(Ordering::Relaxed) >= recovery.groups {
            return false;
        }
        let next = recovery.next.fetch_add(1, Ordering::Relaxed);
        if next >= recovery.groups {
            return false;
        }
        let partition = recovery.tables.partition_point(|table| table.first + table.groups <= next);
        self.check_group(recovery, partition, next - recovery.tables[partition].first, survivors);
        true
    }

    /// Ends the recovery if all groups are checked. Returns whether it is over.
    pub fn end_recovery(&self) -> bool {
        let Some(recovery) = &self.recovery else { return true };
        // Acquire: pairs with the release of each thread that checked a group.
        if recovery.left.load(Ordering::Acquire) > 0 && !without("recovered_last") {
            return false;
        }
        let found = recovery.found();
        if self.is_recovering() {
            // Blocks that a growing table has taken are already claimed.
            self.blocks.give_back(found.names.free());
            self.is_recovering.store(false, Ordering::Release);
        }
        true
    }

    /// Returns whether requests may use the group of `hash`.
    pub(super) fn is_checked(&self, hash: KeyHash) -> bool {
        let Some(recovery) = self.recovery.as_ref().filter(|_| self.is_recovering()) else { return true };
        let partition = self.partition_of(hash);
        let table = recovery.tables[partition];
        table.groups == 0
            || recovery.is_checked(partition, hash.group(self.geometry.partition_bits, table.groups))
    }

    fn check_group(&self, recovery: &Recovery, partition: usize, group: u32, survivors: &impl Survivors) {
        if recovery.is_checked(partition, group) {
            return;
        }
        let UncheckedTable { table, groups, .. } = recovery.tables[partition];
        let (guard, start) = self.lock_group(partition, table, group);
        let locked = LockedGroup::new(self, guard, partition, (table, groups), start);
        // Another thread may have checked it during the wait. Then the table may even have been replaced.
        if recovery.is_checked(partition, group) && !without("recovered_once") {
            return;
        }
        match recovery.sum(partition, group) {
            Some(sum) if sum == self.group_sum(start) => Self::check_on_flash(&locked, survivors),
            Some(_) => self.drop_group(recovery, start),
            None => {
                let place = GroupPlace { partition, table, groups, group, start };
                GroupCheck::new(self, recovery, survivors, place, &HashSet::new()).run(None);
            }
        }
        recovery.note_checked(partition, group);
    }

    /// Counts the items on flash of a group that is as a clean stop left it; clears their slots if they are lost.
    fn check_on_flash(group: &LockedGroup<'_>, survivors: &impl Survivors) {
        if group.index().flash_bits(group.partition) == 0 {
            return;
        }
        let _ = group.visit_all(|seen| {
            if FlashItem::from_slot(seen.slot).is_some_and(|item| !survivors.keep_on_flash(item)) {
                group.clear(seen.at);
            }
            ControlFlow::<()>::Continue(())
        });
    }

    /// Does that for a table that was growing at a clean stop, before any other thread uses it.
    #[cfg(not(loom))]
    pub fn check_growing_on_flash(&self, survivors: &impl Survivors) {
        let Some(partition) = self.growing_partition() else { return };
        for (table, groups) in self.tables_of(partition) {
            for group in 0..groups {
                let (guard, start) = self.lock_group(partition, table, group);
                let locked = LockedGroup::new(self, guard, partition, (table, groups), start);
                Self::check_on_flash(&locked, survivors);
            }
        }
    }

    /// Clears a damaged group. Its slots may be those of an earlier time, and items that were dead since then alive again.
    /// The items count as alive until reclaim comes to them.
    fn drop_group(&self, recovery: &Recovery, start: u64) {
        recovery.damaged.fetch_add(1, Ordering::Relaxed);
        for at in (start..start + GROUP_BYTES).step_by(8) {
            recovery.dropped.fetch_add(u64::from(self.load_slot(at).is_item()), Ordering::Relaxed);
            self.store_slot(at, Slot::EMPTY);
        }
    }

    /// Checks a partition whose table was growing, before any other thread uses it.
    fn check_growing(&self, recovery: &Recovery, partition: usize, survivors: &impl Survivors) {
        let head = Head::from_word(self.head_word(partition));
        let offset = |table, group| self.group_start(partition, table, group);
        let check = |group, moved| {
            let start = offset(head.current, group);
            let place = GroupPlace { partition, table: head.current, groups: head.groups, group, start };
            GroupCheck::new(self, recovery, survivors, place, moved).run(None);
        };
        let next = 1 - head.current;
        let next_groups = head.next_groups.expect("the partition was growing");
        let moved = self.groups_moved(head.groups, |group| offset(head.current, group));
        // The last group of all may have moved as a whole.
        let next_group = moved.min(head.groups - 1);
        self.partitions[partition].next_group.store(next_group, Ordering::Relaxed);
        // A damaged slot of a moved group would let a search end there.
        let slots = |group| (offset(head.current, group)..).step_by(8).take((GROUP_BYTES / 8) as usize);
        (0..moved).flat_map(slots).for_each(|at| self.store_slot(at, Slot::MOVED));
        let (mut found, none) = (HashSet::new(), HashSet::new());
        for group in 0..next_groups {
            let place =
                GroupPlace { partition, table: next, groups: next_groups, group, start: offset(next, group) };
            let from = Some((head.groups, next_group));
            GroupCheck { from, ..GroupCheck::new(self, recovery, survivors, place, &none) }
                .run(Some(&mut found));
        }
        if moved < head.groups {
            check(next_group, &found);
        }
        (next_group + 1..head.groups).for_each(|group| check(group, &none));
    }

    /// Returns how many groups of a growing partition have moved. They move in their order, and the first slot of each
    /// says so: as few of these as possible are taken to be damaged.
    fn groups_moved(&self, groups: u32, offset: impl Fn(u32) -> u64) -> u32 {
        let (mut moved, mut least, mut damaged) = (0, 0, 0);
        for group in 0..groups {
            damaged += if self.is_group_moved(offset(group)) { -1 } else { 1 };
            if damaged < least {
                (moved, least) = (group + 1, damaged);
            }
        }
        moved
    }
}

impl Recovery {
    /// `sums` are those of all groups but those of a growing partition, which are checked at the start.
    pub(super) fn new(index: &Index, names: BlockNames, sums: Option<Box<[u32]>>) -> Recovery {
        let mut first = 0;
        let table = |partition| {
            let head = Head::from_word(index.head_word(partition));
            let groups = if head.next_groups.is_some() { 0 } else { head.groups };
            let table = UncheckedTable { table: head.current, groups, first };
            first += groups;
            table
        };
        let tables = (0..index.geometry.partitions()).map(table).collect();
        Recovery {
            tables,
            groups: first,
            sums,
            checked: (0..first.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect(),
            left: AtomicU32::new(first),
            next: AtomicU32::new(0),
            found: Mutex::new(FoundBlocks { names, chains: HashMap::new(), buckets: HashSet::new() }),
            kept: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            damaged: AtomicU32::new(0),
        }
    }

    /// The word and the bit of a group.
    fn bit(&self, partition: usize, group: u32) -> (&AtomicU64, u64) {
        let number = self.tables[partition].first + group;
        (&self.checked[(number / u64::BITS) as usize], 1 << (number % u64::BITS))
    }

    fn sum(&self, partition: usize, group: u32) -> Option<u32> {
        Some(self.sums.as_ref()?[(self.tables[partition].first + group) as usize])
    }

    fn is_checked(&self, partition: usize, group: u32) -> bool {
        let (word, bit) = self.bit(partition, group);
        word.load(Ordering::Acquire) & bit != 0
    }

    fn note_checked(&self, partition: usize, group: u32) {
        let (word, bit) = self.bit(partition, group);
        // Release: a reader without the lock that sees the bit sees the slots as they were left.
        let order = if without("recovered_release") { Ordering::Relaxed } else { Ordering::Release };
        word.fetch_or(bit, order);
        self.left.fetch_sub(1, Ordering::AcqRel);
    }

    fn found(&self) -> MutexGuard<'_, FoundBlocks> {
        self.found.lock().expect("no thread panics while it names blocks")
    }
}

impl<'a, S: Survivors> GroupCheck<'a, S> {
    fn new(
        index: &'a Index,
        recovery: &'a Recovery,
        survivors: &'a S,
        place: GroupPlace,
        moved: &'a HashSet<u64>,
    ) -> GroupCheck<'a, S> {
        GroupCheck { index, recovery, survivors, place, moved, from: None, kept: Vec::new() }
    }

    /// Checks the slots of the group, and adds where its items are to `found`.
    fn run(mut self, mut found: Option<&mut HashSet<u64>>) {
        let start = self.place.start;
        let homes = BUCKETS_PER_GROUP * SLOTS_PER_BUCKET;
        let slots = (GROUP_BYTES / 8) as usize;
        for at in (start..start + GROUP_BYTES).step_by(8) {
            let slot = self.index.load_slot(at);
            if slot.is_item_in_memory() {
                self.survivors.prefetch(slot);
            }
        }
        for i in 0..slots {
            let place = match i {
                _ if i < homes => SlotPlace::Home(i / SLOTS_PER_BUCKET),
                _ if i + 1 < slots => SlotPlace::Overflow,
                _ => SlotPlace::Last,
            };
            self.check_slot(start + 8 * i as u64, place);
        }
        self.check_chain(start + GROUP_BYTES - 8);
        // A key has one slot. Of two it is unknown which is the later one.
        let mut kept = std::mem::take(&mut self.kept);
        kept.sort_unstable();
        let mut items = 0;
        for same in kept.chunk_by(|(one, _), (other, _)| one == other) {
            for (hash, at) in same {
                let slot = self.index.load_slot(*at);
                if same.len() > 1 {
                    self.clear(*at, slot);
                    continue;
                }
                self.survivors.keep(slot, *hash);
                items += 1;
                if let Some(found) = &mut found {
                    found.insert(slot.offset());
                }
            }
        }
        self.index.partitions[self.place.partition].items.fetch_add(items, Ordering::Relaxed);
        self.recovery.kept.fetch_add(u64::from(items), Ordering::Relaxed);
    }

    /// Follows the links behind the group, and cuts the chain at an invalid one.
    fn check_chain(&mut self, mut last: u64) {
        // The loop ends: `take_bucket` accepts each bucket once.
        loop {
            let slot = self.index.load_slot(last);
            if !slot.is_special() {
                return;
            }
            let link = slot.link_offset().filter(|bucket| slot.is_link() && self.take_bucket(*bucket));
            let Some(bucket) = link else { return self.clear(last, slot) };
            last = bucket + BUCKET_BYTES - 8;
            for at in (bucket..last).step_by(8) {
                self.check_slot(at, SlotPlace::Overflow);
            }
            self.check_slot(last, SlotPlace::Last);
        }
    }

    /// Takes a chain bucket that no other link names. A block belongs to one table; its unused buckets are not allocated
    /// again.
    fn take_bucket(&self, bucket: u64) -> bool {
        let geometry = &self.index.geometry;
        let Some(segment) = geometry.segment_of(bucket) else { return false };
        let within =
            (bucket - geometry.segment_offset(segment)) / geometry.block_bytes() * geometry.block_bytes();
        let block = geometry.segment_offset(segment) + within;
        let is_whole =
            bucket.is_multiple_of(BUCKET_BYTES) && bucket + BUCKET_BYTES <= block + geometry.block_bytes();
        let FoundBlocks { names, chains, buckets } = &mut *self.recovery.found();
        if !is_whole || buckets.contains(&bucket) {
            return false;
        }
        let (partition, table) = (self.place.partition, self.place.table);
        match chains.entry(block) {
            Entry::Occupied(owner) if *owner.get() != (partition, table) => return false,
            Entry::Occupied(_) => {}
            Entry::Vacant(block_owner) => {
                if names.name((block / geometry.block_unit_bytes()) as u32).is_none() {
                    return false;
                }
                block_owner.insert((partition, table));
                self.index.chains(partition)[table].add_full_block(block, geometry.block_bytes());
            }
        }
        self.index.chain_buckets.fetch_add(1, Ordering::Relaxed);
        buckets.insert(bucket)
    }

    /// Keeps a slot whose item is valid and belongs there, marks one that has moved, and clears any other.
    fn check_slot(&mut self, at: u64, place: SlotPlace) {
        let slot = self.index.load_slot(at);
        // Links are checked when they are followed.
        let is_link = matches!(place, SlotPlace::Last) && slot.link_offset().is_some();
        if slot.is_empty() || is_link {
            return;
        }
        if slot.is_item_in_memory() && self.moved.contains(&slot.offset()) {
            return self.index.store_slot(at, Slot::MOVED.with_overflowed_of(slot));
        }
        // A half moved group has slots that read MOVED.
        if slot.is_moved() && !self.moved.is_empty() {
            return;
        }
        let hash = if slot.is_item_in_memory() { self.survivors.hash_of(slot) } else { None };
        match hash {
            Some(hash) if self.belongs(place, slot, hash) => self.kept.push((hash, at)),
            _ => self.clear(at, slot),
        }
    }

    /// Returns whether a search for the key finds the slot.
    fn belongs(&self, place: SlotPlace, slot: Slot, hash: KeyHash) -> bool {
        let bits = self.index.geometry.partition_bits;
        let position = hash.position(bits, self.place.groups);
        let places = BucketOffsets::of(self.place.start, position.bucket);
        let is_reached = match place {
            SlotPlace::Home(bucket) => {
                let bucket = self.place.start + bucket as u64 * BUCKET_BYTES;
                bucket == places.home || bucket == places.neighbour
            }
            SlotPlace::Overflow | SlotPlace::Last => self.index.load_slot(places.home).is_overflowed(),
        };
        hash.partition(bits) == self.place.partition
            && self.from.is_none_or(|(groups, last)| hash.group(bits, groups) <= last)
            && position.group == self.place.group
            && slot.tag() == hash.tag()
            && is_reached
    }

    fn clear(&self, at: u64, slot: Slot) {
        self.recovery.dropped.fetch_add(u64::from(slot.is_item()), Ordering::Relaxed);
        self.index.store_slot(at, Slot::EMPTY.with_overflowed_of(slot));
    }
}
