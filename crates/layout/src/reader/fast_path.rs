//! GET fast path: a GET by key in a mapped region, without a step for each fetch.
//!
//! It fetches what [`Get`](super::Get) would, in the same order and with the same checks. It answers only in simple
//! cases: a complete live item, or no item in buckets of which nothing moved, overflowed, or went to flash. In all others
//! [`Get`](super::Get) starts anew.

use crate::bucket::Bucket;
use crate::directory::head_offset;
use crate::hash::KeyHash;
use crate::item::{HEADER_BYTES_MAX, Item, State};
use crate::memory::Memory;
use crate::segment::generation_offset;
use crate::size_class;
use crate::slot::Slot;
use crate::sync::{Ordering, fence, without};

use super::metadata_cache::CachedGeneration;
use super::{Hit, Location, MetadataCache, Miss, ReadOutcome, Reader, Value};

/// The result of probing one slot's item.
enum Probe {
    Hit(Hit),
    OtherKey,
    NotPlain,
}

impl Reader {
    /// Returns the result of a GET in the common case; a value replaces the contents of `value`. `metadata` is of the
    /// same region, and its batch began after this GET was requested, or together with it.
    #[inline]
    pub(super) fn try_fast(
        &self,
        metadata: &MetadataCache,
        memory: &Memory,
        key: &[u8],
        hash: KeyHash,
        value: &mut Vec<u8>,
    ) -> Option<ReadOutcome> {
        let flush_epoch = metadata.status_line().ok().filter(|_| !self.is_remote())?.flush_epoch;
        let partition = hash.partition(self.geometry.partition_bits);
        let head = metadata.head(partition)?;
        let places = self.places(metadata, hash)?;
        let mut is_overflowed = false;
        for at in [places.home, places.neighbour] {
            let bucket = Bucket::load(memory, at);
            // Of the special slots only moved ones matter here: links are stored elsewhere.
            if bucket.has_special_or_flash() && !without("moved") {
                return None;
            }
            for (_, slot) in bucket.items(hash.tag()) {
                match self.glimpse(metadata, memory, key, (slot, metadata.stamp()), flush_epoch, value) {
                    Probe::Hit(hit) => return Some(ReadOutcome::Hit(hit)),
                    Probe::OtherKey => {}
                    Probe::NotPlain => return None,
                }
            }
            is_overflowed |= at == places.home && bucket.slots()[0].is_overflowed();
        }
        // A miss in tables that were replaced meanwhile is inconclusive.
        let is_still = || memory.load(head_offset(&self.geometry, partition), Ordering::Acquire) == head;
        (!is_overflowed && is_still()).then_some(ReadOutcome::Miss(Miss::Absent))
    }

    /// Like [`Reader::try_fast`], for the item of this slot, which was fetched after the batch had started, when the
    /// metadata had this stamp.
    #[inline]
    pub(super) fn try_fast_at(
        &self,
        metadata: &MetadataCache,
        memory: &Memory,
        key: &[u8],
        (slot, stamp): (Slot, u64),
        value: &mut Vec<u8>,
    ) -> Option<ReadOutcome> {
        let flush_epoch =
            metadata.status_line().ok().filter(|_| slot.is_item() && !self.is_remote())?.flush_epoch;
        match self.glimpse(metadata, memory, key, (slot, stamp), flush_epoch, value) {
            Probe::Hit(hit) => Some(ReadOutcome::Hit(hit)),
            Probe::OtherKey | Probe::NotPlain => None,
        }
    }

    /// Reads the item of a slot that was fetched when the metadata had this stamp.
    /// Inlined always: otherwise the result goes through memory, a twentieth of a read.
    #[inline(always)]
    fn glimpse(
        &self,
        metadata: &MetadataCache,
        memory: &Memory,
        key: &[u8],
        (slot, stamp): (Slot, u64),
        flush_epoch: u64,
        value: &mut Vec<u8>,
    ) -> Probe {
        let offset = slot.offset();
        let Some(segment) = self.geometry.segment_of(offset) else {
            return Probe::NotPlain;
        };
        let CachedGeneration::Before(generation) = metadata.generation(segment, stamp) else {
            return Probe::NotPlain;
        };
        let bytes_max = size_class::bytes_max(slot.class()).min(self.geometry.segment_end(segment) - offset);
        if bytes_max < HEADER_BYTES_MAX as u64 {
            return Probe::NotPlain;
        }
        let mut head = [0; HEADER_BYTES_MAX];
        memory.copy_out(offset, &mut head);
        let item = Item::parse(&head);
        let is_plain = !item.is_chunk() && !item.is_chained();
        if !is_plain || item.payload_at() + item.payload_len() > bytes_max {
            return Probe::NotPlain;
        }
        let same_key = usize::from(item.key_len) == key.len() && memory.equals(offset + item.key_at(), key);
        value.clear();
        if same_key {
            if value.capacity() == 0 {
                // Reserve the full length at once: growing to it takes longer.
                *value = Vec::with_capacity(item.value_len as usize);
            }
            memory.append_to(offset + item.payload_at(), item.value_len as usize, value);
        }
        // The generation is fetched after everything else.
        fence(Ordering::Acquire);
        let still = memory.load(generation_offset(&self.geometry, segment), Ordering::Acquire);
        if still != generation && !without("generation") {
            return Probe::NotPlain;
        }
        if !same_key {
            return Probe::OtherKey;
        }
        let is_dead = item.state.has(State::DEAD) && !without("dead_mark");
        if is_dead || !item.state.in_epoch(flush_epoch) || item.is_expired(metadata.now()) {
            return Probe::NotPlain;
        }
        let location = Location { offset, generation, bytes: item.bytes() as u32 };
        Probe::Hit(Hit::of(&item, Some(slot.frequency()), Value::Placed, location))
    }
}
