//! The directory: offsets of the groups of each partition.
//!
//! Keys are spread over partitions by their top hash bits. A partition has two tables, each an array of block
//! numbers; one is current. To grow, the server fills the other table with fresh blocks, moves group after group
//! there (a moved group's slots all read MOVED), and makes it current. One word, the head, says which is which.
//!
//! ```text
//!  bits   0..17  groups in the current table
//!        17..34  groups in the other table while migrating
//!           34   which table is current
//!           35   migrating
//!        36..64  version: changes with every change of the head
//! ```
//! Written by the server's one migrating thread with a release store that pairs with readers' acquire loads. A reader
//! that finds the head changed after its search (checked after an acquire fence) starts again.

use crate::hash::KeyHash;

use crate::format::{
    BLOCKS_PER_TABLE_MAX, FLASH_BITS_AT, GROUP_BYTES, GROUPS_BITS, GROUPS_MAX, HEAD_BYTES, PARTITION_BYTES,
    TABLE_BYTES, VERSION_BITS,
};
use crate::geometry::{BucketOffsets, Geometry};
use crate::memory::Memory;
use crate::sync::Ordering;

/// The state of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which table is current: 0 or 1.
    pub current: usize,
    /// Groups in it.
    pub groups: u32,
    /// Groups in the other table, while groups move there.
    pub next_groups: Option<u32>,
    /// Changes with every change.
    pub version: u32,
}

impl Head {
    /// Returns the head as a word.
    pub fn to_word(self) -> u64 {
        debug_assert!(self.groups <= GROUPS_MAX && self.current <= 1);
        u64::from(self.groups)
            | u64::from(self.next_groups.unwrap_or(0)) << GROUPS_BITS
            | (self.current as u64) << (2 * GROUPS_BITS)
            | u64::from(self.next_groups.is_some()) << (2 * GROUPS_BITS + 1)
            | u64::from(self.version) << (2 * GROUPS_BITS + 2)
    }

    /// Returns the fields of the word.
    #[inline]
    pub fn from_word(word: u64) -> Head {
        let groups = |word: u64| word as u32 & GROUPS_MAX;
        let migrating = word >> (2 * GROUPS_BITS + 1) & 1 == 1;
        Head {
            groups: groups(word),
            next_groups: migrating.then(|| groups(word >> GROUPS_BITS)),
            current: (word >> (2 * GROUPS_BITS) & 1) as usize,
            version: (word >> (2 * GROUPS_BITS + 2)) as u32,
        }
    }

    /// Returns the next version.
    pub fn bumped(self) -> Head {
        Head { version: (self.version + 1) & ((1 << VERSION_BITS) - 1), ..self }
    }
}

/// Returns the offset of a partition's head.
#[inline]
pub fn head_offset(geometry: &Geometry, partition: usize) -> u64 {
    geometry.directory + partition as u64 * PARTITION_BYTES
}

/// Returns the offset of the eight bytes whose lowest is the number of bits in the fractions of the partition's items on
/// flash ([`crate::flash_slot`]), 0 without such items.
pub fn flash_bits_offset(geometry: &Geometry, partition: usize) -> u64 {
    head_offset(geometry, partition) + FLASH_BITS_AT
}

/// Returns the offset of the number of block `block` of a table.
#[inline]
pub fn block_number_offset(geometry: &Geometry, partition: usize, table: usize, block: usize) -> u64 {
    debug_assert!(block < BLOCKS_PER_TABLE_MAX && table <= 1);
    head_offset(geometry, partition) + HEAD_BYTES + table as u64 * TABLE_BYTES + block as u64 * 4
}

/// Loads a partition's head.
#[inline]
pub fn load_head(memory: &Memory, geometry: &Geometry, partition: usize) -> u64 {
    memory.load(head_offset(geometry, partition), Ordering::Acquire)
}

/// Returns the offset of a group of a table, or `None`. The block number that it
/// reads may be stale or torn if the head has changed since; the offset is inside the region in any case.
#[inline]
pub fn group_offset(
    memory: &Memory,
    geometry: &Geometry,
    partition: usize,
    table: usize,
    group: u32,
) -> Option<u64> {
    let block = (group >> geometry.block_shift) as usize;
    if block >= BLOCKS_PER_TABLE_MAX {
        return None;
    }
    let number = memory.load_u32(block_number_offset(geometry, partition, table, block), Ordering::Relaxed);
    let within = u64::from(group & ((1 << geometry.block_shift) - 1)) * GROUP_BYTES;
    let offset = u64::from(number) * geometry.block_unit_bytes() + within;
    memory.contains(offset, GROUP_BYTES).then_some(offset)
}

/// Returns the offsets of the buckets of `hash` in a table of `groups` groups, or `None`; see [`group_offset`].
#[inline]
pub fn bucket_offsets(
    memory: &Memory,
    geometry: &Geometry,
    hash: KeyHash,
    table: usize,
    groups: u32,
) -> Option<BucketOffsets> {
    let partition = hash.partition(geometry.partition_bits);
    let position = hash.position(geometry.partition_bits, groups);
    let group = group_offset(memory, geometry, partition, table, position.group)?;
    Some(BucketOffsets::of(group, position.bucket))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_round_trip(groups in 0..=GROUPS_MAX, next in prop::option::of(0..=GROUPS_MAX), current in 0usize..2, version in 0u32..1 << VERSION_BITS) {
            let head = Head { current, groups, next_groups: next, version };
            prop_assert_eq!(Head::from_word(head.to_word()), head);
            prop_assert_ne!(head.bumped().version, version);
        }
    }
}
