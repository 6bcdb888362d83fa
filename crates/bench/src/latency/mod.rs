//! The time of one call by value size: OHB's SET, GET and MIX (nine gets per set), over sizes in powers
//! of two.
//!
//! One thread calls and waits for each response. Keys are read and written in turn.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Client, Ttl};

use crate::experiment::{Experiment, Rounds};
use crate::fill::fill;
use crate::histogram::Histogram;
use crate::items::{self, Items};
use crate::limits::Limits;
use crate::results::{Case, Results, Sample};
use crate::target::Target;

/// The last of every ten operations of MIX is a set.
const MIX_CYCLE: u64 = 10;
/// Untimed calls in each round.
const CALLS_TO_WARM_UP: u64 = 20;
/// Rounds of large values make fewer calls: at most this many bytes in total.
const ROUND_BYTES_MAX: u64 = 256 << 20;
/// Minimum number of calls, for a median.
const CALLS_MIN: u64 = 50;

/// Calls per round: with `quick`, and otherwise as in OHB.
const ITERATIONS: [u64; 2] = [200, 1_000];

/// A measured call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `set`.
    Set,
    /// `get`.
    Get,
    /// Nine gets, then a set.
    Mix,
}

/// The experiment.
#[derive(Debug)]
pub struct Latency {
    /// The measured calls.
    pub operations: Vec<Operation>,
    /// Bytes of values.
    pub sizes: Vec<usize>,
    /// Calls per round.
    pub iterations: u64,
    /// Maximum number of items called in turn; those of all sizes together take half of the servers'
    /// memory.
    pub keys: u64,
    /// Whether to compare every byte of every response.
    pub verify: bool,
    /// Keys and values.
    pub items: Items,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 3] = [Operation::Set, Operation::Get, Operation::Mix];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Set => "set",
            Operation::Get => "get",
            Operation::Mix => "mix",
        }
    }

    /// Returns the operations of this name: one, or all.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Vec<Operation>> {
        let name = name.to_lowercase();
        if name == "all" {
            return Ok(Operation::ALL.to_vec());
        }
        match Operation::ALL.into_iter().find(|operation| operation.name() == name) {
            Some(operation) => Ok(vec![operation]),
            None => bail!("unknown operation {name:?}; use set, get, mix or all"),
        }
    }
}

impl Latency {
    /// Returns OHB's configuration: all operations over values of 1 byte to 512 KB.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Latency> {
        Ok(Latency {
            operations: Operation::ALL.to_vec(),
            sizes: powers_of_two(1, 512 << 10),
            iterations: ITERATIONS[usize::from(!quick)],
            keys: 1_000,
            verify,
            items: Items::new(key_bytes)?,
        })
    }

    fn calls(&self, value_bytes: usize) -> u64 {
        self.iterations.min((ROUND_BYTES_MAX / value_bytes.max(1) as u64).max(CALLS_MIN))
    }
}

impl Experiment for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn method(&self) -> String {
        format!(
            "one thread, one call after the other, {} calls a round (fewer of large values), keys of {} bytes in turn, at most {} of \
             them; wall time of a call, {}",
            self.iterations,
            self.items.key_bytes(),
            self.keys,
            items::compared(self.verify)
        )
    }

    fn cases(&self) -> Vec<Case> {
        cases(&self.operations, &self.sizes)
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let value_bytes = case.number("value_bytes").unwrap_or_default() as usize;
        let operation = Operation::of_name(&case.operation)?[0];
        let client = target.client()?;
        let item_bytes = value_bytes.saturating_add(self.items.key_bytes());
        let keys = Limits::or_default(&client).items_of(item_bytes, self.sizes.len(), self.keys);
        fill(&client, &self.items, 0..keys, |_| value_bytes)?;
        Ok(Box::new(Calls { latency: self, client, operation, value_bytes, keys, next: 0 }))
    }
}

/// Calls on one target.
struct Calls<'e> {
    latency: &'e Latency,
    client: Client,
    operation: Operation,
    value_bytes: usize,
    keys: u64,
    next: u64,
}

impl Rounds for Calls<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        let mut ignored = Sample::default();
        let mut times = Histogram::default();
        for _ in 0..CALLS_TO_WARM_UP {
            self.call(&mut ignored, &mut times)?;
        }
        let (mut sample, mut times) = (Sample::default(), Histogram::default());
        let mut spent = Duration::ZERO;
        for _ in 0..self.latency.calls(self.value_bytes) {
            spent += self.call(&mut sample, &mut times)?;
        }
        Ok(Sample { elapsed_ns: spent.as_nanos() as u64, latency: Some(times), ..sample })
    }
}

impl Calls<'_> {
    /// Makes one call; returns its duration.
    fn call(&mut self, sample: &mut Sample, times: &mut Histogram) -> Result<Duration> {
        let items = &self.latency.items;
        let number = self.next % self.keys;
        let sets = match self.operation {
            Operation::Set => true,
            Operation::Get => false,
            Operation::Mix => self.next % MIX_CYCLE == MIX_CYCLE - 1,
        };
        self.next += 1;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        items.key(number, &mut key);
        let taken = if sets {
            items.value(number, self.value_bytes, &mut value);
            let begun = Instant::now();
            self.client.set(&key, &value, Ttl::NEVER).with_context(|| named("store", &key))?;
            begun.elapsed()
        } else {
            let begun = Instant::now();
            let found = self.client.get(&key).with_context(|| named("get", &key))?;
            let taken = begun.elapsed();
            match found {
                None => sample.misses += 1,
                Some(item) if self.latency.verify => {
                    ensure!(items.is_value(number, self.value_bytes, &item.value), wrong(&key));
                    sample.verified += 1;
                }
                Some(item) => {
                    ensure!(items.may_be_value(number, self.value_bytes, &item.value), wrong(&key));
                }
            }
            taken
        };
        times.record(taken.as_nanos() as u64);
        sample.operations += 1;
        Ok(taken)
    }
}

fn named(operation: &str, key: &[u8]) -> String {
    format!("cannot {operation} {}", String::from_utf8_lossy(key))
}

fn wrong(key: &[u8]) -> String {
    format!("a wrong value under the key {}", String::from_utf8_lossy(key))
}

/// Returns every operation with values of every size.
pub fn cases(operations: &[Operation], sizes: &[usize]) -> Vec<Case> {
    let of = |operation: &Operation| {
        let name = operation.name();
        sizes.iter().map(move |size| Case::new(name).with("value_bytes", *size))
    };
    operations.iter().flat_map(of).collect()
}

/// Returns powers of two from one size to another, both included.
pub fn powers_of_two(from: usize, to: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|power| 1usize << power);
    let mut sizes: Vec<usize> = powers.filter(|size| (from..=to).contains(size)).collect();
    sizes.extend([from, to]);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns OHB's columns, size and mean microseconds, and the median and the 99th percentile.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for target in &results.targets {
        for case in results.cases() {
            let Some(latency) = results.latency(&target.name, case) else { continue };
            let title = format!("{}, {}", target.name, case.operation.to_uppercase());
            if title != last {
                let _ =
                    writeln!(text, "{title}\n{:>16} {:>12} {:>12} {:>12}", "", "mean us", "p50 us", "p99 us");
                last = title;
            }
            let us = |ns: f64| ns / 1_000.0;
            let samples = || results.rounds(&target.name, case);
            // A miss transfers no value and takes a different time.
            let note = match samples().map(|sample| sample.misses).sum::<u64>() {
                0 => String::new(),
                misses => {
                    let calls: u64 = samples().map(|sample| sample.operations).sum();
                    format!("  ({misses} of {calls} calls found nothing, as the server evicts)")
                }
            };
            let _ = writeln!(
                text,
                "{:>10} byte: {:>12.2} {:>12.2} {:>12.2}{note}",
                case.number("value_bytes").unwrap_or_default(),
                us(latency.mean_ns()),
                us(latency.percentile_ns(50.0)),
                us(latency.percentile_ns(99.0))
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TargetDescription;

    #[test]
    fn sizes_are_powers_of_two_between_the_ends() {
        assert_eq!(powers_of_two(1, 16), [1, 2, 4, 8, 16]);
        assert_eq!(powers_of_two(3, 20), [3, 4, 8, 16, 20]);
        assert_eq!(powers_of_two(7, 7), [7]);
    }

    #[test]
    fn misses_are_noted() {
        let server = TargetDescription { name: "server".into(), ..TargetDescription::default() };
        let mut results = Results::new("latency", "how".into(), vec![server]);
        let case = Case::new("get").with("value_bytes", 64usize);
        let of = |round, misses| {
            let mut latency = Histogram::default();
            latency.record(1_000);
            let target = "server".to_owned();
            let (latency, case) = (Some(latency), case.clone());
            Sample { target, case, round, operations: 10, misses, latency, ..Sample::default() }
        };
        results.samples = vec![of(0, 0), of(1, 0)];
        assert!(!table(&results).contains("nothing"), "{}", table(&results));
        results.samples = vec![of(0, 3), of(1, 4)];
        assert!(table(&results).contains("7 of 20 calls found nothing"), "{}", table(&results));
    }
}
