//! Timed calls: blocking ones, or a window of non-blocking ones.
//!
//! Keys and values are made before the clock starts, and answers are checked after it stops.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Client, CompletedRequest, Error, Outcome, Request, Ttl};

use crate::histogram::Histogram;
use crate::items::Items;

/// The non-blocking calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `iset` and `iget`: key and value belong to the request until it completes.
    Issued,
    /// `bset` and `bget`: key and value may be reused at once.
    Buffered,
}

/// How a window is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Waits for each request, in order.
    Wait,
    /// Tests all incomplete requests in turn.
    Test,
}

/// A kind of measured call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallKind {
    /// Whether values are stored, or read.
    pub sets: bool,
    /// The non-blocking calls.
    pub api: Api,
    /// How windows are completed.
    pub drain: Drain,
}

/// An item, and the length of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemToCall {
    /// Its number.
    pub number: u64,
    /// Bytes of its value.
    pub value_bytes: usize,
}

/// The results of some calls.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Number of calls.
    pub operations: u64,
    /// Values that were not found.
    pub misses: u64,
    /// Values of which every byte was compared.
    pub verified: u64,
    /// Bytes of values that were stored or found.
    pub bytes: u64,
    /// The duration, without preparation and checks.
    pub elapsed: Duration,
    /// The time of each call, from its start until the caller noticed its completion.
    pub times: Histogram,
}

impl Pass {
    /// Returns the nanoseconds per call.
    pub fn ns_each(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.operations.max(1) as f64
    }

    /// Returns the value bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.elapsed.as_nanos().max(1) as f64
    }
}

/// Makes calls, with memory for a window of them.
pub struct Calls<'e> {
    client: Client,
    items: &'e Items,
    verify: bool,
    slots: Vec<Slot>,
    /// The slots of incomplete requests.
    pending: Vec<usize>,
}

/// A call in flight and its memory.
struct Slot {
    request: Request,
    key: Vec<u8>,
    value: Vec<u8>,
    begun: Instant,
    taken: Duration,
    result: Result<Outcome, Error>,
}

impl<'e> Calls<'e> {
    /// Returns calls with at most `window` in flight.
    pub fn new(client: Client, items: &'e Items, verify: bool, window: usize) -> Calls<'e> {
        let slot = || Slot {
            request: client.request(),
            key: Vec::new(),
            value: Vec::new(),
            begun: Instant::now(),
            taken: Duration::ZERO,
            result: Err(Error::NothingAsked),
        };
        let slots = (0..window.max(1)).map(|_| slot()).collect();
        Calls { client, items, verify, slots, pending: Vec::new() }
    }

    /// Makes blocking calls.
    ///
    /// # Errors
    /// A call fails, or a response is wrong.
    pub fn blocking(&mut self, sets: bool, wanted: &[ItemToCall]) -> Result<Pass> {
        let mut pass = Pass::default();
        let slot = &mut self.slots[0];
        for one in wanted {
            slot.make_ready(self.items, *one, sets);
            let begun = Instant::now();
            slot.result = if sets {
                self.client.set(&slot.key, &slot.value, Ttl::NEVER).map(|()| Outcome::Stored)
            } else {
                let found = self.client.get_into(&slot.key, None, &mut slot.value);
                let outcome = |(flags, cas)| Outcome::Found { flags, cas };
                found.map(|found| {
                    found.map(|found| (found.flags, found.cas)).map_or(Outcome::NotFound, outcome)
                })
            };
            slot.taken = begun.elapsed();
            pass.elapsed += slot.taken;
            slot.check_result(self.items, *one, sets, self.verify, &mut pass)?;
        }
        Ok(pass)
    }

    /// Makes calls window by window.
    ///
    /// # Errors
    /// A call fails, or a response is wrong.
    pub fn windows(&mut self, how: CallKind, wanted: &[ItemToCall]) -> Result<Pass> {
        let mut pass = Pass::default();
        for window in wanted.chunks(self.slots.len()) {
            for (slot, one) in self.slots.iter_mut().zip(window) {
                slot.make_ready(self.items, *one, how.sets);
            }
            let begun = Instant::now();
            let slots = &mut self.slots[..window.len()];
            slots.iter_mut().for_each(|slot| slot.request(how));
            match how.drain {
                Drain::Wait => slots.iter_mut().for_each(|slot| slot.end(how)),
                Drain::Test => test(slots, &mut self.pending, how),
            }
            pass.elapsed += begun.elapsed();
            for (slot, one) in slots.iter_mut().zip(window) {
                slot.check_result(self.items, *one, how.sets, self.verify, &mut pass)?;
            }
        }
        Ok(pass)
    }
}

fn test(slots: &mut [Slot], pending: &mut Vec<usize>, how: CallKind) {
    pending.clear();
    pending.extend(0..slots.len());
    while !pending.is_empty() {
        let before = pending.len();
        pending.retain(|index| {
            let slot = &mut slots[*index];
            let is_over = slot.request.test();
            if is_over {
                slot.end(how);
            }
            !is_over
        });
        if pending.len() == before {
            // The server may need this CPU.
            std::thread::yield_now();
        }
    }
}

impl Slot {
    fn make_ready(&mut self, items: &Items, wanted: ItemToCall, sets: bool) {
        items.key(wanted.number, &mut self.key);
        // Cleared, so that a former response cannot be mistaken for the next.
        self.value.clear();
        if sets {
            items.value(wanted.number, wanted.value_bytes, &mut self.value);
        }
    }

    fn request(&mut self, how: CallKind) {
        let Slot { request, key, value, .. } = self;
        self.begun = Instant::now();
        match (how.sets, how.api) {
            (true, Api::Issued) => request.iset(std::mem::take(key), std::mem::take(value), Ttl::NEVER),
            (true, Api::Buffered) => request.bset(key, value, Ttl::NEVER),
            (false, Api::Issued) => request.iget(std::mem::take(key), std::mem::take(value)),
            (false, Api::Buffered) => request.bget(key, std::mem::take(value)),
        }
    }

    /// Waits for a request, unless it is complete.
    fn end(&mut self, how: CallKind) {
        let CompletedRequest { key, value, result } = self.request.wait();
        self.taken = self.begun.elapsed();
        self.result = result;
        if how.api == Api::Issued {
            self.key = key;
        }
        if how.api == Api::Issued || !how.sets {
            self.value = value;
        }
    }

    /// Checks the result of a call.
    fn check_result(
        &mut self,
        items: &Items,
        wanted: ItemToCall,
        sets: bool,
        verify: bool,
        pass: &mut Pass,
    ) -> Result<()> {
        let ItemToCall { number, value_bytes } = wanted;
        // A faulty client library may return another key.
        let mut key = Vec::new();
        items.key(number, &mut key);
        let name = || String::from_utf8_lossy(&key).into_owned();
        let result = std::mem::replace(&mut self.result, Err(Error::NothingAsked));
        let outcome = result.with_context(|| {
            format!("cannot {} the key {}", if sets { "store a value under" } else { "get" }, name())
        })?;
        ensure!(self.key == key, "a wrong key was returned for {}", name());
        match outcome {
            Outcome::Stored if sets => pass.bytes += value_bytes as u64,
            Outcome::NotFound if !sets => pass.misses += 1,
            Outcome::Found { .. } if !sets => {
                let is_right = items.is_right(number, value_bytes, &self.value, verify);
                ensure!(is_right, "a wrong value under the key {}", name());
                pass.verified += u64::from(verify);
                pass.bytes += value_bytes as u64;
            }
            other => bail!("a wrong answer {other:?} for the key {}", name()),
        }
        pass.operations += 1;
        pass.times.record(self.taken.as_nanos() as u64);
        Ok(())
    }
}
