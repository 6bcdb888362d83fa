//! The key hash: xxh3 (64 bits) with the region's seed, stable across versions, computed by clients too.
//!
//! ```text
//!  63 ............................................................. 12  11 .... 0
//!  partition (top bits), then position in its table: group, bucket      tag (12)
//! ```
//! The position is a fraction of the table's home buckets, not a remainder, so that a table may have any number of groups,
//! keys stay in hash order when it grows, and a slot that knows more bits of the fraction tells where it belongs after growth.

use crate::format::BUCKET_BITS;
use crate::slot::TAG_BITS;

/// Where a key belongs in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The group.
    pub group: u32,
    /// The home bucket in the group.
    pub bucket: usize,
}

impl Position {
    #[inline]
    pub(crate) fn of(bucket_of_table: u128) -> Position {
        let bucket = bucket_of_table as u32;
        Position { group: bucket >> BUCKET_BITS, bucket: (bucket & ((1 << BUCKET_BITS) - 1)) as usize }
    }
}

/// The hash of a key under one region's seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hashes `key` with the seed of the region's header.
    #[inline]
    pub fn of(key: &[u8], seed: u64) -> KeyHash {
        KeyHash(xxhash_rust::xxh3::xxh3_64_with_seed(key, seed))
    }

    /// Returns which of `1 << bits` partitions.
    #[inline]
    pub fn partition(self, bits: u32) -> usize {
        if bits == 0 { 0 } else { (self.0 >> (64 - bits)) as usize }
    }

    /// Returns the position in the partition's table of `groups` groups.
    #[inline]
    pub fn position(self, partition_bits: u32, groups: u32) -> Position {
        let buckets = u64::from(groups) << BUCKET_BITS;
        Position::of((u128::from(self.0 << partition_bits) * u128::from(buckets)) >> 64)
    }

    /// Returns which of `groups` groups in the partition's table.
    #[inline]
    pub fn group(self, partition_bits: u32, groups: u32) -> u32 {
        self.position(partition_bits, groups).group
    }

    /// Returns the hash so far above.
    pub(crate) fn plus(self, distance: u64) -> KeyHash {
        KeyHash(self.0 + distance)
    }

    /// Returns the hash bits that a slot stores.
    #[inline]
    pub fn tag(self) -> u16 {
        (self.0 & ((1 << TAG_BITS) - 1)) as u16
    }

    /// Returns the smallest hash of group `group` out of `groups` in partition `partition`; for `group == groups` the
    /// start of the next partition (0 past the last, as it wraps).
    pub fn first_of(partition: usize, partition_bits: u32, group: u32, groups: u32) -> KeyHash {
        let span = 1u128 << (64 - partition_bits);
        let start = partition as u128 * span;
        let within = (u128::from(group) * span).div_ceil(u128::from(groups));
        KeyHash((start + within) as u64)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn groups_are_hash_ranges(hash: u64, bits in 0u32..12, groups in 1u32..5000) {
            let h = KeyHash(hash);
            let (p, g) = (h.partition(bits), h.group(bits, groups));
            prop_assert!(g < groups);
            prop_assert!(KeyHash::first_of(p, bits, g, groups) <= h);
            let end = KeyHash::first_of(p, bits, g + 1, groups);
            prop_assert!(end.0 == 0 || h < end);
        }

        #[test]
        fn buckets_are_in_hash_order(hash: u64, other: u64, bits in 0u32..12, groups in 1u32..5000) {
            let [first, second] = [hash.min(other), hash.max(other)].map(KeyHash);
            let [first, second] = [first, second].map(|h| {
                let position = h.position(bits, groups);
                (h.partition(bits), position.group, position.bucket)
            });
            prop_assert!(first <= second);
            prop_assert!(first.2 < 1 << BUCKET_BITS);
        }
    }
}
