//! Reading and writing a group under its lock.

use std::ops::ControlFlow;

use fabcache_layout::directory::Head;
use fabcache_layout::format::{BUCKET_BYTES, GROUP_BYTES};
use fabcache_layout::geometry::BucketOffsets;
use fabcache_layout::sync::{MutexGuard, Ordering};
use fabcache_layout::{Bucket, KeyHash, Slot};

use super::blocks::ChainUse;
use super::{Index, NoPlace, SlotSnapshot};
use crate::bounds::CHAIN_BUCKETS_MAX;

/// A locked group. Only its holder changes its slots, except for their frequency.
#[derive(Debug)]
pub struct LockedGroup<'i> {
    index: &'i Index,
    _guard: Option<MutexGuard<'i, ()>>,
    pub(super) partition: usize,
    table: usize,
    /// Groups in the table.
    groups: u32,
    group: u64,
}

impl<'i> LockedGroup<'i> {
    #[inline]
    pub(super) fn new(
        index: &'i Index,
        guard: MutexGuard<'i, ()>,
        partition: usize,
        (table, groups): (usize, u32),
        group: u64,
    ) -> LockedGroup<'i> {
        LockedGroup { index, _guard: Some(guard), partition, table, groups, group }
    }

    /// Returns a group whose lock the caller holds through another group (two groups may share a lock).
    pub(super) fn under_other_lock(
        index: &'i Index,
        partition: usize,
        (table, groups): (usize, u32),
        group: u64,
    ) -> LockedGroup<'i> {
        LockedGroup { index, _guard: None, partition, table, groups, group }
    }

    /// The index.
    pub(super) fn index(&self) -> &Index {
        self.index
    }

    /// Groups in the table.
    pub(super) fn groups(&self) -> u32 {
        self.groups
    }

    /// Returns the buckets of a key of this group.
    #[inline]
    fn places(&self, hash: KeyHash) -> BucketOffsets {
        let position = hash.position(self.index.geometry.partition_bits, self.groups);
        BucketOffsets::of(self.group, position.bucket)
    }

    /// Returns the slot of the key with this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: KeyHash, mut is_it: impl FnMut(Slot) -> bool) -> Option<SlotSnapshot> {
        let (tag, places) = (hash.tag(), self.places(hash));
        let mut is_overflowed = false;
        for bucket in [places.home, places.neighbour] {
            let slots = Bucket::load(&self.index.memory, bucket);
            for (i, slot) in slots.items(tag) {
                if is_it(slot) {
                    return Some(SlotSnapshot { at: bucket + 8 * i as u64, slot });
                }
            }
            is_overflowed |= bucket == places.home && slots.slots()[0].is_overflowed();
        }
        if !is_overflowed {
            return None;
        }
        let mut visit = |seen: SlotSnapshot| {
            if seen.slot.matches(tag) && is_it(seen.slot) {
                ControlFlow::Break(seen)
            } else {
                ControlFlow::Continue(())
            }
        };
        self.visit_overflow(places, &mut visit).break_value()
    }

    /// Returns the slot at a place that was probed, if it is in the home bucket of `hash` and has its tag.
    #[inline]
    pub fn reload(&self, hash: KeyHash, at: u64) -> Option<SlotSnapshot> {
        let home = self.places(hash).home;
        if at.wrapping_sub(home) >= BUCKET_BYTES {
            return None;
        }
        let slot = self.index.load_slot(at);
        slot.matches(hash.tag()).then_some(SlotSnapshot { at, slot })
    }

    /// Points the slot at `at` to another version of the same key's item.
    #[inline]
    pub fn replace(&self, at: u64, slot: Slot) {
        let old = self.index.load_slot(at);
        debug_assert!(old.is_item() && slot.is_item());
        self.index.store_slot(at, slot.with_overflowed_of(old));
    }

    /// Empties the slot at `at`.
    pub fn clear(&self, at: u64) {
        let old = self.index.load_slot(at);
        debug_assert!(old.is_item());
        self.index.store_slot(at, Slot::EMPTY.with_overflowed_of(old));
        self.index.partitions[self.partition].items.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a key that is not there, at the place found for it.
    #[inline]
    pub fn insert_at(&self, at: u64, slot: Slot) {
        let old = self.index.load_slot(at);
        debug_assert!(old.is_empty());
        self.index.store_slot(at, slot.with_overflowed_of(old));
        self.index.partitions[self.partition].items.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns an empty slot where a key with this hash may be.
    pub fn place_for(&self, hash: KeyHash, chain_use: ChainUse) -> Result<u64, NoPlace> {
        let places = self.places(hash);
        for bucket in [places.home, places.neighbour] {
            if let Some(at) = self.empty_in(bucket, bucket + BUCKET_BYTES) {
                return Ok(at);
            }
        }
        let at = self.place_in_overflow(places, chain_use)?;
        self.mark_overflowed(places.home);
        Ok(at)
    }

    /// Returns an empty slot where a key with either hash may be. Their home buckets are the same or adjacent.
    pub fn place_for_either(
        &self,
        first: KeyHash,
        last: KeyHash,
        chain_use: ChainUse,
    ) -> Result<u64, NoPlace> {
        let (places, last) = (self.places(first), self.places(last));
        if places.home == last.home {
            return self.place_for(first, chain_use);
        }
        // The last one's home bucket is the first one's neighbour.
        if let Some(at) = self.empty_in(last.home, last.home + BUCKET_BYTES) {
            return Ok(at);
        }
        let at = self.place_in_overflow(places, chain_use)?;
        self.mark_overflowed(places.home);
        self.mark_overflowed(last.home);
        Ok(at)
    }

    /// Marks a home bucket before one of its keys is in the overflow area, so that a reader that finds no mark need not search
    /// there.
    fn mark_overflowed(&self, home: u64) {
        let first = self.index.load_slot(home);
        if !first.is_overflowed() {
            self.index.store_slot(home, first.with_overflowed());
        }
    }

    fn place_in_overflow(&self, places: BucketOffsets, chain_use: ChainUse) -> Result<u64, NoPlace> {
        let (mut start, mut end) = (places.overflow, places.overflow_end);
        let mut buckets = 0;
        loop {
            if let Some(at) = self.empty_in(start, end) {
                return Ok(at);
            }
            let last = self.index.load_slot(end - 8);
            let next = match last.link_offset() {
                Some(link) => link,
                None if chain_use == ChainUse::Bounded && buckets >= CHAIN_BUCKETS_MAX => {
                    return Err(NoPlace::GroupFull);
                }
                None => self.add_chain_bucket(end - 8, last, chain_use)?,
            };
            buckets += 1;
            (start, end) = (next, next + BUCKET_BYTES);
        }
    }

    fn empty_in(&self, start: u64, end: u64) -> Option<u64> {
        (start..end).step_by(8).find(|at| self.index.load_slot(*at).is_empty())
    }

    /// Links a bucket in the slot at `at`, whose item moves there first.
    fn add_chain_bucket(&self, at: u64, item: Slot, chain_use: ChainUse) -> Result<u64, NoPlace> {
        let bucket = {
            let mut chains = self.index.chains(self.partition);
            chains[self.table].take(chain_use).ok_or(NoPlace::NoBucket)?
        };
        self.index.store_slot(bucket, item);
        self.index.store_slot(at, Slot::link(bucket));
        self.index.chain_buckets.fetch_add(1, Ordering::Relaxed);
        Ok(bucket)
    }

    /// Visits every slot of the group: homes, overflow area, chain.
    pub fn visit_all<R>(&self, mut visit: impl FnMut(SlotSnapshot) -> ControlFlow<R>) -> ControlFlow<R> {
        let chain = self.visit_range(self.group, self.group + GROUP_BYTES, &mut visit)?;
        self.visit_chain(chain, &mut visit)
    }

    /// Visits every slot where a key with this hash may be put.
    pub fn visit_usable<R>(
        &self,
        hash: KeyHash,
        mut visit: impl FnMut(SlotSnapshot) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        let places = self.places(hash);
        self.visit_homes(places, &mut visit)?;
        self.visit_overflow(places, &mut visit)
    }

    fn visit_homes<R>(
        &self,
        places: BucketOffsets,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        self.visit_range(places.home, places.home + BUCKET_BYTES, visit)?;
        self.visit_range(places.neighbour, places.neighbour + BUCKET_BYTES, visit)?;
        ControlFlow::Continue(())
    }

    fn visit_overflow<R>(
        &self,
        places: BucketOffsets,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        let chain = self.visit_range(places.overflow, places.overflow_end, visit)?;
        self.visit_chain(chain, visit)
    }

    fn visit_chain<R>(
        &self,
        mut link: Option<u64>,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        while let Some(bucket) = link {
            link = self.visit_range(bucket, bucket + BUCKET_BYTES, visit)?;
        }
        ControlFlow::Continue(())
    }

    /// Visits the slots of a range; the link in its last slot, if there is one, is returned and not visited.
    fn visit_range<R>(
        &self,
        start: u64,
        end: u64,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
    ) -> ControlFlow<R, Option<u64>> {
        for at in (start..end).step_by(8) {
            let slot = self.index.load_slot(at);
            if let Some(link) = slot.link_offset() {
                return ControlFlow::Continue(Some(link));
            }
            visit(SlotSnapshot { at, slot })?;
        }
        ControlFlow::Continue(None)
    }

    /// Marks every slot as moved, the group's first one last: it says that the whole group is.
    pub(super) fn mark_moved(&self) {
        let group = self.group;
        let mut link = None;
        for at in (group + 8..group + GROUP_BYTES).step_by(8) {
            link = link.or(self.index.load_slot(at).link_offset());
            self.index.store_slot(at, Slot::MOVED);
        }
        self.index.store_slot(group, Slot::MOVED);
        let mut buckets = 0;
        while let Some(bucket) = link {
            link = None;
            for at in (bucket..bucket + BUCKET_BYTES).step_by(8) {
                link = link.or(self.index.load_slot(at).link_offset());
                self.index.store_slot(at, Slot::MOVED);
            }
            buckets += 1;
        }
        self.index.chain_buckets.fetch_sub(buckets, Ordering::Relaxed);
    }

    /// Marks one slot as moved; its key was counted at its new place. A home bucket keeps its overflow mark: keys of
    /// the overflow area, which move later, are still searched for there.
    pub(super) fn mark_slot_moved(&self, at: u64) {
        self.index.store_slot(at, Slot::MOVED.with_overflowed_of(self.index.load_slot(at)));
        self.count_moved();
    }

    /// Counts a key that moved to another group.
    pub(super) fn count_moved(&self) {
        self.index.partitions[self.partition].items.fetch_sub(1, Ordering::Relaxed);
    }

    /// Groups in the table that this group is of, and whether it is the one that keys are moving to.
    pub(super) fn table_groups(&self, head: Head) -> (u32, bool) {
        (self.groups, head.next_groups.is_some() && head.current != self.table)
    }
}
