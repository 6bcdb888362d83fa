//! Visits: reads that learn an item's key and metadata, and leave its value where it is.

use std::cell::Cell;
use std::io;

use fabcache_layout::header;
use fabcache_layout::{KeyHash, Slot};

use super::PageBuffer;
use super::page::{PAGE_BYTES, Pages, Record, Search, copied_key};
use super::reading::{FlashRead, info_of};
use crate::dump::Cursor;
use crate::handle::Handle;
use crate::index::SlotSnapshot;
use crate::info::{ItemInfo, Miss};

/// Pages that hold the header and the key of any record that begins in the first of them.
const VISITED_PAGES: u32 = 2;

/// A slot on flash that a walk has visited.
#[derive(Clone, Copy, Debug)]
pub struct VisitedOnFlash {
    /// A hash of the same place in the index as the key's.
    pub(super) hash: KeyHash,
    pub(super) at: SlotSnapshot,
}

impl VisitedOnFlash {
    pub(crate) fn new(hash: KeyHash, at: SlotSnapshot) -> VisitedOnFlash {
        VisitedOnFlash { hash, at }
    }
}

/// The key and the metadata of an item on flash.
#[derive(Debug)]
pub struct VisitedKey {
    /// The key.
    pub key: Box<[u8]>,
    /// The item's metadata.
    pub info: ItemInfo,
    pub(super) hash: KeyHash,
}

impl VisitedKey {
    /// Returns whether a walk reaches the key in its step from one cursor to the next.
    ///
    /// A slot does not encode the whole place of its key: while the index grows, a walk may visit a slot in two steps, and lists
    /// its key in one of them.
    pub fn is_between(&self, from: Cursor, next: Cursor) -> bool {
        from.hash().is_some_and(|from| from <= self.hash) && next.hash().is_none_or(|next| self.hash < next)
    }
}

/// The result of a visit to an item on flash.
#[derive(Debug)]
pub enum VisitResult {
    /// The item's key and metadata.
    Item(VisitedKey),
    /// No item, or one that is no longer valid: its slot is empty now.
    Miss(Miss),
    /// The read failed, and the item stays: nothing may be evicted.
    Failed,
    /// The slot has changed.
    Changed,
    /// More is to be read.
    More(Box<FlashRead>),
}

impl Handle {
    /// Begins to read the key of a slot on flash that a walk has visited; `None` if the slot has changed.
    pub fn read_visited(&self, visited: &VisitedOnFlash) -> Option<Box<FlashRead>> {
        let VisitedOnFlash { hash, at } = *visited;
        let version = self.store.index.version(hash);
        self.read_slot(hash, at, version, VISITED_PAGES, Vec::new()).ok()
    }

    /// Takes the result of a read that [`Handle::read_visited`] began.
    ///
    /// The read is no access.
    pub fn finish_visit(
        &self,
        mut read: Box<FlashRead>,
        buffer: PageBuffer,
        result: io::Result<usize>,
    ) -> VisitResult {
        let at_hand = self.count_read(&read, &result);
        let (slot, its_hash) = (read.at.slot, Cell::new(read.hash));
        let is_its = |key: &[u8]| {
            its_hash.set(self.store.hash(key));
            self.is_linked_on_flash(its_hash.get(), slot)
        };
        let bytes = &buffer[..at_hand as usize * PAGE_BYTES];
        let found = match at_hand {
            0 => None,
            _ => Pages::new(bytes, &read.extents, &mut read.progress).find_key(is_its).ok(),
        };
        match found {
            Some(Search::Found(record)) => self.visit(&read, its_hash.get(), &record, buffer),
            Some(Search::Pages(pages)) if at_hand == read.pages && pages <= read.extents[0].pages => {
                read.pages = pages;
                VisitResult::More(self.read_more(read, buffer, at_hand))
            }
            Some(Search::Absent) => {
                self.flash_reader.give_back(buffer);
                VisitResult::Changed
            }
            Some(Search::Pages(_)) | None => {
                let is_bad = result.is_ok() && at_hand == read.pages;
                if is_bad || self.store.evicts() {
                    return VisitResult::Miss(self.drop_unreadable(&read, buffer, is_bad));
                }
                self.flash_reader.give_back(buffer);
                self.count_unreadable(is_bad);
                VisitResult::Failed
            }
        }
    }

    fn is_linked_on_flash(&self, hash: KeyHash, slot: Slot) -> bool {
        self.store.index.lock(hash).find_on_flash(hash, |other| other.same_item(slot)).is_some()
    }

    fn visit(&self, read: &FlashRead, hash: KeyHash, record: &Record, buffer: PageBuffer) -> VisitResult {
        let store = &*self.store;
        let flash = store.flash.as_ref().expect("it made the read");
        flash.counters.items_read.inc();
        let key = copied_key(&buffer, record);
        self.flash_reader.give_back(buffer);
        let epoch = header::flush_epoch(&store.memory);
        if let Some(miss) = store.gone_on_flash(flash, &read.pins[0], &record.item, epoch) {
            store.drop_from_flash(hash, read.at.slot);
            return VisitResult::Miss(miss);
        }
        VisitResult::Item(VisitedKey { key, info: info_of(record, read.at.slot, store.now()), hash })
    }
}
