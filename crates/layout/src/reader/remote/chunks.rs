//! The chunks of a long value, several in flight at a time, each fetched into its place.
//!
//! Only the value's part of a chunk is fetched. The other bytes under its checksum are known: the key's hash, and the
//! length in the table. So the checksum is computed over the value in place, and the value is stored once. The sum of
//! the bytes is kept, so that the generation may become known after them.

use crate::checksum::{Secret, finish, sum_of_parts};
use crate::hash::KeyHash;
use crate::item::{ALIGN_BYTES, ChunkEntry, NewItem, SUMMED_AT};
use crate::sync::without;

use super::super::get::{ChunkError, ChunksEnd};
use super::super::{MetadataCache, Reader, Rejection};

/// Chunks of one value in flight at once: with up to 2 MiB each enough for any link.
const CHUNKS_AHEAD: usize = 8;

/// The progress of a value's chunks.
#[derive(Debug, Default)]
pub(super) struct ChunkProgress {
    /// The next to fetch, and its offset in the value.
    next: usize,
    at: usize,
    whole: usize,
    /// Requested, and not validated yet.
    in_flight: usize,
    failed: Option<ChunkError>,
}

/// A fetch of one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkFetch {
    pub(super) number: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) at: usize,
    pub(super) whole: usize,
}

/// The result of checking a chunk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkCheck {
    /// Valid.
    Right,
    /// Not in the known generation; the segment's must be fetched. The sum of its bytes.
    NeedsGeneration(u64),
}

impl ChunkProgress {
    pub(super) fn of(whole: usize) -> ChunkProgress {
        ChunkProgress { whole, ..ChunkProgress::default() }
    }

    /// Returns whether any are in flight.
    pub(super) fn are_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Returns the next chunk to fetch, if one is due.
    pub(super) fn next(&mut self, reader: &Reader, table: &[ChunkEntry]) -> Option<ChunkFetch> {
        if self.failed.is_some() || self.in_flight >= CHUNKS_AHEAD {
            return None;
        }
        let chunk = table.get(self.next)?;
        let head = encode(KeyHash(0), chunk.len).as_bytes().len() as u64;
        let geometry = &reader.geometry;
        let segment = geometry.segment_of(chunk.offset).filter(|_| chunk.offset.is_multiple_of(ALIGN_BYTES));
        let left = segment.map_or(0, |segment| geometry.segment_end(segment) - chunk.offset);
        if chunk.len == 0 || head + u64::from(chunk.len) > left {
            self.failed = Some(ChunkError::Damaged);
            return None;
        }
        let (number, at, len) = (self.next, self.at, chunk.len as usize);
        self.next += 1;
        self.at += len;
        self.in_flight += 1;
        Some(ChunkFetch { number, offset: chunk.offset + head, len, at, whole: self.whole })
    }

    /// Records that a chunk is valid or rejected.
    pub(super) fn finish_one(&mut self, end: Result<(), ChunkError>) {
        self.in_flight -= 1;
        if let Err(why) = end {
            self.failed = self.failed.or(Some(why));
        }
    }

    /// Returns the result of all chunks when none is in flight; `None` before.
    pub(super) fn end(&self, table: &[ChunkEntry]) -> Option<ChunksEnd> {
        if self.in_flight > 0 {
            return None;
        }
        match self.failed {
            Some(why) => Some(ChunksEnd::Failed(why)),
            None => (self.next == table.len()).then_some(ChunksEnd::Placed),
        }
    }
}

/// Checks the part of the value that this chunk must hold.
pub(super) fn check(
    reader: &Reader,
    secret: &Secret,
    metadata: &MetadataCache,
    owner: KeyHash,
    chunk: ChunkEntry,
    value: &[u8],
) -> ChunkCheck {
    let head = encode(owner, chunk.len);
    let sum = sum_of_parts(secret, (&head.as_bytes()[SUMMED_AT..], value));
    let segment = reader.geometry.segment_of(chunk.offset);
    let last = segment.and_then(|segment| metadata.last_generation(segment));
    // The table has the low half of a generation; the high half is nearly always 0.
    let generation = last
        .filter(|generation| *generation as u32 == chunk.generation)
        .unwrap_or(u64::from(chunk.generation));
    if is_whole(sum, generation, chunk, head.kind()) {
        return ChunkCheck::Right;
    }
    ChunkCheck::NeedsGeneration(sum)
}

/// As [`check`], with the segment's generation.
pub(super) fn check_generation(
    owner: KeyHash,
    chunk: ChunkEntry,
    sum: u64,
    generation: u64,
) -> Result<(), ChunkError> {
    if generation as u32 != chunk.generation && !without("generation") {
        return Err(ChunkError::Rejected(Rejection::Recycled));
    }
    let kind = encode(owner, chunk.len).kind();
    match is_whole(sum, generation, chunk, kind) {
        true => Ok(()),
        false => Err(ChunkError::Rejected(Rejection::Torn)),
    }
}

fn is_whole(sum: u64, generation: u64, chunk: ChunkEntry, kind: u16) -> bool {
    let is_whole = finish(sum, generation, chunk.offset, kind) == chunk.checksum;
    is_whole || without("checksum")
}

/// Returns the header of a chunk as written, without its state word and checksum.
fn encode(owner: KeyHash, len: u32) -> crate::item::Encoded {
    NewItem { cas: owner.0, value_len: len, ..NewItem::default() }.encode()
}
