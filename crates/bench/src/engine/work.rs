//! The work of clients: which items, how large, how often, and when.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::items::Items;
use crate::mixture::Olio;
use crate::random::Random;
use crate::zipf::Zipf;

/// Keys of one request at most: memcached takes a line of some kilobytes at once, and more of them only in parts.
pub const BATCH_MAX: usize = 100;
/// Requests in flight of a client at most.
pub const PIPELINE_MAX: usize = 4_096;

/// What all clients do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Items: those with the numbers below it.
    pub keys: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// The distribution of requests over items.
    pub popularity: Popularity,
    /// How large their values are.
    pub sizes: Sizes,
    /// The part of requests that read; the others store.
    pub get_share: f64,
    /// Keys of a request that reads.
    pub batch: usize,
    /// Requests of a client that may be in flight at once.
    pub pipeline: usize,
    /// Whether every byte of every value is compared.
    pub verify: bool,
}

/// A distribution of requests over items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Popularity {
    /// All of them as often.
    Uniform,
    /// The item with number `k - 1` in proportion to `k` to the power of minus this.
    Zipf(f64),
}

/// How large values are.
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
    /// Each client makes the next when one was answered.
    Closed,
    /// All clients together make so many per second, whether others were answered or not.
    Open {
        /// Requests a second.
        rate_per_s: f64,
        /// How they are spread.
        arrivals: Arrivals,
    },
}

/// How requests are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At random: many independent sources.
    Poisson,
    /// At equal distances.
    Even,
}

impl Work {
    /// Whether all of it can be.
    ///
    /// # Errors
    /// What cannot.
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

    /// Bytes of all values, on average.
    pub fn mean_bytes(&self) -> f64 {
        match self.sizes {
            Sizes::Same(bytes) => bytes as f64,
            Sizes::Olio(olio) => olio.average(),
        }
    }
}

impl Sizes {
    /// Bytes of an item's value.
    #[inline]
    pub fn value_bytes(&self, number: u64) -> usize {
        match self {
            Sizes::Same(bytes) => *bytes,
            Sizes::Olio(olio) => olio.value_bytes(number),
        }
    }

    /// The class of an item's size.
    #[inline]
    pub fn class(&self, number: u64) -> usize {
        match self {
            Sizes::Same(_) => 0,
            Sizes::Olio(olio) => olio.class(number),
        }
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        match self {
            Sizes::Same(_) => 1,
            Sizes::Olio(_) => Olio::CLASSES.len(),
        }
    }
}

/// Chooses the next operation.
#[derive(Debug)]
pub struct Choice {
    random: Random,
    keys: u32,
    zipf: Option<Zipf>,
    get_share: f64,
}

impl Choice {
    /// A sequence that its seed decides.
    pub fn new(work: &Work, seed: u64) -> Choice {
        let keys = work.keys as u32;
        let zipf = match work.popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) => Some(Zipf::new(keys, exponent)),
        };
        Choice { random: Random::new(seed), keys, zipf, get_share: work.get_share }
    }

    /// Whether the next request reads.
    #[inline]
    pub fn reads(&mut self) -> bool {
        self.get_share >= 1.0 || self.random.unit() < self.get_share
    }

    /// The number of an item.
    #[inline]
    pub fn number(&mut self) -> u64 {
        u64::from(match &self.zipf {
            None => self.random.below(self.keys),
            Some(zipf) => zipf.sample(&mut self.random) - 1,
        })
    }
}

/// When requests are due: nanoseconds since the beginning, ascending without end.
#[derive(Debug)]
pub struct Schedule {
    random: Random,
    gap_ns: f64,
    arrivals: Arrivals,
    next_ns: f64,
}

impl Schedule {
    /// Returns a schedule of so many per second.
    pub fn new(rate_per_s: f64, arrivals: Arrivals, seed: u64) -> Schedule {
        let mut random = Random::new(!seed);
        let gap_ns = 1e9 / rate_per_s;
        // Several of them together are not to beat in time.
        let next_ns = gap_ns * random.unit();
        Schedule { random, gap_ns, arrivals, next_ns }
    }

    /// When the next is.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Proceeds to the next request.
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

    /// Gets of small values.
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
    fn what_cannot_be_is_told() {
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
