//! A client through shared memory: the client library with a channel of its own, on a thread of its own.
//!
//! In a closed loop every [`TIMED_EVERY`]th request is timed: reading the clock takes a good part of what a read takes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fabcache_client::{Client, Completed, Outcome as Came, Request, Ttl};

use super::link::{Counts, Scratch, check};
use super::outcome::Outcome;
use super::sockets::give_up;
use super::work::{Choice, Schedule, Work};
use super::{Round, as_ns, overdue_ns};
use crate::items::Items;
use crate::target::Target;

/// So many requests of a closed loop are made for each that is timed.
pub const TIMED_EVERY: u64 = 16;
/// A request is waited for by sleeping if it is so far ahead: that long the system may take to wake a thread.
const SLEEP_FROM: Duration = Duration::from_micros(100);

/// A client.
pub struct Memory {
    client: Client,
    /// Those in flight, where there are several.
    requests: Vec<Flight>,
}

struct Flight {
    request: Request,
    /// The item, and whether it is written; none if it is not in flight.
    asked: Option<(u64, bool)>,
    from: Option<Instant>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

/// A round on its way.
struct Running<'e> {
    scratch: Scratch<'e>,
    counts: Counts,
    outcome: Outcome,
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
            asked: None,
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
        let mut running = Running {
            scratch: Scratch::new(work, items),
            counts: Counts::default(),
            outcome: Outcome::new(work.sizes.classes()),
            numbers: Vec::new(),
            keys: vec![Vec::new(); work.batch],
            value: Vec::new(),
        };
        let mut choice = Choice::new(work, round.seed);
        let mut schedule = round.schedule();
        for made in 0u64.. {
            let from = match &mut schedule {
                None if made % TIMED_EVERY != 0 => None,
                None => {
                    let now = Instant::now();
                    if made > 0 && as_ns(now - begun) >= round.duration_ns {
                        break;
                    }
                    Some(now)
                }
                Some(schedule) => match due(schedule, round.duration_ns, begun, &mut running.outcome) {
                    Some(from) => Some(from),
                    None => break,
                },
            };
            if self.requests.is_empty() {
                self.call(&mut running, &mut choice, from)?;
            } else {
                let at = made as usize % self.requests.len();
                self.fly(&mut running, &mut choice, at, from)?;
            }
        }
        for at in 0..self.requests.len() {
            self.land(&mut running, at)?;
        }
        let Running { counts, outcome, .. } = running;
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

    /// One call, and its answer.
    fn call(&self, running: &mut Running<'_>, choice: &mut Choice, from: Option<Instant>) -> Result<()> {
        let work = running.scratch.work;
        let reads = choice.reads();
        let keys = if reads { work.batch } else { 1 };
        running.numbers.clear();
        running.numbers.extend((0..keys).map(|_| choice.number()));
        let first = running.numbers[0];
        if keys > 1 {
            self.call_for_many(running)?;
        } else if reads {
            let Running { scratch, value, counts, .. } = running;
            match self.client.get_into(scratch.key(first), None, value)? {
                None => counts.misses += 1,
                Some(_) => check(first, value, scratch, counts)?,
            }
        } else {
            let Running { scratch, value, counts, .. } = running;
            scratch.items.value(first, work.sizes.value_bytes(first), value);
            counts.value_bytes += value.len() as u64;
            self.client.set(scratch.key(first), value, Ttl::NEVER)?;
        }
        running.counts.operations += keys as u64;
        running.time(from, first);
        Ok(())
    }

    fn call_for_many(&self, running: &mut Running<'_>) -> Result<()> {
        let Running { scratch, counts, numbers, keys, .. } = running;
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

    /// Makes the next request with an object whose last one is waited for.
    fn fly(
        &mut self,
        running: &mut Running<'_>,
        choice: &mut Choice,
        at: usize,
        from: Option<Instant>,
    ) -> Result<()> {
        self.land(running, at)?;
        let flight = &mut self.requests[at];
        let (reads, number) = (choice.reads(), choice.number());
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
        (flight.asked, flight.from) = (Some((number, !reads)), from);
        Ok(())
    }

    /// Waits for a request, if it is in flight.
    fn land(&mut self, running: &mut Running<'_>, at: usize) -> Result<()> {
        let flight = &mut self.requests[at];
        let Some((number, sets)) = flight.asked.take() else { return Ok(()) };
        let Completed { key, value, result } = flight.request.wait();
        let came = result.with_context(|| String::from_utf8_lossy(&key).into_owned())?;
        let Running { scratch, counts, .. } = running;
        match came {
            Came::Stored if sets => {}
            Came::Found { .. } if !sets => check(number, &value, scratch, counts)?,
            Came::NotFound if !sets => counts.misses += 1,
            other => bail!("a wrong answer, {other:?}, for the key {}", String::from_utf8_lossy(&key)),
        }
        (flight.key, flight.value) = (key, value);
        running.counts.operations += 1;
        running.time(flight.from.take(), number);
        Ok(())
    }
}

impl Running<'_> {
    /// A request is done that was made then.
    fn time(&mut self, from: Option<Instant>, number: u64) {
        if let Some(from) = from {
            let class = self.scratch.work.sizes.class(number);
            self.outcome.latency[class].record(as_ns(from.elapsed()));
        }
    }
}

/// Waits until the next request is to be made: when it should have been. None if that was all.
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
    let from = begun + Duration::from_nanos(next_ns);
    loop {
        let ahead = from.saturating_duration_since(Instant::now());
        if ahead.is_zero() {
            return Some(from);
        }
        if ahead > SLEEP_FROM {
            std::thread::sleep(ahead - SLEEP_FROM);
        } else {
            std::thread::yield_now();
        }
    }
}
