//! The segment table: one entry for each segment.
//!
//! ```text
//!   0  generation   changes each time the segment is emptied; seeds the checksums of its items
//!   8  use          kind in the low byte, flags in the next; bytes used in the upper four
//!  16  opened       second at which it was opened; upper four bytes: last second an item of it is valid, or 0
//!  24  order        place in the order of sealing, stored before the kind says sealed; for servers only
//! ```
//! The generation is stored before anything is written over the segment's old items, with a release fence of the
//! writing thread in between, and readers load it with acquire before and (after an acquire fence) after they copy: if
//! it is the same, nothing they copied was overwritten. A counter in the header (header.rs) changes after it: if that is
//! the same, so are the generations of many segments.

use crate::format::{GENERATION_AT, OPENED_AT, ORDER_AT, SEGMENT_ENTRY_BYTES, USE_AT};
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

impl Kind {
    const ALL: [Kind; 5] = [Kind::Free, Kind::Open, Kind::Sealed, Kind::Index, Kind::Retired];
}

/// The kind of a segment, its flags and the bytes used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The kind.
    pub kind: Kind,
    /// It holds items of the main queue.
    pub is_main: bool,
    /// It was opened for items that reclaim moved.
    pub is_for_moves: bool,
    /// Bytes used.
    pub used: u32,
}

impl Use {
    const IS_MAIN: u64 = 1 << 8;
    const IS_FOR_MOVES: u64 = 1 << 9;

    fn to_word(self) -> u64 {
        self.kind as u64
            | if self.is_main { Use::IS_MAIN } else { 0 }
            | if self.is_for_moves { Use::IS_FOR_MOVES } else { 0 }
            | u64::from(self.used) << 32
    }

    fn from_word(word: u64) -> Option<Use> {
        let segment_use = Use {
            kind: *Kind::ALL.get((word & 0xff) as usize)?,
            is_main: word & Use::IS_MAIN != 0,
            is_for_moves: word & Use::IS_FOR_MOVES != 0,
            used: (word >> 32) as u32,
        };
        (segment_use.to_word() == word).then_some(segment_use)
    }
}

#[inline]
/// Returns where the entries of the first `segments` segments end.
pub fn table_end(geometry: &Geometry, segments: u32) -> u64 {
    geometry.segment_table + u64::from(segments) * SEGMENT_ENTRY_BYTES
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
pub fn set_use(memory: &Memory, geometry: &Geometry, segment: u32, segment_use: Use) {
    memory.store(entry(geometry, segment) + USE_AT, segment_use.to_word(), Ordering::Release);
}

/// Returns the use of the segment; `None` if [`set_use`] stores no such word.
pub fn load_use(memory: &Memory, geometry: &Geometry, segment: u32) -> Option<Use> {
    Use::from_word(memory.load(entry(geometry, segment) + USE_AT, Ordering::Acquire))
}

/// Publishes when the segment was opened, and until when its items are valid (0: some never expire).
pub fn set_times(memory: &Memory, geometry: &Geometry, segment: u32, opened: u32, valid_until: u32) {
    memory.store(
        entry(geometry, segment) + OPENED_AT,
        u64::from(opened) | u64::from(valid_until) << 32,
        Ordering::Release,
    );
}

/// Returns when the segment was opened, and until when its items are valid.
pub fn load_times(memory: &Memory, geometry: &Geometry, segment: u32) -> (u32, u32) {
    let word = memory.load(entry(geometry, segment) + OPENED_AT, Ordering::Relaxed);
    (word as u32, (word >> 32) as u32)
}

/// Stores the segment's place in the order of sealing, for a successor; before its kind says that it is sealed.
pub fn set_order(memory: &Memory, geometry: &Geometry, segment: u32, order: u64) {
    memory.store(entry(geometry, segment) + ORDER_AT, order, Ordering::Relaxed);
}

/// Returns the place in the order of sealing of a sealed segment.
pub fn load_order(memory: &Memory, geometry: &Geometry, segment: u32) -> u64 {
    memory.load(entry(geometry, segment) + ORDER_AT, Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn uses_round_trip(kind in 0usize..5, is_main: bool, is_for_moves: bool, used: u32) {
            let segment_use = Use { kind: Kind::ALL[kind], is_main, is_for_moves, used };
            prop_assert_eq!(Use::from_word(segment_use.to_word()), Some(segment_use));
        }

        #[test]
        fn words_that_no_server_stores_are_rejected(word: u64) {
            prop_assert!(Use::from_word(word).is_none_or(|segment_use| segment_use.to_word() == word));
            prop_assert!(word & 0xffff_fcf8 == 0 || Use::from_word(word).is_none());
        }
    }
}
