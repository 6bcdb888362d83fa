//! The locations on flash of items that were promoted to memory.
//!
//! An unchanged item returns there without being written.

use fabcache_layout::flash_slot::PAGE_CLASS_BITS;
use fabcache_layout::sync::{AtomicBool, Mutex, Ordering};

/// Bits of a segment's sequence that are kept.
///
/// Two sequences share these only if half a billion segments were opened between them.
const SEQUENCE_BITS: u32 = u32::BITS - PAGE_CLASS_BITS;
const SEQUENCE_MASK: u32 = (1 << SEQUENCE_BITS) - 1;

/// The pages of an item, and which use of their segment they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlashLocation {
    pub(crate) page: u32,
    /// The page class, and low bits of the sequence.
    class_and_sequence: u32,
}

impl FlashLocation {
    pub(crate) fn new(page: u32, class: u8, sequence: u64) -> FlashLocation {
        let sequence = sequence as u32 & SEQUENCE_MASK;
        FlashLocation { page, class_and_sequence: u32::from(class) << SEQUENCE_BITS | sequence }
    }

    pub(crate) fn class(self) -> u8 {
        (self.class_and_sequence >> SEQUENCE_BITS) as u8
    }

    pub(crate) fn is_of(self, sequence: u64) -> bool {
        self.class_and_sequence & SEQUENCE_MASK == sequence as u32 & SEQUENCE_MASK
    }
}

/// The locations of one segment's items, in order of their offsets in bytes within the segment.
#[derive(Debug, Default)]
struct SegmentLocations {
    has_any: AtomicBool,
    items: Mutex<Vec<(u32, FlashLocation)>>,
}

/// The locations of all items in memory that are on flash too, by segment of the region: 12 bytes each.
#[derive(Debug)]
pub(crate) struct Locations(Box<[SegmentLocations]>);

impl Locations {
    pub(super) fn new(segments: u32) -> Locations {
        let segment = |_| SegmentLocations { has_any: AtomicBool::new(false), items: Mutex::new(Vec::new()) };
        Locations((0..segments).map(segment).collect())
    }

    /// Records that the item just written at `offset` of a segment is on flash too.
    pub(crate) fn note(&self, segment: u32, offset: u32, location: FlashLocation) {
        let of_segment = &self.0[segment as usize];
        let mut items = of_segment.items.lock().expect("no thread panics while it holds locations");
        let at = items.partition_point(|(other, _)| *other < offset);
        items.insert(at, (offset, location));
        of_segment.has_any.store(true, Ordering::Relaxed);
    }

    /// Returns where the item at `offset` of a segment is on flash.
    pub(crate) fn of(&self, segment: u32, offset: u32) -> Option<FlashLocation> {
        let of_segment = &self.0[segment as usize];
        if !of_segment.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let items = of_segment.items.lock().expect("no thread panics while it holds locations");
        let at = items.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(items[at].1)
    }

    /// Forgets the locations of a segment that is about to be used again.
    pub(crate) fn clear(&self, segment: u32) {
        let of_segment = &self.0[segment as usize];
        if of_segment.has_any.swap(false, Ordering::Relaxed) {
            of_segment.items.lock().expect("no thread panics while it holds locations").clear();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn locations_are_found_until_their_segment_is_used_again() {
        let locations = Locations::new(2);
        let [first, second] = [(7, 3, 9), ((1 << 31) - 1, 7, 1 << 40 | 5)]
            .map(|(page, class, sequence)| FlashLocation::new(page, class, sequence));
        locations.note(1, 40, second);
        locations.note(1, 8, first);
        assert_eq!((locations.of(1, 8), locations.of(1, 40)), (Some(first), Some(second)));
        assert_eq!((locations.of(1, 9), locations.of(0, 8)), (None, None));
        assert_eq!((first.class(), second.class(), second.page), (3, 7, (1 << 31) - 1));
        assert!(first.is_of(9) && !first.is_of(8) && second.is_of(1 << 40 | 5));
        locations.clear(1);
        assert_eq!((locations.of(1, 8), locations.of(1, 40)), (None, None));
    }
}
