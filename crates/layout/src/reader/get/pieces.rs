//! The pieces of a long value, one after the other.

use crate::item::{ALIGN_BYTES, HEADER_BYTES_MAX};
use crate::reader::{Known, Reader, Reason, Rejection, Step, Value};

use super::{Assembly, Get, Stage};

impl<K: AsRef<[u8]>> Get<K> {
    pub(super) fn start_pieces(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let Some(judged) = &mut self.judged else { return self.ask_server(Reason::Damaged) };
        let pieces = std::mem::take(&mut judged.pieces);
        let sum: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if sum != u64::from(judged.item.value_len) || sum > reader.geometry.region_bytes {
            return self.ask_server(Reason::Damaged);
        }
        let whole = sum as usize;
        self.assembly = Assembly { pieces, whole, ..Assembly::default() };
        if self.is_apart {
            self.stage = Stage::Pieces;
            return Step::Pieces { whole };
        }
        self.ask_piece(reader, known)
    }

    pub(super) fn ask_piece(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let geometry = &reader.geometry;
        let Some(piece) = self.assembly.pieces.get(self.assembly.next) else {
            return self.hit_of_pieces();
        };
        let segment = geometry.segment_of(piece.offset);
        let Some(segment) = segment.filter(|_| piece.offset.is_multiple_of(ALIGN_BYTES)) else {
            return self.ask_server(Reason::Damaged);
        };
        let generation = known.last_generation(segment).filter(|known| *known as u32 == piece.generation);
        let Some(generation) = generation else {
            if self.stage == Stage::PieceGeneration {
                return self.reject(reader, known, Rejection::Recycled);
            }
            self.assembly.segment = segment;
            return self.ask_generation(Stage::PieceGeneration, reader, known, segment);
        };
        let value_len = if self.places { 0 } else { u64::from(piece.len) };
        let len = HEADER_BYTES_MAX as u64 + value_len;
        let (offset, left) = (piece.offset, geometry.segment_end(segment) - piece.offset);
        (self.assembly.segment, self.assembly.generation) = (segment, generation);
        self.ask_bytes(Stage::Piece, offset, len.min(left))
    }

    pub(super) fn take_piece(&mut self, reader: &Reader, known: &mut Known, bytes: &[u8]) -> Step {
        let assembly = &mut self.assembly;
        let Some(piece) = assembly.pieces.get(assembly.next) else {
            return self.ask_server(Reason::Damaged);
        };
        let left = reader.geometry.segment_end(assembly.segment) - piece.offset;
        let item = match self.places {
            true => reader.head_in(bytes, left),
            false => reader.item_in(bytes, piece.offset, assembly.generation),
        };
        let item = item.ok().filter(|item| {
            let is_listed = item.value_len == piece.len && item.checksum == piece.checksum;
            item.is_piece() && !item.is_chained() && item.cas == self.hash.0 && is_listed
        });
        assembly.is_taken = item.is_some();
        if let (Some(item), true) = (item, self.places) {
            let (at, len) = (assembly.placed, item.value_len as usize);
            let offset = piece.offset + item.payload_at();
            assembly.placed += len;
            let step = Step::Value { at, offset, len, whole: assembly.whole };
            return self.ask(Stage::PieceValue, step);
        }
        if let Some(item) = item {
            let value = &bytes[item.payload_at() as usize..][..item.value_len as usize];
            assembly.value.extend_from_slice(value);
            if reader.is_remote() {
                return self.next_piece(reader, known);
            }
        }
        self.ask_piece_still(reader, known)
    }

    pub(super) fn ask_piece_still(&mut self, reader: &Reader, known: &Known) -> Step {
        self.ask_generation(Stage::PieceStill, reader, known, self.assembly.segment)
    }

    pub(super) fn take_piece_still(&mut self, reader: &Reader, known: &mut Known, word: u64) -> Step {
        if !self.is_still(word, self.assembly.generation) {
            known.set_generation(self.assembly.segment, word, self.asked_count);
            return self.reject(reader, known, Rejection::Recycled);
        }
        match self.assembly.is_taken {
            true => self.next_piece(reader, known),
            false => self.reject(reader, known, Rejection::Torn),
        }
    }

    pub(super) fn next_piece(&mut self, reader: &Reader, known: &mut Known) -> Step {
        self.assembly.next += 1;
        self.ask_piece(reader, known)
    }

    pub(super) fn hit_of_pieces(&mut self) -> Step {
        if self.places {
            return self.hit(Value::Placed);
        }
        self.hit(Value::Assembled)
    }
}
