//! Growing a partition's table, a group at a time.
//!
//! ```text
//!  settled --start: other table made--> migrating --last group moved--> settled, on the other table
//! ```
//! There is no way back from migrating: keys are in both tables. While a group moves, its lock and those of the groups
//! its keys go to are held. The key is in the new table before its old slot reads MOVED, so a reader finds it in one
//! of them; a writer that meets a moved group goes on in the new table, whose groups are not written for a key before
//! the key's old group is moved as a whole.
//!
//! A group that is moved holds no more than writes put there, so the move takes a bounded time. Where live items are
//! evicted, its keys find no more room in the new table than writes do. Where they are not, they find all the room
//! that they need: the chain buckets for it are reserved before the first key moves.

use std::ops::ControlFlow;

use fabcache_layout::directory::{self, Head};
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::format::{GROUP_BYTES, SLOTS_PER_BUCKET};
use fabcache_layout::sync::{MutexGuard, Ordering, fence, in_order, without};
use fabcache_layout::{KeyHash, Slot};

use super::blocks::{ChainBuckets, ChainUse};
use super::group::LockedGroup;
use super::{Index, NoIndexBlock, NoPlace, Partition, SlotSnapshot};
use crate::bounds::{GROUPS_MOVED_TO_MAX, GROWTH_DIVISOR_FULL, GROWTH_DIVISOR_ROOMY};

/// The store's part in moving keys.
pub trait Rehash {
    /// The hash of the key whose item is at `offset`, `None` if the item is damaged. Called with the lock of the slot that
    /// points to it.
    fn hash_at(&self, offset: u64) -> Option<KeyHash>;

    /// Returns the hashes of the keys of slots on flash that do not tell to which groups the keys go; `None` for a lost one.
    /// Each slot comes with a hash of its group. Called with the lock of the slots. `None` if the items have to be read first.
    fn hashes_on_flash(&self, slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>>;

    /// The slot's item is damaged, or is on flash and its key is lost. Called with the lock of the slot, which no longer points
    /// to it once `unlink` was called.
    fn discard(&self, seen: SlotSnapshot, unlink: impl FnOnce());

    /// Returns whether an item may be evicted if the new table lacks room.
    fn may_evict(&self) -> bool;

    /// There is no room for the slot's item in the new table. Called with the lock of the slot.
    /// The item's slot no longer points to it once `unlink` was called.
    fn evict(&self, hash: KeyHash, seen: SlotSnapshot, unlink: impl FnOnce());
}

/// The result of a step of growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing to do, or another thread does it.
    None,
    /// A group was moved.
    Moved,
    /// The last group was moved.
    Finished,
    /// There is no memory for it now, or an item on flash is to be read first.
    Blocked,
}

/// Why a group was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmoved {
    /// There is no memory.
    NoMemory,
    /// Items on flash are to be read first.
    Unread,
}

impl From<NoIndexBlock> for Unmoved {
    fn from(_: NoIndexBlock) -> Unmoved {
        Unmoved::NoMemory
    }
}

impl Index {
    /// Moves one group of the partition that grows, or starts growing this one if it is too full. `roomy`: memory is
    /// free.
    pub fn grow(
        &self,
        partition: usize,
        roomy: bool,
        rehash: &impl Rehash,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Growth {
        let Ok(_resizing) = self.resizing.try_lock() else { return Growth::None };
        let partition = self.growing_partition().unwrap_or(partition);
        let head = Head::from_word(self.head_word(partition));
        let (head, next_groups) = match head.next_groups {
            Some(next_groups) => (head, next_groups),
            None if self.is_overfull(partition, head.groups, roomy) => {
                match self.start_growth(partition, head, roomy, take_segment) {
                    Ok(started) => started,
                    Err(NoIndexBlock) => return Growth::Blocked,
                }
            }
            None => return Growth::None,
        };
        let group = self.partitions[partition].next_group.load(Ordering::Relaxed);
        if self.move_group(partition, head, next_groups, group, rehash, take_segment).is_err() {
            return Growth::Blocked;
        }
        self.partitions[partition].next_group.store(group + 1, Ordering::Relaxed);
        self.partitions[partition].chains_needed.store(0, Ordering::Relaxed);
        if group + 1 < head.groups {
            return Growth::Moved;
        }
        self.finish_growth(partition, head, next_groups);
        Growth::Finished
    }

    /// The growing partition to continue with.
    pub fn growing_partition(&self) -> Option<usize> {
        (self.growing.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    fn start_growth(
        &self,
        partition: usize,
        head: Head,
        roomy: bool,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<(Head, u32), NoIndexBlock> {
        let divisor = if roomy { GROWTH_DIVISOR_ROOMY } else { GROWTH_DIVISOR_FULL };
        let next_groups = (head.groups + (head.groups / divisor).max(1)).min(self.geometry.groups_max());
        self.make_table(partition, 1 - head.current, next_groups, take_segment)?;
        self.partitions[partition].next_group.store(0, Ordering::Relaxed);
        self.growing.store(partition as u32 + 1, Ordering::Relaxed);
        let head = Head { next_groups: Some(next_groups), ..head }.bumped();
        self.store_head(partition, head);
        Ok((head, next_groups))
    }

    /// Makes an empty table of `groups` groups that no reader uses yet.
    pub(super) fn make_table(
        &self,
        partition: usize,
        table: usize,
        groups: u32,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<(), NoIndexBlock> {
        let groups_per_block = 1 << self.geometry.block_shift;
        let blocks = self.blocks.take(groups.div_ceil(groups_per_block) as usize, take_segment)?;
        self.end_earlier_use();
        let mut left = u64::from(groups);
        for (i, block) in blocks.into_iter().enumerate() {
            let here = left.min(u64::from(groups_per_block));
            self.memory.zero(block, here * GROUP_BYTES);
            left -= here;
            let number =
                u32::try_from(block / self.geometry.block_unit_bytes()).expect("geometry bounds blocks");
            let at = directory::block_number_offset(&self.geometry, partition, table, i);
            self.memory.store_u32(at, number, Ordering::Relaxed);
        }
        self.groups.fetch_add(u64::from(groups), Ordering::Relaxed);
        Ok(())
    }

    /// Moves a group, or nothing of it if the memory for its chains cannot be reserved, or items are to be read first.
    fn move_group(
        &self,
        partition: usize,
        head: Head,
        next_groups: u32,
        group: u32,
        rehash: &impl Rehash,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<(), Unmoved> {
        let table = 1 - head.current;
        let chain_use = if rehash.may_evict() { ChainUse::Bounded } else { ChainUse::Reserved };
        let (old, offset) = match chain_use {
            ChainUse::Bounded => self.lock_old_group(partition, head, group),
            ChainUse::Reserved => self.lock_with_chains(partition, head, group, take_segment)?,
        };
        let ambiguous = self.ambiguous_on_flash(&old, group, next_groups, rehash).inspect_err(|_| {
            self.chains(partition)[table].reserve(0);
        })?;
        let hash_of_ambiguous = |seen: SlotSnapshot| {
            ambiguous
                .iter()
                .find(|(at, _)| *at == seen.at)
                .and_then(|(_, hash)| hash.map(|hash| (hash, hash)))
        };
        let (first_new, new_groups) = self.lock_new_groups(partition, head, next_groups, group);
        let move_key = |seen: SlotSnapshot, mark: &dyn Fn()| {
            let hashes = match FlashItem::from_slot(seen.slot) {
                None => rehash.hash_at(seen.slot.offset()).map(|hash| (hash, hash)),
                Some(item) => self
                    .hash_on_flash(partition, (group, head.groups), item, next_groups)
                    .or_else(|| hash_of_ambiguous(seen)),
            };
            let Some((hash, last)) = hashes else { return rehash.discard(seen, mark) };
            let bits = self.geometry.partition_bits;
            let new = hash.group(bits, next_groups).checked_sub(first_new);
            let new = new.and_then(|nth| new_groups.get(nth as usize));
            // Damage brought a key here that belongs elsewhere.
            let Some(new) = new.filter(|_| hash.partition(bits) == partition) else {
                return rehash.discard(seen, mark);
            };
            // The frequency may change until the old slot is marked; at most one count is lost.
            let slot = self.load_slot(seen.at).with_overflowed_of(Slot::EMPTY);
            let mut place = new.place_for_either(hash, last, chain_use);
            if place == Err(NoPlace::NoBucket) && self.add_chain_block(partition, table, take_segment).is_ok()
            {
                place = new.place_for_either(hash, last, chain_use);
            }
            match place {
                Ok(at) => in_order("insert_first", || new.insert_at(at, slot), mark),
                Err(why) => {
                    debug_assert!(chain_use == ChainUse::Bounded, "{why:?} of what is reserved");
                    rehash.evict(hash, SlotSnapshot { at: seen.at, slot }, mark);
                }
            }
        };
        let _ = old.visit_all(|seen| {
            // The group's first slot says whether the whole group has moved, so it is the last to.
            if seen.slot.is_item() && seen.at != offset {
                move_key(seen, &|| old.mark_slot_moved(seen.at));
            }
            ControlFlow::<()>::Continue(())
        });
        let first = SlotSnapshot { at: offset, slot: self.load_slot(offset) };
        if first.slot.is_item() {
            move_key(first, &|| {
                old.count_moved();
                old.mark_moved();
            });
        } else {
            old.mark_moved();
        }
        self.chains(partition)[table].reserve(0);
        Ok(())
    }

    /// Locks the groups of the new table to which keys of an old one go, which is locked; returns the number of the
    /// first one, too. Several groups may share a lock.
    fn lock_new_groups(
        &self,
        partition: usize,
        head: Head,
        next_groups: u32,
        group: u32,
    ) -> (u32, Vec<LockedGroup<'_>>) {
        let table = 1 - head.current;
        let bits = self.geometry.partition_bits;
        let new_group = |hash: KeyHash| hash.group(bits, next_groups);
        let first = new_group(KeyHash::first_of(partition, bits, group, head.groups));
        let end = KeyHash::first_of(partition, bits, group + 1, head.groups);
        let last = new_group(KeyHash(end.0.wrapping_sub(1)));
        let mut held = vec![self.lock_of(partition, head.current, group)];
        let locked = (first..=last).map(|group| {
            let lock = self.lock_of(partition, table, group);
            if !held.contains(&lock) {
                held.push(lock);
                let (guard, offset) = self.lock_group(partition, table, group);
                return LockedGroup::new(self, guard, partition, (table, next_groups), offset);
            }
            let offset = self.group_start(partition, table, group);
            LockedGroup::under_other_lock(self, partition, (table, next_groups), offset)
        });
        (first, locked.collect())
    }

    /// Locks a group of the table that keys move from; returns its offset, too.
    fn lock_old_group(&self, partition: usize, head: Head, group: u32) -> (LockedGroup<'_>, u64) {
        let (guard, offset) = self.lock_group(partition, head.current, group);
        (LockedGroup::new(self, guard, partition, (head.current, head.groups), offset), offset)
    }

    /// Like [`Index::lock_old_group`], having reserved chain buckets of the next table for all keys of the group,
    /// wherever they belong. Memory is taken without the lock, as that may wait. The need is remembered, so that no
    /// group is searched again while there is no memory.
    fn lock_with_chains(
        &self,
        partition: usize,
        head: Head,
        group: u32,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<(LockedGroup<'_>, u64), NoIndexBlock> {
        let table = 1 - head.current;
        let Partition { items: all_items, chains_needed: needed, chains_needed_items, .. } =
            &*self.partitions[partition];
        loop {
            while self.chains(partition)[table].ready() < needed.load(Ordering::Relaxed) {
                let added = self.add_chain_block(partition, table, take_segment);
                if added.is_err() {
                    let counted = chains_needed_items.load(Ordering::Relaxed);
                    if all_items.load(Ordering::Relaxed) >= counted {
                        return Err(NoIndexBlock);
                    }
                    needed.store(0, Ordering::Relaxed);
                }
            }
            chains_needed_items.store(all_items.load(Ordering::Relaxed), Ordering::Relaxed);
            let (old, offset) = self.lock_old_group(partition, head, group);
            let mut items = 0;
            let _ = old.visit_all(|seen| {
                items += u64::from(seen.slot.is_item());
                ControlFlow::<()>::Continue(())
            });
            // Each gains one slot less than it has: its link takes one.
            let buckets = items / (SLOTS_PER_BUCKET as u64 - 1) + GROUPS_MOVED_TO_MAX;
            let mut chains = self.chains(partition);
            if chains[table].ready() >= buckets {
                chains[table].reserve(buckets);
                return Ok((old, offset));
            }
            needed.store(buckets, Ordering::Relaxed);
        }
    }

    fn finish_growth(&self, partition: usize, head: Head, next_groups: u32) {
        let settled =
            Head { current: 1 - head.current, groups: next_groups, next_groups: None, ..head }.bumped();
        self.store_head(partition, settled);
        // Readers of the old table find the head changed; its blocks may be used again (`end_earlier_use`).
        self.growing.store(0, Ordering::Relaxed);
        self.groups.fetch_sub(u64::from(head.groups), Ordering::Relaxed);
        let chain_blocks = self.chains(partition)[head.current].clear();
        self.blocks.give_back(chain_blocks);
        let blocks = head.groups.div_ceil(1 << self.geometry.block_shift) as usize;
        self.blocks.give_back((0..blocks).map(|block| {
            let at = directory::block_number_offset(&self.geometry, partition, head.current, block);
            u64::from(self.memory.load_u32(at, Ordering::Relaxed)) * self.geometry.block_unit_bytes()
        }));
    }

    /// Adds a block to the chains of the table whose group `hash` is in, after [`LockedGroup::place_for`] found none.
    pub fn add_chain_memory(
        &self,
        hash: KeyHash,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<(), NoIndexBlock> {
        let partition = self.partition_of(hash);
        // No group moves meanwhile.
        let _resizing = self.resizing.lock().expect("no thread panics while it resizes");
        let head = Head::from_word(self.head_word(partition));
        let is_in_next = head.next_groups.is_some() && self.is_source_moved(partition, head, hash);
        let table = if is_in_next { 1 - head.current } else { head.current };
        if self.chains(partition)[table].ready() > 0 {
            return Ok(());
        }
        self.add_chain_block(partition, table, take_segment)
    }

    fn add_chain_block(
        &self,
        partition: usize,
        table: usize,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<(), NoIndexBlock> {
        let block = self.blocks.take(1, take_segment)?[0];
        self.end_earlier_use();
        self.memory.zero(block, self.geometry.block_bytes());
        self.chains(partition)[table].add_block(block, self.geometry.block_bytes());
        Ok(())
    }

    /// Precedes the first write to blocks that belonged to another table or to items. Another thread ended their use,
    /// and its stores happened before the blocks reached this one. The fence passes them on: a reader that sees this
    /// thread's write sees the changed head, or generation, when it loads that again after an acquire fence.
    fn end_earlier_use(&self) {
        if !without("index_fence") {
            fence(Ordering::Release);
        }
    }

    pub(super) fn chains(&self, partition: usize) -> MutexGuard<'_, [ChainBuckets; 2]> {
        self.partitions[partition].chains.lock().expect("no thread panics while it holds chains")
    }
}
