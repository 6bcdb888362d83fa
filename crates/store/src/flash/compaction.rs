//! Compaction: without eviction, moves live items from segments with dead bytes to the end of the log.
//!
//! ```text
//!   sealed --measure: read, sum the live bytes--> worth it --move: read, append live items--> moved --published--> no live item
//! ```
//! One segment is compacted at a time. A pass reads it in the order of its pages, and finds out from the index which records are
//! live. A moved item is linked to its new record when that is written, if its slot still leads to the old one. The last free
//! segment is kept for moved items, and a pass moves items only if all fit there: so a pass that moves items frees its segment.
//!
//! A pass that does not free its segment is followed by a pause, and the segment is avoided for a while: else writers that wait
//! for memory would wait for ever. It is not avoided if the last free segment has some of its items.

use std::collections::HashMap;
use std::io;

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::{Mutex, MutexGuard, without};
use fabcache_layout::{KeyHash, Slot, header};

use super::log::{NotStaged, StagedItem};
use super::page::{PAGE_BYTES, PAYLOAD_BYTES, PageName, RECORD_HEAD_BYTES, Record, copied_key, parts_of};
use super::reading::SegmentPin;
use super::records::{NextRecord, Records};
use super::segments::{Kind, SegmentUse};
use super::{Flash, PageBuffer};
use crate::handle::Handle;
use crate::store::Store;

/// A segment is worth the writes if this part of it (1/n) is dead.
const DEAD_DIVISOR: u64 = 8;
/// Pages of a read: half a megabyte, unless a record is longer.
const READ_PAGES: u32 = if cfg!(loom) { 1 } else { 128 };
/// No pass begins for a second after one that freed no segment.
const PAUSE_NS: u64 = 1_000_000_000;
/// No pass begins for ten seconds after one that failed.
const FAILED_PAUSE_NS: u64 = 10_000_000_000;
/// A segment is avoided for a minute after its items could not be moved.
const AVOIDED_NS: u64 = 60_000_000_000;
/// A segment is avoided for an hour after a pass found few of its bytes dead.
const DENSE_AVOIDED_NS: u64 = 3_600_000_000_000;
/// A segment with too many live bytes is tried again once this part (1/n) of its live items has died.
const DIED_DIVISOR: u32 = 16;

/// The state of compaction.
#[derive(Debug, Default)]
pub(super) struct Compaction(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pass: Option<Pass>,
    /// No pass begins before this time.
    paused_until_ns: u64,
    /// No pass of a segment that seems to have few dead bytes begins before this time.
    dense_paused_until_ns: u64,
    /// The segments that a pass did not free, by number, until they are used again.
    ///
    /// Each is avoided until a time, or until it has at most so many live items.
    avoided: HashMap<u32, Avoided>,
}

#[derive(Clone, Copy, Debug)]
struct Avoided {
    sequence: u64,
    until_ns: u64,
    live: u32,
    /// Whether the segment could not be read: all others are compacted before it.
    has_failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The live records are summed up.
    Measuring,
    /// They are appended to the log.
    Moving,
    /// All are appended.
    Moved,
}

/// The compaction of one segment.
#[derive(Clone, Copy, Debug)]
struct Pass {
    segment: u32,
    sequence: u64,
    epoch: u64,
    stage: Stage,
    /// Whether few of its bytes were dead by the counts of items.
    seems_dense: bool,
    /// The page of the segment at which the next read begins.
    page: u32,
    /// The payload byte of that page at which the pass continues.
    at: usize,
    /// The fewest pages that the next read needs.
    pages_min: u32,
    /// Live records that were measured.
    live: u32,
    /// Bytes of the live records that were measured.
    live_bytes: u64,
    /// Whether a page could not be used, which is a failure only if a live item is there.
    is_damaged: bool,
    is_reading: bool,
    /// Whether the pass waits for a buffer of the log, or for the write budget.
    is_blocked: bool,
    /// The number of the last write with a moved item.
    last_write: Option<u64>,
}

/// Why a pass ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassEnd {
    /// Its items were moved, as far as they were live.
    Moved,
    /// Few of its bytes are dead.
    Dense,
    /// Its items do not fit the segments that are free now.
    NoRoom,
    /// A read failed, or a page with a live item is damaged.
    Failed,
    /// The segment is of another flush epoch, or no longer sealed.
    Stale,
}

/// The next action of a pass after a record.
#[derive(Clone, Copy, Debug)]
enum AfterRecord {
    /// The pass continues with the next record.
    GoOn,
    /// The record continues on pages that are not at hand.
    Cut,
    /// One of the record's pages is damaged.
    Damaged,
    /// The log takes it later.
    Blocked,
    End(PassEnd),
}

/// Returns the most live bytes, of so many, that are worth moving.
fn worth_of(bytes: u64) -> u64 {
    bytes - bytes / DEAD_DIVISOR
}

impl Pass {
    fn new(victim: &SegmentUse, seems_dense: bool) -> Pass {
        Pass {
            seems_dense,
            segment: victim.id,
            sequence: victim.sequence,
            epoch: victim.epoch,
            stage: Stage::Measuring,
            page: 0,
            at: 0,
            pages_min: 0,
            live: 0,
            live_bytes: 0,
            is_damaged: false,
            is_reading: false,
            is_blocked: false,
            last_write: None,
        }
    }

    /// Continues at a payload byte of the pages that were read.
    fn go_to(&mut self, at: usize) {
        self.page += (at / PAYLOAD_BYTES) as u32;
        self.at = at % PAYLOAD_BYTES;
    }
}

/// A read of consecutive pages of a segment that is compacted.
#[derive(Debug)]
pub(super) struct SegmentRead {
    pub(super) device: usize,
    pub(super) offset: u64,
    pub(super) pages: u32,
    pub(super) buffer: Option<PageBuffer>,
    first: PageName,
    /// Keeps the segment from being used again.
    _pin: SegmentPin,
}

impl Compaction {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it compacts")
    }
}

impl Handle {
    /// Continues the pass that waits for the log, and ends the one whose items are published.
    pub(super) fn continue_compaction(&self, flash: &Flash) {
        let mut state = flash.compaction.lock();
        let Some(pass) = &mut state.pass else { return };
        if pass.stage == Stage::Moved {
            if pass.last_write.is_none_or(|number| flash.is_published(number)) {
                flash.end_pass(&mut state, PassEnd::Moved, self.store.clock_ns());
            }
        } else if std::mem::take(&mut pass.is_blocked) {
            drop(state);
            self.request_compaction_read();
        }
    }

    /// Begins to compact the segment with the fewest live bytes, unless one is compacted.
    ///
    /// The caller has had each slot counted.
    pub(super) fn begin_compaction(&self, flash: &Flash) {
        let mut state = flash.compaction.lock();
        let now_ns = self.store.clock_ns();
        let Some(victim) = flash.next_victim(&mut state, &self.store, now_ns) else { return };
        // Promoted items do not return there from now on.
        flash.segments.set_compacted(victim.id, true);
        state.pass = Some(Pass::new(&victim, flash.seems_dense(&victim)));
        flash.log().begin_compaction(now_ns);
        drop(state);
        self.request_compaction_read();
    }

    fn request_compaction_read(&self) {
        if let Some(observer) = self.store.observer.get() {
            observer.flash_has_reads();
        }
    }

    /// Begins the pass's next read.
    pub(super) fn take_compaction_read(&self, flash: &Flash) -> Option<SegmentRead> {
        let store = &*self.store;
        let mut state = flash.compaction.lock();
        let pass = state.pass.as_mut()?;
        if pass.is_reading || pass.is_blocked || pass.stage == Stage::Moved {
            return None;
        }
        if pass.stage == Stage::Moving && !flash.log().takes_moved(store.clock_ns()) {
            pass.is_blocked = true;
            return None;
        }
        // Pinned and then found sealed in the same use, the segment stays that until the pin is dropped.
        let pin = self.pin_flash_segment(pass.segment);
        let Pass { segment: id, sequence, epoch, page, .. } = *pass;
        let is_same = flash.segments.kind(id) == Kind::Sealed && flash.segments.sequence(id) == sequence;
        if !is_same || epoch != header::flush_epoch(&store.memory) {
            flash.end_pass(&mut state, PassEnd::Stale, store.clock_ns());
            return None;
        }
        pass.is_reading = true;
        let pages = READ_PAGES.max(pass.pages_min).min(flash.segments.segment_pages() - page);
        drop(state);
        let number = flash.segments.first_page(id) + page;
        let (device, offset) = flash.segments.place_of(number);
        let first = flash.segments.name_of(number, id);
        let buffer = Some(self.flash_buffer(pages));
        Some(SegmentRead { device, offset, pages, buffer, first, _pin: pin })
    }

    /// Takes the result of a compaction read: moves the live items of its pages, or sums up their bytes.
    pub(super) fn finish_compaction_read(
        &self,
        flash: &Flash,
        read: &SegmentRead,
        buffer: PageBuffer,
        result: io::Result<usize>,
    ) {
        let store = &*self.store;
        let mut pass = flash.compaction.lock().pass.expect("a pass is not ended while it reads");
        let bytes = read.pages as usize * PAGE_BYTES;
        let end = if result.is_ok_and(|len| len >= bytes) {
            self.pass_over_pages(flash, &mut pass, &buffer[..bytes], read.first)
        } else {
            flash.counters.read_errors.inc();
            Some(PassEnd::Failed)
        };
        self.give_back_flash_buffer(buffer);
        pass.is_reading = false;
        let is_paused = pass.stage == Stage::Moved || end.is_some();
        let mut state = flash.compaction.lock();
        state.pass = Some(pass);
        if let Some(end) = end {
            flash.end_pass(&mut state, end, store.clock_ns());
        }
        drop(state);
        let (has_due, has_writes) = {
            let mut log = flash.log();
            if is_paused {
                // No further item fills the buffer.
                log.flush();
            }
            (log.has_due(), log.has_writes())
        };
        if has_due && let Some(observer) = store.observer.get() {
            observer.flash_has_writes();
        }
        if !has_writes {
            // The writes that it waits for may have ended before it was seen to wait.
            self.continue_compaction(flash);
        }
    }

    /// Visits the records of pages that were read, and returns why the pass ends, if it does.
    fn pass_over_pages(
        &self,
        flash: &Flash,
        pass: &mut Pass,
        bytes: &[u8],
        first: PageName,
    ) -> Option<PassEnd> {
        let mut records = Records::new(bytes, first);
        let mut at = pass.at;
        pass.pages_min = 0;
        loop {
            match records.next(at) {
                NextRecord::End => {
                    at = at.max(bytes.len() / PAGE_BYTES * PAYLOAD_BYTES);
                    break;
                }
                NextRecord::Damaged(next) => (pass.is_damaged, at) = (true, next),
                NextRecord::Cut(begins) => {
                    // A header and a key are on two pages at most.
                    (pass.pages_min, at) = (2, begins);
                    break;
                }
                NextRecord::Record(record) => {
                    at = record.at - RECORD_HEAD_BYTES;
                    match self.pass_over_record(flash, pass, (&mut records, bytes, first), &record) {
                        AfterRecord::GoOn => at = record.end(),
                        AfterRecord::Damaged => {
                            (pass.is_damaged, at) = (true, (at / PAYLOAD_BYTES + 1) * PAYLOAD_BYTES);
                        }
                        AfterRecord::Cut => {
                            pass.pages_min =
                                (at % PAYLOAD_BYTES + record.end() - at).div_ceil(PAYLOAD_BYTES) as u32;
                            break;
                        }
                        AfterRecord::Blocked => {
                            pass.is_blocked = true;
                            break;
                        }
                        AfterRecord::End(end) => return Some(end),
                    }
                }
            }
        }
        pass.go_to(at);
        // A record that goes on to another segment is no live one.
        let is_over = pass.page + pass.pages_min.max(1) > flash.segments.segment_pages();
        if is_over { self.end_stage(flash, pass) } else { None }
    }

    /// Ends a stage whose pages were all visited, and returns why the pass ends, if it does.
    fn end_stage(&self, flash: &Flash, pass: &mut Pass) -> Option<PassEnd> {
        if pass.stage == Stage::Moving {
            pass.stage = Stage::Moved;
            return None;
        }
        if pass.is_damaged && pass.live < flash.segments.use_of(pass.segment).live {
            flash.counters.bad_pages.inc();
            return Some(PassEnd::Failed);
        }
        if pass.live_bytes > worth_of(flash.log().room_for_moved(&flash.segments, self.store.clock_ns())) {
            return Some(PassEnd::NoRoom);
        }
        (pass.stage, pass.page, pass.at, pass.pages_min) = (Stage::Moving, 0, 0, 0);
        None
    }

    fn pass_over_record(
        &self,
        flash: &Flash,
        pass: &mut Pass,
        (records, bytes, first): (&mut Records<'_>, &[u8], PageName),
        record: &Record,
    ) -> AfterRecord {
        let store = &*self.store;
        let begins = record.at - RECORD_HEAD_BYTES;
        let payload = begins..record.value().end;
        let page = first.number + (begins / PAYLOAD_BYTES) as u32;
        let hash = store.hash(&copied_key(bytes, record));
        let Some(slot) = store.live_slot(hash, page, record) else { return AfterRecord::GoOn };
        match records.open(payload.clone()) {
            Ok(true) => {}
            Ok(false) => return AfterRecord::Cut,
            Err(_) if pass.stage == Stage::Measuring => {
                flash.counters.bad_pages.inc();
                return AfterRecord::End(PassEnd::Failed);
            }
            Err(_) => return AfterRecord::Damaged,
        }
        if pass.stage == Stage::Measuring {
            pass.live += 1;
            pass.live_bytes += record.item.bytes() + RECORD_HEAD_BYTES as u64;
            let is_dense = pass.live_bytes > worth_of(flash.capacity());
            return if is_dense { AfterRecord::End(PassEnd::Dense) } else { AfterRecord::GoOn };
        }
        // Its segment's epoch is its own: a flush does not revive it.
        if pass.epoch != header::flush_epoch(&store.memory) {
            return AfterRecord::End(PassEnd::Stale);
        }
        let staged = StagedItem::moved(hash, slot);
        let len = payload.len();
        let parts = parts_of(payload);
        let mut log = flash.log();
        let appended =
            log.append_moved(&flash.segments, staged, (len, pass.epoch, store.clock_ns()), |write| {
                parts.for_each(|part| write(&bytes[part]));
            });
        match appended {
            Ok((number, segments)) => {
                flash.note_written(&segments, len, record.item.expiry);
                pass.last_write = Some(number);
                flash.counters.items_moved.inc();
                flash.counters.bytes_moved.add(len as u64);
                AfterRecord::GoOn
            }
            Err(NotStaged::Busy) => AfterRecord::Blocked,
            Err(NotStaged::Refused) => AfterRecord::End(PassEnd::NoRoom),
        }
    }
}

impl Store {
    /// Returns the slot that leads to a record of this page, if there is one.
    ///
    /// An expired item is unlinked instead.
    fn live_slot(&self, hash: KeyHash, page: u32, record: &Record) -> Option<Slot> {
        let group = self.index.lock(hash);
        // No two records of a page have keys whose slots could be taken for each other.
        let at = group
            .find_on_flash(hash, |slot| FlashItem::from_slot(slot).is_some_and(|item| item.page == page))?;
        if record.item.is_expired(self.now()) {
            self.unlink_from_flash(&group, at);
            return None;
        }
        Some(at.slot)
    }

    /// Links a moved item to its new record, if its slot still leads to the old one.
    ///
    /// Returns whether it did.
    ///
    /// The old segment may have been used again meanwhile. But writes are published in turn, so no later record is linked yet.
    pub(super) fn publish_moved(&self, flash: &Flash, from: Slot, staged: &StagedItem) -> bool {
        let group = self.index.lock(staged.hash);
        let is_it = |slot: Slot| slot.same_item(from);
        let found = group.find_on_flash(staged.hash, is_it);
        let found =
            if without("flash_moved_is_same") { group.find(staged.hash, |_| true).or(found) } else { found };
        let Some(at) = found else { return false };
        let slot = group.flash_slot(staged.hash, staged.page, staged.class, at.slot.frequency());
        flash.segments.count_live(staged.page);
        group.replace(at.at, slot);
        self.count_dead_on_flash(at.slot);
        drop(group);
        flash.log().note_moved(self.clock_ns());
        true
    }
}

impl Flash {
    /// Returns whether a segment can be compacted now.
    ///
    /// The caller has had each slot counted.
    pub(super) fn may_compact(&self, store: &Store) -> bool {
        self.next_victim(&mut self.compaction.lock(), store, store.clock_ns()).is_some()
    }

    /// Returns the segment to compact now, unless one is compacted.
    fn next_victim(&self, state: &mut State, store: &Store, now_ns: u64) -> Option<SegmentUse> {
        if state.pass.is_some() || now_ns < state.paused_until_ns || self.log().is_paused(now_ns) {
            return None;
        }
        let takes_dense = now_ns >= state.dense_paused_until_ns;
        self.choose_victim(&mut state.avoided, header::flush_epoch(&store.memory), now_ns)
            .filter(|victim| takes_dense || !self.seems_dense(victim))
    }

    /// Returns the bytes of records that a segment holds.
    fn capacity(&self) -> u64 {
        u64::from(self.segments.segment_pages()) * PAYLOAD_BYTES as u64
    }

    /// Returns whether few of a segment's bytes are dead if its items are of one length.
    fn seems_dense(&self, segment: &SegmentUse) -> bool {
        segment.live_bytes() > worth_of(self.capacity())
    }

    /// Returns the segment to compact: the one with the fewest live bytes, of those with dead items.
    ///
    /// Segments that could not be read come last, so that they do not delay others.
    fn choose_victim(
        &self,
        avoided: &mut HashMap<u32, Avoided>,
        epoch: u64,
        now_ns: u64,
    ) -> Option<SegmentUse> {
        avoided.retain(|id, avoided| self.segments.sequence(*id) == avoided.sequence);
        // An item longer than a segment stays where it is.
        let spanned = self.spans.segments(&self.segments);
        let is_avoided = |segment: &SegmentUse| {
            let still = |avoided: &Avoided| now_ns < avoided.until_ns && segment.live > avoided.live;
            avoided.get(&segment.id).is_some_and(still)
        };
        let has_failed =
            |segment: &SegmentUse| avoided.get(&segment.id).is_some_and(|avoided| avoided.has_failed);
        let is_one = |segment: &SegmentUse| {
            segment.kind == Kind::Sealed
                && segment.epoch == epoch
                && (1..segment.items).contains(&segment.live)
                && !spanned.contains(&segment.id)
                && !is_avoided(segment)
        };
        let rank = |segment: &SegmentUse| (has_failed(segment), segment.live_bytes());
        let log = self.log();
        // Nothing is written to a paused device's segment when it is free.
        let is_written_to = |segment: &SegmentUse| !log.is_on_paused(&self.segments, segment.id, now_ns);
        self.segments.uses().filter(is_one).filter(is_written_to).min_by_key(rank)
    }

    /// Ends the pass.
    fn end_pass(&self, state: &mut State, end: PassEnd, now_ns: u64) {
        let Some(pass) = state.pass.take() else { return };
        // Another may begin.
        self.segments.note_change();
        // The last free segment has some of its items, and the rest fits there: no other pass is as likely to free a segment.
        let is_half_moved = {
            let mut log = self.log();
            log.end_compaction();
            pass.stage != Stage::Measuring && log.free_segments(&self.segments, now_ns) == 0
        };
        let live = self.segments.use_of(pass.segment).live;
        let mut avoid = |ns: u64, live: u32| {
            let has_failed = end == PassEnd::Failed;
            let avoided = Avoided { sequence: pass.sequence, until_ns: now_ns + ns, live, has_failed };
            if !is_half_moved {
                state.avoided.insert(pass.segment, avoided);
            }
        };
        let pause_ns = match end {
            PassEnd::Moved if live == 0 => {
                self.counters.segments_compacted.inc();
                self.log().note_emptied(now_ns);
                return;
            }
            PassEnd::Moved => {
                avoid(AVOIDED_NS, 0);
                PAUSE_NS
            }
            PassEnd::NoRoom | PassEnd::Dense => {
                let ns = if end == PassEnd::Dense { DENSE_AVOIDED_NS } else { AVOIDED_NS };
                avoid(ns, live - live.div_ceil(DIED_DIVISOR));
                if end == PassEnd::Dense && pass.seems_dense {
                    // Others that have dead bytes meanwhile are not delayed.
                    state.dense_paused_until_ns = now_ns + PAUSE_NS;
                    0
                } else {
                    PAUSE_NS
                }
            }
            PassEnd::Failed => {
                avoid(AVOIDED_NS, 0);
                FAILED_PAUSE_NS
            }
            PassEnd::Stale => 0,
        };
        state.paused_until_ns = now_ns + pause_ns;
        if self.segments.sequence(pass.segment) == pass.sequence {
            self.segments.set_compacted(pass.segment, false);
        }
    }

    /// Counts a record that was appended to the log, in these segments.
    pub(super) fn note_written(&self, segments: &[u32], len: usize, expiry: u32) {
        for id in segments {
            self.segments.count_written(*id, (len / segments.len()) as u64, expiry);
        }
        self.spans.note(self.segments.first_page(segments[0]), &segments[1..]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::StoreOptions;
    use crate::flash::FlashOptions;

    /// Returns a store whose flash segments have up to four live items of four.
    fn store() -> Arc<Store> {
        let (memory_bytes, flash) = (2 << 20, Some(FlashOptions::of_device(5, 1 << 20)));
        let options =
            StoreOptions { memory_bytes, memory_bytes_max: memory_bytes, flash, ..StoreOptions::default() };
        let store = Arc::new(Store::open(options).expect("memory for a test"));
        let (flash, epoch) = (flash_of(&store), header::flush_epoch(&store.memory));
        for (id, live) in (0..).zip([3, 1, 2, 4, 0]) {
            flash.segments.open(id, u64::from(id) + 1, epoch);
            (0..4).for_each(|_| flash.segments.count_written(id, 100, 0));
            (0..live).for_each(|_| flash.segments.count_live_in(id));
            flash.segments.seal(id);
        }
        store
    }

    fn flash_of(store: &Store) -> &Flash {
        store.flash.as_ref().expect("it was made with one")
    }

    #[test]
    fn segment_with_the_fewest_live_bytes_is_compacted() {
        let store = store();
        let (flash, now) = (flash_of(&store), header::flush_epoch(&store.memory));
        let mut avoided = HashMap::new();
        let mut victim =
            |epoch, at_ns| flash.choose_victim(&mut avoided, epoch, at_ns).map(|victim| victim.id);
        assert_eq!((victim(now, 0), victim(now + 1, 0)), (Some(1), None));
        // An item that begins in the second segment goes on in the third.
        flash.spans.note(flash.segments.first_page(1), &[2]);
        assert_eq!(victim(now, 0), Some(0));
        avoided.insert(0, Avoided { sequence: 1, until_ns: 5, live: 2, has_failed: false });
        let mut victim = |at_ns| flash.choose_victim(&mut avoided, now, at_ns).map(|victim| victim.id);
        assert_eq!(victim(4), None);
        flash.segments.count_dead_in(0);
        assert_eq!(victim(4), Some(0));
        assert_eq!(victim(5), Some(0));
    }

    #[test]
    fn segments_that_could_not_be_read_come_last() {
        let store = store();
        let (flash, now) = (flash_of(&store), header::flush_epoch(&store.memory));
        let of = |id: u32| Avoided { sequence: u64::from(id) + 1, until_ns: 5, live: 0, has_failed: id == 1 };
        // The others with dead items have more live ones.
        let mut avoided: HashMap<u32, Avoided> = [1].map(|id| (id, of(id))).into();
        let mut victim = |at_ns| flash.choose_victim(&mut avoided, now, at_ns).map(|victim| victim.id);
        assert_eq!((victim(4), victim(5)), (Some(2), Some(2)));
        let mut avoided: HashMap<u32, Avoided> =
            [0, 1, 2].map(|id| (id, Avoided { until_ns: if id == 1 { 5 } else { 9 }, ..of(id) })).into();
        let mut victim = |at_ns| flash.choose_victim(&mut avoided, now, at_ns).map(|victim| victim.id);
        assert_eq!((victim(4), victim(5), victim(9)), (None, Some(1), Some(2)));
    }

    #[test]
    fn promoted_items_do_not_return_while_their_segment_is_compacted() {
        let store = store();
        let flash = flash_of(&store);
        let returns =
            || flash.segments.count_live_again(flash.segments.first_page(1), |sequence| sequence == 2);
        assert!(returns());
        Handle::new(&store).begin_compaction(flash);
        assert!(!returns());
        flash.end_pass(&mut flash.compaction.lock(), PassEnd::Failed, 0);
        assert!(returns());
        assert!(!flash.segments.count_live_again(flash.segments.first_page(1), |sequence| sequence == 1));
    }
}
