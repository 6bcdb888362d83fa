//! Results of a measurement in their stored form: JSON with every round and every histogram. `fabcache
//! bench report` reads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::report::Header;
use crate::target::TargetDescription;
use fabcache_testbed::statistics::median;

/// The version of this format.
pub const FORMAT: u32 = 1;

/// The results of one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The subcommand of `fabcache bench`.
    pub subcommand: String,
    /// The command line.
    pub command: String,
    /// When and where.
    #[serde(flatten)]
    pub run: Header,
    /// The method, for the interpretation of the figures.
    pub method: String,
    /// The measured targets. The last is the baseline, unless a target names another.
    pub targets: Vec<TargetDescription>,
    /// Every round of every case.
    pub samples: Vec<Sample>,
}

/// An operation under some conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The operation: `get`, `set`, `iget`, ….
    pub operation: String,
    /// The conditions, by the names of the options: `value_bytes`, `clients`, `window`, ….
    pub parameters: BTreeMap<String, Parameter>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    /// A number.
    Number(f64),
    /// A name.
    Text(String),
}

/// One round of a case on a target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// The target's name.
    pub target: String,
    /// The measured sample.
    #[serde(flatten)]
    pub case: Case,
    /// The number of the round, from 0.
    pub round: u32,
    /// Number of operations.
    pub operations: u64,
    /// Duration in nanoseconds.
    pub elapsed_ns: u64,
    /// Operations that missed.
    pub misses: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Responses of which every byte was compared.
    pub verified: u64,
    /// Durations of single operations.
    pub latency: Option<Histogram>,
    /// The sample of the case's baseline, if it was measured in the same round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_latency: Option<Histogram>,
    /// CPU time of the servers, in nanoseconds, if they are processes of this host.
    pub server_cpu_ns: Option<u64>,
    /// CPU time of the clients, in nanoseconds.
    pub client_cpu_ns: Option<u64>,
    /// Operations per second of the same clients with the dummy server, if that was measured.
    pub ceiling_per_s: Option<f64>,
    /// Other figures, by name with their unit: `hit_ratio`, `bytes_per_s`, ….
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

/// A rate above this fraction of the clients' limit says little about the server.
pub const LIMIT_PART: f64 = 0.8;
/// If more than one operation in this many missed, the clients' limit does not apply.
const MISSES_PART: u64 = 10;
/// Maximum number of such results that are listed.
const LIMITS_LISTED_MAX: usize = 8;

impl From<u64> for Parameter {
    fn from(number: u64) -> Parameter {
        Parameter::Number(number as f64)
    }
}

impl From<usize> for Parameter {
    fn from(number: usize) -> Parameter {
        Parameter::Number(number as f64)
    }
}

impl From<f64> for Parameter {
    fn from(number: f64) -> Parameter {
        Parameter::Number(number)
    }
}

impl From<&str> for Parameter {
    fn from(text: &str) -> Parameter {
        Parameter::Text(text.to_owned())
    }
}

impl std::fmt::Display for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parameter::Number(number) => write!(f, "{number}"),
            Parameter::Text(text) => f.write_str(text),
        }
    }
}

impl Case {
    /// Returns an operation without conditions.
    pub fn new(operation: &str) -> Case {
        Case { operation: operation.to_owned(), parameters: BTreeMap::new() }
    }

    /// Adds a condition.
    pub fn with(mut self, name: &str, value: impl Into<Parameter>) -> Case {
        self.parameters.insert(name.to_owned(), value.into());
        self
    }

    /// Returns a condition that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.parameters.get(name) {
            Some(Parameter::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// Returns the operation and its conditions in one line.
    pub fn name(&self) -> String {
        let conditions = self.parameters.iter().map(|(name, value)| format!(" {name}={value}"));
        self.operation.clone() + &conditions.collect::<String>()
    }
}

impl Sample {
    /// Returns the operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Returns the CPU time of the servers per operation, in nanoseconds.
    pub fn server_cpu_ns_each(&self) -> Option<f64> {
        self.server_cpu_ns.filter(|_| self.operations > 0).map(|ns| ns as f64 / self.operations as f64)
    }

    /// Returns whether nearly all operations hit. A miss takes less than the dummy's hit, so the limit is
    /// another.
    fn finds(&self) -> bool {
        self.misses.saturating_mul(MISSES_PART) <= self.operations
    }

    /// Returns whether the clients were at their limit.
    pub fn is_clients_limit(&self) -> bool {
        self.finds() && self.ceiling_per_s.is_some_and(|limit| self.rate() > limit * LIMIT_PART)
    }
}

impl Results {
    /// Returns empty results.
    pub fn new(subcommand: &str, method: String, targets: Vec<TargetDescription>) -> Results {
        Results {
            format: FORMAT,
            subcommand: subcommand.to_owned(),
            // A path need not be UTF-8.
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" "),
            run: Header::now(),
            method,
            targets,
            samples: Vec::new(),
        }
    }

    /// Writes the results, one line per sample.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.json()?).with_context(|| format!("cannot write {}", path.display()))
    }

    fn json(&self) -> Result<String> {
        let head = serde_json::to_string_pretty(&Results { samples: Vec::new(), ..self.clone() })?;
        let head = head.strip_suffix("[]\n}").context("samples come last")?;
        let mut text = format!("{head}[\n");
        for (i, sample) in self.samples.iter().enumerate() {
            let end = if i + 1 == self.samples.len() { "" } else { "," };
            writeln!(text, "    {}{end}", serde_json::to_string(sample)?)?;
        }
        text.push_str("  ]\n}\n");
        Ok(text)
    }

    /// Reads results.
    ///
    /// # Errors
    /// The file cannot be read, or has other contents.
    pub fn read(path: &Path) -> Result<Results> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let results: Results = serde_json::from_str(&text)
            .with_context(|| format!("{} holds no results of a measurement of servers (those of policies, store, shm and memory are drawn by --plot)", path.display()))?;
        ensure!(results.format == FORMAT, "{} has format {}, not {FORMAT}", path.display(), results.format);
        Ok(results)
    }

    /// Returns the name of the target's baseline.
    pub fn base<'r>(&'r self, target: &'r TargetDescription) -> &'r str {
        let last = || self.targets.last().map_or(target.name.as_str(), |last| &last.name);
        target.base.as_deref().unwrap_or_else(last)
    }

    /// Returns all cases, in the order of their measurement.
    pub fn cases(&self) -> Vec<&Case> {
        let mut cases: Vec<&Case> = Vec::new();
        for sample in &self.samples {
            if !cases.contains(&&sample.case) {
                cases.push(&sample.case);
            }
        }
        cases
    }

    /// Returns the rounds of a case on a target.
    pub fn rounds<'r>(&'r self, target: &'r str, case: &'r Case) -> impl Iterator<Item = &'r Sample> {
        self.samples.iter().filter(move |sample| sample.target == target && sample.case == *case)
    }

    /// Returns the latencies of all rounds together; `None` without a histogram.
    pub fn latency(&self, target: &str, case: &Case) -> Option<Histogram> {
        let mut all: Option<Histogram> = None;
        for latency in self.rounds(target, case).filter_map(|sample| sample.latency.as_ref()) {
            all.get_or_insert_default().add(latency);
        }
        all
    }

    /// Describes the results that are near the clients' limit and so say little about the server.
    ///
    /// Returns lines to print below a table, or an empty string.
    pub fn limits(&self) -> String {
        let mut lines = Vec::new();
        let mut measured = 0;
        for target in &self.targets {
            for case in self.cases() {
                let limit = self.median(&target.name, case, |sample| sample.ceiling_per_s);
                let rate = self.median(&target.name, case, |sample| sample.finds().then(|| sample.rate()));
                measured += usize::from(limit.is_finite());
                if rate > limit * LIMIT_PART {
                    let percent = match limit {
                        // The rate is within a latency bound that the clients themselves do not meet.
                        0.0 => String::new(),
                        limit => format!(", {:.0}%", 100.0 * rate / limit),
                    };
                    lines.push(format!(
                        "  {}, {}: {rate:.0} of {limit:.0} a second{percent}\n",
                        target.name,
                        case.name()
                    ));
                }
            }
        }
        if lines.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "Limited by the client: {} of {measured} results are above {:.0}% of what the same clients do with a server that does \
             nothing but answer; they are limited by the client and the transport rather than by the server.\n",
            lines.len(),
            100.0 * LIMIT_PART
        );
        let rest = lines.len().saturating_sub(LIMITS_LISTED_MAX);
        text.extend(lines.into_iter().take(LIMITS_LISTED_MAX));
        if rest > 0 {
            let _ = writeln!(text, "  and {rest} more; all are in the JSON, as ceiling_per_s");
        }
        text
    }

    /// Returns the median of a figure over rounds; NaN if no round has it.
    pub fn median(&self, target: &str, case: &Case, figure: impl Fn(&Sample) -> Option<f64>) -> f64 {
        median(self.rounds(target, case).filter_map(figure))
    }

    /// Returns the ratio of a figure to that of `base` in the same round: the median over rounds, the least and the
    /// greatest.
    pub fn ratio(
        &self,
        target: &str,
        base: &str,
        case: &Case,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> [f64; 3] {
        let bases: BTreeMap<u32, f64> =
            self.rounds(base, case).filter_map(|sample| Some((sample.round, figure(sample)?))).collect();
        let ratios: Vec<f64> = self
            .rounds(target, case)
            .filter_map(|sample| Some(figure(sample)? / bases.get(&sample.round)?))
            .collect();
        let least = ratios.iter().copied().fold(f64::NAN, f64::min);
        let greatest = ratios.iter().copied().fold(f64::NAN, f64::max);
        [median(ratios), least, greatest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: &str, round: u32, operations: u64) -> Sample {
        let mut latency = Histogram::default();
        latency.record(1_000);
        Sample {
            target: target.into(),
            case: Case::new("get").with("value_bytes", 64usize).with("keys", "zipf"),
            round,
            operations,
            elapsed_ns: 1_000_000_000,
            latency: Some(latency),
            ..Sample::default()
        }
    }

    #[test]
    fn results_round_trip() {
        let mut results = Results::new("latency", "how".into(), Vec::new());
        let empty: Results = serde_json::from_str(&results.json().expect("JSON")).expect("what was written");
        assert!(empty.samples.is_empty());
        results.samples =
            vec![sample("a", 0, 30), sample("b", 0, 10), sample("a", 1, 10), sample("b", 1, 10)];
        let read: Results = serde_json::from_str(&results.json().expect("JSON")).expect("what was written");
        let case = read.cases()[0].clone();
        assert_eq!((read.cases().len(), case.number("value_bytes")), (1, Some(64.0)));
        assert_eq!(case.name(), "get keys=zipf value_bytes=64");
        assert_eq!(read.latency("a", &case).map(|latency| latency.count()), Some(2));
        assert_eq!(read.ratio("a", "b", &case, |sample| Some(sample.rate())), [2.0, 1.0, 3.0]);
        assert_eq!(read.median("a", &case, |sample| Some(sample.rate())), 20.0);
    }

    #[test]
    fn the_clients_limit_is_reported() {
        let described = |name: &str| TargetDescription { name: name.into(), ..TargetDescription::default() };
        let mut results = Results::new("latency", "how".into(), vec![described("a"), described("b")]);
        let of =
            |target, operations, ceiling_per_s| Sample { ceiling_per_s, ..sample(target, 0, operations) };
        results.samples = vec![of("a", 90, Some(100.0)), of("b", 70, Some(100.0))];
        let text = results.limits();
        assert!(text.contains("1 of 2 results") && text.contains("a, get keys=zipf"), "{text}");
        assert!(text.contains("90 of 100 a second, 90%") && !text.contains("  b, "), "{text}");
        results.samples = vec![of("a", 90, None), of("b", 70, Some(100.0))];
        assert_eq!(results.limits(), "");

        results.samples = vec![of("a", 90, Some(0.0))];
        let text = results.limits();
        assert!(text.contains("1 of 1 results") && text.ends_with("90 of 0 a second\n"), "{text}");

        let reached = |ceiling_per_s| Sample { ceiling_per_s, ..sample("a", 0, 90) }.is_clients_limit();
        assert!(reached(Some(100.0)) && !reached(Some(200.0)) && !reached(None));
        let missed = |misses| Sample { misses, ..of("a", 90, Some(100.0)) };
        assert!(missed(9).is_clients_limit() && !missed(10).is_clients_limit());
        assert!(!missed(u64::MAX).is_clients_limit());
        results.samples = vec![missed(10)];
        assert_eq!(results.limits(), "");
    }
}
