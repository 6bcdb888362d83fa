//! The chunks of a long value, one after the other.

use crate::item::{ALIGN_BYTES, HEADER_BYTES_MAX};
use crate::reader::{FallbackReason, MetadataCache, Reader, Rejection, Step, Value};

use super::{Assembly, Get, Stage};

impl<K: AsRef<[u8]>> Get<K> {
    pub(super) fn start_chunks(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        let Some(judged) = &mut self.judged else { return self.ask_server(FallbackReason::Damaged) };
        let chunks = std::mem::take(&mut judged.chunks);
        let sum: u64 = chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        if sum != u64::from(judged.item.value_len) || sum > reader.geometry.region_bytes {
            return self.ask_server(FallbackReason::Damaged);
        }
        let whole = sum as usize;
        self.assembly = Assembly { chunks, whole, ..Assembly::default() };
        if self.is_apart {
            self.stage = Stage::Chunks;
            return Step::Chunks { whole };
        }
        self.fetch_chunk(reader, metadata)
    }

    pub(super) fn fetch_chunk(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        let geometry = &reader.geometry;
        let Some(chunk) = self.assembly.chunks.get(self.assembly.next) else {
            return self.hit_of_chunks();
        };
        let segment = geometry.segment_of(chunk.offset);
        let Some(segment) = segment.filter(|_| chunk.offset.is_multiple_of(ALIGN_BYTES)) else {
            return self.ask_server(FallbackReason::Damaged);
        };
        let generation =
            metadata.last_generation(segment).filter(|generation| *generation as u32 == chunk.generation);
        let Some(generation) = generation else {
            if self.stage == Stage::ChunkGeneration {
                return self.reject(reader, metadata, Rejection::Recycled);
            }
            self.assembly.segment = segment;
            return self.fetch_generation(Stage::ChunkGeneration, reader, metadata, segment);
        };
        let value_len = if self.places { 0 } else { u64::from(chunk.len) };
        let len = HEADER_BYTES_MAX as u64 + value_len;
        let (offset, left) = (chunk.offset, geometry.segment_end(segment) - chunk.offset);
        (self.assembly.segment, self.assembly.generation) = (segment, generation);
        self.fetch_bytes(Stage::Chunk, offset, len.min(left))
    }

    pub(super) fn take_chunk(&mut self, reader: &Reader, metadata: &mut MetadataCache, bytes: &[u8]) -> Step {
        let assembly = &mut self.assembly;
        let Some(chunk) = assembly.chunks.get(assembly.next) else {
            return self.ask_server(FallbackReason::Damaged);
        };
        let left = reader.geometry.segment_end(assembly.segment) - chunk.offset;
        let item = match self.places {
            true => reader.head_in(bytes, left),
            false => reader.item_in(bytes, chunk.offset, assembly.generation),
        };
        let item = item.ok().filter(|item| {
            let is_listed = item.value_len == chunk.len && item.checksum == chunk.checksum;
            item.is_chunk() && !item.is_chained() && item.cas == self.hash.0 && is_listed
        });
        assembly.is_taken = item.is_some();
        if let (Some(item), true) = (item, self.places) {
            let (at, len) = (assembly.placed, item.value_len as usize);
            let offset = chunk.offset + item.payload_at();
            assembly.placed += len;
            let step = Step::Value { at, offset, len, whole: assembly.whole };
            return self.request(Stage::ChunkValue, step);
        }
        if let Some(item) = item {
            let value = &bytes[item.payload_at() as usize..][..item.value_len as usize];
            assembly.value.extend_from_slice(value);
            if reader.is_remote() {
                return self.next_chunk(reader, metadata);
            }
        }
        self.refetch_chunk_generation(reader, metadata)
    }

    pub(super) fn refetch_chunk_generation(&mut self, reader: &Reader, metadata: &MetadataCache) -> Step {
        self.fetch_generation(Stage::ChunkStill, reader, metadata, self.assembly.segment)
    }

    pub(super) fn take_chunk_still(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        word: u64,
    ) -> Step {
        if !self.is_still(word, self.assembly.generation) {
            metadata.set_generation(self.assembly.segment, word, self.requested_count);
            return self.reject(reader, metadata, Rejection::Recycled);
        }
        match self.assembly.is_taken {
            true => self.next_chunk(reader, metadata),
            false => self.reject(reader, metadata, Rejection::Torn),
        }
    }

    pub(super) fn next_chunk(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        self.assembly.next += 1;
        self.fetch_chunk(reader, metadata)
    }

    pub(super) fn hit_of_chunks(&mut self) -> Step {
        if self.places {
            return self.hit(Value::Placed);
        }
        self.hit(Value::Assembled)
    }
}
