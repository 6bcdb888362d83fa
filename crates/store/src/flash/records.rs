//! The records of consecutive pages, one after the other.

use std::ops::Range;

use fabcache_layout::item::HEADER_BYTES_MAX;

use super::page::{
    BadPage, ITEM_FIXED_BYTES, KEY_LENGTH_AT, PAGE_BYTES, PAYLOAD_BYTES, PageName, RECORD_HEAD_BYTES,
    RECORD_START_MAX, Record, check, header_in, parts_of,
};

/// Pages of one segment, whose records are visited.
///
/// Each page is checked once, when a record on it is.
#[derive(Debug)]
pub(super) struct Records<'b> {
    bytes: &'b [u8],
    first: PageName,
    /// Where the first record of each page begins, of those that were checked.
    checked: Vec<Option<Result<Option<usize>, BadPage>>>,
}

/// The result of a search for the next record.
///
/// Offsets count payload bytes of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRecord {
    /// A record, whose header and key are at hand.
    Record(Record),
    /// A record begins here whose header or key continues on a page that is not at hand.
    Cut(usize),
    /// A page is damaged, or was not written: continue here.
    Damaged(usize),
    /// No further record begins in these pages.
    End,
}

impl<'b> Records<'b> {
    /// Returns the records of the whole pages in a buffer, whose first has this name.
    pub(super) fn new(bytes: &'b [u8], first: PageName) -> Records<'b> {
        Records { bytes, first, checked: vec![None; bytes.len() / PAGE_BYTES] }
    }

    /// Checks a page at hand, and returns where its first record begins.
    fn open_page(&mut self, page: usize) -> Result<Option<usize>, BadPage> {
        let bytes = &self.bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES];
        let name = self.first.plus(page as u32);
        *self.checked[page].get_or_insert_with(|| check(bytes, name))
    }

    /// Checks the pages of these payload bytes, and returns whether they are at hand.
    ///
    /// # Errors
    /// One is damaged, or is another page.
    pub(super) fn open(&mut self, payload: Range<usize>) -> Result<bool, BadPage> {
        let end = payload.end.div_ceil(PAYLOAD_BYTES);
        let at_hand = end.min(self.checked.len());
        for page in payload.start / PAYLOAD_BYTES..at_hand {
            self.open_page(page)?;
        }
        Ok(at_hand == end)
    }

    /// Finds the next record from `at`: where a record ends or was found before, or where a page begins.
    pub(super) fn next(&mut self, mut at: usize) -> NextRecord {
        while at / PAYLOAD_BYTES < self.checked.len() {
            let page = at / PAYLOAD_BYTES;
            let next_page = (page + 1) * PAYLOAD_BYTES;
            let Ok(first) = self.open_page(page) else { return NextRecord::Damaged(next_page) };
            if at.is_multiple_of(PAYLOAD_BYTES) {
                at = first.map_or(next_page, |first| at + first);
            }
            if at < next_page && self.begins_at(at) {
                return self.record(at).unwrap_or(NextRecord::Damaged(next_page));
            }
            at = next_page;
        }
        NextRecord::End
    }

    /// Returns whether a record begins here in an opened page.
    fn begins_at(&self, at: usize) -> bool {
        let (page, at) = (at / PAYLOAD_BYTES, at % PAYLOAD_BYTES);
        at <= RECORD_START_MAX && self.bytes[page * PAGE_BYTES + at + RECORD_HEAD_BYTES + KEY_LENGTH_AT] != 0
    }

    fn record(&mut self, at: usize) -> Result<NextRecord, BadPage> {
        let item_at = at + RECORD_HEAD_BYTES;
        let end = (item_at + HEADER_BYTES_MAX).min(self.checked.len() * PAYLOAD_BYTES);
        // The bytes behind a short header may be on a damaged page that the record does not need.
        let first_end = (at / PAYLOAD_BYTES + 1) * PAYLOAD_BYTES;
        let mut item = header_in(self.bytes, item_at..end.min(first_end));
        if item_at + item.key_at() as usize > first_end {
            if !self.open(at..item_at + HEADER_BYTES_MAX)? {
                return Ok(NextRecord::Cut(at));
            }
            item = header_in(self.bytes, item_at..end);
        }
        let head = parts_of(at..item_at).next().expect("it begins in this page");
        let accessed = u32::from_le_bytes(self.bytes[head].try_into().expect("four bytes"));
        let record = Record { accessed, item, at: item_at };
        let is_at_hand = self.open(at..record.key().end)?;
        Ok(if is_at_hand { NextRecord::Record(record) } else { NextRecord::Cut(at) })
    }
}

// Key length and options are in the page in which the record begins.
const _: () = assert!(KEY_LENGTH_AT < ITEM_FIXED_BYTES);
