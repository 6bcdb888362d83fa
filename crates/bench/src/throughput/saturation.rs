//! The highest rate at which the latency of nearly all requests stays below a bound: a binary search between none and what
//! a closed loop does, each step an open loop.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::Throughput;
use crate::engine::{Clients, Outcome, Pace};
use crate::experiment::{Experiment, Rounds};
use crate::results::{Case, Results, Sample};
use crate::target::Target;

/// Steps of the search: what is found is known to a hundredth of what a closed loop does.
const STEPS: u32 = 7;
/// The search ends at so much more than a closed loop does.
const BEYOND: f64 = 1.25;
/// So much of a rate must be done, or it was too high however short the latency.
const DONE_PART: f64 = 0.95;

/// The experiment.
#[derive(Debug)]
pub struct Saturation {
    /// Who makes requests. Its rates are not used.
    pub throughput: Throughput,
    /// The latency within which 99% of all requests are to be answered, in microseconds.
    pub p99_us_max: f64,
}

impl Experiment for Saturation {
    fn name(&self) -> &'static str {
        "throughput"
    }

    fn method(&self) -> String {
        format!(
            "the highest rate at which 99% of all requests are answered within {} us: {STEPS} steps of a binary search up to \
             {BEYOND} times what a closed loop does, each an open loop with latency from when a request should have been made; {}",
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
        Ok(Box::new(Search { saturation: self, clients }))
    }
}

/// A search on one target.
struct Search<'e> {
    saturation: &'e Saturation,
    clients: Clients,
}

impl Rounds for Search<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let Saturation { throughput, p99_us_max } = self.saturation;
        let closed = self.clients.run(&throughput.load.round(Pace::Closed, number))?;
        let clients = &mut self.clients;
        let try_rate = |step: u32, rate_per_s: f64| {
            let pace = Pace::Open { rate_per_s, arrivals: throughput.arrivals };
            clients.run(&throughput.load.round(pace, (number + 1) * STEPS + step))
        };
        search(closed.rate(), *p99_us_max, try_rate)
    }
}

/// Searches up to what is beyond `closed_per_s`. The sample is of the best step, or has no operations if none was good.
fn search(
    closed_per_s: f64,
    p99_us_max: f64,
    mut try_rate: impl FnMut(u32, f64) -> Result<Outcome>,
) -> Result<Sample> {
    let (mut good, mut bad) = (0.0, closed_per_s * BEYOND);
    let mut best = Sample { elapsed_ns: 1, ..Sample::default() };
    let mut figures = vec![("closed_loop_per_s".to_owned(), closed_per_s)];
    for step in 0..STEPS {
        let rate_per_s = (good + bad) / 2.0;
        let outcome = try_rate(step, rate_per_s)?;
        let p99_us = outcome.all_latency().percentile_ns(99.0) / 1e3;
        let is_good = p99_us <= p99_us_max && outcome.unsent == 0 && outcome.rate() >= rate_per_s * DONE_PART;
        figures.push((format!("step_{step}_rate_per_s"), rate_per_s));
        figures.push((format!("step_{step}_done_per_s"), outcome.rate()));
        // JSON has nothing that is not a number.
        figures.push((format!("step_{step}_p99_us"), if p99_us.is_nan() { 0.0 } else { p99_us }));
        if is_good {
            good = rate_per_s;
            best = outcome.into();
        } else {
            bad = rate_per_s;
        }
    }
    figures.push(("saturation_per_s".to_owned(), good));
    best.figures.extend(figures);
    Ok(best)
}

/// The steps of all searches, in words.
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
            let (Some(rate), Some(done), Some(p99)) =
                (of_step("rate_per_s"), of_step("done_per_s"), of_step("p99_us"))
            else {
                break;
            };
            let _ = writeln!(text, "  open loop {rate:>14.0} ops/s: {done:>10.0} done, p99 {p99:>10.1} us");
        }
        let _ = writeln!(text, "  within the bound {found:>7.0} ops/s\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that does up to 60,000 requests a second in 100 us.
    fn served(rate_per_s: f64) -> Outcome {
        let fits = rate_per_s <= 60_000.0;
        let mut outcome = Outcome::new(1);
        outcome.operations = rate_per_s as u64;
        outcome.elapsed_ns = 1_000_000_000;
        (0..1_000).for_each(|_| outcome.latency[0].record(if fits { 100_000 } else { 5_000_000 }));
        outcome
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
        assert_eq!((tried.len(), tried[0]), (7, 62_500.0));
        assert!((sample.rate() - found).abs() < 1.0 && sample.latency.is_some());
        let none = search(100_000.0, 50.0, |_, rate| Ok(served(rate))).expect("a search");
        assert_eq!((none.figures["saturation_per_s"], none.operations), (0.0, 0));
    }

    #[test]
    fn what_is_not_done_is_no_rate() {
        let half = |_, rate| {
            let mut outcome = served(rate);
            outcome.operations /= 2;
            Ok(outcome)
        };
        assert_eq!(search(1_000.0, 1_000.0, half).expect("a search").figures["saturation_per_s"], 0.0);
        let late = |_, rate| Ok(Outcome { unsent: 1, ..served(rate) });
        assert_eq!(search(1_000.0, 1_000.0, late).expect("a search").figures["saturation_per_s"], 0.0);
    }
}
