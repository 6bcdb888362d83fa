//! Runs experiments: cases, each on every target, in interleaved rounds.

mod client_limit;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

pub use self::client_limit::ClientLimits;
use crate::process::{Cpus, pin};
use crate::results::{Case, Results, Sample};
use crate::target::{Target, TargetDescription};

/// An experiment.
pub trait Experiment {
    /// The subcommand's name.
    fn name(&self) -> &'static str;

    /// The method, in a sentence or two, for the interpretation of the figures.
    fn method(&self) -> String;

    /// The measured cases, in order.
    fn cases(&self) -> Vec<Case>;

    /// Returns whether running on the dummy server shows the clients' own limit.
    ///
    /// It does not if clients wait for anything but responses, or miss on purpose.
    fn has_client_limit(&self) -> bool {
        true
    }

    /// Prepares a target for a case: stores the items to read, and connects.
    ///
    /// # Errors
    /// The target does not store, or cannot be reached.
    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>>;
}

/// A prepared case on a target.
pub trait Rounds {
    /// Runs one round: its operations, time, misses, errors and other figures. The caller fills in target and case,
    /// and the servers' CPU time if the round does not report it.
    ///
    /// # Errors
    /// A response is wrong or missing.
    fn round(&mut self, number: u32) -> Result<Sample>;
}

/// The number of rounds, and the CPUs.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rounds of each case on each target.
    pub rounds: u32,
    /// The CPUs of the calling thread, which the clients' threads inherit.
    pub client_cpus: Option<Cpus>,
    /// The CPUs of all servers of this host.
    pub server_cpus: Option<Cpus>,
    /// The command-line tool, to run the dummy server and measure the clients' own limit first.
    pub client_limit: Option<PathBuf>,
}

/// One round in this many is also run with the dummy server.
const LIMIT_EVERY: u32 = 4;

/// Receives progress reports.
pub trait Progress {
    /// Reports the start, with the number of rounds.
    fn begin(&self, rounds: u64);
    /// Reports the start of a round.
    fn round(&self, what: &str);
}

/// A target, and the command that started it, if any.
pub type MeasuredTarget<'t> = (&'t Target, Option<String>);

/// Measures every case on every target.
///
/// # Errors
/// A server fails, or a response is wrong. The error names the case and the target.
pub fn run(
    experiment: &dyn Experiment,
    targets: &[MeasuredTarget<'_>],
    plan: &Plan,
    progress: &dyn Progress,
) -> Result<Results> {
    let described: Result<Vec<TargetDescription>> =
        targets.iter().map(|(target, command)| target.described(command.clone())).collect();
    let mut results = Results::new(experiment.name(), experiment.method(), described?);
    if let Some(cpus) = &plan.server_cpus {
        targets.iter().try_for_each(|(target, _)| target.pin(cpus))?;
    }
    let client_limits = match plan.client_limit.as_deref().filter(|_| experiment.has_client_limit()) {
        Some(program) => ClientLimits::start(
            program,
            targets.iter().map(|(target, _)| *target),
            plan.server_cpus.as_ref(),
        )?,
        None => ClientLimits::none(),
    };
    if let Some(cpus) = &plan.client_cpus {
        pin(None, cpus)?;
    }
    let cases = experiment.cases();
    let rounds = client_limits.len() as u64 * u64::from(plan.rounds.div_ceil(LIMIT_EVERY))
        + targets.len() as u64 * u64::from(plan.rounds);
    progress.begin(cases.len() as u64 * rounds);
    for case in &cases {
        let what = |target: &Target| format!("{} {}, {}", experiment.name(), case.name(), target.name);
        let mut client_limit = client_limits.prepare(experiment, case)?;
        let mut ready = Vec::new();
        for (target, _) in targets {
            ready.push((*target, experiment.prepare(target, case).with_context(|| what(target))?));
        }
        for round in 0..plan.rounds {
            if round % LIMIT_EVERY == 0 {
                client_limit.round(round, |what| progress.round(what))?;
            }
            let turn = |step: usize| if round % 2 == 0 { step } else { ready.len() - 1 - step };
            // Alternate the direction, so that no target always comes first.
            let turns: Vec<usize> = (0..ready.len()).map(turn).collect();
            for index in turns {
                let (target, rounds) = &mut ready[index];
                progress.round(&what(target));
                let sample = measure(target, rounds.as_mut(), round).with_context(|| what(target))?;
                results.samples.push(Sample { case: case.clone(), ..sample });
            }
        }
        for sample in results.samples.iter_mut().filter(|sample| sample.case == *case) {
            sample.ceiling_per_s = sample.ceiling_per_s.or_else(|| client_limit.per_s(&sample.target));
        }
    }
    Ok(results)
}

fn measure(target: &Target, rounds: &mut dyn Rounds, round: u32) -> Result<Sample> {
    let server_before = target.cpu_time();
    let client_before = process_cpu_ns();
    let sample = rounds.round(round)?;
    // Read first, because reading the servers' CPU time takes client time.
    let client_cpu_ns = process_cpu_ns() - client_before;
    let server_cpu = target.cpu_time().zip(server_before).map(|(now, before)| now.saturating_sub(before));
    Ok(Sample {
        target: target.name.clone(),
        round,
        server_cpu_ns: sample.server_cpu_ns.or(server_cpu.map(as_ns)),
        client_cpu_ns: sample.client_cpu_ns.or(Some(client_cpu_ns)),
        ..sample
    })
}

fn as_ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Returns the CPU time of all threads of this process.
pub fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
