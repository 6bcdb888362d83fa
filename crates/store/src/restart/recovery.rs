//! A start after a kill: what the index points to, and validates, is kept; the rest is a miss.
//!
//! Each slot is checked before the first request. Its item must lie in a sealed or open segment, be whole, alive, of
//! the present flush epoch and not expired, and its key must belong to the slot; of a chained value every chunk must be
//! the one that its table lists. A server marks an item dead before it changes its slot: such an item is gone, for its
//! writer was about to be answered.
//!
//! Segments that were open have holes, as writers reserved space there that they never filled. Their items are moved to
//! new segments; chained values with a part there are dropped.

use fabcache_layout::item::{ALIGN_BYTES, ChunkEntry, Item, KEY_BYTES_MAX, State};
use fabcache_layout::sync::Mutex;
use fabcache_layout::{KeyHash, Memory, Slot, segment, size_class};

use crate::index::SlotSnapshot;
use crate::index::recover::Survivors;
use crate::index::resize::{Growth, Rehash};
use crate::kill::chunks_of;
use crate::segments::Segments;
use crate::store::Store;

/// A part of the region that no server can have left so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is damaged")]
pub struct Damaged(pub &'static str);

/// An item in a segment that was open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranded {
    hash: KeyHash,
    offset: u64,
}

/// Checks the items of a region whose server was killed.
pub(super) struct ItemChecks<'a> {
    pub(super) memory: &'a Memory,
    pub(super) segments: &'a Segments,
    pub(super) hash_seed: u64,
    pub(super) flush_epoch: u64,
    /// The second of the region's clock.
    pub(super) now: u32,
    pub(super) stranded: Mutex<Vec<Stranded>>,
}

impl ItemChecks<'_> {
    /// Returns the item at `offset`, its segment, and whether that was open, if it can be one.
    fn item_at(&self, offset: u64) -> Option<(Item, u32, bool)> {
        let item = offset.is_multiple_of(ALIGN_BYTES).then(|| Item::read(self.memory, offset))??;
        let (id, is_open) = self.segments.found_at(offset, item.bytes())?;
        let is_alive = !item.state.has(State::DEAD);
        is_alive.then_some((item, id, is_open))
    }

    /// Returns whether each chunk of the item's value is the one that its table lists, in a segment that was sealed.
    fn has_all_chunks(&self, offset: u64, item: &Item, hash: KeyHash) -> bool {
        let chunks = chunks_of(self.memory, offset, item);
        let is_there = |entry: &ChunkEntry| {
            let Some((chunk, id, is_open)) = self.item_at(entry.offset) else { return false };
            let generation = segment::generation(self.memory, self.segments.geometry(), id);
            !is_open
                && chunk.is_chunk()
                && !chunk.is_chained()
                && generation as u32 == entry.generation
                && chunk.checksum == entry.checksum
                && chunk.value_len == entry.len
                && chunk.cas == hash.0
        };
        let bytes: u64 = chunks.iter().map(|entry| u64::from(entry.len)).sum();
        chunks.len() as u64 == u64::from(item.chunks)
            && bytes == u64::from(item.value_len)
            && chunks.iter().all(is_there)
    }
}

impl Survivors for ItemChecks<'_> {
    fn prefetch(&self, slot: Slot) {
        self.memory.prefetch(slot.offset());
    }

    fn hash_of(&self, slot: Slot) -> Option<KeyHash> {
        let offset = slot.offset();
        let (item, _, is_open) = self.item_at(offset)?;
        let is_valid = !slot.is_on_flash()
            && !item.is_chunk()
            && slot.class() == size_class::class_of(item.bytes())
            && item.state.in_epoch(self.flush_epoch)
            && !item.is_expired(self.now);
        if !is_valid {
            return None;
        }
        let mut key = [0; KEY_BYTES_MAX];
        let key = key.get_mut(..usize::from(item.key_len))?;
        self.memory.copy_out(offset + item.key_at(), key);
        let hash = KeyHash::of(key, self.hash_seed);
        let is_whole = !item.is_chained() || (!is_open && self.has_all_chunks(offset, &item, hash));
        is_whole.then_some(hash)
    }

    fn keep(&self, slot: Slot, hash: KeyHash) {
        let offset = slot.offset();
        let Some((item, id, is_open)) = self.item_at(offset) else { return };
        self.segments.count_found(id, &item, 1);
        if item.is_chained() {
            for entry in chunks_of(self.memory, offset, &item) {
                if let Some((chunk, id, _)) = self.item_at(entry.offset) {
                    self.segments.count_found(id, &chunk, 0);
                }
            }
        }
        if is_open {
            self.stranded
                .lock()
                .expect("no thread panics while it adds to the list")
                .push(Stranded { hash, offset });
        }
    }
}

/// Moves the keys of a group that a kill left half moved.
struct HalfMoved<'a> {
    store: &'a Store,
    may_evict: bool,
}

impl Rehash for HalfMoved<'_> {
    fn hash_at(&self, offset: u64) -> KeyHash {
        self.store.hash_at(offset)
    }

    fn may_evict(&self) -> bool {
        self.may_evict
    }

    fn evict(&self, hash: KeyHash, seen: SlotSnapshot, unlink: impl FnOnce()) {
        self.store.evict_for_growth(self.store.counters(0), hash, seen, unlink);
    }
}

impl Store {
    /// Finishes what a kill interrupted, before any thread uses the store: moves the rest of a half moved group, and the
    /// items of segments that were open. Returns how many found no room.
    pub(super) fn finish_recovery(&self, stranded: &[Stranded], open: &[u32]) -> u64 {
        self.finish_group();
        let mut lost = 0;
        for Stranded { hash, offset } in stranded {
            let group = self.index.lock(*hash);
            // The group's move may have evicted it.
            let Some(at) = group.find(*hash, |slot| slot.offset() == *offset) else { continue };
            let item = Item::read(&self.memory, *offset).expect("a slot points into the region");
            let to = (self.segments.queue_at(*offset), at.slot.frequency());
            if self.rewrite(&group, *hash, at, &item, None, to).is_err() {
                self.unlink(&group, at, &item);
                lost += 1;
            }
        }
        for id in open {
            debug_assert_eq!(self.segments.live_bytes(*id), 0);
            self.segments.retire_generation(*id);
        }
        lost
    }

    /// Moves a group of a growing table. Without memory for it items are evicted even if others never are: until its
    /// last key has moved no request may use the group.
    fn finish_group(&self) {
        let Some(partition) = self.index.growing_partition() else { return };
        for may_evict in [self.evicts(), true] {
            let rehash = HalfMoved { store: self, may_evict };
            if self.index.grow(partition, true, &rehash, &|| self.index_segment()) != Growth::Blocked {
                return;
            }
        }
    }
}
