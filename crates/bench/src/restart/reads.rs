//! Pipelined reads of random items.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fabcache_client::Client;
use fabcache_testbed::statistics::median;

use crate::items::Items;
use crate::random::Random;

/// Gets sent before their answers are read.
pub const BATCH: usize = 64;
/// Duration of the reads that give one rate.
pub const WINDOW: Duration = Duration::from_millis(10);
/// Seed of the random sequence, combined with the round.
const SEED: u64 = 0x7e57;

/// A client that reads random items of those with the numbers `0..items`.
pub struct Reads<'e> {
    client: Client,
    keys: &'e Items,
    items: u64,
    value_bytes: usize,
    verify: bool,
    random: Random,
    /// The items of a batch: their numbers and their keys.
    numbers: Vec<u64>,
    batch: Vec<Vec<u8>>,
    misses: u64,
}

impl<'e> Reads<'e> {
    /// Returns reads in a random order that `seed` determines.
    pub fn new(
        client: Client,
        keys: &'e Items,
        items: u64,
        value_bytes: usize,
        verify: bool,
        seed: u32,
    ) -> Reads<'e> {
        Reads {
            client,
            keys,
            items,
            value_bytes,
            verify,
            random: Random::new(SEED ^ u64::from(seed) << 32),
            numbers: vec![0; BATCH],
            batch: vec![Vec::new(); BATCH],
            misses: 0,
        }
    }

    /// Returns the number of reads that missed.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Reads `count` items, at most [`BATCH`]; returns the number of hits.
    ///
    /// # Errors
    /// The server fails, or a value is wrong.
    pub fn batch(&mut self, count: usize) -> Result<u64> {
        for (number, key) in self.numbers.iter_mut().zip(&mut self.batch) {
            *number = self.random.bits() % self.items;
            self.keys.key(*number, key);
        }
        let (mut hits, mut wrong) = (0, None);
        let failed = self.client.get_each(&self.batch[..count], |at, found| {
            let number = self.numbers[at];
            let is_right = self.keys.is_right(number, self.value_bytes, found.value, self.verify);
            hits += 1;
            if !is_right {
                wrong = Some(at);
            }
        })?;
        if let Some(error) = failed.into_iter().next() {
            return Err(error.into());
        }
        if let Some(at) = wrong {
            bail!("a wrong value under the key {}", String::from_utf8_lossy(&self.batch[at]));
        }
        self.misses += count as u64 - hits;
        Ok(hits)
    }

    /// Reads for [`WINDOW`]; returns the hits per second.
    ///
    /// # Errors
    /// As [`Reads::batch`].
    pub fn window(&mut self) -> Result<f64> {
        let (begun, mut hits) = (Instant::now(), 0);
        loop {
            hits += self.batch(BATCH)?;
            let taken = begun.elapsed();
            if taken >= WINDOW {
                return Ok(hits as f64 / taken.as_secs_f64());
            }
        }
    }

    /// Reads for this time; returns the hits per second, the median over windows.
    ///
    /// # Errors
    /// As [`Reads::batch`].
    pub fn per_s(&mut self, time: Duration) -> Result<f64> {
        let begun = Instant::now();
        let mut windows = Vec::new();
        while begun.elapsed() < time {
            windows.push(self.window()?);
        }
        Ok(median(windows))
    }
}
