//! Which segment is emptied next, and why.

use fabcache_layout::sync::Ordering;

use super::candidates::Candidates;
use super::state::{Reclaim, ReclaimPurpose, Survey, Victim};
use crate::bounds::{
    COMPACTED_ITEMS_MIN, COMPACTION_DEAD_DIVISOR, COMPACTION_DEAD_DIVISOR_WITHOUT_EVICTION,
    EMPTIED_FOR_NOTHING_MAX, EMPTIED_FOR_NOTHING_WITHOUT_EVICTION_MAX, SURVEY_STEP_SEGMENTS,
};
use crate::eviction::{EvictionPolicy, ghosts_for};
use crate::segments::{Queue, SealedSegment};
use crate::store::Store;

/// The result of the search for a victim.
pub(super) enum VictimSearch {
    Found(Victim),
    /// Not all segments have been examined.
    Unfinished,
    /// There is nothing to take back.
    Nothing,
}

impl Store {
    fn victim_of(&self, sealed: &SealedSegment, purpose: ReclaimPurpose) -> Victim {
        let at = self.geometry.segment_offset(sealed.id);
        let end = at + u64::from(sealed.used);
        Victim {
            id: sealed.id,
            queue: sealed.queue,
            start: at,
            at: if sealed.live_bytes == 0 { end } else { at },
            end,
            purpose,
            least: 0,
            moved_bytes: 0,
            moved_bytes_max: u64::MAX,
            opened_before: self.segments.filled_by_moves(),
            last_write: None,
            skips_flash: false,
        }
    }

    pub(super) fn choose_victim(&self, reclaim: &mut Reclaim) -> VictimSearch {
        if let Some(next) = self.next_candidate(reclaim) {
            return VictimSearch::Found(next);
        }
        let now = self.now();
        // A survey from before the last second is out of date.
        let begun = reclaim.survey.take().filter(|survey| now - survey.began <= 1);
        let gathers = !self.evicts() && !reclaim.stuck.is_empty();
        let candidates = gathers.then(Candidates::default);
        let mut survey = begun.unwrap_or(Survey { began: now, candidates, ..Survey::default() });
        if let Err(gone) = self.survey_more(&mut survey, reclaim) {
            return VictimSearch::Found(self.victim_of(&gone, ReclaimPurpose::Sweep));
        }
        if survey.next < self.geometry.segments {
            reclaim.survey = Some(survey);
            return VictimSearch::Unfinished;
        }
        let candidates = survey.candidates.take();
        let chosen = self.choose(reclaim, &survey);
        if chosen.is_some_and(|victim| victim.purpose == ReclaimPurpose::Evict) {
            let first = reclaim.eviction.queue(survey.small_segments, survey.main_segments);
            reclaim.candidates = candidates.map(|candidates| candidates.sorted(first));
        }
        chosen.map_or(VictimSearch::Nothing, VictimSearch::Found)
    }

    fn choose(&self, reclaim: &mut Reclaim, survey: &Survey) -> Option<Victim> {
        let capacity = self.geometry.segment_bytes();
        let evicts = self.evicts();
        let emptied_max = self.emptied_max();
        let opened = self.segments.filled_by_moves();
        let fruitless = reclaim.is_fruitless(emptied_max, opened, survey.dead_in_all, capacity);
        if fruitless && !evicts && self.flash.is_none() {
            return None;
        }
        let divisor = if evicts { COMPACTION_DEAD_DIVISOR } else { COMPACTION_DEAD_DIVISOR_WITHOUT_EVICTION };
        let worth = capacity / divisor;
        // Evicting a long value leaves the segment in which it ends, the next in age, partly dead: what follows it there
        // is next in any case, and moving it would leave as much dead again.
        let is_next = |segment: &SealedSegment| {
            let oldest = [survey.oldest_small, survey.oldest_main].into_iter().flatten();
            evicts
                && segment.live_items < COMPACTED_ITEMS_MIN
                && oldest.into_iter().any(|o| o.id == segment.id)
        };
        let deadest = survey.deadest.filter(|segment| self.dead(segment) > worth && !is_next(segment));
        if let Some(deadest) = deadest.filter(|_| !fruitless)
            && (evicts || survey.dead_in_all > capacity)
        {
            return Some(self.victim_of(&deadest, ReclaimPurpose::Compact));
        }
        let items_wanted = reclaim.eviction.items_wanted(survey.items, survey.live_bytes);
        self.ghosts.fit(ghosts_for(items_wanted));
        if let Some(flash) = &self.flash {
            flash.fit_recent_reads(survey.items);
        }
        reclaim.eviction.mean_bytes = survey.live_bytes / survey.items.max(1);
        if self.eviction_policy() == EvictionPolicy::Adaptive {
            reclaim.eviction.set_small_share(self.simulation.note_full(survey.items, survey.live_bytes));
        }
        self.small_share.store(reclaim.eviction.small_share().to_bits(), Ordering::Relaxed);
        self.promotion_reads.store(reclaim.eviction.least(Queue::Small), Ordering::Relaxed);
        let queue = reclaim.eviction.queue(survey.small_segments, survey.main_segments);
        let (first, second) = match queue {
            Queue::Small => (survey.oldest_small, survey.oldest_main),
            Queue::Main => (survey.oldest_main, survey.oldest_small),
        };
        // If flash takes no items, they would only move, and no memory would become free.
        let may_leave = evicts || self.flash_takes_items();
        let with_orphans = survey.oldest_with_orphans.filter(|_| evicts && reclaim.leaving() == 0);
        let oldest = first.or(second).filter(|_| may_leave).or(with_orphans);
        oldest.map(|segment| self.leaving_victim(reclaim, &segment))
    }

    /// Returns the next candidate after one that could not be emptied.
    fn next_candidate(&self, reclaim: &mut Reclaim) -> Option<Victim> {
        let mut candidates = reclaim.candidates.take()?;
        if !self.flash_takes_items() {
            return None;
        }
        while let Some((order, id)) = candidates.take_next() {
            let is_same = |segment: &SealedSegment| segment.order == order && !segment.orphans;
            if !reclaim.stuck.is_by_memory(id)
                && !reclaim.stuck.is_by_flash(id)
                && !reclaim.is_leaving(id)
                && let Some(segment) = self.segments.sealed(id..id + 1).next().filter(is_same)
            {
                reclaim.candidates = Some(candidates);
                return Some(self.leaving_victim(reclaim, &segment));
            }
        }
        None
    }

    fn flash_takes_items(&self) -> bool {
        self.flash.as_ref().is_some_and(|flash| flash.takes_items(self.clock_ns()))
    }

    /// Returns a segment as the victim whose items leave memory.
    fn leaving_victim(&self, reclaim: &Reclaim, segment: &SealedSegment) -> Victim {
        Victim {
            least: reclaim.eviction.least(segment.queue),
            // All of the small queue may go to the main one, but the main one must yield something.
            moved_bytes_max: match segment.queue {
                Queue::Main if reclaim.is_known_fruitless(self.emptied_max()) => 0,
                queue => reclaim.eviction.kept_bytes_max(queue, self.geometry.segment_bytes()),
            },
            ..self.victim_of(segment, ReclaimPurpose::Evict)
        }
    }

    fn emptied_max(&self) -> u32 {
        if self.evicts() { EMPTIED_FOR_NOTHING_MAX } else { EMPTIED_FOR_NOTHING_WITHOUT_EVICTION_MAX }
    }

    /// Returns the bytes that moving the segment's live items would free. Without eviction, unwritten space does not count.
    fn dead(&self, segment: &SealedSegment) -> u64 {
        let filled = if self.evicts() { self.geometry.segment_bytes() } else { u64::from(segment.used) };
        filled.saturating_sub(segment.live_bytes)
    }

    /// Surveys more sealed segments. One without live items ends the survey, and is the error.
    fn survey_more(&self, survey: &mut Survey, reclaim: &Reclaim) -> Result<(), SealedSegment> {
        let now = self.now();
        let flushed = self.flushed_order.load(Ordering::Acquire);
        let from = survey.next;
        survey.next = (from + SURVEY_STEP_SEGMENTS).min(self.geometry.segments);
        for segment in self.segments.sealed(from..survey.next) {
            let is_stuck = segment.live_bytes > 0 && reclaim.stuck.is_by_memory(segment.id);
            if is_stuck || reclaim.is_leaving(segment.id) {
                continue;
            }
            let is_gone = segment.last_expiry.is_some_and(|last| last <= now) || segment.order <= flushed;
            // Chunks still being received do not go with the rest.
            if segment.live_bytes == 0 || is_gone && !segment.orphans {
                return Err(segment);
            }
            survey.items += segment.live_items;
            survey.live_bytes += segment.live_bytes;
            let (count, oldest) = match segment.queue {
                Queue::Small => (&mut survey.small_segments, &mut survey.oldest_small),
                Queue::Main => (&mut survey.main_segments, &mut survey.oldest_main),
            };
            *count += 1;
            let may_leave = !segment.orphans && !reclaim.stuck.is_by_flash(segment.id);
            if let Some(candidates) = survey.candidates.as_mut().filter(|_| may_leave) {
                candidates.add(&segment);
            }
            let oldest = if segment.orphans { &mut survey.oldest_with_orphans } else { oldest };
            if (may_leave || segment.orphans) && oldest.is_none_or(|other| segment.order < other.order) {
                *oldest = Some(segment);
            }
            if segment.orphans {
                continue;
            }
            survey.dead_in_all += self.dead(&segment);
            if survey.deadest.is_none_or(|other| self.dead(&segment) > self.dead(&other)) {
                survey.deadest = Some(segment);
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bounds::RECLAIM_STEP_ITEMS;
    use crate::clock::SetClock;
    use crate::reclaim::StepOutcome;
    use crate::{Change, Expiry, FlashOptions, Handle, Put, StoreOptions};

    fn put(handle: &Handle, n: usize) -> bool {
        let key = format!("key-{n}").into_bytes();
        let put = Put { key: &key, value: &[1; 500], flags: 0, expiry: Expiry::NEVER };
        handle.put(&put, &handle.probe_for_write(&key)).is_ok()
    }

    /// Returns the handle of a store that is full of items which are too short for flash, and their number.
    fn full() -> (Handle, usize) {
        let store = Store::open(StoreOptions {
            memory_bytes: 2 << 20,
            memory_bytes_max: 2 << 20,
            evict: false,
            flash: Some(FlashOptions { item_bytes_min: 1_000, ..FlashOptions::of_device(40, 256 << 10) }),
            time: Box::new(SetClock::default()),
            ..StoreOptions::default()
        });
        let handle = Handle::new(&Arc::new(store.expect("memory for a test")));
        let stored = (0..).take_while(|n| put(&handle, *n)).count();
        assert!(stored > 1_000, "{stored}");
        (handle, stored)
    }

    #[test]
    fn segments_that_flash_refuses_take_one_survey() {
        let (handle, _) = full();
        let store = handle.store();
        let mut reclaim = store.reclaim.lock().expect("no thread fails");
        reclaim.forget_stuck();
        let (mut stuck, mut with_candidates) = (0, 0);
        loop {
            match store.reclaim_step(&mut reclaim, store.counters(handle.thread), RECLAIM_STEP_ITEMS) {
                StepOutcome::Stuck => {
                    stuck += 1;
                    with_candidates += usize::from(reclaim.candidates.is_some());
                }
                StepOutcome::Worked => {}
                StepOutcome::Nothing => break,
                freed => panic!("{freed:?}"),
            }
        }
        assert!(stuck > 50, "{stuck}");
        assert_eq!(with_candidates, stuck - 1, "the second survey is the last");
        assert!(reclaim.candidates.is_none(), "all were tried");
    }

    #[test]
    fn dead_memory_beside_items_that_flash_refuses_is_used() {
        let (handle, stored) = full();
        // Flash takes no items any more, so the refused ones are not tried again.
        handle.store().set_flash_device_lost(0, true);
        for n in (0..stored).step_by(2) {
            let key = format!("key-{n}").into_bytes();
            handle.mutate(&key, |_| (Change::Remove, ())).expect("removing needs no memory");
        }
        let again = (0..stored / 4).filter(|n| put(&handle, stored + n)).count();
        assert_eq!(again, stored / 4);
    }
}
