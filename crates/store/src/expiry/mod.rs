//! Expiry without access: memory of expired items is back soon after, and the work is that of what expires.
//!
//! Each segment has a deadline: the second by which the first of its expiring items is to be removed, some time after
//! it has expired (`bounds::LATE_TTL_DIVISOR`), so that others are removed with it. The housekeeper walks the
//! segments whose deadline has passed, those due longest first, unlinks expired items and computes the next deadline
//! from the rest. A segment without live items is due at once, and is freed. Items of about the same time to live
//! share segments (`segments/ttl.rs`), so a segment is walked a few times in all, and mostly over expired items.
//!
//! The walk holds only the lock of one item's group at a time, so no worker waits for it: it reads as a reader does
//! and checks the segment's generation before it uses what it read. Segments that are still written are walked as far
//! as they are written; see [`Segments::written_up_to`](crate::segments::Segments::written_up_to).

mod state;

use fabcache_layout::item::{Item, KEY_BYTES_MAX, State};
use fabcache_layout::sync::Ordering;
use fabcache_layout::{header, succession};

use crate::bounds::{MAINTENANCE_STEP_ITEMS, TTL_BALANCE_SECONDS};
use crate::counters::StoreCounters;
use crate::handle::Handle;
use crate::segments::NO_DEADLINE;
use crate::store::Store;
pub use state::Expirer;

/// A walk was interrupted: the segment has changed, or a writer is in the middle of it.
struct WalkInterrupted;

impl Handle {
    /// Walks the due segments, and calls `pause` between short parts of it.
    pub(crate) fn expire(&self, pause: &mut impl FnMut()) {
        let store = &*self.store;
        // Another thread holds the lock and does the work.
        let Ok(mut expirer) = store.expirer.try_lock() else { return };
        let (now, epoch) = (store.now(), header::flush_epoch(&store.memory));
        if expirer.epoch != epoch {
            expirer.epoch = epoch;
            store.segments.make_all_due();
        }
        if now.saturating_sub(expirer.balanced_at) >= TTL_BALANCE_SECONDS {
            expirer.balanced_at = now;
            store.segments.balance_classes();
        }
        let mut pacer = Pacer { left: MAINTENANCE_STEP_ITEMS, pause };
        let mut all_walked = true;
        for id in store.segments.due(now) {
            all_walked &= self.walk_segment(id, &mut pacer).is_ok();
        }
        // A segment that was open when its server was killed cannot be walked: its items are moved first.
        if all_walked && store.is_recovered() {
            store.note_swept(epoch);
        }
    }

    /// Frees segments in which nothing lives any more.
    #[cfg(not(loom))]
    pub(crate) fn free_dead_segments(&self) {
        let store = &*self.store;
        if store.index.is_recovering() {
            return;
        }
        let Ok(_expirer) = store.expirer.try_lock() else { return };
        let mut pacer = Pacer { left: MAINTENANCE_STEP_ITEMS, pause: &mut || store.tick_with_flushes() };
        // The first second: they are due at once.
        for id in store.segments.due(0) {
            if store.segments.live_bytes(id) == 0 {
                let _ = self.walk_segment(id, &mut pacer);
                pacer.count();
            }
        }
    }

    fn walk_segment(&self, id: u32, pacer: &mut Pacer<impl FnMut()>) -> Result<(), WalkInterrupted> {
        let store = &*self.store;
        self.verify_before_walk(id, pacer);
        let generation = store.segments.generation(id);
        let (deadline, written) = store.segments.take_deadline(id);
        let walked = match written {
            Ok(written) if store.segments.live_bytes(id) > 0 => {
                self.walk_items(id, generation, written, pacer)
            }
            Ok(_) => Ok(NO_DEADLINE),
            Err(_) => Err(WalkInterrupted),
        };
        store.segments.set_deadline(id, walked.as_ref().map_or(deadline, |next| *next));
        if walked.is_ok() && store.segments.live_bytes(id) == 0 {
            store.segments.seal_open(|open| open == id);
            store.free_dead(id, self.counters());
        }
        walked.map(|_| ())
    }

    /// Unlinks all items of flush epochs before `epoch`, which would soon be mistaken for those of a later epoch. It
    /// takes time in proportion to the number of such items, and waits for writers in the middle of one.
    pub(crate) fn sweep(&self, epoch: u64) {
        let store = &*self.store;
        store.finish_recovery(self.counters(), &mut || true);
        store.segments.seal_open(|_| true);
        let mut pacer = Pacer { left: MAINTENANCE_STEP_ITEMS, pause: &mut || store.tick_with_flushes() };
        for id in 0..store.geometry.segments {
            self.verify_before_walk(id, &mut pacer);
            while store.segments.live_bytes(id) > 0 {
                let generation = store.segments.generation(id);
                match store.segments.written_up_to(id) {
                    Ok(written) if self.walk_items(id, generation, written, &mut pacer).is_ok() => break,
                    _ => std::thread::yield_now(),
                }
            }
        }
        store.note_swept(epoch);
    }

    /// Verifies the items of a segment that was taken over: the headers of damaged ones lead anywhere.
    fn verify_before_walk(&self, id: u32, pacer: &mut Pacer<impl FnMut()>) {
        if self.store.segments.is_unverified(id) {
            self.store.verify_segment(id, &mut || {
                (pacer.pause)();
                true
            });
        }
    }

    /// Unlinks expired and flushed items in the first `written` bytes of a segment; returns when to walk it again.
    fn walk_items(
        &self,
        id: u32,
        generation: u64,
        written: u64,
        pacer: &mut Pacer<impl FnMut()>,
    ) -> Result<u32, WalkInterrupted> {
        let store = &*self.store;
        let mut at = store.geometry.segment_offset(id);
        let end = at + written;
        let mut deadline = NO_DEADLINE;
        while at < end {
            let item = Item::read(&store.memory, at);
            if !store.segments.still(id, generation) {
                return Err(WalkInterrupted);
            }
            let item = item.expect("a segment is in the region");
            self.counters().reclaim_items_checked.inc();
            if !item.is_chunk() && !item.state.has(State::DEAD) {
                if store.gone(&item, store.now()).is_some() {
                    store.bury(at, &item, self.counters());
                } else if item.expiry != 0 {
                    deadline = deadline.min(store.segments.deadline(id, item.expiry));
                }
            }
            at += item.bytes();
            pacer.count();
        }
        Ok(deadline)
    }
}

/// Calls `pause` after a number of items.
struct Pacer<'a, F> {
    left: u32,
    pause: &'a mut F,
}

impl<F: FnMut()> Pacer<'_, F> {
    fn count(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            (self.pause)();
            self.left = MAINTENANCE_STEP_ITEMS;
        }
    }
}

impl Store {
    /// Unlinks the item at `offset`, seen there without a lock, if it is still there and still expired or flushed.
    fn bury(&self, offset: u64, seen: &Item, counters: &StoreCounters) {
        let mut key = [0; KEY_BYTES_MAX];
        let key = self.copy_key(offset, seen, &mut key);
        let hash = self.hash(key);
        let group = self.index.lock(hash);
        // An item that a slot points to stays under the slot's lock. If none does, the item died, or the segment was
        // reused.
        let Some(at) = group.find(hash, |slot| slot.offset() == offset) else { return };
        let item = Item::read(&self.memory, offset).expect("a slot points into the region");
        if let Some(miss) = self.gone(&item, self.now()) {
            self.drop_gone(counters, &group, at, &item, miss);
        }
    }

    /// Unlinks all items of earlier flush epochs.
    pub(crate) fn note_swept(&self, epoch: u64) {
        let before = self.swept_epoch.fetch_max(epoch, Ordering::Relaxed);
        // A thread that noted a later epoch may store its own first: an earlier one only makes a successor sweep again.
        if before < epoch {
            succession::set_swept_epoch(&self.memory, epoch);
        }
    }
}
