//! Measures a job's cache: `oshrun -np 2 fabcache bench openshmem --cache unix:///run/pe.0.sock --names pe0,pe1`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabcache_bench::openshmem::{self, CachePlan, Plan, Results};
use fabcache_bench::report::{Header, ServersHeader, save};
use fabcache_client::Address;
use fabcache_shmem::{Job, environment};

use super::output;

/// The cache, the sizes, and the duration. The benchmark is a job of two PEs: start it by oshrun -np 2.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The Unix socket of one PE of a running cache; without one, OpenSHMEM is measured by itself
    #[arg(long, value_name = "unix:///PATH", requires = "names")]
    cache: Option<Address>,
    /// The names of the cache's PEs, in order (--openshmem-name)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    names: Vec<Address>,
    /// The number of the PE whose keys are measured
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    owner: usize,
    /// Another server to compare with, such as memcached
    #[arg(long, value_name = "ADDRESS")]
    against: Option<Address>,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 512, 4096, 16_384, 65_536, 262_144])]
    sizes: Vec<usize>,
    /// Number of interleaved rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of a round
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Maximum value size, which servers accept by default.
const BYTES_MAX: usize = 1_000_000;

impl Arguments {
    fn plan(&self) -> Result<Plan> {
        for bytes in &self.sizes {
            ensure!((1..=BYTES_MAX).contains(bytes), "a size is from 1 to {BYTES_MAX} bytes, not {bytes}");
        }
        ensure!(
            self.seconds.is_finite() && self.seconds > 0.0 && self.seconds <= 60.0,
            "--seconds is more than 0 and at most 60"
        );
        let cache = self.cache.clone().map(|socket| {
            let (count, owner) = (self.names.len(), self.owner);
            ensure!(owner < count, "--owner is less than the number of --names, {count}, not {owner}");
            Ok(CachePlan { socket, names: self.names.clone(), owner })
        });
        Ok(Plan {
            sizes: self.sizes.clone(),
            rounds: self.rounds,
            round: Duration::from_secs_f64(self.seconds),
            cache: cache.transpose()?,
            against: self.against.clone(),
        })
    }
}

/// Runs the benchmark as one PE, and prints a table in the first. Ends the process.
///
/// # Errors
/// There is no job or no OpenSHMEM, or a server does not answer as it should.
pub fn run(arguments: &Arguments) -> Result<()> {
    let plan = arguments.plan()?;
    output::check(&[("--json", arguments.json.as_deref())])?;
    let largest = plan.sizes.iter().copied().max().context("no size is given")?;
    // SAFETY: the process has started no other thread.
    unsafe { environment::prepare(2 * largest as u64) };
    let job = Job::start()?;
    let done = measure(&job, arguments, &plan);
    if let Err(error) = done {
        eprintln!("fabcache: {error:#}");
        job.leave(1);
    }
    job.finish(0)
}

fn measure(job: &Job, arguments: &Arguments, plan: &Plan) -> Result<()> {
    let mut progress = super::progress();
    let measured = openshmem::measure(job, plan, &mut progress)?;
    progress("");
    let Some((figures, rates)) = measured else { return Ok(()) };
    let method = format!(
        "two PEs of the benchmark on this host, {} of the cache; one client thread through the delegator of the first socket, keys of \
         PE {}; medians of {} interleaved rounds of {:?}",
        plan.cache.as_ref().map_or(0, |cache| cache.names.len()),
        arguments.owner,
        plan.rounds,
        plan.round
    );
    let header = ServersHeader { run: Header::now(), servers: super::versions(&[]), method };
    let results = Results { header, figures, rates };
    let kept = arguments.json.as_deref().map_or(Ok(()), |path| save(&results, path));
    output::print(&results.table())?;
    kept
}
