//! The GETs in flight on one endpoint: posts the reads that [`Remote`] asks for, and passes it their completions.
//!
//! ```text
//!   begin ──> Remote ──next_fetch──> Endpoint::read ──completion──> Remote ──next_completed──> GetSlot
//! ```
//! [`Remote`] holds the GETs and their fetches, the endpoint the buffers that reads write to. A read's token has the ids of
//! its fetches.
//!
//! Nothing blocks except opening the endpoint; a thread that waits for a [`GetSlot`] polls for all. A read that fails, or
//! does not complete in time, fails all GETs in flight: requests to the server replace them until a new endpoint is opened.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fabcache_fabric::channel::doorbell::ClientDoorbells;
use fabcache_fabric::{Buffer, Completion, Endpoint, LocalUse, Peer, Pool, RejectedOperation, RemoteAddress};
use fabcache_layout::KeyHash;
use fabcache_layout::header;
use fabcache_layout::reader::remote::{Arrival, CompletedGet, Fetch, Now, RemoteOptions, To};
use fabcache_layout::reader::{ReadOutcome, Remote, Value, next_random};

use super::fork_guard::ForkGuard;
use super::get_slot::{GetCompletion, GetSlot};
use super::region::Region;
use super::sockets::ServerEnd;
use super::target::{BufferGuard, Target, ValuePlacement};
use super::unconfirmed::{self, ConfirmedEndpoint, Unavailable};
use crate::bounds::{
    ACCESSES_PER_REPORT, LONG_READ_BUFFERS, LONG_READ_BYTES, READ_BUFFERS_KEPT, READS_AT_ONCE,
    READS_PER_NOTIFY, SHORT_READ_BYTES, VALUE_BYTES_MAX,
};
use crate::read_result::ReadResult;
use crate::region_clock::{RegionClock, monotonic_ns, precise_boot_ns, precise_monotonic_ns};

/// A GET in flight.
#[derive(Debug)]
struct StartedGet {
    slot: Arc<GetSlot>,
    target: Target,
}

/// The fetches of one read.
#[derive(Clone, Copy, Debug)]
struct JoinedFetches {
    fetch: Fetch,
    /// A second fetch, whose bytes follow in the buffer.
    behind: Option<Fetch>,
}

impl JoinedFetches {
    fn bytes(&self) -> usize {
        self.fetch.len + self.behind.map_or(0, |behind| behind.len)
    }

    /// Returns the read's token: the id of the first fetch, and that of the second plus 1.
    fn token(&self) -> u64 {
        let behind = self.behind.map_or(0, |behind| u64::from(behind.id) + 1);
        behind << 32 | u64::from(self.fetch.id)
    }

    /// Returns the ids in a token.
    fn ids(token: u64) -> (u32, Option<u32>) {
        (token as u32, ((token >> 32) as u32).checked_sub(1))
    }
}

/// The GETs in flight on one endpoint.
#[derive(Debug)]
pub struct RemoteGets {
    // Declared first, so dropped before the memory that its operations use.
    endpoint: Endpoint,
    peer: Peer,
    short: Pool,
    long: Pool,
    /// Longer buffers, kept for reuse.
    spare: Vec<Buffer>,
    remote: Remote<BufferGuard, StartedGet>,
    /// A read that the provider did not accept yet.
    refused: Option<(JoinedFetches, BufferGuard)>,
    /// The next fetch to post.
    next: Option<Fetch>,
    /// The provider reads two remote ranges in one operation.
    joins: bool,
    /// The server's endpoint.
    end: ServerEnd,
    /// Wakes a server that may sleep while its queue is full.
    doorbells: ClientDoorbells,
    /// Reads since the server was last notified.
    reads_since_notify: u32,
    completions: Vec<Completion>,
    /// Reads to report to the server.
    accesses: Vec<(KeyHash, u8)>,
    random: u32,
    /// Wakers to wake when no lock is held.
    wakers: Vec<Waker>,
    /// A read failed; the endpoint is not used any more.
    is_broken: bool,
    /// The region's clock.
    clock: RegionClock,
    region: Arc<ForkGuard<Region>>,
}

impl RemoteGets {
    /// Opens an endpoint and reads the region's header, waking the server meanwhile.
    ///
    /// # Errors
    /// The fabric fails, the deadline passes, or the region has a format that this version does not read.
    pub fn new(
        region: &Arc<ForkGuard<Region>>,
        end: &ServerEnd,
        deadline: Instant,
    ) -> Result<RemoteGets, Unavailable> {
        let domain = &region.domain;
        let (ConfirmedEndpoint { endpoint, peer, short }, first) = unconfirmed::open(region, end, deadline)?;
        let long = Pool::new(domain, LocalUse::READ, LONG_READ_BUFFERS, LONG_READ_BYTES)?;
        let bytes = first.first_chunk().ok_or(Unavailable)?;
        let birth = header::from_bytes(bytes, region.bytes).map_err(|_| Unavailable)?;
        let options = RemoteOptions {
            gets: READS_AT_ONCE,
            fetches: READS_AT_ONCE,
            in_order: domain.provider().reads_memory_in_order(),
            grace_ns: region.grace_ns,
            ..RemoteOptions::default()
        };
        let remote = Remote::new(&birth, region.secret.clone(), options).map_err(|_| Unavailable)?;
        Ok(RemoteGets {
            endpoint,
            peer,
            short,
            long,
            spare: Vec::new(),
            remote,
            refused: None,
            next: None,
            joins: domain.provider().places_at_once >= 2,
            end: end.clone(),
            doorbells: ClientDoorbells::default(),
            reads_since_notify: 0,
            completions: Vec::new(),
            accesses: Vec::with_capacity(ACCESSES_PER_REPORT),
            random: monotonic_ns() as u32 | 1,
            wakers: Vec::new(),
            is_broken: false,
            clock: region.clock,
            region: Arc::clone(region),
        })
    }

    /// Returns the endpoint.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Returns whether the endpoint is unusable: reads fail, or no server maintains the region.
    pub fn is_broken(&self) -> bool {
        self.is_broken || self.remote.is_gone()
    }

    /// Returns whether the location of the key's item is cached.
    pub fn has_location(&mut self, key: &[u8]) -> bool {
        self.remote.has_location(key)
    }

    /// Returns whether another GET can start.
    pub fn has_room(&self) -> bool {
        self.remote.free_slots() > 0
    }

    /// Returns whether a GET has exceeded its time: no thread waits for it any more, or the waiting thread is about
    /// to give up.
    pub fn is_late(&self, now: Instant) -> bool {
        // Each must see the time, so this does not stop at the first.
        self.remote.tokens().filter(|get| get.slot.is_late(now)).count() > 0
    }

    /// Starts a GET if there is a free slot, and posts its first read. It does not poll: of many GETs started one after
    /// the other, each would poll for the one before. Also returns whether any GET has completed meanwhile.
    ///
    /// `time_limit` counts from `began`. The target is taken if the GET starts.
    pub fn begin(
        &mut self,
        key: &[u8],
        (began, time_limit): (Instant, Duration),
        target: &mut Target,
    ) -> (Option<Arc<GetSlot>>, bool) {
        if self.is_broken() || !self.has_room() {
            return (None, false);
        }
        let slot = Arc::new(GetSlot::new(began, time_limit));
        let get = StartedGet { slot: Arc::clone(&slot), target: std::mem::take(target) };
        let now = self.now();
        self.remote.get(key, get, now);
        (Some(slot), self.advance(Some(now.ns)))
    }

    /// Polls completions and posts the next reads. Returns whether any GET has completed.
    pub fn poll(&mut self) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.endpoint.poll(&mut completions);
        let mut ns = None;
        if !completions.is_empty() {
            let now = self.now();
            ns = Some(now.ns);
            for completion in completions.drain(..) {
                self.handle(completion, now);
            }
            self.clock.correct(now.second, self.remote.region_second(), precise_monotonic_ns);
        }
        self.completions = completions;
        self.is_broken |= polled.is_err();
        self.advance(ns)
    }

    /// Posts the next reads and delivers completed GETs to their slots. `ns` is a recent time.
    fn advance(&mut self, ns: Option<u64>) -> bool {
        self.post(ns);
        if self.is_broken { self.give_up() } else { self.deliver() }
    }

    /// Fails all GETs in flight: the server must be asked for each. Returns whether there were any.
    pub fn give_up(&mut self) -> bool {
        self.is_broken = true;
        (self.refused, self.next) = (None, None);
        self.remote.abandon();
        self.deliver()
    }

    /// Takes the wakers of completed GETs. The caller wakes them when it holds no lock.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// Returns the earliest deadline of the GETs that tasks await; `None` if there are none.
    pub fn awaited_until(&self) -> Option<Instant> {
        self.remote.tokens().filter_map(|get| get.slot.awaited_until()).min()
    }

    /// Returns whether a read waits for the provider to accept it.
    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    fn handle(&mut self, Completion { token, result, buffer, .. }: Completion, now: Now) {
        // A failed read breaks the connection between the two endpoints.
        self.is_broken |= result.is_err();
        let (id, behind) = JoinedFetches::ids(token);
        // The GETs may have been abandoned.
        let Some(Fetch { len, to, .. }) = self.remote.posted(id) else { return };
        let buffer = self.guard(buffer, to);
        let arrived = result.ok().map(|_| &buffer[..]);
        if let Some(behind) = behind.and_then(|behind| self.remote.posted(behind)) {
            let bytes = arrived.and_then(|bytes| bytes.get(len..len + behind.len));
            self.remote.take(behind.id, bytes.map_or(Arrival::Failed, Arrival::Placed), now);
        }
        let Some(bytes) = arrived else { return self.remote.take(id, Arrival::Failed, now) };
        let mut arrival = Arrival::Placed(&bytes[..len]);
        match to {
            To::Buffer | To::Item(_) => return self.remote.take(id, Arrival::Buffer(buffer), now),
            To::Probe => {}
            To::Value { whole, .. } if whole > VALUE_BYTES_MAX => arrival = Arrival::Failed,
            To::Value { get, at, whole } => {
                let target = self.remote.token(get).map(|get| &mut get.target);
                match target.filter(|target| !target.is_read_in_place(whole)) {
                    Some(target) => {
                        if let Some(place) = target.place(at..at + len, whole) {
                            place.copy_from_slice(&bytes[..len]);
                        }
                    }
                    // A part of the value, which must not be kept.
                    None => return self.remote.take(id, arrival, now),
                }
            }
        }
        self.remote.take(id, arrival, now);
        self.keep(buffer);
    }

    /// Guards a buffer that a read has released: the caller's memory is returned to the GET's slot.
    fn guard(&mut self, buffer: Buffer, to: To) -> BufferGuard {
        let return_slot = match to {
            To::Item(get) if buffer.is_lent() => {
                self.remote.token(get).and_then(|get| get.target.return_slot.clone())
            }
            _ => None,
        };
        BufferGuard::new(buffer, return_slot)
    }

    fn post(&mut self, mut ns: Option<u64>) {
        while !self.is_broken {
            let (joined, buffer) = match self.refused.take() {
                Some(refused) => refused,
                None => {
                    let Some(joined) = self.next_read(&mut ns) else { return };
                    let Some(buffer) = self.memory_for(&joined) else {
                        // The limit of locked memory may be reached: only these fetches fail.
                        let now = self.now();
                        for fetch in [Some(joined.fetch), joined.behind].into_iter().flatten() {
                            self.remote.take(fetch.id, Arrival::Failed, now);
                        }
                        continue;
                    };
                    (joined, buffer)
                }
            };
            let JoinedFetches { fetch, behind } = joined;
            let (place, token) = (self.place(fetch.offset), joined.token());
            let read = match behind {
                None => self.endpoint.read(self.peer, place, buffer.take(), 0..fetch.len, token),
                Some(behind) => {
                    let places = [(place, fetch.len), (self.place(behind.offset), behind.len)];
                    self.endpoint.read_places(self.peer, &places, buffer.take(), token)
                }
            };
            match read {
                Ok(()) => self.count_read(),
                Err(RejectedOperation { buffer, error }) => {
                    let buffer = self.guard(buffer, fetch.to);
                    if !error.is_again() {
                        self.is_broken = true;
                        return;
                    }
                    self.refused = Some((joined, buffer));
                    if self.endpoint.wait_fd().is_none() {
                        self.doorbells.posted(Instant::now());
                        if self.doorbells.must_notify_awake(Instant::now) {
                            self.region.sockets.notify(&self.end.name);
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Notifies the server before its queue is full, where the provider has no descriptor (shm): each read occupies an
    /// entry until the server polls, and other peers' messages need room as well.
    fn count_read(&mut self) {
        if self.endpoint.wait_fd().is_some() {
            return;
        }
        self.reads_since_notify += 1;
        if self.reads_since_notify >= READS_PER_NOTIFY {
            self.reads_since_notify = 0;
            self.region.sockets.notify(&self.end.name);
        }
    }

    /// Returns the memory to read into: the caller's if possible.
    fn memory_for(&mut self, joined: &JoinedFetches) -> Option<BufferGuard> {
        let bytes = joined.bytes();
        let domain = self.endpoint.domain();
        match joined.fetch.to {
            To::Item(get) => {
                let get = self.remote.token(get);
                if let Some(buffer) = get.and_then(|get| get.target.whole(domain, bytes)) {
                    return Some(buffer);
                }
            }
            To::Value { get, at, whole } => {
                if let Some(StartedGet { target, .. }) = self.remote.token(get)
                    && target.reads_in_place(domain, whole)
                {
                    return Some(BufferGuard::new(target.part(at..at + bytes)?, None));
                }
            }
            To::Buffer | To::Probe => {}
        }
        self.buffer(bytes).map(|buffer| BufferGuard::new(buffer, None))
    }

    /// Returns the next read to post as one operation.
    fn next_read(&mut self, ns: &mut Option<u64>) -> Option<JoinedFetches> {
        let fetch = match self.next.take() {
            Some(next) => next,
            None => self.next_fetch(ns)?,
        };
        let is_alone = !self.joins || matches!(fetch.to, To::Value { .. });
        if is_alone {
            return Some(JoinedFetches { fetch, behind: None });
        }
        let next = self.next_fetch(ns);
        let behind = next.filter(|next| next.to == To::Probe);
        if behind.is_none() {
            self.next = next;
        }
        Some(JoinedFetches { fetch, behind })
    }

    /// Returns the next fetch that lies within the region.
    fn next_fetch(&mut self, ns: &mut Option<u64>) -> Option<Fetch> {
        while self.remote.wants_fetch() {
            // A time that is not later than now; the time that posting many reads takes is significant.
            let fetch = self.remote.next_fetch(ns.take().unwrap_or_else(precise_boot_ns))?;
            // References in the region may be corrupt.
            let end = fetch.offset.checked_add(fetch.len as u64);
            if end.is_some_and(|end| end <= self.region.bytes) {
                return Some(fetch);
            }
            let now = self.now();
            self.remote.take(fetch.id, Arrival::Failed, now);
        }
        None
    }

    fn place(&self, offset: u64) -> RemoteAddress {
        let memory = &self.end.memory;
        RemoteAddress { address: memory.address.wrapping_add(offset), key: memory.key }
    }

    /// Delivers completed GETs to their slots. Returns whether there were any.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(completed) = self.remote.next_completed() {
            any = true;
            let random = next_random(&mut self.random);
            let reads = completed.reads_to_report(random);
            let CompletedGet { token: StartedGet { slot, mut target }, hash, outcome, buffer, .. } =
                completed;
            let assembled = target.collect();
            let mut placement = ValuePlacement::Nowhere;
            let mut read = ReadResult::from(&outcome);
            if let (ReadResult::Hit { .. }, ReadOutcome::Hit(hit)) = (&read, &outcome) {
                placement = match (hit.value, &buffer) {
                    (Value::Fetched { at, len }, Some(buffer)) if buffer.is_callers() => {
                        ValuePlacement::Registered(at..at + len)
                    }
                    (Value::Fetched { at, len }, Some(buffer)) => target.copy(buffer.get(at..at + len)),
                    (Value::Placed, _) => assembled,
                    _ => ValuePlacement::Nowhere,
                };
                if placement == ValuePlacement::Nowhere {
                    read = ReadResult::FALLBACK;
                }
                if reads > 0 && self.accesses.len() < 2 * ACCESSES_PER_REPORT {
                    self.accesses.push((hash, reads));
                }
            }
            if let Some(buffer) = buffer {
                self.keep(buffer);
            }
            let completion = GetCompletion { read, placement, ..GetCompletion::fallback(target.value) };
            self.wakers.extend(slot.complete(completion));
        }
        any
    }

    /// Takes the reads to report to the server, if there are enough of them.
    pub fn take_accesses(&mut self) -> Option<Vec<(KeyHash, u8)>> {
        let next = || Vec::with_capacity(ACCESSES_PER_REPORT);
        let must_report = self.accesses.len() >= ACCESSES_PER_REPORT;
        must_report.then(|| std::mem::replace(&mut self.accesses, next()))
    }

    fn buffer(&mut self, len: usize) -> Option<Buffer> {
        if len <= SHORT_READ_BYTES
            && let Some(buffer) = self.short.take()
        {
            return Some(buffer);
        }
        if len <= LONG_READ_BYTES
            && let Some(buffer) = self.long.take()
        {
            return Some(buffer);
        }
        if let Some(at) = self.spare.iter().position(|buffer| buffer.len() >= len) {
            return Some(self.spare.swap_remove(at));
        }
        Buffer::own(self.endpoint.domain(), vec![0; len.next_power_of_two()]).ok()
    }

    /// Keeps a long buffer for reuse, because registering one is expensive.
    fn keep(&mut self, held: BufferGuard) {
        if held.is_callers() {
            return;
        }
        let buffer = held.take();
        if buffer.len() > LONG_READ_BYTES && self.spare.len() < READ_BUFFERS_KEPT {
            self.spare.push(buffer);
        }
    }

    /// Returns the current time.
    fn now(&self) -> Now {
        Now { second: self.clock.second_at(monotonic_ns()), ns: precise_boot_ns() }
    }
}
