//! The buffer of pages that is filled.

use fabcache_layout::KeyHash;
use fabcache_layout::flash_slot::REST_BITS;

use super::PageBuffer;
use super::log::StagedItem;
use super::page::{PAGE_BYTES, PAYLOAD_BYTES};

/// The fewest pages of a write that is not full, unless memory is short.
const PARTIAL_PAGES_MIN: usize = 16;

/// The buffer that is filled.
#[derive(Debug)]
pub(super) struct Filling {
    /// As many pages as were filled by now, or by an earlier use of the buffer.
    pub(super) pages: PageBuffer,
    /// Its first page.
    pub(super) page: u32,
    pub(super) sequence: u64,
    /// Bytes of payload in it.
    pub(super) used: usize,
    /// The most bytes of payload that fit.
    pub(super) capacity: usize,
    /// Where the first record of each page begins.
    pub(super) firsts: Vec<Option<u16>>,
    pub(super) staged: Vec<StagedItem>,
    /// Whether items of memory are among them, so that the write frees memory.
    pub(super) frees_memory: bool,
    pub(super) is_long: bool,
}

impl Filling {
    /// Returns whether a write of it wastes little of its last page.
    pub(super) fn is_well_filled(&self) -> bool {
        self.used >= PARTIAL_PAGES_MIN * PAYLOAD_BYTES
    }

    pub(super) fn left(&self) -> usize {
        self.capacity - self.used
    }

    /// Appends bytes, as many as fit, and returns their number.
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.left());
        let mut rest = &bytes[..len];
        while !rest.is_empty() {
            let (page, at) = (self.used / PAYLOAD_BYTES, self.used % PAYLOAD_BYTES);
            let here = rest.len().min(PAYLOAD_BYTES - at);
            let start = page * PAGE_BYTES + at;
            if self.pages.len() <= start {
                self.pages.resize((page + 1) * PAGE_BYTES, 0);
            }
            self.pages[start..start + here].copy_from_slice(&rest[..here]);
            self.used += here;
            rest = &rest[here..];
        }
        len
    }

    /// Returns whether a slot of this hash would also match a record that begins in this page.
    pub(super) fn has_alike(&self, page: u32, hash: KeyHash) -> bool {
        let mut of_page = self.staged.iter().rev().take_while(|staged| staged.page == page);
        of_page.any(|staged| (staged.hash.0 ^ hash.0) >> (u64::BITS - REST_BITS) == 0)
    }

    /// Appends zeros up to `used` bytes.
    pub(super) fn pad_to(&mut self, used: usize) {
        const ZEROS: [u8; PAYLOAD_BYTES] = [0; PAYLOAD_BYTES];
        while self.used < used {
            self.append(&ZEROS[..(used - self.used).min(PAYLOAD_BYTES)]);
        }
    }
}
