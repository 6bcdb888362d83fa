//! `fabcache bench policies`: miss ratios of the store and of reference policies, with the same memory.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fabcache_bench::plot;
use fabcache_bench::policies::EvictionPolicy;
use fabcache_bench::policies::compare::{self, Plan, Progress, Source};
use fabcache_bench::policies::plot::panels;
use fabcache_bench::policies::report::{
    LEGEND, Results, SERVERS_LEGEND, servers_summaries, servers_table, summaries, table,
};
use fabcache_bench::policies::servers;
use fabcache_bench::policies::summary::Summary;
use fabcache_bench::report::{self, Header};
use fabcache_bench::server::MeasuredProgram;
use fabcache_bench::trace::generate::{Kind, Shape};
use fabcache_bench::trace::mix::Mix;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{output, program};

/// Scale of traces with `--quick`.
const QUICK_SCALE: f64 = 0.05;

/// Speed of time in traces for servers.
const SERVERS_SPEED: u32 = 10;

/// The traces and cache sizes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Synthetic traces [default: all, unless files are given]
    #[arg(long = "trace", value_name = "NAME", value_delimiter = ',', value_parser = kind)]
    traces: Vec<Kind>,
    /// Recorded traces: 24-byte little-endian records of time (u32, s), object (u64), bytes (u32), next access (i64)
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also mix each file with patterns of requests: bursts, sessions, scan, one-hit, change
    #[arg(long = "mix", value_name = "NAME", value_delimiter = ',', value_parser = mix, requires = "files")]
    mixes: Vec<Mix>,
    /// Cache sizes in percent of a trace's footprint
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [1.0, 10.0, 30.0])]
    sizes: Vec<f64>,
    /// Scale of synthetic traces; 1 is about a million objects and four million requests
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Use small synthetic traces, for a run in seconds
    #[arg(long, conflicts_with = "scale")]
    quick: bool,
    /// Seed of synthetic traces
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The part of a trace's requests that warms the cache up: misses are also counted after it
    #[arg(long = "warm-up", value_name = "PERCENT", default_value_t = 25.0)]
    warm_up: f64,
    /// What the store evicts: adaptive, s3fifo or lru
    #[arg(long, value_name = "POLICY", default_value = "adaptive", value_parser = eviction, conflicts_with = "server")]
    eviction: EvictionPolicy,
    /// Compare this server with the one of --against at the same memory, instead of policies
    #[arg(long, value_name = "NAME=PROGRAM", requires = "against", value_parser = program, conflicts_with = "plot")]
    server: Option<MeasuredProgram>,
    /// memcached
    #[arg(long, value_name = "NAME=PROGRAM", requires = "server", value_parser = program)]
    against: Option<MeasuredProgram>,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as an SVG figure to this file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Runs the comparison, and prints a table.
///
/// # Errors
/// A trace cannot be read, the store returns a wrong value, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    for size in &arguments.sizes {
        ensure!(*size > 0.0 && *size <= 100.0, "a size of {size}%: give one above 0 and up to 100");
    }
    let scale = if arguments.quick { QUICK_SCALE } else { arguments.scale };
    ensure!(scale > 0.0 && scale <= 100.0, "a scale of {scale}: give one above 0 and up to 100");
    let warm_up = arguments.warm_up;
    ensure!((0.0..100.0).contains(&warm_up), "a warm-up of {warm_up}%: give one from 0 and below 100");
    let mut kinds = arguments.traces.clone();
    if kinds.is_empty() && arguments.files.is_empty() {
        kinds.extend(Kind::ALL);
    }
    // Servers use the wall clock.
    let speed = if arguments.server.is_some() { SERVERS_SPEED } else { 1 };
    let synthetic = kinds.into_iter().map(Source::Synthetic);
    let recorded = |file: &PathBuf| {
        let hybrids = arguments.mixes.iter().map(|mix| Source::Hybrid(file.clone(), *mix));
        [Source::File(file.clone())].into_iter().chain(hybrids).collect::<Vec<_>>()
    };
    let plan = Plan {
        sources: synthetic.chain(arguments.files.iter().flat_map(recorded)).collect(),
        percents: arguments.sizes.clone(),
        shape: Shape { scale, seed: arguments.seed, speed },
        warm_up_percent: warm_up,
        eviction: arguments.eviction,
    };
    output::check(&[("--json", arguments.json.as_deref()), ("--plot", arguments.plot.as_deref())])?;
    let bar = ProgressReporter::default();
    if let (Some(server), Some(against)) = (&arguments.server, &arguments.against) {
        let rows = servers::compare(&plan, against, server, &bar)?;
        bar.0.finish_and_clear();
        let names = [against.name.as_str(), &server.name];
        let summaries = servers_summaries(names, &rows);
        let text = [servers_table(names, &rows), lines(&summaries), SERVERS_LEGEND.into()].join("\n");
        let kept = save(arguments, plan.shape, rows, summaries);
        return output::print(&text).and(kept);
    }
    let rows = compare::compare(&plan, &bar)?;
    bar.0.finish_and_clear();
    let summaries = summaries(&rows);
    let text = [table(&rows), lines(&summaries), LEGEND.into()].join("\n");
    let drawn = arguments.plot.as_deref().map_or(Ok(()), |path| plot::save(&panels(&rows), path));
    let kept = save(arguments, plan.shape, rows, summaries);
    output::print(&text).and(drawn).and(kept)
}

fn lines(summaries: &[Summary]) -> String {
    summaries.iter().map(|summary| format!("{summary}\n")).collect()
}

fn save(
    arguments: &Arguments,
    shape: Shape,
    rows: Vec<impl Serialize>,
    summaries: Vec<Summary>,
) -> Result<()> {
    let Some(path) = &arguments.json else { return Ok(()) };
    let warm_up_percent = arguments.warm_up;
    report::save(&Results { header: Header::now(), shape, warm_up_percent, rows, summaries }, path)
}

/// Returns the synthetic trace of this name.
///
/// # Errors
/// The name is unknown.
pub fn kind(name: &str) -> Result<Kind> {
    let Some(kind) = Kind::of_name(name) else {
        let names = Kind::ALL.map(Kind::name).join(", ");
        bail!("unknown trace {name:?}; the traces are {names}");
    };
    Ok(kind)
}

fn mix(name: &str) -> Result<Mix> {
    Mix::of_name(name).with_context(|| {
        let names = Mix::ALL.map(Mix::name).join(", ");
        format!("unknown pattern {name:?}; the patterns are {names}")
    })
}

fn eviction(name: &str) -> Result<EvictionPolicy> {
    EvictionPolicy::of_name(name).with_context(|| {
        let names = EvictionPolicy::ALL.map(EvictionPolicy::name).join(", ");
        format!("unknown policy {name:?}; the policies are {names}")
    })
}

/// Shows progress on a terminal.
struct ProgressReporter(ProgressBar);

impl Default for ProgressReporter {
    fn default() -> ProgressReporter {
        let style = ProgressStyle::with_template("{msg:24} {wide_bar} {percent:>3}% {eta:>4}");
        let bar = ProgressBar::new(0).with_style(style.expect("the template is right"));
        bar.enable_steady_tick(Duration::from_millis(200));
        ProgressReporter(bar)
    }
}

impl Progress for ProgressReporter {
    fn begin(&self, what: &str, requests: u64) {
        self.0.set_message(what.to_owned());
        self.0.set_length(requests);
        self.0.reset();
    }

    fn advance(&self, requests: u64) {
        self.0.inc(requests);
    }

    fn note(&self, text: &str) {
        if self.0.is_hidden() {
            eprintln!("{text}");
        } else {
            self.0.println(text);
        }
    }
}
