//! One-sided GETs from another PE's region: [`Remote`] says what to read, and this reads it.
//!
//! Reads are executed one after the other, each complete before the next begins: `quiet`, which would complete many at once,
//! waits for all PEs of the job where the transport needs their help, and a stopped one would delay all.

use std::ops::Range;

use fabcache_layout::checksum::Secret;
use fabcache_layout::hash::KeyHash;
use fabcache_layout::header::Birth;
use fabcache_layout::reader::region_clock::{
    RegionClock, monotonic_ns, precise_boot_ns, precise_monotonic_ns,
};
use fabcache_layout::reader::remote::{Arrival, CompletedGet, Fetch, Now, RemoteOptions, To};
use fabcache_layout::reader::{ReadOutcome, Remote, Value, next_random};
use fabcache_protocol::{Accesses, Item, Reply};
use fabcache_shmem::RemoteHeaps;

use super::operation::Operation;
use crate::worker::inbox::Answer;

/// GETs at once: those that arrived together share a read of the region's status line.
const GETS_MAX: usize = 64;
/// Cached locations of items, of all PEs together; each takes 24 bytes.
const LOCATIONS: usize = 512 << 10;
/// … and of one PE, at least and at most.
const LOCATIONS_MIN: usize = 1 << 10;
const LOCATIONS_MAX: usize = 64 << 10;
/// Buffers kept for reuse.
const SPARE_MAX: usize = 16;
/// Longer buffers are not kept.
const SPARE_BYTES_MAX: usize = 64 << 10;
/// Reads to report at once: they fit a line of the protocol.
pub const ACCESSES_PER_REPORT: usize = 64;
/// Longer values go by messages, in parts: reading them at once would delay everything else of their PE.
const VALUE_BYTES_MAX: usize = 256 << 10;
/// Reads to report, at most: more are forgotten.
const ACCESSES_MAX: usize = 8 * ACCESSES_PER_REPORT;

/// Another PE's region, and how to read it.
#[derive(Clone, Debug)]
pub struct RemoteRegion {
    /// The contents of its header.
    pub birth: Birth,
    /// The secret that validates its items.
    pub secret: Secret,
    /// How long emptied segments are not overwritten.
    pub grace_ns: u64,
    /// Its clock.
    pub clock: RegionClock,
    /// Where it lies in the heap.
    pub range: Range<u64>,
}

/// A GET, and the parts of a long value that have been read.
#[derive(Debug)]
struct StartedGet {
    operation: Operation,
    value: Vec<u8>,
}

/// One-sided GETs from one PE.
#[derive(Debug)]
pub struct OneSidedGets {
    pe: usize,
    range: Range<u64>,
    remote: Remote<Vec<u8>, StartedGet>,
    clock: RegionClock,
    spare: Vec<Vec<u8>>,
    /// Decides which reads are reported.
    random: u32,
    accesses: Vec<(KeyHash, u8)>,
}

impl OneSidedGets {
    /// Returns GETs from this region of a job of so many PEs; none if it cannot be read.
    pub fn new(pe: usize, pes: usize, region: &RemoteRegion, random: u32) -> Option<OneSidedGets> {
        let options = RemoteOptions {
            gets: GETS_MAX,
            in_order: true,
            grace_ns: region.grace_ns,
            locations: (LOCATIONS / pes.max(1)).clamp(LOCATIONS_MIN, LOCATIONS_MAX),
            ..RemoteOptions::default()
        };
        Some(OneSidedGets {
            pe,
            range: region.range.clone(),
            remote: Remote::new(&region.birth, region.secret.clone(), options).ok()?,
            clock: region.clock,
            spare: Vec::new(),
            random: random | 1,
            accesses: Vec::new(),
        })
    }

    /// Returns whether another GET can start.
    pub fn has_room(&self) -> bool {
        self.remote.free_slots() > 0 && !self.remote.is_gone()
    }

    /// Starts a GET. There is room.
    pub fn begin(&mut self, key: &[u8], operation: Operation) {
        let now = self.now();
        self.remote.get(key, StartedGet { operation, value: Vec::new() }, now);
    }

    /// Returns whether GETs have started.
    pub fn has_started(&self) -> bool {
        self.remote.gets_in_flight() > 0
    }

    /// Executes all GETs that have started, and answers them. Those that the PE must be asked for are appended to `asked`.
    /// Returns the number of GETs that were answered.
    pub fn run(&mut self, heaps: &mut dyn RemoteHeaps, asked: &mut Vec<Operation>) -> u64 {
        let mut answered = 0;
        while self.has_started() || self.remote.wants_fetch() {
            while let Some(fetch) = self.remote.next_fetch(precise_boot_ns()) {
                self.read(heaps, fetch);
            }
            let mut any = false;
            while let Some(completed) = self.remote.next_completed() {
                any = true;
                match self.complete(completed) {
                    None => answered += 1,
                    Some(operation) => asked.push(operation),
                }
            }
            if !any && !self.remote.wants_fetch() {
                // Nothing is in flight that they could wait for.
                self.remote.abandon();
                while let Some(completed) = self.remote.next_completed() {
                    asked.extend(self.complete(completed));
                }
            }
        }
        let second = self.clock.second_at(monotonic_ns());
        self.clock.correct(second, self.remote.region_second(), precise_monotonic_ns);
        answered
    }

    fn read(&mut self, heaps: &mut dyn RemoteHeaps, fetch: Fetch) {
        let Fetch { id, offset, len, to } = fetch;
        let is_inside =
            offset.checked_add(len as u64).is_some_and(|end| end <= self.range.end - self.range.start);
        // References in the region may be corrupt.
        let buffer = if is_inside { self.get(heaps, offset, len) } else { None };
        let now = self.now();
        let Some(buffer) = buffer else { return self.remote.take(id, Arrival::Failed, now) };
        match to {
            To::Buffer | To::Item(_) | To::Probe => self.remote.take(id, Arrival::Buffer(buffer), now),
            To::Value { get, at, whole } => {
                let mut is_placed = false;
                if let Some(get) = self.remote.token(get).filter(|_| whole <= VALUE_BYTES_MAX) {
                    if get.value.len() != whole {
                        get.value = vec![0; whole];
                    }
                    if let Some(place) = get.value.get_mut(at..at + len) {
                        place.copy_from_slice(&buffer);
                        is_placed = true;
                    }
                }
                let arrival = if is_placed { Arrival::Placed(&buffer) } else { Arrival::Failed };
                self.remote.take(id, arrival, now);
                self.keep(buffer);
            }
        }
    }

    /// Reads bytes of the region; none if the read failed.
    fn get(&mut self, heaps: &mut dyn RemoteHeaps, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len, 0);
        heaps.try_get(self.pe, self.range.start + offset, &mut buffer).then_some(buffer)
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            self.spare.push(buffer);
        }
    }

    /// Answers a GET; returns it if the PE must be asked.
    fn complete(&mut self, completed: CompletedGet<Vec<u8>, StartedGet>) -> Option<Operation> {
        let random = next_random(&mut self.random);
        let reads = completed.reads_to_report(random);
        let CompletedGet { token: StartedGet { operation, value: placed }, hash, outcome, buffer, .. } =
            completed;
        let answer = match outcome {
            // The first reader of a stale item wins the right to recache it, which the server grants.
            ReadOutcome::Hit(hit) if !hit.stale && !hit.token_sent => {
                let value = match (hit.value, &buffer) {
                    (Value::Fetched { at, len }, Some(buffer)) => {
                        buffer.get(at..at + len).map(<[u8]>::to_vec)
                    }
                    (Value::Placed, _) => Some(placed),
                    _ => None,
                };
                value.map(|value| {
                    if reads > 0 && self.accesses.len() < ACCESSES_MAX {
                        self.accesses.push((hash, reads));
                    }
                    let len = value.len() as u64;
                    let item = Item {
                        flags: hit.flags,
                        cas: hit.cas,
                        len,
                        binary_key: hit.binary_key,
                        ..Item::default()
                    };
                    Answer::Read(item, value)
                })
            }
            ReadOutcome::Miss(_) => Some(Answer::Reply(Reply::Miss)),
            _ => None,
        };
        if let Some(buffer) = buffer {
            self.keep(buffer);
        }
        match answer {
            Some(answer) => {
                operation.completion.complete_with(answer);
                None
            }
            None => Some(operation),
        }
    }

    /// Returns the line that reports reads to the PE, if there are enough of them.
    pub fn report(&mut self) -> Option<Vec<u8>> {
        (self.accesses.len() >= ACCESSES_PER_REPORT).then(|| report(&mut self.accesses))
    }

    fn now(&self) -> Now {
        Now { second: self.clock.second_at(monotonic_ns()), ns: precise_boot_ns() }
    }
}

/// Takes reads, and returns the line that reports them to their PE.
pub fn report(accesses: &mut Vec<(KeyHash, u8)>) -> Vec<u8> {
    let mut line = String::new();
    let count = accesses.len().min(ACCESSES_PER_REPORT);
    Accesses::encode(accesses.drain(..count).map(|(KeyHash(hash), reads)| (hash, reads)), &mut line);
    line.into_bytes()
}
