//! Demotion: moves items from memory to flash.

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::item::{self, Item, NewItem, State};
use fabcache_layout::sync::in_order;
use fabcache_layout::{KeyHash, Slot, header};

use super::log::{FlashWrite, Log, NotStaged, StagedItem};
use super::long_items::ItemPlace;
use super::page::{LAST_CLASS, RECORD_HEAD_BYTES};
use super::{Flash, FlashLocation, PageBuffer};
use crate::handle::Handle;
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::reclaim::whole_bytes;
use crate::store::Store;

/// State bits that a record holds: with others, another record is written.
const MARKS: u16 = State::STALE | State::TOKEN_SENT;

/// The outcome for an item that leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demotion {
    /// It stays in memory until this write is published.
    Staged(u64),
    /// It was on flash before, and is there again: it is dead in memory.
    Returned,
    /// No buffer is free: try again when a write has ended.
    Busy,
    /// It does not go to flash.
    Refused,
}

impl Store {
    /// Moves an item from memory towards flash.
    ///
    /// The caller holds the reclaim lock.
    pub(crate) fn demote(
        &self,
        flash: &Flash,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
    ) -> Demotion {
        let offset = at.slot.offset();
        let state = item::load_state(&self.memory, offset);
        if self.return_to_flash(flash, group, hash, at, item, state) {
            flash.counters.items_returned.inc();
            return Demotion::Returned;
        }
        let place = self.item_place(offset);
        let mut log = flash.log();
        if let Some(number) = log.long_items.last_write(place) {
            return Demotion::Staged(number);
        }
        let bytes = whole_bytes(item);
        let was_read = at.slot.frequency() > 0 || self.ghosts.contains(hash);
        let now_ns = self.clock_ns();
        // The record belongs to the flush epoch in which the item is valid.
        let epoch = header::flush_epoch(&self.memory);
        let is_admitted = item.state.in_epoch(epoch)
            && bytes >= u64::from(self.flash_item_bytes_min())
            && log.admits(was_read, now_ns);
        if !is_admitted {
            self.note_refused(flash, &mut log, now_ns);
            return Demotion::Refused;
        }
        let staged = StagedItem {
            hash,
            offset,
            generation: place.1,
            state: state.0,
            page: 0,
            class: 0,
            begins: 0,
            moved_from: None,
        };
        let head = self.flash_header(at, item, state);
        let key_len = usize::from(item.key_len);
        let len = RECORD_HEAD_BYTES + head.as_bytes().len() + key_len + item.value_len as usize;
        let accessed = self.accessed(offset, item.state);
        let appended = log.append(&flash.segments, staged, (len, epoch, now_ns), |write| {
            write(&accessed.to_le_bytes());
            write(head.as_bytes());
            self.read_content(offset, item, write);
        });
        match appended {
            Ok((number, segments)) => {
                flash.note_written(&segments, len, item.expiry);
                flash.counters.items_written.inc();
                flash.counters.bytes_written.add(len as u64);
                if item.is_chained() {
                    log.long_items.note(place, number);
                }
                Demotion::Staged(number)
            }
            Err(NotStaged::Busy) => Demotion::Busy,
            Err(NotStaged::Refused) => {
                self.note_refused(flash, &mut log, now_ns);
                Demotion::Refused
            }
        }
    }

    /// Counts an item that flash refused. Without eviction it stays in memory.
    fn note_refused(&self, flash: &Flash, log: &mut Log, now_ns: u64) {
        flash.counters.items_refused.inc();
        if !self.evicts() {
            log.note_refused(&flash.segments, now_ns);
        }
    }

    /// Returns an item's offset, and the generation of its segment.
    fn item_place(&self, offset: u64) -> ItemPlace {
        let segment = self.geometry.segment_of(offset).expect("items are in the region");
        (offset, self.segments.generation(segment))
    }

    /// Returns the header of an item's record.
    fn flash_header(&self, at: SlotSnapshot, item: &Item, state: State) -> item::Encoded {
        let mut kept = State(state.0 & MARKS).with(State::live(header::flush_epoch(&self.memory)).0);
        if at.slot.frequency() > 0 || state.has(State::FETCHED) {
            kept = kept.with(State::FETCHED);
        }
        let mut key = [0; item::KEY_BYTES_MAX];
        let new = NewItem {
            state: kept,
            key: self.copy_key(at.slot.offset(), item, &mut key),
            binary_key: item.has_binary_key(),
            cas: item.cas,
            flags: item.flags,
            expiry: item.expiry,
            chunks: 0,
            value_len: item.value_len,
        };
        new.encode()
    }

    /// Passes an item's key and value to `write`, in parts.
    ///
    /// The caller holds the lock of its slot.
    fn read_content(&self, offset: u64, item: &Item, write: &mut dyn FnMut(&[u8])) {
        let mut part = Vec::new();
        let key_len = usize::from(item.key_len);
        if item.is_chained() {
            self.memory.append_to(offset + item.key_at(), key_len, &mut part);
            write(&part);
            for chunk in self.chunks(offset, item) {
                write(&self.chunk_value(chunk));
            }
        } else {
            self.memory.append_to(offset + item.key_at(), key_len + item.value_len as usize, &mut part);
            write(&part);
        }
    }

    /// Links an item that was promoted and has not changed to where it still is on flash.
    fn return_to_flash(
        &self,
        flash: &Flash,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
        state: State,
    ) -> bool {
        let Some(location) = self.location_of(flash, at.slot.offset()) else { return false };
        let frequency = u8::from(at.slot.frequency() > 0 || state.has(State::FETCHED));
        let slot = group.flash_slot(hash, location.page, location.class(), frequency);
        if state.0 & MARKS != 0
            || !flash.segments.count_live_again(location.page, |sequence| location.is_of(sequence))
        {
            return false;
        }
        self.relink_on_flash(group, at, item, slot);
        true
    }

    /// Ends an item in memory whose record is on flash, and links that.
    fn relink_on_flash(&self, group: &LockedGroup<'_>, at: SlotSnapshot, item: &Item, slot: Slot) {
        self.report_item(at, item, |observer, key, info| observer.demoted(key, info));
        let end = || self.relink_copy(group, at, item, slot);
        in_order("chunks_last", end, || self.kill_chunks(at.slot.offset(), item));
    }

    /// Links a written item to its record, if it is still the one that was staged.
    ///
    /// Returns whether it was.
    fn publish(&self, flash: &Flash, handle: &Handle, staged: &StagedItem) -> bool {
        if let Some(from) = staged.moved_from {
            return self.publish_moved(flash, from, staged);
        }
        let hash = staged.hash;
        let group = self.index.lock(hash);
        let place = flash.log().long_items.place_of(staged.place());
        let offset = place.0;
        let found = group.find(hash, |slot| slot.offset() == offset);
        let Some(at) = found.filter(|_| self.item_place(offset) == place) else {
            return false;
        };
        let item = Item::read(&self.memory, offset).expect("a slot points into the region");
        if item.state.has(State::DEAD) || (item.state.0 ^ staged.state) & MARKS != 0 {
            return false;
        }
        if let Some(miss) = self.gone(&item, self.now()) {
            self.drop_gone(handle.counters(), &group, at, &item, miss);
            return false;
        }
        let frequency = at.slot.frequency();
        let slot = group.flash_slot(hash, staged.page, staged.class, frequency);
        flash.segments.count_live(staged.page);
        if let Some(on_flash) = FlashItem::from_slot(slot) {
            flash.spans.count_live(on_flash, &flash.segments);
        }
        self.relink_on_flash(&group, at, &item, slot);
        true
    }

    /// Records that the item at `from`, chained or not, is about to be at `to`, too.
    pub(crate) fn move_location(&self, from: u64, to: u64, is_chained: bool) {
        let Some(flash) = &self.flash else { return };
        if is_chained {
            flash.log().long_items.note_moved(self.item_place(from), self.item_place(to));
        }
        if let Some(location) = self.location_of(flash, from) {
            self.note_location(flash, to, location);
        }
    }

    /// Returns where the item at `offset` is on flash, too.
    fn location_of(&self, flash: &Flash, offset: u64) -> Option<FlashLocation> {
        let (segment, within) = self.place_in_segment(offset)?;
        flash.locations.of(segment, within)
    }

    /// Records where the item at `offset` is on flash, too.
    pub(crate) fn note_location(&self, flash: &Flash, offset: u64, location: FlashLocation) {
        if let Some((segment, within)) = self.place_in_segment(offset) {
            flash.locations.note(segment, within, location);
        }
    }

    /// Returns the segment of the region in which an item is, and where in it.
    fn place_in_segment(&self, offset: u64) -> Option<(u32, u32)> {
        let segment = self.geometry.segment_of(offset)?;
        Some((segment, (offset - self.geometry.segment_offset(segment)) as u32))
    }

    /// Counts an item on flash as evicted: its slot is needed, or its key is lost.
    pub(crate) fn count_evicted_on_flash(&self, slot: Slot) {
        if let Some(flash) = &self.flash {
            flash.counters.items_evicted.inc();
        }
        self.count_dead_on_flash(slot);
    }

    /// Returns whether writers should wait, as memory runs short until writes to flash have ended.
    #[inline]
    pub fn is_short_of_memory(&self) -> bool {
        self.flash.as_ref().is_some_and(|flash| self.is_short_beside(flash))
    }

    fn is_short_beside(&self, flash: &Flash) -> bool {
        self.segments.free_count() < self.free_segments_least() && flash.log().is_progressing(self.clock_ns())
    }

    /// Records that a device is lost, so that nothing is written to it, or back. The others go on.
    pub fn set_flash_device_lost(&self, device: usize, is_lost: bool) {
        if let Some(flash) = &self.flash {
            flash.log().set_device_lost(&flash.segments, device, is_lost);
            flash.segments.note_change();
        }
    }

    /// Returns whether memory will become free because writes to flash make progress.
    pub fn is_flash_progressing(&self) -> bool {
        self.flash.as_ref().is_some_and(|flash| flash.log().is_progressing(self.clock_ns()))
    }

    /// Returns whether items will leave memory when bytes are saved up that may be written.
    pub(crate) fn is_flash_saving(&self) -> bool {
        self.flash
            .as_ref()
            .is_some_and(|flash| flash.log().saves_for_refused(&flash.segments, self.clock_ns()))
    }

    /// Takes the next write to flash, if there is one.
    ///
    /// [`Observer::flash_has_writes`](crate::Observer) reports more.
    pub fn take_flash_write(&self) -> Option<FlashWrite> {
        let flash = self.flash.as_ref()?;
        let is_short = self.segments.free_count() < self.free_segments_wanted();
        flash.log().take(&flash.segments, is_short, self.clock_ns())
    }
}

impl Handle {
    /// Takes the result of a write, and links the items that were written.
    ///
    /// Returns whether memory became free. Writes may end in any order.
    pub fn finish_flash_write(&self, write: FlashWrite, buffer: PageBuffer, is_written: bool) -> bool {
        let store = &*self.store;
        let flash = store.flash.as_ref().expect("it made the write");
        if is_written {
            flash.counters.device_bytes_written.add(write.byte_len() as u64);
        } else {
            flash.counters.write_errors.inc();
        }
        flash.log().end(&flash.segments, write, buffer, is_written, store.clock_ns());
        self.publish_written(flash);
        self.continue_compaction(flash);
        store.free_demoted(self.counters())
    }

    /// Publishes the writes that have ended, in turn.
    pub(super) fn publish_written(&self, flash: &Flash) {
        let _publishing = flash.publishing.lock().expect("no thread panics while it publishes");
        loop {
            // Not in the condition: the lock would be held for the whole loop.
            let ended = flash.log().take_ended();
            let Some(ended) = ended else { return };
            let mut is_any_linked = None;
            for staged in &ended.staged {
                let is_written = !flash.log().has_failed_since(staged.begins);
                let is_linked = is_written && self.store.publish(flash, self, staged);
                if !is_linked && staged.class == LAST_CLASS {
                    flash.spans.forget(staged.page);
                    flash.segments.note_change();
                }
                if staged.moved_from.is_none() {
                    is_any_linked = Some(is_any_linked == Some(true) || is_linked);
                    flash.log().long_items.forget(staged.place());
                }
            }
            if let Some(id) = ended.seals {
                flash.segments.seal(id);
            }
            flash.log().note_published(is_any_linked, self.store.clock_ns());
        }
    }
}
