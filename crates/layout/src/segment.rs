//! The segment table: one entry for each segment.
//!
//! ```text
//!   0  generation   changes each time the segment is emptied; seeds the checksums of its items
//!   8  use          kind in the low byte; bytes used in the upper four
//!  16  opened       second at which it was opened; upper four bytes: last second an item of it is valid, or 0
//!  24  reserved
//! ```
//! The generation is stored before anything is written over the segment's old items, with a release fence of the
//! writing thread in between, and readers load it with acquire before and (after an acquire fence) after they copy: if
//! it is the same, nothing they copied was overwritten. A counter in the header (header.rs) changes after it: if that is
//! the same, so are the generations of many segments.

use crate::format::{GENERATION_AT, OPENED_AT, SEGMENT_ENTRY_BYTES, USE_AT};
use crate::geometry::Geometry;
use crate::header;
use crate::memory::Memory;
use crate::sync::{Ordering, fence, in_order};

/// The use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Unused.
    Free = 0,
    /// Items are being added.
    Open = 1,
    /// Full of items.
    Sealed = 2,
    /// Blocks of the index.
    Index = 3,
    /// Beyond the memory limit.
    Retired = 4,
}

#[inline]
fn entry(geometry: &Geometry, segment: u32) -> u64 {
    debug_assert!(segment < geometry.segments);
    geometry.segment_table + u64::from(segment) * SEGMENT_ENTRY_BYTES
}

/// Returns the offset of a segment's generation.
#[inline]
pub fn generation_offset(geometry: &Geometry, segment: u32) -> u64 {
    entry(geometry, segment) + GENERATION_AT
}

/// Returns the generation, to be read before anything of the segment.
#[inline]
pub fn generation(memory: &Memory, geometry: &Geometry, segment: u32) -> u64 {
    memory.load(entry(geometry, segment) + GENERATION_AT, Ordering::Acquire)
}

/// Returns whether the generation is unchanged after bytes were copied out of the segment.
#[inline]
pub fn still(memory: &Memory, geometry: &Geometry, segment: u32, generation: u64) -> bool {
    fence(Ordering::Acquire);
    memory.load(entry(geometry, segment) + GENERATION_AT, Ordering::Relaxed) == generation
}

/// Ends the segment's generation: its items are unreachable, and from now on unreadable.
pub fn advance_generation(memory: &Memory, geometry: &Geometry, segment: u32) {
    let at = entry(geometry, segment) + GENERATION_AT;
    let next = memory.load(at, Ordering::Relaxed) + 1;
    // Pairs with the acquire load of `generation`. For `still`, the next writer there issues a release fence after it
    // learnt of this and before its first write.
    let store = || memory.store(at, next, Ordering::Release);
    in_order("generation_first", store, || header::count_recycled(memory, segment));
}

/// Publishes what the segment is used for.
pub fn set_use(memory: &Memory, geometry: &Geometry, segment: u32, kind: Kind, used: u32) {
    memory.store(entry(geometry, segment) + USE_AT, kind as u64 | u64::from(used) << 32, Ordering::Release);
}

/// Publishes when the segment was opened, and until when its items are valid (0: some never expire).
pub fn set_times(memory: &Memory, geometry: &Geometry, segment: u32, opened: u32, valid_until: u32) {
    memory.store(
        entry(geometry, segment) + OPENED_AT,
        u64::from(opened) | u64::from(valid_until) << 32,
        Ordering::Release,
    );
}
