//! Pages: what a flash segment holds.
//!
//! ```text
//!  page      0..4088  payload: a part of the segment's records, which follow each other across pages
//!         4088..4092  checksum: crc32c over the tier's id, the page's number, the segment's sequence (8 bytes each), and bytes
//!                     0..4088, 4092..4096
//!         4092..4094  first: offset of the first record that begins in the page, NO_RECORD if none does
//!         4094..4096  low bits of the segment's sequence
//!  record         0   accessed: second of the region's clock of the last access when it was written
//!                 4   the item as in memory (layout::item) without its checksum and never chained
//!                     padding to a multiple of 4 bytes
//! ```
//! Numbers are little-endian. The tier's id, the page's number and the sequence are not stored whole, but a page of another tier,
//! of another place or of an earlier use of the segment has another checksum. A record whose key has no bytes ends the records of
//! its page, and none begins in a page's last bytes ([`RECORD_START_MAX`]). The hashes of a page's keys differ in their first 24
//! bits, so that a slot, which encodes these and the page, means one record.

use std::ops::Range;

use fabcache_layout::flash_slot::{PAGE_BYTES as PAGE, PAGE_CLASS_BITS};
use fabcache_layout::item::{HEADER_BYTES_MAX, Item};

/// Bytes of a page.
pub const PAGE_BYTES: usize = PAGE as usize;
/// Bytes of a page that hold records.
pub const PAYLOAD_BYTES: usize = PAGE_BYTES - 8;
/// Bytes of a record before the item.
pub const RECORD_HEAD_BYTES: usize = 4;
/// The value of a page's first offset if no record begins in the page.
const NO_RECORD: u16 = u16::MAX;

/// The last offset of a page at which a record may begin.
///
/// So the page shows whether there is a record, and how long its header is.
pub const RECORD_START_MAX: usize = PAYLOAD_BYTES - RECORD_HEAD_BYTES - ITEM_FIXED_BYTES;
pub(super) const ITEM_FIXED_BYTES: usize = 8;
/// The offset of the key's length in an item.
pub(super) const KEY_LENGTH_AT: usize = 3;

const CHECKSUM_AT: usize = PAYLOAD_BYTES;
const FIRST_AT: usize = CHECKSUM_AT + 4;

/// The last page class.
pub const LAST_CLASS: u8 = (1 << PAGE_CLASS_BITS) - 1;
/// Pages to read at first for an item, by the page class of its slot.
///
/// An item of the last class may have further pages.
const CLASS_PAGES: [u32; 1 << PAGE_CLASS_BITS] = [1, 2, 3, 4, 6, 10, 18, 34];

/// Returns the page class of an item on so many pages.
pub fn page_class(pages: u32) -> u8 {
    CLASS_PAGES.partition_point(|class| *class < pages).min(CLASS_PAGES.len() - 1) as u8
}

/// Returns how many pages to read for an item of this class at first.
pub fn pages_of_class(class: u8) -> u32 {
    CLASS_PAGES[usize::from(class) % CLASS_PAGES.len()]
}

/// The name of a page, which its checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName {
    /// The tier, of which there may have been others on the same devices.
    pub tier: u64,
    /// Its number among all pages of the tier.
    pub number: u32,
    /// The sequence of its segment.
    pub sequence: u64,
}

impl PageName {
    /// Returns the name of a page so many behind in the same segment.
    pub fn plus(self, pages: u32) -> PageName {
        PageName { number: self.number + pages, ..self }
    }
}

/// Pages that follow each other on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The name of the first.
    pub first: PageName,
    /// Their number.
    pub pages: u32,
}

/// Returns the name of a page of several extents.
pub fn name_of(extents: &[Extent], mut page: u32) -> Option<PageName> {
    for extent in extents {
        if page < extent.pages {
            return Some(extent.first.plus(page));
        }
        page -= extent.pages;
    }
    None
}

/// A page that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPage;

fn checksum(page: &[u8], name: PageName) -> u32 {
    let mut head = [0; 24];
    head[..8].copy_from_slice(&name.tier.to_le_bytes());
    head[8..16].copy_from_slice(&u64::from(name.number).to_le_bytes());
    head[16..].copy_from_slice(&name.sequence.to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head), &page[..PAYLOAD_BYTES]);
    crc32c::crc32c_append(sum, &page[FIRST_AT..PAGE_BYTES])
}

/// Completes a page whose payload was written.
///
/// `first` is the offset of the first record that begins in it.
pub fn seal(page: &mut [u8], name: PageName, first: Option<u16>) {
    page[FIRST_AT..FIRST_AT + 2].copy_from_slice(&first.unwrap_or(NO_RECORD).to_le_bytes());
    page[FIRST_AT + 2..PAGE_BYTES].copy_from_slice(&(name.sequence as u16).to_le_bytes());
    let sum = checksum(page, name);
    page[CHECKSUM_AT..FIRST_AT].copy_from_slice(&sum.to_le_bytes());
}

/// Checks a page, and returns the offset of the first record that begins in it.
///
/// # Errors
/// It is not the page of this name, or was damaged.
pub(super) fn check(page: &[u8], name: PageName) -> Result<Option<usize>, BadPage> {
    let half = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
    let stored = u32::from_le_bytes(page[CHECKSUM_AT..FIRST_AT].try_into().expect("four bytes"));
    let first = half(FIRST_AT);
    let is_sound =
        stored == checksum(page, name) && (first == NO_RECORD || usize::from(first) <= RECORD_START_MAX);
    if !is_sound {
        return Err(BadPage);
    }
    Ok((first != NO_RECORD).then_some(usize::from(first)))
}

/// A record found on its pages.
///
/// Its offsets count payload bytes, from those of the first page: [`parts_of`] returns where these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The second of the last access when it was written.
    pub accessed: u32,
    /// The item's header.
    pub item: Item,
    /// Where the item begins.
    pub at: usize,
}

impl Record {
    /// Returns where the item's key is.
    pub fn key(&self) -> Range<usize> {
        let at = self.at + self.item.key_at() as usize;
        at..at + usize::from(self.item.key_len)
    }

    /// Returns where the item's value is.
    pub fn value(&self) -> Range<usize> {
        let at = self.at + self.item.payload_at() as usize;
        at..at + self.item.payload_len() as usize
    }

    /// Returns where the next record may begin.
    pub(super) fn end(&self) -> usize {
        self.at + self.item.bytes() as usize
    }
}

/// Returns where payload bytes are in a buffer of pages: in one part of each page.
pub fn parts_of(payload: Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone {
    let mut rest = payload;
    std::iter::from_fn(move || {
        let (page, at) = (rest.start / PAYLOAD_BYTES, rest.start % PAYLOAD_BYTES);
        let len = rest.len().min(PAYLOAD_BYTES - at);
        rest.start += len;
        let from = page * PAGE_BYTES + at;
        (len > 0).then_some(from..from + len)
    })
}

/// The result of a search for a key's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The record.
    Found(Record),
    /// The record needs more pages: so many in all.
    Pages(u32),
    /// No record of the first page has the key.
    Absent,
}

/// How far the pages of a read were searched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Pages that were checked.
    opened: u32,
    /// Where the next record to compare begins.
    at: usize,
}

/// Pages that were read, from the one in which a record begins.
#[derive(Debug)]
pub struct Pages<'b> {
    bytes: &'b [u8],
    extents: &'b [Extent],
    progress: &'b mut Progress,
}

impl<'b> Pages<'b> {
    /// Returns the pages in a buffer, which are those of these extents.
    pub fn new(bytes: &'b [u8], extents: &'b [Extent], progress: &'b mut Progress) -> Pages<'b> {
        Pages { bytes, extents, progress }
    }

    fn payload_len(&self) -> usize {
        self.progress.opened as usize * PAYLOAD_BYTES
    }

    /// Checks the next page, and returns where its first record begins.
    fn open_next(&mut self) -> Result<Option<usize>, BadPage> {
        let from = self.progress.opened as usize * PAGE_BYTES;
        let name = name_of(self.extents, self.progress.opened).ok_or(BadPage)?;
        let first = check(&self.bytes[from..from + PAGE_BYTES], name)?;
        self.progress.opened += 1;
        Ok(first)
    }

    /// Opens pages up to so many payload bytes, and returns whether enough pages were read.
    fn open(&mut self, bytes: usize) -> Result<bool, BadPage> {
        while self.payload_len() < bytes {
            if (self.progress.opened as usize + 1) * PAGE_BYTES > self.bytes.len() {
                return Ok(false);
            }
            self.open_next()?;
        }
        Ok(true)
    }

    /// Finds the record whose key `is_its` accepts, and opens all pages of the record.
    ///
    /// It searches the records that begin in the first page.
    ///
    /// # Errors
    /// A page is damaged, or is another one.
    pub fn find(&mut self, is_its: impl Fn(&[u8]) -> bool) -> Result<Search, BadPage> {
        match self.find_key(is_its)? {
            Search::Found(record) if !self.open(record.end())? => Ok(pages_for(record.end())),
            found => Ok(found),
        }
    }

    /// Finds the record as [`Pages::find`] does, but opens only the pages of its header and key.
    ///
    /// # Errors
    /// As there.
    pub fn find_key(&mut self, is_its: impl Fn(&[u8]) -> bool) -> Result<Search, BadPage> {
        if self.progress.opened == 0 {
            match self.open_next()? {
                Some(first) => self.progress.at = first,
                None => return Ok(Search::Absent),
            }
        }
        while self.progress.at <= RECORD_START_MAX {
            let at = self.progress.at + RECORD_HEAD_BYTES;
            if self.bytes[at + KEY_LENGTH_AT] == 0 {
                break;
            }
            let Some(item) = self.header(at)? else { return Ok(pages_for(at + HEADER_BYTES_MAX)) };
            let accessed = &self.bytes[self.progress.at..at];
            let accessed = u32::from_le_bytes(accessed.try_into().expect("four bytes"));
            let record = Record { accessed, item, at };
            if !item.is_chained() {
                let key_end = record.key().end;
                if !self.open(key_end)? {
                    return Ok(pages_for(key_end));
                }
                let is_found = match key_part(&record) {
                    Some(part) => is_its(&self.bytes[part]),
                    None => is_its(&copied_key(self.bytes, &record)),
                };
                if is_found {
                    return Ok(Search::Found(record));
                }
            }
            self.progress.at = record.end();
        }
        Ok(Search::Absent)
    }

    /// Returns the header of the item at `at`; `None` if it needs a page that was not read.
    fn header(&mut self, at: usize) -> Result<Option<Item>, BadPage> {
        // What follows a short header may be on a page that the record does not need.
        let end = (at + HEADER_BYTES_MAX).min(self.payload_len());
        let item = header_in(self.bytes, at..end);
        // The options are at hand, and they encode the header's length.
        if at + item.key_at() as usize <= end {
            return Ok(Some(item));
        }
        Ok(self.open(at + HEADER_BYTES_MAX)?.then(|| header_in(self.bytes, at..at + HEADER_BYTES_MAX)))
    }
}

/// Decodes the header of an item from these payload bytes of a buffer of pages.
///
/// They are at most as many as the longest header has.
pub fn header_in(pages: &[u8], payload: Range<usize>) -> Item {
    let mut head = [0; HEADER_BYTES_MAX];
    let mut copied = 0;
    for part in parts_of(payload) {
        head[copied..copied + part.len()].copy_from_slice(&pages[part.clone()]);
        copied += part.len();
    }
    Item::parse(&head)
}

/// Returns where a record's key is in a buffer of pages; `None` if it is on two pages.
pub fn key_part(record: &Record) -> Option<Range<usize>> {
    let mut parts = parts_of(record.key());
    parts.next().filter(|_| parts.next().is_none())
}

/// Returns a copy of a record's key.
pub fn copied_key(pages: &[u8], record: &Record) -> Box<[u8]> {
    parts_of(record.key()).flat_map(|part| &pages[part]).copied().collect()
}

fn pages_for(bytes: usize) -> Search {
    Search::Pages(bytes.div_ceil(PAYLOAD_BYTES) as u32)
}
