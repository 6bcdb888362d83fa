//! Slots of items on flash (`layout::flash_slot`).
//!
//! Such a slot has more bits of its key's hash than its group tells, but not the tag. So a search for a key may meet a slot of another
//! key with the same fraction: with n times as many items on flash as were in memory when the first one went there, once in
//! some 60,000 / n searches. The item's bytes decide.

use std::ops::{ControlFlow, RangeInclusive};

use fabcache_layout::directory::{self, Head};
use fabcache_layout::flash_slot::{
    FlashItem, REST_BITS, first_hash, fraction, fraction_bits, fraction_from, positions,
};
use fabcache_layout::sync::Ordering;
use fabcache_layout::{KeyHash, Slot};

use super::group::LockedGroup;
use super::resize::{Rehash, Unmoved};
use super::walk::Cursor;
use super::{Index, SlotSnapshot};

impl Index {
    /// Returns whether a partition ever had items on flash.
    #[cfg(not(loom))]
    pub fn has_flash(&self) -> bool {
        (0..self.geometry.partitions()).any(|partition| self.flash_bits(partition) != 0)
    }

    /// Returns the bits of the fractions of the partition's items on flash; 0 if there never was one.
    #[inline]
    pub(super) fn flash_bits(&self, partition: usize) -> u32 {
        let at = directory::flash_bits_offset(&self.geometry, partition);
        self.memory.load(at, Ordering::Acquire) as u32 & 0xff
    }

    /// Returns the same, and decides on them before the partition's first item on flash.
    fn start_flash(&self, partition: usize) -> u32 {
        let bits = self.flash_bits(partition);
        if bits != 0 {
            return bits;
        }
        // Those of a table that is being replaced are fewer than the next one's, and so serve both.
        let wanted = fraction_bits(Head::from_word(self.head_word(partition)).groups);
        let at = directory::flash_bits_offset(&self.geometry, partition);
        let exchanged =
            self.memory.compare_exchange(at, 0, u64::from(wanted), Ordering::AcqRel, Ordering::Acquire);
        exchanged.map_or_else(|others| others as u32 & 0xff, |_| wanted)
    }

    /// Returns the low bits of the key's fraction, which its slot would have on flash. `None` without such slots.
    #[inline]
    pub(super) fn flash_rest(&self, hash: KeyHash) -> Option<u32> {
        let bits = self.flash_bits(self.partition_of(hash));
        (bits != 0).then(|| rest_of(fraction(hash, self.geometry.partition_bits, bits)))
    }

    /// Returns the lowest and the highest hash that the slot's key may have, which has a slot on flash in this group of a table of
    /// `groups` groups. `None` if they are in several groups of a table of `next_groups`.
    pub(super) fn hash_on_flash(
        &self,
        partition: usize,
        (group, groups): (u32, u32),
        item: FlashItem,
        next_groups: u32,
    ) -> Option<(KeyHash, KeyHash)> {
        let bits = self.flash_bits(partition);
        let fraction = fraction_from(group, groups, item.rest, bits);
        positions(fraction, bits, next_groups)?;
        let partition_bits = self.geometry.partition_bits;
        let first = first_hash(fraction, bits, partition, partition_bits);
        Some((first, KeyHash(first.0 + hashes_of_fraction(partition_bits, bits) - 1)))
    }

    /// Returns a hash of this group that has the fraction of the slot's key.
    fn hash_in_group(&self, partition: usize, (group, groups): (u32, u32), item: FlashItem) -> KeyHash {
        let (bits, partition_bits) = (self.flash_bits(partition), self.geometry.partition_bits);
        let fraction = fraction_from(group, groups, item.rest, bits);
        let first = first_hash(fraction, bits, partition, partition_bits);
        first.max(KeyHash::first_of(partition, partition_bits, group, groups))
    }

    /// Returns a hash of the locked group that the slot's key may have, and the lowest and the highest that it may have, also in a
    /// neighbouring group. The group is that of `hash`.
    pub(super) fn hashes_of_slot(
        &self,
        hash: KeyHash,
        locked: &LockedGroup<'_>,
        item: FlashItem,
    ) -> (KeyHash, RangeInclusive<KeyHash>) {
        let (partition, groups, partition_bits) =
            (locked.partition, locked.groups(), self.geometry.partition_bits);
        let group = hash.group(partition_bits, groups);
        let bits = self.flash_bits(partition);
        let first =
            first_hash(fraction_from(group, groups, item.rest, bits), bits, partition, partition_bits);
        let last = KeyHash(first.0 + hashes_of_fraction(partition_bits, bits) - 1);
        (self.hash_in_group(partition, (group, groups), item), first..=last)
    }

    /// Returns where the slots of a locked group are that do not tell to which group of the next table their keys go, and the hash
    /// of each key, unless it is lost.
    ///
    /// # Errors
    /// Some are to be read first.
    pub(super) fn ambiguous_on_flash(
        &self,
        locked: &LockedGroup<'_>,
        group: u32,
        next_groups: u32,
        rehash: &impl Rehash,
    ) -> Result<Vec<(u64, Option<KeyHash>)>, Unmoved> {
        let (partition, groups) = (locked.partition, locked.groups());
        if self.flash_bits(partition) == 0 {
            return Ok(Vec::new());
        }
        let mut slots = Vec::new();
        let _ = locked.visit_all(|seen| {
            if let Some(item) = FlashItem::from_slot(seen.slot)
                && self.hash_on_flash(partition, (group, groups), item, next_groups).is_none()
            {
                slots.push((seen, self.hash_in_group(partition, (group, groups), item)));
            }
            ControlFlow::<()>::Continue(())
        });
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let hashes = rehash.hashes_on_flash(&slots).ok_or(Unmoved::Unread)?;
        Ok(slots.iter().map(|(seen, _)| seen.at).zip(hashes).collect())
    }

    /// Visits the slots on flash of one group, under its lock, and returns where to go on. Each that is there from start to end
    /// is visited.
    pub fn walk_flash(
        &self,
        cursor: Cursor,
        mut visit: impl FnMut(&LockedGroup<'_>, SlotSnapshot, FlashItem),
    ) -> Cursor {
        let Some(from) = cursor.hash() else { return cursor };
        let locked = self.lock(from);
        if self.flash_bits(locked.partition) != 0 {
            let _ = locked.visit_all(|seen| {
                if let Some(item) = FlashItem::from_slot(seen.slot) {
                    visit(&locked, seen, item);
                }
                ControlFlow::<()>::Continue(())
            });
        }
        self.end_of_walked(from, &locked)
    }
}

impl LockedGroup<'_> {
    /// Returns a slot of the key on flash that `is_it` accepts.
    pub fn find_on_flash(&self, hash: KeyHash, mut is_it: impl FnMut(Slot) -> bool) -> Option<SlotSnapshot> {
        let rest = self.index().flash_rest(hash)?;
        let visit = |seen: SlotSnapshot| match FlashItem::from_slot(seen.slot) {
            Some(item) if item.rest == rest && is_it(seen.slot) => ControlFlow::Break(seen),
            _ => ControlFlow::Continue(()),
        };
        self.visit_usable(hash, visit).break_value()
    }

    /// Returns the slot of a key of this group whose item goes to these pages of flash.
    pub fn flash_slot(&self, hash: KeyHash, page: u32, page_class: u8, frequency: u8) -> Slot {
        let bits = self.index().start_flash(self.partition);
        let fraction = fraction(hash, self.index().geometry.partition_bits, bits);
        FlashItem { rest: rest_of(fraction), page, page_class }.to_slot(frequency)
    }

    /// Returns a slot of the group on flash, wherever in the group it is.
    pub fn find_slot_on_flash(&self, slot: Slot) -> Option<SlotSnapshot> {
        let visit = |seen: SlotSnapshot| match seen.slot.is_on_flash() && seen.slot.same_item(slot) {
            true => ControlFlow::Break(seen),
            false => ControlFlow::Continue(()),
        };
        self.visit_all(visit).break_value()
    }
}

/// Returns how many hashes have one fraction of so many bits.
fn hashes_of_fraction(partition_bits: u32, bits: u32) -> u64 {
    1 << (u64::BITS - partition_bits - bits)
}

fn rest_of(fraction: u64) -> u32 {
    (fraction & ((1 << REST_BITS) - 1)) as u32
}
