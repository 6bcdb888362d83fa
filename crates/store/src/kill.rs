//! Ending items: the dead mark, the slot, and the accounts.
//!
//! All of it happens under the lock of the item's group, so that an item dies once, and in this order: it is marked
//! dead before anybody can see that its slot changed, and no longer counted as alive after, for a segment in which
//! nothing is counted is used again.

use fabcache_layout::Slot;
use fabcache_layout::item::{self, Item, PIECE_ENTRY_BYTES, PieceEntry, State};

use crate::index::SlotAt;
use crate::index::group::LockedGroup;
use crate::store::Store;

impl Store {
    /// Ends an item with the pieces of its value: its slot is empty.
    pub(crate) fn unlink(&self, group: &LockedGroup<'_>, at: SlotAt, item: &Item) {
        self.kill_pieces(at.slot.offset(), item);
        self.end_item(at.slot.offset(), item, || group.clear(at.at));
    }

    /// Ends an item, but not the pieces of its value: its slot points to another version.
    pub(crate) fn relink(&self, group: &LockedGroup<'_>, at: SlotAt, item: &Item, slot: Slot) {
        self.end_item(at.slot.offset(), item, || group.replace(at.at, slot));
    }

    /// Marks an item dead, has its slot changed, and no longer counts it.
    pub(crate) fn end_item(&self, offset: u64, item: &Item, change_slot: impl FnOnce()) {
        let before = item::set_state(&self.memory, offset, State::DEAD);
        change_slot();
        if !before.has(State::DEAD) {
            self.segments.count_dead(offset, item.bytes(), 1);
        }
    }

    /// Ends the pieces of an item's value.
    pub(crate) fn kill_pieces(&self, offset: u64, item: &Item) {
        if item.is_chained() {
            for piece in self.pieces(offset, item) {
                self.kill_piece(piece);
            }
        }
    }

    /// Marks a piece dead, if it is still there.
    pub(crate) fn kill_piece(&self, piece: PieceEntry) {
        if let Some(item) = self.live_piece(piece) {
            item::set_state(&self.memory, piece.offset, State::DEAD);
            self.segments.count_dead(piece.offset, item.bytes(), 0);
        }
    }

    /// The header of a piece that is still there. While the lock of its owner's group is held it stays.
    pub(crate) fn live_piece(&self, piece: PieceEntry) -> Option<Item> {
        let segment = self.geometry.segment_of(piece.offset)?;
        let generation = self.segments.generation(segment);
        if generation as u32 != piece.generation {
            return None;
        }
        let item = Item::read(&self.memory, piece.offset)?;
        // Reclaim frees a segment only when all in it is dead, so what is not dead here is not about to go.
        let alive = !item.state.has(State::DEAD) && self.segments.still(segment, generation);
        alive.then_some(item)
    }

    /// The table of pieces of a chained item, whose memory is stable.
    pub(crate) fn pieces(&self, offset: u64, item: &Item) -> Vec<PieceEntry> {
        let mut table = vec![0; item.payload_len() as usize];
        self.memory.copy_out(offset + item.payload_at(), &mut table);
        piece_entries(&table)
    }
}

/// The entries of a table of pieces.
pub(crate) fn piece_entries(table: &[u8]) -> Vec<PieceEntry> {
    table.as_chunks::<PIECE_ENTRY_BYTES>().0.iter().map(PieceEntry::from_bytes).collect()
}
