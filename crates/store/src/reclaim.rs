//! Taking memory back: expired and flushed items, compaction, eviction.
//!
//! One victim at a time, a sealed segment, is passed over in steps of a few dozen items. Each item still linked is
//! dropped or moved to an open segment, under the lock of its group; in the end nothing links there, the segment's
//! generation ends, and it is free once no sender reads it. Any thread may take the next step; a mutex lets one do so
//! at a time, and nobody waits for it who has a free segment.
//!
//! The order in which victims are chosen: segments in which nothing lives; those whose items are all expired or
//! flushed; the one with the most dead bytes, if these are enough to be worth moving the rest; else the oldest of a
//! queue, some of whose items are moved and the others evicted (`eviction.rs`).

use std::collections::HashSet;

use fabcache_layout::item::{self, Item, KEY_BYTES_MAX, NewItem, PieceEntry, State};
use fabcache_layout::slot::FREQUENCY_MAX;
use fabcache_layout::sync::Ordering;
use fabcache_layout::{KeyHash, Slot, size_class};

use crate::bounds::{
    COMPACTED_ITEMS_MIN, COMPACTION_DEAD_DIVISOR, COMPACTION_DEAD_DIVISOR_WITHOUT_EVICTION,
    EMPTIED_FOR_NOTHING_MAX, EMPTIED_FOR_NOTHING_WITHOUT_EVICTION_MAX, MAKE_ROOM_STEPS_MAX,
    RECLAIM_OWED_ITEMS_MAX, RECLAIM_SHARE_BYTES, RECLAIM_SHARE_ITEMS, RECLAIM_STEP_BYTES, RECLAIM_STEP_ITEMS,
    SEGMENTS_FOR_ONE_WRITE_MAX, SURVEY_STEP_SEGMENTS,
};
use crate::counters::StoreCounters;
use crate::error::OutOfMemory;
use crate::eviction::Eviction;
use crate::handle::Handle;
use crate::index::SlotAt;
use crate::index::group::LockedGroup;
use crate::info::{Detail, Expiry, Miss};
use crate::segments::{Claim, Queue, SealedSegment};
use crate::store::Store;

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

    /// What is being evicted goes whole: somebody has waited for long enough.
    fn hurry(&mut self) {
        if let Some(victim) = self.victim.as_mut().filter(|victim| victim.purpose == Purpose::Evict) {
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
enum Purpose {
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
    purpose: Purpose,
    /// Of what is evicted, the least frequency of items that are moved instead.
    least: u8,
    /// Bytes written anew for items of this victim.
    moved_bytes: u64,
    /// At most so many.
    moved_bytes_max: u64,
    /// Segments that moves had filled, when it was chosen.
    opened_before: u64,
}

/// The sealed segments, as a choice among them needs it: many are looked at in steps. What it names may have been freed
/// since, but only by a thread that holds the lock of reclaim.
#[derive(Debug, Default)]
struct Survey {
    /// The second in which it began.
    began: u32,
    /// The next segment to be looked at.
    next: u32,
    items: u64,
    live_bytes: u64,
    small_segments: u32,
    main_segments: u32,
    dead_in_all: u64,
    deadest: Option<SealedSegment>,
    oldest_small: Option<SealedSegment>,
    oldest_main: Option<SealedSegment>,
    /// Of either queue, one that holds pieces of values still being received.
    oldest_with_orphans: Option<SealedSegment>,
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

/// What came of the search for a victim.
enum Choice {
    Found(Victim),
    /// Not all segments have been looked at.
    Unfinished,
    /// There is nothing to take back.
    Nothing,
}

/// An item could not be moved, and may not be dropped.
struct Stuck;

impl Handle {
    /// Frees memory until a writer with this claim finds a segment, and after so many `tries` that were not enough more of
    /// them: a value may need several, and gives back what it took when it does not get all.
    ///
    /// # Errors
    /// There is nothing left to take back.
    pub(crate) fn make_room(&self, claim: Claim, tries: usize) -> Result<(), OutOfMemory> {
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
    /// Passes over at most `items` items of the victim, choosing one if there is none.
    pub(crate) fn reclaim_step(&self, reclaim: &mut Reclaim, counters: &StoreCounters, items: u32) -> Step {
        if self.free_waiting(reclaim) {
            return Step::Freed;
        }
        let mut victim = match reclaim.victim.take() {
            Some(victim) => victim,
            None => match self.choose_victim(reclaim) {
                Choice::Found(victim) => victim,
                Choice::Unfinished => return Step::Worked,
                Choice::Nothing => return Step::Nothing,
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
                Err(Stuck) => {
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
            self.free_victim(&mut reclaim, counters, id, Purpose::Sweep);
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

    fn victim_of(&self, sealed: &SealedSegment, purpose: Purpose) -> Victim {
        let at = self.geometry.segment_offset(sealed.id);
        let end = at + u64::from(sealed.used);
        Victim {
            id: sealed.id,
            queue: sealed.queue,
            at: if sealed.live_bytes == 0 { end } else { at },
            end,
            purpose,
            least: 0,
            moved_bytes: 0,
            moved_bytes_max: u64::MAX,
            opened_before: self.segments.filled_by_moves(),
        }
    }

    fn choose_victim(&self, reclaim: &mut Reclaim) -> Choice {
        let now = self.now();
        // What was looked at before the last second is no longer so.
        let begun = reclaim.survey.take().filter(|survey| now - survey.began <= 1);
        let mut survey = begun.unwrap_or(Survey { began: now, ..Survey::default() });
        if let Err(gone) = self.look_on(&mut survey, &reclaim.stuck) {
            return Choice::Found(self.victim_of(&gone, Purpose::Sweep));
        }
        if survey.next < self.geometry.segments {
            reclaim.survey = Some(survey);
            return Choice::Unfinished;
        }
        self.choose(reclaim, &survey).map_or(Choice::Nothing, Choice::Found)
    }

    fn choose(&self, reclaim: &mut Reclaim, survey: &Survey) -> Option<Victim> {
        let capacity = self.geometry.segment_bytes();
        let evicts = self.evicts();
        let emptied_max =
            if evicts { EMPTIED_FOR_NOTHING_MAX } else { EMPTIED_FOR_NOTHING_WITHOUT_EVICTION_MAX };
        let opened = self.segments.filled_by_moves();
        let fruitless = reclaim.is_fruitless(emptied_max, opened, survey.dead_in_all, capacity);
        if fruitless && !evicts {
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
            return Some(self.victim_of(&deadest, Purpose::Compact));
        }
        self.ghosts.fit(reclaim.eviction.items_wanted(survey.items, survey.live_bytes));
        reclaim.eviction.mean_bytes = survey.live_bytes / survey.items.max(1);
        let queue = reclaim.eviction.queue(survey.small_segments, survey.main_segments);
        let (first, second) = match queue {
            Queue::Small => (survey.oldest_small, survey.oldest_main),
            Queue::Main => (survey.oldest_main, survey.oldest_small),
        };
        let oldest = first.or(second).or(survey.oldest_with_orphans).filter(|_| evicts);
        oldest.map(|segment| Victim {
            least: reclaim.eviction.least(segment.queue),
            // All of the small queue may go to the main one, but the main one must yield something.
            moved_bytes_max: match segment.queue {
                Queue::Main if fruitless => 0,
                queue => reclaim.eviction.kept_bytes_max(queue, capacity),
            },
            ..self.victim_of(&segment, Purpose::Evict)
        })
    }

    /// What moving the live items of a segment would gain. Without eviction what no item fitted into does not count:
    /// moving does not gain that.
    fn dead(&self, segment: &SealedSegment) -> u64 {
        let filled = if self.evicts() { self.geometry.segment_bytes() } else { u64::from(segment.used) };
        filled.saturating_sub(segment.live_bytes)
    }

    /// Looks at more sealed segments. One in which all is gone ends it, and is the error.
    fn look_on(&self, survey: &mut Survey, stuck: &HashSet<u32>) -> Result<(), SealedSegment> {
        let now = self.now();
        let flushed = self.flushed_order.load(Ordering::Acquire);
        let from = survey.next;
        survey.next = (from + SURVEY_STEP_SEGMENTS).min(self.geometry.segments);
        for segment in self.segments.sealed(from..survey.next) {
            if segment.live_bytes > 0 && stuck.contains(&segment.id) {
                continue;
            }
            let is_gone = segment.last_expiry.is_some_and(|last| last <= now) || segment.order <= flushed;
            // Pieces still being received do not go with the rest.
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
            let oldest = if segment.orphans { &mut survey.oldest_with_orphans } else { oldest };
            if oldest.is_none_or(|other| segment.order < other.order) {
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

    fn finish_victim(&self, reclaim: &mut Reclaim, counters: &StoreCounters, victim: Victim) -> Step {
        if !self.segments.is_dead(victim.id) {
            // Some thread has marked an item dead whose slot it has yet to change.
            return Step::Worked;
        }
        let opened = self.segments.filled_by_moves();
        match (victim.purpose, victim.queue) {
            // What leaves the small queue need not gain anything: the queue ends.
            (Purpose::Evict, Queue::Small) => {
                reclaim.forgive_filled(opened.saturating_sub(victim.opened_before), opened);
            }
            (Purpose::Evict, Queue::Main) => {
                reclaim.eviction.finish_main(self.geometry.segment_bytes(), victim.moved_bytes);
                reclaim.count_emptied(opened);
            }
            (Purpose::Compact | Purpose::Sweep, _) => reclaim.count_emptied(opened),
        }
        self.free_victim(reclaim, counters, victim.id, victim.purpose)
    }

    /// Ends the generation of a dead segment.
    fn free_victim(
        &self,
        reclaim: &mut Reclaim,
        counters: &StoreCounters,
        id: u32,
        purpose: Purpose,
    ) -> Step {
        match purpose {
            Purpose::Sweep => counters.segments_expired.inc(),
            Purpose::Compact => counters.segments_compacted.inc(),
            Purpose::Evict => counters.segments_evicted.inc(),
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

    /// Passes over the item at the victim's place; its bytes.
    fn pass_over(
        &self,
        victim: &mut Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
    ) -> Result<u64, Stuck> {
        let offset = victim.at;
        let item = Item::read(&self.memory, offset).expect("a sealed segment is in the region");
        let bytes = item.bytes();
        counters.reclaim_items_checked.inc();
        if item.state.has(State::DEAD) {
            return Ok(bytes);
        }
        let mut key = [0; KEY_BYTES_MAX];
        let key = &mut key[..usize::from(item.key_len).min(KEY_BYTES_MAX)];
        self.memory.copy_out(offset + item.key_at(), key);
        let hash = if item.is_piece() { KeyHash(item.cas) } else { self.hash(key) };
        let group = self.index.lock(hash);
        // Under the lock it either is dead by now, or cannot die but by us.
        if item::load_state(&self.memory, offset).has(State::DEAD) {
            return Ok(bytes);
        }
        if item.is_piece() {
            self.pass_over_piece(victim, eviction, counters, &group, hash, (offset, &item))?;
            return Ok(bytes);
        }
        let Some(at) = group.find(hash, |slot| slot.offset() == offset) else {
            // Written, but not yet linked: its segment would not have been read. So it was abandoned.
            return Ok(bytes);
        };
        if let Some(miss) = self.gone(&item, self.now()) {
            self.drop_gone(counters, &group, at, &item, miss);
            return Ok(bytes);
        }
        let frequency = at.slot.frequency();
        let keeps = self.keeps(victim, eviction.credited(victim.queue, frequency, whole_bytes(&item)), bytes);
        if victim.purpose == Purpose::Evict && victim.queue == Queue::Main {
            eviction.see_main(frequency, bytes);
        }
        let worn = self.worn(victim, eviction, at, &item);
        if keeps {
            let to = (self.destination(victim), worn);
            match self.move_item(counters, &group, hash, at, &item, to) {
                Ok(()) => {
                    victim.moved_bytes += bytes;
                    return Ok(bytes);
                }
                Err(Stuck) if !self.evicts() => return Err(Stuck),
                Err(Stuck) => {}
            }
        }
        self.evict_from(victim, eviction, counters, &group, hash, (at, &item));
        Ok(bytes)
    }

    /// The queue that items of a victim move to. Where nothing is evicted, what is moved is apart from what is new.
    fn destination(&self, victim: &Victim) -> Queue {
        let compacts = victim.purpose != Purpose::Evict && self.evicts();
        if compacts { victim.queue } else { Queue::Main }
    }

    /// Whether an item is moved rather than dropped.
    fn keeps(&self, victim: &Victim, frequency: u8, bytes: u64) -> bool {
        match victim.purpose {
            Purpose::Sweep | Purpose::Compact => true,
            Purpose::Evict => {
                frequency >= victim.least && victim.moved_bytes + bytes <= victim.moved_bytes_max
            }
        }
    }

    pub(crate) fn drop_gone(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        at: SlotAt,
        item: &Item,
        miss: Miss,
    ) {
        counters.reclaimed.inc();
        if miss == Miss::Expired && !self.is_fetched(at.slot, item) {
            counters.expired_unfetched.inc();
        }
        self.unlink(group, at, item);
    }

    fn is_fetched(&self, slot: Slot, item: &Item) -> bool {
        slot.frequency() > 0 || item.state.has(State::FETCHED)
    }

    /// What is left of the frequency of an item that is moved.
    fn worn(&self, victim: &Victim, eviction: &Eviction, at: SlotAt, item: &Item) -> u8 {
        let (offset, frequency) = (at.slot.offset(), at.slot.frequency());
        match victim.purpose {
            Purpose::Sweep | Purpose::Compact => frequency,
            // Where it lies is as good as random.
            Purpose::Evict => eviction.worn(victim.queue, frequency, whole_bytes(item), offset / 4),
        }
    }

    fn evict_from(
        &self,
        victim: &Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        (at, item): (SlotAt, &Item),
    ) {
        if victim.queue == Queue::Small {
            eviction.see_evicted(whole_bytes(item));
        }
        self.evict(counters, group, hash, at, item);
    }

    fn evict(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotAt,
        item: &Item,
    ) {
        counters.evictions.inc();
        counters.evicted_bytes.add(whole_bytes(item));
        if !self.is_fetched(at.slot, item) {
            counters.evicted_unfetched.inc();
        } else if at.slot.frequency() > 1 {
            counters.evicted_active.inc();
        }
        if item.expiry != 0 {
            counters.evicted_nonzero.inc();
        }
        if self.segments.queue_at(at.slot.offset()) == Queue::Small {
            self.ghosts.add(hash);
        }
        self.tell_of_eviction(at, item);
        self.unlink(group, at, item);
    }

    fn tell_of_eviction(&self, at: SlotAt, item: &Item) {
        let now = self.now();
        let offset = at.slot.offset();
        self.evicted_idle.store(now.saturating_sub(self.accessed(offset, item.state)), Ordering::Relaxed);
        if let Some(observer) = self.observer.get().filter(|observer| observer.is_listening()) {
            let mut key = [0; KEY_BYTES_MAX];
            let key = &mut key[..usize::from(item.key_len).min(KEY_BYTES_MAX)];
            self.memory.copy_out(offset + item.key_at(), key);
            observer.evicted(key, &self.info(at.slot, item, now, Detail::Full));
        }
    }

    fn move_item(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotAt,
        item: &Item,
        to: (Queue, u8),
    ) -> Result<(), Stuck> {
        let offset = at.slot.offset();
        let table = item.is_chained().then(|| self.pieces(offset, item));
        self.rewrite(group, hash, at, item, table, to)?;
        counters.items_moved.inc();
        counters.bytes_moved.add(item.bytes());
        Ok(())
    }

    /// Writes an item anew in an open segment of a queue, for a chained one with the given pieces, and links it there with
    /// a frequency.
    fn rewrite(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotAt,
        item: &Item,
        pieces: Option<Vec<PieceEntry>>,
        (queue, frequency): (Queue, u8),
    ) -> Result<(), Stuck> {
        let now = self.now();
        let offset = at.slot.offset();
        let mut content = vec![
            0;
            usize::from(item.key_len)
                + if pieces.is_some() { 0 } else { item.payload_len() as usize }
        ];
        self.memory.copy_out(offset + item.key_at(), &mut content);
        let (key, value) = content.split_at(usize::from(item.key_len));
        let table: Option<Vec<u8>> =
            pieces.as_ref().map(|pieces| pieces.iter().flat_map(|p| p.to_bytes()).collect());
        let mut state = item::load_state(&self.memory, offset);
        let accessed = self.accessed(offset, state);
        if self.is_fetched(at.slot, item) {
            state = state.with(State::FETCHED);
        }
        let new = NewItem {
            // The window counts from the opening of a segment; in the new one the mark below tells the time.
            state: state.with_window(0),
            key,
            binary_key: item.has_binary_key(),
            cas: item.cas,
            flags: item.flags,
            expiry: item.expiry,
            pieces: pieces.map_or(0, |pieces| pieces.len() as u32),
            value_len: item.value_len,
        };
        let class = self.segments.class_of(queue, item.expiry, now, 0);
        let reservation = self.segments.reserve(class, new.bytes(), now, Claim::Move).map_err(|_| Stuck)?;
        let new_offset = reservation.offset;
        self.segments.note_written(new_offset, accessed);
        self.write_item(reservation, &new, table.as_deref().unwrap_or(value), Expiry::at(item.expiry));
        let class = size_class::class_of(new.bytes());
        self.relink(group, at, item, Slot::item(hash.tag(), new_offset, class, frequency));
        Ok(())
    }

    // ---- pieces of chained values ----

    fn pass_over_piece(
        &self,
        victim: &mut Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        owner: KeyHash,
        (offset, piece): (u64, &Item),
    ) -> Result<(), Stuck> {
        let found = group.find(owner, |slot| {
            let head = Item::read(&self.memory, slot.offset());
            head.is_some_and(|head| {
                head.is_chained() && self.pieces(slot.offset(), &head).iter().any(|p| p.offset == offset)
            })
        });
        let Some(at) = found else {
            // A value still being received. Its client is told that memory is full.
            if victim.purpose != Purpose::Evict {
                return Err(Stuck);
            }
            item::set_state(&self.memory, offset, State::DEAD);
            self.segments.count_dead(offset, piece.bytes(), 0);
            return Ok(());
        };
        let head = Item::read(&self.memory, at.slot.offset()).expect("a slot points into the region");
        if let Some(miss) = self.gone(&head, self.now()) {
            self.drop_gone(counters, group, at, &head, miss);
            return Ok(());
        }
        let bytes = piece.bytes() + head.bytes();
        // Its item may have been read to go to the main queue, and come there without it.
        let follows = victim.queue == Queue::Small && self.segments.queue_at(at.slot.offset()) == Queue::Main;
        let frequency = if follows { FREQUENCY_MAX } else { at.slot.frequency() };
        if victim.purpose == Purpose::Evict && victim.queue == Queue::Main {
            eviction.see_main(frequency, bytes);
        }
        if self.keeps(victim, frequency, bytes) {
            let which = (offset, victim.end);
            let worn = self.worn(victim, eviction, at, &head);
            let to = (self.destination(victim), worn);
            match self.move_pieces(counters, group, owner, at, &head, which, to) {
                Ok(moved) => {
                    victim.moved_bytes += moved + head.bytes();
                    counters.bytes_moved.add(moved);
                    return Ok(());
                }
                Err(Stuck) if !self.evicts() => return Err(Stuck),
                Err(Stuck) => {}
            }
        }
        self.evict_from(victim, eviction, counters, group, owner, (at, &head));
        Ok(())
    }

    /// Moves pieces of one value that lie in the victim from `from` on, all at once, for each time their table is
    /// written anew: at least the one at `from`, and more up to about the bytes of a step. With the last of all the item
    /// gets the frequency of `to`. The bytes moved.
    #[expect(clippy::too_many_arguments, reason = "the pieces, their owner, from where and to where")]
    fn move_pieces(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        owner: KeyHash,
        at: SlotAt,
        head: &Item,
        (from, end): (u64, u64),
        (queue, worn): (Queue, u8),
    ) -> Result<u64, Stuck> {
        let mut moved = Vec::new();
        let mut left = Vec::new();
        let mut pieces = Vec::new();
        let mut bytes = 0;
        let mut last_moved = false;
        for piece in self.pieces(at.slot.offset(), head) {
            last_moved = false;
            if piece.offset != from && (!(from..end).contains(&piece.offset) || bytes > RECLAIM_STEP_BYTES) {
                pieces.push(piece);
                continue;
            }
            last_moved = true;
            bytes += u64::from(piece.len);
            left.push(piece);
            let Ok(parts) = self.copy_piece(owner, head, piece, queue) else {
                moved.into_iter().for_each(|part| self.kill_piece(part));
                return Err(Stuck);
            };
            pieces.extend(&parts);
            moved.extend(parts);
        }
        let to = (queue, if last_moved { worn } else { at.slot.frequency() });
        if let Err(stuck) = self.rewrite(group, owner, at, head, Some(pieces), to) {
            moved.into_iter().for_each(|part| self.kill_piece(part));
            return Err(stuck);
        }
        counters.items_moved.add(left.len() as u64);
        left.into_iter().for_each(|piece| self.kill_piece(piece));
        Ok(bytes)
    }

    /// Writes the bytes of a piece anew, in one or several.
    fn copy_piece(
        &self,
        owner: KeyHash,
        head: &Item,
        piece: PieceEntry,
        queue: Queue,
    ) -> Result<Vec<PieceEntry>, Stuck> {
        let value = self.piece_value(piece);
        let mut parts = Vec::new();
        let mut rest = &value[..];
        while !rest.is_empty() {
            match self.write_piece(owner, queue, Expiry::at(head.expiry), rest, Claim::Move) {
                Ok(part) => {
                    rest = &rest[part.len as usize..];
                    parts.push(part);
                }
                Err(_) => {
                    parts.into_iter().for_each(|part| self.kill_piece(part));
                    return Err(Stuck);
                }
            }
        }
        Ok(parts)
    }
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

/// Bytes of an item and of the pieces of its value.
fn whole_bytes(item: &Item) -> u64 {
    item.bytes() + if item.is_chained() { u64::from(item.value_len) } else { 0 }
}
