//! Offsets and sizes of all parts of a region of a given size.

use crate::format::{
    BLOCKS_PER_TABLE_MAX, BUCKET_BYTES, BUCKETS_PER_GROUP, GROUP_BYTES, HEADER_BYTES, PARTITION_BYTES,
    SEGMENT_ENTRY_BYTES, USED_BYTES,
};
use crate::slot::REGION_BYTES_MAX;

/// Segments are at most this part of memory, so that the few open and reserved ones matter little.
const SEGMENTS_MIN: u64 = 512;
/// Small memory has fewer, as each value of some kilobytes would be in chunks …
const SEGMENTS_OF_SMALL_MEMORY_MIN: u64 = 256;
/// … than segments of this size hold whole.
const SEGMENT_BYTES_WANTED: u64 = 16 << 10;
/// No smaller segments: an item's header and key must fit many times.
const SEGMENT_BYTES_MIN: u64 = 8 << 10;
/// The largest segment: one huge page, and the most that size classes can express.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 2 << 20;
/// Memory for each partition until there are [`PARTITIONS_WANTED`]: a table of several groups, so that one group more or
/// less matters little, where items have a kilobyte.
const PARTITION_MEMORY_BYTES: u64 = 3 << 19;
/// Few enough that the directory stays in the cache, many enough that rebuilding one table costs little memory.
const PARTITIONS_WANTED: u64 = 1024;
/// Enough that writers rarely meet in one partition's count.
const PARTITIONS_MIN: u64 = 8;
/// Blocks larger than this would not fit a segment.
const BLOCK_SHIFT_MAX: u32 = 9;

/// The index can have this part of memory: that of items of a few bytes.
const INDEX_DIVISOR_MAX: u64 = 3;

const PAGE_BYTES: u64 = 4096;

/// The largest value that a header from outside may have: far more partitions than are ever created.
const PARTITION_BITS_MAX: u32 = 20;
/// And at least: a segment holds an item.
const SEGMENT_SHIFT_MIN: u32 = 9;

/// Offsets and sizes of all parts. The header contains them, so that readers need not compute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the whole region.
    pub region_bytes: u64,
    /// log2 of the number of partitions.
    pub partition_bits: u32,
    /// log2 of the groups in a block of the index.
    pub block_shift: u32,
    /// log2 of the bytes in a segment.
    pub segment_shift: u32,
    /// Number of segments.
    pub segments: u32,
    /// Offset of the directory.
    pub directory: u64,
    /// Offset of the segment table.
    pub segment_table: u64,
    /// Offset of the first segment.
    pub first_segment: u64,
}

/// A region too small to hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall;

impl Geometry {
    /// Returns the geometry of a region of `region_bytes`, for segments that suit `memory_bytes`, the part in use at first.
    pub fn of(region_bytes: u64, memory_bytes: u64) -> Result<Geometry, TooSmall> {
        Geometry::with_room(region_bytes, memory_bytes, region_bytes)
    }

    /// As [`Geometry::of`], for a region that may grow to `room_bytes`: its tables have room for that.
    pub fn with_room(region_bytes: u64, memory_bytes: u64, room_bytes: u64) -> Result<Geometry, TooSmall> {
        let memory_bytes = memory_bytes.min(region_bytes);
        let of_small_memory = (memory_bytes / SEGMENTS_OF_SMALL_MEMORY_MIN).min(SEGMENT_BYTES_WANTED);
        let segment_bytes = (memory_bytes / SEGMENTS_MIN).max(of_small_memory);
        let segment_bytes = segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let segment_shift = segment_bytes.ilog2();
        let mut block_shift = 0;
        while room_bytes / (PARTITION_MEMORY_BYTES << block_shift) > PARTITIONS_WANTED
            && block_shift < BLOCK_SHIFT_MAX
        {
            block_shift += 1;
        }
        let partitions = (room_bytes / (PARTITION_MEMORY_BYTES << block_shift)).max(PARTITIONS_MIN);
        let partition_bits = partitions.next_power_of_two().ilog2();
        let directory = HEADER_BYTES;
        let segment_table = directory + (PARTITION_BYTES << partition_bits);
        let segments_most = room_bytes >> segment_shift;
        let align = if 1 << segment_shift >= SEGMENT_BYTES_MAX { SEGMENT_BYTES_MAX } else { PAGE_BYTES };
        let first_segment = (segment_table + segments_most * SEGMENT_ENTRY_BYTES).next_multiple_of(align);
        let segments = region_bytes.checked_sub(first_segment).ok_or(TooSmall)? >> segment_shift;
        if segments < 8 {
            return Err(TooSmall);
        }
        Ok(Geometry {
            region_bytes,
            partition_bits,
            block_shift,
            segment_shift,
            segments: segments as u32,
            directory,
            segment_table,
            first_segment,
        })
    }

    /// Returns the geometry of the same region with more bytes at its end, if its tables have room for them.
    pub fn grown(&self, region_bytes: u64) -> Option<Geometry> {
        let segments = self.segments_within(region_bytes).try_into().ok()?;
        let grown = Geometry { region_bytes, segments, ..*self };
        (region_bytes <= self.room_bytes() && grown.is_sound()).then_some(grown)
    }

    /// Returns the bytes that the region may grow to.
    pub fn room_bytes(&self) -> u64 {
        let segments = (self.first_segment - self.segment_table) / SEGMENT_ENTRY_BYTES;
        let index_bytes_max = self.block_bytes() * (BLOCKS_PER_TABLE_MAX << self.partition_bits) as u64;
        self.bytes_to(segments).min(index_bytes_max * INDEX_DIVISOR_MAX).min(REGION_BYTES_MAX)
    }

    /// Returns whether all parts are within the region, aligned and in order. Check a geometry from outside before
    /// using it.
    pub fn is_sound(&self) -> bool {
        let fields = self.partition_bits <= PARTITION_BITS_MAX
            && self.block_shift <= BLOCK_SHIFT_MAX
            && (SEGMENT_SHIFT_MIN..=SEGMENT_BYTES_MAX.ilog2()).contains(&self.segment_shift)
            && self.region_bytes <= REGION_BYTES_MAX
            && self.block_bytes() <= self.segment_bytes();
        let aligned = self.directory.is_multiple_of(8)
            && self.segment_table.is_multiple_of(8)
            && self.first_segment.is_multiple_of(BUCKET_BYTES);
        let offsets = [self.directory, self.segment_table, self.first_segment];
        // With offsets inside the region none of the sums wraps.
        if !fields || !aligned || offsets.iter().any(|offset| *offset > self.region_bytes) {
            return false;
        }
        let directory_end = self.directory + (PARTITION_BYTES << self.partition_bits);
        let table_end = self.segment_table + u64::from(self.segments) * SEGMENT_ENTRY_BYTES;
        let end = self.first_segment + (u64::from(self.segments) << self.segment_shift);
        self.directory >= USED_BYTES
            && directory_end <= self.segment_table
            && table_end <= self.first_segment
            && self.segments > 0
            && end <= self.region_bytes
    }

    /// Returns how many segments end within the first `bytes` of the region, however many it has.
    pub fn segments_within(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.first_segment) >> self.segment_shift
    }

    /// Returns the bytes from the region's start to the end of so many segments.
    pub fn bytes_to(&self, segments: u64) -> u64 {
        self.first_segment + (segments << self.segment_shift)
    }

    /// Bytes in a segment.
    #[inline]
    pub fn segment_bytes(&self) -> u64 {
        1 << self.segment_shift
    }

    /// Number of partitions.
    pub fn partitions(&self) -> usize {
        1 << self.partition_bits
    }

    /// Bytes in a block of the index.
    pub fn block_bytes(&self) -> u64 {
        GROUP_BYTES << self.block_shift
    }

    /// Blocks that a segment given to the index is cut into.
    pub fn blocks_per_segment(&self) -> u64 {
        self.segment_bytes() / self.block_bytes()
    }

    /// Unit of the block numbers in the directory, in bytes: it divides all block offsets.
    pub fn block_unit_bytes(&self) -> u64 {
        BLOCK_UNIT_BYTES << self.block_shift
    }

    /// The most groups one table has.
    pub fn groups_max(&self) -> u32 {
        (((BLOCKS_PER_TABLE_MAX as u64) << self.block_shift) as u32).min(crate::format::GROUPS_MAX)
    }

    /// Offset of a segment.
    #[inline]
    pub fn segment_offset(&self, segment: u32) -> u64 {
        debug_assert!(segment < self.segments);
        self.first_segment + (u64::from(segment) << self.segment_shift)
    }

    /// Returns the segment that contains `offset`, if any.
    #[inline]
    pub fn segment_of(&self, offset: u64) -> Option<u32> {
        let segment = offset.checked_sub(self.first_segment)? >> self.segment_shift;
        (segment < u64::from(self.segments)).then_some(segment as u32)
    }

    /// Returns the offset of the end of the segment that contains `offset`.
    #[inline]
    pub fn segment_end(&self, segment: u32) -> u64 {
        self.segment_offset(segment) + self.segment_bytes()
    }
}

/// The offsets of the buckets where a key may be in a group, apart from chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketOffsets {
    /// The home bucket.
    pub home: u64,
    /// The neighbour bucket.
    pub neighbour: u64,
    /// The first overflow bucket.
    pub overflow: u64,
    /// The end of the overflow buckets.
    pub overflow_end: u64,
}

impl BucketOffsets {
    /// Returns the buckets of keys whose home bucket is the given one of the group at offset `group`.
    #[inline]
    pub fn of(group: u64, bucket: usize) -> BucketOffsets {
        let neighbour = if bucket + 1 < BUCKETS_PER_GROUP { bucket + 1 } else { bucket - 1 };
        BucketOffsets {
            home: group + bucket as u64 * BUCKET_BYTES,
            neighbour: group + neighbour as u64 * BUCKET_BYTES,
            overflow: group + BUCKETS_PER_GROUP as u64 * BUCKET_BYTES,
            overflow_end: group + GROUP_BYTES,
        }
    }
}

/// A group consists of nine of these, so block offsets are multiples of it.
const BLOCK_UNIT_BYTES: u64 = if cfg!(loom) { BUCKET_BYTES } else { 256 };
const _: () = assert!(GROUP_BYTES.is_multiple_of(BLOCK_UNIT_BYTES));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn regions_fit_at_every_size() {
        for shift in 20..43 {
            for bytes in [1u64 << shift, (1 << shift) + (1 << (shift - 1))] {
                let bytes = bytes.min(crate::slot::REGION_BYTES_MAX);
                let g = Geometry::of(bytes, bytes).expect("large enough");
                assert!(g.first_segment + u64::from(g.segments) * g.segment_bytes() <= bytes);
                assert!(g.first_segment * 20 < bytes, "tables take {} of {bytes}", g.first_segment);
                assert!(g.blocks_per_segment() >= 1, "{bytes}");
                assert!(g.first_segment.is_multiple_of(g.block_unit_bytes()), "{bytes}");
                assert!(bytes / g.block_unit_bytes() <= 1 << 32, "{bytes}");
                let index_max = g.block_bytes() * BLOCKS_PER_TABLE_MAX as u64 * g.partitions() as u64;
                assert!(index_max >= bytes / INDEX_DIVISOR_MAX, "{bytes}: the index reaches {index_max}");
                assert!(g.is_sound(), "{g:?}");
            }
        }
        assert_eq!(Geometry::of(64 << 10, 64 << 10), Err(TooSmall));
    }

    #[test]
    fn regions_grow_into_their_room() {
        for shift in 20..40 {
            let bytes = 1u64 << shift;
            let g = Geometry::with_room(bytes, bytes, 4 * bytes).expect("large enough");
            assert!(g.is_sound() && g.room_bytes() >= 4 * bytes - g.segment_bytes(), "{g:?}");
            assert!(g.first_segment * 10 < bytes, "tables take {} of {bytes}", g.first_segment);
            for larger in [bytes + g.segment_bytes(), 2 * bytes, 3 * bytes + 12_345, g.room_bytes()] {
                let grown = g.grown(larger).expect("it has room");
                assert_eq!((grown.region_bytes, grown.first_segment), (larger, g.first_segment));
                let end = grown.segment_end(grown.segments - 1);
                assert!(end <= larger && end + g.segment_bytes() > larger, "{grown:?}");
            }
            assert_eq!(g.grown(g.room_bytes() + 1), None);
            assert_eq!(g.grown(0), None);
        }
    }

    #[test]
    fn geometry_that_does_not_fit_is_invalid() {
        let g = Geometry::of(64 << 20, 64 << 20).expect("large enough");
        assert!(g.is_sound());
        for wrong in [
            Geometry { region_bytes: g.region_bytes / 2, ..g },
            Geometry { region_bytes: u64::MAX, ..g },
            Geometry { partition_bits: g.partition_bits + 1, ..g },
            Geometry { partition_bits: 63, ..g },
            Geometry { block_shift: 31, ..g },
            Geometry { segment_shift: 63, ..g },
            Geometry { segment_shift: 0, ..g },
            Geometry { segments: u32::MAX, ..g },
            Geometry { segments: 0, ..g },
            Geometry { directory: 0, ..g },
            Geometry { directory: g.directory + 4, ..g },
            Geometry { directory: !7, ..g },
            Geometry { segment_table: g.directory, ..g },
            Geometry { segment_table: !7, ..g },
            Geometry { first_segment: g.segment_table, ..g },
            Geometry { first_segment: g.first_segment + 1, ..g },
            Geometry { first_segment: !63, ..g },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
    }

    #[test]
    fn segments_are_found_by_offset() {
        let g = Geometry::of(64 << 20, 64 << 20).expect("large enough");
        assert_eq!(g.segment_bytes(), 128 << 10);
        assert_eq!(g.segments, 510);
        assert_eq!(g.segment_of(g.first_segment - 1), None);
        for segment in [0, 1, 509] {
            assert_eq!(g.segment_of(g.segment_offset(segment)), Some(segment));
            assert_eq!(g.segment_of(g.segment_end(segment) - 1), Some(segment));
        }
        assert_eq!(g.segment_of(g.segment_end(509)), None);
    }
}
