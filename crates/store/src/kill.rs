//! Ending items: the dead mark, the slot, and the accounts.
//!
//! All of it happens under the lock of the item's group, so that an item dies once, and in this order: it is marked
//! dead before anybody can see that its slot changed, and no longer counted as alive after, for a segment in which
//! nothing is counted is used again. Of an item that only moves the slot changes first.

use fabcache_layout::item::{self, CHUNK_ENTRY_BYTES, ChunkEntry, Item, State};
use fabcache_layout::sync::in_order;
use fabcache_layout::{Memory, Slot};

use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::restart::verification::is_listed;
use crate::store::Store;

/// Dead items of one segment that are yet to be counted: until then it is not used again.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    segment: u32,
    items: u64,
    bytes: u64,
}

impl Deaths {
    #[inline]
    fn count(&mut self, store: &Store, offset: u64, item: &Item) {
        let Some(segment) = store.geometry.segment_of(offset) else { return };
        if self.items > 0 && self.segment != segment {
            self.settle(store);
        }
        self.segment = segment;
        self.items += 1;
        self.bytes += item.bytes();
        if store.counts_death_at_once(segment) {
            self.settle(store);
        }
    }

    /// Counts them.
    #[inline]
    pub(crate) fn settle(&mut self, store: &Store) {
        let Deaths { segment, items, bytes } = std::mem::take(self);
        if items > 0 {
            store.segments.count_dead_in(segment, bytes, items);
        }
    }
}

impl Store {
    /// Ends an item with the chunks of its value: its slot is empty.
    pub(crate) fn unlink(&self, group: &LockedGroup<'_>, at: SlotSnapshot, item: &Item) {
        if self.segments.has_unverified() && !self.is_header_intact(at.slot.offset(), item) {
            self.drop_damaged(group, at);
            return;
        }
        self.unlink_intact(group, at, item);
    }

    /// As [`Store::unlink`], of an item whose header is known to be intact.
    pub(crate) fn unlink_intact(&self, group: &LockedGroup<'_>, at: SlotSnapshot, item: &Item) {
        self.kill_chunks(at.slot.offset(), item);
        self.end_item(at.slot.offset(), item, || group.clear(at.at));
    }

    /// Marks an item dead, but not the chunks of its value: its slot points to another version.
    #[inline]
    pub(crate) fn relink(&self, group: &LockedGroup<'_>, at: SlotSnapshot, item: &Item, slot: Slot) {
        self.end_item(at.slot.offset(), item, || group.replace(at.at, slot));
    }

    /// As [`Store::relink`], for a slot of the item's copy. The slot changes first: a kill in between loses nothing. Both
    /// have the same contents, and the next change waits for the group's lock, so no reader misses one.
    pub(crate) fn relink_copy(&self, group: &LockedGroup<'_>, at: SlotSnapshot, item: &Item, slot: Slot) {
        let end = || self.end_item(at.slot.offset(), item, || {});
        in_order("copy_first", || group.replace(at.at, slot), end);
    }

    /// As [`Store::relink`], but the death is counted later, with others of its segment.
    #[inline]
    pub(crate) fn relink_in_run(
        &self,
        group: &LockedGroup<'_>,
        at: SlotSnapshot,
        item: &Item,
        slot: Slot,
        deaths: &mut Deaths,
    ) {
        let offset = at.slot.offset();
        self.end(offset, || group.replace(at.at, slot), || deaths.count(self, offset, item));
    }

    /// Marks an item dead, has its slot changed, and no longer counts it.
    #[inline]
    pub(crate) fn end_item(&self, offset: u64, item: &Item, change_slot: impl FnOnce()) {
        self.end(offset, change_slot, || self.segments.count_dead(offset, item.bytes(), 1));
    }

    #[inline]
    fn end(&self, offset: u64, change_slot: impl FnOnce(), count_dead: impl FnOnce()) {
        // Counted even if it has the mark already, as the bit of a kept file may have flipped: its slot counted it.
        let mark = || item::mark_dead(&self.memory, offset);
        in_order("dead_first", mark, || in_order("count_last", change_slot, count_dead));
    }

    /// Ends the chunks of an item's value.
    #[inline]
    pub(crate) fn kill_chunks(&self, offset: u64, item: &Item) {
        if item.is_chained() {
            for chunk in self.chunks(offset, item) {
                self.kill_chunk(chunk);
            }
        }
    }

    /// Marks a chunk dead, if it is still there.
    pub(crate) fn kill_chunk(&self, chunk: ChunkEntry) {
        if let Some(item) = self.live_chunk(chunk) {
            item::set_state(&self.memory, chunk.offset, State::DEAD);
            self.segments.count_dead(chunk.offset, item.bytes(), 0);
        }
    }

    /// The header of a chunk that is still there. While the lock of its owner's group is held it stays.
    pub(crate) fn live_chunk(&self, chunk: ChunkEntry) -> Option<Item> {
        let segment = self.geometry.segment_of(chunk.offset)?;
        let generation = self.segments.generation(segment);
        if generation as u32 != chunk.generation {
            return None;
        }
        let item = Item::read(&self.memory, chunk.offset)?;
        // Reclaim frees a segment only when everything in it is dead, so it cannot free one with a live item.
        // A damaged header does not say what was counted.
        let alive = is_listed(&item, &chunk)
            && !item.state.has(State::DEAD)
            && self.segments.still(segment, generation);
        alive.then_some(item)
    }

    /// The table of chunks of a chained item, whose memory is stable.
    pub(crate) fn chunks(&self, offset: u64, item: &Item) -> Vec<ChunkEntry> {
        chunks_of(&self.memory, offset, item)
    }
}

/// The table of chunks of a chained item, whose memory is stable.
pub(crate) fn chunks_of(memory: &Memory, offset: u64, item: &Item) -> Vec<ChunkEntry> {
    let mut table = vec![0; item.payload_len() as usize];
    memory.copy_out(offset + item.payload_at(), &mut table);
    chunk_entries(&table)
}

/// The entries of a table of chunks.
pub(crate) fn chunk_entries(table: &[u8]) -> Vec<ChunkEntry> {
    table.as_chunks::<CHUNK_ENTRY_BYTES>().0.iter().map(ChunkEntry::from_bytes).collect()
}
