//! The server's own part of the segments, rebuilt after a kill from the region's table and the items that slots point to.

use std::time::Duration;

use fabcache_layout::item::Item;
use fabcache_layout::segment::{self, Kind};
use fabcache_layout::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::{LIVE_ITEM, SEALED, Segments};
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
        let mut uses = Vec::with_capacity(geometry.segments as usize);
        for id in 0..geometry.segments {
            let segment_use =
                segment::load_use(&memory, &geometry, id).ok_or(Damaged("the segment table"))?;
            if u64::from(segment_use.used) > geometry.segment_bytes() {
                return Err(Damaged("the segment table"));
            }
            uses.push(segment_use);
        }
        let with =
            |kind: Kind| (0u32..).zip(&uses).filter(move |(_, used)| used.kind == kind).map(|(id, _)| id);
        let retired: Vec<u32> = with(Kind::Retired).collect();
        let limit = geometry.segments - retired.len() as u32;
        let mut segments = Segments::empty(memory, geometry, limit, fills_up, threads, grace);
        let mut last_order = 0;
        for (id, segment_use) in (0u32..).zip(&uses) {
            let (opened, _) = segment::load_times(&segments.memory, &geometry, id);
            let order = segment::load_order(&segments.memory, &geometry, id);
            let segment = &mut *segments.segments[id as usize];
            segment.kind = AtomicU32::new(segment_use.kind as u32);
            segment.opened = AtomicU32::new(opened);
            segment.written = AtomicU32::new(opened);
            // Unknown: an item's time to live is at most what was left of it when the segment was opened.
            segment.shortest_ttl = AtomicU32::new(0);
            segment.is_main.store(segment_use.is_main, Ordering::Relaxed);
            segment.for_moves.store(segment_use.is_for_moves, Ordering::Relaxed);
            if segment_use.kind == Kind::Sealed {
                // Of an open one the extent is unknown: nothing walks it.
                segment.allocation = AtomicU64::new(SEALED | u64::from(segment_use.used));
                segment.sealed_order = AtomicU64::new(order);
                segment.is_inherited.store(true, Ordering::Relaxed);
                last_order = last_order.max(order);
                segments.deadlines[id as usize] = AtomicU32::new(0);
            }
        }
        let free: std::collections::VecDeque<u32> = with(Kind::Free).collect();
        segments.free_count = AtomicUsize::new(free.len());
        segments.free = Mutex::new(free);
        segments.retired = Mutex::new(retired);
        segments.next_order =
            AtomicU64::new(last_order.checked_add(1).ok_or(Damaged("the order of sealing"))?);
        segments.index_segments = AtomicU32::new(with(Kind::Index).count() as u32);
        Ok(segments)
    }

    /// Returns the segment of these bytes, and whether it is open, if a recovered segment may hold an item there.
    pub fn found_at(&self, offset: u64, bytes: u64) -> Option<(u32, bool)> {
        let id = self.geometry.segment_of(offset)?;
        let used = match self.kind(id) {
            Kind::Sealed => self.segments[id as usize].allocation.load(Ordering::Relaxed) & !SEALED,
            Kind::Open => self.geometry.segment_bytes(),
            _ => return None,
        };
        let end = offset - self.geometry.segment_offset(id) + bytes;
        (end <= used).then(|| (id, self.kind(id) == Kind::Open))
    }

    /// Counts an item as alive that a slot of the region points to, or with `items` 0 a chunk of one.
    pub fn count_found(&self, id: u32, item: &Item, items: u64) {
        let segment = &self.segments[id as usize];
        segment.live.fetch_add(items * LIVE_ITEM + item.bytes(), Ordering::Relaxed);
        if item.expiry == 0 {
            segment.endless.store(true, Ordering::Relaxed);
        } else {
            segment.last_expiry.fetch_max(item.expiry, Ordering::Relaxed);
        }
    }

    /// Returns the segments that were open when the server was killed: they have holes.
    pub fn found_open(&self) -> Vec<u32> {
        (0..self.geometry.segments).filter(|id| self.kind(*id) == Kind::Open).collect()
    }
}
