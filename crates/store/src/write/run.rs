//! Runs of plain writes: one reservation, one commit and one block of CAS values for many items.
//!
//! Each item is written and linked under its group's lock, as by [`Handle::mutate`]. Its bytes come from a reservation
//! that was made for the items after it too, as far as they are expected in the same segment; an item that turns out
//! to belong elsewhere ends it. A reservation counts as pending until its end, so reclaim and expiry leave the
//! segment alone, and its bytes beyond the last item are returned, or filled with dead items.
//! A single write is a run of one.

use std::cell::Cell;

use fabcache_layout::item::{NewItem, State, access_window};
use fabcache_layout::{Slot, size_class};

use super::{Change, NewValue, StoredItem, Value, Write, WriteObstacle};
use crate::bounds::RUN_SETS_MAX;
use crate::error::OutOfMemory;
use crate::handle::Handle;
use crate::info::Expiry;
use crate::kill::Deaths;
use crate::read_many::Probe;
use crate::segments::{ClaimPurpose, Queue, Reservation};
use crate::simulation::SimulatedItem;

/// A value to be stored under a key, whatever the existing item.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The whole value.
    pub value: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// When it expires.
    pub expiry: Expiry,
}

/// A run that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteRun {
    /// Writes done before the failed one.
    pub stored: usize,
    /// Why that failed.
    pub why: OutOfMemory,
}

impl Put<'_> {
    /// Returns the item to write, without its state.
    #[inline]
    fn item(&self, cas: u64) -> NewItem<'_> {
        NewItem {
            key: self.key,
            cas,
            flags: self.flags,
            expiry: self.expiry.second(),
            value_len: self.value.len() as u32,
            ..NewItem::default()
        }
    }

    /// Returns whether an item of the same expiry takes as many bytes, their CAS values being of one length.
    #[inline]
    fn is_as_long_as(&self, other: &Put<'_>) -> bool {
        self.key.len() == other.key.len()
            && self.value.len() == other.value.len()
            && (self.flags == 0) == (other.flags == 0)
    }
}

/// Space for the next items of a run, of which the first were written.
struct RunSpace {
    reservation: Reservation,
    /// The queue and the expiry of its items.
    queue: Queue,
    expiry: u32,
    /// The flush epoch before it was reserved. Items of a later one may not lie in a segment that was sealed before.
    epoch: u64,
    /// The last access of an item that is stored now.
    window: u8,
    /// Bytes of the items written.
    used: u64,
    /// The first item of the run for which it is not.
    end: usize,
}

/// A run of writes in progress.
struct Run<'r, 'a> {
    handle: &'r Handle,
    puts: &'r [Put<'a>],
    probes: &'r [Probe],
    /// The CAS value of item `i` is this one plus `i + 1`, up to the next item that is written alone.
    cas: u64,
    /// The last of the values taken.
    cas_end: u64,
    now: u32,
    space: Option<RunSpace>,
    /// Each item gets its own space: one did not belong where it was expected, or their lengths depend on their CAS.
    is_mixed: bool,
    deaths: Deaths,
    /// A bit for each item that was added to the index.
    inserted: u64,
    stored_bytes: u64,
}

const _: () = assert!(RUN_SETS_MAX <= u64::BITS as usize);

impl Handle {
    /// Stores values one after the other, at most [`RUN_SETS_MAX`]: what [`Handle::mutate`] does with [`Write::plain`],
    /// in fewer steps. `probes` are the keys'. `stored` is called for each, in order.
    ///
    /// # Errors
    /// Of the first write that failed, as for [`Handle::mutate`]. Those before it are done, and those after it not.
    #[inline]
    pub fn put_many(
        &self,
        puts: &[Put<'_>],
        probes: &[Probe],
        mut stored: impl FnMut(usize, StoredItem),
    ) -> Result<(), IncompleteRun> {
        assert!(puts.len() <= RUN_SETS_MAX && puts.len() <= probes.len(), "a run has bounds, and all probes");
        let store = &*self.store;
        let mut run = Run {
            handle: self,
            puts,
            probes,
            cas: 0,
            cas_end: 0,
            now: store.now(),
            space: None,
            is_mixed: !store.evicts(),
            deaths: Deaths::default(),
            inserted: 0,
            stored_bytes: 0,
        };
        run.take_cas(0);
        let mut since = 0;
        for (i, put) in puts.iter().enumerate() {
            match run.store(i) {
                Ok(item) => stored(i, item),
                Err(_) => {
                    run.finish(since, i);
                    since = i + 1;
                    stored(i, self.put_alone(put).map_err(|why| IncompleteRun { stored: i, why })?);
                    run.take_cas(since);
                }
            }
        }
        run.finish(since, puts.len());
        Ok(())
    }

    /// Stores one value, as [`Handle::put_many`] does. `probe` is the key's.
    ///
    /// # Errors
    /// As for [`Handle::mutate`].
    #[inline]
    pub fn put(&self, put: &Put<'_>, probe: &Probe) -> Result<StoredItem, OutOfMemory> {
        if !self.fits_contiguously(put.value.len() as u64) {
            return self.put_alone(put);
        }
        let mut last = StoredItem::default();
        let done =
            self.put_many(std::slice::from_ref(put), std::slice::from_ref(probe), |_, item| last = item);
        done.map(|()| last).map_err(|run| run.why)
    }

    #[cold]
    fn put_alone(&self, put: &Put<'_>) -> Result<StoredItem, OutOfMemory> {
        let value = NewValue::Is(Value::Bytes(put.value));
        let write = Write { flags: put.flags, expiry: put.expiry, ..Write::plain(value) };
        self.overwrite(put.key, |_| (Change::Write(write), ())).map(|((), stored)| stored)
    }
}

/// Returns whether the `len` CAS values after `cas` take as many bytes each.
#[inline]
fn has_one_length(cas: u64, len: usize) -> bool {
    let width = |cas| NewItem { key: b"k", cas, ..NewItem::default() }.head_len();
    width(cas + 1) == width(cas + len as u64)
}

impl Run<'_, '_> {
    /// Writes an item and links it in place of the existing one.
    #[inline]
    fn store(&mut self, i: usize) -> Result<StoredItem, WriteObstacle> {
        let (put, probe) = (&self.puts[i], &self.probes[i]);
        let (handle, store, hash) = (self.handle, &*self.handle.store, probe.hash());
        if !handle.fits_contiguously(put.value.len() as u64) {
            return Err(WriteObstacle::Chunks);
        }
        let group = store.index.lock_probed(hash, probe.home());
        let existing = handle.linked(&group, hash, put.key, Some(probe));
        if existing.is_unread() && !store.evicts() {
            return Err(WriteObstacle::OnFlash);
        }
        let place = match existing.at {
            Some(at) => at.at,
            None => handle.place(&group, hash)?,
        };
        let mut cas = self.cas_of(i);
        if let Some(old) = &existing.item
            && old.cas >= cas
            && store.cas_enabled
        {
            cas = self.cas_after(old.cas, cas);
        }
        let mut encoded = put.item(cas).encode();
        let bytes = encoded.bytes_with(put.key.len() + put.value.len());
        let (queue, expiry) = (handle.queue_for(hash, existing.at.map(|at| at.slot)), put.expiry.second());
        let is_planned = cas == self.cas_of(i) || bytes == put.item(self.cas_of(i)).bytes();
        self.is_mixed |= !is_planned;
        let claim = existing.claim(put.value.len() as u64);
        let (segment, offset, window) =
            self.take_space(i, queue, bytes, is_planned, (existing.epoch, claim))?;
        store.note_stored(existing.epoch);
        encoded.set_state(State::live(existing.epoch).with_window(window));
        store.write_bytes(segment, offset, &encoded, put.key, put.value);
        let slot = Slot::item(hash.tag(), offset, size_class::class_of(bytes), 0);
        match (existing.at, &existing.item) {
            (Some(at), _) if at.slot.is_on_flash() => {
                handle.replace_on_flash(&group, hash, &existing, at, slot);
            }
            (Some(at), Some(old)) => {
                store.kill_chunks(at.slot.offset(), old);
                store.relink_in_run(&group, at, old, slot, &mut self.deaths);
                if let Some(miss) = existing.miss {
                    store.count_gone(handle.counters(), at, old, miss);
                }
            }
            (Some(_), None) => unreachable!("a slot in memory has an item"),
            (None, _) => {
                group.insert_at(place, slot);
                self.inserted |= 1 << i;
                if queue == Queue::Main {
                    store.ghosts.remove(hash);
                }
            }
        }
        drop(group);
        let replaces = existing.item.is_some() && existing.miss.is_none();
        store.simulation.note_stored(SimulatedItem { hash, bytes, expiry }, replaces, self.now);
        self.stored_bytes += bytes;
        Ok(StoredItem { cas })
    }

    /// Takes CAS values for the items from `first` on, up to one that is written alone: that takes its own, so values
    /// rise along the run.
    #[inline]
    fn take_cas(&mut self, first: usize) {
        let (handle, store) = (self.handle, &*self.handle.store);
        let is_in_run = |put: &&Put<'_>| handle.fits_contiguously(put.value.len() as u64);
        let count = self.puts[first..].iter().take_while(is_in_run).count();
        if store.cas_enabled && count > 0 {
            let cas = store.take_cas(count as u64);
            self.is_mixed |= !has_one_length(cas, count);
            self.cas = cas.wrapping_sub(first as u64);
            self.cas_end = cas + count as u64;
        }
    }

    /// Returns the CAS value of an item for which `planned` was taken, and which replaces one of the value `old`, not
    /// below it: a new one if another thread took the old one later. Values that clients made up are not compared.
    #[cold]
    fn cas_after(&self, old: u64, planned: u64) -> u64 {
        let store = &*self.handle.store;
        if old > self.cas_end && old <= store.last_cas() { store.next_cas() } else { planned }
    }

    #[inline]
    fn cas_of(&self, i: usize) -> u64 {
        if self.handle.store.cas_enabled { self.cas.wrapping_add(1 + i as u64) } else { 0 }
    }

    /// Returns the place of the next item: its segment, its offset, and the window of its last access.
    #[inline]
    fn take_space(
        &mut self,
        i: usize,
        queue: Queue,
        bytes: u64,
        is_planned: bool,
        (epoch, claim): (u64, ClaimPurpose),
    ) -> Result<(u32, u64, u8), WriteObstacle> {
        let is_usable = self
            .space
            .as_ref()
            .is_some_and(|space| i < space.end && space.queue == queue && space.epoch == epoch && is_planned);
        if !is_usable {
            if let Some(space) = self.space.take() {
                self.is_mixed |= i < space.end;
                self.close(space, i);
            }
            self.space = Some(self.reserve(i, queue, bytes, (epoch, claim))?);
        }
        let space = self.space.as_mut().expect("just reserved");
        let (segment, offset) = (space.reservation.segment, space.reservation.offset + space.used);
        space.used += bytes;
        if space.expiry != 0 {
            let at = Reservation { segment, offset, len: bytes };
            self.handle.store.segments.note_expiry(&at, space.expiry, self.now);
        }
        Ok((segment, offset, space.window))
    }

    /// Reserves space for an item, and for those after it that expire with it.
    fn reserve(
        &self,
        i: usize,
        queue: Queue,
        bytes: u64,
        (epoch, claim): (u64, ClaimPurpose),
    ) -> Result<RunSpace, WriteObstacle> {
        let (store, put) = (&*self.handle.store, &self.puts[i]);
        let alike = |other: &&Put<'_>| {
            !self.is_mixed
                && other.expiry == put.expiry
                && self.handle.fits_contiguously(other.value.len() as u64)
        };
        // The probe foresees its queue.
        let queue_of = |i: usize| self.handle.queue_for(self.probes[i].hash(), self.probes[i].item_slot());
        let first_queue = queue_of(i);
        let others = self.puts[i + 1..]
            .iter()
            .enumerate()
            .take_while(|(at, other)| alike(other) && queue_of(i + 1 + at) == first_queue)
            .map(|(_, other)| other);
        let items = Cell::new(0);
        let fit = |left: u64| {
            let (mut len, mut fitting) = (bytes, 1);
            let (mut like, mut size) = (put, bytes);
            for other in others.clone() {
                if !other.is_as_long_as(like) {
                    (like, size) = (other, other.item(self.cas_of(i)).bytes());
                }
                if len + size > left {
                    break;
                }
                (len, fitting) = (len + size, fitting + 1);
            }
            items.set(fitting);
            (len <= left).then_some(len)
        };
        let expiry = put.expiry.second();
        let class = store.segments.class_of(queue, expiry, self.now, self.handle.thread);
        let reservation = store.segments.reserve_fitting(class, bytes, true, self.now, claim, fit)?;
        let items = items.get();
        store.segments.count_live(reservation.offset, reservation.len, items as u64);
        store.segments.note_last_expiry(&reservation, expiry);
        let age = self.now.saturating_sub(store.segments.opened(reservation.segment));
        Ok(RunSpace {
            reservation,
            queue,
            expiry,
            epoch,
            window: access_window(age),
            used: 0,
            end: i + items,
        })
    }

    /// Commits the items in a space, which are those before `next`.
    fn close(&self, space: RunSpace, next: usize) {
        let segments = &self.handle.store.segments;
        let RunSpace { reservation, used, end, .. } = space;
        debug_assert!(next <= end);
        let unused = reservation.len - used;
        if unused == 0 {
            return segments.commit_run(reservation);
        }
        segments.count_dead(reservation.offset, unused, (end - next) as u64);
        if let Err(reservation) = segments.commit_part(reservation, used) {
            let mut at = reservation.offset + used;
            for i in next..end {
                at += self.write_dead(i, reservation.segment, at);
            }
            debug_assert_eq!(at, reservation.offset + reservation.len);
            segments.commit_run(reservation);
        }
    }

    /// Writes a dead item where another one was to be, with a checksum that confirms its length. Returns its bytes.
    fn write_dead(&self, i: usize, segment: u32, offset: u64) -> u64 {
        let put = &self.puts[i];
        let new = NewItem { state: State::default().with(State::DEAD), ..put.item(self.cas_of(i)) };
        self.handle.store.write_bytes(segment, offset, &new.encode(), put.key, put.value);
        new.bytes()
    }

    /// Ends the items from `first` to `next`: commits them, counts the items that they replaced as dead, and does the
    /// follow-up work.
    fn finish(&mut self, first: usize, next: usize) {
        let store = &*self.handle.store;
        if let Some(space) = self.space.take() {
            self.close(space, next);
        }
        self.deaths.settle(store);
        let stored = next - first;
        if stored == 0 {
            return;
        }
        self.handle.counters().total_items.add(stored as u64);
        // An index grows by new keys. One write of a run helps, whatever it did.
        let mut inserted = std::mem::take(&mut self.inserted) | 1 << first;
        while inserted != 0 {
            self.handle.grow_index(self.probes[inserted.trailing_zeros() as usize].hash());
            inserted &= inserted - 1;
        }
        let bytes = std::mem::take(&mut self.stored_bytes) / stored as u64;
        for _ in 0..stored {
            if !self.handle.reclaim_ahead(bytes) {
                break;
            }
        }
        self.handle.report_untouched();
    }
}
