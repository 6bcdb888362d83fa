//! Where keys that will be read lie, as far as can be told without waiting: so that what several of them need is on its
//! way at once. Nothing hangs on its being right.

use crate::directory::Head;
use crate::geometry::{Places, SLOTS_PER_BUCKET};
use crate::hash::KeyHash;
use crate::item::HEADER_BYTES_MAX;
use crate::memory::Memory;
use crate::size_class;
use crate::slot::Slot;
use crate::sync::Ordering;

use super::{Known, Reader};

const LINE_BYTES: u64 = 64;
/// Of an item so much is brought nearer: a short one as a whole. Of long ones the processor finds out itself.
const ITEM_BYTES_MAX: u64 = 256;
const _: () = assert!(ITEM_BYTES_MAX >= HEADER_BYTES_MAX as u64);

impl Reader {
    /// Where the key's slots are, by what is known.
    #[inline]
    fn places(&self, known: &Known, hash: KeyHash) -> Option<Places> {
        let bits = self.geometry.partition_bits;
        let partition = hash.partition(bits);
        let head = Head::from_word(known.head(partition)?);
        let group = hash.group(bits, head.groups);
        let block = (group >> self.geometry.block_shift) as usize;
        let number = known.block_number(partition, head.current, block)?;
        Some(Places::of(self.group_offset(number, group)?, hash))
    }

    /// Brings the key's slots nearer.
    #[inline]
    pub(super) fn bring_slots(&self, known: &Known, memory: &Memory, hash: KeyHash) {
        let Some(places) = self.places(known, hash) else { return };
        memory.prefetch(places.home);
        memory.prefetch(places.neighbour);
    }

    /// Brings the item of the first slot with the key's tag nearer; the slots should be near by now.
    #[inline]
    pub(super) fn bring_item(&self, known: &Known, memory: &Memory, hash: KeyHash) {
        let Some(places) = self.places(known, hash) else { return };
        let slots = |bucket: u64| (0..SLOTS_PER_BUCKET as u64).map(move |slot| bucket + slot * 8);
        let mut slots = slots(places.home)
            .chain(slots(places.neighbour))
            .map(|at| Slot(memory.load(at, Ordering::Relaxed)));
        let Some(slot) = slots.find(|slot| slot.matches(hash.tag())) else { return };
        if slot.is_on_flash() {
            return;
        }
        let len = size_class::bytes_max(slot.class()).min(ITEM_BYTES_MAX);
        let last = slot.offset() + len - 1;
        let mut line = slot.offset() / LINE_BYTES * LINE_BYTES;
        while line <= last {
            memory.prefetch(line);
            line += LINE_BYTES;
        }
    }
}
