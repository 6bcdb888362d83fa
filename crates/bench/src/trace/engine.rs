//! Sends a trace's requests to a cache, and checks the responses.
//!
//! Many gets and sets are in flight at a time, in the trace's order for each object: a change waits for
//! reads of the same object in flight. A read issued between a miss of the same object and the set that
//! follows the miss is repeated after the set. Operations without a non-blocking call are blocking.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabcache_client::{Client, CompletedRequest, Error, Outcome, Request, Stored, Ttl};

use super::expected::Expected;
use super::plan::Plan;
use super::record::{Operation, Record};
use crate::fill::is_refusal;
use crate::histogram::Histogram;

/// Maximum bytes of values in flight.
const BYTES_IN_FLIGHT_MAX: usize = 16 << 20;

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Replayed records.
    pub records: u64,
    /// Records that read.
    pub gets: u64,
    /// Reads that missed.
    pub misses: u64,
    /// Bytes of values found.
    pub hit_bytes: u64,
    /// Bytes of values that were missed, according to the trace.
    pub miss_bytes: u64,
    /// Sets that followed a miss.
    pub fills: u64,
    /// Changes that a server refused.
    pub refused: u64,
    /// Other operations that found nothing, or found an item, and so did not store.
    pub not_stored: u64,
    /// Reads repeated after a set.
    pub again: u64,
    /// Values of which every byte was compared.
    pub verified: u64,
    /// The greatest lag, if the replay is paced.
    pub late: Duration,
    /// Durations of reads, if each is awaited.
    pub times: Option<Histogram>,
}

/// A replay in progress.
pub struct Engine<'e> {
    plan: &'e Plan,
    client: &'e Client,
    expected: &'e mut Expected,
    in_flight: VecDeque<InFlight>,
    bytes_in_flight: usize,
    spare: Vec<Spare>,
    counts: Counts,
}

/// Reusable request objects and buffers.
struct Spare {
    request: Request,
    key: Vec<u8>,
    value: Vec<u8>,
}

struct InFlight {
    request: Request,
    object: u64,
    bytes: usize,
    requested: RequestKind,
}

/// A request in flight.
#[derive(Clone, Copy)]
enum RequestKind {
    /// A set of this version.
    Store(u32),
    /// A read; and whether a value was stored since.
    Read(Record, bool),
}

impl<'e> Engine<'e> {
    /// Returns an engine with the expectations from earlier operations on the cache.
    pub fn new(plan: &'e Plan, client: &'e Client, expected: &'e mut Expected) -> Engine<'e> {
        let (in_flight, spare) = (VecDeque::new(), Vec::new());
        let times = (plan.window <= 1).then(Histogram::default);
        let counts = Counts { times, ..Counts::default() };
        Engine { plan, client, expected, in_flight, bytes_in_flight: 0, spare, counts }
    }

    /// Replays records.
    ///
    /// # Errors
    /// The trace is empty, a server fails, or an answer is wrong: the error names the key and the reason.
    pub fn run(mut self, records: &mut dyn Iterator<Item = Result<Record>>) -> Result<Counts> {
        let start = Instant::now();
        let mut first = None;
        while self.counts.records < self.plan.requests_max {
            let Some(record) = records.next().transpose()? else { break };
            let since = record.second.saturating_sub(*first.get_or_insert(record.second));
            self.pace(start, since)?;
            self.replay(&record)?;
            self.counts.records += 1;
        }
        self.drain()?;
        Ok(self.counts)
    }

    /// Waits until a record is due, `since_s` seconds into the trace.
    fn pace(&mut self, start: Instant, since_s: u64) -> Result<()> {
        let Some(speed) = self.plan.speed else { return Ok(()) };
        let due = Duration::try_from_secs_f64(since_s as f64 / speed).unwrap_or(Duration::MAX);
        if due > start.elapsed() {
            self.drain()?;
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        // Timestamps are whole seconds: nothing is late before the next one begins.
        let over = due.saturating_add(Duration::try_from_secs_f64(1.0 / speed).unwrap_or(Duration::MAX));
        self.counts.late = self.counts.late.max(start.elapsed().saturating_sub(over));
        Ok(())
    }

    fn replay(&mut self, record: &Record) -> Result<()> {
        let known = self.expected.object(record.object, record.key_bytes);
        let is_whole = record.operation.reads() || record.operation.stores_whole();
        if is_whole && record.value_bytes > 0 {
            known.value_bytes = record.value_bytes;
        }
        if record.operation.stores_whole() || record.ttl_s > 0 {
            known.ttl_s = record.ttl_s;
        }
        match record.operation {
            Operation::Get | Operation::Gets => {
                self.counts.gets += 1;
                self.read(record)
            }
            Operation::Set => {
                self.wait_for(record.object, |requested| matches!(requested, RequestKind::Read(..)))?;
                self.store(record.object, record.value_bytes)
            }
            _ => {
                self.wait_for(record.object, |_| true)?;
                let mut spare = self.spare();
                self.expected.key(record.object, &mut spare.key);
                let done = self.change(record, &mut spare);
                let done = done.with_context(|| wrong(record.operation.name(), &spare.key));
                self.spare.push(spare);
                done
            }
        }
    }

    /// Waits until no operation of this kind is in flight for an object.
    fn wait_for(&mut self, object: u64, kind: impl Fn(&RequestKind) -> bool) -> Result<()> {
        while self.in_flight.iter().any(|one| one.object == object && kind(&one.requested)) {
            self.finish_first()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.finish_first()?;
        }
        Ok(())
    }

    /// Waits until a request with this many bytes fits.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        while self.in_flight.len() >= self.plan.window
            || (self.bytes_in_flight + bytes > BYTES_IN_FLIGHT_MAX && !self.in_flight.is_empty())
        {
            self.finish_first()?;
        }
        Ok(())
    }

    fn spare(&mut self) -> Spare {
        let new = || Spare { request: self.client.request(), key: Vec::new(), value: Vec::new() };
        self.spare.pop().unwrap_or_else(new)
    }

    fn ttl(&self, seconds: u32) -> Ttl {
        let seconds = match self.plan.speed {
            Some(speed) if self.plan.scales_ttl => (f64::from(seconds) / speed).ceil() as u32,
            _ => seconds,
        };
        if seconds == 0 { Ttl::NEVER } else { Ttl::seconds(seconds) }
    }

    // ---- reads ----

    fn read(&mut self, record: &Record) -> Result<()> {
        if self.plan.window <= 1 {
            return self.read_and_wait(record);
        }
        self.make_room(record.value_bytes as usize)?;
        let spare = self.spare();
        self.request(record, spare);
        Ok(())
    }

    fn request(&mut self, record: &Record, spare: Spare) {
        let Spare { mut request, mut key, value } = spare;
        self.expected.key(record.object, &mut key);
        request.iget(key, value);
        let bytes = record.value_bytes as usize;
        self.push(InFlight {
            request,
            object: record.object,
            bytes,
            requested: RequestKind::Read(*record, false),
        });
    }

    fn push(&mut self, one: InFlight) {
        self.bytes_in_flight += one.bytes;
        self.in_flight.push_back(one);
    }

    fn read_and_wait(&mut self, record: &Record) -> Result<()> {
        // Blocking calls use other connections, so all requests in flight must complete first.
        self.drain()?;
        let Spare { request, mut key, mut value } = self.spare();
        self.expected.key(record.object, &mut key);
        let begun = Instant::now();
        let found = self.client.get_into(&key, None, &mut value);
        let taken = begun.elapsed();
        let found = found.map(|found| found.is_some()).with_context(|| wrong("get", &key))?;
        if let Some(times) = &mut self.counts.times {
            times.record(taken.as_nanos() as u64);
        }
        self.take(record, found, &key, &value)?;
        self.spare.push(Spare { request, key, value });
        if found { Ok(()) } else { self.fill(record) }
    }

    /// Counts a read, and checks the value found.
    fn take(&mut self, record: &Record, found: bool, key: &[u8], value: &[u8]) -> Result<()> {
        if found {
            let verified = self.expected.check(record.object, value).with_context(|| wrong("get", key))?;
            self.counts.verified += u64::from(verified);
            self.counts.hit_bytes += value.len() as u64;
        } else {
            self.counts.misses += 1;
            self.counts.miss_bytes += u64::from(record.value_bytes);
        }
        Ok(())
    }

    /// Stores a missed object, if the plan fills misses and its length is known.
    fn fill(&mut self, record: &Record) -> Result<()> {
        let value_bytes = self.expected.object(record.object, record.key_bytes).value_bytes;
        if !self.plan.fills || value_bytes == 0 {
            return Ok(());
        }
        for one in self.in_flight.iter_mut().filter(|one| one.object == record.object) {
            if let RequestKind::Read(_, is_old) = &mut one.requested {
                *is_old = true;
            }
        }
        self.counts.fills += 1;
        self.issue_store(record.object, value_bytes);
        Ok(())
    }

    // ---- changes ----

    fn store(&mut self, object: u64, value_bytes: u32) -> Result<()> {
        self.make_room(value_bytes as usize)?;
        self.issue_store(object, value_bytes);
        if self.plan.window <= 1 { self.drain() } else { Ok(()) }
    }

    fn issue_store(&mut self, object: u64, value_bytes: u32) {
        let Spare { mut request, mut key, mut value } = self.spare();
        self.expected.key(object, &mut key);
        self.expected.next_value(object, value_bytes, &mut value);
        let ttl_s = self.expected.object(object, 0).ttl_s;
        request.iset(key, value, self.ttl(ttl_s));
        let version = self.expected.stored(object, value_bytes);
        self.push(InFlight {
            request,
            object,
            bytes: value_bytes as usize,
            requested: RequestKind::Store(version),
        });
    }

    /// Performs a blocking change. The key is already set.
    fn change(&mut self, record: &Record, spare: &mut Spare) -> Result<()> {
        let Spare { key, value, .. } = spare;
        let object = record.object;
        let ttl = self.ttl(record.ttl_s);
        self.expected.next_value(object, record.value_bytes, value);
        let done = match record.operation {
            Operation::Add => self.client.add(key, value, ttl).map(|done| {
                // An existing item must have been stored by this run.
                let is_right = if done == Stored::Stored { Ok(()) } else { self.expected.was_there(object) };
                is_right.map(|()| self.stored(record, done))
            }),
            Operation::Replace => {
                self.client.replace(key, value, ttl).map(|done| self.stored_over(record, done))
            }
            Operation::Cas => return self.compare_and_swap(record, key, value, ttl),
            Operation::Append => self.client.append(key, value).map(|done| self.join(record, done)),
            Operation::Prepend => self.client.prepend(key, value).map(|done| self.join(record, done)),
            Operation::Delete => self.client.delete(key).map(|found| {
                let is_right = if found { self.expected.was_there(object) } else { Ok(()) };
                self.counts.not_stored += u64::from(!found);
                self.expected.deleted(object);
                is_right
            }),
            Operation::Incr => self.client.incr(key, 1).map(|now| self.counted(object, true, now)),
            Operation::Decr => self.client.decr(key, 1).map(|now| self.counted(object, false, now)),
            Operation::Get | Operation::Gets | Operation::Set => unreachable!("these do not wait"),
        };
        match done {
            Ok(right) => right,
            Err(error) => self.refused(object, None, error),
        }
    }

    fn stored(&mut self, record: &Record, done: Stored) {
        if done == Stored::Stored {
            self.expected.stored(record.object, record.value_bytes);
        } else {
            self.counts.not_stored += 1;
        }
    }

    /// Handles the result of an operation that requires an item.
    fn stored_over(&mut self, record: &Record, done: Stored) -> Result<()> {
        if done == Stored::Stored {
            self.expected.was_there(record.object)?;
        }
        self.stored(record, done);
        Ok(())
    }

    fn join(&mut self, record: &Record, done: Stored) -> Result<()> {
        if done != Stored::Stored {
            self.counts.not_stored += 1;
            return Ok(());
        }
        self.expected.was_there(record.object)?;
        self.expected.joined(record.object, record.value_bytes);
        Ok(())
    }

    fn counted(&mut self, object: u64, up: bool, now: Option<u64>) -> Result<()> {
        match now {
            Some(now) => self.expected.counted(object, up, now),
            None => {
                self.counts.not_stored += 1;
                Ok(())
            }
        }
    }

    /// The trace does not contain the compared value: use the stored one.
    fn compare_and_swap(&mut self, record: &Record, key: &[u8], value: &[u8], ttl: Ttl) -> Result<()> {
        let Some(found) = self.client.get(key)? else {
            self.counts.not_stored += 1;
            return Ok(());
        };
        self.expected.check(record.object, &found.value)?;
        match self.client.cas(key, value, ttl, found.cas) {
            Ok(done) => self.stored_over(record, done),
            Err(error) => self.refused(record.object, None, error),
        }
    }

    /// Counts a refusal; any other error is returned.
    fn refused(&mut self, object: u64, version: Option<u32>, error: Error) -> Result<()> {
        if !is_refusal(&error) {
            return Err(error.into());
        }
        self.counts.refused += 1;
        self.expected.refused(object, version);
        Ok(())
    }

    // ---- answers ----

    fn finish_first(&mut self) -> Result<()> {
        let Some(InFlight { mut request, object, bytes, requested }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        self.bytes_in_flight -= bytes;
        let CompletedRequest { key, value, result } = request.wait();
        let spare = Spare { request, key, value };
        match requested {
            RequestKind::Store(version) => {
                let done = result.map(drop).or_else(|error| self.refused(object, Some(version), error));
                done.with_context(|| wrong("set", &spare.key))?;
                self.spare.push(spare);
                Ok(())
            }
            RequestKind::Read(record, is_old) => {
                let outcome = result.with_context(|| wrong("get", &spare.key))?;
                let found = matches!(outcome, Outcome::Found { .. });
                if !found && is_old {
                    self.counts.again += 1;
                    self.request(&record, spare);
                    return Ok(());
                }
                self.take(&record, found, &spare.key, &spare.value)?;
                self.spare.push(spare);
                if found { Ok(()) } else { self.fill(&record) }
            }
        }
    }
}

/// Describes a failed operation and its key.
fn wrong(what: &str, key: &[u8]) -> String {
    format!("{what} of the key {}", String::from_utf8_lossy(key))
}
