//! Opening segments for new items, and sealing full ones.

use fabcache_layout::segment::{self, Kind};
use fabcache_layout::sync::{Ordering, without};

use super::ttl::Queue;
use super::{ClaimPurpose, NO_DEADLINE, NONE, NoSpace, PENDING_MASK, SEALED, Segment, Segments, USED_MASK};
use crate::bounds::TAIL_DIVISOR;

impl Segments {
    /// Replaces the open segment `old` (NONE for none) with a free one, unless another thread did.
    pub(super) fn replace_open(
        &self,
        class: usize,
        old: u32,
        now: u32,
        claim: ClaimPurpose,
    ) -> Result<(), NoSpace> {
        let _opening = self.lock(&self.opening);
        if self.open[class].load(Ordering::Acquire) != old {
            return Ok(());
        }
        let id = self.take_free(claim).ok_or(NoSpace::Full)?;
        if claim == ClaimPurpose::Move {
            self.opened_for_moves.fetch_add(1, Ordering::Relaxed);
        }
        let segment = &self.segments[id as usize];
        segment.opened.store(now, Ordering::Relaxed);
        segment.written.store(now, Ordering::Relaxed);
        segment.last_expiry.store(0, Ordering::Relaxed);
        segment.shortest_ttl.store(u32::MAX, Ordering::Relaxed);
        segment.endless.store(false, Ordering::Relaxed);
        segment.is_main.store(self.classes.queue_of(class) == Queue::Main, Ordering::Relaxed);
        segment.is_inherited.store(false, Ordering::Relaxed);
        segment.for_moves.store(claim == ClaimPurpose::Move, Ordering::Relaxed);
        segment.marked.store(0, Ordering::Relaxed);
        self.lock(&segment.marks).clear();
        self.deadlines[id as usize].store(NO_DEADLINE, Ordering::Relaxed);
        segment::set_times(&self.memory, &self.geometry, id, now, 0);
        self.set_kind(id, Kind::Open, 0);
        // Release: a thread that reserves here sees the segment as initialized.
        segment.allocation.store(0, Ordering::Release);
        self.open[class].store(id, Ordering::Release);
        let full = if old != NONE && self.is_worth_a_tail(old) {
            self.tails[class].swap(old, Ordering::AcqRel)
        } else {
            old
        };
        if full != NONE {
            self.seal(full);
        }
        Ok(())
    }

    /// Enough is left of an open segment for smaller items than the one that did not fit. Without eviction a tail might
    /// be what rewrites opened, and that is not for new items.
    fn is_worth_a_tail(&self, id: u32) -> bool {
        let capacity = self.geometry.segment_bytes();
        let used = self.segments[id as usize].allocation.load(Ordering::Relaxed) & USED_MASK;
        !self.fills_up && capacity - used > capacity / TAIL_DIVISOR
    }

    /// Ends the reservations of a segment. The last commit in it publishes it as sealed, or the seal, if none is pending.
    fn seal(&self, id: u32) {
        let segment = &self.segments[id as usize];
        let order = self.next_order.fetch_add(1, Ordering::Relaxed);
        segment.sealed_order.store(order, Ordering::Relaxed);
        // Release: the last commit sees the order. Acquire: pairs with the release of each commit.
        let word = segment.allocation.fetch_or(SEALED, Ordering::AcqRel);
        if word & PENDING_MASK == 0 || without("seal_last") {
            self.publish_sealed(id, (word & USED_MASK) as u32);
        }
    }

    /// Publishes a segment as sealed, with `used` bytes. All its reservations are committed, so it has no holes, and
    /// reclaim may take it from now on.
    #[cold]
    pub(super) fn publish_sealed(&self, id: u32, used: u32) {
        let segment = &self.segments[id as usize];
        let order = segment.sealed_order.load(Ordering::Relaxed);
        segment::set_order(&self.memory, &self.geometry, id, order);
        let last_expiry = self.all_expire(segment).unwrap_or(0);
        let opened = segment.opened.load(Ordering::Relaxed);
        segment::set_times(&self.memory, &self.geometry, id, opened, last_expiry);
        self.set_kind(id, Kind::Sealed, used);
        if segment.live.load(Ordering::Relaxed) == 0 {
            self.deadlines[id as usize].fetch_min(0, Ordering::Release);
        }
    }

    /// Seals open segments that are `wanted` and hold anything, so that reclaim can have them once their reservations are
    /// committed. Returns whether there were any.
    pub fn seal_open(&self, wanted: impl Fn(u32) -> bool) -> bool {
        let _opening = self.lock(&self.opening);
        let mut sealed = false;
        for open in self.open.iter().chain(&self.tails) {
            let id = open.load(Ordering::Acquire);
            if id == NONE {
                continue;
            }
            let used = self.segments[id as usize].allocation.load(Ordering::Acquire) & USED_MASK;
            if used > 0 && wanted(id) {
                open.store(NONE, Ordering::Release);
                self.seal(id);
                sealed = true;
            }
        }
        sealed
    }

    /// Returns the second from which all items of a segment are expired, none if some never expire. All are committed.
    pub(super) fn all_expire(&self, segment: &Segment) -> Option<u32> {
        let last = segment.last_expiry.load(Ordering::Relaxed);
        (last != 0 && !segment.endless.load(Ordering::Relaxed)).then_some(last)
    }
}
