//! What the clock and the operator bring about: the published second, flushes, expiry without access, the memory
//! limit.

use std::thread;

use fabcache_layout::sync::{MutexGuard, Ordering, without};
use fabcache_layout::{header, succession};

use crate::bounds::{FLUSH_EPOCHS_UNSWEPT_MAX, MAINTENANCE_STEP_GROUPS};
use crate::dump::Cursor;
use crate::handle::Handle;
use crate::index::resize::Growth;
use crate::info::Expiry;
use crate::reclaim::StepOutcome;
use crate::store::Store;
use crate::write::Change;

/// How long a lower memory limit waits for writes to flash before it looks again.
#[cfg(not(loom))]
const FLASH_WAIT: std::time::Duration = std::time::Duration::from_millis(1);

impl Store {
    /// Publishes the current second, and executes a due delayed flush. Any thread may call this at any time: it never waits.
    ///
    /// While readers hold leases, a due flush has to wait for them. It is left to [`Handle::maintain`], and no second is
    /// published before.
    #[inline]
    pub fn tick(&self) {
        let now = self.clock.now();
        if now > self.now() {
            self.advance_to(now, false);
        }
    }

    /// As [`Store::tick`], and waits for leases if a due flush has to.
    pub(crate) fn tick_with_flushes(&self) {
        let now = self.clock.now();
        if now > self.now() {
            self.advance_to(now, true);
        }
    }

    #[cold]
    fn advance_to(&self, now: u32, may_wait: bool) {
        // A thread that does not get the lock keeps the last second until the lock's owner is done.
        let Ok(_flushes) = self.flushes.try_lock() else { return };
        let flush_at = self.flush_at.load(Ordering::Acquire);
        if flush_at != 0 && flush_at <= now {
            // Only the lock's owner grants leases.
            if !may_wait && header::grants_leases(&self.memory) {
                return;
            }
            self.start_flush_epoch();
            self.set_flush_at(0);
        }
        if now > self.now() {
            self.publish_second(now);
        }
    }

    /// Publishes a second of the region's clock, and for a successor when it began.
    pub(crate) fn publish_second(&self, second: u32) {
        #[cfg(not(loom))]
        succession::set_time(&self.memory, self.clock.record(second));
        header::publish_clock(&self.memory, second);
    }

    /// Stores the id of the system's boot, for a successor; zeros if the system does not show it.
    #[cfg(not(loom))]
    pub(crate) fn note_boot(&self, id: Option<[u8; 16]>) {
        succession::set_boot_id(&self.memory, id.unwrap_or_default());
    }

    /// Sets the second of the next delayed flush, 0 for none, also for a successor. A flush that happens is begun before:
    /// a successor of a server killed in between flushes again.
    fn set_flush_at(&self, second: u32) {
        succession::set_flush_at(&self.memory, second);
        self.flush_at.store(second, Ordering::Release);
    }

    /// Ends the flush epoch, unless nothing was stored in it. The caller holds the lock of flushes.
    fn start_flush_epoch(&self) {
        if self.stored_epoch.load(Ordering::Acquire) < header::flush_epoch(&self.memory) {
            return;
        }
        self.end_leases();
        header::advance_flush_epoch(&self.memory);
        self.simulation.note_flushed();
        self.segments.seal_open(|_| true);
        self.flushed_order.store(self.segments.last_order(), Ordering::Release);
    }

    /// Ends leases, if there are any, and waits until no reader elsewhere goes by a line that it fetched before. The caller
    /// holds the lock of flushes.
    fn end_leases(&self) {
        if !header::grants_leases(&self.memory) {
            return;
        }
        header::end_leases(&self.memory);
        if !without("lease") {
            thread::sleep(self.lease);
        }
    }

    /// Grants leases again after a flush: with a delay, so that of many flushes one waits.
    fn renew_leases(&self) {
        if self.lease.is_zero() || header::grants_leases(&self.memory) {
            return;
        }
        // A flush would have to end them.
        if let Ok(_flushes) = self.flushes.try_lock() {
            header::grant_leases(&self.memory, self.lease);
        }
    }

    fn flushes(&self) -> MutexGuard<'_, ()> {
        self.flushes.lock().expect("no thread panics while it flushes")
    }
}

impl Handle {
    /// Forgets everything: now, or when `expiry` comes, which may be never. A later flush replaces one that is still
    /// to come.
    pub fn flush(&self, expiry: Expiry) {
        let store = &*self.store;
        let at = expiry.second();
        let _flushes = loop {
            let flushes = store.flushes();
            let epoch = header::flush_epoch(&store.memory);
            // For a flush that is to come, too.
            if epoch - store.swept_epoch.load(Ordering::Relaxed).min(epoch) <= FLUSH_EPOCHS_UNSWEPT_MAX {
                break flushes;
            }
            // The clock does not wait for it.
            drop(flushes);
            self.sweep(epoch);
        };
        if expiry == Expiry::NEVER || at > store.now() {
            store.set_flush_at(at);
            return;
        }
        store.start_flush_epoch();
        store.set_flush_at(0);
    }

    /// Regular work: publishes the clock, restores the validity of readers' leases after a flush, frees expired and
    /// flushed items, continues growing the index. Returns when there is nothing to do for now.
    pub fn maintain(&self) {
        self.maintain_with(|| {});
    }

    /// As [`Handle::maintain`], with `pause` called between parts of it, each less than a quarter of a millisecond of
    /// work.
    pub fn maintain_with(&self, mut pause: impl FnMut()) {
        let store = &*self.store;
        store.tick_with_flushes();
        store.renew_leases();
        let mut pause = || {
            pause();
            store.tick_with_flushes();
        };
        if !store.verify_groups() {
            return;
        }
        // The last unverified segment may have been freed.
        if store.segments.taken_over() > 0 {
            store.note_verified();
        }
        self.expire(&mut pause);
        store.free_unpinned(self.counters());
        // A server that took a region over may have a lower limit than the one before.
        let is_short = || store.segments_missing() > 0 || store.is_over_limit();
        while is_short() && self.reclaim_once() {
            pause();
        }
        let mut groups = 0;
        while let Some(partition) = store.index.growing_partition() {
            match store.index.grow(partition, store.is_roomy(), self, &|| store.index_segment()) {
                Growth::None | Growth::Blocked => break,
                Growth::Moved => self.counters().groups_moved.inc(),
                Growth::Finished => {
                    self.counters().groups_moved.inc();
                    self.counters().tables_resized.inc();
                }
            }
            groups += 1;
            if groups % MAINTENANCE_STEP_GROUPS == 0 {
                pause();
            }
        }
    }

    /// Frees dead segments, which are touched, and then touches the free ones that writers take next, so that their writes
    /// cause no page faults. Segments that the memory limit keeps out of use stay untouched.
    #[cfg(not(loom))]
    pub fn touch_ahead(&self) {
        let store = &*self.store;
        self.free_dead_segments();
        // While the limit is lowered, a segment found free may be retired, and its pages returned to the system.
        let Ok(_steady) = store.limit_moving.try_lock() else { return };
        let bytes = store.geometry.segment_bytes();
        while let Some(id) = store.segments.next_untouched() {
            if !store.backing.touch(store.geometry.segment_offset(id), bytes) {
                return store.segments.give_up_touching();
            }
            store.segments.note_touched(id, true);
        }
    }

    /// Scans all items for expired ones, as a crawler does.
    pub fn crawl(&self) {
        let mut cursor = Cursor::START;
        while !cursor.is_done() {
            (cursor, ..) = self.crawl_on(cursor);
        }
        self.store.tick();
    }

    /// Scans some hundred items for expired ones; returns where to continue, and how many were scanned and expired.
    pub fn crawl_on(&self, cursor: Cursor) -> (Cursor, u64, u64) {
        let mut valid = 0;
        let mut gone = Vec::new();
        let next = self.walk(cursor, |_| valid += 1, |key| gone.push(key.to_vec()));
        for key in &gone {
            // A write that keeps a valid item removes an invalid one, and waits for the lock, which a read does not.
            let _ = self.mutate(key, |_| (Change::Keep, ()));
        }
        let expired = gone.len() as u64;
        (next, valid + expired, expired)
    }

    pub(crate) fn reclaim_once(&self) -> bool {
        let mut reclaim = self.store.reclaim.lock().expect("no thread panics while it reclaims");
        let items = crate::bounds::RECLAIM_STEP_ITEMS;
        match self.store.reclaim_step(&mut reclaim, self.counters(), items) {
            StepOutcome::Freed | StepOutcome::Worked | StepOutcome::Stuck => true,
            StepOutcome::Waiting | StepOutcome::Nothing => false,
        }
    }

    /// As [`Handle::reclaim_once`]. Waits a little for writes to flash, or evicts what they delay for too long.
    #[cfg(not(loom))]
    fn reclaim_or_wait(&self) -> bool {
        if self.reclaim_once() {
            return true;
        }
        if self.store.is_flash_progressing() {
            thread::sleep(FLASH_WAIT);
            return true;
        }
        let mut reclaim = self.store.reclaim.lock().expect("no thread panics while it reclaims");
        self.store.flash.is_some() && self.store.evicts() && reclaim.skip_flash()
    }

    /// Sets the memory limit. Lowering evicts until it holds; raising stops at the reserved size.
    ///
    /// # Errors
    /// The limit cannot be reached, and is unchanged. Items may have been evicted.
    #[cfg(not(loom))]
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), crate::error::MemoryLimitError> {
        self.set_memory_limit_with(bytes, || {})
    }

    /// As [`Handle::set_memory_limit`], with `pause` called between short parts of the work.
    ///
    /// # Errors
    /// As there.
    #[cfg(not(loom))]
    pub fn set_memory_limit_with(
        &self,
        bytes: u64,
        mut pause: impl FnMut(),
    ) -> Result<(), crate::error::MemoryLimitError> {
        use crate::error::MemoryLimitError;
        let store = &*self.store;
        let geometry = &store.geometry;
        if bytes > geometry.region_bytes {
            return Err(MemoryLimitError::BeyondReserved { max: geometry.region_bytes });
        }
        let least = u64::from(store.segments.index_segments() + crate::bounds::SEGMENTS_FOR_ITEMS_MIN);
        let segments = geometry.segments_within(bytes);
        if segments < least {
            return Err(MemoryLimitError::TooSmall { min: geometry.bytes_to(least) });
        }
        store.check_all_groups(&mut || true);
        let _moving = store.limit_moving.lock().expect("no thread panics while it moves the limit");
        if segments < least + u64::from(store.segments.pinned()) {
            return Err(MemoryLimitError::Full);
        }
        let before = (store.usage().memory_limit, store.segments.limit());
        let mut over = store.move_memory_limit(bytes, segments as u32);
        while over > 0 {
            if !self.reclaim_or_wait() && !store.give_up_open() {
                store.move_memory_limit(before.0, before.1);
                return Err(MemoryLimitError::Full);
            }
            over = store.segments.over_limit();
            pause();
            store.tick_with_flushes();
        }
        Ok(())
    }
}

impl Store {
    /// Sets the limit, retires free segments beyond it or restores retired ones; returns the number of segments still
    /// to be reclaimed.
    #[cfg(not(loom))]
    fn move_memory_limit(&self, bytes: u64, segments: u32) -> usize {
        // Returning pages of retired segments requires this lock: none of them may be in use again by then.
        let mut reclaim = self.reclaim.lock().expect("no thread panics while it reclaims");
        reclaim.forget_stuck();
        let (over, released) = self.segments.set_limit(segments);
        self.set_memory_limit_bytes(bytes);
        for offset in released {
            if let Some(id) = self.geometry.segment_of(offset) {
                self.segments.wait_for_grace(id);
            }
            self.release_segment(offset);
        }
        over
    }

    /// Sets the limit of a store that no thread uses yet. Segments in use beyond it stay until they are reclaimed.
    #[cfg(not(loom))]
    pub(crate) fn limit_segments(&self, segments: u32) {
        let (_, released) = self.segments.set_limit(segments);
        released.into_iter().for_each(|offset| self.release_segment(offset));
    }

    /// Returns whether more segments are in use than the memory limit allows.
    fn is_over_limit(&self) -> bool {
        self.segments.over_limit() > 0
    }

    /// Gives the pages of a segment that was retired back to the system.
    pub(crate) fn release_retired(&self, id: u32) {
        #[cfg(not(loom))]
        if self.segments.kind(id) == fabcache_layout::segment::Kind::Retired {
            self.segments.wait_for_grace(id);
            self.release_segment(self.geometry.segment_offset(id));
        }
        #[cfg(loom)]
        let _ = id;
    }

    #[cfg(not(loom))]
    fn release_segment(&self, offset: u64) {
        self.backing.release(offset, self.geometry.segment_bytes());
        if let Some(id) = self.geometry.segment_of(offset) {
            self.segments.note_touched(id, false);
        }
    }
}
