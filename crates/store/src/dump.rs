//! Visits all items, one group at a time, so that no lock is held for long and a dump can be suspended.

use fabcache_layout::item::{Item, KEY_BYTES_MAX};

use crate::flash::VisitedOnFlash;
use crate::handle::Handle;
pub use crate::index::walk::Cursor;
use crate::info::{Detail, ItemInfo};

/// An item visited by a walk.
#[derive(Clone, Copy, Debug)]
pub struct VisitedItem<'k> {
    /// Its key.
    pub key: &'k [u8],
    /// The item's metadata.
    pub info: ItemInfo,
}

impl Handle {
    /// Visits the valid items of the next group, and passes the keys of those that are expired or flushed; returns
    /// where to continue. Each key that is present throughout is visited once. The visits are made under a lock: copy
    /// what is needed.
    pub fn walk(
        &self,
        cursor: Cursor,
        visit: impl FnMut(VisitedItem<'_>),
        gone: impl FnMut(&[u8]),
    ) -> Cursor {
        self.walk_all(cursor, visit, gone, |_| ())
    }

    /// As [`Handle::walk`], and visits the slots of items on flash: [`Handle::read_visited`] reads them.
    pub fn walk_all(
        &self,
        cursor: Cursor,
        mut visit: impl FnMut(VisitedItem<'_>),
        mut gone: impl FnMut(&[u8]),
        mut on_flash: impl FnMut(VisitedOnFlash),
    ) -> Cursor {
        let store = &*self.store;
        let now = store.now();
        if let Some(hash) = cursor.hash() {
            store.recover_group(hash);
        }
        store.index.walk(cursor, self, |at, hash| {
            if at.slot.is_on_flash() {
                return on_flash(VisitedOnFlash::new(hash, at));
            }
            let offset = at.slot.offset();
            let Some(item) = Item::read(&store.memory, offset) else { return };
            let mut key = [0; KEY_BYTES_MAX];
            let key = store.copy_key(offset, &item, &mut key);
            match store.gone(&item, now) {
                None => visit(VisitedItem { key, info: store.info(at.slot, &item, now, Detail::Full) }),
                Some(_) => gone(key),
            }
        })
    }
}
