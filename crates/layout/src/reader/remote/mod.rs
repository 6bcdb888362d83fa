//! Many GETs in flight over fetches that complete later: what a client on a fabric does. It performs no I/O.
//!
//! [`Remote`] returns the bytes of the region to fetch ([`Remote::next_fetch`]). Its driver fetches them, passes in
//! the arrivals in any order ([`Remote::take`]), and takes the completed GETs ([`Remote::next_completed`]).
//!
//! ```text
//!   get ──► RunningGet ──► next_fetch ──► (the transport) ──► take ──► RunningGet ──► … ──► next_completed
//!              │ waits for a line                                        ▲
//!              └────────► lines.rs: one fetch for many GETs ─────────────┘
//! ```
//!
//! A GET by key costs two fetches, bucket and item; a GET at a cached location costs one. Other fetches are shared.
//! The status line with the counts of emptied segments is fetched once for all GETs that began (by key), or whose
//! items were fetched (at cached locations), before its fetch was posted (`lines.rs`). GETs whose fetches complete
//! first wait for their line. Where the server grants leases, one line serves all GETs that begin within the lease.
//!
//! Why a GET at a cached location needs no fetch of its segment's generation: the generation was fetched when its
//! segment's counter was known already, and the counter is the same after the item was fetched. The server changes
//! the counter after the generation, and before it overwrites the segment's items. If the item had been overwritten
//! by the time it was fetched, the counter would have changed since it was first fetched: either before the
//! generation was fetched, which would then differ, or after it, and then the counters differ. If a counter has
//! changed, or was not known, the generation itself is fetched after the item.
//!
//! *After the item* means: requested when the item had arrived. If the transport reads in order, requested after the
//! item was requested. If the server guarantees a grace for emptied segments ([`RemoteOptions::grace_ns`]), requested
//! at any time after the GET started, if the item arrived within the grace, counted from the request of the line.
//! docs/region.md has the proof.

mod chunks;
mod clock_skew;
mod fetch;
mod lines;
mod location_cache;
mod long;
mod running_get;

use std::collections::VecDeque;
use std::ops::Deref;

use crate::checksum::Secret;
use crate::format::{STATUS_AND_COUNTS_BYTES, STATUS_AT};
use crate::hash::KeyHash;
use crate::header::{self, Birth, HeaderError};
use crate::segment::generation_offset;
use crate::sync::without;

use self::chunks::ChunkProgress;
use self::clock_skew::ClockSkew;
use self::fetch::{FetchPurpose, FetchRequest, Owner};
use self::lines::{Lines, SequenceNumber, is_within};
use self::location_cache::LocationCache;
use self::running_get::{Behind, Key, RunningGet, Source, StepInput};
use super::get::ItemPlace;
use super::{
    FallbackReason, Fetched, Location, MetadataCache, ReadOutcome, Reader, Rejections, Step, Validation,
};
use super::{Value, reads_to_report};

pub use self::fetch::{Arrival, Fetch, GetId, To};
pub use self::location_cache::LOCATION_BYTES;

/// Options of a [`Remote`].
#[derive(Clone, Copy, Debug)]
pub struct RemoteOptions {
    /// Maximum number of GETs in flight.
    pub gets: usize,
    /// Maximum number of fetches in flight, not counting up to four fetches of the status line.
    pub fetches: usize,
    /// Their total bytes; a single fetch may have more (a segment, 2 MiB at most).
    pub fetched_bytes: usize,
    /// Reads are executed in the order in which they were posted, including their memory accesses: each has read its
    /// last byte before the next reads its first. Ordered transmission (FI_ORDER_RAR) is not enough, because hardware
    /// may read memory for two of them in any order. Execution by the target's CPU is.
    pub in_order: bool,
    /// The server's grace: it does not overwrite a segment within this time after its counter has changed; 0 for
    /// none. With it the line need not be fetched after the item, if the item arrived soon after the line's fetch was
    /// posted.
    pub grace_ns: u64,
    /// The status line is fetched once for this many GETs at cached locations while other fetches of it are in
    /// flight.
    pub gets_per_line: u32,
    /// The number of cached locations: [`LOCATION_BYTES`] each, rounded up to a power of two.
    pub locations: usize,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            gets: 64,
            fetches: 64,
            fetched_bytes: 8 << 20,
            in_order: false,
            grace_ns: 0,
            gets_per_line: 16,
            locations: 64 << 10,
        }
    }
}

/// The current time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The second of the region's clock, by this client's own monotonic clock.
    pub second: u32,
    /// Nanoseconds of that clock (not a coarse one, and one that goes on while the system is suspended).
    pub ns: u64,
}

/// A completed GET.
#[derive(Debug)]
pub struct CompletedGet<B, T> {
    /// The GET, as named in [`To`].
    pub id: GetId,
    /// The caller's token.
    pub token: T,
    /// The hash of the key.
    pub hash: KeyHash,
    /// The result. The value of a hit is in `buffer` if it is [`Value::Fetched`], or where the fetches placed it.
    pub outcome: ReadOutcome,
    /// The buffer that holds the value.
    pub buffer: Option<B>,
    /// The GET used a cached location.
    pub was_cached: bool,
    /// Rejected attempts, by reason.
    pub rejections: Rejections,
}

impl<B, T> CompletedGet<B, T> {
    /// Returns how many reads to report to the server for this GET, 0 for none. `random` is a random number.
    pub fn reads_to_report(&self, random: u32) -> u8 {
        match &self.outcome {
            ReadOutcome::Hit(hit) => reads_to_report(hit, random),
            _ => 0,
        }
    }
}

/// GETs of one region, many at a time.
///
/// `B` is the driver's buffer of fetched bytes, and `T` what it keeps of each GET: its token, which the result returns.
#[derive(Debug)]
pub struct Remote<B, T> {
    reader: Reader,
    secret: Secret,
    metadata: MetadataCache,
    locations: LocationCache,
    options: RemoteOptions,
    now: SequenceNumber,
    lines: Lines,
    clock_skew: ClockSkew,
    gets: Box<[Option<RunningGet<B, T>>]>,
    free: Vec<usize>,
    serial: u32,
    queue: VecDeque<FetchRequest>,
    fetches: Vec<Option<FetchRequest>>,
    free_fetches: Vec<u32>,
    in_flight: usize,
    bytes_in_flight: usize,
    completed: VecDeque<CompletedGet<B, T>>,
    is_gone: bool,
}

impl<B: Deref<Target = [u8]>, T> Remote<B, T> {
    /// Creates the reader of the region with this header and secret.
    ///
    /// # Errors
    /// The geometry is invalid.
    pub fn new(birth: &Birth, secret: Secret, options: RemoteOptions) -> Result<Remote<B, T>, HeaderError> {
        let reader = Reader::new(birth, Validation::Remote(secret.clone()))?;
        let count = options.gets.max(1);
        Ok(Remote {
            metadata: MetadataCache::new(&reader),
            reader,
            secret,
            locations: LocationCache::new(options.locations),
            now: SequenceNumber::default(),
            lines: Lines::new(options.gets_per_line),
            clock_skew: ClockSkew::default(),
            gets: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            serial: 0,
            queue: VecDeque::new(),
            fetches: Vec::new(),
            free_fetches: Vec::new(),
            in_flight: 0,
            bytes_in_flight: 0,
            completed: VecDeque::new(),
            is_gone: false,
            options,
        })
    }

    /// Returns the region's reader.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns the number of GETs that can start now.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of GETs that have started and not completed.
    pub fn gets_in_flight(&self) -> usize {
        self.gets.len() - self.free.len()
    }

    /// Returns the number of posted fetches that have not arrived, including those of lines.
    pub fn fetches_in_flight(&self) -> usize {
        self.fetches.len() - self.free_fetches.len()
    }

    /// Returns whether no server maintains the region any more.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns the second that the region's clock showed in the newest line; 0 before the first.
    pub fn region_second(&self) -> u32 {
        self.metadata.region_second()
    }

    /// Returns the token of a GET in flight; `None` if it has completed.
    pub fn token(&mut self, id: GetId) -> Option<&mut T> {
        let running = self.gets.get_mut(id.at as usize)?.as_mut()?;
        (running.id == id).then_some(&mut running.token)
    }

    /// Returns the tokens of the GETs in flight.
    pub fn tokens(&self) -> impl Iterator<Item = &T> {
        self.gets.iter().flatten().map(|running| &running.token)
    }

    /// Starts a GET: at the cached location of the key's item, if there is one, else by key. Its result returns `token`.
    /// `now` was read after the caller's request.
    ///
    /// # Panics
    /// There is no room.
    pub fn get(&mut self, key: &[u8], token: T, now: Now) {
        let hash = self.reader.hash(key);
        let kept = self.locations.get(hash).filter(|location| {
            // Generations only grow: with a later one, the cached item is certainly overwritten.
            let segment = self.reader.geometry.segment_of(location.offset);
            let generation = segment.and_then(|segment| self.metadata.last_generation(segment));
            generation.is_none_or(|generation| generation <= location.generation)
        });
        self.begin(key, hash, kept.map_or(Source::ByKey, Source::Cached), token, now);
    }

    /// Like [`Remote::get`], by key even if a location is cached.
    ///
    /// # Panics
    /// There is no room.
    pub fn get_by_key(&mut self, key: &[u8], token: T, now: Now) {
        self.begin(key, self.reader.hash(key), Source::ByKey, token, now);
    }

    /// Like [`Remote::get`], at this location only.
    ///
    /// # Panics
    /// There is no room.
    pub fn get_at(&mut self, key: &[u8], location: Location, token: T, now: Now) {
        self.begin(key, self.reader.hash(key), Source::At(location), token, now);
    }

    /// Returns whether the location of the key's item is cached.
    pub fn has_location(&mut self, key: &[u8]) -> bool {
        self.locations.get(self.reader.hash(key)).is_some()
    }

    fn begin(&mut self, key: &[u8], hash: KeyHash, source: Source, token: T, now: Now) {
        let serial = self.next_serial();
        let completed = |outcome, token| CompletedGet {
            id: GetId { at: u32::MAX, serial },
            token,
            hash,
            outcome,
            buffer: None,
            was_cached: false,
            rejections: Rejections::default(),
        };
        if self.is_gone {
            return self.completed.push_back(completed(ReadOutcome::Gone, token));
        }
        let Some(key) = Key::of(key) else {
            let damaged = ReadOutcome::Fallback(FallbackReason::Damaged);
            return self.completed.push_back(completed(damaged, token));
        };
        let at = self.free.pop().expect("room for a GET");
        let id = GetId { at: at as u32, serial };
        let leased = self.lines.leased(now.ns);
        if leased.is_some() {
            // The line's second is older.
            self.metadata.go_to(self.clock_skew.second_of(now.second));
        }
        let started = (leased.unwrap_or_else(|| self.now.next()), leased.is_some());
        self.gets[at] = Some(RunningGet::new(&self.reader, key, hash, source, id, token, started));
        self.start(at);
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// Returns whether a fetch may be due.
    pub fn wants_fetch(&self) -> bool {
        !self.queue.is_empty() || self.lines.is_wanted()
    }

    /// Returns the next fetch to post, in this order, if one is due. A fetch that cannot be posted yet must be posted
    /// before others, or passed in as failed. `ns` is the clock of [`Now`], read before this call and not after the
    /// fetch is posted.
    pub fn next_fetch(&mut self, ns: u64) -> Option<Fetch> {
        while let Some(request) = self.queue.front().copied() {
            if !self.is_wanted(request.purpose) {
                self.queue.pop_front();
                continue;
            }
            let is_full = self.in_flight >= self.options.fetches.max(1)
                || self.bytes_in_flight + request.len > self.options.fetched_bytes;
            if is_full && self.in_flight > 0 {
                break;
            }
            self.queue.pop_front();
            self.in_flight += 1;
            self.bytes_in_flight += request.len;
            let moment = self.now.next();
            self.note_requested(request.purpose, moment, ns);
            return Some(self.fetch(request));
        }
        if !self.lines.is_wanted() {
            return None;
        }
        let moment = self.now.next();
        self.lines.request(moment, ns);
        Some(self.fetch(FetchRequest {
            purpose: FetchPurpose::Line(moment, ns),
            offset: STATUS_AT,
            len: STATUS_AND_COUNTS_BYTES,
            to: To::Probe,
        }))
    }

    /// Returns a fetch in flight.
    pub fn posted(&self, id: u32) -> Option<Fetch> {
        let FetchRequest { offset, len, to, .. } = (*self.fetches.get(id as usize)?)?;
        Some(Fetch { id, offset, len, to })
    }

    /// Gives a request an id and returns the fetch to post.
    fn fetch(&mut self, request: FetchRequest) -> Fetch {
        let id = self.free_fetches.pop().unwrap_or_else(|| {
            self.fetches.push(None);
            self.fetches.len() as u32 - 1
        });
        self.fetches[id as usize] = Some(request);
        let FetchRequest { offset, len, to, .. } = request;
        Fetch { id, offset, len, to }
    }

    /// Returns whether the attempt that needs a fetch is still in progress.
    fn is_wanted(&self, purpose: FetchPurpose) -> bool {
        match purpose {
            FetchPurpose::Line(..) => true,
            FetchPurpose::Step(owner)
            | FetchPurpose::Behind(owner)
            | FetchPurpose::Chunk(owner, _)
            | FetchPurpose::ChunkGeneration(owner, ..) => self.is_running(owner),
        }
    }

    fn is_running(&self, owner: Owner) -> bool {
        self.gets[owner.at].as_ref().is_some_and(|running| running.serial == owner.serial)
    }

    /// Records that a fetch is posted now.
    fn note_requested(&mut self, purpose: FetchPurpose, moment: SequenceNumber, ns: u64) {
        match purpose {
            FetchPurpose::Step(owner) => {
                let Some(running) = &mut self.gets[owner.at] else { return };
                running.get.note_requested(ns);
                let is_of_use = (self.options.in_order || self.options.grace_ns > 0) && !running.is_leased;
                if is_of_use && running.get.is_at_item() && running.by_counts {
                    self.lines.need(moment, true);
                    if self.options.in_order {
                        // Fetches posted from now on are executed after the item's.
                        running.needs_line = moment;
                    }
                }
            }
            FetchPurpose::Behind(owner) => {
                let Some(running) = &mut self.gets[owner.at] else { return };
                let count = self.metadata.count(running.get.place().segment);
                running.behind = Some(Behind { count, word: None });
            }
            _ => {}
        }
    }

    /// Passes in the result of a fetch. `now` was read after its completion.
    pub fn take(&mut self, id: u32, arrival: Arrival<'_, B>, now: Now) {
        let Some(request) = self.fetches.get_mut(id as usize).and_then(Option::take) else { return };
        self.free_fetches.push(id);
        if !matches!(request.purpose, FetchPurpose::Line(..)) {
            self.in_flight -= 1;
            self.bytes_in_flight -= request.len;
        }
        match request.purpose {
            FetchPurpose::Line(moment, ns) => self.take_line((moment, ns), arrival, now.second),
            FetchPurpose::Step(owner) if self.is_running(owner) => {
                self.take_step(owner.at, arrival, request.len, now.ns);
            }
            FetchPurpose::Behind(owner) if self.is_running(owner) => self.take_behind(owner.at, arrival),
            FetchPurpose::Chunk(owner, number) if self.is_running(owner) => {
                self.take_chunk(owner.at, number, arrival, request.len);
            }
            FetchPurpose::ChunkGeneration(owner, number, sum) if self.is_running(owner) => {
                self.take_chunk_generation(owner.at, number, sum, arrival);
            }
            // The GET has completed, or started another attempt.
            _ => {}
        }
    }

    /// Returns the next completed GET.
    pub fn next_completed(&mut self) -> Option<CompletedGet<B, T>> {
        self.completed.pop_front()
    }

    /// Fails all GETs: nothing can be fetched any more, and nothing is in flight.
    pub fn abandon(&mut self) {
        self.queue.clear();
        self.lines = Lines::new(self.options.gets_per_line);
        (self.fetches, self.free_fetches) = (Vec::new(), Vec::new());
        (self.in_flight, self.bytes_in_flight) = (0, 0);
        for at in 0..self.gets.len() {
            self.complete(at, ReadOutcome::Fallback(FallbackReason::NotFetched));
        }
    }

    // ---- lines ----

    fn take_line(&mut self, requested: (SequenceNumber, u64), arrival: Arrival<'_, B>, second: u32) {
        let bytes = arrival.bytes().and_then(<[u8]>::first_chunk::<STATUS_AND_COUNTS_BYTES>);
        let Some(line) = bytes else {
            self.lines.fail(requested.0);
            for at in 0..self.gets.len() {
                // Later GETs wait for another line.
                if self.gets[at].as_ref().is_some_and(|running| running.started < requested.0) {
                    self.fail(at, FallbackReason::NotFetched);
                }
            }
            return;
        };
        if !self.lines.take(requested, header::lease_of(line).as_nanos() as u64) {
            return;
        }
        let clock = header::clock_of(line);
        self.metadata.begin_counted(line, self.clock_skew.second(second, clock));
        if !self.metadata.is_alive() {
            return self.end_all_gone();
        }
        // GETs in flight are mostly at the front: scanning all slots would take as long as everything else.
        let mut left = self.gets_in_flight();
        for at in 0..self.gets.len() {
            if left == 0 {
                break;
            }
            if self.gets[at].is_some() {
                left -= 1;
                self.resume(at);
            }
        }
    }

    /// Handles a region that no server maintains any more.
    fn end_all_gone(&mut self) {
        self.is_gone = true;
        for at in 0..self.gets.len() {
            // Chunks in flight are still written to its value.
            self.drop_queued_chunks(at);
            if self.gets[at].as_ref().is_some_and(|running| !running.chunks.are_in_flight()) {
                self.complete(at, ReadOutcome::Gone);
            }
        }
        self.queue.clear();
    }

    /// Continues a GET that waited for the line, if the line arrived.
    fn resume(&mut self, at: usize) {
        let Some(running) = &mut self.gets[at] else { return };
        let by_grace = running.by_counts
            && self.lines.covers(running.started)
            && self.lines.is_known_within(running.arrived_ns, self.options.grace_ns);
        let needed = if without("behind") { running.started } else { running.needs_line };
        let is_covered = by_grace || self.lines.covers(needed);
        if running.arrived.is_none() || (running.get.awaits_line() && !is_covered) {
            return;
        }
        let Some(mut arrived) = running.arrived.take() else { return };
        if let StepInput::Bytes { is_settled, .. } = &mut arrived {
            let by_slot = running.get.is_at_slots_item()
                && is_within(running.get.slot_requested_ns(), running.arrived_ns, self.options.grace_ns);
            *is_settled = by_slot || running.by_counts && running.get.is_at_item();
        }
        self.advance(at, arrived);
    }

    // ---- steps ----

    /// Starts an attempt.
    fn start(&mut self, at: usize) {
        let Some(running) = &mut self.gets[at] else { return };
        if running.source == Source::ByKey {
            self.lines.need(running.needs_line, false);
        }
        self.advance(at, StepInput::Nothing);
        let Some(running) = &mut self.gets[at] else { return };
        if !running.get.is_at_item() {
            return;
        }
        let ItemPlace { segment, generation } = running.get.place();
        running.by_counts = self.metadata.stood(segment, generation);
        if !running.by_counts {
            self.lines.need(running.needs_line, false);
            if self.options.in_order {
                self.queue_behind(at);
            }
        } else if !self.options.in_order || running.is_leased {
            // Not before the item has arrived.
            running.needs_line = SequenceNumber::NEVER;
        }
    }

    fn owner(&self, at: usize) -> Owner {
        Owner { at, serial: self.gets[at].as_ref().map_or(0, |running| running.serial) }
    }

    fn queue_fetch(&mut self, purpose: FetchPurpose, offset: u64, len: usize, to: To) {
        self.queue.push_back(FetchRequest { purpose, offset, len, to });
    }

    /// Queues the generation of the item's segment, to be fetched after the item.
    fn queue_behind(&mut self, at: usize) {
        let Some(running) = &self.gets[at] else { return };
        let offset = generation_offset(&self.reader.geometry, running.get.place().segment);
        self.queue_fetch(FetchPurpose::Behind(self.owner(at)), offset, 8, To::Probe);
    }

    fn take_step(&mut self, at: usize, arrival: Arrival<'_, B>, len: usize, ns: u64) {
        let Some(running) = &mut self.gets[at] else { return };
        running.arrived_ns = ns;
        running.arrived = Some(match (running.wants_word, arrival) {
            (true, arrival) => match arrival.word() {
                Some(word) => StepInput::Word(word),
                None => return self.fail(at, FallbackReason::NotFetched),
            },
            (false, Arrival::Buffer(bytes)) => StepInput::Bytes { bytes, len, is_settled: false },
            (false, _) => return self.fail(at, FallbackReason::NotFetched),
        });
        if running.get.is_at_item() && (!self.options.in_order || running.needs_line == SequenceNumber::NEVER)
        {
            let ItemPlace { segment, generation } = running.get.place();
            // The counter may have changed since the request.
            running.by_counts = running.by_counts && self.metadata.stood(segment, generation);
            if running.by_counts {
                running.needs_line = self.now.next();
                // Unless the line in flight is recent enough.
                if !self.lines.is_requested_within(running.started, ns, self.options.grace_ns) {
                    self.lines.need(running.needs_line, true);
                }
            } else {
                if running.needs_line == SequenceNumber::NEVER {
                    running.needs_line = self.now.next();
                    self.lines.need(running.needs_line, false);
                }
                self.queue_behind(at);
            }
        }
        self.resume(at);
    }

    fn take_behind(&mut self, at: usize, arrival: Arrival<'_, B>) {
        let Some(running) = &mut self.gets[at] else { return };
        let (Some(word), Some(behind)) = (arrival.word(), &mut running.behind) else {
            return self.fail(at, FallbackReason::NotFetched);
        };
        behind.word = Some(word);
        if running.wants_behind {
            self.advance_behind(at, word);
        }
    }

    fn advance_behind(&mut self, at: usize, word: u64) {
        let Some(running) = &mut self.gets[at] else { return };
        running.wants_behind = false;
        let count = running.behind.take().and_then(|behind| behind.count);
        running.get.set_requested_count(count);
        self.advance(at, StepInput::Word(word));
    }

    /// Passes the requested input to a GET, and executes its next step.
    fn advance(&mut self, at: usize, input: StepInput<B>) {
        let Some(running) = &mut self.gets[at] else { return };
        let fetched = match input {
            StepInput::Nothing => Fetched::Nothing,
            StepInput::Word(word) => Fetched::Word(word),
            StepInput::Bytes { bytes, len, is_settled } => {
                let front = running.bytes.insert(bytes).get(..len).unwrap_or_default();
                if is_settled { Fetched::Settled(front) } else { Fetched::Bytes(front) }
            }
        };
        let step = running.get.next(&self.reader, &mut self.metadata, fetched);
        self.apply_step(at, step);
    }

    fn apply_step(&mut self, at: usize, step: Step) {
        let owner = self.owner(at);
        let Some(running) = &mut self.gets[at] else { return };
        match step {
            Step::Word(offset) => {
                running.wants_word = true;
                match running.behind {
                    // The same word is in flight, or has arrived.
                    Some(Behind { word, .. }) if running.get.awaits_generation_after() => match word {
                        Some(word) => self.advance_behind(at, word),
                        None => running.wants_behind = true,
                    },
                    _ => self.queue_fetch(FetchPurpose::Step(owner), offset, 8, To::Probe),
                }
            }
            Step::Bytes { offset, len } => {
                running.wants_word = false;
                let is_item = running.get.is_at_item() || running.get.is_at_slots_item();
                let to = if is_item { To::Item(running.id) } else { To::Buffer };
                self.queue_fetch(FetchPurpose::Step(owner), offset, len, to);
            }
            Step::Chunks { whole } => {
                // The table of chunks is kept separately: the value may be placed where the table was fetched to.
                running.bytes = None;
                running.chunks = ChunkProgress::of(whole);
                self.queue_chunks(at);
            }
            Step::Value { .. } => self.complete(at, ReadOutcome::Fallback(FallbackReason::Damaged)),
            Step::Done(outcome) => self.finish_get(at, outcome),
        }
    }

    // ---- completion ----

    fn finish_get(&mut self, at: usize, outcome: ReadOutcome) {
        let Some(running) = &mut self.gets[at] else { return };
        let hash = running.get.hash();
        match outcome {
            // The region's second may have changed since that line, and the client's clock may be late.
            ReadOutcome::Hit(hit)
                if running.is_leased && hit.is_expired(self.metadata.now().saturating_add(1)) =>
            {
                return self.begin_without_lease(at);
            }
            ReadOutcome::Hit(hit) => {
                self.locations.put(hash, hit.location);
                if !matches!(hit.value, Value::Fetched { .. }) {
                    running.bytes = None;
                }
                return self.complete(at, outcome);
            }
            ReadOutcome::Stale(_) => {
                if let Source::Cached(location) | Source::At(location) = running.source {
                    self.locations.remove(hash, location);
                }
                if matches!(running.source, Source::Cached(_)) {
                    return self.begin_by_key(at);
                }
            }
            ReadOutcome::Miss(_) | ReadOutcome::Fallback(_) | ReadOutcome::Gone => {}
        }
        self.complete(at, outcome);
    }

    /// Starts again by key, because the cached location is stale.
    fn begin_by_key(&mut self, at: usize) {
        let serial = self.next_serial();
        let Some(running) = &mut self.gets[at] else { return };
        running.serial = serial;
        running.begin_by_key(&self.reader);
        self.start(at);
    }

    /// Starts again at the same source, with a line that is still to be fetched.
    fn begin_without_lease(&mut self, at: usize) {
        let (serial, started) = (self.next_serial(), self.now.next());
        let Some(running) = &mut self.gets[at] else { return };
        running.serial = serial;
        running.begin_without_lease(&self.reader, started);
        self.start(at);
    }

    fn fail(&mut self, at: usize, reason: FallbackReason) {
        let Some(running) = &mut self.gets[at] else { return };
        if running.chunks.are_in_flight() {
            running.failed = Some(reason);
            self.drop_queued_chunks(at);
            return self.queue_chunks(at);
        }
        self.complete(at, ReadOutcome::Fallback(reason));
    }

    fn complete(&mut self, at: usize, outcome: ReadOutcome) {
        let Some(mut running) = self.gets[at].take() else { return };
        self.free.push(at);
        running.rejections.add(&running.get.rejections());
        let is_hit = matches!(outcome, ReadOutcome::Hit(_));
        self.completed.push_back(CompletedGet {
            id: running.id,
            token: running.token,
            hash: running.get.hash(),
            was_cached: running.source != Source::ByKey,
            outcome,
            buffer: running.bytes.filter(|_| is_hit),
            rejections: running.rejections,
        });
    }
}
