//! The options and the run that restart and hybrid flash share: both start the servers of each case themselves.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use fabcache_bench::experiment::{self, Experiment, MeasuredTarget, Plan};
use fabcache_bench::html;
use fabcache_bench::results::Results;

use super::common::Bar;
use super::output;

/// Rounds of a full run.
const ROUNDS: u32 = 5;

/// How long to run, and where the results go.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Rounds of each case on each server [default: 5, with --quick 1]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run small and short
    #[arg(long)]
    pub quick: bool,
    /// Compare every byte of every value
    #[arg(long)]
    pub verify: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as a page: one HTML file without external resources
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl RunArguments {
    /// Checks that the results can be written.
    ///
    /// # Errors
    /// They cannot.
    pub fn check(&self) -> Result<()> {
        output::check(&[("--json", self.json.as_deref()), ("--report", self.report.as_deref())])
    }

    /// Runs the experiment, and prints its table.
    ///
    /// # Errors
    /// A server does not start, stop or answer rightly, or the results cannot be written.
    pub fn run(
        &self,
        experiment: &impl Experiment,
        targets: &[MeasuredTarget<'_>],
        table: fn(&Results) -> String,
    ) -> Result<()> {
        let rounds = self.rounds.unwrap_or(if self.quick { 1 } else { ROUNDS });
        let bar = Bar::default();
        let plan = Plan { rounds, ..Plan::default() };
        let results = experiment::run(experiment, targets, &plan, &bar);
        bar.finish();
        let results = results?;
        let text = format!("{}\n{}\n\n{}", results.run.machine, results.method, table(&results));
        // Try all outputs, so that a failure of one does not lose the others.
        let kept = self.json.as_deref().map_or(Ok(()), |path| results.save(path));
        let page = |path| html::save(vec![(experiment.name().to_owned(), results)], path);
        let reported = self.report.as_deref().map_or(Ok(()), page);
        let printed = output::print(&text);
        kept.and(reported).and(printed)
    }
}
