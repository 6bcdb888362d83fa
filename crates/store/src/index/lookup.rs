//! Reading the index without locks.

use std::ops::ControlFlow;

use fabcache_layout::directory::{self, Head};
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::format::BUCKET_BYTES;
use fabcache_layout::geometry::BucketOffsets;
use fabcache_layout::{Bucket, KeyHash, Slot};

use super::{Index, SlotSnapshot};
use crate::bounds::CHAIN_BUCKETS_SEARCHED_MAX;

/// The result of a lock-free search.
#[derive(Debug, PartialEq, Eq)]
pub enum Search<R> {
    /// A visit ended it.
    Found(R),
    /// All places were searched. The key is in none, or on flash in this slot.
    OnFlash(SlotSnapshot),
    /// All places were searched, and the key is in none.
    Absent,
    /// A table was replaced or a group moved meanwhile, or a chain is too long: search again, at last under the lock.
    Changed,
}

/// Other findings of a pass over one group.
#[derive(Default)]
struct GroupScan {
    moved: bool,
    overflow: bool,
    /// A slot on flash that may be the key's.
    on_flash: Option<SlotSnapshot>,
    /// The chain goes on behind what was searched.
    cut: bool,
}

impl Index {
    /// Visits the slots whose tag is that of `hash`, in all places of the key, until a visit breaks.
    ///
    /// A slot that is visited was in a live table when it was loaded, if [`Index::is_current`] says so afterwards.
    #[inline]
    pub fn search<R>(
        &self,
        hash: KeyHash,
        visit: impl FnMut(SlotSnapshot) -> ControlFlow<R>,
    ) -> (Search<R>, bool) {
        self.search_with(hash, visit, |_| true)
    }

    /// As [`Index::search`], of slots on flash only for those that `takes` accepts.
    #[inline]
    pub fn search_with<R>(
        &self,
        hash: KeyHash,
        mut visit: impl FnMut(SlotSnapshot) -> ControlFlow<R>,
        takes: impl Fn(Slot) -> bool,
    ) -> (Search<R>, bool) {
        debug_assert!(self.is_checked(hash), "the group is not recovered");
        let partition = self.partition_of(hash);
        let word = self.head_word(partition);
        let head = Head::from_word(word);
        let mut seen = GroupScan::default();
        if let ControlFlow::Break(found) =
            self.search_table(hash, head.current, head.groups, &mut visit, &takes, &mut seen)
        {
            return (Search::Found(found), seen.overflow);
        }
        if let Some(next_groups) = head.next_groups
            && seen.moved
        {
            let next = self.search_table(hash, 1 - head.current, next_groups, &mut visit, &takes, &mut seen);
            if let ControlFlow::Break(found) = next {
                return (Search::Found(found), seen.overflow);
            }
        } else if seen.moved {
            return (Search::Changed, seen.overflow);
        }
        // Nothing found in tables that were replaced meanwhile, or in a part of a chain, says nothing.
        let same = self.is_head_still(partition, word) && !seen.cut;
        let found = match (same, seen.on_flash) {
            (false, _) => Search::Changed,
            (true, Some(at)) => Search::OnFlash(at),
            (true, None) => Search::Absent,
        };
        (found, seen.overflow)
    }

    /// The word to give to [`Index::is_current`]; load it before the search.
    #[inline]
    pub fn version(&self, hash: KeyHash) -> u64 {
        self.head_word(self.partition_of(hash))
    }

    /// Returns whether no table of the hash's partition was replaced since `version`: slots seen meanwhile were valid.
    #[inline]
    pub fn is_current(&self, hash: KeyHash, version: u64) -> bool {
        self.is_head_still(self.partition_of(hash), version)
    }

    #[inline]
    fn search_table<R>(
        &self,
        hash: KeyHash,
        table: usize,
        groups: u32,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
        takes: &impl Fn(Slot) -> bool,
        seen: &mut GroupScan,
    ) -> ControlFlow<R> {
        let places = directory::bucket_offsets(&self.memory, &self.geometry, hash, table, groups);
        let Some(places) = places else {
            seen.moved = true;
            return ControlFlow::Continue(());
        };
        self.memory.prefetch(places.neighbour);
        let first = self.search_bucket(places.home, hash, visit, takes, seen)?;
        self.search_bucket(places.neighbour, hash, visit, takes, seen)?;
        // The mark is set before a key goes to the overflow area, so a key that was there when the home bucket was
        // read had set it.
        if first.is_overflowed() {
            seen.overflow = true;
            self.search_overflow(places, hash, visit, takes, seen)?;
        }
        ControlFlow::Continue(())
    }

    /// Returns the bucket's first slot.
    #[inline]
    fn search_bucket<R>(
        &self,
        bucket: u64,
        hash: KeyHash,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
        takes: &impl Fn(Slot) -> bool,
        seen: &mut GroupScan,
    ) -> ControlFlow<R, Slot> {
        let slots = Bucket::load(&self.memory, bucket);
        for (i, slot) in slots.items(hash.tag()) {
            visit(SlotSnapshot { at: bucket + 8 * i as u64, slot })?;
        }
        if slots.has_special_or_flash() {
            seen.moved |= slots.slots().into_iter().any(Slot::is_moved);
            self.search_flash(bucket, &slots, hash, takes, seen);
        }
        ControlFlow::Continue(slots.slots()[0])
    }

    /// Notes the bucket's first slot on flash that may be the key's.
    #[inline(never)]
    fn search_flash(
        &self,
        bucket: u64,
        slots: &Bucket,
        hash: KeyHash,
        takes: &impl Fn(Slot) -> bool,
        seen: &mut GroupScan,
    ) {
        let Some(rest) = self.flash_rest(hash).filter(|_| seen.on_flash.is_none()) else { return };
        for (i, slot) in slots.slots().into_iter().enumerate() {
            if FlashItem::from_slot(slot).is_some_and(|item| item.rest == rest) && takes(slot) {
                seen.on_flash = Some(SlotSnapshot { at: bucket + 8 * i as u64, slot });
            }
        }
    }

    #[cold]
    fn search_overflow<R>(
        &self,
        places: BucketOffsets,
        hash: KeyHash,
        visit: &mut impl FnMut(SlotSnapshot) -> ControlFlow<R>,
        takes: &impl Fn(Slot) -> bool,
        seen: &mut GroupScan,
    ) -> ControlFlow<R> {
        let (mut start, mut end) = (places.overflow, places.overflow_end);
        // The overflow area, and its chain.
        for _ in 0..=CHAIN_BUCKETS_SEARCHED_MAX {
            for bucket in (start..end).step_by(BUCKET_BYTES as usize) {
                self.search_bucket(bucket, hash, visit, takes, seen)?;
            }
            // An item in the last slot is copied to the chain before the link replaces it, so it is seen here or
            // there. A link that was there until the group moved says that the chain has moved too.
            let last = self.load_slot(end - 8);
            seen.moved |= last.is_moved();
            match last.link_offset() {
                Some(link)
                    if self.memory.contains(link, BUCKET_BYTES) && link.is_multiple_of(BUCKET_BYTES) =>
                {
                    (start, end) = (link, link + BUCKET_BYTES);
                }
                _ => return ControlFlow::Continue(()),
            }
        }
        seen.cut = true;
        ControlFlow::Continue(())
    }
}
