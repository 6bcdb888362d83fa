//! Retirement: empties segments for later use.
//!
//! When few segments are free, all are retired to which no slot leads or whose items have expired or were flushed, and if that
//! is not enough the ones that were written first. These go, too, when the index takes as much memory as it may. A pass over the
//! index clears their slots, for several segments at a time: it takes as long as the index is large. Without eviction, segments
//! with live items are compacted instead (`compaction.rs`).

use fabcache_layout::header;
use fabcache_layout::sync::Ordering;

use super::Flash;
use super::segments::{Kind, SegmentUse};
use crate::dump::Cursor;
use crate::handle::Handle;
use crate::reclaim::Reclaim;
use crate::store::Store;

/// A pass retires this part (1/n) of all segments, beside those that [`FREE_MIN`] lacks.
const RETIRED_DIVISOR: usize = 32;
/// Maintenance frees segments when fewer than this are free.
const FREE_MIN: usize = 2;
/// The index leaves at least this part (1/n) of memory to items in memory.
///
/// Items on flash take memory only in the index.
const UNINDEXED_DIVISOR: u64 = 8;
/// The index leaves at least so many bytes to items in memory, so that these can wait to be written.
const UNINDEXED_BYTES_MIN: u64 = 8 << 20;
/// [`UNINDEXED_BYTES_MIN`] takes at most this part (1/n) of memory.
const UNINDEXED_DIVISOR_MIN: u64 = 4;
/// For each percent that the index takes beyond its part, it may have so many percent fewer items.
const EXCESS_POWER: i32 = 2;
/// Bytes of the index for an item, at most.
const INDEXED_ITEM_BYTES_MAX: u64 = 12;

/// Steps of reclaim for waiting writers in one call, as the thread has writes to finish.
const WAITING_STEPS_MAX: u32 = 256;

/// Segments that compaction avoided make room so late after a search that found none, at the latest.
const SEARCH_AGAIN_NS: u64 = 100_000_000;

/// A search of all segments that found none which maintenance can free.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsuccessfulSearch {
    epoch: u64,
    /// Items expire when it is over.
    second: u32,
    until_ns: u64,
}

impl UnsuccessfulSearch {
    /// Returns whether another search would find none in this flush epoch and second, unless an item has died since.
    fn holds(&self, epoch: u64, second: u32, now_ns: u64) -> bool {
        self.epoch == epoch && self.second == second && now_ns < self.until_ns
    }
}

/// Why a segment is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetireReason {
    /// No slot leads there.
    NoItems,
    /// Its items were flushed or are expired.
    Invalid,
    /// Room is needed.
    Room,
}

impl Handle {
    /// Frees segments of flash for later use, and calls `pause` between short parts of that work.
    ///
    /// Returns false at once while another thread frees segments.
    ///
    /// Otherwise returns whether room is short until readers end. Readers do not report their end: call it again soon.
    pub fn maintain_flash(&self, mut pause: impl FnMut()) -> bool {
        let Some(flash) = &self.store.flash else { return false };
        let Ok(_retiring) = flash.retirement.try_lock() else { return false };
        let mut pause = || {
            pause();
            flash.log().note_maintaining(self.store.clock_ns());
        };
        self.free_segments(flash, &mut pause);
        flash.log().note_maintained();
        flash.retiring() > 0 && flash.free_segments(self.store.clock_ns()) < FREE_MIN
    }

    fn free_segments(&self, flash: &Flash, pause: &mut impl FnMut()) {
        let store = &*self.store;
        self.publish_written(flash);
        // Not under the lock of the log: the system unmaps their memory, which takes milliseconds.
        let spare = flash.log().take_spare_buffers(store.clock_ns());
        drop(spare);
        flash.close_flushed(header::flush_epoch(&store.memory), store.clock_ns());
        self.free_retired(flash);
        self.continue_compaction(flash);
        let now_ns = store.clock_ns();
        let free = flash.soon_free(now_ns);
        let surplus = store.surplus_items(flash);
        if free >= FREE_MIN && surplus == 0 {
            return;
        }
        // Until each slot that an earlier server left is counted, segments seem to have fewer items than they have.
        store.check_all_groups(&mut || {
            pause();
            true
        });
        // Without items, a segment may still have the pages of promoted ones.
        let mut retiring = flash.dead_segments(store);
        if store.evicts() {
            let free = free + retiring.len();
            let wanted =
                if free < FREE_MIN { FREE_MIN + flash.segments.len() / RETIRED_DIVISOR - free } else { 0 };
            let oldest = flash.oldest(wanted, surplus, &retiring, now_ns);
            retiring.extend(oldest.into_iter().map(|id| (id, RetireReason::Room)));
        }
        self.retire(flash, &retiring, pause);
        self.free_retired(flash);
        if !store.evicts() && flash.soon_free(store.clock_ns()) < FREE_MIN {
            self.begin_compaction(flash);
            self.reclaim_for_waiting();
        }
    }

    fn free_retired(&self, flash: &Flash) {
        if flash.free_retired() {
            // Without eviction, segments of memory whose items flash had no room for may leave now.
            self.store.reclaim.lock().expect("no thread panics while it reclaims").forget_stuck();
            self.reclaim_for_waiting();
            // Not before: until now nothing else makes writers wait.
            flash.log().note_freed();
        }
        if !self.store.evicts() && flash.retiring() > 0 {
            flash.log().note_retired(self.store.clock_ns());
        }
    }

    /// Reclaims memory without eviction.
    ///
    /// Writers that wait for flash reclaim none.
    fn reclaim_for_waiting(&self) {
        let store = &*self.store;
        if store.evicts() || store.index.is_recovering() {
            return;
        }
        for _ in 0..WAITING_STEPS_MAX {
            if store.segments_missing() == 0 || !self.reclaim_once() {
                return;
            }
        }
    }

    /// Clears the slots that lead to these segments.
    pub(super) fn retire(&self, flash: &Flash, segments: &[(u32, RetireReason)], pause: &mut impl FnMut()) {
        let mut has_slots = false;
        for (id, reason) in segments {
            let segment = flash.segments.use_of(*id);
            let has_items = flash.segments.retire(*id);
            if has_items && *reason == RetireReason::NoItems {
                // One has returned from memory since.
                flash.segments.seal(*id);
                continue;
            }
            has_slots |= has_items;
            flash.counters.segments_reclaimed.inc();
            if *reason == RetireReason::Room && segment.live > 0 {
                flash.counters.segments_evicted.inc();
                flash.counters.items_evicted.add(u64::from(segment.live));
                flash.counters.bytes_evicted.add(segment.live_bytes());
            }
        }
        if !has_slots {
            return;
        }
        let store = &*self.store;
        let is_retiring = |page| {
            let id = flash.segments.segment_of(page);
            id.is_none_or(|id| flash.segments.kind(id) == Kind::Retiring)
        };
        let mut cursor = Cursor::START;
        while let Some(hash) = cursor.hash() {
            store.recover_group(hash);
            cursor = store.index.walk_flash(cursor, |group, at, item| {
                if is_retiring(item.page) {
                    store.unlink_from_flash(group, at);
                }
            });
            pause();
        }
    }
}

impl Store {
    /// Requests room on full flash for a writer that waits for memory.
    ///
    /// Returns whether [`Handle::maintain_flash`] can make room without eviction. The caller has had all groups checked.
    pub(crate) fn request_flash_room(&self) -> bool {
        let Some(flash) = self.flash.as_ref().filter(|flash| !self.evicts() && flash.can_free(self)) else {
            return false;
        };
        flash.log().request_room(self.clock_ns());
        if let Some(observer) = self.observer.get() {
            observer.flash_lacks_room();
        }
        true
    }

    /// Returns whether [`Handle::maintain_flash`] is due, as writers wait for room that it can make.
    pub fn is_flash_room_requested(&self) -> bool {
        self.flash.as_ref().is_some_and(|flash| flash.log().is_room_requested())
    }

    /// Lets reclaim try again what it could not empty without eviction, once flash takes items that it refused.
    ///
    /// Returns whether it does.
    pub(crate) fn retry_stuck(&self, reclaim: &mut Reclaim) -> bool {
        let Some(flash) = self.flash.as_ref().filter(|_| !self.evicts()) else { return false };
        let is_due = flash.log().takes_refused(&flash.segments, self.clock_ns());
        if is_due {
            reclaim.forget_stuck();
        }
        is_due
    }

    /// Returns how many items the index has too many to leave enough memory to items.
    ///
    /// The index has items in memory and on flash.
    fn surplus_items(&self, flash: &Flash) -> u64 {
        let items = self.index.items();
        flash.items_most.fetch_max(items, Ordering::Relaxed);
        let [bytes, limit] = [self.segments.index_segments(), self.segments.limit()]
            .map(|segments| u64::from(segments) * self.geometry.segment_bytes());
        let unindexed =
            (limit / UNINDEXED_DIVISOR).max(UNINDEXED_BYTES_MIN.min(limit / UNINDEXED_DIVISOR_MIN));
        let bytes_max = limit - unindexed;
        if bytes <= bytes_max {
            return 0;
        }
        // The index does not shrink, and its chains grow while items come and go, the less the fewer items it has.
        let most = flash.items_most.load(Ordering::Relaxed).max(bytes / INDEXED_ITEM_BYTES_MAX);
        let items_max = most as f64 * (bytes_max as f64 / bytes as f64).powi(EXCESS_POWER);
        items.saturating_sub(items_max as u64)
    }
}

impl Flash {
    /// Ends the segment that is written if its items were flushed.
    ///
    /// All items of a segment are of one epoch.
    fn close_flushed(&self, epoch: u64, now_ns: u64) {
        self.log().close_flushed(&self.segments, epoch, now_ns);
    }

    /// Returns the number of free segments of devices that are written to now.
    fn free_segments(&self, now_ns: u64) -> usize {
        self.log().free_segments(&self.segments, now_ns)
    }

    /// Returns the number of segments that are free, or will be when readers end.
    fn soon_free(&self, now_ns: u64) -> usize {
        self.free_segments(now_ns) + self.retiring()
    }

    /// Returns whether maintenance frees segments without eviction, or begins to compact one.
    ///
    /// The caller holds the reclaim lock.
    fn can_free(&self, store: &Store) -> bool {
        let (now_ns, epoch) = (store.clock_ns(), header::flush_epoch(&store.memory));
        if self.soon_free(now_ns) >= FREE_MIN {
            return false;
        }
        let second = store.now();
        let mut searched = self.searched.lock().expect("no thread panics while it searches segments");
        // Before the search: what changes meanwhile may not be seen by it.
        let has_changed = self.segments.take_change();
        if !has_changed && searched.is_some_and(|search| search.holds(epoch, second, now_ns)) {
            return false;
        }
        let can_free = !self.dead_segments(store).is_empty() || self.may_compact(store);
        *searched =
            (!can_free).then_some(UnsuccessfulSearch { epoch, second, until_ns: now_ns + SEARCH_AGAIN_NS });
        can_free
    }

    /// Returns the sealed segments none of whose items is valid.
    fn dead_segments(&self, store: &Store) -> Vec<(u32, RetireReason)> {
        let (now, epoch) = (store.now(), header::flush_epoch(&store.memory));
        let reason = |segment: &SegmentUse| match segment.live {
            0 => Some(RetireReason::NoItems),
            _ if segment.last_expiry <= now || segment.epoch != epoch => Some(RetireReason::Invalid),
            _ => None,
        };
        self.retirable().into_iter().filter_map(|segment| Some((segment.id, reason(&segment)?))).collect()
    }

    /// Returns the sealed segments that were written first, except those of `without`.
    ///
    /// They are at least `segments`, with at least `items` live items, if there are as many.
    fn oldest(
        &self,
        segments: usize,
        mut items: u64,
        without: &[(u32, RetireReason)],
        now_ns: u64,
    ) -> Vec<u32> {
        let is_without = |id: u32| without.iter().any(|(other, _)| *other == id);
        let mut sealed = self.retirable();
        sealed.retain(|segment| !is_without(segment.id));
        sealed.sort_unstable_by_key(|segment| segment.sequence);
        let mut oldest = Vec::new();
        let log = self.log();
        for segment in sealed {
            if items == 0 && oldest.len() >= segments {
                break;
            }
            // Nothing is written there.
            if items == 0 && log.is_on_paused(&self.segments, segment.id, now_ns) {
                continue;
            }
            items = items.saturating_sub(u64::from(segment.live));
            oldest.push(segment.id);
        }
        oldest
    }

    /// Returns the sealed segments that may be retired.
    ///
    /// Segments of an item that continues in others may not, until those are written and the item is linked.
    fn retirable(&self) -> Vec<SegmentUse> {
        let mut sealed: Vec<SegmentUse> =
            self.segments.uses().filter(|segment| segment.kind == Kind::Sealed).collect();
        let unlinked = self.spans.unlinked(&self.segments);
        sealed.retain(|segment| !unlinked.contains(&segment.id));
        sealed
    }

    /// Returns the number of segments that readers keep from being free.
    fn retiring(&self) -> usize {
        self.segments.retiring()
    }

    /// Frees retired segments that no reader pins, and returns whether there was one.
    pub(super) fn free_retired(&self) -> bool {
        let mut has_freed = false;
        if self.retiring() == 0 {
            return false;
        }
        let retiring: Vec<u32> =
            self.segments.uses().filter(|s| s.kind == Kind::Retiring).map(|s| s.id).collect();
        for id in retiring {
            if self.segments.free(id) {
                self.log().add_free(id);
                has_freed = true;
            }
        }
        has_freed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::SetClock;
    use crate::restart::saved_state::SavedFlashLog;
    use crate::{Expiry, FlashOptions, StoreOptions};

    const SEGMENTS: u32 = 100_000;

    /// Returns a store whose flash segments are all sealed, with one live item each.
    fn full(clock: &SetClock) -> Store {
        let store = Store::open(StoreOptions {
            evict: false,
            flash: Some(FlashOptions::of_device(SEGMENTS.into(), 64 << 10)),
            time: Box::new(clock.clone()),
            ..StoreOptions::default()
        });
        let store = store.expect("memory for a test");
        let flash = store.flash.as_ref().expect("it was made with one");
        let log = SavedFlashLog { free: vec![], fresh: 0, next_sequence: SEGMENTS.into(), open: None };
        flash.log().restore(&log, &flash.segments);
        for id in 0..SEGMENTS {
            flash.segments.open(id, id.into(), header::flush_epoch(&store.memory));
            flash.segments.count_written(id, 100, 0);
            flash.segments.count_live_in(id);
            flash.segments.seal(id);
        }
        store
    }

    #[test]
    fn refused_writers_search_full_flash_once() {
        let clock = SetClock::default();
        let store = full(&clock);
        let segments = &store.flash.as_ref().expect("it was made with one").segments;
        assert!(!store.request_flash_room());
        // A search would find this.
        segments.count_written(7, 100, 0);
        for _ in 0..100_000 {
            assert!(!store.request_flash_room());
        }
        segments.count_live_in(7);
        segments.count_dead_in(8);
        assert!(store.request_flash_room(), "a segment is dead");
        segments.count_live_in(8);
        assert!(!store.request_flash_room());
        let handle = Handle::new(&Arc::new(store));
        handle.flush(Expiry::AT_ONCE);
        assert!(handle.store().request_flash_room(), "all items were flushed");
    }

    #[test]
    fn room_that_comes_with_time_is_found() {
        let clock = SetClock::default();
        let store = full(&clock);
        let segments = &store.flash.as_ref().expect("it was made with one").segments;
        assert!(!store.request_flash_room());
        segments.count_written(7, 100, 0);
        clock.set(Duration::from_nanos(SEARCH_AGAIN_NS - 1));
        assert!(!store.request_flash_room());
        clock.set(Duration::from_nanos(SEARCH_AGAIN_NS));
        assert!(store.request_flash_room());
    }
}
