//! The log: pages are filled in buffers, which are written in turn.
//!
//! Records follow each other across the pages of a segment. Writes may complete in any order; their items are published in the
//! order in which they were staged, so that an item on the pages of two writes is published after both.

#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use fabcache_layout::{KeyHash, Slot};

use super::budget::Budget;
use super::counters::FlashState;
use super::device_pauses::DevicePauses;
use super::filling::Filling;
use super::long_items::{ItemPlace, LongItems};
use super::page::{PAGE_BYTES, PAYLOAD_BYTES, PageName, RECORD_START_MAX, page_class, seal};
use super::refusals::Refusals;
use super::segments::FlashSegments;
use super::spare_buffers::SpareBuffers;
use super::unlinked_writes::UnlinkedWrites;
use super::{FlashOptions, PageBuffer};
#[cfg(not(loom))]
use crate::restart::saved_state::{SavedFlashLog, SavedOpenFlashSegment};

/// Pages of a buffer: a write of half a megabyte, which devices do at their full rate.
const BUFFER_PAGES: u32 = if cfg!(loom) { 1 } else { 128 };
/// Buffers, beside one for a long item.
const BUFFERS: usize = if cfg!(loom) { 2 } else { 8 };
/// An item takes at most this part (1/n) of all segments.
const SPANNED_DIVISOR: usize = 4;
/// If the oldest write has not ended for this long, its device is too slow to wait for: items are evicted, or refused without
/// eviction. Drives that collect garbage or reset a queue answer within a second. An error waits for them as long as a request
/// waits for a read.
const STALLED_NS: u64 = 1_000_000_000;
const STALLED_WITHOUT_EVICTION_NS: u64 = 5_000_000_000;
/// Without eviction, compaction has so many free segments for itself.
const RESERVED_SEGMENTS: usize = 1;

/// An item that is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct StagedItem {
    pub(super) hash: KeyHash,
    /// Where it is in the region, in which generation of its segment.
    pub(super) offset: u64,
    pub(super) generation: u64,
    /// Its state when it was copied.
    pub(super) state: u16,
    /// Its first page, and its class.
    pub(super) page: u32,
    pub(super) class: u8,
    /// The first write with a part of it.
    pub(super) begins: u64,
    /// The slot of an item that is on flash already, and has no place in the region.
    pub(super) moved_from: Option<Slot>,
}

impl StagedItem {
    /// Returns an item on flash that is moved, and whose slot this is.
    pub(super) fn moved(hash: KeyHash, from: Slot) -> StagedItem {
        let moved_from = Some(from);
        StagedItem { hash, offset: 0, generation: 0, state: 0, page: 0, class: 0, begins: 0, moved_from }
    }

    /// Returns where it was when it was copied.
    pub(super) fn place(&self) -> ItemPlace {
        (self.offset, self.generation)
    }
}

/// Consecutive pages to be written.
#[derive(Debug)]
pub struct FlashWrite {
    number: u64,
    device: usize,
    offset: u64,
    len: usize,
    buffer: Option<PageBuffer>,
    /// The name of its first page.
    first: PageName,
    /// Where the first record of each page begins.
    firsts: Vec<Option<u16>>,
    pub(super) staged: Vec<StagedItem>,
    is_long: bool,
}

impl FlashWrite {
    /// The device, by its place in the options.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Where to write, in bytes from the start of the device's segments.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes to write, from the start of the buffer.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Seals the pages and takes the buffer, which is given back with the result.
    ///
    /// The thread that writes computes the checksums, and no worker.
    ///
    /// # Panics
    /// It was taken before.
    pub fn take_buffer(&mut self) -> PageBuffer {
        let mut buffer = self.buffer.take().expect("the buffer is taken once");
        for ((page, first), n) in buffer.chunks_mut(PAGE_BYTES).zip(&self.firsts).zip(0..) {
            seal(page, self.first.plus(n), *first);
        }
        buffer
    }
}

/// The segment that is written.
#[derive(Debug)]
struct OpenSegment {
    id: u32,
    sequence: u64,
    epoch: u64,
    /// Its next page that no buffer has, from its start.
    next_page: u32,
}

/// A write that has ended and is not yet published.
#[derive(Debug)]
pub(super) struct EndedWrite {
    pub(super) staged: Vec<StagedItem>,
    /// The segment of which all writes have ended.
    pub(super) seals: Option<u32>,
    is_written: bool,
}

/// Why an item is not staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotStaged {
    /// All buffers are being written.
    Busy,
    /// It cannot go to flash now.
    Refused,
}

/// The log's state, under its lock.
#[derive(Debug)]
pub(super) struct Log {
    /// Free segments, in the order in which they are used.
    free: VecDeque<u32>,
    /// Of these, those never used come first.
    fresh: usize,
    next_sequence: u64,
    /// The first of this server.
    first_sequence: u64,
    open: Option<OpenSegment>,
    filling: Option<Filling>,
    buffers: Vec<PageBuffer>,
    /// Buffers in existence, but for that of a long item.
    made: usize,
    /// Buffers of a long item.
    long: usize,
    /// Those that were written.
    spare_long: SpareBuffers,
    ready: VecDeque<FlashWrite>,
    in_flight: usize,
    next_number: u64,
    /// All writes before are published.
    published: u64,
    ended: BTreeMap<u64, EndedWrite>,
    /// The last published write that failed. Items are published in the order of their last writes, so this one tells about each.
    last_failed: Option<u64>,
    pauses: DevicePauses,
    /// When the oldest write began to wait, or the one before it was published.
    progress_ns: u64,
    /// How long it may take.
    stalled_ns: u64,
    vain: UnlinkedWrites,
    /// Free segments that only moved items use.
    reserved: usize,
    /// When a segment that is compacted was begun, or the last one of its items was linked to its new record.
    compaction_progress_ns: Option<u64>,
    /// When the last item left a segment that was compacted and is not free yet.
    emptied_ns: Option<u64>,
    /// When a writer requested room that maintenance can make, or maintenance last went on with that.
    room_requested_ns: Option<u64>,
    /// No further moved item fills the buffer: it is due, however little is in it.
    is_flush_due: bool,
    budget: Budget,
    refusals: Refusals,
    pub(super) long_items: LongItems,
}

impl Log {
    pub(super) fn new(options: &FlashOptions, segments: &FlashSegments, evicts: bool) -> Log {
        let free = VecDeque::from(segments.striped());
        Log {
            fresh: free.len(),
            free,
            next_sequence: 1,
            first_sequence: 1,
            open: None,
            filling: None,
            buffers: Vec::new(),
            made: 0,
            long: 0,
            spare_long: SpareBuffers::default(),
            ready: VecDeque::new(),
            in_flight: 0,
            next_number: 0,
            published: 0,
            ended: BTreeMap::new(),
            last_failed: None,
            pauses: DevicePauses::new(segments.devices()),
            progress_ns: 0,
            vain: UnlinkedWrites::default(),
            stalled_ns: if evicts { STALLED_NS } else { STALLED_WITHOUT_EVICTION_NS },
            reserved: if evicts { 0 } else { RESERVED_SEGMENTS },
            compaction_progress_ns: None,
            emptied_ns: None,
            room_requested_ns: None,
            is_flush_due: false,
            budget: Budget::new(options.write_bytes_per_second),
            refusals: Refusals::default(),
            long_items: LongItems::default(),
        }
    }

    /// Returns the writes that wait or are under way, and whether writes fail.
    pub(super) fn queue(&self) -> (u64, FlashState) {
        let state = if self.pauses.are_all_failing() { FlashState::Failing } else { FlashState::Working };
        ((self.ready.len() + self.in_flight) as u64, state)
    }

    /// Returns whether a staged item is likely to be written: the last write to some device succeeded, and none is stalled.
    pub(super) fn is_healthy(&self, now_ns: u64) -> bool {
        !self.pauses.are_all_failing() && !self.is_stalled(now_ns)
    }

    /// Returns how many segments this server opened.
    pub(super) fn segments_opened(&self) -> u64 {
        self.next_sequence - self.first_sequence
    }

    /// Returns what the next server has to know of the log. No write is under way.
    #[cfg(not(loom))]
    pub(super) fn save(&self, segments: &FlashSegments) -> SavedFlashLog {
        let open = self.open.as_ref().map(|open| {
            // The pages that are being filled are handed to no device.
            let filling = self.filling.as_ref().map(|filling| filling.page - segments.first_page(open.id));
            SavedOpenFlashSegment { id: open.id, next_page: filling.unwrap_or(open.next_page) }
        });
        SavedFlashLog {
            free: self.free.iter().copied().collect(),
            fresh: self.fresh as u32,
            next_sequence: self.next_sequence,
            open,
        }
    }

    /// Continues where an earlier server stopped. The caller has checked the numbers.
    #[cfg(not(loom))]
    pub(super) fn restore(&mut self, saved: &SavedFlashLog, segments: &FlashSegments) {
        self.free = saved.free.iter().copied().collect();
        self.fresh = saved.fresh as usize;
        (self.next_sequence, self.first_sequence) = (saved.next_sequence, saved.next_sequence);
        self.open = saved.open.as_ref().map(|open| OpenSegment {
            id: open.id,
            sequence: segments.sequence(open.id),
            epoch: segments.epoch(open.id),
            next_page: open.next_page,
        });
    }

    /// Returns the number of free segments of devices that are written to now.
    pub(super) fn free_segments(&self, segments: &FlashSegments, now_ns: u64) -> usize {
        match self.pauses.is_none_failing() {
            true => self.free.len(),
            false => self.free.iter().filter(|id| !self.is_on_paused(segments, **id, now_ns)).count(),
        }
    }

    /// Returns whether a segment is on a device to which nothing is written now.
    pub(super) fn is_on_paused(&self, segments: &FlashSegments, id: u32, now_ns: u64) -> bool {
        self.pauses.is_paused(segments.device_of(id), now_ns)
    }

    /// Records that a device is lost, or back.
    pub(super) fn set_device_lost(&mut self, segments: &FlashSegments, device: usize, is_lost: bool) {
        self.pauses.set_lost(device, is_lost);
        if is_lost {
            self.leave_device(segments, device);
        }
    }

    /// Ends the segment that is written if it is a device's: unless compaction fills its last segment. Without the rest of that no
    /// segment would become free.
    fn leave_device(&mut self, segments: &FlashSegments, device: usize) {
        let is_open = |open: &OpenSegment| segments.device_of(open.id) == device;
        if self.free.len() >= self.reserved && self.open.as_ref().is_some_and(is_open) {
            self.close_segment(segments);
        }
    }

    /// A segment may be used again.
    pub(super) fn add_free(&mut self, id: u32) {
        self.free.push_back(id);
    }

    /// Returns whether an item that was read or not may be written now.
    pub(super) fn admits(&mut self, was_read: bool, now_ns: u64) -> bool {
        // Until all of flash was written there is nothing to lose by it.
        !self.is_paused(now_ns) && (self.fresh > 0 || self.budget.allows(was_read, now_ns))
    }

    /// Returns whether items of memory are staged that are not published.
    fn has_pending(&self) -> bool {
        self.has_writes() || self.filling.as_ref().is_some_and(|filling| filling.frees_memory)
    }

    /// Returns whether an item of memory may be staged: no write is stalled, and a device that is written to has room.
    /// After a pause only the next writes show whether the device works again ([`Log::is_healthy`]).
    pub(super) fn may_stage(&self, segments: &FlashSegments, now_ns: u64) -> bool {
        let has_pages = |open: &OpenSegment| {
            open.next_page < segments.segment_pages() && !self.is_on_paused(segments, open.id, now_ns)
        };
        let free = self.free_segments(segments, now_ns);
        let is_in_open = free == self.reserved && self.open.as_ref().is_some_and(has_pages);
        !self.is_paused(now_ns) && !self.is_stalled(now_ns) && (free > self.reserved || is_in_open)
    }

    /// Returns whether items of other segments than those that were refused may be staged. Once an item was refused for want of
    /// bytes that may be written, the others wait until many are saved up.
    pub(super) fn takes_others(&mut self, segments: &FlashSegments, now_ns: u64) -> bool {
        self.may_stage(segments, now_ns)
            && (!self.refusals.is_by_state() || self.takes_many(segments, now_ns))
    }

    /// Returns whether items that were refused are taken when bytes are saved up for them.
    pub(super) fn saves_for_refused(&self, segments: &FlashSegments, now_ns: u64) -> bool {
        self.refusals.is_by_state() && self.may_stage(segments, now_ns)
    }

    /// Returns whether many items of memory may be staged, whatever they are.
    fn takes_many(&mut self, segments: &FlashSegments, now_ns: u64) -> bool {
        self.may_stage(segments, now_ns) && (self.fresh > 0 || self.budget.allows_many(now_ns))
    }

    /// Records that an item of memory was refused, and stays there.
    pub(super) fn note_refused(&mut self, segments: &FlashSegments, now_ns: u64) {
        let takes_many = self.takes_many(segments, now_ns);
        self.refusals.note(takes_many, now_ns);
    }

    /// Returns whether items that were refused are to be tried again, and forgets them then.
    pub(super) fn takes_refused(&mut self, segments: &FlashSegments, now_ns: u64) -> bool {
        self.refusals.has_some() && {
            let takes_many = self.takes_many(segments, now_ns);
            self.refusals.take_due(takes_many, now_ns)
        }
    }

    /// Returns whether a write to each device has failed so lately that no item is staged.
    pub(super) fn is_paused(&self, now_ns: u64) -> bool {
        self.pauses.are_all_paused(now_ns)
    }

    /// A segment is compacted from now on.
    pub(super) fn begin_compaction(&mut self, now_ns: u64) {
        self.compaction_progress_ns = Some(now_ns);
    }

    /// No segment is compacted.
    pub(super) fn end_compaction(&mut self) {
        self.compaction_progress_ns = None;
    }

    /// The segment that was compacted becomes free once no reader pins it.
    pub(super) fn note_emptied(&mut self, now_ns: u64) {
        self.emptied_ns = Some(now_ns);
    }

    /// Segments to which no slot leads any more become free once no reader pins them.
    pub(super) fn note_retired(&mut self, now_ns: u64) {
        self.emptied_ns.get_or_insert(now_ns);
    }

    /// A writer waits until maintenance has freed segments.
    pub(super) fn request_room(&mut self, now_ns: u64) {
        self.room_requested_ns.get_or_insert(now_ns);
    }

    /// Returns whether a writer waits for maintenance.
    pub(super) fn is_room_requested(&self) -> bool {
        self.room_requested_ns.is_some()
    }

    /// Maintenance goes on.
    pub(super) fn note_maintaining(&mut self, now_ns: u64) {
        if let Some(progress_ns) = &mut self.room_requested_ns {
            *progress_ns = now_ns;
        }
    }

    /// Maintenance has made the room that it could.
    pub(super) fn note_maintained(&mut self) {
        self.room_requested_ns = None;
    }

    /// Segments became free, and took items of memory as far as they could.
    pub(super) fn note_freed(&mut self) {
        self.emptied_ns = None;
    }

    /// A moved item is linked to its new record.
    pub(super) fn note_moved(&mut self, now_ns: u64) {
        if let Some(progress_ns) = &mut self.compaction_progress_ns {
            *progress_ns = now_ns;
        }
    }

    /// Returns whether an item may be moved now: writes work, and the write budget is not exhausted.
    pub(super) fn takes_moved(&mut self, now_ns: u64) -> bool {
        !self.is_stalled(now_ns) && self.admits(false, now_ns)
    }

    /// Returns the bytes of records that surely fit if they are moved now.
    pub(super) fn room_for_moved(&self, segments: &FlashSegments, now_ns: u64) -> u64 {
        let pages = segments.segment_pages();
        let in_open = || self.open.as_ref().map_or(0, |open| pages - open.next_page);
        let (pages, in_filling) = match self.free_segments(segments, now_ns) {
            // No other item goes on meanwhile.
            0 => (in_open(), self.filling.as_ref().map_or(0, Filling::left)),
            _ => (pages, 0),
        };
        u64::from(pages) * PAYLOAD_BYTES as u64 + in_filling as u64
    }

    /// Has the buffer that is filled written, though it is not full.
    pub(super) fn flush(&mut self) {
        self.is_flush_due = self.filling.as_ref().is_some_and(|filling| !filling.staged.is_empty());
    }

    /// Returns whether there is a write, whether memory is short or not.
    pub(super) fn has_due(&self) -> bool {
        let is_due = self.is_flush_due || self.filling.as_ref().is_some_and(Filling::is_well_filled);
        !self.ready.is_empty() || is_due && !self.has_writes()
    }

    /// Returns whether writes wait or are under way.
    pub(super) fn has_writes(&self) -> bool {
        self.in_flight + self.ready.len() > 0
    }

    /// Returns whether the oldest write has not ended for too long.
    fn is_stalled(&self, now_ns: u64) -> bool {
        self.has_writes() && now_ns.saturating_sub(self.progress_ns) > self.stalled_ns
    }

    /// Returns whether writes make progress, so that memory will become free.
    pub(super) fn is_progressing(&self, now_ns: u64) -> bool {
        let is_recent = |at_ns: u64| now_ns.saturating_sub(at_ns) <= self.stalled_ns;
        let is_in_vain = self.vain.have_lasted(now_ns, self.stalled_ns);
        self.has_pending() && !is_in_vain && is_recent(self.progress_ns)
            || [self.compaction_progress_ns, self.emptied_ns, self.room_requested_ns]
                .into_iter()
                .flatten()
                .any(is_recent)
    }

    /// Returns whether the write and all before it are published.
    pub(super) fn is_published(&self, number: u64) -> bool {
        number < self.published
    }

    /// Makes room for a record of `len` bytes of an item of this flush epoch. So many segments stay free.
    fn prepare(
        &mut self,
        segments: &FlashSegments,
        (len, epoch, now_ns): (usize, u64, u64),
        reserved: usize,
    ) -> Result<(), NotStaged> {
        // The rest of a reserved segment is kept for the items that it was opened for.
        let Some(free) = self.free_segments(segments, now_ns).checked_sub(reserved) else {
            return Err(NotStaged::Refused);
        };
        let segment_bytes = segments.segment_pages() as usize * PAYLOAD_BYTES;
        let spanned = len.div_ceil(segment_bytes);
        if spanned > 1 && (spanned > free || spanned > segments.len() / SPANNED_DIVISOR) {
            return Err(NotStaged::Refused);
        }
        if self.is_stalled(now_ns) {
            return Err(NotStaged::Refused);
        }
        let is_long = len > (BUFFERS / 2) * BUFFER_PAGES as usize * PAYLOAD_BYTES;
        if is_long && self.long > 0 {
            return Err(NotStaged::Busy);
        }
        // As many buffers as the record needs beside the one that is filled.
        let needed = if is_long { 0 } else { len.div_ceil(BUFFER_PAGES as usize * PAYLOAD_BYTES) };
        if (BUFFERS + self.buffers.len()).saturating_sub(self.made) < needed {
            return Err(NotStaged::Busy);
        }
        let fits = self.open.as_ref().is_some_and(|open| {
            let left = (segments.segment_pages() - open.next_page) as usize * PAYLOAD_BYTES;
            let left = left + self.filling.as_ref().map_or(0, Filling::left);
            spanned == 1 && open.epoch == epoch && left >= len + PAYLOAD_BYTES
        });
        if !fits {
            if free == 0 {
                return Err(NotStaged::Refused);
            }
            self.close_segment(segments);
            self.open_segment(segments, epoch, now_ns);
        }
        if is_long {
            self.close_buffer(segments);
            self.begin_buffer(segments, len.div_ceil(PAYLOAD_BYTES) as u32 + 1, true);
        } else if self.filling.is_none() {
            self.begin_buffer(segments, BUFFER_PAGES, false);
        }
        Ok(())
    }

    /// Appends the record of an item that is moved, if that may be moved now.
    pub(super) fn append_moved(
        &mut self,
        segments: &FlashSegments,
        staged: StagedItem,
        (len, epoch, now_ns): (usize, u64, u64),
        write: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<(u64, Vec<u32>), NotStaged> {
        if !self.takes_moved(now_ns) {
            return Err(NotStaged::Busy);
        }
        self.append(segments, staged, (len, epoch, now_ns), write)
    }

    /// Appends a record: its parts' bytes, in order. `staged` gets its place. Returns the number of its last write, and its segments:
    /// one, unless it is longer than that.
    pub(super) fn append(
        &mut self,
        segments: &FlashSegments,
        mut staged: StagedItem,
        (len, epoch, now_ns): (usize, u64, u64),
        write: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<(u64, Vec<u32>), NotStaged> {
        if !self.has_writes() {
            self.progress_ns = now_ns;
        }
        let reserved = if staged.moved_from.is_some() { 0 } else { self.reserved };
        self.prepare(segments, (len, epoch, now_ns), reserved)?;
        if self.fresh == 0 {
            self.budget.spend(len as u64);
        }
        self.align(segments, staged.hash);
        let filling = self.filling.as_mut().expect("just prepared");
        let (page, at) = (filling.used / PAYLOAD_BYTES, filling.used % PAYLOAD_BYTES);
        filling.firsts[page].get_or_insert(at as u16);
        staged.page = filling.page + page as u32;
        staged.class = page_class((at + len).div_ceil(PAYLOAD_BYTES) as u32);
        staged.begins = self.next_number;
        let is_long = filling.is_long;
        let mut spanned = vec![segments.segment_of(staged.page).expect("the page is one")];
        let mut appended = 0;
        write(&mut |mut bytes| {
            while !bytes.is_empty() {
                if self.filling.as_ref().is_none_or(|filling| filling.left() == 0) {
                    let long_bytes = if is_long { len - appended } else { 0 };
                    self.go_on(segments, &mut spanned, long_bytes, now_ns);
                }
                let filling = self.filling.as_mut().expect("just begun");
                let taken = filling.append(bytes);
                appended += taken;
                bytes = &bytes[taken..];
            }
        });
        debug_assert_eq!(appended, len);
        let number = self.next_number;
        let filling = self.filling.as_mut().expect("it has the record's last byte");
        filling.frees_memory |= staged.moved_from.is_none();
        filling.staged.push(staged);
        if filling.is_long || filling.left() == 0 {
            self.close_buffer(segments);
        }
        Ok((number, spanned))
    }

    /// Begins the next buffer of a record, for so many bytes if they are to be one write, and the next segment where one ends.
    fn go_on(&mut self, segments: &FlashSegments, spanned: &mut Vec<u32>, long_bytes: usize, now_ns: u64) {
        self.close_buffer(segments);
        let open = self.open.as_ref().expect("the record's segment is open");
        if open.next_page == segments.segment_pages() {
            let epoch = open.epoch;
            self.close_segment(segments);
            self.open_segment(segments, epoch, now_ns);
            spanned.extend(self.open.as_ref().map(|open| open.id));
        }
        match long_bytes {
            0 => self.begin_buffer(segments, BUFFER_PAGES, false),
            bytes => self.begin_buffer(segments, bytes.div_ceil(PAYLOAD_BYTES) as u32, true),
        }
    }

    /// Moves on to where the next record may begin. A slot tells its key's page, and the first `REST_BITS` bits of its hash
    /// or more. No two records of a page share these, so a read finds neither an older item of its key nor a deleted one.
    fn align(&mut self, segments: &FlashSegments, hash: KeyHash) {
        let filling = self.filling.as_mut().expect("a buffer is filled");
        let aligned = filling.used.next_multiple_of(4);
        let page = filling.page + (aligned / PAYLOAD_BYTES) as u32;
        let starts = aligned % PAYLOAD_BYTES <= RECORD_START_MAX && !filling.has_alike(page, hash);
        filling.pad_to(
            if starts { aligned } else { aligned.next_multiple_of(PAYLOAD_BYTES) }.min(filling.capacity),
        );
        if filling.left() == 0 {
            self.close_buffer(segments);
            self.begin_buffer(segments, BUFFER_PAGES, false);
        }
    }

    fn open_segment(&mut self, segments: &FlashSegments, epoch: u64, now_ns: u64) {
        let is_usable = |id: &u32| !self.is_on_paused(segments, *id, now_ns);
        let id = self.free.iter().position(is_usable).and_then(|at| self.free.remove(at));
        let id = id.expect("the caller has counted the free segments");
        self.fresh = self.fresh.saturating_sub(1);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        segments.open(id, sequence, epoch);
        self.open = Some(OpenSegment { id, sequence, epoch, next_page: 0 });
    }

    /// Ends the segment that is written. It is sealed when its last write is published.
    pub(super) fn close_segment(&mut self, segments: &FlashSegments) {
        self.close_buffer(segments);
        let Some(open) = self.open.take() else { return };
        // In turn of its writes, some of which may not have ended.
        let number = self.next_number;
        self.next_number += 1;
        let seals = Some(open.id);
        self.ended.insert(number, EndedWrite { staged: Vec::new(), seals, is_written: true });
    }

    /// Ends the segment that is written if it is of another flush epoch.
    pub(super) fn close_flushed(&mut self, segments: &FlashSegments, epoch: u64, now_ns: u64) {
        if self.open.as_ref().is_some_and(|open| open.epoch != epoch) {
            if !self.has_writes() {
                self.progress_ns = now_ns;
            }
            self.close_segment(segments);
        }
    }

    fn begin_buffer(&mut self, segments: &FlashSegments, pages: u32, is_long: bool) {
        let open = self.open.as_mut().expect("a segment is open");
        let pages = pages.min(segments.segment_pages() - open.next_page);
        debug_assert!(pages > 0, "the record fits the segment");
        let long_bytes = pages as usize * PAGE_BYTES;
        let free = match is_long {
            true => self.spare_long.take(long_bytes).inspect(|_| self.long += 1),
            false => self.buffers.pop(),
        };
        let buffer = match free {
            Some(buffer) => buffer,
            None => {
                let pages = if is_long { pages } else { BUFFER_PAGES };
                self.long += usize::from(is_long);
                self.made += usize::from(!is_long);
                // Its pages are zeroed as they are filled: the system maps their memory then.
                PageBuffer::with_capacity(PAGE_BYTES, pages as usize * PAGE_BYTES)
            }
        };
        self.filling = Some(Filling {
            pages: buffer,
            page: segments.first_page(open.id) + open.next_page,
            sequence: open.sequence,
            used: 0,
            capacity: pages as usize * PAYLOAD_BYTES,
            firsts: vec![None; pages as usize],
            staged: Vec::new(),
            frees_memory: false,
            is_long,
        });
        open.next_page += pages;
    }

    /// Hands the buffer over to be written. Pages that it did not fill are left to the next buffer.
    fn close_buffer(&mut self, segments: &FlashSegments) {
        let Some(mut filling) = self.filling.take() else { return };
        self.is_flush_due = false;
        let open = self.open.as_mut().expect("its segment is open");
        let pages = filling.used.div_ceil(PAYLOAD_BYTES);
        open.next_page -= (filling.capacity / PAYLOAD_BYTES - pages) as u32;
        if pages == 0 {
            self.give_back(filling.pages, filling.is_long, self.progress_ns);
            return;
        }
        filling.pad_to(pages * PAYLOAD_BYTES);
        filling.firsts.truncate(pages);
        let (device, offset) = segments.place_of(filling.page);
        let write = FlashWrite {
            number: self.next_number,
            device,
            offset,
            len: pages * PAGE_BYTES,
            buffer: Some(filling.pages),
            first: PageName { tier: segments.tier(), number: filling.page, sequence: filling.sequence },
            firsts: filling.firsts,
            staged: filling.staged,
            is_long: filling.is_long,
        };
        self.next_number += 1;
        self.ready.push_back(write);
    }

    fn give_back(&mut self, buffer: PageBuffer, is_long: bool, now_ns: u64) {
        if is_long {
            self.long -= 1;
            self.spare_long.add(buffer, now_ns);
        } else {
            self.buffers.push(buffer);
        }
    }

    /// Takes the next write. One that is not full only if nothing else is written, and memory or compaction waits for it.
    pub(super) fn take(
        &mut self,
        segments: &FlashSegments,
        is_short: bool,
        now_ns: u64,
    ) -> Option<FlashWrite> {
        if !self.has_writes() {
            self.progress_ns = now_ns;
            let is_waited_for = |filling: &Filling| self.is_flush_due || is_short && filling.frees_memory;
            let is_due = |filling: &Filling| is_waited_for(filling) || filling.is_well_filled();
            if self.filling.as_ref().is_some_and(is_due) {
                self.close_buffer(segments);
            }
        }
        let write = self.ready.pop_front()?;
        self.in_flight += 1;
        Some(write)
    }

    /// Takes back a write that has ended. After a failed one no more of its segment is written, and for a time nothing to its device.
    pub(super) fn end(
        &mut self,
        segments: &FlashSegments,
        write: FlashWrite,
        buffer: PageBuffer,
        is_written: bool,
        now_ns: u64,
    ) {
        let FlashWrite { number, device, staged, is_long, .. } = write;
        self.in_flight -= 1;
        self.give_back(buffer, is_long, now_ns);
        self.ended.insert(number, EndedWrite { staged, seals: None, is_written });
        self.pauses.note_write(device, is_written, now_ns);
        if !is_written {
            self.leave_device(segments, device);
        }
    }

    /// Takes the buffers of long items that none has used for a while.
    pub(super) fn take_spare_buffers(&mut self, now_ns: u64) -> Vec<PageBuffer> {
        self.spare_long.take_unused(now_ns)
    }

    /// Takes the next write to be published, if it has ended.
    pub(super) fn take_ended(&mut self) -> Option<EndedWrite> {
        let ended = self.ended.remove(&self.published)?;
        if !ended.is_written {
            self.last_failed = Some(self.published);
        }
        Some(ended)
    }

    /// Returns whether a write from this one to the one that is being published has failed.
    pub(super) fn has_failed_since(&self, begins: u64) -> bool {
        self.last_failed.is_some_and(|number| number >= begins)
    }

    /// The write is published; whether any of its items of memory was linked, if it had some.
    pub(super) fn note_published(&mut self, is_linked: Option<bool>, now_ns: u64) {
        is_linked.into_iter().for_each(|is_linked| self.vain.note(is_linked, now_ns, self.stalled_ns));
        self.published += 1;
        self.progress_ns = now_ns;
    }
}
