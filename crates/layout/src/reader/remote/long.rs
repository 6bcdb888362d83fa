//! Long values: the chunks of one are fetched several at a time, each straight to its place.

use std::ops::Deref;

use super::chunks::{self, ChunkCheck};
use super::{Arrival, FetchPurpose, FetchState, Found, QueuedFetch, Remote, To};
use crate::reader::get::ChunkError;
use crate::reader::{FallbackReason, Rejection};
use crate::segment::generation_offset;

impl<B: Deref<Target = [u8]>> Remote<B> {
    pub(super) fn want_chunks(&mut self, at: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        while running.failed.is_none()
            && !self.is_gone
            && let Some(wanted) = running.chunks.next(&self.reader, running.get.chunks())
        {
            let chunks::ChunkFetch { number, offset, len, at, whole } = wanted;
            let fetching = FetchState { purpose: FetchPurpose::Chunk(owner, number), len };
            let to = To::Value { token: running.token, at, whole };
            self.wanted.push_back(QueuedFetch { fetching, offset, to });
        }
        if running.chunks.are_in_flight() {
            return;
        }
        if self.is_gone {
            return self.end(at, Found::Gone);
        }
        if let Some(reason) = running.failed {
            return self.end(at, Found::AskServer(reason));
        }
        if let Some(end) = running.chunks.end(running.get.chunks()) {
            let step = running.get.end_chunks(&self.reader, &mut self.metadata, end);
            self.take_order(at, step);
        }
    }

    pub(super) fn take_chunk(&mut self, at: usize, number: usize, arrival: Arrival<'_, B>, len: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        let Some(chunk) = running.get.chunks().get(number).copied() else { return };
        let looked = match &arrival {
            Arrival::Placed(value) if value.len() == len => {
                chunks::look(&self.reader, &self.secret, &self.metadata, running.get.hash(), chunk, value)
            }
            _ => return self.fail_chunk(at),
        };
        match (looked, self.reader.geometry.segment_of(chunk.offset)) {
            (ChunkCheck::Ask(sum), Some(segment)) if running.failed.is_none() && !self.is_gone => {
                let offset = generation_offset(&self.reader.geometry, segment);
                return self.want(FetchPurpose::ChunkGeneration(owner, number, sum), offset, 8, To::Probe);
            }
            (ChunkCheck::Right, _) => running.chunks.end_one(Ok(())),
            _ => running.chunks.end_one(Err(ChunkError::Rejected(Rejection::Torn))),
        }
        self.want_chunks(at);
    }

    pub(super) fn take_chunk_generation(
        &mut self,
        at: usize,
        number: usize,
        sum: u64,
        arrival: Arrival<'_, B>,
    ) {
        let Some(running) = &mut self.gets[at] else { return };
        let Some(chunk) = running.get.chunks().get(number).copied() else { return };
        let (Some(word), Some(segment)) = (arrival.word(), self.reader.geometry.segment_of(chunk.offset))
        else {
            return self.fail_chunk(at);
        };
        self.metadata.set_generation(segment, word, None);
        running.chunks.end_one(chunks::look_again(running.get.hash(), chunk, sum, word));
        self.want_chunks(at);
    }

    /// A chunk could not be fetched: the GET ends when nothing is written to its value any more.
    fn fail_chunk(&mut self, at: usize) {
        let Some(running) = &mut self.gets[at] else { return };
        running.chunks.end_one(Ok(()));
        running.failed = Some(FallbackReason::NotFetched);
        self.drop_unasked_chunks(at);
        self.want_chunks(at);
    }

    /// Drops fetches that were not posted yet.
    pub(super) fn drop_unasked_chunks(&mut self, at: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        self.wanted.retain(|wanted| match wanted.fetching.purpose {
            FetchPurpose::Chunk(purpose, _) | FetchPurpose::ChunkGeneration(purpose, ..)
                if purpose == owner =>
            {
                running.chunks.end_one(Ok(()));
                false
            }
            _ => true,
        });
    }
}
