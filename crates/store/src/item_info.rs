//! Reads an item's metadata from its slot and header.

use fabcache_layout::Slot;
use fabcache_layout::item::{CHUNK_HEADER_BYTES_MAX, Item, State, window_start};

use crate::info::{Detail, Expiry, ItemInfo};
use crate::store::Store;

impl Store {
    /// Returns the metadata of the item behind a slot, whose header was read.
    #[inline]
    pub(crate) fn info(&self, slot: Slot, item: &Item, now: u32, detail: Detail) -> ItemInfo {
        let chunks = if item.is_chained() {
            u64::from(item.value_len) + u64::from(item.chunks) * CHUNK_HEADER_BYTES_MAX as u64
        } else {
            0
        };
        let accessed = match detail {
            Detail::Basic => 0,
            Detail::Full => self.accessed(slot.offset(), item.state),
        };
        ItemInfo {
            flags: item.flags,
            cas: self.cas_of(item),
            len: u64::from(item.value_len),
            expiry: Expiry::at(item.expiry),
            ttl: (item.expiry != 0).then(|| item.expiry.saturating_sub(now)),
            accessed,
            idle: if accessed == 0 { 0 } else { now.saturating_sub(accessed) },
            // Reads show in the frequency; when that has decayed, the state keeps the fact.
            fetched: slot.frequency() > 0 || item.state.has(State::FETCHED),
            binary_key: item.has_binary_key(),
            stale: item.state.has(State::STALE),
            token_sent: item.state.has(State::TOKEN_SENT),
            bytes: item.bytes() + chunks,
        }
    }

    /// Returns the CAS value that clients see.
    #[inline]
    pub(crate) fn cas_of(&self, item: &Item) -> u64 {
        if self.cas_enabled { item.cas } else { 0 }
    }

    pub(crate) fn accessed(&self, offset: u64, state: State) -> u32 {
        let written = self.segments.written(offset);
        match (state.window(), self.geometry.segment_of(offset)) {
            (0, _) | (_, None) => written,
            (window, Some(segment)) => written.max(self.segments.opened(segment) + window_start(window)),
        }
    }
}
