//! Measures caches over OpenSHMEM: `fabcache bench openshmem 'slots=fabcached --openshmem-offload' 'mutex=fabcached --openshmem-mutex'`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fabcache_bench::openshmem::report::Results;
use fabcache_bench::openshmem::servers::{Servers, Source};
use fabcache_bench::openshmem::{self, Plan};
use fabcache_bench::report::{Header, ServersHeader, save};
use fabcache_shmem::{Job, environment};

use super::output;

/// The caches, the sizes, and the duration.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Caches: NAME=PROGRAM with flags is started as a job of two PEs; NAME=unix:///PATH is the socket of a PE of a running job.
    /// Without one, OpenSHMEM is measured by itself
    #[arg(value_name = "NAME=PROGRAM|ADDRESS")]
    caches: Vec<Source>,
    /// Another server to compare with, such as memcached
    #[arg(long, value_name = "NAME=PROGRAM|ADDRESS")]
    against: Option<Source>,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 512, 4096, 16_384, 65_536, 262_144])]
    sizes: Vec<usize>,
    /// Number of interleaved rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of a round
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Use few sizes and short rounds, for a check in seconds
    #[arg(long, conflicts_with_all = ["sizes", "rounds", "seconds"])]
    quick: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Maximum value size, which servers accept by default.
const BYTES_MAX: usize = 1_000_000;

impl Arguments {
    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.caches.iter().chain(&self.against)
    }

    /// Returns the sizes, rounds and seconds of a run.
    fn amount(&self) -> Result<(Vec<usize>, u32, f64)> {
        if self.quick {
            return Ok((vec![64, 16_384], 3, 0.03));
        }
        for bytes in &self.sizes {
            ensure!((1..=BYTES_MAX).contains(bytes), "a size is from 1 to {BYTES_MAX} bytes, not {bytes}");
        }
        ensure!(
            self.seconds.is_finite() && self.seconds > 0.0 && self.seconds <= 60.0,
            "--seconds is more than 0 and at most 60"
        );
        Ok((self.sizes.clone(), self.rounds, self.seconds))
    }
}

/// Returns whether this process is a PE of the benchmark's own job.
pub fn is_in_job() -> bool {
    environment::place_in_job().is_some()
}

/// Starts the servers, and the benchmark's own job.
///
/// # Errors
/// A server or the job does not start, or the job fails.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (sizes, rounds, seconds) = arguments.amount()?;
    output::check(&[("--json", arguments.json.as_deref())])?;
    let servers = Servers::start(&arguments.caches, arguments.against.as_ref())?;
    let mut command = servers.launcher();
    command.arg(std::env::current_exe().context("this program is not found")?);
    command.args(["bench", "openshmem"]).args(&servers.caches);
    if let Some(against) = &servers.against {
        command.arg("--against").arg(against);
    }
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    command.arg("--sizes").arg(sizes.join(","));
    command.arg("--rounds").arg(rounds.to_string()).arg("--seconds").arg(seconds.to_string());
    if let Some(json) = &arguments.json {
        command.arg("--json").arg(std::path::absolute(json)?);
    }
    let status = command.status().context("oshrun cannot be started (Debian: openmpi-bin)")?;
    ensure!(status.success(), "the benchmark's job failed: {status}");
    Ok(())
}

/// Measures as one PE of the benchmark's own job, and prints a table in the first. Ends the process.
///
/// # Errors
/// An argument does not make sense, or there is no OpenSHMEM.
///
/// # Safety
/// The process has started no other thread.
pub unsafe fn run_in_job(arguments: &Arguments) -> Result<()> {
    let (sizes, rounds, seconds) = arguments.amount()?;
    let mut servers = Vec::new();
    for source in arguments.sources() {
        match source {
            Source::Address(name, address) => servers.push((name.clone(), address.clone())),
            Source::Program(program) => bail!(
                "{} is a program, which the benchmark starts only outside of a job; leave oshrun out",
                program.name
            ),
        }
    }
    let largest = sizes.iter().copied().max().context("no size is given")?;
    // SAFETY: there is no other thread, by this function's own contract.
    unsafe { environment::prepare(2 * largest as u64) };
    let job = Job::start()?;
    let plan = Plan { sizes, rounds, round: Duration::from_secs_f64(seconds), servers };
    if let Err(error) = measure(&job, &plan, arguments.json.as_deref()) {
        eprintln!("fabcache: {error:#}");
        job.leave(1);
    }
    job.finish(0)
}

fn measure(job: &Job, plan: &Plan, json: Option<&Path>) -> Result<()> {
    let mut progress = super::progress();
    let measured = openshmem::measure(job, plan, &mut progress)?;
    progress("");
    let Some((figures, rates)) = measured else { return Ok(()) };
    let method = format!(
        "two PEs of the benchmark on this host; one client thread through the Unix socket of a delegator, keys of the next PE; \
         medians of {} interleaved rounds of {:?}",
        plan.rounds, plan.round
    );
    let header = ServersHeader { run: Header::now(), servers: openshmem::versions(plan)?, method };
    let results = Results { header, figures, rates };
    let kept = json.map_or(Ok(()), |path| save(&results, path));
    output::print(&results.table())?;
    kept
}
