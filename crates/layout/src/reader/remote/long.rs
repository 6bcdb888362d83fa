//! Long values: several chunks are fetched at a time, each straight into its place.

use std::ops::Deref;

use super::Remote;
use super::chunks::{self, ChunkCheck};
use super::fetch::{Arrival, FetchPurpose, FetchRequest, To};
use crate::reader::get::ChunkError;
use crate::reader::{FallbackReason, ReadOutcome, Rejection};
use crate::segment::generation_offset;

impl<B: Deref<Target = [u8]>, T> Remote<B, T> {
    pub(super) fn queue_chunks(&mut self, at: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        while running.failed.is_none()
            && !self.is_gone
            && let Some(wanted) = running.chunks.next(&self.reader, running.get.chunks())
        {
            let chunks::ChunkFetch { number, offset, len, at, whole } = wanted;
            let purpose = FetchPurpose::Chunk(owner, number);
            let to = To::Value { get: running.id, at, whole };
            self.queue.push_back(FetchRequest { purpose, offset, len, to });
        }
        if running.chunks.are_in_flight() {
            return;
        }
        if self.is_gone {
            return self.complete(at, ReadOutcome::Gone);
        }
        if let Some(reason) = running.failed {
            return self.complete(at, ReadOutcome::Fallback(reason));
        }
        if let Some(end) = running.chunks.end(running.get.chunks()) {
            let step = running.get.end_chunks(&self.reader, &mut self.metadata, end);
            self.apply_step(at, step);
        }
    }

    pub(super) fn take_chunk(&mut self, at: usize, number: usize, arrival: Arrival<'_, B>, len: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        let Some(chunk) = running.get.chunks().get(number).copied() else { return };
        let looked = match &arrival {
            Arrival::Placed(value) if value.len() == len => {
                chunks::check(&self.reader, &self.secret, &self.metadata, running.get.hash(), chunk, value)
            }
            _ => return self.fail_chunk(at),
        };
        match (looked, self.reader.geometry.segment_of(chunk.offset)) {
            (ChunkCheck::NeedsGeneration(sum), Some(segment))
                if running.failed.is_none() && !self.is_gone =>
            {
                let offset = generation_offset(&self.reader.geometry, segment);
                return self.queue_fetch(
                    FetchPurpose::ChunkGeneration(owner, number, sum),
                    offset,
                    8,
                    To::Probe,
                );
            }
            (ChunkCheck::Right, _) => running.chunks.finish_one(Ok(())),
            _ => running.chunks.finish_one(Err(ChunkError::Rejected(Rejection::Torn))),
        }
        self.queue_chunks(at);
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
        running.chunks.finish_one(chunks::check_generation(running.get.hash(), chunk, sum, word));
        self.queue_chunks(at);
    }

    /// Handles a failed chunk fetch: the GET ends once nothing is written to its value any more.
    fn fail_chunk(&mut self, at: usize) {
        let Some(running) = &mut self.gets[at] else { return };
        running.chunks.finish_one(Ok(()));
        running.failed = Some(FallbackReason::NotFetched);
        self.drop_queued_chunks(at);
        self.queue_chunks(at);
    }

    /// Drops fetches that were not posted yet.
    pub(super) fn drop_queued_chunks(&mut self, at: usize) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        self.queue.retain(|request| match request.purpose {
            FetchPurpose::Chunk(purpose, _) | FetchPurpose::ChunkGeneration(purpose, ..)
                if purpose == owner =>
            {
                running.chunks.finish_one(Ok(()));
                false
            }
            _ => true,
        });
    }
}
