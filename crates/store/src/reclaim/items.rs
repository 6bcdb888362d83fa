//! Empties a segment: each item is dropped, evicted, or moved.

use std::ops::ControlFlow;

use fabcache_layout::item::{self, ChunkEntry, Item, KEY_BYTES_MAX, NewItem, State};
use fabcache_layout::sync::Ordering;
use fabcache_layout::{KeyHash, Slot, size_class};

use super::stuck::StuckReason;
use super::{ImmovableItem, Obstacle, ReclaimPurpose, Victim, whole_bytes};
use crate::counters::StoreCounters;
use crate::eviction::Eviction;
use crate::flash::Demotion;
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::info::{Detail, Expiry, ItemInfo, Miss};
use crate::segments::{ClaimPurpose, Queue};
use crate::store::{Observer, Store};

impl Store {
    /// Passes over the item at the victim's position; returns its bytes.
    pub(super) fn pass_over(
        &self,
        victim: &mut Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
    ) -> Result<u64, Obstacle> {
        let offset = victim.at;
        let item = Item::read(&self.memory, offset).expect("a sealed segment is in the region");
        let bytes = item.bytes();
        counters.reclaim_items_checked.inc();
        if item.state.has(State::DEAD) {
            return Ok(bytes);
        }
        let mut key = [0; KEY_BYTES_MAX];
        let key = self.copy_key(offset, &item, &mut key);
        let hash = if item.is_chunk() { KeyHash(item.cas) } else { self.hash(key) };
        let group = self.index.lock(hash);
        // Under the lock it either is dead by now, or cannot die but by us.
        if item::load_state(&self.memory, offset).has(State::DEAD) {
            return Ok(bytes);
        }
        if item.is_chunk() {
            self.pass_over_chunk(victim, eviction, counters, &group, hash, (offset, &item))?;
            return Ok(bytes);
        }
        let Some(at) = group.find(hash, |slot| slot.offset() == offset) else {
            // Written, but not yet linked: its segment would not have been read.
            return Ok(bytes);
        };
        if let Some(miss) = self.gone(&item, self.now()) {
            self.drop_gone(counters, &group, at, &item, miss);
            return Ok(bytes);
        }
        let frequency = at.slot.frequency();
        let keeps = self.keeps(victim, eviction.credited(victim.queue, frequency, whole_bytes(&item)), bytes);
        if victim.purpose == ReclaimPurpose::Evict && victim.queue == Queue::Main {
            eviction.see_main(frequency, bytes);
        }
        let worn = self.worn(victim, eviction, at, &item);
        if keeps {
            let to = (self.destination(victim), worn);
            match self.move_item(counters, &group, hash, at, &item, to) {
                Ok(()) => {
                    victim.moved_bytes += bytes;
                    return Ok(bytes);
                }
                Err(immovable) if !self.may_leave(victim) => return Err(immovable.into()),
                Err(ImmovableItem) => {}
            }
        }
        self.leave(victim, eviction, counters, &group, hash, (at, &item))?;
        Ok(bytes)
    }

    /// Returns whether items of a victim may go to flash or be evicted.
    pub(super) fn may_leave(&self, victim: &Victim) -> bool {
        self.evicts() || self.flash.is_some() && victim.purpose == ReclaimPurpose::Evict
    }

    /// Lets an item leave memory: to flash, else it is evicted.
    pub(super) fn leave(
        &self,
        victim: &mut Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        (at, item): (SlotSnapshot, &Item),
    ) -> Result<(), Obstacle> {
        let demotion = match &self.flash {
            Some(flash) if !victim.skips_flash => self.demote(flash, group, hash, at, item),
            _ => Demotion::Refused,
        };
        match demotion {
            Demotion::Busy => return Err(Obstacle::FlashBusy),
            Demotion::Refused if !self.evicts() => return Err(Obstacle::Stuck(StuckReason::Flash)),
            Demotion::Refused => self.evict(counters, group, hash, at, item),
            Demotion::Staged(number) => victim.last_write = Some(number),
            Demotion::Returned => {}
        }
        eviction.see_evicted(victim.queue, whole_bytes(item));
        Ok(())
    }

    /// The queue that items of a victim move to. Without eviction, moved items are kept apart from new ones.
    pub(super) fn destination(&self, victim: &Victim) -> Queue {
        let compacts = victim.purpose != ReclaimPurpose::Evict && self.evicts();
        if compacts { victim.queue } else { Queue::Main }
    }

    /// Returns whether an item is moved rather than dropped.
    pub(super) fn keeps(&self, victim: &Victim, frequency: u8, bytes: u64) -> bool {
        match victim.purpose {
            ReclaimPurpose::Sweep | ReclaimPurpose::Compact => true,
            ReclaimPurpose::Evict => {
                frequency >= victim.least && victim.moved_bytes + bytes <= victim.moved_bytes_max
            }
        }
    }

    pub(crate) fn drop_gone(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        at: SlotSnapshot,
        item: &Item,
        miss: Miss,
    ) {
        self.count_gone(counters, at, item, miss);
        self.unlink(group, at, item);
    }

    /// Counts an expired or flushed item whose memory is taken back.
    pub(crate) fn count_gone(&self, counters: &StoreCounters, at: SlotSnapshot, item: &Item, miss: Miss) {
        counters.reclaimed.inc();
        if miss == Miss::Expired && !self.is_fetched(at.slot, item) {
            counters.expired_unfetched.inc();
        }
    }

    fn is_fetched(&self, slot: Slot, item: &Item) -> bool {
        slot.frequency() > 0 || item.state.has(State::FETCHED)
    }

    /// Returns the frequency that a moved item retains.
    pub(super) fn worn(&self, victim: &Victim, eviction: &Eviction, at: SlotSnapshot, item: &Item) -> u8 {
        let (offset, frequency) = (at.slot.offset(), at.slot.frequency());
        match victim.purpose {
            ReclaimPurpose::Sweep | ReclaimPurpose::Compact => frequency,
            // Its offset is as good as random.
            ReclaimPurpose::Evict => eviction.worn(victim.queue, frequency, whole_bytes(item), offset / 4),
        }
    }

    fn evict(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
    ) {
        self.note_eviction(counters, hash, at, item);
        self.unlink(group, at, item);
    }

    /// Frees a slot for a key in its group, which is full: that of an expired or flushed item, else that of the least
    /// read one. Returns whether there was one that may go.
    pub(crate) fn evict_in_group(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
    ) -> bool {
        let now = self.now();
        // Of items read as often any one: its place is as good as random.
        let rank = |at: SlotSnapshot| {
            let place = (at.slot.0 ^ hash.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (at.slot.frequency(), place)
        };
        let mut least = None;
        let gone = group.visit_usable(hash, |at| {
            if !at.slot.is_item() {
                return ControlFlow::Continue(());
            }
            let in_memory = at.slot.is_item_in_memory();
            let item = in_memory
                .then(|| Item::read(&self.memory, at.slot.offset()).expect("a slot points into the region"));
            if let Some(item) = item
                && let Some(miss) = self.gone(&item, now)
            {
                return ControlFlow::Break((at, item, miss));
            }
            if least.is_none_or(|(least, _)| rank(at) < rank(least)) {
                least = Some((at, item));
            }
            ControlFlow::Continue(())
        });
        match (gone, least) {
            (ControlFlow::Break((at, item, miss)), _) => self.drop_gone(counters, group, at, &item, miss),
            (_, Some((at, Some(item)))) if self.evicts() => self.evict(counters, group, hash, at, &item),
            (_, Some((at, None))) if self.evicts() => {
                group.clear(at.at);
                self.count_evicted_on_flash(at.slot);
            }
            _ => return false,
        }
        true
    }

    /// Records that a live item is evicted.
    pub(crate) fn note_eviction(
        &self,
        counters: &StoreCounters,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
    ) {
        counters.evictions.inc();
        counters.evicted_bytes.add(whole_bytes(item));
        if !self.is_fetched(at.slot, item) {
            counters.evicted_unfetched.inc();
        } else if at.slot.frequency() > 1 {
            counters.evicted_active.inc();
        }
        if item.expiry != 0 {
            counters.evicted_nonzero.inc();
        }
        let queue = self.segments.queue_at(at.slot.offset());
        if queue == Queue::Small {
            self.ghosts.add(hash);
        }
        self.report_eviction(at, item);
    }

    fn report_eviction(&self, at: SlotSnapshot, item: &Item) {
        let idle = self.now().saturating_sub(self.accessed(at.slot.offset(), item.state));
        self.evicted_idle.store(idle, Ordering::Relaxed);
        self.report_item(at, item, |observer, key, info| observer.evicted(key, info));
    }

    /// Passes an item's key and metadata to the observer, if that listens. The caller holds the lock of the item's slot.
    pub(crate) fn report_item(
        &self,
        at: SlotSnapshot,
        item: &Item,
        report: impl FnOnce(&dyn Observer, &[u8], &ItemInfo),
    ) {
        if let Some(observer) = self.observer.get().filter(|observer| observer.is_listening()) {
            let mut key = [0; KEY_BYTES_MAX];
            let key = self.copy_key(at.slot.offset(), item, &mut key);
            report(&**observer, key, &self.info(at.slot, item, self.now(), Detail::Full));
        }
    }

    fn move_item(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
        to: (Queue, u8),
    ) -> Result<(), ImmovableItem> {
        let offset = at.slot.offset();
        let table = item.is_chained().then(|| self.chunks(offset, item));
        self.rewrite(group, hash, at, item, table, to)?;
        counters.items_moved.inc();
        counters.bytes_moved.add(item.bytes());
        Ok(())
    }

    /// Copies an item to an open segment of a queue, a chained one with the given chunks, and links it there with a
    /// frequency.
    pub(crate) fn rewrite(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        at: SlotSnapshot,
        item: &Item,
        chunks: Option<Vec<ChunkEntry>>,
        (queue, frequency): (Queue, u8),
    ) -> Result<(), ImmovableItem> {
        let now = self.now();
        let offset = at.slot.offset();
        let value_len = if chunks.is_some() { 0 } else { item.payload_len() as usize };
        let mut content = Vec::new();
        self.memory.append_to(offset + item.key_at(), usize::from(item.key_len) + value_len, &mut content);
        let (key, value) = content.split_at(usize::from(item.key_len));
        let table: Option<Vec<u8>> =
            chunks.as_ref().map(|chunks| chunks.iter().flat_map(|p| p.to_bytes()).collect());
        let mut state = item::load_state(&self.memory, offset);
        let accessed = self.accessed(offset, state);
        if self.is_fetched(at.slot, item) {
            state = state.with(State::FETCHED);
        }
        let new = NewItem {
            // The window counts from the opening of a segment; in the new one the time mark below dates the item.
            state: state.with_window(0),
            key,
            binary_key: item.has_binary_key(),
            cas: item.cas,
            flags: item.flags,
            expiry: item.expiry,
            chunks: chunks.map_or(0, |chunks| chunks.len() as u32),
            value_len: item.value_len,
        };
        let class = if item.is_chained() {
            self.segments.class_of_moved_chunks(queue, item.expiry, now)
        } else {
            self.segments.class_of(queue, item.expiry, now, 0)
        };
        let reservation =
            self.segments.reserve(class, new.bytes(), now, ClaimPurpose::Move).map_err(|_| ImmovableItem)?;
        let new_offset = reservation.offset;
        self.segments.note_written(new_offset, accessed);
        self.write_item(reservation, &new, table.as_deref().unwrap_or(value), Expiry::at(item.expiry));
        let class = size_class::class_of(new.bytes());
        self.move_location(offset, new_offset, item.is_chained());
        self.relink_copy(group, at, item, Slot::item(hash.tag(), new_offset, class, frequency));
        Ok(())
    }
}
