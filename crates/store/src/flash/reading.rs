//! Reads of items on flash.
//!
//! A read pins its segment and then finds the slot unchanged, so its pages are those that the slot means. They are read without
//! a lock; what they hold was the key's item when the read began.

use std::borrow::Cow;
use std::io;
use std::ops::{ControlFlow, Deref, Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard};

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::item::{Item, State};
use fabcache_layout::{KeyHash, Slot, header};
use smallvec::{SmallVec, smallvec};

use super::page::{
    Extent, LAST_CLASS, PAGE_BYTES, Pages, Progress, Record, Search as Found, copied_key, key_part, name_of,
    pages_of_class, parts_of,
};
use super::{Flash, FlashLocation, PageBuffer};
use crate::error::OutOfMemory;
use crate::handle::{Handle, WhenFull};
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::index::lookup::Search;
use crate::info::{Expiry, ItemInfo, Miss};
use crate::reclaim::whole_bytes;
use crate::store::Store;

/// A pin that keeps a flash segment from being used again.
#[derive(Debug)]
pub(super) struct SegmentPin {
    reader: Arc<FlashReader>,
    id: u32,
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        self.reader.flash().segments.unpin(self.id);
    }
}

/// Pins of an item's segments: of one, but for the longest items.
type Pins = SmallVec<[SegmentPin; 1]>;

/// A read of one item's pages.
#[derive(Debug)]
pub struct FlashRead {
    pub(super) hash: KeyHash,
    pub(super) at: SlotSnapshot,
    item: FlashItem,
    /// Where its pages are: up to the end of its first segment, and the whole of others.
    pub(super) extents: SmallVec<[Extent; 1]>,
    /// Pages to be read.
    pub(super) pages: u32,
    /// Of these, the pages that were read before.
    read: u32,
    /// The page up to which the next request reads.
    up_to: u32,
    pub(super) progress: Progress,
    buffer: Option<PageBuffer>,
    /// Slots that turned out to be other keys'.
    excluded: Vec<ExcludedSlot>,
    /// The pins of each extent's segment.
    pub(super) pins: Pins,
}

/// A slot whose item has another key than the one that it could be of, while its segment is pinned.
#[derive(Debug)]
pub(super) struct ExcludedSlot {
    slot: Slot,
    _pins: Pins,
}

fn is_excluded(excluded: &[ExcludedSlot], slot: Slot) -> bool {
    excluded.iter().any(|other| other.slot.same_item(slot))
}

impl FlashRead {
    /// Returns the device, by its place in the options.
    pub fn device(&self) -> usize {
        self.place().0
    }

    /// Returns where to read, in bytes from the start of the device's segments.
    pub fn offset(&self) -> u64 {
        self.place().1
    }

    /// Returns about how many bytes its value has: those of the pages that are read.
    pub fn value_bytes_expected(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }

    fn place(&self) -> (usize, u64) {
        let flash = self.pins[0].reader.flash();
        let next = name_of(&self.extents, self.read).expect("it is within the extents");
        flash.segments.place_of(next.number)
    }

    /// Takes the buffer, and returns which of its bytes to read: whole pages.
    ///
    /// # Panics
    /// It was taken before.
    pub fn take_buffer(&mut self) -> (PageBuffer, Range<usize>) {
        let buffer = self.buffer.take().expect("the buffer is taken once");
        (buffer, self.read as usize * PAGE_BYTES..self.up_to as usize * PAGE_BYTES)
    }

    /// Sets what the next request reads: to the end of an extent at most.
    fn plan(&mut self) {
        let mut end = 0;
        for extent in &self.extents {
            end += extent.pages;
            if end > self.read {
                break;
            }
        }
        self.up_to = end.min(self.pages);
    }
}

/// An item that was read from flash, and pins its flash segment.
#[derive(Debug)]
pub struct FetchedItem {
    pub(crate) hash: KeyHash,
    pub(crate) at: SlotSnapshot,
    flash: FlashItem,
    sequence: u64,
    record: Record,
    /// Whether the read was an access.
    is_access: bool,
    /// The key, if it is on two pages.
    copied_key: Option<Box<[u8]>>,
    buffer: LentBuffer,
    pins: Pins,
}

impl FetchedItem {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        match (&self.copied_key, key_part(&self.record)) {
            (Some(key), _) => key,
            (None, part) => &self.buffer[part.expect("others are copied")],
        }
    }

    /// Returns the value, copied if it is on several pages.
    pub fn value(&self) -> Cow<'_, [u8]> {
        let mut parts = self.value_parts();
        match (parts.next(), parts.next()) {
            (None, _) => Cow::Borrowed(&[]),
            (Some(only), None) => Cow::Borrowed(only),
            (Some(_), Some(_)) => Cow::Owned(self.value_parts().collect::<Vec<_>>().concat()),
        }
    }

    /// Returns the parts of the value, one on each page.
    pub fn value_parts(&self) -> impl Iterator<Item = &[u8]> {
        parts_of(self.record.value()).map(|part| &self.buffer[part])
    }

    /// Returns the value alone, which pins nothing.
    pub fn into_value(self) -> FetchedValue {
        FetchedValue { payload: self.record.value(), buffer: self.buffer }
    }

    pub(crate) fn header(&self) -> &Item {
        &self.record.item
    }

    /// Returns where the item is; `None` if it continues in other segments.
    ///
    /// Those are forgotten with its slot.
    pub(crate) fn location(&self) -> Option<FlashLocation> {
        let is_in_one = self.pins.len() == 1;
        is_in_one.then(|| FlashLocation::new(self.flash.page, self.flash.page_class, self.sequence))
    }

    /// Returns the item's metadata.
    pub fn info(&self, now: u32) -> ItemInfo {
        info_of(&self.record, self.at.slot, now)
    }
}

/// Returns the metadata of a record's item, which this slot leads to.
pub(super) fn info_of(record: &Record, slot: Slot, now: u32) -> ItemInfo {
    let Record { item, accessed, .. } = record;
    let expiry = Expiry::at(item.expiry);
    ItemInfo {
        flags: item.flags,
        cas: item.cas,
        len: u64::from(item.value_len),
        expiry,
        ttl: expiry.ttl(now),
        accessed: *accessed,
        idle: now.saturating_sub(*accessed),
        fetched: item.state.has(State::FETCHED) || slot.frequency() > 0,
        binary_key: item.has_binary_key(),
        stale: item.state.has(State::STALE),
        token_sent: item.state.has(State::TOKEN_SENT),
        bytes: item.bytes(),
    }
}

/// The value of an item that was read from flash, in the buffer of its pages.
#[derive(Debug)]
pub struct FetchedValue {
    /// The value's bytes in the payloads of the pages.
    payload: Range<usize>,
    buffer: LentBuffer,
}

impl FetchedValue {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// Returns the length of the buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the parts from byte `skip` on, one on each page.
    pub fn parts(&self, skip: usize) -> impl Iterator<Item = &[u8]> {
        parts_of(self.payload.start + skip..self.payload.end).map(|part| &self.buffer[part])
    }
}

/// The result of reading flash for a key.
#[derive(Debug)]
pub enum Fetched {
    /// The key's item.
    Item(Box<FetchedItem>),
    /// No item, or only items of other keys.
    Others(FalseMatches),
}

/// Slots on flash that could be a key's and are other keys'.
#[derive(Debug)]
pub struct FalseMatches {
    hash: KeyHash,
    excluded: Vec<ExcludedSlot>,
}

/// The slot on flash that a change finds for its key.
pub(crate) enum OnFlash {
    /// No slot on flash can be the key's.
    Nothing,
    /// A slot that may be the key's and was not read.
    Unread(SlotSnapshot),
    /// The key's item, which was read: its header, and why it is no longer valid, if it is not.
    Read(SlotSnapshot, Item, Option<Miss>),
}

/// The result of a read.
#[derive(Debug)]
pub enum FlashReadResult {
    /// The item.
    Item(Box<FetchedItem>),
    /// No item, or one that is no longer valid: its slot is empty now.
    Miss(Miss),
    /// No item of the key is on flash.
    ///
    /// The items that were read have other keys, or left flash meanwhile. The key's item may be in memory now.
    Others(FalseMatches),
    /// More is to be read.
    More(Box<FlashRead>),
}

/// The further segments of an item that is read.
enum Further {
    /// They are pinned, or there are none.
    Pinned,
    /// The item was replaced, removed or stored in memory meanwhile.
    Changed,
    /// They have fewer pages than the item.
    TooFew,
}

impl Handle {
    /// Begins to read a key's item from flash; `None` if it is not there.
    pub fn read_flash(&self, key: &[u8]) -> Option<Box<FlashRead>> {
        self.store.flash.as_ref()?;
        self.read_flash_but(self.store.recovered_hash(key), Vec::new()).ok()
    }

    fn read_flash_but(
        &self,
        hash: KeyHash,
        mut excluded: Vec<ExcludedSlot>,
    ) -> Result<Box<FlashRead>, Vec<ExcludedSlot>> {
        let store = &self.store;
        loop {
            let version = store.index.version(hash);
            let skip = |_| ControlFlow::<()>::Continue(());
            let takes = |slot: Slot| !is_excluded(&excluded, slot);
            let at = match store.index.search_with(hash, skip, takes).0 {
                Search::OnFlash(at) => at,
                Search::Changed => match store.find_on_flash_locked(hash, takes) {
                    Some(at) => at,
                    None => return Err(excluded),
                },
                Search::Found(()) | Search::Absent => return Err(excluded),
            };
            match self.read_slot(hash, at, version, u32::MAX, excluded) {
                Ok(read) => return Ok(read),
                Err(others) => excluded = others,
            }
        }
    }

    /// Pins the pages of a slot, if it has not changed since it was seen in the tables of `version`.
    ///
    /// The first request reads at most `pages_max` of them.
    pub(super) fn read_slot(
        &self,
        hash: KeyHash,
        at: SlotSnapshot,
        version: u64,
        pages_max: u32,
        excluded: Vec<ExcludedSlot>,
    ) -> Result<Box<FlashRead>, Vec<ExcludedSlot>> {
        let store = &self.store;
        let flash = store.flash.as_ref().expect("there are slots on flash");
        let item = FlashItem::from_slot(at.slot).expect("the slot is one on flash");
        let Some(id) = flash.segments.segment_of(item.page) else { return Err(excluded) };
        let pins = smallvec![self.flash_reader.pin(id)];
        if store.index.reload(at).is_none() || !store.index.is_current(hash, version) {
            return Err(excluded);
        }
        // The segment is the slot's from here on.
        let first = flash.segments.name_of(item.page, id);
        let extents: SmallVec<[Extent; 1]> =
            smallvec![Extent { first, pages: flash.segments.pages_left(item.page) }];
        let pages = pages_of_class(item.page_class).min(extents[0].pages).min(pages_max);
        let buffer = Some(self.flash_buffer(pages));
        let progress = Progress::default();
        let (read, up_to) = (0, pages);
        Ok(Box::new(FlashRead {
            hash,
            at,
            item,
            extents,
            pages,
            read,
            up_to,
            progress,
            buffer,
            excluded,
            pins,
        }))
    }

    /// Pins a flash segment.
    pub(super) fn pin_flash_segment(&self, id: u32) -> SegmentPin {
        self.flash_reader.pin(id)
    }

    /// Takes back a buffer of [`Handle::flash_buffer`].
    pub(super) fn give_back_flash_buffer(&self, buffer: PageBuffer) {
        self.flash_reader.give_back(buffer);
    }

    /// Returns a buffer of at least so many pages.
    pub(super) fn flash_buffer(&self, pages: u32) -> PageBuffer {
        let bytes = pages as usize * PAGE_BYTES;
        // A long item's read may go on in the buffer.
        let bytes_max = if pages == pages_of_class(LAST_CLASS) { KEPT_BUFFER_BYTES_MAX } else { 2 * bytes };
        let mut buffer = self.flash_reader.take(bytes..=bytes_max);
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        buffer
    }

    /// Takes the result of a read: the bytes that were read into the buffer.
    ///
    /// The read counts as an access unless `access` is false.
    pub fn finish_flash_read(
        &self,
        mut read: Box<FlashRead>,
        buffer: PageBuffer,
        result: io::Result<usize>,
        key: &[u8],
        access: bool,
    ) -> FlashReadResult {
        let flash = self.store.flash.as_ref().expect("it made the read");
        let at_hand = self.count_read(&read, &result);
        if at_hand == read.up_to && at_hand < read.pages {
            return FlashReadResult::More(self.read_more(read, buffer, at_hand));
        }
        let bytes = &buffer[..at_hand as usize * PAGE_BYTES];
        let found = match at_hand {
            0 => None,
            _ => Pages::new(bytes, &read.extents, &mut read.progress).find(|other| other == key).ok(),
        };
        match found {
            Some(Found::Found(record)) => self.found_on_flash(*read, record, buffer, access),
            Some(Found::Pages(pages)) if at_hand == read.pages => match self.add_extents(&mut read, pages) {
                Further::Pinned => {
                    read.pages = pages;
                    FlashReadResult::More(self.read_more(read, buffer, at_hand))
                }
                Further::Changed => {
                    self.flash_reader.give_back(buffer);
                    self.look_up_again(read.hash, read.excluded)
                }
                Further::TooFew => FlashReadResult::Miss(self.drop_unreadable(&read, buffer, result.is_ok())),
            },
            Some(Found::Absent) => {
                self.flash_reader.give_back(buffer);
                flash.counters.mismatches.inc();
                let FlashRead { hash, at, mut excluded, pins, .. } = *read;
                excluded.push(ExcludedSlot { slot: at.slot, _pins: pins });
                self.look_up_again(hash, excluded)
            }
            Some(Found::Pages(_)) | None => {
                let is_bad = result.is_ok() && at_hand == read.pages;
                FlashReadResult::Miss(self.drop_unreadable(&read, buffer, is_bad))
            }
        }
    }

    /// Continues with another slot on flash that may be the key's.
    fn look_up_again(&self, hash: KeyHash, excluded: Vec<ExcludedSlot>) -> FlashReadResult {
        match self.read_flash_but(hash, excluded) {
            Ok(next) => FlashReadResult::More(next),
            Err(excluded) => FlashReadResult::Others(FalseMatches { hash, excluded }),
        }
    }

    /// Begins to read the key's item from flash after a read has found none there.
    ///
    /// # Errors
    /// It has not come there since.
    pub fn read_flash_beyond(&self, others: FalseMatches) -> Result<Box<FlashRead>, FalseMatches> {
        let hash = others.hash;
        self.read_flash_but(hash, others.excluded).map_err(|excluded| FalseMatches { hash, excluded })
    }

    /// Counts the pages that one request has read, and returns how many are at hand now.
    pub(super) fn count_read(&self, read: &FlashRead, result: &io::Result<usize>) -> u32 {
        let pages = result.as_ref().map_or(0, |len| len / PAGE_BYTES).min((read.pages - read.read) as usize);
        let flash = self.store.flash.as_ref().expect("it made the read");
        flash.counters.bytes_read.add((pages * PAGE_BYTES) as u64);
        read.read + pages as u32
    }

    /// Unlinks an item whose pages are bad, or could not be read.
    pub(super) fn drop_unreadable(&self, read: &FlashRead, buffer: PageBuffer, is_bad: bool) -> Miss {
        self.flash_reader.give_back(buffer);
        self.count_unreadable(is_bad);
        self.store.drop_from_flash(read.hash, read.at.slot);
        Miss::Absent
    }

    /// Counts an item whose pages are bad, or could not be read.
    pub(super) fn count_unreadable(&self, is_bad: bool) {
        let counters = &self.store.flash.as_ref().expect("it made the read").counters;
        if is_bad { &counters.bad_pages } else { &counters.read_errors }.inc();
    }

    /// Continues a read, of which so many pages are at hand.
    pub(super) fn read_more(
        &self,
        mut read: Box<FlashRead>,
        mut buffer: PageBuffer,
        at_hand: u32,
    ) -> Box<FlashRead> {
        read.read = at_hand;
        read.plan();
        let bytes = read.pages as usize * PAGE_BYTES;
        buffer.resize(bytes.max(buffer.len()), 0);
        read.buffer = Some(buffer);
        read
    }

    /// Pins the further segments of an item that has so many pages.
    fn add_extents(&self, read: &mut FlashRead, pages: u32) -> Further {
        let store = &self.store;
        let flash = store.flash.as_ref().expect("it made the read");
        let has_enough = |extents: &[Extent]| extents.iter().map(|extent| extent.pages).sum::<u32>() >= pages;
        if has_enough(&read.extents) {
            return Further::Pinned;
        }
        let spanned = flash.spans.of(read.item);
        for id in &spanned {
            read.pins.push(self.flash_reader.pin(*id));
        }
        // The segments are the item's if its slot still leads there.
        if store.find_on_flash_locked(read.hash, |slot| slot.same_item(read.at.slot)).is_none() {
            return Further::Changed;
        }
        read.extents.extend(spanned.iter().map(|id| {
            let first = flash.segments.name_of(flash.segments.first_page(*id), *id);
            Extent { first, pages: flash.segments.segment_pages() }
        }));
        if has_enough(&read.extents) { Further::Pinned } else { Further::TooFew }
    }

    fn found_on_flash(
        &self,
        read: FlashRead,
        record: Record,
        buffer: PageBuffer,
        access: bool,
    ) -> FlashReadResult {
        let FlashRead { hash, at, item, extents, pins, .. } = read;
        let store = &*self.store;
        let flash = store.flash.as_ref().expect("it made the read");
        flash.counters.items_read.inc();
        let epoch = header::flush_epoch(&store.memory);
        if let Some(miss) = store.gone_on_flash(flash, &pins[0], &record.item, epoch) {
            self.flash_reader.give_back(buffer);
            store.drop_from_flash(hash, at.slot);
            return FlashReadResult::Miss(miss);
        }
        if access {
            store.index.count_read(at);
        }
        let copied_key = key_part(&record).is_none().then(|| copied_key(&buffer, &record));
        let (flash, sequence, buffer) = (item, extents[0].first.sequence, self.flash_reader.lend(buffer));
        FlashReadResult::Item(Box::new(FetchedItem {
            hash,
            at,
            flash,
            sequence,
            record,
            is_access: access,
            copied_key,
            buffer,
            pins,
        }))
    }

    /// Promotes an item to memory if it is likely to be read again, and returns the item.
    ///
    /// It does so if the read was an access, soon after another one or while much memory is free.
    pub fn promote(&self, fetched: Box<FetchedItem>) -> Box<FetchedItem> {
        if !fetched.is_access || !self.store.takes_back(fetched.hash, fetched.header()) {
            return fetched;
        }
        let key = fetched.key().to_vec();
        self.use_fetched(Fetched::Item(fetched));
        let _ = self.with_when_full(WhenFull::Fail, |handle| handle.store_fetched(&key));
        match self.take_fetched() {
            Some(Fetched::Item(fetched)) => fetched,
            _ => unreachable!("it was given just now"),
        }
    }

    /// Stores the item of [`Handle::use_fetched`] in memory again, if its slot has not changed.
    ///
    /// # Errors
    /// As for [`Handle::mutate`].
    pub fn store_fetched(&self, key: &[u8]) -> Result<(), OutOfMemory> {
        if self.with_fetched(|_| ()).is_none() {
            return Ok(());
        }
        self.mutate(key, |existing| (existing.promotion(), ())).map(|_| ())
    }

    /// Gives the next changes of a key the item that was read from flash, until [`Handle::forget_fetched`].
    pub fn use_fetched(&self, fetched: Fetched) {
        self.fetched.replace(Some(fetched));
    }

    /// Takes back what [`Handle::use_fetched`] gave.
    pub fn take_fetched(&self) -> Option<Fetched> {
        self.fetched.take()
    }

    /// Returns the metadata of the item of [`Handle::use_fetched`], if it has this key.
    pub fn fetched_info(&self, key: &[u8]) -> Option<ItemInfo> {
        let now = self.store.now();
        self.with_fetched(|fetched| (fetched.key() == key).then(|| fetched.info(now))).flatten()
    }

    /// Returns whether the key has no item on flash, by what [`Handle::use_fetched`] gave.
    ///
    /// Returns false if a slot that may be the key's was linked there since.
    pub fn is_absent_on_flash(&self, key: &[u8]) -> bool {
        let hash = self.store.hash(key);
        match &*self.fetched.borrow() {
            Some(Fetched::Others(others)) if others.hash == hash => {
                let takes = |slot| !is_excluded(&others.excluded, slot);
                self.store.find_on_flash_locked(hash, takes).is_none()
            }
            _ => false,
        }
    }

    /// Forgets what [`Handle::use_fetched`] gave.
    pub fn forget_fetched(&self) {
        self.fetched.take();
    }

    /// Returns what a change of the key finds on flash, by the slots and what was read for it.
    pub(crate) fn on_flash(&self, group: &LockedGroup<'_>, hash: KeyHash, key: &[u8], epoch: u64) -> OnFlash {
        let fetched = self.fetched.borrow();
        let unread = |takes: &dyn Fn(Slot) -> bool| match group.find_on_flash(hash, takes) {
            Some(at) => OnFlash::Unread(at),
            None => OnFlash::Nothing,
        };
        match &*fetched {
            Some(Fetched::Item(item)) if item.hash == hash && item.key() == key => {
                let Some(at) = group.find_on_flash(hash, |slot| slot.same_item(item.at.slot)) else {
                    return unread(&|_| true);
                };
                let flash = self.store.flash.as_ref().expect("it was read there");
                let miss = self.store.gone_on_flash(flash, &item.pins[0], item.header(), epoch);
                OnFlash::Read(at, *item.header(), miss)
            }
            Some(Fetched::Others(others)) if others.hash == hash => {
                unread(&|slot| !is_excluded(&others.excluded, slot))
            }
            _ => unread(&|_| true),
        }
    }

    /// Calls `with` with the item that was read from flash for the next change.
    pub(crate) fn with_fetched<R>(&self, with: impl FnOnce(&FetchedItem) -> R) -> Option<R> {
        match &*self.fetched.borrow() {
            Some(Fetched::Item(item)) => Some(with(item)),
            _ => None,
        }
    }
}

impl Store {
    /// Records a read of an item on flash, and returns whether the item should return to memory.
    fn takes_back(&self, hash: KeyHash, item: &Item) -> bool {
        let flash = self.flash.as_ref().expect("it has the item");
        let needed = whole_bytes(item).div_ceil(self.geometry.segment_bytes()) as usize;
        let free = self.segments.free_count();
        if free > 2 * self.free_segments_wanted() + needed {
            return true;
        }
        let is_recent = flash.recent_reads.contains(hash);
        if !is_recent {
            flash.recent_reads.add(hash);
        }
        let has_room = free >= self.free_segments_least().max(needed);
        // Items that fail to go to flash would be lost for one that is there.
        is_recent && has_room && flash.log().is_healthy(self.clock_ns())
    }

    /// Returns why an item of a pinned segment is no longer valid in this flush epoch, if it is not.
    pub(super) fn gone_on_flash(
        &self,
        flash: &Flash,
        pin: &SegmentPin,
        item: &Item,
        epoch: u64,
    ) -> Option<Miss> {
        if flash.segments.epoch(pin.id) != epoch {
            return Some(Miss::Flushed);
        }
        item.is_expired(self.now()).then_some(Miss::Expired)
    }

    /// Finds a slot on flash that may be the key's, under the group's lock.
    fn find_on_flash_locked(&self, hash: KeyHash, takes: impl Fn(Slot) -> bool) -> Option<SlotSnapshot> {
        self.index.lock(hash).find_on_flash(hash, takes)
    }

    /// Unlinks an item on flash, if its slot is still the same.
    pub(super) fn drop_from_flash(&self, hash: KeyHash, slot: Slot) {
        let group = self.index.lock(hash);
        if let Some(at) = group.find_on_flash(hash, |other| other.same_item(slot)) {
            self.unlink_from_flash(&group, at);
        }
    }

    /// Unlinks an item on flash.
    pub(crate) fn unlink_from_flash(&self, group: &LockedGroup<'_>, at: SlotSnapshot) {
        group.clear(at.at);
        self.count_dead_on_flash(at.slot);
    }

    /// Counts an item on flash as dead: `slot` no longer leads to it.
    pub(crate) fn count_dead_on_flash(&self, slot: Slot) {
        if let (Some(flash), Some(item)) = (&self.flash, FlashItem::from_slot(slot)) {
            flash.count_dead(item);
        }
    }
}

/// The buffers of one thread's reads, which further reads use again.
///
/// Each thread has its own, so that threads do not count references in the same cache line.
#[derive(Debug)]
pub(crate) struct FlashReader {
    store: Arc<Store>,
    kept: Mutex<KeptBuffers>,
}

#[derive(Default)]
struct KeptBuffers {
    buffers: Vec<PageBuffer>,
    bytes: usize,
}

/// The most bytes of a thread's kept buffers.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// The most bytes of one kept buffer.
const KEPT_BUFFER_BYTES_MAX: usize = 1 << 20;

impl FlashReader {
    /// Returns the reader of a thread.
    pub(crate) fn new(store: &Arc<Store>) -> Arc<FlashReader> {
        Arc::new(FlashReader { store: Arc::clone(store), kept: Mutex::default() })
    }

    fn flash(&self) -> &Flash {
        self.store.flash.as_ref().expect("reads are of a tier")
    }

    fn pin(self: &Arc<Self>, id: u32) -> SegmentPin {
        self.flash().segments.pin(id);
        SegmentPin { reader: Arc::clone(self), id }
    }

    fn kept(&self) -> MutexGuard<'_, KeptBuffers> {
        self.kept.lock().expect("no thread panics while it holds buffers")
    }

    /// Takes a buffer of so many bytes, or an empty one.
    fn take(&self, bytes: RangeInclusive<usize>) -> PageBuffer {
        let mut kept = self.kept();
        let fitting = kept.buffers.iter().rposition(|buffer| bytes.contains(&buffer.len()));
        match fitting {
            Some(at) => {
                let buffer = kept.buffers.swap_remove(at);
                kept.bytes -= buffer.len();
                buffer
            }
            None => PageBuffer::new(PAGE_BYTES),
        }
    }

    pub(super) fn give_back(&self, buffer: PageBuffer) {
        let mut kept = self.kept();
        if buffer.len() <= KEPT_BUFFER_BYTES_MAX && kept.bytes + buffer.len() <= KEPT_BYTES_MAX {
            kept.bytes += buffer.len();
            kept.buffers.push(buffer);
        }
    }

    /// Returns the buffer as one that comes back when it is dropped.
    fn lend(self: &Arc<Self>, buffer: PageBuffer) -> LentBuffer {
        LentBuffer { buffer: Some(buffer), owner: Arc::clone(self) }
    }
}

impl std::fmt::Debug for KeptBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptBuffers").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A buffer that was read into, whose memory is used for further reads.
#[derive(Debug)]
struct LentBuffer {
    buffer: Option<PageBuffer>,
    owner: Arc<FlashReader>,
}

impl Deref for LentBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("only `drop` takes it")
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.owner.give_back(buffer);
        }
    }
}
