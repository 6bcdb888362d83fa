//! Segments of an earlier server: their items are verified before they are used, until a scrub has verified all.

use fabcache_layout::segment::Kind;
use fabcache_layout::sync::{AtomicBool, AtomicU32, Ordering, without};

use super::{Segments, USED_MASK};

impl Segments {
    /// Returns whether some segment is unverified. Load it before the item: a thread that loads false sees the slot of a
    /// dropped item changed, and the item dead.
    #[inline]
    pub fn has_unverified(&self) -> bool {
        self.may_be_unverified() && self.unverified.load(Ordering::Acquire) != 0
    }

    /// Returns the number of unverified segments.
    pub fn unverified(&self) -> u32 {
        self.unverified.load(Ordering::Acquire)
    }

    /// Returns whether items of the segment may be damaged. Load the slot after it: a thread that loads false sees the slot
    /// of a dropped item changed.
    pub fn is_unverified(&self, id: u32) -> bool {
        self.may_be_unverified() && self.segments[id as usize].is_unverified.load(Ordering::Acquire)
    }

    /// Most models have no damage, and need not try the interleavings of what guards against it.
    #[inline]
    fn may_be_unverified(&self) -> bool {
        !cfg!(loom) || self.taken_over > 0
    }

    /// Marks the segments with items as those of an earlier server: inherited, and unverified.
    pub(super) fn take_over(&mut self) {
        for id in self.with_items() {
            *self.segments[id as usize].is_inherited.get_mut() = true;
        }
        // A model with damage does it itself.
        if !cfg!(loom) {
            self.mark_unverified();
        }
    }

    /// Marks the segments with items as unverified, before any thread uses them.
    pub(crate) fn mark_unverified(&mut self) {
        let with_items = self.with_items();
        for id in &with_items {
            self.segments[*id as usize].is_unverified = AtomicBool::new(true);
        }
        self.taken_over = with_items.len() as u32;
        self.unverified = AtomicU32::new(self.taken_over);
    }

    fn with_items(&self) -> Vec<u32> {
        [self.of_kind(Kind::Sealed), self.of_kind(Kind::Open)].concat()
    }

    /// Returns how many segments were unverified at the start.
    #[inline]
    pub fn taken_over(&self) -> u32 {
        self.taken_over
    }

    /// Notes that every item that a slot points to in the segment is intact. Slots of others were cleared before.
    pub fn set_verified(&self, id: u32) {
        if !self.may_be_unverified() {
            return;
        }
        let segment = &self.segments[id as usize];
        // Release: pairs with the acquire of `is_unverified` and `has_unverified`.
        let order = if without("verified_release") { Ordering::Relaxed } else { Ordering::Release };
        if segment.is_unverified.load(Ordering::Relaxed) && segment.is_unverified.swap(false, order) {
            self.unverified.fetch_sub(1, order);
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
