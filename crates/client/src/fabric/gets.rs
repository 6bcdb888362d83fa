//! GETs of one server's region, over a port of their own: it drives [`fabcache_layout::reader::Remote`]. Nothing here blocks
//! but the making of it.
//!
//! ```text
//!   get ──> Remote ──next_fetch──> port.read ──completion──> Remote ──next_done──> Slot
//! ```
//! A thread that waits for a [`GetSlot`] polls for all. A read that fails or never completes ends all GETs: everything
//! is then asked for by requests, until another of these is opened.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use fabcache_fabric::channel::doorbell::ClientDoorbells;
use fabcache_fabric::{Buffer, Completion, Endpoint, Peer, Pool, RejectedOperation, RemoteAddress};
use fabcache_layout::KeyHash;
use fabcache_layout::header;
use fabcache_layout::reader::remote::{Arrival, Done, Fetch, Found, Now, RemoteOptions, To};
use fabcache_layout::reader::{Remote, Value};

use rustix::time::{ClockId, clock_gettime};
use slab::Slab;

use super::fork_guard::ForkGuard;
use super::region::Region;
use super::sockets::ServerEnd;
use super::target::{BufferGuard, ReturnSlot, Target, ValueLocation};
use super::unconfirmed::{self, ConfirmedEndpoint};
use crate::bounds::{
    ACCESSES_TOLD_AT_ONCE, LONG_READ_BUFFERS, LONG_READ_BYTES, READ_BUFFERS_KEPT, READS_A_BELL,
    READS_AT_ONCE, SHORT_READ_BYTES, VALUE_BYTES_MAX,
};
use crate::shm::{ReadResult, monotonic_ns, next_random};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Where a GET that was begun leaves what it came to. Its lock is held for a moment only, and no other is taken meanwhile.
#[derive(Debug)]
pub struct GetSlot {
    state: Mutex<State>,
    /// So long it may take.
    spin: Duration,
}

#[derive(Debug)]
struct State {
    over: Option<GetCompletion>,
    /// Told when it is over.
    waker: Option<Waker>,
    /// Until then it may take.
    deadline: Instant,
    /// Somebody has found that it is late.
    was_late: bool,
}

/// What a GET came to.
#[derive(Debug)]
pub struct GetCompletion {
    /// It …
    pub read: ReadResult,
    /// … the value, or memory that was given for it …
    pub value: Vec<u8>,
    /// … which lies in registered memory of the caller's if this says where …
    pub within: Option<Range<usize>>,
    /// … and when that was there.
    pub at: Instant,
}

impl GetSlot {
    fn new(now: Instant, spin: Duration) -> GetSlot {
        let state = State { over: None, waker: None, deadline: now + spin, was_late: false };
        GetSlot { state: Mutex::new(state), spin }
    }

    /// When it is to be given up, told to who waits from now on.
    pub fn awaited_from(&self, now: Instant) -> Instant {
        self.is_late(now);
        self.lock().deadline
    }

    /// Returns whether the GET has exceeded its time. The thread that finds out may itself be late, since nothing is
    /// read while no thread polls; so the GET then gets its time a second time.
    pub fn is_late(&self, now: Instant) -> bool {
        let mut state = self.lock();
        if now >= state.deadline && !std::mem::replace(&mut state.was_late, true) {
            state.deadline = now + self.spin;
        }
        now >= state.deadline
    }

    /// What it came to, once.
    pub fn take(&self) -> Option<GetCompletion> {
        self.lock().over.take()
    }

    /// It is over, and was not taken.
    pub fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    /// If it is not over, this one is told when it is, and handed back is whom it takes the place of.
    pub fn watch(&self, waker: Waker) -> Option<Waker> {
        let mut state = self.lock();
        if state.over.is_some() { Some(waker) } else { state.waker.replace(waker) }
    }

    /// When the GET is given up, if a thread waits for it.
    fn awaited_until(&self) -> Option<Instant> {
        let state = self.lock();
        state.waker.as_ref().map(|_| state.deadline)
    }

    fn put(&self, read: ReadResult, value: Vec<u8>, within: Option<Range<usize>>) -> Option<Waker> {
        let at = Instant::now();
        let mut state = self.lock();
        state.over = Some(GetCompletion { read, value, within, at });
        state.waker.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(NO_PANIC)
    }
}

const NO_PANIC: &str = "no thread panics while it holds what a get came to";

/// A GET under way.
#[derive(Debug)]
struct StartedGet {
    slot: Arc<GetSlot>,
    target: Target,
}

/// A read under way, or that is to be.
#[derive(Clone, Debug)]
struct PendingRead {
    fetch: Fetch,
    /// What is fetched by the same operation, behind it in its buffer.
    behind: Option<Fetch>,
    /// Whence its buffer is, if it is a caller's.
    return_slot: Option<ReturnSlot>,
    /// It is read where it belongs.
    is_in_place: bool,
}

/// GETs of one region.
#[derive(Debug)]
pub struct RemoteGets {
    // Before the memory that its operations use.
    port: Endpoint,
    peer: Peer,
    short: Pool,
    long: Pool,
    /// Buffers for what is longer still, kept for the next.
    spare: Vec<Buffer>,
    remote: Remote<BufferGuard>,
    /// By their tokens.
    begun: Slab<StartedGet>,
    /// What is being fetched, by its number.
    fetching: Vec<Option<PendingRead>>,
    /// The provider did not take this one yet.
    refused: Option<(PendingRead, BufferGuard)>,
    /// To be fetched next.
    next: Option<Fetch>,
    /// One operation reads two places for the price of one.
    joins: bool,
    /// The end of the server that is read from.
    end: ServerEnd,
    /// For a server that may sleep while its queue is full.
    doorbells: ClientDoorbells,
    /// Reads since it was rung for.
    unrung: u32,
    ended: Vec<Completion>,
    /// Reads of which the server is to be told.
    accesses: Vec<(KeyHash, u8)>,
    random: u32,
    /// To be woken once nothing is locked.
    wakers: Vec<Waker>,
    /// Reads have failed: nothing more is read here.
    is_broken: bool,
    region: Arc<ForkGuard<Region>>,
}

impl RemoteGets {
    /// Connects to the region, and reads what it is like. The server is rung for meanwhile.
    ///
    /// # Errors
    /// The fabric fails, it takes too long, or there is no region that this version reads.
    pub fn new(
        region: &Arc<ForkGuard<Region>>,
        end: &ServerEnd,
        deadline: Instant,
    ) -> Result<RemoteGets, String> {
        let domain = &region.domain;
        let (ConfirmedEndpoint { port, peer, short }, first) = unconfirmed::open(region, end, deadline)?;
        let long =
            Pool::new(domain, LONG_READ_BUFFERS, LONG_READ_BYTES).map_err(|error| error.to_string())?;
        let bytes = first.first_chunk().ok_or("its header is cut short")?;
        let birth = header::from_bytes(bytes, region.bytes).map_err(|error| format!("{error:?}"))?;
        let options = RemoteOptions {
            gets: READS_AT_ONCE,
            fetches: READS_AT_ONCE,
            in_order: domain.provider().reads_memory_in_order(),
            grace_ns: region.grace_ns,
            ..RemoteOptions::default()
        };
        let remote =
            Remote::new(&birth, region.secret.clone(), options).map_err(|error| format!("{error:?}"))?;
        Ok(RemoteGets {
            port,
            peer,
            short,
            long,
            spare: Vec::new(),
            remote,
            begun: Slab::with_capacity(READS_AT_ONCE),
            fetching: Vec::new(),
            refused: None,
            next: None,
            joins: domain.provider().places_at_once >= 2,
            end: end.clone(),
            doorbells: ClientDoorbells::default(),
            unrung: 0,
            ended: Vec::new(),
            accesses: Vec::with_capacity(ACCESSES_TOLD_AT_ONCE),
            random: monotonic_ns() as u32 | 1,
            wakers: Vec::new(),
            is_broken: false,
            region: Arc::clone(region),
        })
    }

    /// Its port.
    pub fn port(&mut self) -> &mut Endpoint {
        &mut self.port
    }

    /// It is of no use any more: reads fail, or no server keeps the region.
    pub fn is_over(&self) -> bool {
        self.is_broken || self.remote.is_gone()
    }

    /// Where the key's item was found is known.
    pub fn is_kept(&mut self, key: &[u8]) -> bool {
        self.remote.is_kept(key)
    }

    /// Whether there is room for one more GET.
    pub fn has_room(&self) -> bool {
        self.remote.room() > 0
    }

    /// Returns whether a GET has exceeded its time: no thread waits for it any more, or the waiting thread is about
    /// to give up.
    pub fn is_late(&self, now: Instant) -> bool {
        // All are told what time it is.
        self.begun.iter().filter(|(_, begun)| begun.slot.is_late(now)).count() > 0
    }

    /// Begins a GET if there is a free slot, and posts its first read. It takes in no completions: with many GETs
    /// begun one after the other, each would poll for the one before. Returns whether any GET has ended meanwhile.
    ///
    /// The GET may take so long. The value buffer is taken if the GET begins.
    pub fn begin(
        &mut self,
        key: &[u8],
        (began, spin): (Instant, Duration),
        target: &mut Target,
    ) -> Option<(Arc<GetSlot>, bool)> {
        if self.is_over() || !self.has_room() {
            return None;
        }
        let slot = Arc::new(GetSlot::new(began, spin));
        let begun = StartedGet { slot: Arc::clone(&slot), target: std::mem::take(target) };
        let token = self.begun.insert(begun) as u64;
        let now = self.now();
        self.remote.get(key, token, now);
        Some((slot, self.go_on(Some(now.ns))))
    }

    /// Takes in what was read, and posts what is to be read. Whether any GET is over since.
    pub fn drive(&mut self) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        let polled = self.port.poll(&mut ended);
        let mut ns = None;
        if !ended.is_empty() {
            let now = self.now();
            ns = Some(now.ns);
            for completion in ended.drain(..) {
                self.take_in(completion, now);
            }
        }
        self.ended = ended;
        self.is_broken |= polled.is_err();
        self.go_on(ns)
    }

    /// Posts the next reads and returns ended GETs to their slots. `ns` is a recent time.
    fn go_on(&mut self, ns: Option<u64>) -> bool {
        self.post(ns);
        if self.is_broken {
            self.give_up();
        }
        self.settle()
    }

    /// Ends all that is under way: everything is to be asked for.
    pub fn give_up(&mut self) {
        self.is_broken = true;
        (self.refused, self.next) = (None, None);
        self.remote.abandon();
        self.settle();
        for mut begun in self.begun.drain() {
            begun.target.collect();
            self.wakers.extend(begun.slot.put(ReadResult::Ask, begun.target.value, None));
        }
    }

    /// Who is to be woken, by a caller that has locked nothing any more.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// When the first of the awaited GETs is given up; None if none is awaited.
    pub fn awaited_until(&self) -> Option<Instant> {
        self.begun.iter().filter_map(|(_, begun)| begun.slot.awaited_until()).min()
    }

    /// A read waits for the provider to take it.
    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    fn take_in(&mut self, Completion { token, result, buffer, .. }: Completion, now: Now) {
        let posted = self.fetching.get_mut(token as usize).and_then(Option::take);
        let Some(PendingRead { fetch, behind, return_slot, is_in_place }) = posted else { return };
        let Fetch { id, len, to, .. } = fetch;
        let held = BufferGuard::new(buffer, return_slot);
        // The connection of the two ends is broken with one that fails.
        self.is_broken |= result.is_err();
        let came = result.ok().map(|_| &held[..]);
        if let Some(behind) = behind {
            let bytes = came.and_then(|bytes| bytes.get(len..len + behind.len));
            self.remote.take(behind.id, bytes.map_or(Arrival::Failed, Arrival::Placed), now);
        }
        let Some(came) = came else { return self.remote.take(id, Arrival::Failed, now) };
        match to {
            To::Buffer | To::Item { .. } => return self.remote.take(id, Arrival::Buffer(held), now),
            To::Probe => return self.remote.take(id, Arrival::Placed(&came[..len]), now),
            To::Value { .. } if is_in_place => {
                return self.remote.take(id, Arrival::Placed(&came[..len]), now);
            }
            To::Value { whole, .. } if whole > VALUE_BYTES_MAX => {
                return self.remote.take(id, Arrival::Failed, now);
            }
            To::Value { token, at, whole } => {
                let target = self.begun.get_mut(token as usize).map(|begun| &mut begun.target);
                if let Some(place) = target.and_then(|target| target.place(at..at + len, whole)) {
                    place.copy_from_slice(&came[..len]);
                }
                self.remote.take(id, Arrival::Placed(&came[..len]), now);
            }
        }
        self.keep(held);
    }

    fn post(&mut self, mut ns: Option<u64>) {
        while !self.is_broken {
            let (posted, held) = match self.refused.take() {
                Some(refused) => refused,
                None => {
                    let Some(mut posted) = self.next_read(&mut ns) else { return };
                    let Some(held) = self.memory_for(&mut posted) else {
                        // It may be too much for the limit of locked memory: others go on.
                        let now = self.now();
                        for fetch in [Some(posted.fetch), posted.behind].into_iter().flatten() {
                            self.remote.take(fetch.id, Arrival::Failed, now);
                        }
                        continue;
                    };
                    (posted, held)
                }
            };
            let (fetch, behind) = (posted.fetch, posted.behind);
            let (buffer, return_slot) = held.take();
            let (place, token) = (self.place(fetch.offset), fetch.id.into());
            let read = match behind {
                None => self.port.read(self.peer, place, buffer, 0..fetch.len, token),
                Some(behind) => {
                    let places = [(place, fetch.len), (self.place(behind.offset), behind.len)];
                    self.port.read_places(self.peer, &places, buffer, token)
                }
            };
            match read {
                Ok(()) => {
                    let number = fetch.id as usize;
                    if self.fetching.len() <= number {
                        self.fetching.resize_with(number + 1, || None);
                    }
                    self.fetching[number] = Some(PendingRead { return_slot, ..posted });
                    self.count_read();
                }
                Err(RejectedOperation { buffer, error }) => {
                    let held = BufferGuard::new(buffer, return_slot);
                    if !error.is_again() {
                        self.is_broken = true;
                        return;
                    }
                    self.refused = Some((posted, held));
                    if self.port.wait_fd().is_none() {
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

    /// Each read takes a place of the server's queue until that looks there, where there is no descriptor (shm). It is rung
    /// for before the queue is full: what is sent to it by others has to have room there, too.
    fn count_read(&mut self) {
        if self.port.wait_fd().is_some() {
            return;
        }
        self.unrung += 1;
        if self.unrung >= READS_A_BELL {
            self.unrung = 0;
            self.region.sockets.notify(&self.end.name);
        }
    }

    /// Returns the memory to read into: the caller's if possible.
    fn memory_for(&mut self, posted: &mut PendingRead) -> Option<BufferGuard> {
        let PendingRead { fetch, behind, .. } = *posted;
        let bytes = fetch.len + behind.map_or(0, |behind| behind.len);
        let domain = self.port.domain();
        match &fetch.to {
            To::Item { token } => {
                let begun = self.begun.get(*token as usize);
                if let Some(held) = begun.and_then(|begun| begun.target.whole(domain, bytes)) {
                    return Some(held);
                }
            }
            To::Value { token, at, whole } => {
                let range = *at..*at + fetch.len;
                if let Some(StartedGet { target, .. }) = self.begun.get_mut(*token as usize)
                    && target.reads_in_place(domain, *whole)
                {
                    posted.is_in_place = true;
                    return Some(BufferGuard::new(target.part(range)?, None));
                }
            }
            To::Buffer | To::Probe => {}
        }
        self.buffer(bytes).map(|buffer| BufferGuard::new(buffer, None))
    }

    /// Returns the next read to post as one operation.
    fn next_read(&mut self, ns: &mut Option<u64>) -> Option<PendingRead> {
        let fetch = match self.next.take() {
            Some(next) => next,
            None => self.next_fetch(ns)?,
        };
        let is_alone = !self.joins || matches!(fetch.to, To::Value { .. });
        if is_alone {
            return Some(PendingRead { fetch, behind: None, return_slot: None, is_in_place: false });
        }
        let next = self.next_fetch(ns);
        let behind = next.filter(|next| next.to == To::Probe);
        if behind.is_none() {
            self.next = next;
        }
        Some(PendingRead { fetch, behind, return_slot: None, is_in_place: false })
    }

    /// What is to be fetched next, and can be.
    fn next_fetch(&mut self, ns: &mut Option<u64>) -> Option<Fetch> {
        while self.remote.wants_fetch() {
            // Not later than it is; where many are posted, the time that this takes counts.
            let fetch = self.remote.next_fetch(ns.take().unwrap_or_else(precise_ns))?;
            // The region's own references may be nonsense.
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

    fn settle(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.remote.next_done() {
            any = true;
            let random = next_random(&mut self.random);
            let reads = done.reads_to_report(random);
            let Done { token, hash, found, .. } = done;
            let Some(StartedGet { slot, mut target }) = self.begun.try_remove(token as usize) else {
                continue;
            };
            let collected = target.collect();
            let (mut read, mut within) = (ReadResult::Ask, None);
            let buffer = match found {
                Found::Hit(hit, buffer) if hit.stale || hit.token_sent => buffer,
                Found::Hit(hit, buffer) => {
                    let is_there = match (hit.value, &buffer) {
                        (Value::Fetched { at, len }, Some(buffer)) if buffer.is_callers() => {
                            within = Some(at..at + len);
                            true
                        }
                        (Value::Fetched { at, len }, Some(buffer)) => {
                            // The chunks may belong to a value that was replaced meanwhile.
                            target.value.clear();
                            let bytes = buffer.get(at..at + len);
                            bytes.is_some_and(|bytes| {
                                target.value.extend_from_slice(bytes);
                                true
                            })
                        }
                        (Value::Placed, _) => {
                            if let ValueLocation::OnDesk(whole) = collected {
                                within = Some(0..whole);
                            }
                            collected != ValueLocation::Nowhere
                        }
                        _ => false,
                    };
                    if is_there {
                        read = ReadResult::Hit { flags: hit.flags, cas: hit.cas };
                    }
                    if reads > 0 && self.accesses.len() < 2 * ACCESSES_TOLD_AT_ONCE {
                        self.accesses.push((hash, reads));
                    }
                    buffer
                }
                Found::Miss(_) => {
                    read = ReadResult::Miss;
                    None
                }
                Found::Stale(_) | Found::AskServer(_) => None,
                Found::Gone => {
                    read = ReadResult::Gone;
                    None
                }
            };
            if let Some(buffer) = buffer {
                self.keep(buffer);
            }
            let value = std::mem::take(&mut target.value);
            self.wakers.extend(slot.put(read, value, within));
        }
        any
    }

    /// Reads of which the server is to be told now, if there are enough of them.
    pub fn take_accesses(&mut self) -> Option<Vec<(KeyHash, u8)>> {
        let next = || Vec::with_capacity(ACCESSES_TOLD_AT_ONCE);
        let must_report = self.accesses.len() >= ACCESSES_TOLD_AT_ONCE;
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
        Buffer::own(self.port.domain(), vec![0; len.next_power_of_two()]).ok()
    }

    /// Long buffers are registered at some cost.
    fn keep(&mut self, held: BufferGuard) {
        if held.is_callers() {
            return;
        }
        let (buffer, _) = held.take();
        if buffer.len() > LONG_READ_BYTES && self.spare.len() < READ_BUFFERS_KEPT {
            self.spare.push(buffer);
        }
    }

    /// Returns the current time.
    fn now(&self) -> Now {
        let second = (monotonic_ns() as i64).saturating_sub(self.region.zero_ns) / NS_PER_SECOND;
        Now { second: second.clamp(0, u32::MAX.into()) as u32, ns: precise_ns() }
    }
}

/// Nanoseconds of a clock that goes on while the system is suspended.
fn precise_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * NS_PER_SECOND as u64 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_that_nobody_looked_at_in_its_time_has_it_once_more() {
        const PATIENCE: Duration = Duration::from_secs(10);
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let slot = GetSlot::new(began, PATIENCE);
        assert!(!slot.is_late(after(9)));
        assert_eq!(slot.awaited_from(after(9)), after(10), "who waits in its time has no more");
        assert!(!slot.is_late(after(30)), "it was left alone");
        assert_eq!(slot.awaited_from(after(31)), after(40));
        assert!(!slot.is_late(after(39)));
        assert!(slot.is_late(after(40)) && slot.is_late(after(90)), "once");
        let slot = GetSlot::new(began, PATIENCE);
        assert_eq!(slot.awaited_from(after(30)), after(40));
        slot.watch(Waker::noop().clone());
        assert_eq!(slot.awaited_until(), Some(after(40)), "so it is for who is told");
        assert!(slot.is_late(after(41)));
    }
}
