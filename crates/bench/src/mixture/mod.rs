//! Values of very different sizes, as in the Olio benchmark, read and written by many clients: nine gets to a set by
//! default, without eviction.

mod olio;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use fabcache_client::Client;

use crate::engine::table::{Column, MEGABYTES, USUAL, table as any_table};
use crate::engine::{Clients, Load, Pace, Sizes};
use crate::experiment::{Experiment, Rounds};
use crate::results::{Case, Results, Sample};
use crate::target::Target;
pub use olio::{Class, Olio};

/// The fraction of requests that read.
pub const GET_SHARE: f64 = 0.9;
/// Average value size in bytes: that of Olio's published shares.
pub const AVERAGE_BYTES: f64 = 2_048.0;
/// Seconds of a round: with `quick`, and otherwise.
const SECONDS: [f64; 2] = [1.0, 2.0];
/// Number of keys: with `quick`, and otherwise.
const KEYS: [u64; 2] = [5_000, 100_000];

/// The experiment.
#[derive(Debug)]
pub struct Mixture {
    /// Average value sizes in bytes.
    pub averages: Vec<f64>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// The clients and their work.
    pub load: Load,
}

impl Mixture {
    /// Returns an average of 2,048 bytes.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Mixture> {
        let at = usize::from(!quick);
        let mut load = Load::new(KEYS[at], key_bytes, SECONDS[at], verify);
        load.work.get_share = GET_SHARE;
        load.work.check()?;
        let clients = if quick { vec![16] } else { vec![1, 4, 16, 64] };
        Ok(Mixture { averages: vec![AVERAGE_BYTES], clients, load })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        self.load.check()?;
        ensure!(!self.clients.contains(&0) && !self.clients.is_empty(), "there is at least 1 client");
        self.averages.iter().try_for_each(|average| Olio::of_average(*average).map(drop))
    }
}

impl Experiment for Mixture {
    fn name(&self) -> &'static str {
        "mixture"
    }

    fn method(&self) -> String {
        format!(
            "closed loop; values of 4 to 100, 1024 to 2048 and 5120 to 20480 bytes in the shares that give the average; {} of requests \
             read; {}",
            self.load.work.get_share,
            self.load.method()
        )
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for average in &self.averages {
            for clients in &self.clients {
                let case = Case::new(self.load.operation());
                let case = case.with("average_bytes", *average).with("clients", *clients);
                cases.push(self.load.conditions(case));
            }
        }
        cases
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        self.check()?;
        let average = case.number("average_bytes").context("a case has an average")?;
        let clients = case.number("clients").context("a case has clients")? as usize;
        let work = self.load.sized(target, Sizes::Olio(Olio::of_average(average)?), self.averages.len())?;
        let clients = self.load.connect(target, &work, clients)?;
        Ok(Box::new(MixtureRounds { load: &self.load, asks: target.client()?, clients }))
    }
}

/// Clients of one target.
struct MixtureRounds<'e> {
    load: &'e Load,
    /// A client for statistics.
    asks: Client,
    clients: Clients,
}

impl Rounds for MixtureRounds<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let evicted_before = evictions(&self.asks)?;
        let outcome = self.clients.run(&self.load.round(Pace::Closed, number))?;
        let mut figures = BTreeMap::new();
        for (class, latency) in Olio::CLASSES.iter().zip(&outcome.latency) {
            if latency.count() > 0 {
                let name = class.name.replace(' ', "_");
                figures.insert(format!("{name}_requests_timed"), latency.count() as f64);
                figures.insert(format!("{name}_p50_us"), latency.percentile_ns(50.0) / 1e3);
                figures.insert(format!("{name}_p99_us"), latency.percentile_ns(99.0) / 1e3);
            }
        }
        if let (Some(now), Some(before)) = (evictions(&self.asks)?, evicted_before) {
            figures.insert("evictions".to_owned(), now.saturating_sub(before) as f64);
        }
        let mut sample = Sample::from(outcome);
        sample.figures.extend(figures);
        Ok(sample)
    }
}

/// Returns the evictions of the servers so far; `None` if one does not report them.
fn evictions(client: &Client) -> Result<Option<u64>> {
    let of = |stats: Vec<(String, String)>| {
        stats.iter().find(|(name, _)| name == "evictions").and_then(|(_, number)| number.parse::<u64>().ok())
    };
    let reported: Vec<_> = client.stats("").into_iter().collect::<Result<_, _>>()?;
    Ok(reported.into_iter().map(of).sum())
}

macro_rules! figure {
    ($heading:literal, $name:literal) => {
        Column {
            heading: $heading,
            digits: 1,
            figure: |results, target, case| {
                results.median(target, case, |sample| sample.figures.get($name).copied())
            },
        }
    };
}

const BY_CLASS: [Column; 4] = [
    figure!("very small p99 us", "very_small_p99_us"),
    figure!("small p99 us", "small_p99_us"),
    figure!("medium p99 us", "medium_p99_us"),
    figure!("evictions", "evictions"),
];

/// Returns operations and bytes per second, and latencies in total and by class.
pub fn table(results: &Results) -> String {
    let columns: Vec<_> = USUAL.iter().chain([&MEGABYTES]).chain(&BY_CLASS).collect();
    any_table(results, &columns)
}
