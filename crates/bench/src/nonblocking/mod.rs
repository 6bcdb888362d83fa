//! Time of non-blocking operations: OHB's non-blocking latency.
//!
//! A window of requests is issued, then all are awaited or tested until they complete. Blocking calls
//! run in the same round over the same keys.
//!
//! - `calls.rs`: the timed calls.

pub mod calls;

use std::fmt::Write as _;

use anyhow::{Result, bail, ensure};

use crate::experiment::{Experiment, Rounds, process_cpu_ns};
use crate::fill::fill;
use crate::items::{self, Items};
use crate::latency::powers_of_two;
use crate::limits::Limits;
use crate::random::Random;
use crate::results::{Case, Results, Sample};
use crate::target::Target;
use crate::zipf::Zipf;
use calls::{Api, CallKind, Calls, Drain, ItemToCall, Pass};

/// OHB's window.
const WINDOW: usize = 32;
/// Requests in flight on a connection from which on a non-blocking call blocks.
const WINDOW_MAX: usize = 1024;
/// Exponent of OHB's Zipf distribution.
const ALPHA: f64 = 1.01;
/// Requests per round: with `quick`, and otherwise as in OHB.
const ITERATIONS: [u64; 2] = [192, 1_000];
/// Rounds of large values make fewer calls: at most this many bytes, with `quick` and without.
const ROUND_BYTES_MAX: [u64; 2] = [32 << 20, 256 << 20];

/// The name of the figure with the nanoseconds of a blocking operation.
pub const BLOCKING_NS_EACH: &str = "blocking_ns_each";

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All keys with the same probability.
    Random,
    /// Zipf's law.
    Zipf,
}

/// The experiment.
#[derive(Debug)]
pub struct NonBlocking {
    /// The non-blocking calls.
    pub apis: Vec<Api>,
    /// Bytes of values.
    pub sizes: Vec<usize>,
    /// Requests per round.
    pub iterations: u64,
    /// Maximum bytes of values in a round, except for one window.
    pub round_bytes_max: u64,
    /// Requests per window.
    pub windows: Vec<usize>,
    /// How windows are completed.
    pub drains: Vec<Drain>,
    /// Distributions of keys.
    pub keys: Vec<Keys>,
    /// Maximum number of items; all sizes together take half of the servers' memory.
    pub keys_max: u64,
    /// Whether to compare every byte of every response.
    pub verify: bool,
    /// Keys and values.
    pub items: Items,
}

/// Selects an item by its name.
fn choose<T: Copy>(what: &str, known: &[(&str, T)], name: &str) -> Result<T> {
    match known.iter().find(|(known, _)| *known == name.to_lowercase()) {
        Some((_, chosen)) => Ok(*chosen),
        None => {
            let names: Vec<&str> = known.iter().map(|(known, _)| *known).collect();
            bail!("unknown {what} {name:?}; the values are {}", names.join(" and "))
        }
    }
}

fn name_of<T: Copy + PartialEq>(known: &[(&'static str, T)], chosen: T) -> &'static str {
    known.iter().find(|(_, known)| *known == chosen).map_or("", |(name, _)| name)
}

impl Api {
    const NAMES: &[(&str, Api)] = &[("i", Api::Issued), ("b", Api::Buffered)];

    /// Returns the calls of this name.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Api> {
        choose("kind of calls", Api::NAMES, name)
    }

    /// Returns the prefix of the calls' names.
    pub fn name(self) -> &'static str {
        name_of(Api::NAMES, self)
    }
}

impl Drain {
    const NAMES: &[(&str, Drain)] = &[("wait", Drain::Wait), ("test", Drain::Test)];

    /// Returns the way of draining with this name.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Drain> {
        choose("way to drain", Drain::NAMES, name)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        name_of(Drain::NAMES, self)
    }
}

impl Keys {
    const NAMES: &[(&str, Keys)] = &[("random", Keys::Random), ("zipf", Keys::Zipf)];

    /// Returns the distribution of this name.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn of_name(name: &str) -> Result<Keys> {
        choose("choice of keys", Keys::NAMES, name)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        name_of(Keys::NAMES, self)
    }
}

impl NonBlocking {
    /// Returns OHB's configuration, over values of 1 byte to 512 KB.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<NonBlocking> {
        let length = usize::from(!quick);
        Ok(NonBlocking {
            apis: vec![Api::Issued, Api::Buffered],
            sizes: powers_of_two(1, 512 << 10),
            iterations: ITERATIONS[length],
            round_bytes_max: ROUND_BYTES_MAX[length],
            windows: vec![WINDOW],
            drains: vec![Drain::Wait],
            keys: vec![Keys::Random],
            keys_max: 1_000,
            verify,
            items: Items::new(key_bytes)?,
        })
    }

    fn calls(&self, value_bytes: usize, window: usize) -> u64 {
        self.iterations.min((self.round_bytes_max / value_bytes.max(1) as u64).max(window as u64))
    }
}

fn case(api: Api, sets: bool) -> Case {
    Case::new(&format!("{}{}", api.name(), if sets { "set" } else { "get" }))
}

impl Experiment for NonBlocking {
    fn name(&self) -> &'static str {
        "nonblocking"
    }

    fn method(&self) -> String {
        format!(
            "one thread; a window of requests is issued, then all are awaited or tested until they complete; {} of them a round \
             (fewer of large values); keys of {} bytes, chosen among at most {}, uniformly or by Zipf's law with the exponent \
             {ALPHA}; blocking calls in the same round over the same keys; wall time of a window divided by its requests, \
             and of each request until its completion is noticed; {}",
            self.iterations,
            self.items.key_bytes(),
            self.keys_max,
            items::compared(self.verify)
        )
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (api, sets) in self.apis.iter().flat_map(|api| [(*api, true), (*api, false)]) {
            for keys in &self.keys {
                for drain in &self.drains {
                    for window in &self.windows {
                        let case = case(api, sets)
                            .with("window", *window)
                            .with("drain", drain.name())
                            .with("keys", keys.name());
                        cases.extend(self.sizes.iter().map(|size| case.clone().with("value_bytes", *size)));
                    }
                }
            }
        }
        cases
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let number = |name: &str| case.number(name).unwrap_or_default() as usize;
        let (value_bytes, window) = (number("value_bytes"), number("window"));
        ensure!(
            (1..=WINDOW_MAX).contains(&window),
            "a window of {window}: from 1 to {WINDOW_MAX} are in flight at once"
        );
        let text = |name: &str| case.parameters.get(name).map(ToString::to_string).unwrap_or_default();
        let (api, operation) = case.operation.split_at(1);
        let how = CallKind {
            sets: operation == "set",
            api: Api::of_name(api)?,
            drain: Drain::of_name(&text("drain"))?,
        };
        let client = target.client()?;
        let item_bytes = value_bytes.saturating_add(self.items.key_bytes());
        let stored = Limits::or_default(&client).items_of(item_bytes, self.sizes.len(), self.keys_max);
        fill(&client, &self.items, 0..stored, |_| value_bytes)?;
        let zipf = match Keys::of_name(&text("keys"))? {
            Keys::Random => None,
            Keys::Zipf => Some(Zipf::new(stored.try_into()?, ALPHA)),
        };
        Ok(Box::new(Windows {
            target,
            calls: Calls::new(client, &self.items, self.verify, window),
            how,
            count: self.calls(value_bytes, window),
            window,
            value_bytes,
            stored,
            zipf,
            random: Random::new(0),
        }))
    }
}

/// Calls on one target.
struct Windows<'e> {
    target: &'e Target,
    calls: Calls<'e>,
    how: CallKind,
    count: u64,
    window: usize,
    value_bytes: usize,
    stored: u64,
    zipf: Option<Zipf>,
    random: Random,
}

impl Windows<'_> {
    fn number(&mut self) -> u64 {
        match &self.zipf {
            Some(zipf) => u64::from(zipf.sample(&mut self.random)) - 1,
            None => self.random.bits() % self.stored,
        }
    }
}

impl Rounds for Windows<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let value_bytes = self.value_bytes;
        let wanted: Vec<ItemToCall> =
            (0..self.count).map(|_| ItemToCall { number: self.number(), value_bytes }).collect();
        let Windows { calls, how, .. } = self;
        // Warm up the connections and the CPU caches.
        let some = &wanted[..wanted.len().min(self.window)];
        calls.windows(*how, some)?;
        calls.blocking(how.sets, some)?;
        both(
            number,
            self.target,
            || Ok(()),
            |waits| {
                if waits { calls.blocking(how.sets, &wanted) } else { calls.windows(*how, &wanted) }
            },
        )
        .map(|(waiting, sample)| {
            let figures = [(BLOCKING_NS_EACH.to_owned(), waiting.ns_each())].into();
            Sample { figures, ..sample }
        })
    }
}

/// Runs blocking calls and windows in one round; returns the result of the former and the sample of the
/// latter.
///
/// Which is first alternates. `before` runs before each and is not measured.
///
/// # Errors
/// As for the calls.
pub fn both(
    round: u32,
    target: &Target,
    mut before: impl FnMut() -> Result<()>,
    mut pass: impl FnMut(bool) -> Result<Pass>,
) -> Result<(Pass, Sample)> {
    let mut sample = Sample::default();
    let mut waiting = Pass::default();
    for waits in if round.is_multiple_of(2) { [true, false] } else { [false, true] } {
        before()?;
        if waits {
            waiting = pass(true)?;
            continue;
        }
        let (servers, client) = (target.cpu_time(), process_cpu_ns());
        let done = pass(false)?;
        let spent = target.cpu_time().zip(servers).map(|(now, before)| now.saturating_sub(before));
        sample = Sample {
            operations: done.operations,
            elapsed_ns: done.elapsed.as_nanos() as u64,
            misses: done.misses,
            verified: done.verified,
            latency: Some(done.times),
            server_cpu_ns: spent.map(|time| time.as_nanos() as u64),
            client_cpu_ns: Some(process_cpu_ns() - client),
            ..sample
        };
    }
    // Both compare their responses.
    sample.verified += waiting.verified;
    sample.base_latency = Some(waiting.times.clone());
    Ok((waiting, sample))
}

/// Returns the nanoseconds per operation of the windows.
fn ns_each(sample: &Sample) -> Option<f64> {
    (sample.operations > 0).then(|| sample.elapsed_ns as f64 / sample.operations as f64)
}

/// Returns OHB's rows, with the blocking calls beside them.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for target in &results.targets {
        for case in results.cases() {
            let Some(latency) = results.latency(&target.name, case) else { continue };
            let reported =
                |name: &str| case.parameters.get(name).map(ToString::to_string).unwrap_or_default();
            let title = format!(
                "{}, {}: window {}, drained by {}, {} keys",
                target.name,
                case.operation.to_uppercase(),
                reported("window"),
                reported("drain"),
                reported("keys")
            );
            if title != last {
                let heads = ["each us", "p50 us", "p99 us", "blocking us", "x"];
                let heads: String = heads.iter().map(|head| format!(" {head:>12}")).collect();
                let _ = writeln!(text, "{title}\n{:>16}{heads}", "");
                last = title;
            }
            let us = |ns: f64| ns / 1_000.0;
            let blocking = |sample: &Sample| sample.figures.get(BLOCKING_NS_EACH).copied();
            let gain = |sample: &Sample| Some(blocking(sample)? / ns_each(sample)?);
            let _ = writeln!(
                text,
                "{:>10} byte: {:>12.2} {:>12.2} {:>12.2} {:>12.2} {:>12.2}",
                reported("value_bytes"),
                us(results.median(&target.name, case, ns_each)),
                us(latency.percentile_ns(50.0)),
                us(latency.percentile_ns(99.0)),
                us(results.median(&target.name, case, blocking)),
                results.median(&target.name, case, gain)
            );
        }
        text.push_str(&misses(results, &target.name));
    }
    text
}

/// Returns a line about misses, if there were any.
pub fn misses(results: &Results, target: &str) -> String {
    let of_target = results.samples.iter().filter(|sample| sample.target == target);
    let (requested, missed) = of_target.fold((0, 0), |(requested, missed), sample| {
        let gets = if sample.case.operation.ends_with("get") { sample.operations } else { 0 };
        (requested + gets, missed + sample.misses)
    });
    if missed == 0 {
        return String::new();
    }
    format!(
        "{target}: {missed} of {requested} gets found nothing, as it evicts; with more memory (-m) it would not\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_has_a_name() {
        for (_, api) in Api::NAMES {
            assert_eq!(Api::of_name(api.name()).expect("it has"), *api);
        }
        for (_, drain) in Drain::NAMES {
            assert_eq!(Drain::of_name(drain.name()).expect("it has"), *drain);
        }
        for (_, keys) in Keys::NAMES {
            assert_eq!(Keys::of_name(keys.name()).expect("it has"), *keys);
        }
        let error = Drain::of_name("never").expect_err("there is none").to_string();
        assert!(error.contains("never") && error.contains("wait and test"), "{error}");
    }

    #[test]
    fn every_choice_is_a_case() {
        let mut experiment = NonBlocking::standard(true, false, 20).expect("a length of keys");
        experiment.sizes = vec![1, 2, 3];
        assert_eq!(experiment.cases().len(), 4 * 3);
        experiment.drains = vec![Drain::Wait, Drain::Test];
        experiment.keys = vec![Keys::Random, Keys::Zipf];
        experiment.windows = vec![8, 32];
        assert_eq!(experiment.cases().len(), 4 * 3 * 8);
    }
}
