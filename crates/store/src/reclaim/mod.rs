//! Taking memory back: expired and flushed items, compaction, eviction.
//!
//! One victim at a time, a sealed segment, is passed over in steps of a few dozen items. Each item still linked is
//! dropped or moved to an open segment, under the lock of its group. In the end nothing links there, the segment's
//! generation ends, and it is free once no sender reads it. Any thread may take the next step; a mutex admits one at
//! a time, and a thread with a free segment never waits for it.
//!
//! Victims are chosen in this order: segments without live items; segments whose items are all expired or flushed;
//! the one with the most dead bytes, if these are worth moving the rest; else the oldest of a queue, some of whose
//! items are moved and the others evicted (`eviction.rs`).

mod candidates;
mod choice;
mod chunks;
mod items;
mod room;
mod state;
mod stuck;

use fabcache_layout::item::Item;
use fabcache_layout::sync::Ordering;

use crate::bounds::{
    RECLAIM_OWED_ITEMS_MAX, RECLAIM_SHARE_BYTES, RECLAIM_SHARE_ITEMS, RECLAIM_STEP_BYTES, RECLAIM_STEP_ITEMS,
    SEGMENTS_FOR_ONE_WRITE_MAX,
};
use crate::counters::StoreCounters;
use crate::error::OutOfMemory;
use crate::handle::{Handle, WhenFull};
use crate::segments::{ClaimPurpose, Queue};
use crate::store::Store;
use choice::VictimSearch;
use room::{AfterStep, RoomSearch};
pub use state::Reclaim;
use state::{ReclaimPurpose, Victim};
use stuck::StuckReason;

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// A segment was freed.
    Freed,
    /// Items were passed over.
    Worked,
    /// A segment could not be emptied. There may be others.
    Stuck,
    /// Items cannot go to flash before a write has ended.
    Waiting,
    /// There is nothing to take back.
    Nothing,
}

/// An item could not be moved, and may not be dropped.
pub(crate) struct ImmovableItem;

/// Why an item stays in a victim.
pub(crate) enum Obstacle {
    /// It could not leave, and may not be dropped.
    Stuck(StuckReason),
    /// It goes to flash when a write has ended.
    FlashBusy,
}

impl From<ImmovableItem> for Obstacle {
    fn from(_: ImmovableItem) -> Obstacle {
        Obstacle::Stuck(StuckReason::Memory)
    }
}

impl Handle {
    /// Frees memory until a writer with this claim finds a segment, and more of it after `tries` unsuccessful ones: a
    /// value may need several segments, and returns them if it does not get all.
    ///
    /// # Errors
    /// There is nothing left to take back, the handle takes free memory only, or it waits for flash.
    pub(crate) fn make_room(&self, claim: ClaimPurpose, tries: usize) -> Result<(), OutOfMemory> {
        let when_full = self.when_full.get();
        if when_full == WhenFull::Fail {
            return Err(OutOfMemory::Full);
        }
        let mut search = RoomSearch::new(when_full, self.store.evicts());
        let enough = self.store.segments.kept_back(claim) + tries.min(SEGMENTS_FOR_ONE_WRITE_MAX - 1);
        self.store.check_all_groups(&mut || true);
        loop {
            let mut reclaim = self.store.reclaim.lock().expect("no thread panics while it reclaims");
            if self.store.segments.free_count() > enough {
                return Ok(());
            }
            if search.is_hurried() {
                reclaim.hurry();
            }
            let step = self.store.reclaim_step(&mut reclaim, self.counters(), RECLAIM_STEP_ITEMS);
            // Also for a write that does not wait here: refused for want of memory, it waits if flash makes progress.
            let flash_frees = || {
                let store = &self.store;
                store.is_flash_progressing() || store.is_flash_saving() || store.request_flash_room()
            };
            let is_blocked = match search.after(step, flash_frees) {
                AfterStep::GoOn => false,
                AfterStep::AwaitFlash => return Err(OutOfMemory::FlashBusy),
                AfterStep::SkipFlash => !reclaim.skip_flash(),
                AfterStep::GiveUp => true,
            };
            if is_blocked && !self.store.give_up_open() {
                self.counters().out_of_memory.inc();
                return Err(OutOfMemory::Full);
            }
        }
    }

    /// Does this thread's share of reclaim if free segments run low, in proportion to the bytes it wrote. While
    /// another thread reclaims, the share is owed. Returns whether there was one.
    #[inline]
    pub(crate) fn reclaim_ahead(&self, written_bytes: u64) -> bool {
        let missing = self.store.segments_missing();
        if missing == 0
            || self.store.nothing_to_reclaim.load(Ordering::Relaxed) == self.store.now()
            || self.store.index.is_recovering()
        {
            return false;
        }
        self.reclaim_share(missing as u32, written_bytes);
        true
    }

    fn reclaim_share(&self, missing: u32, written_bytes: u64) {
        let share = (RECLAIM_SHARE_ITEMS * missing * missing).min(RECLAIM_STEP_ITEMS);
        let share = share.saturating_mul(1 + (written_bytes / RECLAIM_SHARE_BYTES) as u32);
        let mut owed = self.owed_items.get().saturating_add(share).min(RECLAIM_OWED_ITEMS_MAX);
        while owed > 0
            && let Ok(mut reclaim) = self.store.reclaim.try_lock()
        {
            let items = owed.min(RECLAIM_STEP_ITEMS);
            owed -= items;
            match self.store.reclaim_step(&mut reclaim, self.counters(), items) {
                StepOutcome::Worked | StepOutcome::Stuck => {}
                StepOutcome::Freed | StepOutcome::Waiting => owed = 0,
                StepOutcome::Nothing => {
                    owed = 0;
                    self.store.nothing_to_reclaim.store(self.store.now(), Ordering::Relaxed);
                }
            }
        }
        self.owed_items.set(owed);
    }
}

impl Store {
    /// Processes up to `items` items of the victim; chooses a victim first when needed.
    pub(crate) fn reclaim_step(
        &self,
        reclaim: &mut Reclaim,
        counters: &StoreCounters,
        items: u32,
    ) -> StepOutcome {
        debug_assert!(!self.index.is_recovering(), "it is unknown what lives in a segment");
        if self.free_waiting(reclaim, counters) {
            return StepOutcome::Freed;
        }
        let staged = self.flash.as_ref().map(|flash| flash.counters.items_written.get());
        let outcome = self.empty_victim(reclaim, counters, items);
        if let Some(flash) = &self.flash
            && staged != Some(flash.counters.items_written.get())
            && let Some(observer) = self.observer.get()
        {
            observer.flash_has_writes();
        }
        outcome
    }

    fn empty_victim(&self, reclaim: &mut Reclaim, counters: &StoreCounters, items: u32) -> StepOutcome {
        let mut victim = match reclaim.victim.take() {
            Some(victim) => victim,
            None => match self.choose_victim(reclaim) {
                VictimSearch::Found(victim) => victim,
                VictimSearch::Unfinished => return StepOutcome::Worked,
                // Flash may take items again that it refused.
                VictimSearch::Nothing if self.retry_stuck(reclaim) => return StepOutcome::Worked,
                VictimSearch::Nothing => return StepOutcome::Nothing,
            },
        };
        if self.segments.is_unverified(victim.id) {
            self.verify_segment(victim.id, &mut || true);
            if self.segments.live_bytes(victim.id) == 0 {
                victim.at = victim.end;
            }
        }
        let start = victim.moved_bytes;
        for _ in 0..items {
            if victim.at >= victim.end {
                return self.finish_victim(reclaim, counters, victim);
            }
            if victim.moved_bytes > start + RECLAIM_STEP_BYTES {
                break;
            }
            match self.pass_over(&mut victim, &mut reclaim.eviction, counters) {
                Ok(bytes) => victim.at += bytes,
                Err(Obstacle::Stuck(why)) => {
                    reclaim.stuck.insert(victim.id, why);
                    return StepOutcome::Stuck;
                }
                Err(Obstacle::FlashBusy) => {
                    reclaim.victim = Some(victim);
                    return StepOutcome::Waiting;
                }
            }
        }
        reclaim.victim = Some(victim);
        StepOutcome::Worked
    }

    /// Seals the open segments for eviction: everything may be in them if the limit was lowered to few segments.
    /// Returns whether there were any.
    pub(crate) fn give_up_open(&self) -> bool {
        self.evicts() && self.segments.seal_open(|_| true)
    }

    /// Frees a sealed segment in which nothing lives any more, if it is one.
    pub(crate) fn free_dead(&self, id: u32, counters: &StoreCounters) {
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        if self.segments.is_dead(id) {
            reclaim.victim = reclaim.victim.filter(|victim| victim.id != id);
            reclaim.leaving.retain(|victim| victim.id != id);
            self.note_leaving(&reclaim);
            reclaim.survey = None;
            reclaim.count_emptied(self.segments.filled_by_moves());
            self.free_victim(&mut reclaim, counters, id, ReclaimPurpose::Sweep);
        }
    }

    /// Frees what only senders kept.
    pub(crate) fn free_unpinned(&self, counters: &StoreCounters) {
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        self.free_waiting(&mut reclaim, counters);
    }

    /// Frees segments whose items are on flash. Returns whether there were any.
    pub(crate) fn free_demoted(&self, counters: &StoreCounters) -> bool {
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        !reclaim.leaving.is_empty() && self.free_leaving(&mut reclaim, counters)
    }

    fn free_leaving(&self, reclaim: &mut Reclaim, counters: &StoreCounters) -> bool {
        let Some(flash) = &self.flash else { return false };
        let (mut has_freed, mut at) = (false, 0);
        while let Some(victim) = reclaim.leaving.get(at).copied() {
            if self.segments.is_dead(victim.id) {
                reclaim.leaving.swap_remove(at);
                has_freed |= self.finish_victim(reclaim, counters, victim) == StepOutcome::Freed;
            } else if reclaim.victim.is_none() && victim.last_write.is_none_or(|n| flash.is_published(n)) {
                // Items that have changed meanwhile, or whose writes failed.
                reclaim.leaving.swap_remove(at);
                reclaim.victim = Some(victim.restarted());
            } else {
                at += 1;
            }
        }
        self.note_leaving(reclaim);
        has_freed
    }

    /// Publishes how many segments will be free when writes to flash have ended.
    fn note_leaving(&self, reclaim: &Reclaim) {
        if let Some(flash) = &self.flash {
            flash.set_leaving(reclaim.leaving());
        }
    }

    /// Free segments that reclaim has yet to gain.
    pub(crate) fn segments_missing(&self) -> usize {
        let leaving = self.flash.as_ref().map_or(0, |flash| flash.leaving());
        self.free_segments_wanted().saturating_sub(self.segments.free_count() + leaving)
    }

    fn free_waiting(&self, reclaim: &mut Reclaim, counters: &StoreCounters) -> bool {
        let has_freed = !reclaim.leaving.is_empty() && self.free_leaving(reclaim, counters);
        let before = reclaim.waiting.len();
        reclaim.waiting.retain(|id| {
            let freed = self.segments.free_unpinned(*id);
            if freed {
                self.release_retired(*id);
            }
            !freed
        });
        let freed = reclaim.waiting.len() < before;
        if freed {
            reclaim.note_freed_memory();
        }
        freed || has_freed
    }

    fn finish_victim(&self, reclaim: &mut Reclaim, counters: &StoreCounters, victim: Victim) -> StepOutcome {
        let is_dead = || self.segments.is_dead(victim.id);
        if victim.last_write.is_some() && !is_dead() {
            reclaim.leaving.push(victim);
            self.note_leaving(reclaim);
            return StepOutcome::Worked;
        }
        if !(is_dead() || self.settle_damaged_segment(victim.id) && is_dead()) {
            // Some thread has marked an item dead whose slot it has yet to change.
            return StepOutcome::Worked;
        }
        let opened = self.segments.filled_by_moves();
        match (victim.purpose, victim.queue) {
            // An item leaving the small queue need not gain memory: the queue is finite.
            (ReclaimPurpose::Evict, Queue::Small) => {
                reclaim.forgive_filled(opened.saturating_sub(victim.opened_before), opened);
            }
            (ReclaimPurpose::Evict, Queue::Main) => {
                reclaim.eviction.finish_main(self.geometry.segment_bytes(), victim.moved_bytes);
                reclaim.count_emptied(opened);
            }
            (ReclaimPurpose::Compact | ReclaimPurpose::Sweep, _) => reclaim.count_emptied(opened),
        }
        self.free_victim(reclaim, counters, victim.id, victim.purpose)
    }

    /// Ends the generation of a dead segment.
    fn free_victim(
        &self,
        reclaim: &mut Reclaim,
        counters: &StoreCounters,
        id: u32,
        purpose: ReclaimPurpose,
    ) -> StepOutcome {
        match purpose {
            ReclaimPurpose::Sweep => counters.segments_expired.inc(),
            ReclaimPurpose::Compact => counters.segments_compacted.inc(),
            ReclaimPurpose::Evict => counters.segments_evicted.inc(),
        }
        reclaim.note_freed_memory();
        if let Some(flash) = &self.flash {
            flash.locations.clear(id);
        }
        if self.segments.retire_generation(id) {
            self.release_retired(id);
            StepOutcome::Freed
        } else {
            reclaim.waiting.push(id);
            StepOutcome::Worked
        }
    }
}

/// Returns the bytes of an item and of the chunks of its value.
pub(crate) fn whole_bytes(item: &Item) -> u64 {
    item.bytes() + if item.is_chained() { u64::from(item.value_len) } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn concurrently_emptied_segments_are_counted_once() {
        let mut reclaim = Reclaim::default();
        // One is filled by what leaves the small queue, and before that ends two are found dead.
        reclaim.count_emptied(1);
        reclaim.count_emptied(1);
        assert_eq!((reclaim.emptied, reclaim.opened_before), (0, 1), "a segment was gained");
        reclaim.forgive_filled(1, 1);
        reclaim.count_emptied(2);
        assert_eq!((reclaim.emptied, reclaim.opened_before), (1, 1), "one emptied, one filled");
        reclaim.forgive_filled(1, 2);
        reclaim.count_emptied(2);
        assert_eq!((reclaim.emptied, reclaim.opened_before), (0, 2));
    }
}
