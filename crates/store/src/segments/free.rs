//! Free segments, and those that the memory limit keeps out of use.

use std::collections::VecDeque;
use std::time::Duration;

use fabcache_layout::segment::{self, Kind};
use fabcache_layout::sync::{Ordering, fence, in_order, without};

use super::{ClaimPurpose, Segments};
use crate::bounds::{
    RECLAIM_RESERVE_SEGMENTS, REWRITE_RESERVE_DIVISOR, TOUCHED_AHEAD_BYTES_MAX, TOUCHED_AHEAD_DIVISOR,
};

impl Segments {
    /// Segments that hold nothing.
    pub fn free_count(&self) -> usize {
        self.free_count.load(Ordering::Relaxed)
    }

    /// The memory limit, in segments.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Free segments that are reserved from such a claim.
    pub fn kept_back(&self, claim: ClaimPurpose) -> usize {
        match claim {
            ClaimPurpose::Move => 0,
            ClaimPurpose::New if self.fills_up => {
                let for_rewrites = self.limit() as usize / REWRITE_RESERVE_DIVISOR;
                RECLAIM_RESERVE_SEGMENTS + for_rewrites.max(RECLAIM_RESERVE_SEGMENTS)
            }
            ClaimPurpose::New | ClaimPurpose::Rewrite => RECLAIM_RESERVE_SEGMENTS,
        }
    }

    pub(super) fn take_free(&self, claim: ClaimPurpose) -> Option<u32> {
        loop {
            let mut free = self.lock(&self.free);
            if free.len() <= self.kept_back(claim) {
                return None;
            }
            if let Some(at) = free.iter().position(|id| self.grace.left(*id).is_none()) {
                let id = free.remove(at);
                self.free_count.store(free.len(), Ordering::Relaxed);
                self.note_taken(id, &free);
                return id;
            }
            // All were freed just now: reclaim keeps enough ready that this is rare.
            let oldest = free.back().copied();
            drop(free);
            oldest.inspect(|id| self.grace.wait(*id));
        }
    }

    /// Segments that are to be touched before writers take them.
    fn touched_ahead(&self) -> usize {
        let limit_bytes = u64::from(self.limit()) * self.geometry.segment_bytes();
        let ahead = (limit_bytes / TOUCHED_AHEAD_DIVISOR).min(TOUCHED_AHEAD_BYTES_MAX);
        (ahead / self.geometry.segment_bytes()) as usize
    }

    /// Notes that a writer touches a segment, and whether the next ones are to be touched: when half of them are not.
    fn note_taken(&self, taken: Option<u32>, free: &VecDeque<u32>) {
        if cfg!(loom) || self.cannot_touch.load(Ordering::Relaxed) {
            return;
        }
        if let Some(id) = taken {
            self.note_touched(id, true);
        }
        if free.get(self.touched_ahead() / 2).is_some_and(|id| self.is_untouched(*id)) {
            self.wants_touching.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether segments are to be touched, once each time that they are.
    #[inline]
    pub fn take_wants_touching(&self) -> bool {
        !cfg!(loom)
            && self.wants_touching.load(Ordering::Relaxed)
            && self.wants_touching.swap(false, Ordering::Relaxed)
    }

    /// Stops asking for segments to be touched, for good.
    pub fn give_up_touching(&self) {
        self.cannot_touch.store(true, Ordering::Relaxed);
        self.wants_touching.store(false, Ordering::Relaxed);
    }

    /// Returns the first free segment that is to be touched.
    pub fn next_untouched(&self) -> Option<u32> {
        if self.cannot_touch.load(Ordering::Relaxed) {
            return None;
        }
        self.lock(&self.free).iter().take(self.touched_ahead()).copied().find(|id| self.is_untouched(*id))
    }

    fn is_untouched(&self, id: u32) -> bool {
        !self.segments[id as usize].is_touched.load(Ordering::Relaxed)
    }

    /// Notes whether the pages of a segment are allocated and mapped.
    pub fn note_touched(&self, id: u32, is_touched: bool) {
        self.segments[id as usize].is_touched.store(is_touched, Ordering::Relaxed);
    }

    /// For how long nothing is written over a segment after its generation has ended.
    pub fn grace(&self) -> Duration {
        self.grace.length()
    }

    /// Waits until a segment may be overwritten, or returned to the system.
    pub fn wait_for_grace(&self, id: u32) {
        self.grace.wait(id);
    }

    /// Takes a free segment for the index; its offset.
    pub fn take_for_index(&self) -> Option<u64> {
        let id = self.take_free(ClaimPurpose::New)?;
        self.set_kind(id, Kind::Index, self.geometry.segment_bytes() as u32);
        self.index_segments.fetch_add(1, Ordering::Relaxed);
        Some(self.geometry.segment_offset(id))
    }

    /// Ends the generation of a segment none of whose items is linked any more. True if it is free now; false if
    /// senders still read it, and [`Segments::free_unpinned`] must be tried later.
    pub fn retire_generation(&self, id: u32) -> bool {
        // No slot leads there. First, so that a scrub that finds it free finds it verified.
        self.set_verified(id);
        let advance = || segment::advance_generation(&self.memory, &self.geometry, id);
        // A segment that the table names as free has ended its generation, also if the process dies in between.
        in_order("generation_before_free", advance, || self.set_kind(id, Kind::Free, 0));
        self.grace.begin(id);
        self.free_unpinned(id)
    }

    /// Frees a segment whose generation has ended, unless a reader pins it.
    pub fn free_unpinned(&self, id: u32) -> bool {
        // Pairs with the fence in `pin`: either we see the pin, or the pinner sees the new generation.
        if !without("free_fence") {
            fence(Ordering::SeqCst);
        }
        // Acquire: pairs with the release of the last unpin, so that its reads come before our overwriting.
        if self.segments[id as usize].pins.load(Ordering::Acquire) != 0 {
            return false;
        }
        let mut free = self.lock(&self.free);
        let mut retired = self.lock(&self.retired);
        // Moves are served first, because the rest is reclaimed through them.
        let is_over = self.segments.len() - retired.len() > self.limit.load(Ordering::Relaxed) as usize;
        if is_over && free.len() >= RECLAIM_RESERVE_SEGMENTS {
            self.set_kind(id, Kind::Retired, 0);
            retired.push(id);
        } else {
            // Last freed, first used: its pages are mapped and cached.
            free.push_front(id);
            self.free_count.store(free.len(), Ordering::Relaxed);
        }
        true
    }

    /// Sets the memory limit. Raising gives back retired segments; lowering retires free ones, and the number
    /// still to be reclaimed is returned. Offsets of segments retired now are in the list.
    pub fn set_limit(&self, limit: u32) -> (usize, Vec<u64>) {
        let limit = limit.min(self.geometry.segments);
        let mut free = self.lock(&self.free);
        self.limit.store(limit, Ordering::Relaxed);
        let mut retired = self.lock(&self.retired);
        let mut in_use = self.segments.len() - retired.len();
        let mut released = Vec::new();
        while in_use < limit as usize {
            let Some(id) = retired.pop() else { break };
            self.set_kind(id, Kind::Free, 0);
            free.push_back(id);
            in_use += 1;
        }
        while in_use > limit as usize && free.len() > RECLAIM_RESERVE_SEGMENTS {
            let id = free.pop_back().expect("more than the reserve");
            self.set_kind(id, Kind::Retired, 0);
            retired.push(id);
            released.push(self.geometry.segment_offset(id));
            in_use -= 1;
        }
        self.free_count.store(free.len(), Ordering::Relaxed);
        (in_use.saturating_sub(limit as usize), released)
    }

    /// Segments in use beyond the limit.
    pub fn over_limit(&self) -> usize {
        let in_use = self.segments.len() - self.lock(&self.retired).len();
        in_use.saturating_sub(self.limit.load(Ordering::Relaxed) as usize)
    }
}
