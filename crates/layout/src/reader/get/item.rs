//! Reads one item and validates its bytes.

use crate::bounds::FETCHED_WHOLE_BYTES_MAX;
use crate::format::FLUSH_EPOCH_AT;
use crate::item::State;
use crate::reader::metadata_cache::CachedGeneration;
use crate::reader::{
    FallbackReason, Hit, Location, MetadataCache, Miss, ReadOutcome, Reader, Rejection, Step, Value, validate,
};
use crate::segment::generation_offset;
use crate::sync::without;

use super::{Candidate, Get, HEAD_BYTES_MAX, Stage, ValidatedItem};

impl<K: AsRef<[u8]>> Get<K> {
    /// Fetches the candidate's bytes if its slot was fetched after the known generation.
    pub(super) fn check_candidate(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        match metadata.generation(self.candidate.segment, self.candidate.stamp) {
            CachedGeneration::Before(generation) => {
                self.candidate.location.generation = generation;
                self.fetch_item(reader)
            }
            CachedGeneration::After => self.refetch_slot(metadata),
            CachedGeneration::Unknown => {
                self.fetch_generation(Stage::Generation, reader, metadata, self.candidate.segment)
            }
        }
    }

    pub(super) fn fetch_generation(
        &mut self,
        stage: Stage,
        reader: &Reader,
        metadata: &MetadataCache,
        segment: u32,
    ) -> Step {
        self.requested_count = metadata.count(segment);
        self.fetch_word(stage, generation_offset(&reader.geometry, segment))
    }

    pub(super) fn refetch_slot(&mut self, metadata: &MetadataCache) -> Step {
        self.candidate.stamp = metadata.stamp();
        self.fetch_word(Stage::SlotAgain, self.candidate.slot_at)
    }

    /// Returns the maximum bytes of the candidate's item.
    pub(super) fn item_bytes_max(&self, reader: &Reader) -> u64 {
        let Candidate { segment, location, .. } = self.candidate;
        let left = reader.geometry.segment_end(segment) - location.offset;
        u64::from(location.bytes).min(left)
    }

    pub(super) fn fetch_item(&mut self, reader: &Reader) -> Step {
        let (offset, len) = (self.candidate.location.offset, self.item_bytes_max(reader));
        if self.places && len > FETCHED_WHOLE_BYTES_MAX {
            return self.fetch_bytes(Stage::ItemHead, offset, HEAD_BYTES_MAX);
        }
        self.fetch_bytes(Stage::Item, offset, len)
    }

    pub(super) fn refetch_generation(&mut self, reader: &Reader, metadata: &MetadataCache) -> Step {
        self.fetch_generation(Stage::Still, reader, metadata, self.candidate.segment)
    }

    /// Stores the value of the key's item in place; the value of another key is not fetched. The generation reveals
    /// errors.
    pub(super) fn take_item_head(&mut self, reader: &Reader, metadata: &MetadataCache, bytes: &[u8]) -> Step {
        let offset = self.candidate.location.offset;
        let item = reader.head_in(bytes, self.item_bytes_max(reader)).ok();
        if item.is_some_and(|item| item.is_chained()) {
            return self.fetch_bytes(Stage::Item, offset, self.item_bytes_max(reader));
        }
        self.judged = item.map(|item| ValidatedItem {
            same_key: !item.is_chunk() && validate::key(&item, bytes) == self.key.as_ref(),
            value_at: item.payload_at() as usize,
            is_placed: true,
            chunks: Vec::new(),
            item,
        });
        match &self.judged {
            Some(judged) if judged.same_key => {
                let len = judged.item.value_len as usize;
                let offset = offset + judged.value_at as u64;
                self.request(Stage::Value, Step::Value { at: 0, offset, len, whole: len })
            }
            _ => self.refetch_generation(reader, metadata),
        }
    }

    pub(super) fn take_item(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        bytes: &[u8],
        settled: bool,
    ) -> Step {
        let Location { offset, generation, .. } = self.candidate.location;
        let item = reader.item_in(bytes, offset, generation).ok();
        self.judged = item.map(|item| ValidatedItem {
            same_key: !item.is_chunk() && validate::key(&item, bytes) == self.key.as_ref(),
            value_at: item.payload_at() as usize,
            is_placed: false,
            chunks: if item.is_chained() { validate::chunks(&item, bytes) } else { Vec::new() },
            item,
        });
        let is_its_own = without("behind") || self.is_state_sure(metadata, settled);
        if reader.is_remote() && item.is_some() && is_its_own {
            return self.judge(reader, metadata);
        }
        self.refetch_generation(reader, metadata)
    }

    /// Returns whether the state can be trusted without fetching the generation after it. No checksum covers the
    /// state, so it may come from a later item even if everything else is from this one.
    pub(super) fn is_state_sure(&self, metadata: &MetadataCache, settled: bool) -> bool {
        if self.by_location {
            // The generation was the same after the bytes if no counted segment was emptied since.
            return settled && metadata.stood(self.candidate.segment, self.candidate.location.generation);
        }
        // The state of another key's item does not matter; a dead item only causes another search.
        settled || self.judged.as_ref().is_some_and(|it| !it.same_key || it.item.state.has(State::DEAD))
    }

    pub(super) fn take_still(&mut self, reader: &Reader, metadata: &mut MetadataCache, word: u64) -> Step {
        if !self.is_still(word, self.candidate.location.generation) {
            metadata.set_generation(self.candidate.segment, word, self.requested_count);
            return self.reject(reader, metadata, Rejection::Recycled);
        }
        metadata.set_generation(self.candidate.segment, word, self.requested_count);
        match self.judged {
            Some(_) => self.judge(reader, metadata),
            None => self.reject(reader, metadata, Rejection::Torn),
        }
    }

    pub(super) fn is_still(&self, word: u64, generation: u64) -> bool {
        word == generation || without("generation")
    }

    /// Handles the bytes of one item.
    pub(super) fn judge(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        let Some(judged) = &self.judged else { return self.ask_server(FallbackReason::Damaged) };
        if !judged.same_key {
            if self.by_location {
                return self.reject(reader, metadata, Rejection::OtherKey);
            }
            return self.next_candidate(reader, metadata);
        }
        if judged.item.state.has(State::DEAD) && !without("dead_mark") {
            return self.reject(reader, metadata, Rejection::Dead);
        }
        self.judge_epoch(reader, metadata, false)
    }

    pub(super) fn judge_epoch(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        just_fetched: bool,
    ) -> Step {
        let Some(judged) = &self.judged else { return self.ask_server(FallbackReason::Damaged) };
        let line = match metadata.status_line() {
            Ok(line) => line,
            Err(reason) => return self.ask_server(reason),
        };
        let item = judged.item;
        if !item.state.in_epoch(line.flush_epoch) {
            if just_fetched {
                return self.gone(reader, metadata, Miss::Flushed, Rejection::Flushed);
            }
            // It may have been stored after a flush that followed the line's fetch.
            return self.fetch_word(Stage::FlushEpoch, FLUSH_EPOCH_AT);
        }
        if item.is_expired(metadata.now()) {
            return self.gone(reader, metadata, Miss::Expired, Rejection::Expired);
        }
        if item.is_chained() {
            return self.start_chunks(reader, metadata);
        }
        if judged.is_placed {
            return self.hit(Value::Placed);
        }
        self.hit(Value::Fetched { at: judged.value_at, len: item.value_len as usize })
    }

    pub(super) fn gone(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        miss: Miss,
        stale: Rejection,
    ) -> Step {
        if self.by_location {
            return self.reject(reader, metadata, stale);
        }
        self.done(ReadOutcome::Miss(miss))
    }

    pub(super) fn hit(&mut self, value: Value) -> Step {
        let Some(ValidatedItem { item, .. }) = self.judged else {
            return self.ask_server(FallbackReason::Damaged);
        };
        let frequency = (!self.by_location).then(|| self.candidate.slot.frequency());
        let location = Location { bytes: item.bytes() as u32, ..self.candidate.location };
        let hit = Hit::of(&item, frequency, value, location);
        self.done(ReadOutcome::Hit(hit))
    }
}
