//! Chained items that are being written.
//!
//! Each of their chunks would stage them again. And reclaim may move the item itself meanwhile, with a table of the same chunks or
//! of copies, as it lies in another segment than most of them.

use std::collections::HashMap;

/// Where an item is: its offset in the region, and the generation of its segment.
pub(super) type ItemPlace = (u64, u64);

/// The chained items that are being written.
#[derive(Debug, Default)]
pub(super) struct LongItems {
    /// The last write of the item at a place, and where the item was when it was staged.
    staged: HashMap<ItemPlace, (u64, ItemPlace)>,
    /// Where an item is now that was staged at a place and has moved.
    moved: HashMap<ItemPlace, ItemPlace>,
}

impl LongItems {
    /// Records that the item at this place is being written.
    pub(super) fn note(&mut self, at: ItemPlace, number: u64) {
        self.staged.insert(at, (number, at));
    }

    /// Returns the last write of the item at this place, if that is being written.
    pub(super) fn last_write(&self, at: ItemPlace) -> Option<u64> {
        self.staged.get(&at).map(|(number, _)| *number)
    }

    /// Records that the item at this place is about to be at another one.
    pub(super) fn note_moved(&mut self, from: ItemPlace, to: ItemPlace) {
        if let Some((number, origin)) = self.staged.remove(&from) {
            self.staged.insert(to, (number, origin));
            self.moved.insert(origin, to);
        }
    }

    /// Returns where the item is now that was staged at this place.
    pub(super) fn place_of(&self, staged_at: ItemPlace) -> ItemPlace {
        self.moved.get(&staged_at).copied().unwrap_or(staged_at)
    }

    /// Forgets the item that was staged at this place and is written now.
    pub(super) fn forget(&mut self, staged_at: ItemPlace) {
        let now = self.moved.remove(&staged_at).unwrap_or(staged_at);
        self.staged.remove(&now);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn moved_items_are_found_until_they_are_written() {
        let mut items = LongItems::default();
        items.note((8, 1), 1);
        items.note_moved((8, 1), (16, 3));
        items.note_moved((16, 3), (24, 4));
        items.note_moved((100, 1), (200, 4));
        assert_eq!((items.last_write((24, 4)), items.place_of((8, 1))), (Some(1), (24, 4)));
        assert_eq!((items.last_write((8, 1)), items.last_write((16, 3))), (None, None));
        // Other items have its places meanwhile.
        items.note((8, 2), 2);
        items.note_moved((24, 5), (32, 1));
        assert_eq!(items.place_of((8, 1)), (24, 4));
        items.forget((8, 1));
        assert_eq!((items.last_write((24, 4)), items.last_write((8, 2))), (None, Some(2)));
        items.forget((8, 2));
        assert!(items.staged.is_empty() && items.moved.is_empty());
    }
}
