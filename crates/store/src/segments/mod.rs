//! Segments: where items are written, one after the other.
//!
//! ```text
//!   free --open--> open --seal--> sealed --reclaim--> (all items unlinked) --+--> free
//!     |                                                                     |
//!     +--> index (for good)                        pinned by a sender:  waiting --unpin--+
//! ```
//! There is no edge from open to free: an open segment has writers. Writers reserve space by one compare-exchange
//! on the segment's allocation word, which also counts the reservations not yet committed; a sealed segment without
//! any is stable, and only then does reclaim read it.
//!
//! The part of a segment that others may read is in the region (`layout::segment`); this is the server's own part.

mod free;
mod grace_period;
#[cfg(all(test, loom))]
mod models;
mod pins;
mod recover;
#[cfg(not(loom))]
pub mod restore;
mod sealing;
mod table;
pub mod time_marks;
pub mod ttl;
mod verification;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use fabcache_layout::segment::{self, Kind, Use};
use fabcache_layout::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, fence, without};
use fabcache_layout::{Geometry, Memory};

use crate::bounds::{LATE_SECONDS_MIN, LATE_TTL_DIVISOR, STABLE_CHECKS_MAX};
use grace_period::GracePeriod;
use time_marks::TimeMarks;
pub use ttl::Queue;
use ttl::TtlBuckets;

/// The deadline of a segment without expiring items.
pub const NO_DEADLINE: u32 = u32::MAX;

const NONE: u32 = u32::MAX;

/// The allocation word: bytes used in the low half, open reservations above, the seal on top.
const USED_MASK: u64 = 0xffff_ffff;
const PENDING_ONE: u64 = 1 << 32;
const PENDING_MASK: u64 = 0x00ff_ffff << 32;
const SEALED: u64 = 1 << 63;

/// Items and bytes alive in one word: items in the upper half.
const LIVE_ITEM: u64 = 1 << 32;

/// Returns when the memory of an item is to be freed that expires at `expiry` after `ttl` seconds.
fn deadline_of(expiry: u32, ttl: u32) -> u32 {
    // One less than `NONE`, so that it is reached.
    expiry.saturating_add((ttl / LATE_TTL_DIVISOR).max(LATE_SECONDS_MIN)).min(NO_DEADLINE - 1)
}

/// The purpose of a claim. When few segments are free, not every purpose gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPurpose {
    /// A new item, or the index.
    New,
    /// A new version of the same item, for instance after a touch. memcached does this in place, so it must work when
    /// memory is full; the less is evicted, the more reserve it needs.
    Rewrite,
    /// An item that reclaim moves.
    Move,
}

/// Why space could not be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSpace {
    /// No segment is free for the claim.
    Full,
    /// The claim exceeds a segment.
    TooLong,
}

/// Why the written extent of a segment is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownExtent {
    /// The segment holds no items.
    Empty,
    /// A writer is in the middle of writing one.
    BeingWritten,
}

/// Space for one item, of the caller alone until it is committed.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    /// The segment.
    pub segment: u32,
    /// The offset of the space in the region.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// The server's view of one segment.
#[derive(Debug)]
struct Segment {
    /// Written by reservers and sealers (compare-exchange); reclaim reads it with acquire, which pairs with the
    /// release of each commit, so that it sees all committed items whole.
    allocation: AtomicU64,
    /// Live items and bytes; changed when an item is published or killed, read by reclaim to choose.
    live: AtomicU64,
    /// Senders that read values in place.
    pins: AtomicU32,
    /// Unpublished chunks of values still being received.
    orphans: AtomicU32,
    /// The order of sealing.
    sealed_order: AtomicU64,
    /// Second at which it was opened.
    opened: AtomicU32,
    /// The second of the last reservation.
    written: AtomicU32,
    /// The last expiry second of its items.
    last_expiry: AtomicU32,
    /// The shortest time to live that an item in it had when it was written here.
    shortest_ttl: AtomicU32,
    /// An item without expiry is in it.
    endless: AtomicBool,
    /// Whether it belongs to the main queue. Set when it is opened.
    is_main: AtomicBool,
    /// Whether it was opened for items that reclaim moves.
    for_moves: AtomicBool,
    kind: AtomicU32,
    /// Sealed by an earlier server: see [`Segments::is_inherited`]. Models leave it out.
    is_inherited: std::sync::atomic::AtomicBool,
    /// Items in it may be damaged: see [`Segments::has_unverified`].
    is_unverified: AtomicBool,
    /// Its pages are allocated and mapped, as far as is known. A hint, so models leave it out.
    is_touched: std::sync::atomic::AtomicBool,
    marks: Mutex<TimeMarks>,
    marked: AtomicU32,
}

impl Segment {
    fn new() -> Segment {
        Segment {
            allocation: AtomicU64::new(SEALED),
            live: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            orphans: AtomicU32::new(0),
            sealed_order: AtomicU64::new(0),
            opened: AtomicU32::new(0),
            written: AtomicU32::new(0),
            last_expiry: AtomicU32::new(0),
            shortest_ttl: AtomicU32::new(u32::MAX),
            endless: AtomicBool::new(false),
            is_main: AtomicBool::new(false),
            for_moves: AtomicBool::new(false),
            kind: AtomicU32::new(Kind::Free as u32),
            is_inherited: std::sync::atomic::AtomicBool::new(false),
            is_unverified: AtomicBool::new(false),
            is_touched: std::sync::atomic::AtomicBool::new(false),
            marks: Mutex::new(TimeMarks::default()),
            marked: AtomicU32::new(0),
        }
    }
}

/// A sealed segment, as reclaim weighs it.
#[derive(Clone, Copy, Debug)]
pub struct SealedSegment {
    /// Its number.
    pub id: u32,
    /// The queue of its items.
    pub queue: Queue,
    /// Items alive in it.
    pub live_items: u64,
    /// Bytes of its live items.
    pub live_bytes: u64,
    /// Bytes written to it.
    pub used: u32,
    /// The order of sealing.
    pub order: u64,
    /// Every item in it is expired from this second on; none if some never expire.
    pub last_expiry: Option<u32>,
    /// Whether it holds chunks of values still being received.
    pub orphans: bool,
}

/// All segments of a region.
#[derive(Debug)]
pub struct Segments {
    memory: Memory,
    geometry: Geometry,
    segments: Box<[CachePadded<Segment>]>,
    /// For each segment, the second at which it is to be walked for expired items; 0 if nothing lives in it. Stored
    /// compactly, because all are checked every second. Lowered by writers before they commit, taken by the walker.
    deadlines: Box<[AtomicU32]>,
    classes: TtlBuckets,
    /// The segment that items of each class go to, or NONE. Changed under `opening`.
    open: Box<[AtomicU32]>,
    /// Of each class, the segment that was open before, if it is not yet full: what the last item did not fit into is
    /// for smaller ones. Changed under `opening`.
    tails: Box<[AtomicU32]>,
    opening: Mutex<()>,
    free: Mutex<VecDeque<u32>>,
    free_count: AtomicUsize,
    /// Writers took a free segment, and one of the next is untouched. Models leave it out.
    wants_touching: std::sync::atomic::AtomicBool,
    /// Whether the kernel refused to touch pages ahead; writers then stop requesting it. Absent from models.
    cannot_touch: std::sync::atomic::AtomicBool,
    grace: GracePeriod,
    /// Segments in use or free: the memory limit, in segments.
    limit: AtomicU32,
    /// Memory may fill up permanently: live items are not evicted.
    fills_up: bool,
    retired: Mutex<Vec<u32>>,
    next_order: AtomicU64,
    /// Written by readers of long values, so on its own cache line.
    pinned: CachePadded<AtomicU32>,
    index_segments: AtomicU32,
    /// Segments that are unverified. Written a few times a second after a restart, then never.
    unverified: AtomicU32,
    /// Segments that were unverified when the region was taken over.
    taken_over: u32,
    opened_for_moves: AtomicU64,
    /// Bytes written to them by clients: not those moved by reclaim, but those that reclaim made room for.
    gained_bytes: AtomicU64,
}

impl Segments {
    /// All segments are free, except those beyond `limit`. `fills_up`: live items are not evicted. `threads` is the
    /// number of writing threads. A segment whose generation has ended is not overwritten for `grace`.
    pub fn new(
        memory: Memory,
        geometry: Geometry,
        limit: u32,
        fills_up: bool,
        threads: usize,
        grace: Duration,
    ) -> Segments {
        let limit = limit.min(geometry.segments);
        let mut segments = Segments::empty(memory, geometry, limit, fills_up, threads, grace);
        segments.free = Mutex::new((0..limit).collect());
        segments.free_count = AtomicUsize::new(limit as usize);
        segments.retired = Mutex::new((limit..geometry.segments).collect());
        for id in limit..geometry.segments {
            segments.set_kind(id, Kind::Retired, 0);
        }
        segments
    }

    /// As [`Segments::new`], with no segment in any list. Leaves the region as it is.
    fn empty(
        memory: Memory,
        geometry: Geometry,
        limit: u32,
        fills_up: bool,
        threads: usize,
        grace: Duration,
    ) -> Segments {
        let classes = TtlBuckets::new(limit, threads);
        Segments {
            memory,
            geometry,
            segments: (0..geometry.segments).map(|_| CachePadded::new(Segment::new())).collect(),
            deadlines: (0..geometry.segments).map(|_| AtomicU32::new(NO_DEADLINE)).collect(),
            open: (0..classes.open_max()).map(|_| AtomicU32::new(NONE)).collect(),
            tails: (0..classes.open_max()).map(|_| AtomicU32::new(NONE)).collect(),
            classes,
            opening: Mutex::new(()),
            free: Mutex::new(VecDeque::new()),
            free_count: AtomicUsize::new(0),
            wants_touching: std::sync::atomic::AtomicBool::new(false),
            cannot_touch: std::sync::atomic::AtomicBool::new(false),
            grace: GracePeriod::new(grace, geometry.segments),
            limit: AtomicU32::new(limit),
            fills_up,
            retired: Mutex::new(Vec::new()),
            next_order: AtomicU64::new(1),
            pinned: CachePadded::new(AtomicU32::new(0)),
            index_segments: AtomicU32::new(0),
            unverified: AtomicU32::new(0),
            taken_over: 0,
            opened_for_moves: AtomicU64::new(0),
            gained_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the region's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Segments given to the index.
    pub fn index_segments(&self) -> u32 {
        self.index_segments.load(Ordering::Relaxed)
    }

    /// Returns the use of a segment.
    pub fn kind(&self, id: u32) -> Kind {
        match self.segments[id as usize].kind.load(Ordering::Acquire) {
            1 => Kind::Open,
            2 => Kind::Sealed,
            3 => Kind::Index,
            4 => Kind::Retired,
            _ => Kind::Free,
        }
    }

    fn set_kind(&self, id: u32, kind: Kind, used: u32) {
        let segment = &self.segments[id as usize];
        let flag =
            |flag: &AtomicBool| matches!(kind, Kind::Open | Kind::Sealed) && flag.load(Ordering::Relaxed);
        let (is_main, is_for_moves) = (flag(&segment.is_main), flag(&segment.for_moves));
        segment::set_use(&self.memory, &self.geometry, id, Use { kind, is_main, is_for_moves, used });
        segment.kind.store(kind as u32, Ordering::Release);
    }

    /// Live items and bytes of all segments.
    pub fn live(&self) -> (u64, u64) {
        self.segments.iter().fold((0, 0), |(items, bytes), segment| {
            let live = segment.live.load(Ordering::Relaxed);
            (items + (live >> 32), bytes + (live & 0xffff_ffff))
        })
    }

    /// Returns whether an earlier server sealed the segment. It may hold items and chunks that no slot leads to and that do not
    /// count as alive: the server was killed before it linked them, or a bit of their state flipped in the file.
    pub fn is_inherited(&self, id: u32) -> bool {
        self.segments[id as usize].is_inherited.load(Ordering::Relaxed)
    }

    /// The generation of a segment, with acquire.
    #[inline]
    pub fn generation(&self, id: u32) -> u64 {
        segment::generation(&self.memory, &self.geometry, id)
    }

    /// Returns whether nothing of the segment was overwritten since `generation` was loaded.
    #[inline]
    pub fn still(&self, id: u32, generation: u64) -> bool {
        segment::still(&self.memory, &self.geometry, id, generation)
    }

    /// Which open segment items of a queue with this expiry go to that this thread writes.
    #[inline]
    pub fn class_of(&self, queue: Queue, expiry: u32, now: u32, thread: usize) -> usize {
        self.classes.class_of(queue, expiry, now, thread)
    }

    /// Which open segment a long value goes to that reclaim moves.
    pub fn class_of_moved_chunks(&self, queue: Queue, expiry: u32, now: u32) -> usize {
        self.classes.class_of_moved_chunks(queue, expiry, now)
    }

    /// Returns the queue of the segment at `offset`.
    #[inline]
    pub fn queue_at(&self, offset: u64) -> Queue {
        self.geometry.segment_of(offset).map_or(Queue::Small, |id| self.queue_of(id))
    }

    /// Returns the queue of a segment.
    #[inline]
    pub fn queue_of(&self, id: u32) -> Queue {
        if self.segments[id as usize].is_main.load(Ordering::Relaxed) { Queue::Main } else { Queue::Small }
    }

    /// Adapts the TTL buckets to the times to live that were common recently. One thread at a time.
    pub fn balance_classes(&self) {
        self.classes.balance();
    }

    // ---- writing ----

    /// Reserves `len` bytes (a multiple of 4) among items of `class`. Never waits for reclaim.
    pub fn reserve(
        &self,
        class: usize,
        len: u64,
        now: u32,
        claim: ClaimPurpose,
    ) -> Result<Reservation, NoSpace> {
        self.reserve_between(class, len, len, now, claim)
    }

    /// Reserves at most `max` and at least `min` bytes (multiples of 4): the rest of the open segment if that is
    /// enough.
    pub fn reserve_between(
        &self,
        class: usize,
        min: u64,
        max: u64,
        now: u32,
        claim: ClaimPurpose,
    ) -> Result<Reservation, NoSpace> {
        debug_assert!(min > 0 && min <= max && min.is_multiple_of(4));
        // Chunks are cut to fit, and would use up a tail in scraps.
        let uses_tail = min == max;
        let fit = |left: u64| (left >= min).then(|| left.min(max));
        self.reserve_fitting(class, min, uses_tail, now, claim, fit)
    }

    /// Reserves as many bytes as `fit` returns for those left in a segment: at least `min`, or none.
    #[inline]
    pub fn reserve_fitting(
        &self,
        class: usize,
        min: u64,
        uses_tail: bool,
        now: u32,
        claim: ClaimPurpose,
        fit: impl Fn(u64) -> Option<u64>,
    ) -> Result<Reservation, NoSpace> {
        if min > self.geometry.segment_bytes() {
            return Err(NoSpace::TooLong);
        }
        // Segments that rewrites opened are not for new items; otherwise nothing would remain for later rewrites.
        if self.fills_up && claim == ClaimPurpose::New && self.free_count() < self.kept_back(claim) {
            return Err(NoSpace::Full);
        }
        let tail = if uses_tail { self.tails[class].load(Ordering::Acquire) } else { NONE };
        if tail != NONE
            && let Some(reservation) = self.reserve_in(tail, &fit, now)
        {
            self.count_gained(&reservation, claim);
            return Ok(reservation);
        }
        loop {
            let id = self.open[class].load(Ordering::Acquire);
            if id != NONE
                && let Some(reservation) = self.reserve_in(id, &fit, now)
            {
                self.count_gained(&reservation, claim);
                return Ok(reservation);
            }
            self.replace_open(class, id, now, claim)?;
        }
    }

    #[inline]
    fn count_gained(&self, reservation: &Reservation, claim: ClaimPurpose) {
        let segment = &self.segments[reservation.segment as usize];
        if claim != ClaimPurpose::Move && segment.for_moves.load(Ordering::Relaxed) {
            self.gained_bytes.fetch_add(reservation.len, Ordering::Relaxed);
        }
    }

    #[inline]
    fn reserve_in(&self, id: u32, fit: &impl Fn(u64) -> Option<u64>, now: u32) -> Option<Reservation> {
        let segment = &self.segments[id as usize];
        let mut word = segment.allocation.load(Ordering::Relaxed);
        loop {
            let left = self.geometry.segment_bytes() - (word & USED_MASK);
            if word & SEALED != 0 {
                return None;
            }
            let len = fit(left)?;
            let taken = word + len + PENDING_ONE;
            let order = if without("reserve_acquire") { Ordering::Release } else { Ordering::AcqRel };
            match segment.allocation.compare_exchange(word, taken, order, Ordering::Relaxed) {
                Ok(_) => {
                    // Another thread ended the segment's last generation, which happened before its space reached
                    // this one. The fence passes that on: a reader that sees a byte written here sees the new
                    // generation after the fence in `layout::segment::still`.
                    if !without("reserve_fence") {
                        fence(Ordering::Release);
                    }
                    let at = word & USED_MASK;
                    self.mark_time(segment, at as u32, now);
                    return Some(Reservation {
                        segment: id,
                        offset: self.geometry.segment_offset(id) + at,
                        len,
                    });
                }
                Err(other) => word = other,
            }
        }
    }

    #[inline]
    fn mark_time(&self, segment: &Segment, offset: u32, now: u32) {
        if segment.marked.load(Ordering::Relaxed) != now {
            segment.marked.store(now, Ordering::Relaxed);
            segment.written.fetch_max(now, Ordering::Relaxed);
            self.lock(&segment.marks).note(offset, now);
        }
    }

    /// Notes when the item in the reservation is to be walked for, before it is committed. Chunks expire with their
    /// item.
    #[inline]
    pub fn note_expiry(&self, reservation: &Reservation, expiry: u32, now: u32) {
        if expiry == 0 {
            return;
        }
        let ttl = expiry.saturating_sub(now);
        let segment = &self.segments[reservation.segment as usize];
        if segment.shortest_ttl.load(Ordering::Relaxed) > ttl {
            segment.shortest_ttl.fetch_min(ttl, Ordering::Relaxed);
        }
        // Release, even if it changes nothing: a thread that took the present deadline then sees the reservation.
        self.deadlines[reservation.segment as usize].fetch_min(deadline_of(expiry, ttl), Ordering::Release);
        self.classes.sample(reservation.offset, ttl);
    }

    /// Commits the item in the reservation; `expiry` is its expiry second (0 for none). From now on reclaim may
    /// examine it, once the segment is sealed.
    #[inline]
    pub fn commit(&self, reservation: Reservation, expiry: u32) {
        self.note_last_expiry(&reservation, expiry);
        self.commit_run(reservation);
    }

    /// Notes the expiry second of an item in the reservation (0 for none), before it is committed.
    #[inline]
    pub fn note_last_expiry(&self, reservation: &Reservation, expiry: u32) {
        let segment = &self.segments[reservation.segment as usize];
        if expiry == 0 {
            segment.endless.store(true, Ordering::Relaxed);
        } else if segment.last_expiry.load(Ordering::Relaxed) < expiry {
            segment.last_expiry.fetch_max(expiry, Ordering::Relaxed);
        }
    }

    /// Commits the items that fill the reservation, whose expiries are noted.
    #[inline]
    pub fn commit_run(&self, reservation: Reservation) {
        let segment = &self.segments[reservation.segment as usize];
        // Acquire: the commit that publishes the segment sees what the others noted.
        let before = segment.allocation.fetch_sub(PENDING_ONE, Ordering::AcqRel);
        if before & (SEALED | PENDING_MASK) == SEALED | PENDING_ONE && !without("seal_last") {
            self.publish_sealed(reservation.segment, (before & USED_MASK) as u32);
        }
    }

    /// Commits the items in the first `used` bytes of the reservation and returns the other bytes to the segment. That
    /// needs them to be its last: else the reservation is the error, and the caller fills it.
    pub fn commit_part(&self, reservation: Reservation, used: u64) -> Result<(), Reservation> {
        let segment = &self.segments[reservation.segment as usize];
        let unused = reservation.len - used;
        let end = reservation.offset + reservation.len - self.geometry.segment_offset(reservation.segment);
        let order = if without("return_release") { Ordering::Relaxed } else { Ordering::Release };
        let mut word = segment.allocation.load(Ordering::Relaxed);
        loop {
            let is_last = word & USED_MASK == end || without("return_last");
            if word & SEALED != 0 || !is_last {
                return Err(reservation);
            }
            let returned = word - unused - PENDING_ONE;
            match segment.allocation.compare_exchange(word, returned, order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => word = other,
            }
        }
        if segment.for_moves.load(Ordering::Relaxed) {
            self.gained_bytes.fetch_sub(unused, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts an item of `bytes` as alive; `items` is 0 for a chunk of a value.
    #[inline]
    pub fn count_live(&self, offset: u64, bytes: u64, items: u64) {
        if let Some(id) = self.geometry.segment_of(offset) {
            self.segments[id as usize].live.fetch_add(items * LIVE_ITEM + bytes, Ordering::Relaxed);
        }
    }

    /// Counts it as dead: no slot points to it any more.
    #[inline]
    pub fn count_dead(&self, offset: u64, bytes: u64, items: u64) {
        if let Some(id) = self.geometry.segment_of(offset) {
            self.count_dead_in(id, bytes, items);
        }
    }

    /// Counts items of a segment as dead.
    #[inline]
    pub fn count_dead_in(&self, id: u32, bytes: u64, items: u64) {
        let died = items * LIVE_ITEM + bytes;
        // Release: pairs with the acquire of `is_dead`.
        let order = if without("count_release") { Ordering::Relaxed } else { Ordering::Release };
        let before = self.segments[id as usize].live.fetch_sub(died, order);
        if before < died {
            debug_assert!(self.is_inherited(id), "more died in segment {id} than lived there");
            // Memory was damaged. The count stays too high, and `settle_damaged_segment` corrects it.
            self.segments[id as usize].live.fetch_add(died, Ordering::Relaxed);
        }
        if before == died {
            self.deadlines[id as usize].fetch_min(0, Ordering::Release);
        }
    }

    /// Nothing lives in a sealed segment, so no slot points there.
    pub fn is_dead(&self, id: u32) -> bool {
        self.kind(id) == Kind::Sealed
            && self.is_stable(id)
            && self.segments[id as usize].live.load(Ordering::Acquire) == 0
    }

    fn is_stable(&self, id: u32) -> bool {
        self.segments[id as usize].allocation.load(Ordering::Acquire) & PENDING_MASK == 0
    }

    /// Counts a chunk that no item owns yet, or (`-1`) no longer.
    pub fn count_orphan(&self, offset: u64, change: i32) {
        if let Some(id) = self.geometry.segment_of(offset) {
            let orphans = &self.segments[id as usize].orphans;
            if change > 0 {
                orphans.fetch_add(1, Ordering::Relaxed);
            } else {
                orphans.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the segments ever opened for moves by reclaim, less those that others wrote to them.
    pub fn filled_by_moves(&self) -> u64 {
        let gained = self.gained_bytes.load(Ordering::Relaxed) / self.geometry.segment_bytes();
        self.opened_for_moves.load(Ordering::Relaxed).saturating_sub(gained)
    }

    /// Second at which the segment was opened.
    #[inline]
    pub fn opened(&self, id: u32) -> u32 {
        self.segments[id as usize].opened.load(Ordering::Relaxed)
    }

    /// Second at which the item at `offset` was written.
    pub fn written(&self, offset: u64) -> u32 {
        let Some(id) = self.geometry.segment_of(offset) else { return 0 };
        let segment = &self.segments[id as usize];
        let at = (offset - self.geometry.segment_offset(id)) as u32;
        let marked = self.lock(&segment.marks).written(at);
        marked.unwrap_or_else(|| segment.opened.load(Ordering::Relaxed))
    }

    /// Records that the item at `offset`, just moved there, was written at `second`.
    pub fn note_written(&self, offset: u64, second: u32) {
        let Some(id) = self.geometry.segment_of(offset) else { return };
        let segment = &self.segments[id as usize];
        let at = (offset - self.geometry.segment_offset(id)) as u32;
        self.lock(&segment.marks).note(at, second);
        // Bytes after it were not written then.
        segment.marked.store(0, Ordering::Relaxed);
    }

    /// Returns the sealed segments that reclaim may read: nothing in them is still being written.
    pub fn sealed(&self, segments: Range<u32>) -> impl Iterator<Item = SealedSegment> + '_ {
        segments.filter_map(|id| {
            if self.kind(id) != Kind::Sealed {
                return None;
            }
            let segment = &self.segments[id as usize];
            let word = segment.allocation.load(Ordering::Acquire);
            let live = segment.live.load(Ordering::Relaxed);
            let is_main = segment.is_main.load(Ordering::Relaxed);
            (word & PENDING_MASK == 0).then(|| SealedSegment {
                id,
                queue: if is_main { Queue::Main } else { Queue::Small },
                live_items: live / LIVE_ITEM,
                live_bytes: live % LIVE_ITEM,
                used: (word & USED_MASK) as u32,
                order: segment.sealed_order.load(Ordering::Relaxed),
                last_expiry: self.all_expire(segment),
                orphans: segment.orphans.load(Ordering::Relaxed) > 0,
            })
        })
    }

    // ---- expiry walks ----

    /// Returns the segments to be walked at `now`, those due longest first.
    pub fn due(&self, now: u32) -> Vec<u32> {
        let due = |(id, deadline): (usize, &AtomicU32)| {
            let deadline = deadline.load(Ordering::Relaxed);
            (deadline <= now).then_some((deadline, id as u32))
        };
        let mut due: Vec<_> = self.deadlines.iter().enumerate().filter_map(due).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Makes every segment due.
    pub fn make_all_due(&self) {
        self.deadlines.iter().for_each(|deadline| {
            deadline.fetch_min(0, Ordering::Relaxed);
        });
    }

    /// Takes the deadline of a segment, and returns how far it is written.
    pub fn take_deadline(&self, id: u32) -> (u32, Result<u64, UnknownExtent>) {
        // Acquire: the reservation of a thread that recorded a deadline before is visible below, committed or
        // pending.
        let deadline = self.deadlines[id as usize].swap(NO_DEADLINE, Ordering::AcqRel);
        let written = self.written_up_to(id);
        (if matches!(written, Err(UnknownExtent::Empty)) { NO_DEADLINE } else { deadline }, written)
    }

    /// How far a segment is written: items in front of that are committed, and those behind bring deadlines of their own.
    pub fn written_up_to(&self, id: u32) -> Result<u64, UnknownExtent> {
        let allocation = &self.segments[id as usize].allocation;
        for _ in 0..STABLE_CHECKS_MAX {
            if !matches!(self.kind(id), Kind::Open | Kind::Sealed) {
                return Err(UnknownExtent::Empty);
            }
            let word = allocation.load(Ordering::Acquire);
            if word & PENDING_MASK == 0 {
                return Ok(word & USED_MASK);
            }
            std::hint::spin_loop();
        }
        Err(UnknownExtent::BeingWritten)
    }

    /// Schedules a segment to be walked at `deadline` or earlier.
    pub fn set_deadline(&self, id: u32, deadline: u32) {
        self.deadlines[id as usize].fetch_min(deadline, Ordering::Release);
    }

    /// Returns when the memory of an item in the segment that expires at `expiry` is due: its time to live was at
    /// least the shortest here, and the remainder when the segment was last written.
    pub fn deadline(&self, id: u32, expiry: u32) -> u32 {
        let segment = &self.segments[id as usize];
        let left = expiry.saturating_sub(segment.written.load(Ordering::Relaxed));
        deadline_of(expiry, left.max(segment.shortest_ttl.load(Ordering::Relaxed)))
    }

    /// Returns the bytes of live items in the segment.
    pub fn live_bytes(&self, id: u32) -> u64 {
        self.segments[id as usize].live.load(Ordering::Acquire) & 0xffff_ffff
    }

    /// Returns when the oldest segment with live items was opened.
    pub fn oldest_opened(&self) -> Option<u32> {
        let holds_items = |segment: &&CachePadded<Segment>| segment.live.load(Ordering::Relaxed) >= LIVE_ITEM;
        self.segments.iter().filter(holds_items).map(|segment| segment.opened.load(Ordering::Relaxed)).min()
    }

    /// The order of the segment sealed last.
    pub fn last_order(&self) -> u64 {
        self.next_order.load(Ordering::Relaxed) - 1
    }

    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> fabcache_layout::sync::MutexGuard<'a, T> {
        mutex.lock().expect("no thread panics while it holds a segment lock")
    }
}
