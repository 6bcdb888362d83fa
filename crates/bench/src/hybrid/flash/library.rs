//! Reads of all items by the client library: items in memory from shared memory, the others by requests to the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Client, CompletedRequest, Outcome, Request};

use super::{FlashTier, items};
use crate::histogram::Histogram;
use crate::items::Items;
use crate::random::Random;
use crate::results::Sample;
use crate::target::Target;

/// The clients of one target, driven by one thread.
pub struct LibraryClients {
    reads: Vec<Read>,
    items: Items,
    keys: u64,
    value_bytes: usize,
    verify: bool,
}

/// A get in flight, and its memory.
struct Read {
    request: Request,
    number: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    begun: Instant,
}

impl LibraryClients {
    /// Connects the clients.
    ///
    /// # Errors
    /// The server cannot be reached, or not through shared memory.
    pub fn connect(
        tier: &FlashTier,
        target: &Target,
        keys: u64,
        value_bytes: usize,
    ) -> Result<LibraryClients> {
        let clients = (0..tier.clients).map(|_| target.client()).collect::<Result<Vec<_>>>()?;
        let read = |client: &Client| Read {
            request: client.request(),
            number: 0,
            key: Vec::new(),
            value: Vec::new(),
            begun: Instant::now(),
        };
        // Requests of different clients alternate, so that each client has as many in flight.
        let reads = (0..tier.window(value_bytes)).flat_map(|_| clients.iter().map(read)).collect();
        Ok(LibraryClients { reads, items: items()?, keys, value_bytes, verify: tier.verify })
    }

    /// Reads random items for so long. The time includes the keys' generation and the values' checks.
    ///
    /// # Errors
    /// A get fails or returns another item's value.
    pub fn run(&mut self, time: Duration, seed: u32) -> Result<Sample> {
        let LibraryClients { reads, items, keys, value_bytes, verify } = self;
        let mut random = Random::new(seed.into());
        let mut next = || random.bits() % *keys;
        let mut latency = Histogram::default();
        let mut sample = Sample::default();
        let begun = Instant::now();
        reads.iter_mut().for_each(|read| read.issue(items, next()));
        let mut in_flight = reads.len();
        for number in (0..reads.len()).cycle() {
            let read = &mut reads[number];
            let outcome = read.complete(items, *value_bytes, *verify)?;
            let ended = Instant::now();
            latency.record((ended - read.begun).as_nanos() as u64);
            sample.operations += 1;
            sample.misses += u64::from(!outcome);
            sample.verified += u64::from(outcome && *verify);
            if ended - begun < time {
                read.issue(items, next());
                continue;
            }
            in_flight -= 1;
            if in_flight == 0 {
                break;
            }
        }
        sample.elapsed_ns = begun.elapsed().as_nanos() as u64;
        sample.latency = Some(latency);
        Ok(sample)
    }
}

impl Read {
    fn issue(&mut self, items: &Items, number: u64) {
        let (mut key, mut value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        items.key(number, &mut key);
        // Cleared, so that a former value cannot be mistaken for the next.
        value.clear();
        self.number = number;
        self.begun = Instant::now();
        self.request.iget(key, value);
    }

    /// Waits for the value, and returns whether there is one.
    fn complete(&mut self, items: &Items, value_bytes: usize, verify: bool) -> Result<bool> {
        let CompletedRequest { key, value, result } = self.request.wait();
        let name = || String::from_utf8_lossy(&key).into_owned();
        let found = match result.with_context(|| format!("cannot get the key {}", name()))? {
            Outcome::Found { .. } => true,
            Outcome::NotFound => false,
            Outcome::Stored => bail!("a get of the key {} stored", name()),
        };
        let is_right = !found || items.is_right(self.number, value_bytes, &value, verify);
        ensure!(is_right, "a wrong value under the key {}", name());
        (self.key, self.value) = (key, value);
        Ok(found)
    }
}
