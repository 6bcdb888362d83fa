//! A bucket of the index, read at once.

use crate::format::SLOTS_PER_BUCKET;
use crate::memory::Memory;
use crate::slot::Slot;

/// The slots of a bucket, as each was when it was loaded.
#[derive(Clone, Copy, Debug)]
pub struct Bucket([u64; SLOTS_PER_BUCKET]);

impl Bucket {
    /// Loads the slots at `offset` in any order, each with acquire.
    #[inline]
    pub fn load(memory: &Memory, offset: u64) -> Bucket {
        Bucket(memory.load_line(offset))
    }

    /// Returns the slots.
    #[inline]
    pub fn slots(&self) -> [Slot; SLOTS_PER_BUCKET] {
        self.0.map(Slot)
    }

    /// Returns whether a slot is neither an item's nor empty.
    #[inline]
    pub fn has_special(&self) -> bool {
        Slot(self.0.iter().fold(0, |all, slot| all | slot)).is_special()
    }

    /// Returns whether a slot is special, or an item's on flash.
    #[inline]
    pub fn has_special_or_flash(&self) -> bool {
        let all = Slot(self.0.iter().fold(0, |all, slot| all | slot));
        all.is_special() || all.is_on_flash()
    }

    /// Returns the items in memory with this tag, and which slots they are.
    #[inline]
    pub fn items(&self, tag: u16) -> Items<'_> {
        Items { bucket: self, left: self.mask(tag) }
    }

    /// Returns a mask of the slots that are an item in memory with this tag or empty, [`MASK_BITS`] for each.
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    #[inline]
    fn mask(&self, tag: u16) -> u32 {
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { mask_of_eight(&self.0, tag) }
    }

    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fn mask(&self, tag: u16) -> u32 {
        let matching = self.slots().into_iter().enumerate().filter(|(_, slot)| slot.may_match(tag));
        matching.fold(0, |mask, (i, _)| mask | 1 << (i as u32 * MASK_BITS))
    }
}

/// # Safety
/// The processor has SSE2.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[target_feature(enable = "sse2")]
#[inline]
unsafe fn mask_of_eight(slots: &[u64; 8], tag: u16) -> u32 {
    use std::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
        _mm_set1_epi64x,
    };
    let (bits, wanted) = (_mm_set1_epi64x(Slot::TAG_AND_KIND.cast_signed()), _mm_set1_epi64x(tag.into()));
    let pairs = slots.as_chunks::<2>().0;
    // Ones for each half of two slots that matches.
    let compare = |i: usize| {
        let pair: &[u64; 2] = &pairs[i];
        // SAFETY: a pair has sixteen bytes.
        let pair = unsafe { _mm_loadu_si128(pair.as_ptr().cast()) };
        _mm_cmpeq_epi32(_mm_and_si128(pair, bits), wanted)
    };
    let (low, high) = (_mm_packs_epi32(compare(0), compare(1)), _mm_packs_epi32(compare(2), compare(3)));
    let halves = _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned();
    halves & halves >> 1 & 0x5555
}

/// Bits of a mask of slots for each slot.
const MASK_BITS: u32 = 2;

/// The items of a bucket that have one tag.
#[derive(Debug)]
pub struct Items<'b> {
    bucket: &'b Bucket,
    left: u32,
}

impl Iterator for Items<'_> {
    type Item = (usize, Slot);

    #[inline]
    fn next(&mut self) -> Option<(usize, Slot)> {
        while self.left != 0 {
            let i = (self.left.trailing_zeros() / MASK_BITS) as usize % SLOTS_PER_BUCKET;
            self.left &= self.left - 1;
            let slot = Slot(self.bucket.0[i]);
            if !slot.is_empty() {
                return Some((i, slot));
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slot::{REGION_BYTES_MAX, TAG_BITS};
    use proptest::prelude::*;

    fn slot() -> impl Strategy<Value = u64> {
        let tag = 0u16..4;
        let item = (tag, 1..REGION_BYTES_MAX / 4, 0u8..64, 0u8..8)
            .prop_map(|(tag, at, class, frequency)| Slot::item(tag, 4 * at, class, frequency).0);
        let mark = prop_oneof![Just(0), Just(Slot::MOVED.0), Just(Slot::link(640).0), Just(1 << TAG_BITS)];
        (prop_oneof![item, mark, any::<u64>()], any::<bool>())
            .prop_map(|(word, overflowed)| if overflowed { word | 1 << 63 } else { word })
    }

    proptest! {
        #[test]
        fn a_bucket_finds_what_its_slots_match(words in prop::array::uniform8(slot()), tag in 0u16..5) {
            let bucket = Bucket(words);
            let expected: Vec<(usize, Slot)> =
                words.into_iter().map(Slot).enumerate().filter(|(_, slot)| slot.matches(tag)).collect();
            prop_assert_eq!(bucket.items(tag).collect::<Vec<_>>(), expected);
            prop_assert_eq!(bucket.has_special(), words.into_iter().any(|word| Slot(word).is_special()));
        }
    }
}
