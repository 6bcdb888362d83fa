//! The server's own part of the segments: saved by a clean stop, and restored over a region that was kept.

use std::time::Duration;

use fabcache_layout::segment::Kind;
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::{LIVE_ITEM, NONE, PENDING_MASK, SEALED, Segments, USED_MASK};
use crate::restart::saved_state::{SavedSegment, SavedSegments, StateError};

/// Why the segments cannot be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StillInUse {
    /// A write has not ended.
    #[error("a write to segment {0} has not ended")]
    Written(u32),
    /// A value is still being received into the segment.
    #[error("a value was still being received into segment {0}")]
    Received(u32),
    /// A value of the segment is still being sent.
    #[error("a value of segment {0} was still being sent")]
    Sent(u32),
}

impl Segments {
    /// Seals or frees the open segments, and returns what the region does not have. No thread uses the segments
    /// meanwhile, and all whose generation has ended are in the list of free ones.
    ///
    /// # Errors
    /// A thread that ended left a segment in use.
    pub fn save(&self) -> Result<SavedSegments, StillInUse> {
        self.seal_open(|_| true);
        self.free_open();
        let mut sealed = Vec::new();
        for (id, segment) in (0u32..).zip(&self.segments) {
            if segment.pins.load(Ordering::Acquire) != 0 {
                return Err(StillInUse::Sent(id));
            }
            if segment.allocation.load(Ordering::Acquire) & PENDING_MASK != 0 {
                return Err(StillInUse::Written(id));
            }
            if segment.orphans.load(Ordering::Relaxed) != 0 {
                return Err(StillInUse::Received(id));
            }
            if self.kind(id) != Kind::Sealed {
                continue;
            }
            let live = segment.live.load(Ordering::Relaxed);
            sealed.push(SavedSegment {
                id,
                live_items: (live / LIVE_ITEM) as u32,
                live_bytes: (live % LIVE_ITEM) as u32,
                written: segment.written.load(Ordering::Relaxed),
                last_expiry: segment.last_expiry.load(Ordering::Relaxed),
                shortest_ttl: segment.shortest_ttl.load(Ordering::Relaxed),
                endless: segment.endless.load(Ordering::Relaxed),
                deadline: self.deadlines[id as usize].load(Ordering::Relaxed),
            });
        }
        Ok(SavedSegments {
            sealed,
            free: self.lock(&self.free).iter().copied().collect(),
            retired: self.lock(&self.retired).clone(),
            next_order: self.next_order.load(Ordering::Relaxed),
            opened_for_moves: self.opened_for_moves.load(Ordering::Relaxed),
            gained_bytes: self.gained_bytes.load(Ordering::Relaxed),
        })
    }

    /// Frees the open segments that hold nothing.
    fn free_open(&self) {
        for open in self.open.iter().chain(&self.tails) {
            let id = open.swap(NONE, Ordering::AcqRel);
            if id != NONE {
                self.segments[id as usize].allocation.store(SEALED, Ordering::Relaxed);
                self.set_kind(id, Kind::Free, 0);
                self.lock(&self.free).push_front(id);
            }
        }
    }

    /// Returns the segments of a kept region, with this saved state; reads the region only. For the other parameters see
    /// [`Segments::new`].
    ///
    /// # Errors
    /// State and region disagree.
    pub fn restore(
        memory: Memory,
        geometry: Geometry,
        saved: &SavedSegments,
        fills_up: bool,
        threads: usize,
        grace: Duration,
    ) -> Result<Segments, StateError> {
        let mut segments = Segments::of_table(memory, geometry, fills_up, threads, grace)
            .map_err(|_| StateError::Disagrees("the use of a segment"))?;
        let mut listed = Listed(vec![false; geometry.segments as usize]);
        for saved in &saved.sealed {
            listed.list(&segments, saved.id, Kind::Sealed)?;
            segments.restore_sealed(saved)?;
        }
        for (ids, kind) in [(&saved.free, Kind::Free), (&saved.retired, Kind::Retired)] {
            for id in ids {
                listed.list(&segments, *id, kind)?;
            }
        }
        for id in segments.of_kind(Kind::Index) {
            listed.list(&segments, id, Kind::Index)?;
        }
        if !listed.0.iter().all(|is_listed| *is_listed) {
            return Err(StateError::Disagrees("a segment that is in no list"));
        }
        segments.take_over();
        // In the order in which they are to be used.
        segments.free = Mutex::new(saved.free.iter().copied().collect());
        segments.retired = Mutex::new(saved.retired.clone());
        segments.next_order = AtomicU64::new(saved.next_order);
        segments.opened_for_moves = AtomicU64::new(saved.opened_for_moves);
        segments.gained_bytes = AtomicU64::new(saved.gained_bytes);
        Ok(segments)
    }

    fn restore_sealed(&mut self, saved: &SavedSegment) -> Result<(), StateError> {
        let segment = &mut *self.segments[saved.id as usize];
        let used = segment.allocation.load(Ordering::Relaxed) & USED_MASK;
        if u64::from(saved.live_bytes) > used {
            return Err(StateError::Disagrees("the bytes of a segment"));
        }
        segment.live = AtomicU64::new(u64::from(saved.live_items) * LIVE_ITEM + u64::from(saved.live_bytes));
        segment.written = AtomicU32::new(saved.written);
        segment.last_expiry = AtomicU32::new(saved.last_expiry);
        segment.shortest_ttl = AtomicU32::new(saved.shortest_ttl);
        segment.endless.store(saved.endless, Ordering::Relaxed);
        self.deadlines[saved.id as usize] = AtomicU32::new(saved.deadline);
        Ok(())
    }
}

/// Which segments are in a list: each is in one.
struct Listed(Vec<bool>);

impl Listed {
    fn list(&mut self, segments: &Segments, id: u32, kind: Kind) -> Result<(), StateError> {
        let is_new = self.0.get_mut(id as usize).is_some_and(|is_listed| !std::mem::replace(is_listed, true));
        if is_new && segments.kind(id) == kind {
            Ok(())
        } else {
            Err(StateError::Disagrees("the list of segments"))
        }
    }
}
