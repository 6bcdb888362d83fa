//! Flash segments: their use, the items that slots lead to, and readers.
//!
//! ```text
//!   free --open--> open --last page published--> sealed --retire--> retiring --no slot, no reader--> free
//! ```
//! A reader pins the segment, and then loads the slot again; a segment is freed when no slot leads there, and then no pin is
//! found. So a pinned page is that of the slot.

use std::ops::Range;

use fabcache_layout::sync::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence, in_order, without,
};

use super::page::{PAGE_BYTES, PageName};
#[cfg(not(loom))]
use crate::restart::saved_state::SavedFlashSegment;

/// The use of a flash segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Free,
    Open,
    Sealed,
    Retiring,
}

impl Kind {
    fn of(number: u32) -> Kind {
        [Kind::Free, Kind::Open, Kind::Sealed, Kind::Retiring][number as usize % 4]
    }
}

#[derive(Debug)]
struct FlashSegment {
    kind: AtomicU32,
    /// Which use of the segment this is, in the order of all segments' uses.
    sequence: AtomicU64,
    /// The flush epoch of its items.
    epoch: AtomicU64,
    /// Items that slots lead to.
    live: AtomicU32,
    /// Items written.
    items: AtomicU32,
    /// Bytes of their records.
    bytes: AtomicU64,
    /// The second in which the last item expires; `u32::MAX` if one never does.
    last_expiry: AtomicU32,
    pins: AtomicU32,
    /// Its live items are moved elsewhere.
    is_compacted: AtomicBool,
}

/// A segment as retirement and statistics see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentUse {
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    pub(crate) live: u32,
    pub(crate) items: u32,
    pub(crate) bytes: u64,
    pub(crate) last_expiry: u32,
}

impl SegmentUse {
    /// Returns the bytes of its live items, by the mean of all that were written.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.bytes * u64::from(self.live) / u64::from(self.items.max(1))
    }
}

/// All flash segments.
#[derive(Debug)]
pub(crate) struct FlashSegments {
    /// The tier's id, which the checksum of each of its pages covers.
    tier: u64,
    segments: Box<[FlashSegment]>,
    segment_pages: u32,
    /// The segments of each device.
    devices: Vec<Range<u32>>,
    /// Segments that are being retired.
    retiring: AtomicUsize,
    /// Whether a segment may have become dead, or one with dead items, since [`FlashSegments::take_change`].
    has_changed: AtomicBool,
}

impl FlashSegments {
    pub(crate) fn new(tier: u64, device_bytes: &[u64], segment_bytes: u64) -> FlashSegments {
        let mut devices = Vec::new();
        let mut count = 0;
        for bytes in device_bytes {
            let segments = (bytes / segment_bytes) as u32;
            devices.push(count..count + segments);
            count += segments;
        }
        let segment = |_| FlashSegment {
            kind: AtomicU32::new(Kind::Free as u32),
            sequence: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            live: AtomicU32::new(0),
            items: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            last_expiry: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            is_compacted: AtomicBool::new(false),
        };
        let segment_pages = (segment_bytes / PAGE_BYTES as u64) as u32;
        FlashSegments {
            tier,
            segments: (0..count).map(segment).collect(),
            segment_pages,
            devices,
            retiring: AtomicUsize::new(0),
            has_changed: AtomicBool::new(true),
        }
    }

    /// Returns the number of segments of each device, and the pages of a segment.
    #[cfg(not(loom))]
    pub(super) fn shape(&self) -> (Vec<u32>, u32) {
        (self.devices.iter().map(|range| range.end - range.start).collect(), self.segment_pages)
    }

    /// Returns the tier's id.
    pub(crate) fn tier(&self) -> u64 {
        self.tier
    }

    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Pages of all segments.
    pub(crate) fn pages(&self) -> u64 {
        self.segments.len() as u64 * u64::from(self.segment_pages)
    }

    pub(crate) fn segment_pages(&self) -> u32 {
        self.segment_pages
    }

    /// Returns the first page of a segment.
    pub(crate) fn first_page(&self, id: u32) -> u32 {
        id * self.segment_pages
    }

    /// Returns the segment of a page; `None` if there is no such page.
    pub(crate) fn segment_of(&self, page: u32) -> Option<u32> {
        let id = page / self.segment_pages;
        ((id as usize) < self.segments.len()).then_some(id)
    }

    /// Returns the pages from this one to the end of its segment.
    pub(crate) fn pages_left(&self, page: u32) -> u32 {
        self.segment_pages - page % self.segment_pages
    }

    /// Returns the device of a page, and the page's offset in its segments, in bytes.
    pub(crate) fn place_of(&self, page: u32) -> (usize, u64) {
        let device = self.device_of(page / self.segment_pages);
        let pages = page - self.first_page(self.devices[device].start);
        (device, u64::from(pages) * PAGE_BYTES as u64)
    }

    /// Returns the device of a segment.
    pub(super) fn device_of(&self, id: u32) -> usize {
        self.devices.iter().position(|range| range.contains(&id)).expect("the segment is one")
    }

    /// Returns the number of devices.
    pub(super) fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Returns the segments in the order of their first use: the devices take turns.
    pub(super) fn striped(&self) -> Vec<u32> {
        let longest = self.devices.iter().map(ExactSizeIterator::len).max().unwrap_or(0) as u32;
        let nth = |n| self.devices.iter().filter_map(move |range| range.clone().nth(n as usize));
        (0..longest).flat_map(nth).collect()
    }

    fn get(&self, id: u32) -> &FlashSegment {
        &self.segments[id as usize]
    }

    pub(crate) fn kind(&self, id: u32) -> Kind {
        Kind::of(self.get(id).kind.load(Ordering::SeqCst))
    }

    fn set_kind(&self, id: u32, kind: Kind) {
        let before = Kind::of(self.get(id).kind.swap(kind as u32, Ordering::SeqCst));
        let [was_retiring, is_retiring] = [before, kind].map(|kind| kind == Kind::Retiring);
        if is_retiring && !was_retiring {
            self.retiring.fetch_add(1, Ordering::Relaxed);
        } else if was_retiring && !is_retiring {
            self.retiring.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of segments that are being retired.
    pub(crate) fn retiring(&self) -> usize {
        self.retiring.load(Ordering::Relaxed)
    }

    /// A segment may have become dead, or one with dead items. The caller has stored that before.
    pub(super) fn note_change(&self) {
        // Both swap, so one of them reads what the other has written: the search sees what the caller stored, or another follows.
        self.has_changed.swap(true, Ordering::AcqRel);
    }

    /// Returns whether a segment may have become dead, or one with dead items, since the last call. A search of all segments
    /// after this call finds what came before.
    pub(super) fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn sequence(&self, id: u32) -> u64 {
        self.get(id).sequence.load(Ordering::Acquire)
    }

    /// Returns the name of a page of this segment, as it is used now.
    pub(crate) fn name_of(&self, page: u32, id: u32) -> PageName {
        PageName { tier: self.tier, number: page, sequence: self.sequence(id) }
    }

    /// Returns the flush epoch of the segment's items.
    pub(crate) fn epoch(&self, id: u32) -> u64 {
        self.get(id).epoch.load(Ordering::Acquire)
    }

    /// Continues the use of a segment that an earlier server wrote. Its items are counted where their slots are found.
    #[cfg(not(loom))]
    pub(super) fn restore(&mut self, saved: &SavedFlashSegment, is_open: bool) {
        let segment = &mut self.segments[saved.id as usize];
        let kind = if is_open { Kind::Open } else { Kind::Sealed };
        segment.kind = AtomicU32::new(kind as u32);
        segment.sequence = AtomicU64::new(saved.sequence);
        segment.epoch = AtomicU64::new(saved.epoch);
        segment.items = AtomicU32::new(saved.items);
        segment.bytes = AtomicU64::new(saved.bytes);
        segment.last_expiry = AtomicU32::new(saved.last_expiry);
    }

    /// Continues the tier with this id.
    #[cfg(not(loom))]
    pub(super) fn set_tier(&mut self, tier: u64) {
        self.tier = tier;
    }

    /// Begins the use of a free segment.
    pub(super) fn open(&self, id: u32, sequence: u64, epoch: u64) {
        let segment = self.get(id);
        // An item of an earlier use may be counted for a moment, see `count_live_again`.
        debug_assert_eq!(self.kind(id), Kind::Free);
        for count in [&segment.items, &segment.last_expiry] {
            count.store(0, Ordering::Relaxed);
        }
        segment.bytes.store(0, Ordering::Relaxed);
        segment.is_compacted.store(false, Ordering::Relaxed);
        segment.epoch.store(epoch, Ordering::Release);
        segment.sequence.store(sequence, Ordering::Release);
        self.set_kind(id, Kind::Open);
    }

    /// All items of a segment are published.
    pub(super) fn seal(&self, id: u32) {
        self.set_kind(id, Kind::Sealed);
        self.note_change();
    }

    /// Counts an item that is being written, or a part of it.
    pub(super) fn count_written(&self, id: u32, bytes: u64, expiry: u32) {
        let segment = self.get(id);
        segment.items.fetch_add(1, Ordering::Relaxed);
        segment.bytes.fetch_add(bytes, Ordering::Relaxed);
        let expiry = if expiry == 0 { u32::MAX } else { expiry };
        segment.last_expiry.fetch_max(expiry, Ordering::Relaxed);
    }

    /// Counts a slot that leads to this page, or is about to: its segment is in use.
    pub(super) fn count_live(&self, page: u32) {
        if let Some(id) = self.segment_of(page) {
            self.count_live_in(id);
        }
    }

    /// Counts an item that has a part in this segment.
    pub(super) fn count_live_in(&self, id: u32) {
        self.get(id).live.fetch_add(1, Ordering::SeqCst);
    }

    /// An item that had a part in this segment is dead.
    pub(super) fn count_dead_in(&self, id: u32) {
        let count = || {
            let before = self.get(id).live.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "the slot was counted");
        };
        in_order("flash_death_first", count, || self.note_change());
    }

    /// Counts a slot that is about to lead to a page of this use of a segment again, unless that is being retired or compacted.
    pub(super) fn count_live_again(&self, page: u32, is_its: impl FnOnce(u64) -> bool) -> bool {
        let Some(id) = self.segment_of(page) else { return false };
        let segment = self.get(id);
        let mut is_there = false;
        let check = || {
            is_there = matches!(self.kind(id), Kind::Open | Kind::Sealed)
                && is_its(self.sequence(id))
                && !segment.is_compacted.load(Ordering::Relaxed);
        };
        // Retirement sets the kind first, and reads the count then.
        in_order("flash_live_first", || _ = segment.live.fetch_add(1, Ordering::SeqCst), check);
        if !is_there {
            self.count_dead_in(id);
        }
        is_there
    }

    /// Counts a slot that no longer leads to this page.
    pub(super) fn count_dead(&self, page: u32) {
        if let Some(id) = self.segment_of(page) {
            self.count_dead_in(id);
        }
    }

    /// Pins the segment of a page. The caller then loads the slot again, and unpins the segment if that has changed.
    pub(super) fn pin(&self, id: u32) {
        self.get(id).pins.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `free`: either that sees the pin, or the slot that is loaded after this is cleared.
        if !without("flash_pin_fence") {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn unpin(&self, id: u32) {
        // Release: the reads of the pages come before they are written again.
        self.get(id).pins.fetch_sub(1, Ordering::Release);
    }

    /// The live items of a segment are moved elsewhere, so that promoted ones do not return there; or no more. An item that
    /// returns at the same moment stays for a later pass.
    pub(super) fn set_compacted(&self, id: u32, is_compacted: bool) {
        self.get(id).is_compacted.store(is_compacted, Ordering::Relaxed);
    }

    /// Begins to retire a sealed segment: from now on no further slot leads there. Returns whether some do.
    pub(super) fn retire(&self, id: u32) -> bool {
        let mut live = 0;
        let count = || live = self.get(id).live.load(Ordering::SeqCst);
        in_order("flash_retiring_first", || self.set_kind(id, Kind::Retiring), count);
        live > 0
    }

    /// Frees a retiring segment to which no slot leads, unless a reader pins it.
    pub(super) fn free(&self, id: u32) -> bool {
        debug_assert_eq!(self.kind(id), Kind::Retiring);
        if !without("flash_free_fence") {
            fence(Ordering::SeqCst);
        }
        let is_unread = self.get(id).pins.load(Ordering::Acquire) == 0;
        if is_unread {
            self.set_kind(id, Kind::Free);
        }
        is_unread
    }

    /// Returns the use of a segment.
    pub(crate) fn use_of(&self, id: u32) -> SegmentUse {
        let segment = self.get(id);
        SegmentUse {
            id,
            kind: Kind::of(segment.kind.load(Ordering::SeqCst)),
            sequence: segment.sequence.load(Ordering::Relaxed),
            epoch: segment.epoch.load(Ordering::Relaxed),
            live: segment.live.load(Ordering::SeqCst),
            items: segment.items.load(Ordering::Relaxed),
            bytes: segment.bytes.load(Ordering::Relaxed),
            last_expiry: segment.last_expiry.load(Ordering::Relaxed),
        }
    }

    /// Returns the use of all segments.
    pub(crate) fn uses(&self) -> impl Iterator<Item = SegmentUse> + '_ {
        (0..self.segments.len() as u32).map(|id| self.use_of(id))
    }
}
