//! The pieces of a long value, several on their way at a time, each put where it belongs.
//!
//! Only the value's part of a chunk is fetched. The other bytes under its checksum are known: the key's hash, and the
//! length in the table. So the checksum is computed over the value in place, and the value is stored once. The sum of
//! the bytes is kept, so that the generation may become known after them.

use crate::checksum::{Secret, finish, sum_of_parts};
use crate::hash::KeyHash;
use crate::item::{ALIGN_BYTES, NewItem, PieceEntry, SUMMED_AT};

use super::super::get::PiecesFailed;
use super::super::{Known, Reader, Rejection};

/// Pieces of one value on their way at once: with up to 2 MiB each enough for any link.
const PIECES_AHEAD: usize = 8;

/// How far the pieces of a value have come.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The next to be asked for, and where it belongs.
    next: usize,
    at: usize,
    whole: usize,
    /// Asked for, and not yet known to be right.
    under_way: usize,
    failed: Option<PiecesFailed>,
}

/// What is to be fetched of a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) number: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) at: usize,
    pub(super) whole: usize,
}

/// What came of looking at the bytes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// They are the piece.
    Right,
    /// Not in the generation that was known; the segment's is to be fetched. The sum of its bytes.
    Ask(u64),
}

impl Pieces {
    pub(super) fn of(whole: usize) -> Pieces {
        Pieces { whole, ..Pieces::default() }
    }

    /// Any are under way.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// The next to be fetched, if it is time for it.
    pub(super) fn next(&mut self, reader: &Reader, table: &[PieceEntry]) -> Option<Wanted> {
        if self.failed.is_some() || self.under_way >= PIECES_AHEAD {
            return None;
        }
        let piece = table.get(self.next)?;
        let head = encode(KeyHash(0), piece.len).as_bytes().len() as u64;
        let geometry = &reader.geometry;
        let segment = geometry.segment_of(piece.offset).filter(|_| piece.offset.is_multiple_of(ALIGN_BYTES));
        let left = segment.map_or(0, |segment| geometry.segment_end(segment) - piece.offset);
        if piece.len == 0 || head + u64::from(piece.len) > left {
            self.failed = Some(PiecesFailed::Damaged);
            return None;
        }
        let (number, at, len) = (self.next, self.at, piece.len as usize);
        self.next += 1;
        self.at += len;
        self.under_way += 1;
        Some(Wanted { number, offset: piece.offset + head, len, at, whole: self.whole })
    }

    /// One is right, or does not count.
    pub(super) fn end_one(&mut self, end: Result<(), PiecesFailed>) {
        self.under_way -= 1;
        if let Err(why) = end {
            self.failed = self.failed.or(Some(why));
        }
    }

    /// What all came to, when none is under way any more.
    pub(super) fn end(&self, table: &[PieceEntry]) -> Option<Result<(), PiecesFailed>> {
        if self.under_way > 0 {
            return None;
        }
        match self.failed {
            Some(why) => Some(Err(why)),
            None => (self.next == table.len()).then_some(Ok(())),
        }
    }
}

/// Looks at the part of the value that should be in this piece.
pub(super) fn look(
    reader: &Reader,
    secret: &Secret,
    known: &Known,
    owner: KeyHash,
    piece: PieceEntry,
    value: &[u8],
) -> Looked {
    let head = encode(owner, piece.len);
    let sum = sum_of_parts(secret, (&head.as_bytes()[SUMMED_AT..], value));
    let segment = reader.geometry.segment_of(piece.offset);
    let known = segment.and_then(|segment| known.last_generation(segment));
    // Of a generation the table has the low half; the other is hardly ever anything but 0.
    let generation =
        known.filter(|known| *known as u32 == piece.generation).unwrap_or(u64::from(piece.generation));
    if is_whole(sum, generation, piece, head.kind()) {
        return Looked::Right;
    }
    Looked::Ask(sum)
}

/// The same with the segment's generation.
pub(super) fn look_again(
    owner: KeyHash,
    piece: PieceEntry,
    sum: u64,
    generation: u64,
) -> Result<(), PiecesFailed> {
    if generation as u32 != piece.generation && !cfg!(fabcache_without = "generation") {
        return Err(PiecesFailed::Rejected(Rejection::Recycled));
    }
    let kind = encode(owner, piece.len).kind();
    match is_whole(sum, generation, piece, kind) {
        true => Ok(()),
        false => Err(PiecesFailed::Rejected(Rejection::Torn)),
    }
}

fn is_whole(sum: u64, generation: u64, piece: PieceEntry, kind: u16) -> bool {
    let is_whole = finish(sum, generation, piece.offset, kind) == piece.checksum;
    is_whole || cfg!(fabcache_without = "checksum")
}

/// The header of a piece, as it was written but for its state and checksum.
fn encode(owner: KeyHash, len: u32) -> crate::item::Encoded {
    NewItem { cas: owner.0, value_len: len, ..NewItem::default() }.encode()
}
