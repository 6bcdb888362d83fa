//! The server's own part of the segments, rebuilt after a kill from the region's table and the items that slots point to.

use std::time::Duration;

use fabcache_layout::item::Item;
use fabcache_layout::segment::Kind;
use fabcache_layout::sync::{AtomicU32, AtomicU64, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::{LIVE_ITEM, Segments, USED_MASK};
use crate::restart::Damaged;

impl Segments {
    /// Returns the segments of a region whose server was killed, as its table has them; reads the region only. Nothing
    /// counts as alive yet. For the other parameters see [`Segments::new`].
    ///
    /// # Errors
    /// A server stores no such entry of the table.
    pub fn recover(
        memory: Memory,
        geometry: Geometry,
        fills_up: bool,
        threads: usize,
        grace: Duration,
    ) -> Result<Segments, Damaged> {
        let mut segments = Segments::of_table(memory, geometry, fills_up, threads, grace)?;
        let mut last_order = 0;
        for segment in &mut segments.segments {
            segment.written = AtomicU32::new(segment.opened.load(Ordering::Relaxed));
            // Unknown: an item's time to live is at most what was left of it when the segment was opened.
            segment.shortest_ttl = AtomicU32::new(0);
            if segment.kind.load(Ordering::Relaxed) == Kind::Sealed as u32 {
                last_order = last_order.max(segment.sealed_order.load(Ordering::Relaxed));
            }
        }
        segments.take_over();
        segments.next_order =
            AtomicU64::new(last_order.checked_add(1).ok_or(Damaged("the order of sealing"))?);
        Ok(segments)
    }

    /// Returns the segment of these bytes, and whether it is open, if a recovered segment may hold an item there.
    pub fn found_at(&self, offset: u64, bytes: u64) -> Option<(u32, bool)> {
        let id = self.geometry.segment_of(offset)?;
        // One that was opened since holds no item of the killed server.
        if !self.is_inherited(id) {
            return None;
        }
        let (used, is_open) = match self.kind(id) {
            Kind::Sealed => {
                (self.segments[id as usize].allocation.load(Ordering::Relaxed) & USED_MASK, false)
            }
            Kind::Open => (self.geometry.segment_bytes(), true),
            _ => return None,
        };
        let end = offset - self.geometry.segment_offset(id) + bytes;
        (end <= used).then_some((id, is_open))
    }

    /// Returns whether the segment was open when its server was killed, and is as it was left.
    pub fn is_left_open(&self, id: u32) -> bool {
        // In this order: a segment that is opened again is no longer inherited before it is open.
        self.kind(id) == Kind::Open && self.is_inherited(id)
    }

    /// Counts an item as alive that a slot of the region points to, or with `items` 0 a chunk of one.
    pub fn count_found(&self, id: u32, item: &Item, items: u64) {
        let segment = &self.segments[id as usize];
        segment.live.fetch_add(items * LIVE_ITEM + item.bytes(), Ordering::Relaxed);
        if item.expiry == 0 {
            segment.endless.store(true, Ordering::Relaxed);
        } else {
            segment.last_expiry.fetch_max(item.expiry, Ordering::Relaxed);
            self.set_deadline(id, self.deadline(id, item.expiry));
        }
    }

    /// Makes the sealed segments due in which nothing was found: they are to be freed.
    pub fn make_dead_due(&self) {
        for id in self.of_kind(Kind::Sealed) {
            if self.live_bytes(id) == 0 {
                self.set_deadline(id, 0);
            }
        }
    }
}
