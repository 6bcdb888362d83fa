//! A client's metadata cache of a region, kept between GETs: partition heads, block numbers, generations, the status
//! line.
//!
//! All but the status line may be arbitrarily old. Stamps order the fetches where that matters, so that concurrent
//! GETs can share the cache.

use crate::bounds::CLOCK_LAG_SECONDS_MAX;
use crate::format::{RECYCLED_COUNTS, STATUS_AND_COUNTS_BYTES, STATUS_AT, STATUS_BYTES};
use crate::header::{self, StatusLine};

use super::{FallbackReason, Reader, Step};

/// A client's cached metadata of a region.
#[derive(Clone, Debug)]
pub struct MetadataCache {
    partitions: Box<[Partition]>,
    generations: Box<[Generation]>,
    /// Counts changes of cached generations.
    stamp: u64,
    status_line: Option<StatusLine>,
    /// The incarnation of the server whose region is read.
    incarnation: u32,
    now: u32,
    /// The counters of emptied segments, as last fetched.
    counts: Option<[u64; RECYCLED_COUNTS]>,
}

#[derive(Clone, Debug, Default)]
struct Partition {
    head: Option<u64>,
    numbers: [Vec<u32>; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Generation {
    generation: u64,
    /// When it was fetched; 0 for never.
    stamp: u64,
    /// The segment's counter for which it is known to hold; the counter was fetched first.
    count: u64,
}

/// No counter was fetched.
const UNCOUNTED: u64 = u64::MAX;

/// A segment's cached generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachedGeneration {
    /// Fetched before the given stamp.
    Before(u64),
    /// Fetched after the given stamp.
    After,
    /// Not cached.
    Unknown,
}

impl MetadataCache {
    /// Returns an empty cache for the reader's region.
    pub fn new(reader: &Reader) -> MetadataCache {
        let geometry = reader.geometry();
        MetadataCache {
            incarnation: reader.incarnation(),
            partitions: vec![Partition::default(); geometry.partitions()].into(),
            generations: vec![Generation::default(); geometry.segments as usize].into(),
            stamp: 0,
            status_line: None,
            now: 0,
            counts: None,
        }
    }

    /// Returns what to fetch for [`MetadataCache::begin`].
    pub const fn fetch_status_line() -> Step {
        Step::Bytes { offset: STATUS_AT, len: STATUS_BYTES }
    }

    /// Begins a batch of GETs with the status line, which was fetched after the first of them was requested, and the
    /// second of the region's clock by the client's own monotonic clock.
    pub fn begin(&mut self, status_line: &[u8; STATUS_BYTES], now: u32) {
        let status_line = StatusLine::from_bytes(status_line);
        self.now = now.max(status_line.clock);
        self.status_line = Some(status_line);
    }

    /// Stores a status line and the counts of emptied segments that follow it. A later line already stored stays.
    pub(super) fn begin_counted(&mut self, bytes: &[u8; STATUS_AND_COUNTS_BYTES], now: u32) {
        let epoch = self.status_line.map_or(0, |line| line.flush_epoch);
        let line = bytes.first_chunk().expect("the line is the first of these bytes");
        self.begin(line, now);
        self.set_flush_epoch(epoch);
        self.counts = Some(header::recycled_counts(bytes));
    }

    /// Sets the current second.
    pub(super) fn go_to(&mut self, now: u32) {
        self.now = self.now.max(now);
    }

    /// Returns how often segments of this one's counter were emptied, if that was fetched.
    pub(super) fn count(&self, segment: u32) -> Option<u64> {
        self.counts.map(|counts| counts[segment as usize % RECYCLED_COUNTS])
    }

    /// Returns whether the segment had this generation when the counters were fetched last: no segment of its counter
    /// was emptied since the generation was fetched.
    pub(super) fn stood(&self, segment: u32, generation: u64) -> bool {
        let cached = self.generations[segment as usize];
        cached.stamp > 0 && cached.generation == generation && self.count(segment) == Some(cached.count)
    }

    /// Returns the status line.
    ///
    /// # Errors
    /// Why no item may be read by it: its clock has stopped, or the region's items are not verified yet.
    #[inline]
    pub(super) fn status_line(&self) -> Result<StatusLine, FallbackReason> {
        match self.status_line {
            Some(line) if self.now - line.clock > CLOCK_LAG_SECONDS_MAX => Err(FallbackReason::Clock),
            Some(line) if line.is_unverified => Err(FallbackReason::Unverified),
            Some(line) => Ok(line),
            None => Err(FallbackReason::Clock),
        }
    }

    /// Returns whether the server was running when the status line was fetched. Items of a region without a server are
    /// as they were, not as they are; those of a successor are read by its clients.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.status_line.is_some_and(|line| line.is_alive && line.incarnation == self.incarnation)
    }

    /// Returns the second that the status line showed, 0 without one.
    pub(super) fn region_second(&self) -> u32 {
        self.status_line.map_or(0, |line| line.clock)
    }

    pub(super) fn set_flush_epoch(&mut self, epoch: u64) {
        if let Some(line) = &mut self.status_line {
            line.flush_epoch = line.flush_epoch.max(epoch);
        }
    }

    /// Returns the current second.
    pub(super) fn now(&self) -> u32 {
        self.now
    }

    /// Returns the word of a partition's head.
    pub(super) fn head(&self, partition: usize) -> Option<u64> {
        self.partitions[partition].head
    }

    /// Caches a head; block numbers are valid only for the head with which they were fetched.
    pub(super) fn set_head(&mut self, partition: usize, word: u64) {
        let partition = &mut self.partitions[partition];
        if partition.head != Some(word) {
            *partition = Partition { head: Some(word), ..Partition::default() };
        }
    }

    pub(super) fn forget_partition(&mut self, partition: usize) {
        self.partitions[partition] = Partition::default();
    }

    pub(super) fn block_number(&self, partition: usize, table: usize, block: usize) -> Option<u32> {
        self.partitions[partition].numbers[table].get(block).copied()
    }

    /// Caches the block numbers of a table that were fetched after the head `word`.
    pub(super) fn set_block_numbers(&mut self, partition: usize, table: usize, word: u64, bytes: &[u8]) {
        let partition = &mut self.partitions[partition];
        if partition.head == Some(word) {
            partition.numbers[table] = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        }
    }

    /// Returns the stamp of the present metadata.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns the generation of a segment, and whether it was fetched before `stamp`.
    pub(super) fn generation(&self, segment: u32, stamp: u64) -> CachedGeneration {
        match self.generations[segment as usize] {
            Generation { stamp: 0, .. } => CachedGeneration::Unknown,
            cached if cached.stamp <= stamp => CachedGeneration::Before(cached.generation),
            _ => CachedGeneration::After,
        }
    }

    /// Returns the generation of a segment as last fetched.
    pub(super) fn last_generation(&self, segment: u32) -> Option<u64> {
        let cached = self.generations[segment as usize];
        (cached.stamp > 0).then_some(cached.generation)
    }

    /// Caches a generation that was just fetched, and the segment's counter as known when it was requested.
    pub(super) fn set_generation(&mut self, segment: u32, generation: u64, count: Option<u64>) {
        let cached = &mut self.generations[segment as usize];
        // Older metadata serves more GETs.
        if cached.stamp == 0 || cached.generation != generation {
            self.stamp += 1;
            *cached = Generation { generation, stamp: self.stamp, count: UNCOUNTED };
        }
        if let Some(count) = count {
            cached.count = count;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::header::Birth;
    use crate::reader::Validation;

    #[test]
    fn status_line_is_trusted_for_one_verified_incarnation() {
        let geometry = Geometry::of(1 << 20, 1 << 20).expect("large enough");
        let birth = Birth { geometry, hash_seed: 0, clock_origin: 0, region_id: 0, incarnation: 3 };
        let reader = Reader::new(&birth, Validation::SameHost).expect("sound");
        let mut metadata = MetadataCache::new(&reader);
        assert_eq!(metadata.status_line(), Err(FallbackReason::Clock));
        // Thread 7 maintains the region.
        let mut begin = |incarnation: u32, now| {
            let mut line = [0; STATUS_BYTES];
            line[16] = 7;
            line[20..24].copy_from_slice(&incarnation.to_le_bytes());
            metadata.begin(&line, now);
            (metadata.is_alive(), metadata.status_line().map(|line| line.incarnation))
        };
        assert_eq!(begin(3, 0), (true, Ok(3)));
        assert_eq!(begin(3 | crate::format::UNVERIFIED, 0), (true, Err(FallbackReason::Unverified)));
        assert_eq!(begin(3, CLOCK_LAG_SECONDS_MAX + 1), (true, Err(FallbackReason::Clock)));
        assert!(!begin(4, 0).0 && !begin(2, 0).0, "another server's region is not read by these metadata");
    }
}
