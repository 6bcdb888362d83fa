//! A shared-memory client: the client library with its own channel, on its own thread.
//!
//! In a closed loop every [`TIMED_EVERY`]th request is timed, because reading the clock takes nearly as
//! long as a read. Requests in flight are awaited in order; a request completes when the client notices
//! it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fabcache_client::{Client, CompletedRequest, Outcome as Came, Request, Ttl};

use super::link::{Counts, Scratch, check};
use super::outcome::Outcome;
use super::sockets::give_up;
use super::work::{Choice, Schedule, Work};
use super::{Round, as_ns, overdue_ns};
use crate::items::Items;
use crate::target::Target;

/// One in this many requests of a closed loop is timed.
pub const TIMED_EVERY: u64 = 16;
/// Minimum time until the next request for which the client sleeps: waking a thread may take as long.
const SLEEP_FROM: Duration = Duration::from_micros(100);

/// A shared-memory client.
pub struct Memory {
    client: Client,
    /// Requests in flight, if there may be several.
    requests: Vec<Flight>,
}

struct Flight {
    request: Request,
    /// The item's number, and whether it is written.
    requested: (u64, bool),
    from: Option<Instant>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

/// A round in progress.
struct ActiveRound<'e> {
    scratch: Scratch<'e>,
    counts: Counts,
    outcome: Outcome,
    choice: Choice,
    /// The numbers of requests made and completed.
    made: u64,
    landed: u64,
    numbers: Vec<u64>,
    keys: Vec<Vec<u8>>,
    value: Vec<u8>,
}

impl Memory {
    /// Connects.
    ///
    /// # Errors
    /// The server cannot be reached, or shares no memory.
    pub fn connect(target: &Target, work: &Work) -> Result<Memory> {
        let client = target.client()?;
        let flight = |_| Flight {
            request: client.request(),
            requested: (0, false),
            from: None,
            key: Vec::new(),
            value: Vec::new(),
        };
        let requests = if work.pipeline > 1 { (0..work.pipeline).map(flight).collect() } else { Vec::new() };
        Ok(Memory { client, requests })
    }

    /// Runs a round.
    ///
    /// # Errors
    /// A server fails or answers wrongly.
    pub fn run(&mut self, work: &Work, items: &Items, round: &Round, begun: Instant) -> Result<Outcome> {
        let mut running = ActiveRound {
            scratch: Scratch::new(work, items),
            counts: Counts::default(),
            outcome: Outcome::new(work.sizes.classes()),
            choice: Choice::new(work, round.seed),
            made: 0,
            landed: 0,
            numbers: Vec::new(),
            keys: vec![Vec::new(); work.batch],
            value: Vec::new(),
        };
        let mut schedule = round.schedule();
        loop {
            let from = match &mut schedule {
                None => {
                    // Waiting here would add to another request's time.
                    self.make_room(&mut running)?;
                    let is_timed = running.made.is_multiple_of(TIMED_EVERY);
                    let now = is_timed.then(Instant::now);
                    if now.is_some_and(|now| running.made > 0 && as_ns(now - begun) >= round.duration_ns) {
                        break;
                    }
                    now
                }
                Some(schedule) => match due(schedule, round.duration_ns, begun, &mut running.outcome) {
                    Some(from) => {
                        self.wait_until(from, &mut running)?;
                        Some(from)
                    }
                    None => break,
                },
            };
            if self.requests.is_empty() {
                self.call(&mut running, from)?;
            } else {
                self.issue(&mut running, from)?;
            }
        }
        while running.landed < running.made {
            self.complete_first(&mut running)?;
        }
        let ActiveRound { counts, outcome, .. } = running;
        let Counts { operations, misses, verified, value_bytes } = counts;
        Ok(Outcome {
            operations,
            misses,
            verified,
            value_bytes,
            elapsed_ns: as_ns(begun.elapsed()),
            ..outcome
        })
    }

    /// Makes one call and checks its response.
    fn call(&self, running: &mut ActiveRound<'_>, from: Option<Instant>) -> Result<()> {
        let work = running.scratch.work;
        let reads = running.choice.reads();
        let keys = if reads { work.batch } else { 1 };
        running.numbers.clear();
        running.numbers.extend((0..keys).map(|_| running.choice.number()));
        let first = running.numbers[0];
        if keys > 1 {
            self.call_for_many(running)?;
        } else {
            let ActiveRound { scratch, value, counts, .. } = running;
            let done = if reads {
                self.client.get_into(scratch.key(first), None, value).map(|found| found.is_some())
            } else {
                scratch.items.value(first, work.sizes.value_bytes(first), value);
                self.client.set(scratch.key(first), value, Ttl::NEVER).map(|()| true)
            };
            let named = || {
                let what = if reads { "get" } else { "store" };
                format!("cannot {what} {}", String::from_utf8_lossy(scratch.key(first)))
            };
            match done.with_context(named)? {
                false => counts.misses += 1,
                true if reads => check(first, value, scratch, counts)?,
                true => counts.value_bytes += value.len() as u64,
            }
        }
        running.counts.operations += keys as u64;
        running.made += 1;
        running.landed += 1;
        running.time(from, first);
        Ok(())
    }

    fn call_for_many(&self, running: &mut ActiveRound<'_>) -> Result<()> {
        let ActiveRound { scratch, counts, numbers, keys, .. } = running;
        keys.iter_mut().zip(&*numbers).for_each(|(key, number)| scratch.items.key(*number, key));
        let mut found = 0;
        let mut wrong = None;
        let failed = self.client.get_each(keys, |at, item| {
            found += 1;
            if let Err(error) = check(numbers[at], item.value, scratch, counts) {
                wrong.get_or_insert(error);
            }
        })?;
        if let Some(error) = wrong {
            return Err(error);
        }
        if let Some(error) = failed.into_iter().next() {
            return Err(error.into());
        }
        counts.misses += (numbers.len() - found) as u64;
        Ok(())
    }

    /// Waits until a request slot is free.
    fn make_room(&mut self, running: &mut ActiveRound<'_>) -> Result<()> {
        while !self.requests.is_empty() && running.made - running.landed >= self.requests.len() as u64 {
            self.complete_first(running)?;
        }
        Ok(())
    }

    /// Waits until `then`. Requests that complete meanwhile are recorded at once, not when their slots are
    /// needed.
    fn wait_until(&mut self, then: Instant, running: &mut ActiveRound<'_>) -> Result<()> {
        loop {
            while running.landed < running.made && self.first(running).request.test() {
                self.complete_first(running)?;
            }
            let ahead = then.saturating_duration_since(Instant::now());
            if ahead.is_zero() {
                return Ok(());
            }
            if ahead > SLEEP_FROM && running.landed == running.made {
                std::thread::sleep(ahead - SLEEP_FROM);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Returns the oldest request in flight.
    fn first(&mut self, running: &ActiveRound<'_>) -> &mut Flight {
        let at = running.landed % self.requests.len() as u64;
        &mut self.requests[at as usize]
    }

    /// Issues the next request.
    fn issue(&mut self, running: &mut ActiveRound<'_>, from: Option<Instant>) -> Result<()> {
        self.make_room(running)?;
        let at = running.made as usize % self.requests.len();
        let flight = &mut self.requests[at];
        let (reads, number) = (running.choice.reads(), running.choice.number());
        let (mut key, mut value) = (std::mem::take(&mut flight.key), std::mem::take(&mut flight.value));
        let Scratch { work, items, .. } = &running.scratch;
        items.key(number, &mut key);
        if reads {
            flight.request.iget(key, value);
        } else {
            items.value(number, work.sizes.value_bytes(number), &mut value);
            running.counts.value_bytes += value.len() as u64;
            flight.request.iset(key, value, Ttl::NEVER);
        }
        (flight.requested, flight.from) = ((number, !reads), from);
        running.made += 1;
        Ok(())
    }

    /// Waits for the oldest request in flight.
    fn complete_first(&mut self, running: &mut ActiveRound<'_>) -> Result<()> {
        let flight = self.first(running);
        let (number, sets) = flight.requested;
        let CompletedRequest { key, value, result } = flight.request.wait();
        let came = result.with_context(|| String::from_utf8_lossy(&key).into_owned())?;
        let ActiveRound { scratch, counts, .. } = running;
        match came {
            Came::Stored if sets => {}
            Came::Found { .. } if !sets => check(number, &value, scratch, counts)?,
            Came::NotFound if !sets => counts.misses += 1,
            other => bail!("a wrong answer, {other:?}, for the key {}", String::from_utf8_lossy(&key)),
        }
        (flight.key, flight.value) = (key, value);
        running.counts.operations += 1;
        running.landed += 1;
        running.time(flight.from.take(), number);
        Ok(())
    }
}

impl ActiveRound<'_> {
    /// Records the latency of a request made at `from`.
    fn time(&mut self, from: Option<Instant>, number: u64) {
        if let Some(from) = from {
            let class = self.scratch.work.sizes.class(number);
            self.outcome.latency[class].record(as_ns(from.elapsed()));
        }
    }
}

/// Returns when the next request is or was due; `None` after the last.
fn due(schedule: &mut Schedule, end_ns: u64, begun: Instant, outcome: &mut Outcome) -> Option<Instant> {
    let now_ns = as_ns(begun.elapsed());
    if now_ns >= overdue_ns(end_ns) {
        outcome.unsent += give_up(schedule, end_ns, now_ns, &mut outcome.latency[0]);
    }
    let next_ns = schedule.next_ns();
    if next_ns >= end_ns {
        return None;
    }
    schedule.advance();
    Some(begun + Duration::from_nanos(next_ns))
}
