//! The segments of a region as its table has them, for a server that takes the region over.

use std::time::Duration;

use fabcache_layout::segment::{self, Kind};
use fabcache_layout::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::{SEALED, Segments};
use crate::restart::Damaged;

impl Segments {
    /// Returns the segments of a region as its table has them, in the order of their numbers; reads the region only. Nothing
    /// counts as alive yet. For the parameters see [`Segments::new`].
    ///
    /// # Errors
    /// A server stores no such entry of the table.
    pub(super) fn of_table(
        memory: Memory,
        geometry: Geometry,
        fills_up: bool,
        threads: usize,
        grace: Duration,
    ) -> Result<Segments, Damaged> {
        let mut uses = Vec::with_capacity(geometry.segments as usize);
        for id in 0..geometry.segments {
            let segment_use = segment::load_use(&memory, &geometry, id)
                .filter(|segment_use| u64::from(segment_use.used) <= geometry.segment_bytes());
            uses.push(segment_use.ok_or(Damaged("the segment table"))?);
        }
        let retired = uses.iter().filter(|segment_use| segment_use.kind == Kind::Retired).count();
        let limit = geometry.segments - retired as u32;
        let mut segments = Segments::empty(memory, geometry, limit, fills_up, threads, grace);
        for (id, segment_use) in (0u32..).zip(uses) {
            let (opened, _) = segment::load_times(&segments.memory, &geometry, id);
            let segment = &mut *segments.segments[id as usize];
            segment.kind = AtomicU32::new(segment_use.kind as u32);
            segment.opened = AtomicU32::new(opened);
            segment.is_main.store(segment_use.is_main, Ordering::Relaxed);
            segment.for_moves.store(segment_use.is_for_moves, Ordering::Relaxed);
            // Of an open one the extent is unknown: nothing walks it.
            if segment_use.kind == Kind::Sealed {
                let order = segment::load_order(&segments.memory, &geometry, id);
                segment.allocation = AtomicU64::new(SEALED | u64::from(segment_use.used));
                segment.sealed_order = AtomicU64::new(order);
            }
        }
        let free = segments.of_kind(Kind::Free);
        segments.free_count = AtomicUsize::new(free.len());
        segments.free = Mutex::new(free.into());
        segments.retired = Mutex::new(segments.of_kind(Kind::Retired));
        segments.index_segments = AtomicU32::new(segments.of_kind(Kind::Index).len() as u32);
        Ok(segments)
    }

    /// Returns the segments of a kind.
    pub fn of_kind(&self, kind: Kind) -> Vec<u32> {
        (0..self.geometry.segments).filter(|id| self.kind(*id) == kind).collect()
    }
}
