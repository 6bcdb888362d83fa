//! The slot of an item on the flash tier.
//!
//! ```text
//!  bits    0..24  rest         low bits of the fraction of the hash by which the key has its position
//!         24..55  page         the item's first page on flash, in units of 4 KiB
//!         55..58  page class   pages to read
//!         58..64               as of an item in memory (slot.rs)
//! ```
//! A table that grows must know to which group each key goes. Items in memory are hashed anew; those on flash are not
//! read for that. Group and rest give back the fraction: its top `24 + floor(log2 groups)` bits, where `groups` is the
//! number at the partition's first item on flash. That number of bits is kept while the partition has such items, in
//! the line of its head ([`crate::directory::flash_bits_offset`]), and tables never shrink.
//!
//! A fraction of so many bits is an interval of hashes. Where one reaches into the next bucket, for one in 2^19 at first, and 2^16
//! at eightfold growth, the slot goes where keys of both buckets are searched for. Where one reaches into the next group,
//! for one in 2^24 at first, and 2^21 at eightfold growth, the group is unknown before the item was read.

use crate::format::BUCKET_BITS;
use crate::hash::{KeyHash, Position};
use crate::slot::{FORM_BITS, FREQUENCY_MAX, FREQUENCY_SHIFT, Slot};

/// Bits of the rest.
pub const REST_BITS: u32 = 24;
/// Bits of the page: 8 TiB.
pub const PAGE_BITS: u32 = 31;
/// Bits of the page class.
pub const PAGE_CLASS_BITS: u32 = 3;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
const _: () = assert!(REST_BITS + PAGE_BITS + PAGE_CLASS_BITS == FORM_BITS);
const _: () = assert!(PAGE_BYTES << PAGE_BITS == 8 << 40);

/// The contents of a slot whose item is on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashItem {
    /// The low bits of the fraction.
    pub rest: u32,
    /// The item's first page.
    pub page: u32,
    /// The class of the number of pages to read.
    pub page_class: u8,
}

impl FlashItem {
    /// Returns the item's slot.
    pub fn to_slot(self, frequency: u8) -> Slot {
        debug_assert!(self.rest >> REST_BITS == 0 && self.page >> PAGE_BITS == 0);
        debug_assert!(self.page_class >> PAGE_CLASS_BITS == 0 && frequency <= FREQUENCY_MAX);
        Slot(
            u64::from(self.rest)
                | u64::from(self.page) << REST_BITS
                | u64::from(self.page_class) << (REST_BITS + PAGE_BITS)
                | u64::from(frequency) << FREQUENCY_SHIFT
                | Slot::FLASH.0,
        )
    }

    /// Returns the item of a slot, if that is on flash.
    pub fn from_slot(slot: Slot) -> Option<FlashItem> {
        let bits = |from: u32, count: u32| slot.0 >> from & ((1 << count) - 1);
        (slot.is_on_flash() && !slot.is_special()).then(|| FlashItem {
            rest: bits(0, REST_BITS) as u32,
            page: bits(REST_BITS, PAGE_BITS) as u32,
            page_class: bits(REST_BITS + PAGE_BITS, PAGE_CLASS_BITS) as u8,
        })
    }
}

/// Returns the bits of the fractions of a partition that gets its first item on flash with this many groups.
pub fn fraction_bits(groups: u32) -> u32 {
    REST_BITS + groups.max(1).ilog2()
}

/// Returns the top `bits` of the hash below those of the partition.
pub fn fraction(hash: KeyHash, partition_bits: u32, bits: u32) -> u64 {
    (hash.0 << partition_bits) >> (u64::BITS - bits)
}

/// Returns the fraction of a key in a group of a table of `groups` groups, from its low [`REST_BITS`].
pub fn fraction_from(group: u32, groups: u32, rest: u32, bits: u32) -> u64 {
    // Rounded down: keys of a fraction that reaches over the border of two groups are in either.
    let first = ((u128::from(group) << bits) / u128::from(groups)) as u64;
    // A group has at most 2^24 fractions, those at its borders included, so one of them ends in these bits.
    first + (u64::from(rest).wrapping_sub(first) & ((1 << REST_BITS) - 1))
}

/// Returns the lowest hash of a fraction in a partition.
pub fn first_hash(fraction: u64, bits: u32, partition: usize, partition_bits: u32) -> KeyHash {
    KeyHash::first_of(partition, partition_bits, 0, 1).plus(fraction << (u64::BITS - partition_bits - bits))
}

/// Returns the positions of the first and the last key of a fraction in a table of `groups` groups, if all keys are in one group.
/// They are in one bucket or two.
pub fn positions(fraction: u64, bits: u32, groups: u32) -> Option<(Position, Position)> {
    let buckets = u128::from(groups) << BUCKET_BITS;
    let first = Position::of((u128::from(fraction) * buckets) >> bits);
    let last = Position::of(((u128::from(fraction) + 1) * buckets - 1) >> bits);
    (first.group == last.group).then_some((first, last))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_round_trip(rest in 0u32..1 << 24, page in 0u32..1 << 31, page_class in 0u8..8, frequency in 0u8..8) {
            let item = FlashItem { rest, page, page_class };
            let slot = item.to_slot(frequency);
            prop_assert_eq!((FlashItem::from_slot(slot), slot.frequency()), (Some(item), frequency));
            prop_assert!(slot.is_item() && !slot.is_special() && !slot.matches(slot.tag()));
            prop_assert_eq!(FlashItem::from_slot(slot.with_overflowed().with_frequency(3)), Some(item));
        }

        #[test]
        fn the_first_hash_of_a_fraction_has_it(hash: u64, bits in 0u32..11, wide in 24u32..38) {
            let hash = KeyHash(hash);
            let known = fraction(hash, bits, wide);
            let first = first_hash(known, wide, hash.partition(bits), bits);
            prop_assert_eq!((first.partition(bits), fraction(first, bits, wide)), (hash.partition(bits), known));
            prop_assert!(first <= hash);
        }

        #[test]
        fn group_and_rest_give_the_position_in_grown_tables(
            hash: u64, bits in 0u32..11, groups in 1u32..6446, growth in 0u32..7 * 16,
        ) {
            let hash = KeyHash(hash);
            let wide = fraction_bits(groups);
            let grown = groups + groups * growth / 16;
            let known = fraction(hash, bits, wide);
            let position = hash.position(bits, grown);
            let rest = (known & ((1 << REST_BITS) - 1)) as u32;
            prop_assert_eq!(fraction_from(position.group, grown, rest, wide), known);
            let Some((at, last)) = positions(known, wide, grown) else { return Ok(()) };
            prop_assert!(position == at || position == last);
            prop_assert!(last.bucket - at.bucket <= 1);
        }
    }

    #[test]
    fn fractions_at_the_borders_of_groups_are_known() {
        for groups in 1..500 {
            let wide = fraction_bits(1 + groups / 3);
            for group in 1..groups {
                let border = KeyHash::first_of(0, 0, group, groups).0;
                for hash in [border - 1, border].map(KeyHash) {
                    let known = fraction(hash, 0, wide);
                    let rest = (known & ((1 << REST_BITS) - 1)) as u32;
                    let found = fraction_from(hash.group(0, groups), groups, rest, wide);
                    assert_eq!(found, known, "group {group} of {groups}");
                }
            }
        }
    }

    #[test]
    fn few_positions_are_unknown() {
        let mut random = 1u64;
        for (groups, growth, most) in [(100, 1, 1), (1000, 8, 2), (6445, 8, 2)] {
            let wide = fraction_bits(groups);
            let unknown = (0..1 << 20).filter(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let hash = KeyHash(random ^ random >> 29);
                positions(fraction(hash, 5, wide), wide, groups * growth).is_none()
            });
            let unknown = unknown.count();
            assert!(unknown <= 4 * most, "{unknown} of 2^20, {groups} x {growth}");
        }
    }
}
