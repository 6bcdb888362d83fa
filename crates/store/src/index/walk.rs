//! Visiting everything in the index, in hash order.
//!
//! The place reached is a hash, not a group number, so a walk goes on rightly after tables have grown under it: each
//! key that is there from start to end is visited exactly once.

use std::ops::ControlFlow;

use fabcache_layout::KeyHash;
use fabcache_layout::directory::Head;
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::Ordering;

use super::group::LockedGroup;
use super::resize::Rehash;
use super::{Index, SlotSnapshot};

/// The position of a walk: the next hash, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(Option<KeyHash>);

impl Cursor {
    /// Before the first key.
    pub const START: Cursor = Cursor(Some(KeyHash(0)));

    /// Behind the last key.
    pub const END: Cursor = Cursor(None);

    /// Returns the hash that the walk has reached; none at the end.
    pub(crate) fn hash(self) -> Option<KeyHash> {
        self.0
    }

    /// Nothing is left.
    pub fn is_done(self) -> bool {
        self.0.is_none()
    }
}

impl Index {
    /// Visits the items of one group, under its lock, and returns where to go on. At most a few hundred items. The hash of an item on
    /// flash is one at the same place in the index: while a table grows, two steps may visit it, and its key is in one of them.
    pub fn walk(
        &self,
        cursor: Cursor,
        rehash: &impl Rehash,
        mut visit: impl FnMut(SlotSnapshot, KeyHash),
    ) -> Cursor {
        let Some(from) = cursor.0 else { return cursor };
        let locked = self.lock(from);
        let next = self.end_of_walked(from, &locked);
        let _ = locked.visit_all(|seen| {
            if seen.slot.is_item() {
                let hashes = match FlashItem::from_slot(seen.slot) {
                    None => rehash.hash_at(seen.slot.offset()).map(|hash| (hash, hash..=hash)),
                    Some(item) => Some(self.hashes_of_slot(from, &locked, item)),
                };
                if let Some((hash, range)) = hashes
                    && *range.end() >= from
                    && next.0.is_none_or(|end| *range.start() < end)
                {
                    visit(seen, hash);
                }
            }
            ControlFlow::<()>::Continue(())
        });
        next
    }

    /// Returns where a walk goes on that has reached `from`, after a visit to its group.
    pub(super) fn end_of_walked(&self, from: KeyHash, locked: &LockedGroup<'_>) -> Cursor {
        let partition = self.partition_of(from);
        let head = Head::from_word(self.head_word(partition));
        let (groups, is_next) = locked.table_groups(head);
        let mut end = self.group_end(partition, from, groups);
        if is_next {
            // A group of the new table is complete only as far as the old group of `from` reaches.
            let old_end = self.group_end(partition, from, head.groups);
            end = if old_end.0 == 0 || end.0 != 0 && end < old_end { end } else { old_end };
        }
        Cursor((end.0 != 0).then_some(end))
    }

    /// Visits every item in memory, of every table, one group at a time under its lock, while no table grows.
    pub fn visit_all(&self, mut visit: impl FnMut(&LockedGroup<'_>, SlotSnapshot)) {
        self.visit_groups(|locked| {
            let each = |visit: &mut dyn FnMut(SlotSnapshot)| {
                let _ = locked.visit_all(|seen| {
                    if seen.slot.is_item_in_memory() {
                        visit(seen);
                    }
                    ControlFlow::<()>::Continue(())
                });
            };
            each(&mut |seen| self.memory.prefetch(seen.slot.offset()));
            each(&mut |seen| visit(locked, seen));
        });
    }

    /// Visits every group of every table under its lock, while no table grows.
    fn visit_groups(&self, mut visit: impl FnMut(&LockedGroup<'_>)) {
        debug_assert!(!self.is_recovering(), "a group may be unchecked");
        let _resizing = self.resizing.lock().expect("no thread panics while it moves a group");
        for partition in 0..self.geometry.partitions() {
            for (table, groups) in self.tables_of(partition) {
                for group in 0..groups {
                    let (guard, offset) = self.lock_group(partition, table, group);
                    visit(&LockedGroup::new(self, guard, partition, (table, groups), offset));
                }
            }
        }
    }

    /// A partition's current table and the one that it grows to, each with its groups: none if it does not grow.
    pub(super) fn tables_of(&self, partition: usize) -> [(usize, u32); 2] {
        let head = Head::from_word(self.head_word(partition));
        [(head.current, head.groups), (1 - head.current, head.next_groups.unwrap_or(0))]
    }

    /// Counts the items of each partition anew. No other thread uses the index meanwhile.
    pub fn recount(&self) {
        let mut items = vec![0; self.partitions.len()];
        self.visit_groups(|group| {
            let _ = group.visit_all(|seen| {
                items[group.partition] += u32::from(seen.slot.is_item());
                ControlFlow::<()>::Continue(())
            });
        });
        for (partition, items) in self.partitions.iter().zip(items) {
            partition.items.store(items, Ordering::Relaxed);
        }
    }

    /// Waits until each thread that holds the lock of a group now has released it.
    pub fn wait_for_locks(&self) {
        for lock in &self.locks {
            drop(lock.lock().expect("no thread panics while it holds a group lock"));
        }
    }

    /// The first hash behind the group of `hash`; 0 behind the last group of all.
    fn group_end(&self, partition: usize, hash: KeyHash, groups: u32) -> KeyHash {
        let bits = self.geometry.partition_bits;
        KeyHash::first_of(partition, bits, hash.group(bits, groups) + 1, groups)
    }
}
