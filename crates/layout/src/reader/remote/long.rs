//! Long values: the pieces of one are fetched several at a time, each straight to its place.

use std::ops::Deref;

use super::pieces::{self, Looked};
use super::{Arrival, Fetching, Found, Remote, To, Wanted, Whose};
use crate::reader::get::PiecesFailed;
use crate::reader::{Reason, Rejection};
use crate::segment::generation_offset;

impl<B: Deref<Target = [u8]>> Remote<B> {
    pub(super) fn want_pieces(&mut self, at: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        while running.failed.is_none()
            && !self.is_gone
            && let Some(wanted) = running.pieces.next(&self.reader, running.get.pieces())
        {
            let pieces::Wanted { number, offset, len, at, whole } = wanted;
            let fetching = Fetching { whose: Whose::Piece(owner, number), len };
            let to = To::Value { token: running.token, at, whole };
            self.wanted.push_back(Wanted { fetching, offset, to });
        }
        if running.pieces.are_under_way() {
            return;
        }
        if self.is_gone {
            return self.end(at, Found::Gone);
        }
        if let Some(reason) = running.failed {
            return self.end(at, Found::AskServer(reason));
        }
        if let Some(end) = running.pieces.end(running.get.pieces()) {
            let step = running.get.end_pieces(&self.reader, &mut self.known, end);
            self.take_order(at, step);
        }
    }

    pub(super) fn take_piece(&mut self, at: usize, number: usize, arrival: Arrival<'_, B>, len: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        let Some(piece) = running.get.pieces().get(number).copied() else { return };
        let looked = match &arrival {
            Arrival::Placed(value) if value.len() == len => {
                pieces::look(&self.reader, &self.secret, &self.known, running.get.hash(), piece, value)
            }
            _ => return self.fail_piece(at),
        };
        match (looked, self.reader.geometry.segment_of(piece.offset)) {
            (Looked::Ask(sum), Some(segment)) if running.failed.is_none() && !self.is_gone => {
                let offset = generation_offset(&self.reader.geometry, segment);
                return self.want(Whose::PieceGeneration(owner, number, sum), offset, 8, To::Glance);
            }
            (Looked::Right, _) => running.pieces.end_one(Ok(())),
            _ => running.pieces.end_one(Err(PiecesFailed::Rejected(Rejection::Torn))),
        }
        self.want_pieces(at);
    }

    pub(super) fn take_piece_generation(
        &mut self,
        at: usize,
        number: usize,
        sum: u64,
        arrival: Arrival<'_, B>,
    ) {
        let Some(running) = &mut self.gets[at] else { return };
        let Some(piece) = running.get.pieces().get(number).copied() else { return };
        let (Some(word), Some(segment)) = (arrival.word(), self.reader.geometry.segment_of(piece.offset))
        else {
            return self.fail_piece(at);
        };
        self.known.set_generation(segment, word, None);
        running.pieces.end_one(pieces::look_again(running.get.hash(), piece, sum, word));
        self.want_pieces(at);
    }

    /// A piece could not be fetched: the GET ends when nothing is written to its value any more.
    fn fail_piece(&mut self, at: usize) {
        let Some(running) = &mut self.gets[at] else { return };
        running.pieces.end_one(Ok(()));
        running.failed = Some(Reason::NotFetched);
        self.drop_unasked_pieces(at);
        self.want_pieces(at);
    }

    /// Drops fetches that were not posted yet.
    pub(super) fn drop_unasked_pieces(&mut self, at: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        self.wanted.retain(|wanted| match wanted.fetching.whose {
            Whose::Piece(whose, _) | Whose::PieceGeneration(whose, ..) if whose == owner => {
                running.pieces.end_one(Ok(()));
                false
            }
            _ => true,
        });
    }
}
