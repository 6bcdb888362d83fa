//! `fabcache bench trace`: traces replayed on servers.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabcache_bench::trace::generate::{Kind, Shape};
use fabcache_bench::trace::plan::Plan;
use fabcache_bench::trace::reader::Format;
use fabcache_bench::trace::replay::{Replay, Source, WINDOW, WINDOW_MAX, table};

use super::common::Common;
use super::policies::kind;

/// Rounds of a full run: items cached in one round are present in the next.
const ROUNDS: u32 = 1;

/// The traces, and how they are replayed.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Recorded traces, `-` for standard input: records of 24 bytes (libCacheSim's oracleGeneral), or Twitter's lines of
    /// timestamp, key, key size, value size, client, operation, TTL
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Synthetic traces [default: some, unless files are given]
    #[arg(long = "trace", value_name = "NAME", value_delimiter = ',', value_parser = kind)]
    traces: Vec<Kind>,
    /// Format of the files: auto, oracle or csv
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = format)]
    format: TraceFormat,
    /// Skip malformed records, and count them
    #[arg(long)]
    skip_malformed: bool,
    /// Maximum number of requests of each trace
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,
    /// Maximum number of gets and sets in flight; with 1 each is awaited, and gets are timed
    #[arg(long, value_name = "NUMBER", default_value_t = WINDOW)]
    window: usize,
    /// Do not store a key after a miss
    #[arg(long)]
    no_fill: bool,
    /// Replay at this multiple of the trace's speed [default: as fast as possible]
    #[arg(long, value_name = "FACTOR", conflicts_with = "quick")]
    speed: Option<f64>,
    /// Divide times to live by --speed
    #[arg(long, requires = "speed")]
    scale_ttl: bool,
    /// Flush the servers before each round: ALL cached items are lost
    #[arg(long)]
    flush: bool,
    /// Scale of synthetic traces; 1 is about a million objects and four million requests
    #[arg(long, value_name = "FACTOR", conflicts_with = "quick")]
    scale: Option<f64>,
    /// Seed of synthetic traces
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct TraceFormat(Option<Format>);

fn format(name: &str) -> Result<TraceFormat> {
    Format::of_name(name).map(TraceFormat)
}

/// Runs the replay, and prints a table.
///
/// # Errors
/// A trace cannot be read or is malformed, a server fails or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let window = arguments.window;
    ensure!((1..=WINDOW_MAX).contains(&window), "--window {window}: give from 1 to {WINDOW_MAX}");
    ensure!(arguments.limit != Some(0), "--limit 0: give at least 1");
    for (name, factor) in [("--speed", arguments.speed), ("--scale", arguments.scale)] {
        let is_sound = factor.is_none_or(|factor| factor > 0.0 && factor.is_finite());
        ensure!(is_sound, "{name} {}: give a number above 0", factor.unwrap_or_default());
    }
    ensure!(arguments.scale.is_none_or(|scale| scale <= 100.0), "--scale: give at most 100");
    for path in arguments.files.iter().filter(|path| path.as_os_str() != "-") {
        // Reported before earlier traces are replayed.
        std::fs::metadata(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
    }
    let files = arguments.files.iter().map(|path| Source::of_path(path));
    let sources = arguments.traces.iter().copied().map(Source::Synthetic).chain(files).collect();
    let standard = Plan::new(common.quick, common.verify);
    let Shape { scale, speed, .. } = standard.shape;
    let plan = Plan {
        shape: Shape { scale: arguments.scale.unwrap_or(scale), seed: arguments.seed, speed },
        format: arguments.format.0,
        skips_malformed: arguments.skip_malformed,
        requests_max: arguments.limit.unwrap_or(u64::MAX).min(standard.requests_max),
        window,
        fills: !arguments.no_fill,
        speed: arguments.speed,
        scales_ttl: arguments.scale_ttl,
        flushes: arguments.flush,
        verify: common.verify,
    };
    common.measure(&Replay::new(sources, plan), ROUNDS, table)
}
