//! The work of clients: which items, their sizes, how often, and when.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::items::Items;
use crate::mixture::Olio;
use crate::random::Random;
use crate::zipf::Zipf;

/// Maximum number of keys per request: memcached reads a line of a few kilobytes at once, longer ones
/// in parts.
pub const BATCH_MAX: usize = 100;
/// Maximum number of requests in flight per client.
pub const PIPELINE_MAX: usize = 4_096;

/// The work of all clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Number of items; their numbers are below it.
    pub keys: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// The distribution of requests over items.
    pub popularity: Popularity,
    /// Sizes of values.
    pub sizes: Sizes,
    /// The fraction of requests that read; the others store.
    pub get_share: f64,
    /// Keys per read request.
    pub batch: usize,
    /// Requests in flight per client.
    pub pipeline: usize,
    /// Whether every byte of every value is compared.
    pub verify: bool,
}

/// A distribution of requests over items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Popularity {
    /// All items with the same probability.
    Uniform,
    /// Item `k - 1` with a probability proportional to `k` to the power of minus this.
    Zipf(f64),
}

/// Sizes of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// All of this length.
    Same(usize),
    /// Three classes of sizes.
    Olio(Olio),
}

/// When requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Closed loop: each client makes the next request after a response.
    Closed,
    /// Open loop: all clients together make requests at a fixed rate, independent of responses.
    Open {
        /// Requests per second.
        rate_per_s: f64,
        /// The distribution of arrivals.
        arrivals: Arrivals,
    },
}

/// The distribution of requests over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Poisson: many independent sources.
    Poisson,
    /// At equal intervals.
    Even,
}

impl Work {
    /// Checks the values.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        let keys_max = u64::from(u32::MAX);
        ensure!((1..=keys_max).contains(&self.keys), "{} keys: give from 1 to {keys_max}", self.keys);
        ensure!((0.0..=1.0).contains(&self.get_share), "a get share of {}: give from 0 to 1", self.get_share);
        ensure!(
            (1..=BATCH_MAX).contains(&self.batch),
            "a batch of {} keys: give from 1 to {BATCH_MAX}",
            self.batch
        );
        ensure!(
            (1..=PIPELINE_MAX).contains(&self.pipeline),
            "a pipeline of {}: give from 1 to {PIPELINE_MAX}",
            self.pipeline
        );
        if let Popularity::Zipf(exponent) = self.popularity {
            ensure!(
                exponent > 0.0 && exponent < 10.0,
                "a Zipf exponent of {exponent}: give one between 0 and 10"
            );
        }
        Items::new(self.key_bytes).map(drop)
    }

    /// Returns the average value size in bytes.
    pub fn mean_bytes(&self) -> f64 {
        match self.sizes {
            Sizes::Same(bytes) => bytes as f64,
            Sizes::Olio(olio) => olio.average(),
        }
    }
}

impl Sizes {
    /// Returns the size of an item's value.
    #[inline]
    pub fn value_bytes(&self, number: u64) -> usize {
        match self {
            Sizes::Same(bytes) => *bytes,
            Sizes::Olio(olio) => olio.value_bytes(number),
        }
    }

    /// Returns the size class of an item.
    #[inline]
    pub fn class(&self, number: u64) -> usize {
        match self {
            Sizes::Same(_) => 0,
            Sizes::Olio(olio) => olio.class(number),
        }
    }

    /// Returns the number of size classes.
    pub fn classes(&self) -> usize {
        match self {
            Sizes::Same(_) => 1,
            Sizes::Olio(_) => Olio::CLASSES.len(),
        }
    }
}

/// Chooses operations at random.
#[derive(Debug)]
pub struct Choice {
    random: Random,
    keys: u32,
    zipf: Option<Zipf>,
    get_share: f64,
}

impl Choice {
    /// Returns the sequence of this seed.
    pub fn new(work: &Work, seed: u64) -> Choice {
        let keys = work.keys as u32;
        let zipf = match work.popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) => Some(Zipf::new(keys, exponent)),
        };
        Choice { random: Random::new(seed), keys, zipf, get_share: work.get_share }
    }

    /// Returns whether the next request reads.
    #[inline]
    pub fn reads(&mut self) -> bool {
        self.get_share >= 1.0 || self.random.unit() < self.get_share
    }

    /// Returns the number of the next item.
    #[inline]
    pub fn number(&mut self) -> u64 {
        u64::from(match &self.zipf {
            None => self.random.below(self.keys),
            Some(zipf) => zipf.sample(&mut self.random) - 1,
        })
    }
}

/// Due times of requests: nanoseconds since the beginning, ascending without end.
#[derive(Debug)]
pub struct Schedule {
    random: Random,
    gap_ns: f64,
    arrivals: Arrivals,
    next_ns: f64,
}

impl Schedule {
    /// Returns a schedule with this rate.
    pub fn new(rate_per_s: f64, arrivals: Arrivals, seed: u64) -> Schedule {
        let mut random = Random::new(!seed);
        let gap_ns = 1e9 / rate_per_s;
        // A random offset, so that several schedules do not run in step.
        let next_ns = gap_ns * random.unit();
        Schedule { random, gap_ns, arrivals, next_ns }
    }

    /// Returns when the next request is due.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Advances to the next request.
    #[inline]
    pub fn advance(&mut self) {
        self.next_ns += match self.arrivals {
            Arrivals::Even => self.gap_ns,
            Arrivals::Poisson => -(1.0 - self.random.unit()).ln() * self.gap_ns,
        };
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a work of gets of small values.
    pub fn work() -> Work {
        Work {
            keys: 100,
            key_bytes: 20,
            popularity: Popularity::Uniform,
            sizes: Sizes::Same(100),
            get_share: 1.0,
            batch: 1,
            pipeline: 1,
            verify: true,
        }
    }

    #[test]
    fn invalid_work_is_rejected() {
        assert!(work().check().is_ok());
        for (wrong, culprit) in [
            (Work { keys: 0, ..work() }, "keys"),
            (Work { key_bytes: 3, ..work() }, "key of 3"),
            (Work { get_share: 1.5, ..work() }, "share"),
            (Work { get_share: f64::NAN, ..work() }, "share"),
            (Work { batch: 0, ..work() }, "batch"),
            (Work { pipeline: 0, ..work() }, "pipeline"),
            (Work { popularity: Popularity::Zipf(-1.0), ..work() }, "Zipf"),
        ] {
            let error = wrong.check().expect_err(culprit).to_string();
            assert!(error.contains(culprit), "{error}");
        }
    }

    #[test]
    fn a_schedule_keeps_its_rate() {
        for arrivals in [Arrivals::Even, Arrivals::Poisson] {
            let mut schedule = Schedule::new(10_000.0, arrivals, 1);
            let mut last = 0;
            let mut equal = 0;
            for _ in 0..100_000 {
                let next = schedule.next_ns();
                assert!(next >= last);
                equal += u32::from((next - last).abs_diff(100_000) <= 1);
                last = next;
                schedule.advance();
            }
            assert!((9.8e9..10.2e9).contains(&(last as f64)), "{arrivals:?}: {last}");
            assert_eq!(equal > 99_000, arrivals == Arrivals::Even);
        }
    }

    #[test]
    fn some_requests_store() {
        let mut choice = Choice::new(&Work { get_share: 0.9, ..work() }, 1);
        let reads = (0..100_000).filter(|_| choice.reads()).count();
        assert!((89_000..91_000).contains(&reads), "{reads}");
        let mut choice = Choice::new(&Work { popularity: Popularity::Zipf(1.0), ..work() }, 1);
        let mut counts = [0u32; 100];
        (0..100_000).for_each(|_| counts[choice.number() as usize] += 1);
        assert!(counts[0] > counts[9] * 5 && counts[99] > 0, "{counts:?}");
    }
}
