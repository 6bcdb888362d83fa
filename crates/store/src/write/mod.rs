//! Writing: one read-modify-write for everything that changes an item.
//!
//! Under the lock of the key's group: the existing item is found, the caller decides on the change, the new item is
//! written to a segment, the old one is marked dead, and the slot is pointed to the new one. The lock is never held
//! while waiting for memory: without free memory it is released, memory is reclaimed, and the write starts again.

mod content;
mod on_flash;
mod put;
pub mod run;

use fabcache_layout::header;
use fabcache_layout::item::{self, Item, NewItem, State, access_window};
use fabcache_layout::sync::Ordering;
use fabcache_layout::{KeyHash, Slot, size_class};

use crate::bounds::{GROUPS_CHECKED_FOR_GROWTH, WRITE_TRIES_MAX};
use crate::error::OutOfMemory;
use crate::handle::Handle;
use crate::index::blocks::ChainUse;
use crate::index::group::LockedGroup;
use crate::index::resize::Growth;
use crate::index::{NoIndexBlock, NoPlace, SlotSnapshot};
use crate::info::{Detail, Expiry, ItemInfo, Miss};
use crate::read_many::Probe;
use crate::segments::{ClaimPurpose, NoSpace, Queue};
use crate::simulation::SimulatedItem;
use crate::store::Store;
use crate::upload::CompletedUpload;

/// The value that a client sent.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// The whole value.
    Bytes(&'a [u8]),
    /// Received chunk by chunk, for the key it was started with.
    CompletedUpload(&'a CompletedUpload),
}

impl Value<'_> {
    /// Returns the bytes of the value.
    pub fn len(&self) -> u64 {
        match self {
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::CompletedUpload(uploaded) => uploaded.len(),
        }
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The value of a new item.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'a> {
    /// This value.
    Is(Value<'a>),
    /// The value of the existing item.
    Same,
    /// The existing item's value, followed by this.
    Appended(Value<'a>),
    /// This, followed by the existing item's value.
    Prepended(Value<'a>),
    /// A decimal number, padded with spaces to `width` bytes.
    Number {
        /// The number.
        number: u64,
        /// The minimum number of bytes: that of the replaced number, or 0.
        width: usize,
    },
}

/// A new item for the key.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Client flags.
    pub flags: u32,
    /// When it expires.
    pub expiry: Expiry,
    /// Its CAS value; none for the next of the store's counter.
    pub cas: Option<u64>,
    /// Its key was given in base64.
    pub binary_key: bool,
    /// Whether it is stale (meta protocol).
    pub stale: bool,
    /// A client has won the right to recache it.
    pub token_sent: bool,
    /// Whether it counts as read.
    pub fetched: bool,
    /// Whether it remains the same item for eviction.
    pub same_item: bool,
    /// Its value.
    pub value: NewValue<'a>,
}

impl<'a> Write<'a> {
    /// A new item with this value: no flags, no expiry, no marks.
    pub fn plain(value: NewValue<'a>) -> Write<'a> {
        Write {
            flags: 0,
            expiry: Expiry::NEVER,
            cas: None,
            binary_key: false,
            stale: false,
            token_sent: false,
            fetched: false,
            same_item: false,
            value,
        }
    }

    /// A write that keeps the item, for a caller to change a part of it.
    pub fn unchanged(info: &ItemInfo) -> Write<'a> {
        Write {
            flags: info.flags,
            expiry: info.expiry,
            cas: Some(info.cas),
            binary_key: info.binary_key,
            stale: info.stale,
            token_sent: info.token_sent,
            fetched: info.fetched,
            same_item: true,
            value: NewValue::Same,
        }
    }

    /// Returns the claim: a replacement of about the same size may use the reserve for rewrites; a larger one may
    /// not, or the reserve would be used up.
    #[inline]
    fn claim(&self, existing: &LinkedItem) -> ClaimPurpose {
        match self.value {
            NewValue::Same => ClaimPurpose::Rewrite,
            NewValue::Number { width, .. } if width > 0 => ClaimPurpose::Rewrite,
            NewValue::Is(value) => existing.claim(value.len()),
            _ => ClaimPurpose::New,
        }
    }
}

/// What becomes of the existing item.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The item stays unchanged.
    Keep,
    /// The item stays, with marks added.
    Mark {
        /// The token was given to a client.
        token_sent: bool,
        /// Whether it counts as read.
        fetched: bool,
    },
    /// The item is removed.
    Remove,
    /// A new item replaces it.
    Write(Write<'a>),
}

impl Change<'_> {
    fn claim(&self, existing: &LinkedItem) -> ClaimPurpose {
        if let Change::Write(write) = self { write.claim(existing) } else { ClaimPurpose::New }
    }
}

/// The metadata assigned to a new item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoredItem {
    /// Its CAS value.
    pub cas: u64,
}

/// The item in the slot of a key, under the group's lock.
#[derive(Clone, Copy, Debug)]
struct LinkedItem {
    /// Its slot, or one on flash that may be the key's: then there is no item.
    at: Option<SlotSnapshot>,
    /// Its header, in memory or as it was read from flash.
    item: Option<Item>,
    /// The flush epoch in which the item was validated. The new item belongs to it: a later flush is answered later,
    /// and removes it.
    epoch: u64,
    now: u32,
    /// Why there is no valid item.
    miss: Option<Miss>,
    /// The new item is that of flash, unchanged.
    is_copy: bool,
}

impl LinkedItem {
    /// Returns the claim of a value of `len` bytes that replaces the item.
    #[inline]
    fn claim(&self, len: u64) -> ClaimPurpose {
        match self.item {
            Some(_) if self.is_on_flash() => ClaimPurpose::New,
            Some(old) if len <= u64::from(old.value_len) => ClaimPurpose::Rewrite,
            _ => ClaimPurpose::New,
        }
    }
}

/// The existing item, as a write sees it to decide.
#[derive(Debug)]
pub struct ExistingItem<'s> {
    handle: &'s Handle,
    store: &'s Store,
    linked: LinkedItem,
    /// The item, if a valid one exists.
    pub info: Result<ItemInfo, Miss>,
    scratch: Vec<u8>,
}

impl ExistingItem<'_> {
    /// The value, if it is one of at most `max` bytes.
    pub fn value(&mut self, max: u32) -> Option<&[u8]> {
        let (at, item) = (self.linked.at?, self.linked.item?);
        if self.linked.is_on_flash() {
            return self.value_on_flash(max);
        }
        if self.info.is_err() || item.is_chained() || item.value_len > max {
            return None;
        }
        self.scratch.clear();
        let from = at.slot.offset() + item.payload_at();
        self.store.memory.append_to(from, item.value_len as usize, &mut self.scratch);
        Some(&self.scratch)
    }
}

/// The bytes that follow the key of a new item.
struct Payload<'a> {
    /// The value, or the table of its chunks.
    bytes: &'a [u8],
    /// Bytes of the value.
    len: u32,
    chunks: u32,
    /// The chunks of the replaced item stay alive.
    keeps_old: bool,
}

/// Why a write cannot be done while the lock is held.
#[derive(Clone, Copy)]
enum WriteObstacle {
    /// No segment has room.
    Space,
    /// The index needs another block.
    Index,
    /// The key's group of the index is full, and nothing in it may be evicted.
    GroupFull,
    /// The key's slot may be one on flash, which has to be read.
    OnFlash,
    /// The value must first be cut into chunks.
    Chunks,
    /// Reclaim took a part of the value while it was being received, because nothing else was left to take.
    Lost,
    /// The value has so many chunks that their table does not fit a segment.
    Scattered,
}

impl From<NoSpace> for WriteObstacle {
    fn from(why: NoSpace) -> WriteObstacle {
        match why {
            NoSpace::Full => WriteObstacle::Space,
            NoSpace::TooLong => WriteObstacle::Scattered,
        }
    }
}

impl From<NoPlace> for WriteObstacle {
    fn from(why: NoPlace) -> WriteObstacle {
        match why {
            NoPlace::NoBucket => WriteObstacle::Index,
            NoPlace::GroupFull => WriteObstacle::GroupFull,
        }
    }
}

impl Handle {
    /// Changes the item under `key` as `decide` says. `decide` may be called several times; the last call counts, and
    /// its second result is returned.
    ///
    /// # Errors
    /// Memory or the key's group of the index is full and nothing may be evicted, or others repeatedly took the memory
    /// evicted for this write. The stored item is unchanged.
    /// Where the existing item is on flash, it is read first ([`OutOfMemory::OnFlash`]).
    pub fn mutate<'a, R>(
        &self,
        key: &[u8],
        decide: impl FnMut(&mut ExistingItem<'_>) -> (Change<'a>, R),
    ) -> Result<(R, StoredItem), OutOfMemory> {
        self.mutate_with(key, false, decide)
    }

    /// As [`Handle::mutate`], for a change that writes whatever the existing item: one on flash is replaced unread, and absent to
    /// `decide`.
    ///
    /// # Errors
    /// As there.
    pub fn overwrite<'a, R>(
        &self,
        key: &[u8],
        decide: impl FnMut(&mut ExistingItem<'_>) -> (Change<'a>, R),
    ) -> Result<(R, StoredItem), OutOfMemory> {
        // Without eviction another key's item must not go.
        self.mutate_with(key, self.store.evicts(), decide)
    }

    fn mutate_with<'a, R>(
        &self,
        key: &[u8],
        overwrites: bool,
        mut decide: impl FnMut(&mut ExistingItem<'_>) -> (Change<'a>, R),
    ) -> Result<(R, StoredItem), OutOfMemory> {
        let store = &*self.store;
        let hash = store.recovered_hash(key);
        // The value in chunks, and whether one on flash is a part of it.
        let mut cut: Option<(CompletedUpload, bool)> = None;
        for tries in 0..WRITE_TRIES_MAX {
            let group = store.index.lock(hash);
            let mut existing = self.existing(&group, hash, key);
            if existing.linked.is_unread() && !overwrites {
                self.scratch.give_back(std::mem::take(&mut existing.scratch));
                return Err(OutOfMemory::OnFlash);
            }
            let (change, result) = decide(&mut existing);
            let mut value = Vec::new();
            let on_flash = existing.linked.is_on_flash();
            let changed = match on_flash {
                true => self.change_on_flash(&mut existing, change, &mut value),
                false => Ok(change),
            };
            let chunks = cut.as_ref().filter(|(_, is_joined)| *is_joined == on_flash).map(|(cut, _)| cut);
            let done =
                changed.and_then(|change| self.apply(&group, hash, key, &mut existing, change, chunks));
            self.scratch.give_back(std::mem::take(&mut existing.scratch));
            drop(group);
            match done {
                Ok(written) => {
                    if let Some((written, bytes)) = written {
                        self.after_write(hash, bytes);
                        return Ok((result, written));
                    }
                    return Ok((result, StoredItem::default()));
                }
                Err(WriteObstacle::Space) => {
                    let claim = changed.map_or(ClaimPurpose::New, |change| change.claim(&existing.linked));
                    self.make_room(claim, tries)?;
                }
                Err(WriteObstacle::Index) => {
                    let more = store.index.add_chain_memory(hash, &|| store.index_segment());
                    more.or_else(|NoIndexBlock| self.make_room(ClaimPurpose::New, tries))?;
                }
                Err(WriteObstacle::Chunks) => {
                    let change = changed.unwrap_or(Change::Keep);
                    cut = Some((self.cut(key, change)?, on_flash));
                }
                Err(WriteObstacle::OnFlash) => return Err(OutOfMemory::OnFlash),
                Err(WriteObstacle::Lost | WriteObstacle::Scattered) => return Err(OutOfMemory::Full),
                Err(WriteObstacle::GroupFull) => {
                    self.counters().out_of_memory.inc();
                    return Err(OutOfMemory::GroupFull);
                }
            }
        }
        self.counters().out_of_memory.inc();
        Err(OutOfMemory::Full)
    }

    /// Finds the item of a key, first where it was probed.
    // Else the item is copied twice.
    #[inline(always)]
    fn linked(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        probe: Option<&Probe>,
    ) -> LinkedItem {
        let store = &*self.store;
        if store.segments.has_unverified() {
            store.drop_damaged_of(group, hash);
        }
        let mut at = probe.and_then(|probe| group.reload(hash, probe.slot_at()));
        let mut item = at.and_then(|at| store.item_of(at.slot.offset(), key));
        if item.is_none() {
            at = group.find(hash, |slot| {
                item = store.item_of(slot.offset(), key);
                item.is_some()
            });
        }
        let now = store.now();
        let epoch = header::flush_epoch(&store.memory);
        let miss = match &item {
            Some(item) => store.gone_in(epoch, item, now),
            None if store.flash.is_some() => return self.linked_on_flash(group, hash, key, (epoch, now)),
            None => Some(Miss::Absent),
        };
        LinkedItem { at, item, epoch, now, miss, is_copy: false }
    }

    fn existing<'s>(&'s self, group: &LockedGroup<'_>, hash: KeyHash, key: &[u8]) -> ExistingItem<'s> {
        let store = &*self.store;
        let linked = self.linked(group, hash, key, None);
        let info = match (linked.miss, linked.at, &linked.item) {
            (None, Some(at), Some(_)) if at.slot.is_on_flash() => {
                self.with_fetched(|fetched| fetched.info(linked.now)).ok_or(Miss::Absent)
            }
            (None, Some(at), Some(item)) => Ok(store.info(at.slot, item, linked.now, Detail::Basic)),
            (miss, ..) => Err(miss.unwrap_or(Miss::Absent)),
        };
        ExistingItem { handle: self, store, linked, info, scratch: self.scratch.take() }
    }

    fn apply(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        existing: &mut ExistingItem<'_>,
        change: Change<'_>,
        cut: Option<&CompletedUpload>,
    ) -> Result<Option<(StoredItem, u64)>, WriteObstacle> {
        let store = &*self.store;
        let there = existing.linked.at.zip(existing.linked.item);
        match change {
            Change::Write(write) => self.replace(group, hash, key, existing, &write, cut).map(Some),
            Change::Keep if existing.info.is_ok() => Ok(None),
            Change::Mark { token_sent, fetched } if existing.info.is_ok() => {
                let token = if token_sent { State::TOKEN_SENT } else { 0 };
                let read = if fetched { State::FETCHED } else { 0 };
                if let Some((at, _)) = there {
                    item::set_state(&store.memory, at.slot.offset(), token | read);
                }
                Ok(None)
            }
            // An invalid item is removed whatever the decision.
            _ => {
                if matches!(change, Change::Remove) {
                    store.simulation.note_removed(hash);
                }
                match there {
                    Some((at, _)) if at.slot.is_on_flash() => store.unlink_from_flash(group, at),
                    Some((at, item)) => store.unlink(group, at, &item),
                    None if existing.linked.is_unread() => store.unlink_unread(group, hash),
                    None => {}
                }
                Ok(None)
            }
        }
    }

    /// Writes the new item; its bytes besides.
    fn replace(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        existing: &mut ExistingItem<'_>,
        write: &Write<'_>,
        cut: Option<&CompletedUpload>,
    ) -> Result<(StoredItem, u64), WriteObstacle> {
        let content = self.content(hash, existing, write, cut)?;
        let payload = Payload {
            bytes: &content.payload(),
            len: content.len as u32,
            chunks: content.chunks.len() as u32,
            keeps_old: content.keeps_old,
        };
        let done = self.link_new(group, hash, key, &existing.linked, write, &payload);
        match &done {
            Ok(_) => content.settle(&self.store),
            Err(_) => content.give_up(&self.store),
        }
        done
    }

    /// Writes the new item and links it in place of the existing one. Returns its bytes besides.
    fn link_new(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        existing: &LinkedItem,
        write: &Write<'_>,
        payload: &Payload<'_>,
    ) -> Result<(StoredItem, u64), WriteObstacle> {
        let store = &*self.store;
        let place = match existing.at {
            Some(at) => at.at,
            None => self.place(group, hash)?,
        };
        let now = store.now();
        let mut new = NewItem {
            state: self.new_state(write, existing.epoch),
            key,
            binary_key: write.binary_key,
            cas: match write.cas {
                Some(cas) => cas,
                None if store.cas_enabled => store.next_cas(),
                None => 0,
            },
            flags: write.flags,
            expiry: write.expiry.second(),
            chunks: payload.chunks,
            value_len: payload.len,
        };
        let frequency = match existing.at {
            Some(at) if write.same_item => at.slot.frequency(),
            _ => 0,
        };
        let queue = self.queue_for(hash, existing.at.map(|at| at.slot));
        let class = store.segments.class_of(queue, new.expiry, now, self.thread);
        let bytes = new.bytes();
        let reservation = store.segments.reserve(class, bytes, now, write.claim(existing))?;
        let age = now.saturating_sub(store.segments.opened(reservation.segment));
        new.state = new.state.with_window(access_window(age));
        let offset = reservation.offset;
        store.write_item(reservation, &new, payload.bytes, write.expiry);
        let slot = Slot::item(hash.tag(), offset, size_class::class_of(bytes), frequency);
        match existing.at {
            Some(at) if at.slot.is_on_flash() => self.replace_on_flash(group, hash, existing, at, slot),
            Some(at) => {
                let old = existing.item.expect("a slot has an item");
                if !payload.keeps_old {
                    store.kill_chunks(at.slot.offset(), &old);
                }
                store.relink(group, at, &old, slot);
                if let Some(miss) = existing.miss {
                    store.count_gone(self.counters(), at, &old, miss);
                }
            }
            None => group.insert_at(place, slot),
        }
        if queue == Queue::Main && existing.at.is_none() {
            store.ghosts.remove(hash);
        }
        let chunked = if payload.chunks == 0 { 0 } else { u64::from(payload.len) };
        let stored = SimulatedItem { hash, bytes: bytes + chunked, expiry: new.expiry };
        let replaces = existing.item.is_some() && existing.miss.is_none();
        if replaces && write.same_item {
            store.simulation.note_updated(stored);
        } else {
            store.simulation.note_stored(stored, replaces, now);
        }
        self.counters().total_items.inc();
        Ok((StoredItem { cas: if store.cas_enabled { new.cas } else { 0 } }, bytes))
    }

    /// Returns an empty slot for a new key. An item makes way for it in a full group.
    fn place(&self, group: &LockedGroup<'_>, hash: KeyHash) -> Result<u64, WriteObstacle> {
        let mut place = group.place_for(hash, ChainUse::Bounded);
        if place == Err(NoPlace::GroupFull) && self.store.evict_in_group(self.counters(), group, hash) {
            place = group.place_for(hash, ChainUse::Bounded);
        }
        Ok(place?)
    }

    /// Returns the queue of a new item: the main queue if it replaces an item there or one that was read often enough
    /// to be promoted, or was requested again soon after its eviction.
    #[inline]
    fn queue_for(&self, hash: KeyHash, replaced: Option<Slot>) -> Queue {
        let store = &*self.store;
        match replaced {
            _ if !store.evicts() => Queue::Small,
            Some(slot) if slot.is_on_flash() && slot.frequency() == 0 => store.queue_of_new(hash),
            Some(slot) if slot.is_on_flash() => Queue::Main,
            Some(slot) if slot.frequency() >= store.promotion_reads.load(Ordering::Relaxed) => Queue::Main,
            Some(slot) => store.segments.queue_at(slot.offset()),
            None => store.queue_of_new(hash),
        }
    }

    #[inline]
    fn new_state(&self, write: &Write<'_>, epoch: u64) -> State {
        let marks = [
            (write.stale, State::STALE),
            (write.token_sent, State::TOKEN_SENT),
            (write.fetched, State::FETCHED),
        ];
        self.store.note_stored(epoch);
        let live = State::live(epoch);
        marks.into_iter().filter(|(wanted, _)| *wanted).fold(live, |state, (_, bit)| state.with(bit))
    }

    /// Follow-up work of a write: growing the index, keeping segments free.
    fn after_write(&self, hash: KeyHash, written_bytes: u64) {
        self.grow_index(hash);
        self.reclaim_ahead(written_bytes);
        self.report_untouched();
    }

    /// Moves a group of the index if the partition of `hash` grows, or should.
    #[inline]
    fn grow_index(&self, hash: KeyHash) {
        let store = &*self.store;
        let partition = store.index.partition_of(hash);
        let roomy = store.is_roomy();
        if store.index.wants_growth(partition, roomy) {
            if store.index.is_recovering() {
                // No table grows before.
                return store.check_groups(GROUPS_CHECKED_FOR_GROWTH);
            }
            match store.index.grow(partition, roomy, self, &|| store.index_segment()) {
                Growth::Moved => self.counters().groups_moved.inc(),
                Growth::Finished => {
                    self.counters().groups_moved.inc();
                    self.counters().tables_resized.inc();
                }
                Growth::None | Growth::Blocked => {}
            }
        }
    }

    /// Reports that writers will soon write to untouched memory, if they will.
    #[inline]
    fn report_untouched(&self) {
        let store = &*self.store;
        if store.segments.take_wants_touching()
            && let Some(observer) = store.observer.get()
        {
            observer.memory_is_untouched();
        }
    }
}

impl Store {
    /// Something is now stored in this flush epoch. A flush that has not seen this yet came before.
    #[inline]
    fn note_stored(&self, epoch: u64) {
        if self.stored_epoch.load(Ordering::Relaxed) < epoch {
            self.stored_epoch.fetch_max(epoch, Ordering::Release);
        }
    }

    /// More than a quarter of the segments is free.
    pub(crate) fn is_roomy(&self) -> bool {
        self.segments.free_count() as u32 > self.segments.limit() / 4
    }
}
