//! Throughput of many clients on random keys, as in OHB's multi-client benchmark, with values of 4
//! bytes and 4 KB or any other size.
//!
//! In a closed loop; in an open loop at given rates, with latency from the due time of a request; or
//! the highest rate whose latency stays below a bound.

mod saturation;

use anyhow::{Context, Result, ensure};

use crate::engine::table::{MEGABYTES, USUAL, table as any_table};
use crate::engine::{Arrivals, Clients, Load, Pace, Sizes};
use crate::experiment::{Experiment, Rounds};
use crate::results::{Case, Results, Sample};
use crate::target::Target;
pub use saturation::Saturation;

/// OHB's value sizes.
const SIZES: [usize; 2] = [4, 4_096];
/// Seconds of a round: with `quick`, and otherwise.
const SECONDS: [f64; 2] = [0.5, 1.0];
/// Maximum requests per second: more than clients can make, so that lateness is noticed early.
const RATE_MAX: f64 = 1e8;
/// Clients that are busy for this fraction of the time cause latency themselves.
const BUSY_PART: f64 = 0.9;
/// Number of keys: with `quick`, and otherwise.
const KEYS: [u64; 2] = [5_000, 100_000];

/// The experiment.
#[derive(Debug)]
pub struct Throughput {
    /// Bytes of values.
    pub sizes: Vec<usize>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// Requests per second; empty for a closed loop.
    pub rates: Vec<f64>,
    /// The distribution of requests over time, if there are rates.
    pub arrivals: Arrivals,
    /// The clients and their work.
    pub load: Load,
}

impl Throughput {
    /// Returns OHB's configuration: values of 4 bytes and 4 KB, read by more and more clients in a closed
    /// loop.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Throughput> {
        let at = usize::from(!quick);
        let load = Load::new(KEYS[at], key_bytes, SECONDS[at], verify);
        load.work.check()?;
        Ok(Throughput {
            sizes: SIZES.to_vec(),
            clients: if quick { vec![1, 16] } else { vec![1, 2, 4, 8, 16, 32, 64] },
            rates: Vec::new(),
            arrivals: Arrivals::Poisson,
            load,
        })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        self.load.check()?;
        ensure!(!self.clients.contains(&0) && !self.clients.is_empty(), "there is at least 1 client");
        ensure!(!self.sizes.is_empty(), "no value size");
        let possible = |rate: &f64| *rate > 0.0 && *rate <= RATE_MAX;
        ensure!(
            self.rates.iter().all(possible),
            "rates are above 0 and at most {RATE_MAX} requests a second"
        );
        Ok(())
    }

    fn connect(&self, target: &Target, case: &Case) -> Result<Clients> {
        let value_bytes = case.number("value_bytes").context("a case has a size")? as usize;
        let clients = case.number("clients").context("a case has clients")? as usize;
        let work = self.load.sized(target, Sizes::Same(value_bytes), self.sizes.len())?;
        self.load.connect(target, &work, clients)
    }
}

impl Experiment for Throughput {
    fn name(&self) -> &'static str {
        "throughput"
    }

    fn method(&self) -> String {
        let pace = match (self.rates.is_empty(), self.arrivals) {
            (true, _) => "closed loop",
            (false, Arrivals::Poisson) => {
                "open loop, Poisson arrivals, latency from when a request should have been made"
            }
            (false, Arrivals::Even) => {
                "open loop, even arrivals, latency from when a request should have been made"
            }
        };
        format!("{pace}; {}", self.load.method())
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for size in &self.sizes {
            for clients in &self.clients {
                let case =
                    Case::new(self.load.operation()).with("value_bytes", *size).with("clients", *clients);
                let case = self.load.conditions(case);
                if self.rates.is_empty() {
                    cases.push(case);
                } else {
                    cases.extend(self.rates.iter().map(|rate| case.clone().with("rate_per_s", *rate)));
                }
            }
        }
        cases
    }

    /// The rate of an open loop is fixed, so the dummy shows no limit.
    fn has_client_limit(&self) -> bool {
        self.rates.is_empty()
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        self.check()?;
        let clients = self.connect(target, case)?;
        let pace = match case.number("rate_per_s") {
            None => Pace::Closed,
            Some(rate_per_s) => Pace::Open { rate_per_s, arrivals: self.arrivals },
        };
        Ok(Box::new(ThroughputRounds { load: &self.load, clients, pace }))
    }
}

/// Clients of one target.
struct ThroughputRounds<'e> {
    load: &'e Load,
    clients: Clients,
    pace: Pace,
}

impl Rounds for ThroughputRounds<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        let outcome = self.clients.run(&self.load.round(self.pace, number))?;
        Ok(outcome.into())
    }
}

/// Returns operations per second, latencies and CPU time by the number of clients, and the steps of a
/// search.
pub fn table(results: &Results) -> String {
    let columns: Vec<_> = USUAL.iter().chain([&MEGABYTES]).collect();
    saturation::steps(results) + &any_table(results, &columns) + &busy(results)
}

/// Returns a line for each open loop whose clients were busy. Shared-memory clients always poll.
fn busy(results: &Results) -> String {
    let mut text = String::new();
    for target in results.targets.iter().filter(|target| target.transport != "shm") {
        for case in results.cases().into_iter().filter(|case| case.number("rate_per_s").is_some()) {
            let threads = ["threads", "processes"].map(|name| case.number(name).unwrap_or(1.0).max(1.0));
            let threads = case.number("clients").unwrap_or(1.0).min(threads[0] * threads[1]);
            let part = |sample: &Sample| {
                let client_cpu_ns = sample.client_cpu_ns.filter(|_| sample.operations > 0)?;
                Some(client_cpu_ns as f64 / sample.elapsed_ns.max(1) as f64)
            };
            let part = results.median(&target.name, case, part) / threads;
            if part > BUSY_PART {
                text.push_str(&format!(
                    "{}, {}: the clients were busy {:.0}% of the time, so that latency is their own as well; give more --threads or \
                     --processes\n",
                    target.name,
                    case.name(),
                    part * 100.0
                ));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TargetDescription;

    #[test]
    fn open_loops_of_busy_clients_are_reported() {
        let busy_of = |transport: &str, case: Case, client_cpu_ns: u64| {
            let described = TargetDescription {
                name: "t".into(),
                transport: transport.into(),
                ..TargetDescription::default()
            };
            let mut results = Results::new("throughput", "how".into(), vec![described]);
            results.samples = vec![Sample {
                target: "t".into(),
                case,
                operations: 1,
                elapsed_ns: 1_000,
                client_cpu_ns: Some(client_cpu_ns),
                ..Sample::default()
            }];
            busy(&results)
        };
        let closed = || Case::new("get").with("clients", 4usize);
        let open = || closed().with("rate_per_s", 100.0);
        assert!(busy_of("tcp", open(), 950).contains("busy 95%"));
        assert_eq!(busy_of("tcp", open(), 850), "");
        assert_eq!(busy_of("tcp", open().with("processes", 2usize), 950), "");
        assert!(busy_of("tcp", open().with("processes", 2usize), 1_900).contains("busy 95%"));
        assert_eq!(busy_of("tcp", closed(), 950), "");
        assert_eq!(busy_of("shm", open(), 950), "");
    }
}
