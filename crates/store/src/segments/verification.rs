//! Segments of an earlier server: their items are verified before they are used, until a scrub has verified all.

use std::sync::atomic::Ordering;

use fabcache_layout::segment::Kind;

use super::{Segments, USED_MASK};

impl Segments {
    /// Returns whether some segment is unverified. Load it before the slot: a thread that loads false sees no slot of a
    /// dropped item.
    #[inline]
    pub fn has_unverified(&self) -> bool {
        // See `take_over`.
        !cfg!(loom) && self.unverified.load(Ordering::Acquire) != 0
    }

    /// Returns the number of unverified segments.
    pub fn unverified(&self) -> u32 {
        self.unverified.load(Ordering::Acquire)
    }

    /// Returns whether items of the segment may be damaged.
    pub fn is_unverified(&self, id: u32) -> bool {
        self.segments[id as usize].is_unverified.load(Ordering::Acquire)
    }

    /// Marks the segments with items as those of an earlier server: inherited, and unverified.
    pub(super) fn take_over(&mut self) {
        let with_items = [self.of_kind(Kind::Sealed), self.of_kind(Kind::Open)].concat();
        for id in &with_items {
            let segment = &mut *self.segments[*id as usize];
            *segment.is_inherited.get_mut() = true;
            // No bit of a model's memory flips.
            *segment.is_unverified.get_mut() = !cfg!(loom);
        }
        self.taken_over = if cfg!(loom) { 0 } else { with_items.len() as u32 };
        *self.unverified.get_mut() = self.taken_over;
    }

    /// Returns how many segments were unverified at the start.
    #[inline]
    pub fn taken_over(&self) -> u32 {
        self.taken_over
    }

    /// Notes that every item that a slot points to in the segment is intact. Slots of others were cleared before.
    pub fn set_verified(&self, id: u32) {
        let segment = &self.segments[id as usize];
        if segment.is_unverified.load(Ordering::Relaxed)
            && segment.is_unverified.swap(false, Ordering::Release)
        {
            self.unverified.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns where the items of a sealed segment end, from its start.
    pub fn sealed_end(&self, id: u32) -> Option<u64> {
        let allocation = &self.segments[id as usize].allocation;
        (self.kind(id) == Kind::Sealed).then(|| allocation.load(Ordering::Acquire) & USED_MASK)
    }

    /// Counts everything in a sealed segment as dead: no slot points there, and damage made the counts useless.
    pub fn forget_live(&self, id: u32) {
        self.segments[id as usize].live.store(0, Ordering::Release);
        self.set_deadline(id, 0);
    }
}
