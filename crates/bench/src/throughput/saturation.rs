//! The highest rate at which the 99th percentile of latency stays below a bound.
//!
//! A binary search between zero and somewhat more than a closed loop's rate; each step is an open loop.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Throughput;
use crate::engine::{Clients, Pace};
use crate::experiment::{Experiment, Rounds, process_cpu_ns};
use crate::results::{Case, Results, Sample};
use crate::target::Target;

/// Steps of the search: the result is accurate to a hundredth of a closed loop's rate.
const STEPS: u32 = 7;
/// Attempts at a rate before it is too high: other programs on the machine only make latency longer.
const TRIES: u32 = 2;
/// The search ends at this multiple of a closed loop's rate.
const BEYOND: f64 = 1.25;
/// The fraction of a rate that must be reached; otherwise it is too high, regardless of the latency.
const DONE_PART: f64 = 0.95;

/// The experiment.
#[derive(Debug)]
pub struct Saturation {
    /// The clients; its rates are not used.
    pub throughput: Throughput,
    /// The bound of the 99th percentile, in microseconds.
    pub p99_us_max: f64,
}

impl Experiment for Saturation {
    fn name(&self) -> &'static str {
        "throughput"
    }

    fn method(&self) -> String {
        format!(
            "the highest rate at which 99% of all requests are answered within {} us: {STEPS} steps of a binary search up to \
             {BEYOND} times what a closed loop does, each an open loop with latency from when a request should have been made, tried {TRIES} times before it is too high; {}",
            self.p99_us_max,
            self.throughput.load.method()
        )
    }

    fn cases(&self) -> Vec<Case> {
        let closed = self.throughput.cases().into_iter();
        closed.map(|case| case.with("p99_us_max", self.p99_us_max)).collect()
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        self.throughput.check()?;
        ensure!(self.throughput.rates.is_empty(), "a rate is either given or searched");
        ensure!(self.p99_us_max > 0.0, "the bound of the latency is above 0");
        let clients = self.throughput.connect(target, case)?;
        Ok(Box::new(Search { saturation: self, target, clients }))
    }
}

/// A search on one target.
struct Search<'e> {
    saturation: &'e Saturation,
    target: &'e Target,
    clients: Clients,
}

impl Rounds for Search<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let Saturation { throughput, p99_us_max } = self.saturation;
        let closed = self.clients.run(&throughput.load.round(Pace::Closed, number))?;
        let Search { target, clients, .. } = self;
        let try_rate = |step: u32, rate_per_s: f64| {
            let pace = Pace::Open { rate_per_s, arrivals: throughput.arrivals };
            let round = throughput.load.round(pace, (number + 1) * STEPS * TRIES + step);
            let (server_before, client_before) = (target.cpu_time(), process_cpu_ns());
            let outcome = clients.run(&round)?;
            let client_cpu_ns = Some(process_cpu_ns() - client_before);
            let spent = |now: Duration| Some(now.saturating_sub(server_before?).as_nanos() as u64);
            let server_cpu_ns = target.cpu_time().and_then(spent);
            let sample = Sample::from(outcome);
            Ok(Sample { server_cpu_ns, client_cpu_ns: sample.client_cpu_ns.or(client_cpu_ns), ..sample })
        };
        search(closed.rate(), *p99_us_max, try_rate)
    }
}

/// Searches beyond `closed_per_s`. The sample is of the best step, or has no operations if all failed.
fn search(
    closed_per_s: f64,
    p99_us_max: f64,
    mut try_rate: impl FnMut(u32, f64) -> Result<Sample>,
) -> Result<Sample> {
    let (mut good, mut bad) = (0.0, closed_per_s * BEYOND);
    let mut best =
        Sample { elapsed_ns: 1, server_cpu_ns: Some(0), client_cpu_ns: Some(0), ..Sample::default() };
    let mut figures = vec![("closed_loop_per_s".to_owned(), closed_per_s)];
    for step in 0..STEPS {
        let rate_per_s = (good + bad) / 2.0;
        let mut tried = try_rate(step * TRIES, rate_per_s)?;
        for again in 1..TRIES {
            if !is_good(&tried, rate_per_s, p99_us_max) {
                tried = try_rate(step * TRIES + again, rate_per_s)?;
            }
        }
        figures.push((format!("step_{step}_rate_per_s"), rate_per_s));
        figures.push((format!("step_{step}_done_per_s"), tried.rate()));
        figures.extend(p99_us(&tried).map(|us| (format!("step_{step}_p99_us"), us)));
        if is_good(&tried, rate_per_s, p99_us_max) {
            good = rate_per_s;
            best = tried;
        } else {
            bad = rate_per_s;
        }
    }
    figures.push(("saturation_per_s".to_owned(), good));
    best.figures.extend(figures);
    Ok(best)
}

fn is_good(sample: &Sample, rate_per_s: f64, p99_us_max: f64) -> bool {
    let is_all_sent = !sample.figures.contains_key("unsent");
    is_all_sent
        && p99_us(sample).is_some_and(|us| us <= p99_us_max)
        && sample.rate() >= rate_per_s * DONE_PART
}

fn p99_us(sample: &Sample) -> Option<f64> {
    sample.latency.as_ref().map(|latency| latency.percentile_ns(99.0) / 1e3)
}

/// Describes the steps of all searches.
pub fn steps(results: &Results) -> String {
    let mut text = String::new();
    for sample in &results.samples {
        let figure = |name: &str| sample.figures.get(name).copied();
        let (Some(found), Some(closed)) = (figure("saturation_per_s"), figure("closed_loop_per_s")) else {
            continue;
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}, {}, round {}", sample.target, sample.case.name(), sample.round);
        let _ = writeln!(text, "  closed loop {closed:>12.0} ops/s");
        for step in 0.. {
            let of_step = |what: &str| figure(&format!("step_{step}_{what}"));
            let (Some(rate), Some(done)) = (of_step("rate_per_s"), of_step("done_per_s")) else { break };
            let p99 = of_step("p99_us").unwrap_or(f64::NAN);
            let _ = writeln!(text, "  open loop {rate:>14.0} ops/s: {done:>10.0} done, p99 {p99:>10.1} us");
        }
        let _ = writeln!(text, "  within the bound {found:>7.0} ops/s\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    /// Simulates a server that serves up to 60,000 requests per second in 100 us each.
    fn served(rate_per_s: f64) -> Sample {
        let fits = rate_per_s <= 60_000.0;
        let mut latency = Histogram::default();
        (0..1_000).for_each(|_| latency.record(if fits { 100_000 } else { 5_000_000 }));
        let operations = rate_per_s as u64;
        Sample { operations, elapsed_ns: 1_000_000_000, latency: Some(latency), ..Sample::default() }
    }

    #[test]
    fn the_highest_rate_within_the_bound_is_found() {
        let mut tried = Vec::new();
        let sample = search(100_000.0, 1_000.0, |_, rate| {
            tried.push(rate);
            Ok(served(rate))
        });
        let sample = sample.expect("a search");
        let found = sample.figures["saturation_per_s"];
        assert!((59_000.0..=60_000.0).contains(&found), "{found}");
        assert_eq!(tried[..2], [62_500.0, 62_500.0]);
        tried.dedup();
        assert_eq!(tried.len(), STEPS as usize);
        assert!((sample.rate() - found).abs() < 1.0 && sample.latency.is_some());
        let none = search(100_000.0, 50.0, |_, rate| Ok(served(rate))).expect("a search");
        assert_eq!((none.figures["saturation_per_s"], none.operations), (0.0, 0));
    }

    #[test]
    fn an_incomplete_rate_is_too_high() {
        let found = |change: fn(Sample) -> Sample| {
            let sample = search(1_000.0, 1_000.0, |_, rate| Ok(change(served(rate))));
            sample.expect("a search").figures["saturation_per_s"]
        };
        assert!(found(|sample| sample) > 1_200.0);
        assert_eq!(found(|sample| Sample { operations: sample.operations / 2, ..sample }), 0.0);
        assert_eq!(found(|sample| Sample { figures: [("unsent".to_owned(), 1.0)].into(), ..sample }), 0.0);
        assert_eq!(found(|sample| Sample { latency: None, ..sample }), 0.0);
    }
}
