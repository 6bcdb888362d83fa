//! Records through the log's buffers to pages, and back.

use fabcache_layout::item::{KEY_BYTES_MAX, NewItem};
use fabcache_layout::{KeyHash, Slot};
use fabcache_testbed::bytes::pattern;
use proptest::prelude::*;

use super::FlashOptions;
use super::log::{FlashWrite, Log, NotStaged, StagedItem};
use super::page::{
    Extent, PAGE_BYTES, PAYLOAD_BYTES, PageName, Pages, Progress, RECORD_HEAD_BYTES, RECORD_START_MAX,
    Search, copied_key, pages_of_class, parts_of, seal,
};
use super::records::{NextRecord, Records};
use super::segments::FlashSegments;

const SEGMENT_PAGES: u64 = 300;
const SEGMENT_BYTES: u64 = SEGMENT_PAGES * PAGE_BYTES as u64;
const SEGMENTS: u64 = 8;
const TIER: u64 = 11;

/// A log and its device.
struct World {
    segments: FlashSegments,
    log: Log,
    device: Vec<u8>,
    /// The records that were written, with their numbers as offsets.
    written: Vec<StagedItem>,
}

impl World {
    fn new() -> World {
        let options = FlashOptions::of_device(SEGMENTS, SEGMENT_BYTES);
        let segments = FlashSegments::new(TIER, &options.device_bytes, SEGMENT_BYTES);
        let log = Log::new(&options, &segments, true);
        World { segments, log, device: vec![0; (SEGMENTS * SEGMENT_BYTES) as usize], written: Vec::new() }
    }

    fn append(&mut self, number: u64, hash: KeyHash, record: &[u8]) -> Result<(u64, Vec<u32>), NotStaged> {
        let staged = StagedItem { offset: number, moved_from: None, ..StagedItem::moved(hash, Slot::EMPTY) };
        // In two parts, neither of which ends where a page does.
        let (head, rest) = record.split_at(record.len() / 3);
        self.log.append(&self.segments, staged, (record.len(), 1, 0), |write| {
            write(head);
            write(rest);
        })
    }

    /// Does the writes that wait, the last one first, and with `all` what is not full.
    fn write(&mut self, all: bool) {
        loop {
            let take = || self.log.take(&self.segments, all, 0);
            let mut writes: Vec<FlashWrite> = std::iter::from_fn(take).collect();
            if writes.is_empty() {
                break;
            }
            while let Some(mut write) = writes.pop() {
                let (buffer, at, len) = (write.take_buffer(), write.offset() as usize, write.byte_len());
                self.device[at..at + len].copy_from_slice(&buffer[..len]);
                self.log.end(&self.segments, write, buffer, true, 0);
            }
        }
        while let Some(ended) = self.log.take_ended() {
            self.written.extend(ended.staged);
            self.log.note_published(None, 0);
        }
    }

    /// Reads all records in turn as compaction does, so many pages at a time.
    ///
    /// Returns their numbers.
    fn walk(&self, pages: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        for id in 0..SEGMENTS as u32 {
            let (mut page, mut at, mut needed) = (0, 0, 1);
            while page < self.segments.segment_pages() as usize {
                let first = self.segments.first_page(id) as usize + page;
                let read = pages.max(needed).min(self.segments.segment_pages() as usize - page);
                let bytes = &self.device[first * PAGE_BYTES..(first + read) * PAGE_BYTES];
                let mut records = Records::new(bytes, self.segments.name_of(first as u32, id));
                needed = 1;
                loop {
                    match records.next(at) {
                        NextRecord::Record(record) => {
                            numbers.push(u64::from(record.accessed));
                            let number = u64::from(record.accessed);
                            let key = copied_key(bytes, &record);
                            assert!(key.starts_with(format!("{number:06}-").as_bytes()), "{number}");
                            at = record.end();
                        }
                        NextRecord::Cut(begins) => {
                            (at, needed) = (begins, 2);
                            break;
                        }
                        // Behind the last page that was written.
                        NextRecord::Damaged(next) => at = next,
                        NextRecord::End => {
                            at = at.max(read * PAYLOAD_BYTES);
                            break;
                        }
                    }
                }
                (page, at) = (page + at / PAYLOAD_BYTES, at % PAYLOAD_BYTES);
            }
        }
        numbers
    }

    /// Reads a record as the tier does.
    ///
    /// Returns the search's result, and the number of pages that were read.
    fn find(&self, staged: &StagedItem, key: &[u8], change: impl Fn(&mut [u8])) -> (Read, usize) {
        let id = self.segments.segment_of(staged.page).expect("the page is one");
        let name = PageName { tier: TIER, number: staged.page, sequence: self.segments.sequence(id) };
        let at = staged.page as usize * PAGE_BYTES;
        let left = self.segments.pages_left(staged.page);
        let mut device = self.device[at..at + left as usize * PAGE_BYTES].to_vec();
        change(&mut device);
        let (mut progress, mut buffer) = (Progress::default(), Vec::new());
        let mut pages = pages_of_class(staged.class).min(left) as usize;
        loop {
            buffer.extend_from_slice(&device[buffer.len()..pages * PAGE_BYTES]);
            match Pages::new(&buffer, &extent(name), &mut progress).find(|other| other == key) {
                Ok(Search::Found(record)) => {
                    let value = payload_of(&buffer, record.value());
                    return (Read::Found(record.accessed, record.item.cas, value), pages);
                }
                Ok(Search::Absent) => return (Read::Absent, pages),
                Ok(Search::Pages(more)) if more <= left => {
                    assert!(more as usize > pages, "each read brings the search forward");
                    pages = more as usize;
                }
                Ok(Search::Pages(_)) => return (Read::TooLong, pages),
                Err(_) => return (Read::Bad, pages),
            }
        }
    }
}

fn payload_of(pages: &[u8], payload: std::ops::Range<usize>) -> Vec<u8> {
    parts_of(payload).flat_map(|part| &pages[part]).copied().collect()
}

/// Pages from this one on.
fn extent(first: PageName) -> [Extent; 1] {
    [Extent { first, pages: u32::MAX - first.number }]
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    Found(u32, u64, Vec<u8>),
    Absent,
    TooLong,
    Bad,
}

fn key(n: u64, len: usize) -> Vec<u8> {
    format!("{n:06}-{}", "k".repeat(len)).into_bytes()
}

fn hash(n: u64) -> KeyHash {
    KeyHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A record's length of key and value, and its fields.
type Form = (usize, usize, u64, bool);

fn forms() -> impl Strategy<Value = Vec<Form>> {
    let value_len = prop_oneof![
        20 => 0usize..200,
        4 => 0usize..5_000,
        // Around the end of a page, and of a buffer.
        4 => PAYLOAD_BYTES - 60..PAYLOAD_BYTES + 10,
        1 => 0usize..200_000,
        1 => 128 * PAYLOAD_BYTES - 300..128 * PAYLOAD_BYTES + 300,
    ];
    prop::collection::vec((0usize..KEY_BYTES_MAX - 6, value_len, any::<u64>(), any::<bool>()), 1..150)
}

fn record(n: u64, form: &Form) -> Vec<u8> {
    let (key_len, value_len, cas, has_flags) = *form;
    let key = key(n, key_len);
    let cas = cas >> (n % 64);
    let flags = if has_flags { 7 } else { 0 };
    let new = NewItem { key: &key, cas, flags, value_len: value_len as u32, ..NewItem::default() };
    let accessed = (n as u32).to_le_bytes();
    [&accessed[..], new.encode().as_bytes(), &key, &pattern(n, value_len)].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn records_are_found_at_their_pages(forms in forms(), flips in prop::collection::vec(any::<u64>(), 8)) {
        let mut world = World::new();
        let mut refused = 0;
        for (n, form) in (0..).zip(&forms) {
            let record = record(n, form);
            if world.append(n, hash(n), &record) == Err(NotStaged::Busy) {
                world.write(false);
                refused += usize::from(world.append(n, hash(n), &record).is_err());
            }
        }
        world.write(true);
        prop_assert_eq!((world.written.len(), refused), (forms.len(), 0));
        for (i, staged) in world.written.iter().enumerate() {
            let form = &forms[staged.offset as usize];
            let key = key(staged.offset, form.0);
            let expected =
                Read::Found(staged.offset as u32, form.2 >> (staged.offset % 64), pattern(staged.offset, form.1));
            let (found, pages) = world.find(staged, &key, |_| {});
            prop_assert_eq!(&found, &expected);
            // Any other key of that page is not it.
            prop_assert_ne!(world.find(staged, &key[..key.len() - 1], |_| {}).0, expected);
            let flip = flips[i % flips.len()].wrapping_add(i as u64 * 7919) as usize % (pages * PAGE_BYTES * 8);
            let (damaged, _) = world.find(staged, &key, |bytes| bytes[flip / 8] ^= 1 << (flip % 8));
            // A page that the record does not need was not checked.
            let needed = 1 + (RECORD_HEAD_BYTES + form.1) / PAYLOAD_BYTES;
            prop_assert!(damaged == Read::Bad || damaged == found && flip / 8 / PAGE_BYTES >= needed);
        }
        for pages in [1, 3, 64] {
            prop_assert_eq!(world.walk(pages), world.written.iter().map(|staged| staged.offset).collect::<Vec<_>>());
        }
    }

    #[test]
    fn pages_of_any_bytes_end_the_search(
        payload in prop::collection::vec(any::<u8>(), 0..3 * PAYLOAD_BYTES),
        sparse in prop::collection::vec((0usize..3 * PAYLOAD_BYTES, any::<u8>()), 0..60),
        first in prop_oneof![Just(None), (0u16..4096).prop_map(Some), Just(Some(0))],
        key in prop::collection::vec(any::<u8>(), 1..KEY_BYTES_MAX),
        is_sealed in any::<bool>(),
    ) {
        let name = PageName { tier: TIER, number: 5, sequence: 1 << 40 };
        let mut device = vec![0; 3 * PAGE_BYTES];
        let at = |i: usize| i / PAYLOAD_BYTES * PAGE_BYTES + i % PAYLOAD_BYTES;
        payload.iter().enumerate().for_each(|(i, byte)| device[at(i)] = *byte);
        sparse.iter().for_each(|(i, byte)| device[at(*i)] = *byte);
        for (i, page) in device.chunks_mut(PAGE_BYTES).enumerate().filter(|_| is_sealed) {
            seal(page, name.plus(i as u32), first.filter(|_| i == 0));
        }
        let (mut progress, mut buffer, mut pages) = (Progress::default(), Vec::new(), 1);
        while pages <= 3 {
            buffer.extend_from_slice(&device[buffer.len()..pages * PAGE_BYTES]);
            match Pages::new(&buffer, &extent(name), &mut progress).find(|other| other == key) {
                Ok(Search::Found(record)) => {
                    prop_assert_eq!(payload_of(&buffer, record.key()), &key[..]);
                    prop_assert!(record.value().end <= pages * PAYLOAD_BYTES);
                    break;
                }
                Ok(Search::Pages(more)) => {
                    prop_assert!(more as usize > pages);
                    pages = more as usize;
                }
                Ok(Search::Absent) => break,
                Err(_) => {
                    prop_assert!(!is_sealed || first.is_some_and(|first| usize::from(first) > RECORD_START_MAX));
                    break;
                }
            }
        }
    }
}

#[test]
fn record_of_the_longest_value_is_read_as_too_long() {
    let name = PageName { tier: TIER, number: 0, sequence: 1 };
    let mut page = vec![0; PAGE_BYTES];
    let new = NewItem { key: b"k", cas: u64::MAX, value_len: u32::MAX, ..NewItem::default() };
    let head = [&[0; RECORD_HEAD_BYTES], new.encode().as_bytes(), b"k"].concat();
    page[..head.len()].copy_from_slice(&head);
    seal(&mut page, name, Some(0));
    let mut progress = Progress::default();
    let found = Pages::new(&page, &extent(name), &mut progress).find(|other| other == b"k");
    let pages = (u64::from(u32::MAX) + head.len() as u64).div_ceil(PAYLOAD_BYTES as u64);
    assert_eq!(found, Ok(Search::Pages(pages as u32)));
    let mut progress = Progress::default();
    seal(&mut page, name, Some(0));
    assert_eq!(
        Pages::new(&page, &extent(name), &mut progress).find(|other| other == b"j"),
        Ok(Search::Absent),
        "none begins behind it"
    );
}

#[test]
fn keys_of_similar_hashes_are_on_different_pages() {
    let mut world = World::new();
    let hashes = [1u64 << 40, 1 << 40 | 5, 2 << 40, 1 << 40 | 1 << 20, 2 << 40 | 1];
    for (n, hash) in (0..).zip(hashes) {
        world.append(n, KeyHash(hash), &record(n, &(10, 50, 9, false))).expect("there is room");
    }
    world.write(true);
    let pages: Vec<u32> = world.written.iter().map(|staged| staged.page).collect();
    assert_eq!(pages, [0, 1, 1, 2, 2]);
}
