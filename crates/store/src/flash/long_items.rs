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
    /// The last write of the item at an offset, and where the item was when it was staged.
    staged: HashMap<u64, (u64, u64)>,
    /// Where an item is now that was staged at an offset and has moved.
    moved: HashMap<u64, ItemPlace>,
}

impl LongItems {
    /// Notes that the item at this offset is being written.
    pub(super) fn note(&mut self, offset: u64, number: u64) {
        self.staged.insert(offset, (number, offset));
    }

    /// Returns the last write of the item at this offset, if that is being written.
    pub(super) fn last_write(&self, offset: u64) -> Option<u64> {
        self.staged.get(&offset).map(|(number, _)| *number)
    }

    /// The item at this offset is about to be at another place.
    pub(super) fn note_moved(&mut self, from: u64, to: ItemPlace) {
        if let Some((number, origin)) = self.staged.remove(&from) {
            self.staged.insert(to.0, (number, origin));
            self.moved.insert(origin, to);
        }
    }

    /// Returns where an item is that was staged at this offset, if it has moved.
    pub(super) fn place_of(&self, offset: u64) -> Option<ItemPlace> {
        self.moved.get(&offset).copied()
    }

    /// The item that was staged at this offset is written.
    pub(super) fn forget(&mut self, offset: u64) {
        let now = self.moved.remove(&offset).map_or(offset, |(now, _)| now);
        if self.staged.get(&now).is_some_and(|(_, origin)| *origin == offset) {
            self.staged.remove(&now);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn moved_items_are_found_until_they_are_written() {
        let mut items = LongItems::default();
        items.note(8, 1);
        items.note_moved(8, (16, 3));
        items.note_moved(16, (24, 4));
        items.note_moved(100, (200, 4));
        assert_eq!((items.last_write(24), items.place_of(8)), (Some(1), Some((24, 4))));
        assert_eq!((items.last_write(8), items.last_write(16), items.place_of(16)), (None, None, None));
        // Another item has its first place meanwhile.
        items.note(8, 2);
        items.forget(8);
        assert_eq!((items.last_write(24), items.place_of(8), items.last_write(8)), (None, None, Some(2)));
        items.forget(8);
        assert!(items.staged.is_empty() && items.moved.is_empty());
    }
}
