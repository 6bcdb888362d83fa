//! The header: the region's first page.
//!
//! The first line identifies the format and the geometry; it is written once, with the magic last. The status line
//! changes while the server runs: readers fetch it once a batch, no earlier than the batch's first operation. The
//! counters of emptied segments follow it, then the words that only servers read (succession.rs).

use std::time::Duration;

use crate::format::{
    CLOCK_AT, CLOCK_ORIGIN_AT, DIRECTORY_AT, FIRST_SEGMENT_AT, FLUSH_EPOCH_AT, FORMAT_AT, FORMAT_VERSION,
    HASH_SEED_AT, HEADER_BYTES, INCARNATION_AT, LEASE_AT, LEASE_MAX, LIVENESS_AT, LIVENESS_HOLDER_MASK,
    MAGIC, MAGIC_AT, RECYCLED_AT, RECYCLED_COUNTS, REGION_BYTES_AT, REGION_ID_AT, SEGMENT_TABLE_AT, SHAPE_AT,
    STATUS_AND_COUNTS_BYTES, STATUS_AT, STATUS_BYTES, UNVERIFIED,
};
use crate::geometry::Geometry;
use crate::memory::Memory;
use crate::sync::{Ordering, without};

/// Why a header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The region does not start with the magic: it is not a region, or is still being created.
    NotARegion,
    /// Another version of the format.
    Version(u64),
    /// The geometry does not fit the mapping.
    Geometry,
}

/// The part of the header that is written once, and the incarnation of the server that maintains the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Offsets and sizes of all parts.
    pub geometry: Geometry,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Unix time of second 0 of the region's clock.
    pub clock_origin: u64,
    /// Random identity of the region.
    pub region_id: u64,
    /// Which server since the region's creation maintains it.
    pub incarnation: u32,
}

/// Writes the header of a new region; the magic last, with release.
pub fn write(memory: &Memory, birth: &Birth) {
    let g = &birth.geometry;
    for (at, value) in [
        (FORMAT_AT, FORMAT_VERSION),
        (REGION_BYTES_AT, g.region_bytes),
        (SHAPE_AT, shape(g)),
        (DIRECTORY_AT, g.directory),
        (SEGMENT_TABLE_AT, g.segment_table),
        (FIRST_SEGMENT_AT, g.first_segment),
        (HASH_SEED_AT, birth.hash_seed),
        (CLOCK_ORIGIN_AT, birth.clock_origin),
        (REGION_ID_AT, birth.region_id),
    ] {
        memory.store(at, value, Ordering::Relaxed);
    }
    memory.store_u32(INCARNATION_AT, birth.incarnation, Ordering::Relaxed);
    memory.store(MAGIC_AT, MAGIC, Ordering::Release);
}

/// Stores the geometry of a region that has grown at its end. The server does it between the beginning of its incarnation
/// and its liveness; the entries of the new segments are stored before.
pub fn grow(memory: &Memory, geometry: &Geometry) {
    memory.store(REGION_BYTES_AT, geometry.region_bytes, Ordering::Release);
    memory.store(SHAPE_AT, shape(geometry), Ordering::Release);
}

fn shape(g: &Geometry) -> u64 {
    u64::from(g.partition_bits)
        | u64::from(g.block_shift) << 8
        | u64::from(g.segment_shift) << 16
        | u64::from(g.segments) << 32
}

/// Reads the header of a mapped region.
pub fn read(memory: &Memory) -> Result<Birth, HeaderError> {
    if memory.len() < HEADER_BYTES || memory.load(MAGIC_AT, Ordering::Acquire) != MAGIC {
        return Err(HeaderError::NotARegion);
    }
    // First: a header read while a successor takes over is of an ended incarnation.
    let incarnation = incarnation(memory);
    birth(memory.len(), incarnation, |at| memory.load(at, Ordering::Relaxed))
}

/// Reads the header of a remote region from its first bytes, and the region's length from the server.
pub fn from_bytes(bytes: &[u8; HEADER_BYTES as usize], region_bytes: u64) -> Result<Birth, HeaderError> {
    let words = bytes.as_chunks().0;
    let word = |at: u64| u64::from_le_bytes(words[at as usize / 8]);
    if region_bytes < HEADER_BYTES || word(MAGIC_AT) != MAGIC {
        return Err(HeaderError::NotARegion);
    }
    birth(region_bytes, (word(LIVENESS_AT) >> 32) as u32 & !UNVERIFIED, word)
}

fn birth(bytes: u64, incarnation: u32, word: impl Fn(u64) -> u64) -> Result<Birth, HeaderError> {
    if word(FORMAT_AT) != FORMAT_VERSION {
        return Err(HeaderError::Version(word(FORMAT_AT)));
    }
    let shape = word(SHAPE_AT);
    let geometry = Geometry {
        region_bytes: word(REGION_BYTES_AT),
        partition_bits: (shape & 0xff) as u32,
        block_shift: (shape >> 8 & 0xff) as u32,
        segment_shift: (shape >> 16 & 0xff) as u32,
        segments: (shape >> 32) as u32,
        directory: word(DIRECTORY_AT),
        segment_table: word(SEGMENT_TABLE_AT),
        first_segment: word(FIRST_SEGMENT_AT),
    };
    if geometry.region_bytes > bytes || !geometry.is_sound() {
        return Err(HeaderError::Geometry);
    }
    Ok(Birth {
        geometry,
        hash_seed: word(HASH_SEED_AT),
        clock_origin: word(CLOCK_ORIGIN_AT),
        region_id: word(REGION_ID_AT),
        incarnation,
    })
}

/// The contents of the status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// Seconds of the region's clock.
    pub clock: u32,
    /// See [`flush_epoch`].
    pub flush_epoch: u64,
    /// Whether a server maintains the region: see [`LIVENESS_AT`].
    pub is_alive: bool,
    /// Which server since the region's creation: see [`INCARNATION_AT`].
    pub incarnation: u32,
    /// Whether items of earlier incarnations are not verified yet: see [`UNVERIFIED`].
    pub is_unverified: bool,
}

impl StatusLine {
    /// Decodes the [`STATUS_BYTES`] at [`STATUS_AT`].
    pub fn from_bytes(bytes: &[u8; STATUS_BYTES]) -> StatusLine {
        let [clock, flush_epoch, life] = std::array::from_fn(|i| word_at(bytes, 8 * i as u64));
        let incarnation = (life >> 32) as u32;
        StatusLine {
            clock: clock as u32,
            flush_epoch,
            is_alive: life as u32 & LIVENESS_HOLDER_MASK != 0,
            incarnation: incarnation & !UNVERIFIED,
            is_unverified: incarnation & UNVERIFIED != 0,
        }
    }
}

/// Returns the status line's clock from the same bytes as the counters.
pub fn clock_of(bytes: &[u8; STATUS_AND_COUNTS_BYTES]) -> u32 {
    word_at(bytes, 0) as u32
}

/// Decodes the counters of the [`STATUS_AND_COUNTS_BYTES`] at [`STATUS_AT`].
pub fn recycled_counts(bytes: &[u8; STATUS_AND_COUNTS_BYTES]) -> [u64; RECYCLED_COUNTS] {
    std::array::from_fn(|i| word_at(bytes, RECYCLED_AT - STATUS_AT + 8 * i as u64))
}

#[inline]
fn word_at(bytes: &[u8], at: u64) -> u64 {
    bytes[at as usize..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Returns from the same bytes how long the line may be trusted: no flush completes sooner after its fetch.
pub fn lease_of(bytes: &[u8; STATUS_AND_COUNTS_BYTES]) -> Duration {
    let [epoch, lease] = [FLUSH_EPOCH_AT, LEASE_AT].map(|at| word_at(bytes, at - STATUS_AT));
    let micros = if lease == lease_word(epoch, lease & LEASE_MASK) { lease & LEASE_MASK } else { 0 };
    Duration::from_micros(micros)
}

const LEASE_MASK: u64 = u16::MAX as u64;

fn lease_word(epoch: u64, micros: u64) -> u64 {
    epoch << 16 | micros
}

/// Counts that a segment was emptied: see [`RECYCLED_COUNTS`].
pub fn count_recycled(memory: &Memory, segment: u32) {
    let at = RECYCLED_AT + 8 * (segment as usize % RECYCLED_COUNTS) as u64;
    memory.fetch_add(at, 1, Ordering::Release);
}

/// Returns the published clock, in seconds of the region's clock.
#[inline]
pub fn clock(memory: &Memory) -> u32 {
    memory.load(CLOCK_AT, Ordering::Relaxed) as u32
}

/// Returns whether the server of this incarnation maintains the region: see [`LIVENESS_AT`].
#[inline]
pub fn is_alive(memory: &Memory, incarnation: u32) -> bool {
    let word = memory.load(LIVENESS_AT, Ordering::Acquire);
    word as u32 & LIVENESS_HOLDER_MASK != 0 && (word >> 32) as u32 & !UNVERIFIED == incarnation
}

/// Returns the region's random identity.
pub fn region_id(memory: &Memory) -> u64 {
    memory.load(REGION_ID_AT, Ordering::Relaxed)
}

/// Says that this thread's server maintains the region, and has finished what it had to do first.
pub fn hold_liveness(memory: &Memory, thread: u32) {
    let order = if without("liveness_release") { Ordering::Relaxed } else { Ordering::Release };
    memory.store_u32(LIVENESS_AT, thread, order);
}

/// Returns which server since the region's creation maintains it.
pub fn incarnation(memory: &Memory) -> u32 {
    memory.load_u32(INCARNATION_AT, Ordering::Acquire) & !UNVERIFIED
}

/// Publishes the clock.
pub fn publish_clock(memory: &Memory, seconds: u32) {
    memory.store(CLOCK_AT, u64::from(seconds), Ordering::Release);
}

/// Returns the flush epoch: its low 8 bits are in the state of every unflushed item.
#[inline]
pub fn flush_epoch(memory: &Memory) -> u64 {
    memory.load(FLUSH_EPOCH_AT, Ordering::Acquire)
}

/// Starts the next flush epoch. One thread at a time.
pub fn advance_flush_epoch(memory: &Memory) {
    memory.store(FLUSH_EPOCH_AT, flush_epoch(memory) + 1, Ordering::Release);
}

/// Grants readers a lease on the status line, of at most [`LEASE_MAX`], for the present flush epoch. Before the epoch
/// changes, leases must be ended and their length waited for.
pub fn grant_leases(memory: &Memory, length: Duration) {
    let micros = length.min(LEASE_MAX).as_micros() as u64;
    memory.store(LEASE_AT, lease_word(flush_epoch(memory), micros), Ordering::Release);
}

/// Returns whether lines fetched now carry a lease.
pub fn grants_leases(memory: &Memory) -> bool {
    memory.load(LEASE_AT, Ordering::Relaxed) & LEASE_MASK != 0
}

/// Ends leases: status lines fetched from now on are valid only for the GETs that fetched them.
pub fn end_leases(memory: &Memory) {
    memory.store(LEASE_AT, 0, Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    #[test]
    fn lease_holds_for_one_epoch() {
        #[repr(align(4096))]
        struct Page([u8; HEADER_BYTES as usize]);
        let page = Box::leak(Box::new(Page([0; HEADER_BYTES as usize])));
        // SAFETY: aligned, never freed, and used by nothing else.
        let memory = unsafe { Memory::new(NonNull::from(&mut page.0).cast(), HEADER_BYTES) };
        let line = || {
            let mut bytes = [0; STATUS_AND_COUNTS_BYTES];
            memory.copy_out(STATUS_AT, &mut bytes);
            bytes
        };
        assert_eq!(lease_of(&line()), Duration::ZERO);
        assert!(!grants_leases(&memory));
        grant_leases(&memory, Duration::from_millis(1));
        assert!(grants_leases(&memory));
        assert_eq!(lease_of(&line()), Duration::from_millis(1));
        let before = line();
        end_leases(&memory);
        assert_eq!(lease_of(&line()), Duration::ZERO);
        advance_flush_epoch(&memory);
        grant_leases(&memory, Duration::from_secs(1));
        assert_eq!(lease_of(&line()), LEASE_MAX);
        // The previous epoch with the rest unchanged.
        let mut torn = line();
        let at = (FLUSH_EPOCH_AT - STATUS_AT) as usize;
        torn[at..at + 8].copy_from_slice(&before[at..at + 8]);
        assert_eq!(lease_of(&torn), Duration::ZERO);
    }
}
