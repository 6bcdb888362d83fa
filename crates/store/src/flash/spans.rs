//! Items longer than a flash segment, and the segments in which they continue.

use std::collections::{HashMap, HashSet};

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::{Mutex, MutexGuard};

use super::page::LAST_CLASS;
use super::segments::FlashSegments;

/// The further segments of one item.
#[derive(Clone, Debug, Default)]
struct Span {
    segments: Box<[u32]>,
    /// Whether the item's slot leads to it.
    is_linked: bool,
}

/// The segments, after the first, of each item that has several, by its first page.
#[derive(Debug, Default)]
pub(super) struct Spans {
    known: Mutex<HashMap<u32, Span>>,
    /// The items of an earlier server whose slots were not found yet.
    saved: Mutex<HashMap<u32, Span>>,
}

impl Spans {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Span>> {
        self.known.lock().expect("no thread panics while it holds spans")
    }

    /// Records that the item on this page is being written, and continues in these segments.
    pub(super) fn note(&self, page: u32, segments: &[u32]) {
        if !segments.is_empty() {
            self.lock().insert(page, Span { segments: segments.into(), is_linked: false });
        }
    }

    /// Returns the further segments of an item.
    pub(super) fn of(&self, item: FlashItem) -> Box<[u32]> {
        if item.page_class < LAST_CLASS {
            return Box::default();
        }
        self.lock().get(&item.page).map(|span| span.segments.clone()).unwrap_or_default()
    }

    /// Counts a slot that is about to lead to an item of several segments.
    pub(super) fn count_live(&self, item: FlashItem, segments: &FlashSegments) {
        if item.page_class == LAST_CLASS
            && let Some(span) = self.lock().get_mut(&item.page)
        {
            span.is_linked = true;
            span.segments.iter().for_each(|id| segments.count_live_in(*id));
        }
    }

    /// Counts a slot that no longer leads to an item.
    pub(super) fn count_dead(&self, item: FlashItem, segments: &FlashSegments) {
        if item.page_class == LAST_CLASS
            && let Some(span) = self.lock().remove(&item.page)
        {
            span.segments.iter().for_each(|id| segments.count_dead_in(*id));
        }
    }

    /// Counts a slot that an earlier server left, of an item of several segments.
    pub(super) fn count_found(&self, item: FlashItem, segments: &FlashSegments) {
        if item.page_class < LAST_CLASS {
            return;
        }
        let found = self.saved.lock().expect("no thread panics while it holds spans").remove(&item.page);
        if let Some(span) = found {
            span.segments.iter().for_each(|id| segments.count_live_in(*id));
            self.lock().insert(item.page, span);
        }
    }

    /// Returns the segments in which items that are longer than one have parts.
    pub(super) fn segments(&self, segments: &FlashSegments) -> HashSet<u32> {
        let known = self.lock();
        let first = known.keys().filter_map(|page| segments.segment_of(*page));
        first.chain(known.values().flat_map(|span| span.segments.iter().copied())).collect()
    }

    /// Returns the segments of items that are not linked yet.
    pub(super) fn unlinked(&self, segments: &FlashSegments) -> HashSet<u32> {
        let known = self.lock();
        let unlinked = known.iter().filter(|(_, span)| !span.is_linked);
        unlinked
            .flat_map(|(page, span)| {
                segments.segment_of(*page).into_iter().chain(span.segments.iter().copied())
            })
            .collect()
    }

    /// Forgets an item that was not linked.
    pub(super) fn forget(&self, page: u32) {
        self.lock().remove(&page);
    }

    /// Returns how often linked items are counted beside their first segments.
    #[cfg(not(loom))]
    pub(super) fn further_parts(&self) -> u64 {
        let known = self.lock();
        known.values().filter(|span| span.is_linked).map(|span| span.segments.len() as u64).sum()
    }

    /// Returns the first page and the further segments of each linked item.
    #[cfg(not(loom))]
    pub(super) fn save(&self) -> Vec<(u32, Vec<u32>)> {
        let known = self.lock();
        let linked = known.iter().filter(|(_, span)| span.is_linked);
        linked.map(|(page, span)| (*page, span.segments.to_vec())).collect()
    }

    /// Has items of an earlier server counted when their slots are found.
    #[cfg(not(loom))]
    pub(super) fn restore(&mut self, saved: &[(u32, Vec<u32>)]) {
        let span = |segments: &[u32]| Span { segments: segments.into(), is_linked: true };
        self.saved = Mutex::new(saved.iter().map(|(page, segments)| (*page, span(segments))).collect());
    }
}
