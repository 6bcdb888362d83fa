//! Recovery after a kill: it keeps each item that a slot points to and that passes the checks. Any other key is a miss.
//!
//! Each slot is checked before a request uses its group. Its item must lie in a sealed or open segment, be whole, alive, of
//! the flush epoch of the start and not expired, and its key must belong to the slot; of a chained value every chunk must
//! be the one that its table lists. A server marks an item dead before it changes its slot: such an item is gone, for its
//! writer was about to be answered.
//!
//! Nothing is freed before all groups are checked, as the contents of segments are unknown until then; a writer without
//! memory checks the rest first.
//!
//! Segments that were open have holes, as writers reserved space there that they never filled. Their items are then moved
//! to new segments.

use std::collections::HashSet;

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::item::{ALIGN_BYTES, ChunkEntry, Item, KEY_BYTES_MAX, State};
use fabcache_layout::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use fabcache_layout::{KeyHash, Memory, Slot, segment, size_class};

use crate::bounds::{MAKE_ROOM_STEPS_MAX, RECLAIM_STEP_ITEMS, RETIRE_WAITS_MAX, SEGMENTS_FOR_ONE_WRITE_MAX};
use crate::counters::StoreCounters;
use crate::flash::Flash;
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::index::recover::{RecoveryProgress, Survivors};
#[cfg(not(loom))]
use crate::index::resize::{Growth, Rehash};
use crate::kill::chunks_of;
use crate::reclaim::{ImmovableItem, StepOutcome};
use crate::restart::verification::is_listed;
use crate::segments::Segments;
use crate::store::Store;

/// A part of the region that no server can have left so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is damaged")]
pub struct Damaged(pub &'static str);

/// The recovery of a region whose server was killed, or of its damaged groups after a clean stop.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Its server stopped cleanly: only damaged groups are recovered.
    is_clean: bool,
    flush_epoch: u64,
    /// The second of the region's clock at the start.
    now: u32,
    /// Segments that were open.
    open: Vec<u32>,
    /// The keys of items that are there, in part or as a whole, each with the segment.
    stranded: Mutex<Vec<(u32, KeyHash)>>,
    /// Stranded items that found no room.
    lost: AtomicU64,
    /// Held while stranded items are moved.
    moving: Mutex<()>,
    is_finished: AtomicBool,
}

impl Recovery {
    /// Returns the recovery of a region in this flush epoch at second `now`, with these segments open.
    pub(crate) fn new(flush_epoch: u64, now: u32, open: Vec<u32>) -> Recovery {
        Recovery {
            is_clean: false,
            flush_epoch,
            now,
            open,
            stranded: Mutex::new(Vec::new()),
            lost: AtomicU64::new(0),
            moving: Mutex::new(()),
            is_finished: AtomicBool::new(false),
        }
    }

    /// Returns the recovery of damaged groups of a region whose server stopped cleanly.
    #[cfg(not(loom))]
    pub(crate) fn after_clean_stop(flush_epoch: u64, now: u32) -> Recovery {
        Recovery { is_clean: true, ..Recovery::new(flush_epoch, now, Vec::new()) }
    }

    fn stranded(&self) -> MutexGuard<'_, Vec<(u32, KeyHash)>> {
        self.stranded.lock().expect("no thread panics while it changes the list")
    }
}

/// Checks the items of a region whose server was killed.
pub(crate) struct ItemChecks<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) segments: &'a Segments,
    pub(crate) hash_seed: u64,
    pub(crate) recovery: &'a Recovery,
    pub(crate) flash: Option<&'a Flash>,
}

impl ItemChecks<'_> {
    /// Returns the item at `offset`, its segment, and whether that was open, if it can be one.
    fn item_at(&self, offset: u64) -> Option<(Item, u32, bool)> {
        let item = offset.is_multiple_of(ALIGN_BYTES).then(|| Item::read(self.memory, offset))??;
        let (id, is_open) = self.segments.found_at(offset, item.bytes())?;
        let is_alive = !item.state.has(State::DEAD);
        is_alive.then_some((item, id, is_open))
    }

    /// Returns whether each chunk of the item's value is the one that its table lists.
    fn has_all_chunks(&self, offset: u64, item: &Item, hash: KeyHash) -> bool {
        let chunks = chunks_of(self.memory, offset, item);
        let is_there = |entry: &ChunkEntry| {
            let Some((chunk, id, _)) = self.item_at(entry.offset) else { return false };
            let generation = segment::generation(self.memory, self.segments.geometry(), id);
            is_listed(&chunk, entry) && generation as u32 == entry.generation && chunk.cas == hash.0
        };
        let bytes: u64 = chunks.iter().map(|entry| u64::from(entry.len)).sum();
        let offsets: HashSet<u64> = chunks.iter().map(|entry| entry.offset).collect();
        chunks.len() as u64 == u64::from(item.chunks)
            && offsets.len() == chunks.len()
            && bytes == u64::from(item.value_len)
            && chunks.iter().all(is_there)
    }
}

impl Survivors for ItemChecks<'_> {
    fn prefetch(&self, slot: Slot) {
        self.memory.prefetch(slot.offset());
    }

    fn hash_of(&self, slot: Slot) -> Option<KeyHash> {
        let offset = slot.offset();
        let (item, ..) = self.item_at(offset)?;
        let is_valid = !item.is_chunk()
            && slot.class() == size_class::class_of(item.bytes())
            && item.state.in_epoch(self.recovery.flush_epoch)
            && !item.is_expired(self.recovery.now);
        if !is_valid {
            return None;
        }
        let mut key = [0; KEY_BYTES_MAX];
        let key = key.get_mut(..usize::from(item.key_len))?;
        self.memory.copy_out(offset + item.key_at(), key);
        let hash = KeyHash::of(key, self.hash_seed);
        let is_whole = !item.is_chained() || self.has_all_chunks(offset, &item, hash);
        is_whole.then_some(hash)
    }

    fn keep_on_flash(&self, item: FlashItem) -> bool {
        self.flash.is_some_and(|flash| flash.count_found(item))
    }

    fn keep(&self, slot: Slot, hash: KeyHash) {
        let offset = slot.offset();
        let Some((item, id, is_open)) = self.item_at(offset) else { return };
        let mut open = Vec::from_iter(is_open.then_some(id));
        self.segments.count_found(id, &item, 1);
        if item.is_chained() {
            for entry in chunks_of(self.memory, offset, &item) {
                if let Some((chunk, id, is_open)) = self.item_at(entry.offset) {
                    self.segments.count_found(id, &chunk, 0);
                    open.extend(is_open.then_some(id));
                }
            }
        }
        if !open.is_empty() {
            open.sort_unstable();
            open.dedup();
            self.recovery.stranded().extend(open.into_iter().map(|id| (id, hash)));
        }
    }
}

/// Moves the keys of a group that a kill left half moved.
#[cfg(not(loom))]
struct HalfMoved<'a> {
    store: &'a Store,
    may_evict: bool,
}

#[cfg(not(loom))]
impl Rehash for HalfMoved<'_> {
    fn hash_at(&self, offset: u64) -> Option<KeyHash> {
        self.store.hash_at(offset)
    }

    fn hashes_on_flash(&self, slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>> {
        // A kill loses all items on flash.
        Some(vec![None; slots.len()])
    }

    fn discard(&self, seen: SlotSnapshot, unlink: impl FnOnce()) {
        self.store.discard_for_growth(seen, unlink);
    }

    fn may_evict(&self) -> bool {
        self.may_evict
    }

    fn evict(&self, hash: KeyHash, seen: SlotSnapshot, unlink: impl FnOnce()) {
        self.store.evict_for_growth(self.store.counters(0), hash, seen, unlink);
    }
}

impl Store {
    /// Checks the group of `hash`, unless it is checked.
    #[cold]
    pub(crate) fn check_group(&self, hash: KeyHash) {
        if let Some(checks) = self.item_checks() {
            self.index.recover(hash, &checks);
        }
    }

    fn item_checks(&self) -> Option<ItemChecks<'_>> {
        let recovery = self.recovery.as_ref()?;
        let (memory, segments) = (&self.memory, &self.segments);
        Some(ItemChecks {
            memory,
            segments,
            hash_seed: self.hash_seed,
            recovery,
            flash: self.flash.as_deref(),
        })
    }

    /// Returns how far the recovery after a kill is, if there was one.
    pub fn recovery_progress(&self) -> Option<RecoveryProgress> {
        let recovery = self.recovery.as_ref()?;
        let progress = self.index.recovery_progress();
        let lost = recovery.lost.load(Ordering::Relaxed);
        let (kept, dropped) = (progress.kept.saturating_sub(lost), progress.dropped + lost);
        Some(RecoveryProgress { kept, dropped, ..progress })
    }

    /// Checks all unchecked groups, together with other threads that do. Calls `go_on` after each group; returns false if
    /// `go_on` did.
    pub(crate) fn check_all_groups(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        let Some(checks) = self.item_checks().filter(|_| self.index.is_recovering()) else { return true };
        while self.index.recover_next(&checks) {
            if !go_on() {
                return false;
            }
        }
        while !self.index.end_recovery() {
            fabcache_layout::sync::yield_now();
        }
        self.segments.make_dead_due();
        if !checks.recovery.is_clean {
            // No slot points to an item of an epoch before the start's any more.
            self.note_swept(checks.recovery.flush_epoch);
        }
        true
    }

    /// Checks the items on flash of a table that was growing at a clean stop.
    #[cfg(not(loom))]
    pub(crate) fn check_growing_on_flash(&self) {
        if let Some(checks) = self.item_checks() {
            self.index.check_growing_on_flash(&checks);
        }
    }

    /// Returns whether there was no recovery, or it is finished.
    pub fn is_recovered(&self) -> bool {
        self.recovery.as_ref().is_none_or(|recovery| recovery.is_finished.load(Ordering::Acquire))
    }

    /// Returns the number of items whose slots were dropped from damaged groups after a clean stop.
    pub(super) fn dropped_from_damaged_groups(&self) -> u64 {
        let progress = self.index.recovery_progress();
        if progress.groups_damaged > 0 { progress.dropped } else { 0 }
    }

    /// Compares all groups with their checksums after a clean stop, which takes less than a microsecond for each. Returns
    /// whether none is unchecked.
    pub(crate) fn verify_groups(&self) -> bool {
        if self.recovery.as_ref().is_some_and(|recovery| recovery.is_clean) {
            self.check_all_groups(&mut || true);
        }
        !self.index.is_recovering()
    }

    /// Checks so many groups of those that are not checked.
    #[cold]
    pub(crate) fn check_groups(&self, groups: usize) {
        let mut left = groups;
        self.check_all_groups(&mut || {
            left -= 1;
            left > 0
        });
    }

    /// Finishes the recovery after a kill: checks all groups, and moves the items of segments that were open. Calls `go_on`
    /// after each group and each item; returns false if `go_on` did.
    pub(crate) fn finish_recovery(&self, counters: &StoreCounters, go_on: &mut dyn FnMut() -> bool) -> bool {
        let Some(recovery) = self.recovery.as_ref().filter(|_| !self.is_recovered()) else { return true };
        if !self.check_all_groups(go_on) {
            return false;
        }
        let _moving = recovery.moving.lock().expect("no thread panics while it moves items");
        // Another thread may have finished it, and its segments be open again.
        if self.is_recovered() {
            return true;
        }
        let mut stranded = std::mem::take(&mut *recovery.stranded());
        // One segment after the other, as each gives its memory to the items of the next.
        stranded.sort_unstable();
        for id in &recovery.open {
            if stranded.binary_search_by_key(id, |(id, _)| *id).is_err() {
                self.retire_open(*id);
            }
        }
        while let Some((id, hash)) = stranded.pop() {
            self.move_stranded(recovery, counters, hash);
            if stranded.last().is_none_or(|(next, _)| *next != id) {
                self.retire_open(id);
            }
            if !go_on() {
                *recovery.stranded() = stranded;
                return false;
            }
        }
        recovery.is_finished.store(true, Ordering::Release);
        true
    }

    /// Moves the items with this hash, and chunks of their values, out of segments that were open. Those for which there is
    /// no room are dropped.
    fn move_stranded(&self, recovery: &Recovery, counters: &StoreCounters, hash: KeyHash) {
        let mut tries = 0;
        loop {
            let group = self.index.lock(hash);
            // A write since then may have kept the chunks.
            let found = group.find(hash, |slot| self.is_stranded(slot.offset(), hash));
            let Some(at) = found else { return };
            let item =
                Item::read(&self.memory, at.slot.offset()).expect("a checked slot points into the region");
            // A copy gets a new checksum.
            if self.gone(&item, self.now()).is_some() || !self.is_intact(at.slot.offset(), &item, hash) {
                self.unlink(&group, at, &item);
                recovery.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if self.rewrite_out(counters, &group, hash, at, &item).is_ok() {
                continue;
            }
            tries += 1;
            if tries < SEGMENTS_FOR_ONE_WRITE_MAX {
                drop(group);
                self.free_segments(counters, 2 * tries);
                continue;
            }
            self.unlink(&group, at, &item);
            recovery.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the item at `offset` has a key with this hash, and is in a segment that was open, or a chunk of its
    /// value is. The caller holds the lock of its slot.
    fn is_stranded(&self, offset: u64, hash: KeyHash) -> bool {
        let Some(item) = Item::read(&self.memory, offset) else { return false };
        let is_there = || {
            self.is_left_open(offset)
                || item.is_chained()
                    && self.chunks(offset, &item).iter().any(|chunk| self.is_left_open(chunk.offset))
        };
        self.hash(self.copy_key(offset, &item, &mut [0; KEY_BYTES_MAX])) == hash && is_there()
    }

    fn is_left_open(&self, offset: u64) -> bool {
        self.geometry.segment_of(offset).is_some_and(|id| self.segments.is_left_open(id))
    }

    /// Moves an item, or the chunks of its value, out of segments that were open.
    fn rewrite_out(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
    ) -> Result<(), ImmovableItem> {
        let to = (self.segments.queue_at(at.slot.offset()), at.slot.frequency());
        if !item.is_chained() {
            return self.rewrite(group, hash, at, item, None, to);
        }
        let is_left_open = |chunk: &ChunkEntry, _| self.is_left_open(chunk.offset);
        self.move_chunks(counters, group, hash, at, item, is_left_open, to).map(|_| ())
    }

    /// Frees memory until so many segments are free, or nothing can be taken back. All groups are checked.
    fn free_segments(&self, counters: &StoreCounters, wanted: usize) {
        for _ in 0..MAKE_ROOM_STEPS_MAX {
            let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
            if self.segments.free_count() >= wanted
                || self.reclaim_step(&mut reclaim, counters, RECLAIM_STEP_ITEMS) == StepOutcome::Nothing
            {
                return;
            }
        }
    }

    /// Ends the generation of a segment that was open when its server was killed: its items have moved.
    fn retire_open(&self, id: u32) {
        if !self.segments.is_left_open(id) {
            return;
        }
        // A writer may have replaced an item that it has yet to count as dead.
        let mut waits = 0;
        while self.segments.live_bytes(id) > 0 && waits < RETIRE_WAITS_MAX {
            waits += 1;
            fabcache_layout::sync::yield_now();
        }
        // No slot leads there; damaged items do not say what was counted.
        self.index.wait_for_locks();
        self.segments.forget_live(id);
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        if self.segments.retire_generation(id) {
            self.release_retired(id);
        } else {
            reclaim.wait_for_senders(id);
        }
    }

    /// Moves the rest of a half moved group, before any thread uses the store. Without memory for it items are evicted
    /// even if others never are: until its last key has moved no request may use the group.
    #[cfg(not(loom))]
    pub(crate) fn finish_group(&self) {
        let Some(partition) = self.index.growing_partition() else { return };
        for may_evict in [self.evicts(), true] {
            let rehash = HalfMoved { store: self, may_evict };
            if self.index.grow(partition, true, &rehash, &|| self.index_segment()) != Growth::Blocked {
                return;
            }
        }
    }
}
