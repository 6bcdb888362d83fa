//! The state of reclaim, which the store keeps under the reclaim lock.

use super::candidates::Candidates;
use super::stuck::StuckSegments;
use crate::eviction::{Eviction, EvictionPolicy};
#[cfg(not(loom))]
use crate::restart::saved_state::SavedReclaim;
use crate::segments::{Queue, SealedSegment};

/// The state of reclaim.
#[derive(Debug, Default)]
pub struct Reclaim {
    pub(super) victim: Option<Victim>,
    /// Segments whose generation has ended but that senders still read.
    pub(super) waiting: Vec<u32>,
    pub(super) stuck: StuckSegments,
    /// The next segments of the last survey, after one could not be emptied.
    pub(super) candidates: Option<Candidates>,
    /// The survey of the sealed segments, while a victim is chosen.
    pub(super) survey: Option<Survey>,
    /// Segments emptied in excess of those filled by moves since the last reset: if there are many, moving gains
    /// nothing, because items fit no closer and rewritten chunk tables outweigh the space freed.
    pub(super) emptied: u32,
    /// Segments that moves had filled at that time.
    pub(super) opened_before: u64,
    /// The dead bytes there were when moving turned out to gain nothing.
    pub(super) fruitless_at: Option<u64>,
    /// Segments whose items are being written to flash.
    pub(super) leaving: Vec<Victim>,
    pub(super) eviction: Eviction,
}

impl Reclaim {
    /// Returns the state before anything was reclaimed.
    pub(crate) fn new(policy: EvictionPolicy) -> Reclaim {
        Reclaim { eviction: Eviction::new(policy), ..Reclaim::default() }
    }

    /// Returns the state to save for the next server. No thread reclaims meanwhile.
    #[cfg(not(loom))]
    pub(crate) fn save(&self) -> SavedReclaim {
        let Reclaim { emptied, opened_before, fruitless_at, .. } = *self;
        SavedReclaim { emptied, opened_before, fruitless_at, eviction: self.eviction.clone() }
    }

    /// Returns the state that the last server saved, as far as it suits the policy.
    #[cfg(not(loom))]
    pub(crate) fn restored(saved: &SavedReclaim, policy: EvictionPolicy) -> Reclaim {
        let SavedReclaim { emptied, opened_before, fruitless_at, .. } = *saved;
        let eviction = Eviction::restored(&saved.eviction, policy);
        Reclaim { emptied, opened_before, fruitless_at, eviction, ..Reclaim::default() }
    }

    /// Adds a segment whose generation has ended, but that senders still read.
    pub(crate) fn wait_for_senders(&mut self, id: u32) {
        self.waiting.push(id);
    }

    /// Takes the segments whose generation has ended.
    #[cfg(not(loom))]
    pub(crate) fn take_waiting(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns the part of the segments that the small queue may have.
    #[cfg(not(loom))]
    pub(crate) fn eviction(&self) -> &Eviction {
        &self.eviction
    }

    /// Returns whether moving items is known to gain nothing, because more than `emptied_max` segments were emptied
    /// without a gain: until `enough` more bytes are dead.
    pub(super) fn is_fruitless(&mut self, emptied_max: u32, opened: u64, dead: u64, enough: u64) -> bool {
        if self.emptied <= emptied_max {
            self.fruitless_at = None;
            return false;
        }
        let at = self.fruitless_at.map_or(dead, |at| at.min(dead));
        self.fruitless_at = Some(at);
        if dead > at + enough {
            (self.emptied, self.opened_before) = (0, opened);
        }
        self.is_known_fruitless(emptied_max)
    }

    /// As [`Reclaim::is_fruitless`], by the dead bytes of the last survey.
    pub(super) fn is_known_fruitless(&self, emptied_max: u32) -> bool {
        self.emptied > emptied_max
    }

    /// Makes segments that could not be emptied eligible again: flash takes items again, or the memory limit has changed.
    pub(crate) fn forget_stuck(&mut self) {
        self.stuck.clear();
        self.candidates = None;
    }

    /// Memory was freed: items that could not be moved may be moved now.
    pub(super) fn note_freed_memory(&mut self) {
        self.stuck.note_freed_memory();
        self.candidates = None;
    }

    /// Evicts the rest of the victim as a whole: a thread has waited long enough.
    pub(super) fn hurry(&mut self) {
        if let Some(victim) = self.victim.as_mut().filter(|victim| victim.purpose == ReclaimPurpose::Evict) {
            victim.moved_bytes_max = 0;
        }
    }

    /// Empties the victim, or one that waits for writes to flash, without those. Returns whether there is one.
    pub(crate) fn skip_flash(&mut self) -> bool {
        match &mut self.victim {
            Some(victim) => !std::mem::replace(&mut victim.skips_flash, true),
            None => {
                let leaving = self.leaving.pop().map(Victim::restarted);
                self.victim = leaving.map(|victim| Victim { skips_flash: true, ..victim });
                self.victim.is_some()
            }
        }
    }

    /// Returns whether items of the segment are being written to flash.
    pub(super) fn is_leaving(&self, id: u32) -> bool {
        self.leaving.iter().any(|victim| victim.id == id)
    }

    /// Returns the segments that will be free when writes to flash have ended.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Excludes `count` of the segments that moves filled. Those filled before the last reset never counted.
    pub(super) fn forgive_filled(&mut self, count: u64, opened: u64) {
        self.opened_before = (self.opened_before + count).min(opened);
    }

    /// Counts an emptied segment; moves have filled `opened` so far.
    pub(super) fn count_emptied(&mut self, opened: u64) {
        self.emptied += 1;
        if u64::from(self.emptied) > opened.saturating_sub(self.opened_before) {
            (self.emptied, self.opened_before) = (0, opened);
        }
    }
}

/// Why a segment is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReclaimPurpose {
    /// Everything in it is probably dead; the rest is moved.
    Sweep,
    /// Gains the bytes of dead items; live ones are moved.
    Compact,
    /// Gains the bytes of live items.
    Evict,
}

/// The segment that is being emptied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) id: u32,
    pub(super) queue: Queue,
    pub(super) start: u64,
    pub(super) at: u64,
    pub(super) end: u64,
    pub(super) purpose: ReclaimPurpose,
    /// The least frequency of items that are moved rather than evicted.
    pub(super) least: u8,
    /// Bytes written for items of this victim.
    pub(super) moved_bytes: u64,
    /// Their maximum.
    pub(super) moved_bytes_max: u64,
    /// Segments that moves had filled when it was chosen.
    pub(super) opened_before: u64,
    /// The last write to flash with an item of it.
    pub(super) last_write: Option<u64>,
    /// Nothing of it goes to flash: a writer waits for memory.
    pub(super) skips_flash: bool,
}

impl Victim {
    /// Passes over its items again.
    pub(super) fn restarted(self) -> Victim {
        Victim { at: self.start, last_write: None, ..self }
    }
}

/// The sealed segments as candidates, surveyed in steps. Segments listed here are still sealed: they are freed under
/// the reclaim lock, and a thread that frees one in between discards the survey.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The second in which it began.
    pub(super) began: u32,
    /// The next segment to be examined.
    pub(super) next: u32,
    pub(super) items: u64,
    pub(super) live_bytes: u64,
    pub(super) small_segments: u32,
    pub(super) main_segments: u32,
    pub(super) dead_in_all: u64,
    pub(super) deadest: Option<SealedSegment>,
    pub(super) oldest_small: Option<SealedSegment>,
    pub(super) oldest_main: Option<SealedSegment>,
    /// Segments of either queue that hold chunks of values still being received.
    pub(super) oldest_with_orphans: Option<SealedSegment>,
    /// All that items may leave, if some segment could not be emptied.
    pub(super) candidates: Option<Candidates>,
}
