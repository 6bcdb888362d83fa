//! Taking memory back: expired and flushed items, compaction, eviction.
//!
//! One victim at a time, a sealed segment, is passed over in steps of a few dozen items. Each item still linked is
//! dropped or moved to an open segment, under the lock of its group. In the end nothing links there, the segment's
//! generation ends, and it is free once no sender reads it. Any thread may take the next step; a mutex admits one at
//! a time, and a thread with a free segment never waits for it.
//!
//!
//! The order in which victims are chosen: segments in which nothing lives; those whose items are all expired or
//! flushed; the one with the most dead bytes, if these are enough to be worth moving the rest; else the oldest of a
//! queue, some of whose items are moved and the others evicted (`eviction.rs`).

mod choice;
mod chunks;
mod items;

use std::collections::HashSet;

use fabcache_layout::item::Item;
use fabcache_layout::sync::Ordering;

use crate::bounds::{
    MAKE_ROOM_STEPS_MAX, RECLAIM_OWED_ITEMS_MAX, RECLAIM_SHARE_BYTES, RECLAIM_SHARE_ITEMS,
    RECLAIM_STEP_BYTES, RECLAIM_STEP_ITEMS, SEGMENTS_FOR_ONE_WRITE_MAX,
};
use crate::counters::StoreCounters;
use crate::error::OutOfMemory;
use crate::eviction::Eviction;
use crate::handle::Handle;
use crate::segments::{ClaimPurpose, Queue};
use crate::store::Store;
use choice::{Survey, VictimSearch};

/// Where reclaim stands.
#[derive(Debug, Default)]
pub struct Reclaim {
    victim: Option<Victim>,
    /// Segments whose generation has ended but that senders still read.
    waiting: Vec<u32>,
    /// Segments that could not be emptied: not to be tried again before something was freed.
    stuck: HashSet<u32>,
    /// What is known so far of the sealed segments, while one is chosen.
    survey: Option<Survey>,
    /// Segments emptied since more were emptied than opened for what moved out of them: when there are many, moving
    /// gains nothing (items that do not fit closer, and the tables of chained values that are written anew, may
    /// outweigh what it frees).
    emptied: u32,
    /// Segments that moves had filled by then.
    opened_before: u64,
    /// The dead bytes there were when moving turned out to gain nothing.
    fruitless_at: Option<u64>,
    eviction: Eviction,
}

impl Reclaim {
    /// Whether moving items is known to gain nothing, for more than `emptied_max` segments were emptied without a gain:
    /// until `enough` more bytes are dead.
    fn is_fruitless(&mut self, emptied_max: u32, opened: u64, dead: u64, enough: u64) -> bool {
        if self.emptied <= emptied_max {
            self.fruitless_at = None;
            return false;
        }
        let at = self.fruitless_at.map_or(dead, |at| at.min(dead));
        self.fruitless_at = Some(at);
        if dead > at + enough {
            (self.emptied, self.opened_before) = (0, opened);
        }
        self.emptied > emptied_max
    }

    /// Segments that could not be emptied may be tried again: something was freed.
    #[cfg(not(loom))]
    pub(crate) fn forget_stuck(&mut self) {
        self.stuck.clear();
    }

    /// Evicts the rest of the victim as a whole: a thread has waited long enough.
    fn hurry(&mut self) {
        if let Some(victim) = self.victim.as_mut().filter(|victim| victim.purpose == ReclaimPurpose::Evict) {
            victim.moved_bytes_max = 0;
        }
    }

    /// So many of those that moves filled do not count. Those filled before the count last began never did.
    fn forgive_filled(&mut self, count: u64, opened: u64) {
        self.opened_before = (self.opened_before + count).min(opened);
    }

    /// One more was emptied, and moves have filled so many so far.
    fn count_emptied(&mut self, opened: u64) {
        self.emptied += 1;
        if u64::from(self.emptied) > opened.saturating_sub(self.opened_before) {
            (self.emptied, self.opened_before) = (0, opened);
        }
    }
}

/// Why a segment is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimPurpose {
    /// All in it is thought to be gone; what is not is moved.
    Sweep,
    /// To gain the bytes of dead items; live ones are moved.
    Compact,
    /// To gain those of live ones.
    Evict,
}

#[derive(Clone, Copy, Debug)]
struct Victim {
    id: u32,
    queue: Queue,
    at: u64,
    end: u64,
    purpose: ReclaimPurpose,
    /// Of what is evicted, the least frequency of items that are moved instead.
    least: u8,
    /// Bytes written anew for items of this victim.
    moved_bytes: u64,
    /// At most so many.
    moved_bytes_max: u64,
    /// Segments that moves had filled, when it was chosen.
    opened_before: u64,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A segment was freed.
    Freed,
    /// Items were passed over.
    Worked,
    /// There is nothing to take back.
    Nothing,
}

/// An item could not be moved, and may not be dropped.
struct ImmovableItem;

impl Handle {
    /// Frees memory until a writer with this claim finds a segment, and after so many `tries` that were not enough more of
    /// them: a value may need several, and gives back what it took when it does not get all.
    ///
    /// # Errors
    /// There is nothing left to take back.
    pub(crate) fn make_room(&self, claim: ClaimPurpose, tries: usize) -> Result<(), OutOfMemory> {
        let mut steps = 0;
        let enough = self.store.segments.kept_back(claim) + tries.min(SEGMENTS_FOR_ONE_WRITE_MAX - 1);
        loop {
            let mut reclaim = self.store.reclaim.lock().expect("no thread panics while it reclaims");
            if self.store.segments.free_count() > enough {
                return Ok(());
            }
            steps += 1;
            if steps > MAKE_ROOM_STEPS_MAX {
                reclaim.hurry();
            }
            let step = self.store.reclaim_step(&mut reclaim, self.counters(), RECLAIM_STEP_ITEMS);
            if step == Step::Nothing && !self.store.give_up_open() {
                self.counters().out_of_memory.inc();
                return Err(OutOfMemory);
            }
        }
    }

    /// Does this thread's share of reclaim if free segments run low: what it wrote says how much. While another thread
    /// is at it, the share is owed.
    #[inline]
    pub(crate) fn reclaim_ahead(&self, written_bytes: u64) {
        let missing = self.store.free_segments_wanted().saturating_sub(self.store.segments.free_count());
        if missing > 0 && self.store.nothing_to_reclaim.load(Ordering::Relaxed) != self.store.now() {
            self.reclaim_share(missing as u32, written_bytes);
        }
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
                Step::Worked => {}
                Step::Freed => owed = 0,
                Step::Nothing => {
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
    pub(crate) fn reclaim_step(&self, reclaim: &mut Reclaim, counters: &StoreCounters, items: u32) -> Step {
        if self.free_waiting(reclaim) {
            return Step::Freed;
        }
        let mut victim = match reclaim.victim.take() {
            Some(victim) => victim,
            None => match self.choose_victim(reclaim) {
                VictimSearch::Found(victim) => victim,
                VictimSearch::Unfinished => return Step::Worked,
                VictimSearch::Nothing => return Step::Nothing,
            },
        };
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
                Err(ImmovableItem) => {
                    reclaim.stuck.insert(victim.id);
                    return Step::Worked;
                }
            }
        }
        reclaim.victim = Some(victim);
        Step::Worked
    }

    /// Seals the open segments, for eviction to have them: all that is left lies there if the limit was lowered to few
    /// segments. Whether there were any.
    pub(crate) fn give_up_open(&self) -> bool {
        self.evicts() && self.segments.seal_open(|_| true)
    }

    /// Frees a sealed segment in which nothing lives any more, if it is one.
    pub(crate) fn free_dead(&self, id: u32, counters: &StoreCounters) {
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        if self.segments.is_dead(id) {
            reclaim.victim = reclaim.victim.filter(|victim| victim.id != id);
            reclaim.survey = None;
            reclaim.count_emptied(self.segments.filled_by_moves());
            self.free_victim(&mut reclaim, counters, id, ReclaimPurpose::Sweep);
        }
    }

    /// Frees what only senders kept.
    pub(crate) fn free_unpinned(&self) {
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        self.free_waiting(&mut reclaim);
    }

    fn free_waiting(&self, reclaim: &mut Reclaim) -> bool {
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
            reclaim.stuck.clear();
        }
        freed
    }

    fn finish_victim(&self, reclaim: &mut Reclaim, counters: &StoreCounters, victim: Victim) -> Step {
        if !self.segments.is_dead(victim.id) {
            // Some thread has marked an item dead whose slot it has yet to change.
            return Step::Worked;
        }
        let opened = self.segments.filled_by_moves();
        match (victim.purpose, victim.queue) {
            // What leaves the small queue need not gain anything: the queue ends.
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
    ) -> Step {
        match purpose {
            ReclaimPurpose::Sweep => counters.segments_expired.inc(),
            ReclaimPurpose::Compact => counters.segments_compacted.inc(),
            ReclaimPurpose::Evict => counters.segments_evicted.inc(),
        }
        reclaim.stuck.clear();
        if self.segments.retire_generation(id) {
            self.release_retired(id);
            Step::Freed
        } else {
            reclaim.waiting.push(id);
            Step::Worked
        }
    }
}

/// Bytes of an item and of the chunks of its value.
fn whole_bytes(item: &Item) -> u64 {
    item.bytes() + if item.is_chained() { u64::from(item.value_len) } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn segments_emptied_meanwhile_do_not_make_the_count_wrong() {
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
