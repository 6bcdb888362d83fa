//! The search of a key's slots in the index.

use crate::bounds::LINKS_READ_MAX;
use crate::directory::{Head, block_number_offset, head_offset};
use crate::format::{BLOCKS_PER_TABLE_MAX, BUCKET_BYTES, GROUP_BYTES};
use crate::geometry::BucketOffsets;
use crate::hash::Position;
use crate::reader::{FallbackReason, Location, MetadataCache, Reader, Rejection, Step};
use crate::size_class;
use crate::slot::Slot;
use crate::sync::without;

use super::{Candidate, Get, Rest, Stage};

impl<K: AsRef<[u8]>> Get<K> {
    pub(super) fn search(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        let partition = self.search.partition;
        let Some(head) = metadata.head(partition) else {
            return self.fetch_word(Stage::Head, head_offset(&reader.geometry, partition));
        };
        self.search.head = head;
        self.search.in_next = false;
        self.search.links = 0;
        self.search_table(reader, metadata, false)
    }

    /// Fetches home and neighbour buckets in the current table, or in the one that groups are moving to.
    pub(super) fn search_table(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        numbers_fetched: bool,
    ) -> Step {
        let geometry = &reader.geometry;
        let search = &mut self.search;
        let partition = search.partition;
        if metadata.head(partition) != Some(search.head) {
            return self.reject(reader, metadata, Rejection::HeadChanged);
        }
        let head = Head::from_word(search.head);
        let (table, groups) = match (search.in_next, head.next_groups) {
            (true, Some(next_groups)) => (1 - head.current, next_groups),
            _ => (head.current, head.groups),
        };
        let blocks = groups.div_ceil(1 << geometry.block_shift) as usize;
        let Position { group, bucket } = self.hash.position(geometry.partition_bits, groups);
        let block = (group >> geometry.block_shift) as usize;
        let Some(number) = metadata.block_number(partition, table, block) else {
            if numbers_fetched || blocks > BLOCKS_PER_TABLE_MAX || blocks == 0 {
                return self.head_is_wrong(reader, metadata, Rejection::HeadChanged);
            }
            let at = block_number_offset(geometry, partition, table, 0);
            return self.fetch_bytes(Stage::BlockNumbers, at, blocks as u64 * 4);
        };
        let Some(offset) = reader.group_offset(number, group) else {
            return self.head_is_wrong(reader, metadata, Rejection::HeadChanged);
        };
        search.places = BucketOffsets::of(offset, bucket);
        (search.moved, search.on_flash) = (false, false);
        search.stamp = metadata.stamp();
        let start = search.places.home.min(search.places.neighbour);
        self.fetch_bytes(Stage::Home, start, 2 * BUCKET_BYTES)
    }

    /// Discards the partition's metadata, which is wrong.
    pub(super) fn head_is_wrong(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        why: Rejection,
    ) -> Step {
        metadata.forget_partition(self.search.partition);
        self.reject(reader, metadata, why)
    }

    /// Returns whether few enough slots match. `may_link`: the last one may be a link.
    pub(super) fn take_slots(&mut self, start: u64, bytes: &[u8], may_link: bool) -> bool {
        let search = &mut self.search;
        let tag = self.hash.tag();
        (search.slots_len, search.slots_done) = (0, 0);
        // Branchless, because nearly all slots are other keys'.
        let (mut matching, mut moved) = (0u64, false);
        let words = bytes.as_chunks().0;
        let link = words.len().saturating_sub(1);
        // Software may deliver a word in two halves, the lower one first: that of an item with the upper half of MOVED
        // has the mark and a location.
        for (i, word) in words.iter().enumerate() {
            let slot = Slot(u64::from_le_bytes(*word));
            moved |= slot.is_special() && !(may_link && i == link && slot.is_link());
            search.on_flash |= slot.is_on_flash();
            matching |= u64::from(slot.matches(tag)) << i;
        }
        search.moved |= moved && !without("moved");
        while matching != 0 {
            let i = matching.trailing_zeros() as usize;
            matching &= matching - 1;
            let Some(next) = search.slots.get_mut(search.slots_len) else { return false };
            *next = (start + 8 * i as u64, slot_in(bytes, i));
            search.slots_len += 1;
        }
        true
    }

    /// Checks the next slot with the key's tag, or fetches the next of the key's buckets.
    pub(super) fn next_candidate(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        let search = &mut self.search;
        if search.slots_done < search.slots_len {
            let (slot_at, slot) = search.slots[search.slots_done];
            search.slots_done += 1;
            let Some(segment) = reader.geometry.segment_of(slot.offset()) else {
                return self.reject(reader, metadata, Rejection::Torn);
            };
            let bytes = size_class::bytes_max(slot.class()).try_into().unwrap_or(u32::MAX);
            let location = Location { offset: slot.offset(), generation: 0, bytes };
            let (stamp, requested_ns) = (search.stamp, search.requested_ns);
            self.candidate = Candidate { slot_at, slot, stamp, requested_ns, segment, location };
            return self.check_candidate(reader, metadata);
        }
        match search.rest {
            Rest::Overflow => {
                search.stamp = metadata.stamp();
                let places = search.places;
                self.fetch_bytes(Stage::Overflow, places.overflow, places.overflow_end - places.overflow)
            }
            Rest::Link { to, .. } if !reader.is_index(to, BUCKET_BYTES) || to % BUCKET_BYTES != 0 => {
                self.reject(reader, metadata, Rejection::Torn)
            }
            Rest::Link { slot_at, .. } if reader.is_remote() => self.fetch_word(Stage::LinkAgain, slot_at),
            Rest::Link { to, .. } => self.follow_link(metadata, to),
            Rest::Nothing => self.end_of_table(reader, metadata),
        }
    }

    /// Follows a link if its slot still holds it: of a slot that arrived in two halves, both have changed by now.
    pub(super) fn take_link_again(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        slot: Slot,
    ) -> Step {
        match self.search.rest {
            Rest::Link { to, .. } if slot == Slot::link(to) => self.follow_link(metadata, to),
            _ => self.reject(reader, metadata, Rejection::SlotChanged),
        }
    }

    fn follow_link(&mut self, metadata: &MetadataCache, to: u64) -> Step {
        let search = &mut self.search;
        search.stamp = metadata.stamp();
        search.links += 1;
        if search.links > LINKS_READ_MAX {
            return self.ask_server(FallbackReason::Contended);
        }
        self.fetch_bytes(Stage::Link, to, BUCKET_BYTES)
    }

    pub(super) fn end_of_table(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        // Whose items they are only the server can tell.
        if self.search.on_flash {
            return self.ask_server(FallbackReason::OnFlash);
        }
        if !self.search.moved {
            // A miss in tables that were replaced meanwhile is inconclusive.
            let head = head_offset(&reader.geometry, self.search.partition);
            return self.fetch_word(Stage::HeadStill, head);
        }
        if self.search.in_next || Head::from_word(self.search.head).next_groups.is_none() {
            return self.head_is_wrong(reader, metadata, Rejection::Moved);
        }
        self.search.in_next = true;
        self.search_table(reader, metadata, false)
    }
}

pub(super) fn slot_in(bytes: &[u8], i: usize) -> Slot {
    bytes.as_chunks().0.get(i).map_or(Slot::EMPTY, |word| Slot(u64::from_le_bytes(*word)))
}

impl Reader {
    /// Returns the offset of a group of the block with this number, if that is valid.
    pub(in crate::reader) fn group_offset(&self, number: u32, group: u32) -> Option<u64> {
        let within = u64::from(group & ((1 << self.geometry.block_shift) - 1)) * GROUP_BYTES;
        let offset = u64::from(number) * self.geometry.block_unit_bytes() + within;
        self.is_index(offset, GROUP_BYTES).then_some(offset)
    }

    /// Returns whether these bytes can be the index's: within one segment.
    fn is_index(&self, offset: u64, len: u64) -> bool {
        let segment = self.geometry.segment_of(offset);
        segment.is_some_and(|segment| len <= self.geometry.segment_end(segment) - offset)
    }
}
