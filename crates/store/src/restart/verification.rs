//! Verifies items of an earlier server: a bit that flipped in a memory file never becomes a value.
//!
//! Items of segments that were taken over are verified where they are found, until the scrub (`finishing.rs`) has
//! verified all of them. A copy has a new checksum, so nothing is copied before. Reclaim and expiry verify a segment as a
//! whole before they walk it. Slots need no such checks: each group of the index is checked before it is used
//! (`index/recover.rs`).
//!
//! The state word is outside the checksum. A damaged one may lose a value, or bring back a deleted or flushed one.
//!
//! Damage must not make the live counts of a segment wrong, because a segment with none is used again. So a damaged item
//! counts as dead with its bytes only if the items that follow confirm its length. A segment whose items do not add up is
//! emptied: one pass over the index clears all slots that lead there. Items that lost their slots to damage count as alive
//! until reclaim reaches their segment.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use fabcache_layout::checksum::checksum;
use fabcache_layout::item::{self, ALIGN_BYTES, ChunkEntry, Item, KEY_BYTES_MAX, NewItem, SUMMED_AT, State};
use fabcache_layout::sync::{Mutex, Ordering};
use fabcache_layout::{KeyHash, Slot};

use crate::bounds::{CONFIRMATION_BYTES_MAX, SCRUB_STEP_BYTES};
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::store::Store;

/// The damage found in the region that the store took over.
#[derive(Debug, Default)]
pub(crate) struct Verification {
    /// Items that were dropped because they, or what surrounds them, are damaged.
    dropped: AtomicU64,
    /// Held while segments are emptied.
    emptying: Mutex<()>,
}

/// The result of checking a segment.
enum SegmentCheck {
    /// Every slot that points there points to an intact item, and the counts are exact.
    Whole,
    /// Item lengths do not lead to the segment's end, or the live items do not add up to its counts.
    Broken,
    /// The caller asked to stop.
    Stopped,
}

impl Store {
    /// Returns the number of items that were dropped because of damage.
    pub fn items_corrupt(&self) -> u64 {
        self.verification.dropped.load(Ordering::Relaxed) + self.dropped_from_damaged_groups()
    }

    fn note_corrupt(&self) {
        self.verification.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the death of an item in the segment is to be counted before the lock of its group is released, so that
    /// a thread that held all locks in turn finds exact counts: those of an earlier server's segments may be wrong.
    #[inline]
    pub(crate) fn counts_death_at_once(&self, segment: u32) -> bool {
        self.segments.taken_over() > 0 && self.segments.is_inherited(segment)
    }

    /// Returns whether an item, of the key with this hash, is the one that was written, with all chunks of its value. Under
    /// the lock of its slot; a reader without it checks the generation and the slot afterwards.
    #[cold]
    pub(crate) fn is_intact(&self, offset: u64, item: &Item, hash: KeyHash) -> bool {
        self.is_header_intact(offset, item)
            && (!item.is_chained() || self.has_intact_chunks(offset, item, hash))
    }

    /// As [`Store::is_intact`], without the chunks.
    #[cold]
    pub(crate) fn is_header_intact(&self, offset: u64, item: &Item) -> bool {
        let Some(id) = self.geometry.segment_of(offset) else { return false };
        !self.segments.is_unverified(id)
            || self.is_within(offset, item, self.geometry.segment_end(id))
                && self.has_its_sum(offset, item, id)
    }

    fn is_within(&self, offset: u64, item: &Item, end: u64) -> bool {
        offset.is_multiple_of(ALIGN_BYTES)
            && usize::from(item.key_len) <= KEY_BYTES_MAX
            && offset + item.bytes() <= end
    }

    /// Returns whether the checksum of an item within segment `id` is right.
    fn has_its_sum(&self, offset: u64, item: &Item, id: u32) -> bool {
        self.has_sum_in(offset, item, self.segments.generation(id), &mut Vec::new())
    }

    /// As [`Store::has_its_sum`], in this generation of its segment; the bytes are copied to `buffer`.
    fn has_sum_in(&self, offset: u64, item: &Item, generation: u64, buffer: &mut Vec<u8>) -> bool {
        let len = (item.payload_at() + item.payload_len()) as usize - SUMMED_AT;
        buffer.clear();
        self.memory.append_to(offset + SUMMED_AT as u64, len, buffer);
        checksum(&self.secret, generation, offset, item.kind(), buffer) == item.checksum
    }

    fn has_intact_chunks(&self, offset: u64, item: &Item, owner: KeyHash) -> bool {
        let chunks = self.chunks(offset, item);
        let bytes: u64 = chunks.iter().map(|entry| u64::from(entry.len)).sum();
        let is_intact = |entry: &ChunkEntry| {
            let Some(id) = self.geometry.segment_of(entry.offset) else { return false };
            let Some(chunk) = Item::read(&self.memory, entry.offset) else { return false };
            self.segments.generation(id) as u32 == entry.generation
                && is_listed(&chunk, entry)
                && !chunk.state.has(State::DEAD)
                && chunk.cas == owner.0
                && self.is_header_intact(entry.offset, &chunk)
        };
        chunks.len() as u64 == u64::from(item.chunks)
            && bytes == u64::from(item.value_len)
            && chunks.iter().all(is_intact)
    }

    fn is_slot_intact(&self, slot: Slot) -> bool {
        let offset = slot.offset();
        Item::read(&self.memory, offset).is_some_and(|item| {
            let mut key = [0; KEY_BYTES_MAX];
            self.is_intact(offset, &item, self.hash(self.copy_key(offset, &item, &mut key)))
        })
    }

    /// Drops the damaged items that a search for a key in the group would meet: those that it finds are intact then.
    #[cold]
    pub(crate) fn drop_damaged_of(&self, group: &LockedGroup<'_>, hash: KeyHash) {
        while let Some(at) = group.find(hash, |slot| !self.is_slot_intact(slot)) {
            self.drop_damaged(group, at);
        }
    }

    /// Unlinks a slot's item that is not intact. Returns whether its bytes are no longer counted as alive.
    pub(crate) fn drop_damaged(&self, group: &LockedGroup<'_>, at: SlotSnapshot) -> bool {
        let offset = at.slot.offset();
        self.note_corrupt();
        match Item::read(&self.memory, offset) {
            Some(item) if self.is_header_intact(offset, &item) => {
                self.unlink_intact(group, at, &item);
                true
            }
            Some(_) => self.end_damaged(offset, || group.clear(at.at)),
            None => {
                group.clear(at.at);
                false
            }
        }
    }

    /// Drops an item with a damaged header that a growing table cannot place; `unlink` changes its slot.
    #[cold]
    pub(crate) fn discard_for_growth(&self, seen: SlotSnapshot, unlink: impl FnOnce()) {
        self.end_damaged(seen.slot.offset(), unlink);
        self.note_corrupt();
    }

    /// Returns the hash of the key whose item is at `offset`, if its header is intact. The caller holds the lock of its slot.
    #[cold]
    pub(crate) fn hash_of_intact(&self, offset: u64) -> Option<KeyHash> {
        let item = Item::read(&self.memory, offset)?;
        let is_intact = self.is_header_intact(offset, &item);
        is_intact.then(|| self.hash(self.copy_key(offset, &item, &mut [0; KEY_BYTES_MAX])))
    }

    /// Ends an item with a damaged header: marked dead, so that walks pass it, and counted as dead with its bytes, if what
    /// follows confirms them. Returns whether it does.
    fn end_damaged(&self, offset: u64, change_slot: impl FnOnce()) -> bool {
        let Some(id) = self.geometry.segment_of(offset) else {
            change_slot();
            return false;
        };
        item::mark_dead(&self.memory, offset);
        change_slot();
        let bytes = self.confirmed_bytes(id, offset);
        self.segments.count_dead_in(id, bytes.unwrap_or(0), 1);
        bytes.is_some()
    }

    /// Returns the length in an item's damaged header, in bytes, if it is right: it leads to an intact item or the segment's
    /// end, with no intact item in between. None if that takes too long to find out.
    fn confirmed_bytes(&self, id: u32, offset: u64) -> Option<u64> {
        let end = self.geometry.segment_offset(id) + self.segments.sealed_end(id)?;
        let bytes = Item::read(&self.memory, offset)?.bytes();
        let mut left = CONFIRMATION_BYTES_MAX;
        let mut is_intact_at = |at: u64| {
            let item = Item::read(&self.memory, at).filter(|item| self.is_within(at, item, end))?;
            left = left.checked_sub(item.bytes())?;
            Some(self.has_its_sum(at, &item, id))
        };
        let next = offset + bytes;
        if next > end || next < end && is_intact_at(next) != Some(true) {
            return None;
        }
        for at in (offset + ALIGN_BYTES..next).step_by(ALIGN_BYTES as usize) {
            let is_outside = Item::read(&self.memory, at).is_none_or(|item| !self.is_within(at, &item, end));
            if !is_outside && is_intact_at(at) != Some(false) {
                return None;
            }
        }
        Some(bytes)
    }

    // ---- whole segments ----

    /// Verifies the items of a sealed segment, if they are not verified: drops damaged ones, or everything in it if it is
    /// unclear where its items are. `go_on` is called between short parts and may stop it. Returns false if it did.
    #[cold]
    pub(crate) fn verify_segment(&self, id: u32, go_on: &mut dyn FnMut() -> bool) -> bool {
        let generation = self.segments.generation(id);
        // Pinned, so that no byte of it changes meanwhile but state words.
        if !self.segments.pin(id, generation) {
            return true;
        }
        let check = match self.segments.sealed_end(id) {
            Some(used) if self.segments.is_unverified(id) => self.check_segment(id, generation, used, go_on),
            _ => SegmentCheck::Stopped,
        };
        let has_ended = match check {
            SegmentCheck::Whole => {
                self.segments.set_verified(id);
                true
            }
            SegmentCheck::Broken => {
                self.empty_segment(id, generation);
                true
            }
            SegmentCheck::Stopped => !self.segments.is_unverified(id),
        };
        self.segments.unpin(id);
        has_ended
    }

    fn check_segment(
        &self,
        id: u32,
        generation: u64,
        used: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> SegmentCheck {
        let mut at = self.geometry.segment_offset(id);
        let end = at + used;
        let (mut alive, mut step, mut buffer, mut doubtful) = (0, 0, Vec::new(), Vec::new());
        while at < end {
            let item = Item::read(&self.memory, at).expect("a segment is in the region");
            if !self.is_within(at, &item, end) {
                return SegmentCheck::Broken;
            }
            let bytes = item.bytes();
            self.memory.prefetch(at + bytes + SCRUB_AHEAD_BYTES);
            let is_dead = item.state.has(State::DEAD);
            if self.has_sum_in(at, &item, generation, &mut buffer) {
                alive += if is_dead { 0 } else { bytes };
            } else {
                // With a wrong length the walk would pass over items that follow.
                let is_length_right = if is_dead {
                    self.confirmed_bytes(id, at).is_some()
                } else {
                    self.drop_damaged_at(at, &item)
                };
                if !is_length_right {
                    return SegmentCheck::Broken;
                }
                doubtful.push(at + ALIGN_BYTES..at + bytes);
            }
            at += bytes;
            step += bytes;
            if step >= SCRUB_STEP_BYTES {
                step = 0;
                if !go_on() {
                    return SegmentCheck::Stopped;
                }
            }
        }
        // An item may have died and not be counted yet. It is, once its group's lock was free.
        if self.segments.live_bytes(id) > alive {
            self.index.wait_for_locks();
        }
        if !doubtful.is_empty() && self.has_item_within(&doubtful) {
            return SegmentCheck::Broken;
        }
        if self.segments.live_bytes(id) > alive { SegmentCheck::Broken } else { SegmentCheck::Whole }
    }

    /// Returns whether a slot leads into one of these ranges: what follows a damaged header confirmed its length, but does
    /// not if the item that it hides is damaged as well.
    #[cold]
    fn has_item_within(&self, ranges: &[Range<u64>]) -> bool {
        let is_within = |offset| ranges.iter().any(|range| range.contains(&offset));
        let mut found = false;
        self.index.visit_all(|_, at| {
            found |=
                is_within(at.slot.offset()) || self.lists_chunk(at.slot, |entry| is_within(entry.offset));
        });
        found
    }

    /// Drops the item at `offset`, whose checksum is wrong, or the item that has it as a chunk. Returns false if a live one has
    /// no owner, or its length is uncertain.
    fn drop_damaged_at(&self, offset: u64, item: &Item) -> bool {
        let mut key = [0; KEY_BYTES_MAX];
        let hash = if item.is_chunk() {
            KeyHash(item.cas)
        } else {
            self.hash(self.copy_key(offset, item, &mut key))
        };
        let group = self.index.lock(hash);
        let found = group.find(hash, |slot| {
            slot.offset() == offset
                || item.is_chunk() && self.lists_chunk(slot, |entry| entry.offset == offset)
        });
        match found {
            Some(at) => self.drop_damaged(&group, at),
            None => item::load_state(&self.memory, offset).has(State::DEAD),
        }
    }

    /// Returns whether a slot's item is chained, has an intact header, and lists a chunk that is `wanted`.
    pub(crate) fn lists_chunk(&self, slot: Slot, wanted: impl FnMut(&ChunkEntry) -> bool) -> bool {
        let offset = slot.offset();
        Item::read(&self.memory, offset).is_some_and(|head| {
            head.is_chained()
                && self.is_header_intact(offset, &head)
                && self.chunks(offset, &head).iter().any(wanted)
        })
    }

    /// Clears every slot that leads to a segment of this generation, which the caller has pinned. Its counts are forgotten:
    /// nothing lives in it.
    #[cold]
    pub(crate) fn empty_segment(&self, id: u32, generation: u64) {
        let _emptying = self.verification.emptying.lock().expect("no thread panics while it clears slots");
        let segment_of = |offset| self.geometry.segment_of(offset);
        self.index.visit_all(|group, at| {
            let offset = at.slot.offset();
            let is_in_it = segment_of(offset) == Some(id);
            if is_in_it || self.lists_chunk(at.slot, |entry| segment_of(entry.offset) == Some(id)) {
                self.drop_damaged(group, at);
            }
        });
        if self.segments.still(id, generation) {
            self.segments.forget_live(id);
            self.segments.set_verified(id);
        }
    }

    /// Empties a segment that reclaim has passed over, if items in it still count as alive because of damage, now or under
    /// an earlier server: a damaged item does not say how long it is, nor which chunks it had. Returns whether an earlier
    /// server sealed the segment.
    #[cold]
    pub(crate) fn settle_damaged_segment(&self, id: u32) -> bool {
        if !self.segments.is_inherited(id) {
            return false;
        }
        // An item may have died and not be counted yet. It is, once its group's lock was free.
        self.index.wait_for_locks();
        let generation = self.segments.generation(id);
        if !self.segments.is_dead(id) && self.segments.pin(id, generation) {
            self.empty_segment(id, generation);
            self.segments.unpin(id);
        }
        true
    }
}

/// How far ahead of a walk memory is prefetched.
const SCRUB_AHEAD_BYTES: u64 = 1 << 10;

/// Returns whether a chunk's header is what its entry in the table says.
pub(crate) fn is_listed(chunk: &Item, entry: &ChunkEntry) -> bool {
    let written = NewItem { cas: chunk.cas, value_len: entry.len, ..NewItem::default() };
    chunk.is_chunk()
        && !chunk.is_chained()
        && chunk.checksum == entry.checksum
        && chunk.value_len == entry.len
        && chunk.bytes() == written.bytes()
}
