//! Items longer than a flash segment: on which segments they go on.

use std::collections::HashMap;

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::Mutex;

use super::page::LAST_CLASS;
use super::segments::FlashSegments;

/// The segments, after the first, of each item that has several, by its first page.
#[derive(Debug, Default)]
pub(super) struct Spans(Mutex<HashMap<u32, Box<[u32]>>>);

impl Spans {
    fn lock(&self) -> fabcache_layout::sync::MutexGuard<'_, HashMap<u32, Box<[u32]>>> {
        self.0.lock().expect("no thread panics while it holds spans")
    }

    /// The item on this page is being written, and goes on in these segments.
    pub(super) fn note(&self, page: u32, segments: &[u32]) {
        if !segments.is_empty() {
            self.lock().insert(page, segments.into());
        }
    }

    /// Returns all, for the next server.
    #[cfg(not(loom))]
    pub(super) fn save(&self) -> Vec<(u32, Vec<u32>)> {
        self.lock().iter().map(|(page, segments)| (*page, segments.to_vec())).collect()
    }

    /// Returns the further segments of an item.
    pub(super) fn of(&self, item: FlashItem) -> Box<[u32]> {
        if item.page_class < LAST_CLASS {
            return Box::default();
        }
        self.lock().get(&item.page).cloned().unwrap_or_default()
    }

    /// Counts a slot that is about to lead to an item of several segments.
    pub(super) fn count_live(&self, item: FlashItem, segments: &FlashSegments) {
        self.of(item).iter().for_each(|id| segments.count_live_in(*id));
    }

    /// Counts a slot that no longer leads to an item.
    pub(super) fn count_dead(&self, item: FlashItem, segments: &FlashSegments) {
        if item.page_class == LAST_CLASS
            && let Some(spanned) = self.lock().remove(&item.page)
        {
            spanned.iter().for_each(|id| segments.count_dead_in(*id));
        }
    }

    /// The item was not linked.
    pub(super) fn forget(&self, page: u32) {
        self.lock().remove(&page);
    }
}
