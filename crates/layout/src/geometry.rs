//! Where everything lies in a region of a given size.

use crate::directory::{BLOCKS_PER_TABLE_MAX, PARTITION_BYTES};
use crate::header::HEADER_BYTES;
use crate::segment::ENTRY_BYTES;

/// Slots in a bucket: one cache line of them.
pub const SLOTS_PER_BUCKET: usize = if cfg!(loom) { 2 } else { 8 };
/// Bytes in a bucket.
pub const BUCKET_BYTES: u64 = SLOTS_PER_BUCKET as u64 * 8;

/// Hash bits that pick the home bucket in its group.
pub const BUCKET_BITS: u32 = if cfg!(loom) { 1 } else { 5 };
/// Home buckets in a group.
pub const BUCKETS_PER_GROUP: usize = 1 << BUCKET_BITS;
/// Buckets at the end of each group for the keys that find home and neighbour full. At nine tenths of the home
/// slots in use and after much churn an eighth of the keys live here.
pub const OVERFLOW_BUCKETS: usize = if cfg!(loom) { 1 } else { 4 };
/// Bytes in a group. All slots of a group are under one lock of the server.
pub const GROUP_BYTES: u64 = (BUCKETS_PER_GROUP + OVERFLOW_BUCKETS) as u64 * BUCKET_BYTES;

/// Segments are at most this part of memory, so that one of them more or less matters little.
const SEGMENTS_MIN: u64 = 256;
/// No smaller segments: an item's header and key must fit many times.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;
/// No larger segments: one huge page, and what the largest size class can tell.
const SEGMENT_BYTES_MAX: u64 = 2 << 20;
/// Memory for each partition until there are [`PARTITIONS_WANTED`].
const PARTITION_MEMORY_BYTES: u64 = 1 << 20;
/// Few enough that the directory stays in the cache, many enough that rebuilding one table costs little memory.
const PARTITIONS_WANTED: u64 = 1024;
/// Enough that writers rarely meet in one partition's count.
const PARTITIONS_MIN: u64 = 16;
/// Blocks larger than this would not fit a segment.
const BLOCK_SHIFT_MAX: u32 = 9;

const PAGE_BYTES: u64 = 4096;

/// Where everything lies. Written to the header, so that readers need not compute it.
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
    /// The geometry of a region of `region_bytes`, for segments and partitions that suit `memory_bytes`, the part
    /// of it in use at first.
    pub fn of(region_bytes: u64, memory_bytes: u64) -> Result<Geometry, TooSmall> {
        let memory_bytes = memory_bytes.min(region_bytes);
        let segment_bytes = (memory_bytes / SEGMENTS_MIN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let segment_shift = segment_bytes.ilog2();
        let mut block_shift = 0;
        while region_bytes / (PARTITION_MEMORY_BYTES << block_shift) > PARTITIONS_WANTED
            && block_shift < BLOCK_SHIFT_MAX
        {
            block_shift += 1;
        }
        let partitions = (region_bytes / (PARTITION_MEMORY_BYTES << block_shift)).max(PARTITIONS_MIN);
        let partition_bits = partitions.next_power_of_two().ilog2();
        let directory = HEADER_BYTES;
        let segment_table = directory + (PARTITION_BYTES << partition_bits);
        let segments_most = region_bytes >> segment_shift;
        let align = if 1 << segment_shift >= SEGMENT_BYTES_MAX { SEGMENT_BYTES_MAX } else { PAGE_BYTES };
        let first_segment = (segment_table + segments_most * ENTRY_BYTES).next_multiple_of(align);
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
        (((BLOCKS_PER_TABLE_MAX as u64) << self.block_shift) as u32).min(crate::directory::GROUPS_MAX)
    }

    /// Offset of a segment.
    #[inline]
    pub fn segment_offset(&self, segment: u32) -> u64 {
        debug_assert!(segment < self.segments);
        self.first_segment + (u64::from(segment) << self.segment_shift)
    }

    /// The segment that holds `offset`, if one does.
    #[inline]
    pub fn segment_of(&self, offset: u64) -> Option<u32> {
        let segment = offset.checked_sub(self.first_segment)? >> self.segment_shift;
        (segment < u64::from(self.segments)).then_some(segment as u32)
    }

    /// Offset of the end of the segment that holds `offset`.
    #[inline]
    pub fn segment_end(&self, segment: u32) -> u64 {
        self.segment_offset(segment) + self.segment_bytes()
    }
}

/// A group is nine of these, so that block offsets are multiples of it.
const BLOCK_UNIT_BYTES: u64 = if cfg!(loom) { BUCKET_BYTES } else { 256 };
const _: () = assert!(GROUP_BYTES.is_multiple_of(BLOCK_UNIT_BYTES));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn everything_fits_at_every_size() {
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
                assert!(index_max >= bytes / 3, "{bytes}: the index reaches {index_max}");
            }
        }
        assert_eq!(Geometry::of(64 << 10, 64 << 10), Err(TooSmall));
    }

    #[test]
    fn segments_are_found_by_offset() {
        let g = Geometry::of(64 << 20, 64 << 20).expect("large enough");
        assert_eq!(g.segment_bytes(), 256 << 10);
        assert_eq!(g.segments, 255);
        assert_eq!(g.segment_of(g.first_segment - 1), None);
        for segment in [0, 1, 254] {
            assert_eq!(g.segment_of(g.segment_offset(segment)), Some(segment));
            assert_eq!(g.segment_of(g.segment_end(segment) - 1), Some(segment));
        }
        assert_eq!(g.segment_of(g.segment_end(254)), None);
    }
}
