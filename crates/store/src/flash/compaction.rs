//! Compaction: without eviction, live items leave the segments with the most dead bytes, for the end of the log.
//!
//! Items are read, appended to the log as those of memory are, and linked to their new records when these are written, if their
//! slots still lead to the old ones. The last free segment is kept for them, so that full flash can be compacted.

use std::collections::{HashMap, VecDeque};

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::{KeyHash, Slot, header};

use super::log::{NotStaged, StagedItem};
use super::page::PAYLOAD_BYTES;
use super::segments::{Kind, SegmentUse};
use super::{FetchedItem, Flash};
use crate::dump::Cursor;
use crate::flash::VisitedOnFlash;
use crate::handle::Handle;
use crate::store::Store;

/// A segment is worth the writes if so much of it (1/n) is dead.
const DEAD_DIVISOR: u64 = 8;
/// Of all segments, so many (1/n) are compacted by one pass over the index …
const COMPACTED_DIVISOR: usize = 32;
/// … with at most so many items.
const COMPACTED_ITEMS_MAX: u64 = 1 << 20;
/// Seconds after which a segment is tried again whose items could not be moved.
const RETRY_SECONDS: u32 = 60;

/// The items that are to be moved, in the order of their pages.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    slots: VecDeque<VisitedOnFlash>,
    /// Reads of such items under way.
    reading: usize,
    /// An item found no buffer or no segment: the next one waits for a write or a free segment.
    is_blocked: bool,
    /// The last write with such an item.
    last_write: Option<u64>,
    /// The segments that were compacted, in which use, with how many items, and in which second: again only if they have fewer, or
    /// some time later.
    compacted: HashMap<u32, (u64, u32, u32)>,
}

impl Compaction {
    /// A buffer or a segment may be free. Returns whether an item waited for it.
    pub(super) fn unblock(&mut self) -> bool {
        std::mem::take(&mut self.is_blocked) && !self.slots.is_empty()
    }

    /// Takes the next item to be read.
    pub(super) fn take(&mut self) -> Option<VisitedOnFlash> {
        let next = if self.is_blocked { None } else { self.slots.pop_front() };
        self.reading += usize::from(next.is_some());
        next
    }

    /// The read of an item has ended, or it was not begun.
    pub(super) fn end_read(&mut self) {
        self.reading -= 1;
    }

    /// The item is to be read again, later.
    pub(super) fn put_back(&mut self, item: VisitedOnFlash) {
        self.slots.push_front(item);
        self.is_blocked = true;
    }
}

impl Handle {
    /// Begins to compact segments, if there are any with dead bytes and none is compacted. Each slot is counted.
    pub(super) fn compact(&self, flash: &Flash, pause: &mut impl FnMut()) {
        let store = &*self.store;
        let (is_moving, last_write) = flash.maintenance_reads.with(|state| {
            let compaction = &state.compaction;
            (compaction.reading > 0 || !compaction.slots.is_empty(), compaction.last_write)
        });
        if is_moving || last_write.is_some_and(|number| !flash.is_published(number)) {
            return;
        }
        let now = store.now();
        let victims = flash.compacted_next(header::flush_epoch(&store.memory), now);
        if victims.is_empty() {
            return flash.log().set_compacting(false, store.clock_ns());
        }
        flash.log().set_compacting(true, store.clock_ns());
        let is_victim = |id: u32| victims.iter().position(|victim| victim.id == id);
        let mut slots: Vec<(usize, u32, VisitedOnFlash)> = Vec::new();
        let mut cursor = Cursor::START;
        while let Some(from) = cursor.hash() {
            cursor = store.index.walk_flash(cursor, |group, at, item| {
                // The further segments of an item are compacted with it.
                let first = flash.segments.segment_of(item.page);
                let others = flash.spans.of(item);
                if let Some(nth) = first.into_iter().chain(others).find_map(is_victim) {
                    let hash = store.index.hash_of_slot(from, group, item);
                    slots.push((nth, item.page, VisitedOnFlash::new(hash, at)));
                }
            });
            pause();
        }
        slots.sort_unstable_by_key(|(nth, page, _)| (*nth, *page));
        flash.maintenance_reads.with(|state| {
            let Compaction { slots: to_move, compacted, .. } = &mut state.compaction;
            *to_move = slots.into_iter().map(|(.., slot)| slot).collect();
            compacted.retain(|id, (sequence, ..)| flash.segments.sequence(*id) == *sequence);
            compacted.extend(victims.iter().map(|victim| (victim.id, (victim.sequence, victim.live, now))));
        });
        if let Some(observer) = store.observer.get() {
            observer.flash_has_reads();
        }
    }

    /// Appends an item that was read from flash to the log.
    pub(super) fn move_on_flash(&self, flash: &Flash, fetched: &FetchedItem) -> Result<(), NotStaged> {
        let store = &*self.store;
        let ((len, parts), now_ns) = (fetched.record(), store.clock_ns());
        let epoch = header::flush_epoch(&store.memory);
        let staged = StagedItem::moved(store.hash(fetched.key()), fetched.at.slot);
        let mut log = flash.log();
        let place = (len, epoch, now_ns);
        let (number, segments) = log.append(&flash.segments, staged, place, |write| parts.for_each(write))?;
        flash.note_written(&segments, len, fetched.header().expiry);
        drop(log);
        flash.maintenance_reads.with(|state| state.compaction.last_write = Some(number));
        flash.counters.items_moved.inc();
        if let Some(observer) = store.observer.get() {
            observer.flash_has_writes();
        }
        Ok(())
    }
}

impl Store {
    /// Links an item on flash to its new record, if its slot still leads to the old one. Returns whether it did.
    pub(super) fn publish_moved(&self, flash: &Flash, hash: KeyHash, old: Slot, staged: &StagedItem) -> bool {
        let group = self.index.lock(hash);
        let Some(at) = group.find_on_flash(hash, |slot| slot.same_item(old)) else { return false };
        let slot = group.flash_slot(hash, staged.page, staged.class, at.slot.frequency());
        flash.count_live(slot);
        group.replace(at.at, slot);
        self.count_dead_on_flash(at.slot);
        true
    }
}

impl Flash {
    /// Returns the segments to compact, those with the fewest live bytes first.
    fn compacted_next(&self, epoch: u64, now: u32) -> Vec<SegmentUse> {
        let capacity = u64::from(self.segments.segment_pages()) * PAYLOAD_BYTES as u64;
        let compacted = self.maintenance_reads.with(|state| state.compaction.compacted.clone());
        let was_tried = |segment: &SegmentUse| {
            compacted.get(&segment.id).is_some_and(|(sequence, live, at)| {
                (*sequence, *live) == (segment.sequence, segment.live)
                    && now.saturating_sub(*at) < RETRY_SECONDS
            })
        };
        let is_worth = |segment: &SegmentUse| {
            segment.kind == Kind::Sealed
                && segment.epoch == epoch
                && segment.live > 0
                && segment.live_bytes() + capacity / DEAD_DIVISOR <= capacity
                && !was_tried(segment)
        };
        let mut victims: Vec<SegmentUse> = self.segments.uses().filter(is_worth).collect();
        victims.sort_unstable_by_key(SegmentUse::live_bytes);
        victims.truncate(1 + self.segments.len() / COMPACTED_DIVISOR);
        let mut items = 0;
        victims.retain(|victim| {
            items += u64::from(victim.live);
            items <= COMPACTED_ITEMS_MAX || items == u64::from(victim.live)
        });
        victims
    }

    /// Counts a record that was appended to the log.
    pub(super) fn note_written(&self, segments: &[u32], len: usize, expiry: u32) {
        for id in segments {
            self.segments.count_written(*id, (len / segments.len()) as u64, expiry);
        }
        self.spans.note(self.segments.first_page(segments[0]), &segments[1..]);
    }

    /// Counts a slot that is about to lead to an item.
    pub(super) fn count_live(&self, slot: Slot) {
        if let Some(item) = FlashItem::from_slot(slot) {
            self.segments.count_live(item.page);
            self.spans.count_live(item, &self.segments);
        }
    }
}
