//! `fabcache bench trace`: replays traces on servers, for hit ratio and speed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use fabcache_client::Client;

use super::engine::{Counts, Engine};
use super::expected::Expected;
use super::generate::{Kind, Shape};
use super::plan::Plan;
use super::reader::Reader;
use super::record::{Operation, Record};
use super::{Object, Trace};
use crate::experiment::{Experiment, Rounds};
use crate::results::{Case, Results, Sample};
use crate::target::Target;
use fabcache_testbed::random::mix;

/// Default number of gets and sets in flight.
pub const WINDOW: usize = 64;
/// Maximum number of gets and sets in flight, so that each connection accepts them.
pub const WINDOW_MAX: usize = 1_024;
/// Requests of each trace with `quick`.
const QUICK_REQUESTS: u64 = 10_000;
/// The size of synthetic traces: with `quick`, and otherwise.
const SCALES: [f64; 2] = [0.01, 0.25];
/// Default synthetic traces: all but the loop, which suits one memory size, and those that differ only
/// in their exponent.
const KINDS: [Kind; 5] = [Kind::Zipf10, Kind::Scan, Kind::Churn, Kind::Drift, Kind::Sizes];

/// The origin of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Generated.
    Synthetic(Kind),
    /// A file.
    File(PathBuf),
    /// Standard input.
    Input,
}

/// The experiment.
#[derive(Debug)]
pub struct Replay {
    plan: Plan,
    sources: Vec<Source>,
    /// Generated traces, each generated once.
    made: Vec<OnceLock<Trace>>,
    input_is_read: AtomicBool,
}

impl Source {
    /// Returns the name for tables.
    pub fn name(&self) -> String {
        match self {
            Source::Synthetic(kind) => kind.name().to_owned(),
            Source::File(path) => path.display().to_string(),
            Source::Input => "-".to_owned(),
        }
    }

    /// Returns a source for a file, or standard input for `-`.
    pub fn of_path(path: &Path) -> Source {
        if path == Path::new("-") { Source::Input } else { Source::File(path.to_owned()) }
    }
}

impl Plan {
    /// Returns a plan for cache-aside as fast as possible.
    pub fn new(quick: bool, verify: bool) -> Plan {
        Plan {
            shape: Shape { scale: SCALES[usize::from(!quick)], seed: 1, speed: 1 },
            format: None,
            skips_malformed: false,
            requests_max: if quick { QUICK_REQUESTS } else { u64::MAX },
            window: WINDOW,
            fills: true,
            speed: None,
            scales_ttl: false,
            flushes: false,
            verify,
        }
    }
}

impl Replay {
    /// Replays these traces, or the default ones if the list is empty.
    pub fn new(sources: Vec<Source>, plan: Plan) -> Replay {
        let sources = if sources.is_empty() { KINDS.map(Source::Synthetic).to_vec() } else { sources };
        let made = sources.iter().map(|_| OnceLock::new()).collect();
        Replay { plan, sources, made, input_is_read: AtomicBool::new(false) }
    }

    /// Replays synthetic traces. Key lengths are those of the traces.
    ///
    /// # Errors
    /// A trace of the standard set is unknown.
    pub fn standard(quick: bool, verify: bool, _key_bytes: usize) -> Result<Replay> {
        Ok(Replay::new(Vec::new(), Plan::new(quick, verify)))
    }

    /// Runs `replay` over the records of a trace; also returns the number of skipped ones.
    fn over(
        &self,
        index: usize,
        replay: impl FnOnce(&mut dyn Iterator<Item = Result<Record>>) -> Result<Counts>,
    ) -> Result<(Counts, u64)> {
        let reader = match &self.sources[index] {
            Source::Synthetic(kind) => {
                let trace = self.made[index].get_or_init(|| self.plan.shape.generate(*kind, 1.0));
                let mut records = trace.requests.iter().map(|request| {
                    let Object { key_bytes, value_bytes, ttl_s } = trace.objects[request.object as usize];
                    let (second, object) = (request.second.into(), request.object.into());
                    Ok(Record { second, object, key_bytes, value_bytes, operation: Operation::Get, ttl_s })
                });
                return Ok((replay(&mut records)?, 0));
            }
            Source::File(path) => Reader::open(path, self.plan.format, self.plan.skips_malformed),
            Source::Input => {
                let is_read = self.input_is_read.swap(true, Ordering::Relaxed);
                ensure!(
                    !is_read,
                    "standard input can be read once: give a file for several rounds or servers"
                );
                Reader::new("standard input", std::io::stdin(), self.plan.format, self.plan.skips_malformed)
            }
        };
        let mut reader = reader?;
        let counts = replay(&mut reader)?;
        ensure!(counts.records > 0, "{}: no request in the trace", self.sources[index].name());
        Ok((counts, reader.skipped()))
    }
}

impl Experiment for Replay {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn method(&self) -> String {
        let speed = match self.plan.speed {
            Some(speed) => format!("{speed} times as fast as the trace"),
            None => "as fast as it goes".to_owned(),
        };
        format!(
            "one thread, {}, {speed}; {}; {}; {}",
            match self.plan.window {
                ..=1 => "one request after the other".to_owned(),
                window => format!("up to {window} gets and sets in flight, in order for each object"),
            },
            if self.plan.fills {
                "a get that misses is followed by a set"
            } else {
                "a get that misses is followed by nothing"
            },
            if self.plan.flushes { "emptied before each round" } else { "not emptied before" },
            if self.plan.verify {
                "every byte of every hit compared"
            } else {
                "length and begin of every hit compared"
            }
        )
    }

    fn cases(&self) -> Vec<Case> {
        let case = |source: &Source| {
            let case =
                Case::new("get").with("trace", source.name().as_str()).with("window", self.plan.window);
            match self.plan.speed {
                Some(speed) => case.with("speed", speed),
                None => case,
            }
        };
        self.sources.iter().map(case).collect()
    }

    /// The dummy lacks these keys and values. The report says instead whether the client was busy.
    fn has_client_limit(&self) -> bool {
        false
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let index = self.cases().iter().position(|known| known == case).context("unknown case")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Keys are unique to this run and trace.
        let salt = mix(now.as_nanos() as u64) ^ mix(u64::from(std::process::id())) ^ index as u64;
        let expected = Expected::new(salt, self.plan.verify)?;
        Ok(Box::new(Run { replay: self, index, client: target.client()?, expected }))
    }
}

/// A replay of one trace on one cache.
struct Run<'e> {
    replay: &'e Replay,
    index: usize,
    client: Client,
    expected: Expected,
}

impl Rounds for Run<'_> {
    fn round(&mut self, _number: u32) -> Result<Sample> {
        if self.replay.plan.flushes {
            self.client.flush(0).context("cannot flush the servers")?;
        }
        let Run { replay, index, client, expected } = self;
        let mut elapsed = None;
        let (counts, skipped) = replay.over(*index, |records| {
            let start = Instant::now();
            let counts = Engine::new(&replay.plan, client, expected).run(records);
            elapsed = Some(start.elapsed());
            counts
        })?;
        let elapsed_ns = elapsed.unwrap_or_default().as_nanos() as u64;
        let objects = self.expected.objects() as u64;
        Ok(sample(counts, skipped, objects, elapsed_ns, self.replay.plan.speed.is_some()))
    }
}

fn sample(counts: Counts, skipped: u64, objects: u64, elapsed_ns: u64, is_paced: bool) -> Sample {
    let mut figures = std::collections::BTreeMap::new();
    let mut figure = |name: &str, value: f64| {
        figures.insert(name.to_owned(), value);
    };
    if counts.gets > 0 {
        figure("hit_ratio", (counts.gets - counts.misses) as f64 / counts.gets as f64);
    }
    if counts.hit_bytes + counts.miss_bytes > 0 {
        figure("byte_hit_ratio", counts.hit_bytes as f64 / (counts.hit_bytes + counts.miss_bytes) as f64);
    }
    figure("gets", counts.gets as f64);
    figure("fills", counts.fills as f64);
    figure("objects", objects as f64);
    figure("refused", counts.refused as f64);
    figure("not_stored", counts.not_stored as f64);
    figure("asked_again", counts.again as f64);
    figure("skipped_records", skipped as f64);
    if is_paced {
        figure("late_ms", counts.late.as_millis() as f64);
    }
    Sample {
        operations: counts.records,
        elapsed_ns,
        misses: counts.misses,
        errors: counts.refused,
        verified: counts.verified,
        latency: counts.times.filter(|times| times.count() > 0),
        figures,
        ..Sample::default()
    }
}

/// A client that is busy for this fraction of the time is at its limit.
const BUSY_PART: f64 = 0.9;

/// Describes the columns of [`table`].
const LEGEND: &str = "hit %, byte hit %: of gets, and of bytes of their values. CPU: of the servers, for a request of the trace. \
p50, p99: of gets, where each is waited for (--window 1).\n";

/// Returns a row per trace and target.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    let base = results.targets.last().map_or("", |target| target.name.as_str());
    let width = results.cases().iter().map(|case| trace_name(case).len()).max().unwrap_or(0).max(5);
    let names = results.targets.iter().map(|target| target.name.len()).max().unwrap_or(0).max(6);
    let _ = write!(
        text,
        "{:<width$} {:<names$} {:>10} {:>10} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9}",
        "trace",
        "server",
        "requests",
        "objects",
        "hit %",
        "byte hit %",
        "requests/s",
        "CPU us",
        "p50 us",
        "p99 us"
    );
    let compares = results.targets.len() > 1;
    text.push_str(if compares { "   hits, requests/s: times the last\n" } else { "\n" });
    for case in results.cases() {
        for target in &results.targets {
            let name = target.name.as_str();
            let median = |figure: &dyn Fn(&Sample) -> Option<f64>| results.median(name, case, figure);
            let percent =
                |figure: &'static str| median(&|sample| sample.figures.get(figure).copied()) * 100.0;
            let latency = results.latency(name, case);
            let us =
                |at: f64| latency.as_ref().map_or(f64::NAN, |latency| latency.percentile_ns(at) / 1_000.0);
            let cells = [
                (10, 0, median(&|sample| Some(sample.operations as f64))),
                (10, 0, median(&|sample| sample.figures.get("objects").copied())),
                (8, 3, percent("hit_ratio")),
                (10, 3, percent("byte_hit_ratio")),
                (10, 0, median(&|sample| Some(sample.rate()))),
                (9, 2, median(&|sample| sample.server_cpu_ns_each().map(|ns| ns / 1_000.0))),
                (9, 1, us(50.0)),
                (9, 1, us(99.0)),
            ];
            let _ = write!(text, "{:<width$} {name:<names$}", trace_name(case));
            for (width, digits, value) in cells {
                let _ = match value.is_finite() {
                    true => write!(text, " {value:>width$.digits$}"),
                    false => write!(text, " {:>width$}", "-"),
                };
            }
            if compares {
                let [hits, ..] =
                    results.ratio(name, base, case, |sample| sample.figures.get("hit_ratio").copied());
                let [rate, ..] = results.ratio(name, base, case, |sample| Some(sample.rate()));
                let _ = write!(text, " {hits:>7.4} {rate:>7.3}");
            }
            text.push_str(&notes(results, name, case));
            text.push('\n');
        }
    }
    text.push_str(LEGEND);
    text
}

/// Returns the remarks needed to interpret a row.
fn notes(results: &Results, target: &str, case: &Case) -> String {
    let most = |figure: &str| {
        let all = results.rounds(target, case).filter_map(|sample| sample.figures.get(figure));
        all.copied().fold(0.0, f64::max)
    };
    let mut text = String::new();
    for (figure, said) in [
        ("refused", "changes refused"),
        ("skipped_records", "malformed records skipped"),
        ("late_ms", "ms late at worst"),
    ] {
        if most(figure) > 0.0 {
            let _ = write!(text, "  ({} {said})", most(figure));
        }
    }
    let busy = |sample: &Sample| Some(sample.client_cpu_ns? as f64 / sample.elapsed_ns.max(1) as f64);
    let busy = results.rounds(target, case).filter_map(busy).fold(0.0, f64::max);
    if busy > BUSY_PART {
        let _ = write!(
            text,
            "  (the client was busy {:.0}% of the time: this is its limit)",
            100.0 * busy.min(1.0)
        );
    }
    text
}

fn trace_name(case: &Case) -> String {
    case.parameters.get("trace").map(ToString::to_string).unwrap_or_default()
}
