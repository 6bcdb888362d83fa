//! Validates the bytes of an item.

use crate::checksum::checksum;
use crate::item::{ChunkEntry, HEADER_BYTES_MAX, Item, SUMMED_AT};
use crate::sync::without;

use super::{Reader, Validation};

/// The bytes are not those of one whole item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoItem;

impl Reader {
    /// Parses the item whose bytes start with these, fetched from `offset`. With [`Validation::SameHost`] the caller
    /// checks the generation before and after; the bytes may be anything until then.
    pub(super) fn item_in(&self, bytes: &[u8], offset: u64, generation: u64) -> Result<Item, NoItem> {
        let mut head = [0; HEADER_BYTES_MAX];
        let len = bytes.len().min(HEADER_BYTES_MAX);
        head[..len].copy_from_slice(&bytes[..len]);
        let item = Item::parse(&head);
        let len = usize::try_from(item.payload_at() + item.payload_len()).map_err(|_| NoItem)?;
        if len > bytes.len() {
            return Err(NoItem);
        }
        match &self.mode {
            Validation::SameHost => Ok(item),
            Validation::Remote(secret) => {
                let sum = checksum(secret, generation, offset, item.kind(), &bytes[SUMMED_AT..len]);
                let is_whole = sum == item.checksum || without("checksum");
                if is_whole { Ok(item) } else { Err(NoItem) }
            }
        }
    }
}

impl Reader {
    /// Parses the head of an item of at most `bytes_max` bytes: at least its header and key. The caller checks the
    /// generation before and after; the bytes may be anything until then.
    pub(super) fn head_in(&self, bytes: &[u8], bytes_max: u64) -> Result<Item, NoItem> {
        debug_assert!(matches!(self.mode, Validation::SameHost));
        let head = bytes.first_chunk().ok_or(NoItem)?;
        let item = Item::parse(head);
        let is_whole = item.payload_at() + item.payload_len() <= bytes_max;
        if is_whole && item.payload_at() <= bytes.len() as u64 { Ok(item) } else { Err(NoItem) }
    }
}

/// Returns the key of an item that starts these bytes.
pub(super) fn key<'a>(item: &Item, bytes: &'a [u8]) -> &'a [u8] {
    &bytes[item.key_at() as usize..item.payload_at() as usize]
}

/// Returns the chunk table of a chained item that starts these bytes.
pub(super) fn chunks(item: &Item, bytes: &[u8]) -> Vec<ChunkEntry> {
    let from = item.payload_at() as usize;
    let table = &bytes[from..from + item.payload_len() as usize];
    table.as_chunks().0.iter().map(ChunkEntry::from_bytes).collect()
}
