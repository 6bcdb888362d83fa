//! Batched prefetch for the keys to be read next. A hint only: correctness never depends on it.
//!
//! All lines of one kind are requested in one loop that does nothing else. A processor can wait for many cache lines
//! together, and for the page-table walks that lead there, only within its out-of-order window, and reading one key
//! exceeds that window.

use crate::bucket::Bucket;
use crate::directory::Head;
use crate::format::BUCKET_BYTES;
use crate::geometry::BucketOffsets;
use crate::hash::{KeyHash, Position};
use crate::item::HEADER_BYTES_MAX;
use crate::memory::Memory;
use crate::size_class;
use crate::slot::Slot;

use super::{MetadataCache, Reader};

/// Keys prefetched together: about as many lines as a core can wait for, and few enough to stay in the first-level
/// cache until they are read.
pub const PREFETCHED_KEYS: usize = 32;
/// The bytes of an item to prefetch: all of a short one. For long ones the hardware prefetcher takes over.
const ITEM_BYTES_MAX: u64 = 256;
const _: () = assert!(ITEM_BYTES_MAX >= HEADER_BYTES_MAX as u64);

/// Returns the first item with this tag, or an empty slot if no item has it or keys are being moved.
#[inline]
fn probable(bucket: &Bucket, tag: u16) -> Slot {
    let first = bucket.items(tag).next().filter(|_| !bucket.has_special());
    first.map_or(Slot::EMPTY, |(_, slot)| slot)
}

impl Reader {
    /// Returns the offset of the key's buckets, by the cached metadata.
    #[inline]
    pub(super) fn places(&self, metadata: &MetadataCache, hash: KeyHash) -> Option<BucketOffsets> {
        let bits = self.geometry.partition_bits;
        let partition = hash.partition(bits);
        let head = Head::from_word(metadata.head(partition)?);
        let Position { group, bucket } = hash.position(bits, head.groups);
        let block = (group >> self.geometry.block_shift) as usize;
        let number = metadata.block_number(partition, head.current, block)?;
        Some(BucketOffsets::of(self.group_offset(number, group)?, bucket))
    }

    /// Prefetches the buckets of these hashes, then their items or neighbour buckets. Stores the likely slot of each
    /// key in `slots`, as [`Reader::try_fast_at`] expects it, or an empty slot.
    pub(super) fn prefetch(
        &self,
        metadata: &MetadataCache,
        memory: &Memory,
        hashes: &[KeyHash],
        slots: &mut [Slot],
    ) {
        let mut homes = [0; PREFETCHED_KEYS];
        let mut next = [(0, 0); PREFETCHED_KEYS];
        for ((hash, home), next) in hashes.iter().zip(&mut homes).zip(&mut next) {
            if let Some(places) = self.places(metadata, *hash) {
                (*home, *next) = (places.home, (places.neighbour, BUCKET_BYTES));
            }
        }
        for home in &homes[..hashes.len()] {
            memory.prefetch(*home);
        }
        for (((hash, home), next), seen) in hashes.iter().zip(homes).zip(&mut next).zip(slots) {
            *seen = if home == 0 { Slot::EMPTY } else { probable(&Bucket::load(memory, home), hash.tag()) };
            if seen.is_item() {
                *next = (seen.offset(), size_class::bytes_max(seen.class()).min(ITEM_BYTES_MAX));
            }
        }
        for (offset, len) in &next[..hashes.len()] {
            memory.prefetch_range(*offset, *len);
        }
    }
}
