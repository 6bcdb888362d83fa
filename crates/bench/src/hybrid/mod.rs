//! A cache with more data than memory: OHB's hybrid measurement.
//!
//! The spill factor is the ratio of stored bytes to the servers' memory. The items are then read in
//! some order, and each miss costs the time of a back-end. A server with RAM only has evicted the
//! excess; one with a second tier still has it.
//!
//! `flash/`: servers with a flash tier, which this process starts.

pub mod flash;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Client, Ttl};

use crate::experiment::{Experiment, Rounds};
use crate::fill::{fill_with_refusals, is_refusal};
use crate::histogram::Histogram;
use crate::items::{self, Items};
use crate::random::Random;
use crate::results::{Case, Results, Sample};
use crate::target::Target;

/// Bytes stored, as a multiple of the servers' memory, as in OHB.
pub const SPILL_FACTOR: f64 = 1.33;
/// The simulated time of a back-end.
pub const PENALTY: Duration = Duration::from_millis(2);
/// Bytes of a value.
pub const VALUE_BYTES: usize = 32 << 10;
/// The percentage of keys that is hot in the normal scan, as in OHB.
pub const HOT_PERCENT: f64 = 80.0;
/// In the normal scan one read in this many is of a cold key.
const HOT_CYCLE: u32 = 5;
/// Reads per round: with `quick`, and otherwise.
const READS: [u64; 2] = [500, 5_000];
/// Seed of the random sequence, combined with the round.
const SEED: u64 = 0x0b;

/// The order of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// All keys with the same probability.
    Uniform,
    /// Four of five reads are of hot keys, those stored first.
    Normal,
}

/// The experiment.
#[derive(Debug)]
pub struct Hybrid {
    /// Orders of reads.
    pub scans: Vec<Scan>,
    /// The ratio of stored bytes to the servers' memory.
    pub spill_factor: f64,
    /// The servers' memory in bytes; `None` to read it from their statistics.
    pub memory_bytes: Option<u64>,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The additional time of a miss.
    pub penalty: Duration,
    /// Whether to sleep for the penalty, or only add it.
    pub sleeps: bool,
    /// Whether missed items are stored again.
    pub stores_again: bool,
    /// The percentage of keys that is hot in the normal scan.
    pub hot_percent: f64,
    /// Whether to flush the servers before storing the items.
    pub flushes: bool,
    /// Reads per round.
    pub reads: u64,
    /// Whether to compare every byte of every response.
    pub verify: bool,
    /// Keys and values.
    pub items: Items,
}

impl Scan {
    /// All scans.
    pub const ALL: [Scan; 2] = [Scan::Uniform, Scan::Normal];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Scan::Uniform => "uniform",
            Scan::Normal => "normal",
        }
    }

    /// Returns the scans of this name: one, or all.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Vec<Scan>> {
        let name = name.to_lowercase();
        if name == "all" {
            return Ok(Scan::ALL.to_vec());
        }
        match Scan::ALL.into_iter().find(|scan| scan.name() == name) {
            Some(scan) => Ok(vec![scan]),
            None => bail!("unknown scan {name:?}; use uniform, normal or all"),
        }
    }

    /// Returns the number of the next key of so many, the first `hot` of which are hot.
    fn next(self, random: &mut Random, keys: u32, hot: u32) -> u32 {
        match self {
            Scan::Uniform => random.below(keys),
            Scan::Normal if hot == keys || random.below(HOT_CYCLE) > 0 => random.below(hot),
            Scan::Normal => hot + random.below(keys - hot),
        }
    }
}

impl Hybrid {
    /// Returns OHB's configuration: both scans over 1.33 times the servers' memory.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Hybrid> {
        Ok(Hybrid {
            scans: Scan::ALL.to_vec(),
            spill_factor: SPILL_FACTOR,
            memory_bytes: None,
            value_bytes: VALUE_BYTES,
            penalty: PENALTY,
            sleeps: true,
            stores_again: false,
            hot_percent: HOT_PERCENT,
            flushes: false,
            reads: READS[usize::from(!quick)],
            verify,
            items: Items::new(key_bytes)?,
        })
    }

    /// Returns the number of items stored for so much memory.
    fn keys(&self, memory_bytes: u64) -> Result<u32> {
        let keys = (memory_bytes as f64 * self.spill_factor / self.value_bytes.max(1) as f64).round();
        ensure!(
            (1.0..=f64::from(u32::MAX)).contains(&keys),
            "values of {} bytes in {} times {memory_bytes} bytes are {keys} items: give another size, memory or factor",
            self.value_bytes,
            self.spill_factor
        );
        Ok(keys as u32)
    }
}

impl Experiment for Hybrid {
    fn name(&self) -> &'static str {
        "hybrid"
    }

    fn method(&self) -> String {
        format!(
            "one thread, one get after the other, {} a round, of items that take {} times the memory of the servers, stored once \
             before{}; a get that finds nothing takes {} ms longer{}{}; {}",
            self.reads,
            self.spill_factor,
            if self.flushes { " into emptied servers" } else { "" },
            self.penalty.as_secs_f64() * 1e3,
            if self.sleeps { ", slept" } else { ", added" },
            if self.stores_again { ", and what the set takes that follows it" } else { "" },
            items::compared(self.verify)
        )
    }

    fn has_client_limit(&self) -> bool {
        // The dummy never evicts, so nothing would miss.
        false
    }

    fn cases(&self) -> Vec<Case> {
        let case = |scan: &Scan| {
            Case::new("get")
                .with("scan", scan.name())
                .with("value_bytes", self.value_bytes)
                .with("spill_factor", self.spill_factor)
                .with("penalty_ms", self.penalty.as_secs_f64() * 1e3)
        };
        self.scans.iter().map(case).collect()
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let index = self.cases().iter().position(|known| known == case).context("unknown case")?;
        let client = target.client()?;
        let memory_bytes = match self.memory_bytes {
            Some(bytes) => bytes,
            None => memory_bytes(&client)?,
        };
        let keys = self.keys(memory_bytes)?;
        let hot = (f64::from(keys) * self.hot_percent / 100.0).round() as u32;
        let hot = hot.clamp(1, keys);
        if self.flushes {
            client.flush(0).context("cannot flush the servers")?;
        }
        let refused = fill_with_refusals(&client, &self.items, 0..keys.into(), |_| self.value_bytes)?;
        ensure!(
            refused < keys.into(),
            "the server stores no value of {} bytes; give a smaller --value-bytes, or start it with a larger -I or -m",
            self.value_bytes
        );
        Ok(Box::new(Reads {
            hybrid: self,
            client,
            scan: self.scans[index],
            memory_bytes,
            keys,
            hot,
            refused,
        }))
    }
}

/// Returns the sum of the servers' memory limits.
fn memory_bytes(client: &Client) -> Result<u64> {
    let mut sum = 0u64;
    for stats in client.stats("") {
        let stats = stats.context("a server does not report its memory limit; give --memory")?;
        let limit = stats.iter().find(|(name, _)| name == "limit_maxbytes");
        let bytes = limit.and_then(|(_, value)| value.parse::<u64>().ok()).filter(|bytes| *bytes > 0);
        let bytes =
            bytes.context("a server does not report its memory limit (limit_maxbytes); give --memory")?;
        sum = sum.saturating_add(bytes);
    }
    Ok(sum)
}

/// Reads of one target.
struct Reads<'e> {
    hybrid: &'e Hybrid,
    client: Client,
    scan: Scan,
    memory_bytes: u64,
    keys: u32,
    hot: u32,
    /// The number of items that a server refused while it was filled.
    refused: u64,
}

impl Rounds for Reads<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        // The same sequence for each target.
        let mut random = Random::new(SEED ^ u64::from(number) << 32);
        let (mut sample, mut times, mut hits) =
            (Sample::default(), Histogram::default(), Histogram::default());
        let mut spent = Duration::ZERO;
        for _ in 0..self.hybrid.reads {
            let key = self.scan.next(&mut random, self.keys, self.hot);
            let taken = self.read(key.into(), &mut sample, &mut hits)?;
            times.record(taken.as_nanos() as u64);
            spent += taken;
        }
        let part = |count: u64| count as f64 / sample.operations.max(1) as f64;
        sample.figures.insert("success_rate".into(), part(sample.operations - sample.misses));
        sample.figures.insert("keys".into(), self.keys.into());
        sample.figures.insert("fill_refused".into(), self.refused as f64);
        sample.figures.insert("memory_bytes".into(), self.memory_bytes as f64);
        if hits.count() > 0 {
            sample.figures.insert("hit_mean_us".into(), hits.mean_ns() / 1e3);
            sample.figures.insert("hit_p99_us".into(), hits.percentile_ns(99.0) / 1e3);
        }
        Ok(Sample { elapsed_ns: spent.as_nanos() as u64, latency: Some(times), ..sample })
    }
}

impl Reads<'_> {
    /// Reads one key; returns its time, with the penalty for a miss.
    fn read(&self, number: u64, sample: &mut Sample, hits: &mut Histogram) -> Result<Duration> {
        let Hybrid { items, value_bytes, penalty, .. } = self.hybrid;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        items.key(number, &mut key);
        let begun = Instant::now();
        let found = self.client.get(&key);
        let mut taken = begun.elapsed();
        let found = found.with_context(|| format!("cannot get {}", String::from_utf8_lossy(&key)))?;
        sample.operations += 1;
        if let Some(item) = found {
            hits.record(taken.as_nanos() as u64);
            let found = &item.value;
            sample.verified += u64::from(self.hybrid.verify);
            let is_right = items.is_right(number, *value_bytes, found, self.hybrid.verify);
            ensure!(is_right, "a wrong value under the key {}", String::from_utf8_lossy(&key));
            return Ok(taken);
        }
        sample.misses += 1;
        // The configured penalty: sleeping takes longer than that.
        taken += *penalty;
        if self.hybrid.sleeps {
            std::thread::sleep(*penalty);
        }
        if self.hybrid.stores_again {
            items.value(number, *value_bytes, &mut value);
            let begun = Instant::now();
            let stored = self.client.set(&key, &value, Ttl::NEVER);
            taken += begun.elapsed();
            match stored {
                Err(error) if is_refusal(&error) => sample.errors += 1,
                other => other.with_context(|| format!("cannot store {}", String::from_utf8_lossy(&key)))?,
            }
        }
        Ok(taken)
    }
}

/// Returns a row per scan and target.
pub fn table(results: &Results) -> String {
    let names = results.targets.iter().map(|target| target.name.len()).max().unwrap_or(0).max(6);
    let base = results.targets.last().map_or("", |target| target.name.as_str());
    let compares = results.targets.len() > 1;
    let mut text = format!(
        "{:<8} {:<names$} {:>9} {:>9} {:>9} {:>11} {:>11} {:>11} {:>12}",
        "scan", "server", "memory MB", "keys", "success %", "mean us", "p50 us", "p99 us", "hits mean us"
    );
    text.push_str(if compares { "   mean, times the last\n" } else { "\n" });
    for case in results.cases() {
        for target in &results.targets {
            let name = target.name.as_str();
            let Some(latency) = results.latency(name, case) else { continue };
            let figure =
                |figure: &str| results.median(name, case, |sample| sample.figures.get(figure).copied());
            let scan = case.parameters.get("scan").map(ToString::to_string).unwrap_or_default();
            let hits = figure("hit_mean_us");
            let hits = if hits.is_finite() { format!("{hits:.2}") } else { "-".to_owned() };
            let _ = write!(
                text,
                "{scan:<8} {name:<names$} {:>9.0} {:>9} {:>9.2} {:>11.2} {:>11.2} {:>11.2} {hits:>12}",
                figure("memory_bytes") / f64::from(1 << 20),
                figure("keys"),
                figure("success_rate") * 100.0,
                latency.mean_ns() / 1e3,
                latency.percentile_ns(50.0) / 1e3,
                latency.percentile_ns(99.0) / 1e3,
            );
            if compares {
                let mean = |sample: &Sample| sample.latency.as_ref().map(Histogram::mean_ns);
                let [ratio, least, greatest] = results.ratio(name, base, case, mean);
                let _ = write!(text, " {ratio:>7.3} ({least:.3} to {greatest:.3})");
            }
            let refused =
                |sample: &Sample| sample.errors as f64 + sample.figures.get("fill_refused").unwrap_or(&0.0);
            let refused = results.rounds(name, case).map(refused).fold(0.0, f64::max);
            if refused > 0.0 {
                let _ = write!(text, "  ({refused} sets refused)");
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_read_their_keys() {
        let count = |scan: Scan, keys, hot| {
            let mut random = Random::new(1);
            let numbers: Vec<u32> = (0..10_000).map(|_| scan.next(&mut random, keys, hot)).collect();
            assert!(numbers.iter().all(|number| *number < keys));
            numbers.iter().filter(|number| **number < hot).count()
        };
        assert!((4_700..5_300).contains(&count(Scan::Uniform, 100, 50)));
        assert!((7_700..8_300).contains(&count(Scan::Normal, 100, 10)));
        assert_eq!(count(Scan::Normal, 10, 10), 10_000);
        assert_eq!(Scan::of_name("ALL").expect("both").len(), 2);
        assert!(Scan::of_name("zipf").expect_err("no scan").to_string().contains("uniform, normal"));
    }

    #[test]
    fn the_factor_sets_the_number_of_items() {
        let hybrid = Hybrid::standard(true, true, 20).expect("keys");
        assert_eq!(hybrid.keys(64 << 20).expect("a number"), 2_724);
        let error = hybrid.keys(1).expect_err("too little").to_string();
        assert!(error.contains("32768 bytes"), "{error}");
    }
}
