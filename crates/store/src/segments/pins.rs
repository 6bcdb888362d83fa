//! Pins: senders that read values where they lie keep segments from being used again.

use fabcache_layout::sync::{Ordering, fence, without};

use super::Segments;
use crate::bounds::PINNED_SEGMENTS_DIVISOR;

impl Segments {
    /// Returns whether senders may pin another value: they pin less than their part of memory.
    pub fn may_pin(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) < (self.limit() / PINNED_SEGMENTS_DIVISOR).max(1)
    }

    /// Keeps the segment's bytes as they are until [`Segments::unpin`]; false if it is no longer in `generation`.
    pub fn pin(&self, id: u32, generation: u64) -> bool {
        if self.segments[id as usize].pins.fetch_add(1, Ordering::Relaxed) == 0 {
            self.pinned.fetch_add(1, Ordering::Relaxed);
        }
        // Pairs with the fence in `free_unpinned`.
        if !without("pin_fence") {
            fence(Ordering::SeqCst);
        }
        let same = self.still(id, generation);
        if !same {
            self.unpin(id);
        }
        same
    }

    /// Ends one pin.
    pub fn unpin(&self, id: u32) {
        // Release: the reads of the segment happened before.
        let order = if without("unpin_release") { Ordering::Relaxed } else { Ordering::Release };
        if self.segments[id as usize].pins.fetch_sub(1, order) == 1 {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of segments that senders read now.
    pub fn pinned(&self) -> u32 {
        self.pinned.load(Ordering::Relaxed)
    }
}
