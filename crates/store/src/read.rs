//! Reading: no lock, no write to anything shared but a sampled frequency and the first note of an access.
//!
//! Reads are optimistic: copy the item, then validate it. The slot and the partition's head are read again after the
//! segment's generation was loaded, so the slot was valid and its item belongs to that generation; the generation is
//! read again after the last byte was copied, so none of the bytes was overwritten. Any change starts the read again.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use fabcache_layout::header;
use fabcache_layout::item::{self, ChunkEntry, Item, State, access_window};
use fabcache_layout::sync::without;
use fabcache_layout::{KeyHash, Slot};

use crate::bounds::{COPIED_VALUE_BYTES_MAX, QUEUE_HITS_SAMPLE, READ_RETRIES_MAX};
use crate::handle::Handle;
use crate::index::SlotSnapshot;
use crate::index::lookup::Search;
use crate::info::{Detail, ItemInfo, Miss};
use crate::kill::chunk_entries;
use crate::segments::Queue;
use crate::store::Store;

/// The result of a GET.
#[derive(Debug)]
pub enum Get {
    /// The item, and where its value is.
    Hit(ItemInfo, Payload),
    /// Nothing.
    Miss(Miss),
    /// It may be on flash: [`Handle::read_flash`].
    OnFlash,
}

/// Why an item's metadata is not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInMemory {
    /// There is no valid item.
    Miss(Miss),
    /// It may be on flash: [`Handle::read_flash`].
    OnFlash,
}

/// The location of a hit's value.
#[derive(Debug)]
pub enum Payload {
    /// At the end of the output.
    Copied,
    /// In the region, pinned until it is sent.
    Pinned(PinnedValue),
}

/// A long value, sent in place from the region. Its bytes stay until they are released.
///
/// Beyond the part of memory that senders may pin, a value is [in excess](PinnedValue::is_excess): its sender unpins it
/// whenever it cannot go on at once.
#[derive(Debug)]
pub struct PinnedValue {
    store: Arc<Store>,
    /// Each pins its segment, unless the value is unpinned.
    parts: VecDeque<PinnedPart>,
    len: u64,
    is_excess: bool,
    is_pinned: bool,
}

#[derive(Debug)]
struct PinnedPart {
    segment: u32,
    generation: u64,
    offset: u64,
    len: usize,
}

impl PinnedValue {
    fn new(store: Arc<Store>, len: u32) -> PinnedValue {
        let is_excess = !store.segments.may_pin();
        PinnedValue { store, parts: VecDeque::new(), len: u64::from(len), is_excess, is_pinned: true }
    }

    /// Pins the segment and adds a part in it; false if the segment is no longer in the part's generation.
    fn add(&mut self, part: PinnedPart) -> bool {
        let pinned = self.store.segments.pin(part.segment, part.generation);
        if pinned {
            self.parts.push_back(part);
        }
        pinned
    }

    /// Returns the bytes of the value that are not released.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether senders pinned their part of memory before: unpin it rather than wait for the client.
    pub fn is_excess(&self) -> bool {
        self.is_excess
    }

    /// Returns whether its bytes stay.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Lets the memory be used again; [`PinnedValue::pin`] tells whether it was.
    pub fn unpin(&mut self) {
        if std::mem::take(&mut self.is_pinned) {
            self.parts.iter().for_each(|part| self.store.segments.unpin(part.segment));
        }
    }

    /// Pins an unpinned value again; false if some of its memory was used again.
    pub fn pin(&mut self) -> bool {
        if self.is_pinned {
            return true;
        }
        let segments = &self.store.segments;
        self.is_excess = !segments.may_pin();
        let lost = self.parts.iter().position(|part| !segments.pin(part.segment, part.generation));
        if let Some(lost) = lost {
            self.parts.range(..lost).for_each(|part| segments.unpin(part.segment));
        }
        self.is_pinned = lost.is_none();
        self.is_pinned
    }

    /// The parts of the value, which is pinned.
    #[cfg(not(loom))]
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        assert!(self.is_pinned, "only a pinned value has bytes");
        self.parts.iter().map(|part| {
            // SAFETY: a published value in a segment pinned by the part, as asserted, and unpinned only through an
            // exclusive reference: it is immutable, and its memory not reused.
            unsafe { self.store.memory.bytes(part.offset, part.len) }
        })
    }

    /// A copy of the value: model memory has no slices.
    #[cfg(loom)]
    pub fn copy(&self) -> Vec<u8> {
        let mut value = Vec::new();
        for part in &self.parts {
            self.store.memory.append_to(part.offset, part.len, &mut value);
        }
        value
    }

    /// Releases the first `bytes` bytes of a pinned value, and the pins of the segments that only they needed.
    pub fn advance(&mut self, bytes: u64) {
        assert!(self.is_pinned, "only a pinned value is sent");
        self.len -= bytes;
        let mut left = bytes as usize;
        while let Some(first) = self.parts.front_mut() {
            if left < first.len {
                first.offset += left as u64;
                first.len -= left;
                return;
            }
            left -= first.len;
            self.store.segments.unpin(first.segment);
            self.parts.pop_front();
        }
    }
}

impl Drop for PinnedValue {
    fn drop(&mut self) {
        self.unpin();
    }
}

/// An item seen by a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemSnapshot {
    at: SlotSnapshot,
    segment: u32,
    generation: u64,
    pub(crate) item: Item,
}

impl ItemSnapshot {
    #[inline]
    pub(crate) fn slot(&self) -> Slot {
        self.at.slot
    }

    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.at.slot.offset()
    }
}

/// Why a read does not end with a hit.
pub(crate) enum ReadFailure {
    ConcurrentChange,
    Miss(Miss),
    OnFlash,
}

impl Handle {
    /// Reads a key. On a hit `head` appends what precedes the value to `out`, and the value follows it there or is
    /// pinned. When the read starts again, what `head` appended is removed and it is called again. `access` is false
    /// if the read does not count.
    #[inline]
    pub fn get(
        &self,
        key: &[u8],
        detail: Detail,
        access: bool,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&ItemInfo, &mut Vec<u8>),
    ) -> Get {
        let start = out.len();
        let done = self.read(key, detail, access, |seen, info| {
            out.truncate(start);
            head(info, out);
            let length = seen.item.value_len;
            if length > COPIED_VALUE_BYTES_MAX {
                return self.pin(seen).map(Payload::Pinned);
            }
            if seen.item.is_chained() {
                return self.copy_chunks(seen, out).map(|()| Payload::Copied);
            }
            let from = seen.offset() + seen.item.payload_at();
            self.store.memory.append_to(from, length as usize, out);
            self.unchanged(seen).map(|()| Payload::Copied)
        });
        match done {
            Ok((info, payload)) => Get::Hit(info, payload),
            Err(failed) => {
                out.truncate(start);
                match failed {
                    ReadFailure::Miss(miss) => Get::Miss(miss),
                    ReadFailure::OnFlash => Get::OnFlash,
                    ReadFailure::ConcurrentChange => unreachable!("a locked read does not fail"),
                }
            }
        }
    }

    /// Returns a key's metadata without reading its value. `access` is false if it must not count as a read.
    ///
    /// # Errors
    /// There is no valid item, or it may be on flash.
    pub fn describe(&self, key: &[u8], detail: Detail, access: bool) -> Result<ItemInfo, NotInMemory> {
        match self.read(key, detail, access, |seen, _| self.unchanged(seen)) {
            Ok((info, ())) => Ok(info),
            Err(ReadFailure::Miss(miss)) => Err(NotInMemory::Miss(miss)),
            Err(ReadFailure::OnFlash) => Err(NotInMemory::OnFlash),
            Err(ReadFailure::ConcurrentChange) => unreachable!("a locked read does not fail"),
        }
    }

    #[inline]
    pub(crate) fn unchanged(&self, seen: &ItemSnapshot) -> Result<(), ReadFailure> {
        match self.store.segments.still(seen.segment, seen.generation) {
            true => Ok(()),
            false => Err(ReadFailure::ConcurrentChange),
        }
    }

    fn read<R>(
        &self,
        key: &[u8],
        detail: Detail,
        access: bool,
        mut take: impl FnMut(&ItemSnapshot, &ItemInfo) -> Result<R, ReadFailure>,
    ) -> Result<(ItemInfo, R), ReadFailure> {
        let hash = self.store.recovered_hash(key);
        for _ in 0..READ_RETRIES_MAX {
            match self.try_read(key, hash, detail, access, &mut take) {
                Err(ReadFailure::ConcurrentChange) => self.counters().read_retries.inc(),
                done => return done,
            }
        }
        self.counters().locked_reads.inc();
        let store = &*self.store;
        let group = store.index.lock(hash);
        if store.segments.has_unverified() {
            store.drop_damaged_of(&group, hash);
        }
        let found = group.find(hash, |slot| store.has_key(slot.offset(), key));
        let Some(at) = found else {
            let absent = self.note_absent(hash, access);
            let on_flash = group.find_on_flash(hash, |_| true);
            return Err(if on_flash.is_some() { ReadFailure::OnFlash } else { absent });
        };
        // Under the lock nothing of it can change.
        let seen = store.seen_under_lock(at);
        if seen.item.state.has(State::DEAD) {
            // Its writer died before it changed the slot.
            store.unlink(&group, at, &seen.item);
            return Err(self.note_absent(hash, access));
        }
        let now = store.now();
        if let Some(miss) = store.gone(&seen.item, now) {
            return Err(ReadFailure::Miss(miss));
        }
        let info = store.info(at.slot, &seen.item, now, detail);
        match take(&seen, &info) {
            // Nothing changes under the lock: what it leads to is damaged.
            Err(ReadFailure::ConcurrentChange) => {
                store.unlink(&group, at, &seen.item);
                Err(self.note_absent(hash, access))
            }
            taken => taken.map(|taken| (info, taken)),
        }
    }

    /// Records a miss of a key without an item, and returns it.
    fn note_absent(&self, hash: KeyHash, access: bool) -> ReadFailure {
        if access {
            self.store.simulation.note_miss(hash, self.store.now());
        }
        ReadFailure::Miss(Miss::Absent)
    }

    #[inline]
    fn try_read<R>(
        &self,
        key: &[u8],
        hash: KeyHash,
        detail: Detail,
        access: bool,
        take: &mut impl FnMut(&ItemSnapshot, &ItemInfo) -> Result<R, ReadFailure>,
    ) -> Result<(ItemInfo, R), ReadFailure> {
        let store = &*self.store;
        let seen = self.find(key, hash, access)?;
        let now = store.now();
        self.check_valid(hash, &seen, now)?;
        let info = store.info(seen.at.slot, &seen.item, now, detail);
        let taken = take(&seen, &info)?;
        if access {
            self.note_read(hash, &seen, now);
        }
        Ok((info, taken))
    }

    /// Finds the key's item in the index without a lock. `access` is false if a miss does not count.
    #[inline]
    pub(crate) fn find(&self, key: &[u8], hash: KeyHash, access: bool) -> Result<ItemSnapshot, ReadFailure> {
        let store = &*self.store;
        let version = store.index.version(hash);
        let (search, overflow) = store.index.search(hash, |at| match store.see(at, hash, version, key) {
            Ok(Some(seen)) => ControlFlow::Break(Ok(seen)),
            Ok(None) => ControlFlow::Continue(()),
            Err(ConcurrentChange) => ControlFlow::Break(Err(ConcurrentChange)),
        });
        if overflow {
            self.counters().overflow_reads.inc();
        }
        match search {
            Search::Found(Ok(seen)) => Ok(seen),
            Search::Found(Err(ConcurrentChange)) | Search::Changed => Err(ReadFailure::ConcurrentChange),
            Search::Absent => Err(self.note_absent(hash, access)),
            Search::OnFlash(_) => {
                self.note_absent(hash, access);
                Err(ReadFailure::OnFlash)
            }
        }
    }

    /// Fails if the item has expired or was flushed, and then unlinks it.
    // A call takes longer than the usual checks.
    #[inline(always)]
    pub(crate) fn check_valid(
        &self,
        hash: KeyHash,
        seen: &ItemSnapshot,
        now: u32,
    ) -> Result<(), ReadFailure> {
        let Some(miss) = self.store.gone(&seen.item, now) else { return Ok(()) };
        // The header may belong to another item that was written there since.
        self.unchanged(seen)?;
        self.bury_gone(hash, seen);
        Err(ReadFailure::Miss(miss))
    }

    /// Counts a read of the item, and notes when it was.
    #[inline(always)]
    pub(crate) fn note_read(&self, hash: KeyHash, seen: &ItemSnapshot, now: u32) {
        let store = &*self.store;
        store.index.count_read(seen.at);
        store.simulation.note_hit(hash, &seen.item, now);
        if is_counted_by_queue(hash) {
            self.count_queue_hits(seen.segment, 1);
        }
        let window = access_window(now.saturating_sub(store.segments.opened(seen.segment)));
        if window > seen.item.state.window() {
            store.note_access(hash, seen.at, seen.segment, seen.generation, window);
        }
    }

    /// Counts reads of an item in this segment by its queue.
    #[cold]
    pub(crate) fn count_queue_hits(&self, segment: u32, reads: u64) {
        match self.store.segments.queue_of(segment) {
            Queue::Small => self.counters().small_queue_hits.add(reads),
            Queue::Main => self.counters().main_queue_hits.add(reads),
        }
    }

    /// Unlinks an item that a reader found expired or flushed. A reader does not wait for the lock: if it is taken,
    /// another thread or the expiry walk unlinks the item.
    fn bury_gone(&self, hash: KeyHash, seen: &ItemSnapshot) {
        let Some(group) = self.store.index.try_lock(hash) else { return };
        let found = group.find(hash, |slot| slot.same_item(seen.at.slot));
        // The same location may hold another item by now.
        if let Some(at) = found
            && let Some(item) = Item::read(&self.store.memory, at.slot.offset())
            && self.store.gone(&item, self.store.now()).is_some()
        {
            self.store.unlink(&group, at, &item);
        }
    }

    fn pin(&self, seen: &ItemSnapshot) -> Result<PinnedValue, ReadFailure> {
        let mut pinned = PinnedValue::new(Arc::clone(&self.store), seen.item.value_len);
        if seen.item.is_chained() {
            self.pin_chunks(seen, &mut pinned)?;
        } else {
            let part = PinnedPart {
                segment: seen.segment,
                generation: seen.generation,
                offset: seen.offset() + seen.item.payload_at(),
                len: seen.item.value_len as usize,
            };
            if !pinned.add(part) {
                return Err(ReadFailure::ConcurrentChange);
            }
        }
        self.counters().pins.inc();
        if pinned.is_excess {
            self.counters().pins_refused.inc();
        }
        Ok(pinned)
    }

    fn pin_chunks(&self, seen: &ItemSnapshot, pinned: &mut PinnedValue) -> Result<(), ReadFailure> {
        for chunk in self.chunks_of(seen)? {
            if !pinned.add(self.part_of(chunk)?) {
                return Err(ReadFailure::ConcurrentChange);
            }
        }
        Ok(())
    }

    /// Copies a value that is short, but longer than small memory holds in one chunk: pins are for those that take long.
    fn copy_chunks(&self, seen: &ItemSnapshot, out: &mut Vec<u8>) -> Result<(), ReadFailure> {
        for chunk in self.chunks_of(seen)? {
            let part = self.part_of(chunk)?;
            // A header that is being overwritten may describe a payload beyond the segment.
            if part.offset + part.len as u64 > self.store.geometry.segment_end(part.segment) {
                return Err(ReadFailure::ConcurrentChange);
            }
            self.store.memory.append_to(part.offset, part.len, out);
            if !self.store.segments.still(part.segment, part.generation) {
                return Err(ReadFailure::ConcurrentChange);
            }
        }
        Ok(())
    }

    fn chunks_of(&self, seen: &ItemSnapshot) -> Result<Vec<ChunkEntry>, ReadFailure> {
        let from = seen.offset() + seen.item.payload_at();
        let mut table = vec![0; seen.item.payload_len() as usize];
        self.store.memory.copy_out(from, &mut table);
        self.unchanged(seen)?;
        Ok(chunk_entries(&table))
    }

    /// Returns the range of a chunk's bytes, if its segment's generation is still the one in which they were written.
    fn part_of(&self, chunk: ChunkEntry) -> Result<PinnedPart, ReadFailure> {
        let store = &self.store;
        let segment = store.geometry.segment_of(chunk.offset).ok_or(ReadFailure::ConcurrentChange)?;
        let generation = store.segments.generation(segment);
        let header = Item::read(&store.memory, chunk.offset).ok_or(ReadFailure::ConcurrentChange)?;
        let offset = chunk.offset + header.payload_at();
        if generation as u32 == chunk.generation {
            Ok(PinnedPart { segment, generation, offset, len: chunk.len as usize })
        } else {
            Err(ReadFailure::ConcurrentChange)
        }
    }
}

/// Returns whether reads of a key are counted by queue.
#[inline]
pub(crate) fn is_counted_by_queue(hash: KeyHash) -> bool {
    hash.0.is_multiple_of(QUEUE_HITS_SAMPLE)
}

/// Something changed under a reader.
#[derive(Debug)]
pub(crate) struct ConcurrentChange;

impl Store {
    /// Checks the item of a slot: `None` if it has another key.
    // Else its result is copied twice.
    #[inline(always)]
    pub(crate) fn see(
        &self,
        mut at: SlotSnapshot,
        hash: KeyHash,
        version: u64,
        key: &[u8],
    ) -> Result<Option<ItemSnapshot>, ConcurrentChange> {
        let offset = at.slot.offset();
        let segment = self.geometry.segment_of(offset).ok_or(ConcurrentChange)?;
        // Before the slot is loaded again: without unverified segments it leads to no damaged item.
        let is_checked = self.segments.has_unverified();
        let generation = self.segments.generation(segment);
        // After the generation: now the slot's item is known to belong to it, or to a later one.
        // Its frequency may have changed since, which the count of this read builds on.
        if !without("seen_reload") {
            at.slot = self.index.reload(at).ok_or(ConcurrentChange)?;
        }
        if !self.index.is_current(hash, version) {
            return Err(ConcurrentChange);
        }
        let item = Item::read(&self.memory, offset).ok_or(ConcurrentChange)?;
        let mut same = usize::from(item.key_len) == key.len();
        if same {
            if offset + item.bytes() > self.geometry.segment_end(segment) {
                return Err(ConcurrentChange);
            }
            same = self.memory.equals(offset + item.key_at(), key);
        }
        if same {
            // Its writer is about to change the slot.
            if item.state.has(State::DEAD) && !without("dead_checked") {
                return Err(ConcurrentChange);
            }
            let is_checked =
                if without("unverified_first") { self.segments.has_unverified() } else { is_checked };
            if is_checked && !self.is_seen_intact(at, hash, segment, generation) {
                return Err(ConcurrentChange);
            }
            return Ok(Some(ItemSnapshot { at, segment, generation, item }));
        }
        if self.segments.still(segment, generation) { Ok(None) } else { Err(ConcurrentChange) }
    }

    /// Returns whether the item of a slot is intact. Its segments may be verified meanwhile, and it dropped before: then its
    /// slot has changed. Reads it again, as the caller's copy stays in registers.
    #[cold]
    fn is_seen_intact(&self, at: SlotSnapshot, hash: KeyHash, segment: u32, generation: u64) -> bool {
        let offset = at.slot.offset();
        Item::read(&self.memory, offset).is_some_and(|item| self.is_intact(offset, &item, hash))
            && self.segments.still(segment, generation)
            && (self.index.reload(at).is_some() || without("intact_reload"))
    }

    fn seen_under_lock(&self, at: SlotSnapshot) -> ItemSnapshot {
        let offset = at.slot.offset();
        let segment = self.geometry.segment_of(offset).expect("a slot points into a segment");
        ItemSnapshot {
            at,
            segment,
            generation: self.segments.generation(segment),
            item: Item::read(&self.memory, offset).expect("a slot points into the region"),
        }
    }

    /// Returns whether and why an item is no longer valid.
    #[inline]
    pub(crate) fn gone(&self, item: &Item, now: u32) -> Option<Miss> {
        self.gone_in(header::flush_epoch(&self.memory), item, now)
    }

    /// As above, in this flush epoch.
    #[inline]
    pub(crate) fn gone_in(&self, epoch: u64, item: &Item, now: u32) -> Option<Miss> {
        if !item.state.in_epoch(epoch) {
            Some(Miss::Flushed)
        } else if item.is_expired(now) {
            Some(Miss::Expired)
        } else {
            None
        }
    }

    /// Notes the window of the last access in the state word. Only with the group's lock is it sure that the word
    /// is still that item's, and a reader does not wait for a lock: if it is taken, a later read notes it.
    #[cold]
    pub(crate) fn note_access(
        &self,
        hash: KeyHash,
        at: SlotSnapshot,
        segment: u32,
        generation: u64,
        window: u8,
    ) {
        let Some(group) = self.index.try_lock(hash) else { return };
        let found = group.find(hash, |slot| slot.same_item(at.slot));
        if found.is_some() && self.segments.still(segment, generation) {
            item::set_window(&self.memory, at.slot.offset(), window);
        }
    }
}
