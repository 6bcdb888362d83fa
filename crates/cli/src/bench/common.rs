//! Options shared by all measurements of servers: the cache, the rounds, the output.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fabcache_bench::experiment::{self, Experiment, Plan, Progress};
use fabcache_bench::html;
use fabcache_bench::process::Cpus;
use fabcache_bench::results::Results;
use fabcache_bench::target::{Target, Url, protocol};
use fabcache_client::Protocol;
use indicatif::{ProgressBar, ProgressStyle};

use super::output;

/// The name of the target of `--server`.
const NAME: &str = "server";

/// Options of every measurement of servers.
#[derive(Debug, Args)]
pub struct Common {
    /// A running server: tcp://HOST:PORT, unix:///PATH, shm:///PATH for the shared memory of the server on
    /// this socket, or fab://HOST:PORT for the server's fabric. Several servers form one cache, over which
    /// keys are spread
    #[arg(long = "server", value_name = "URL", required = true)]
    servers: Vec<Url>,
    /// Protocol over sockets: auto, meta, text or binary
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = protocol)]
    pub protocol: Protocol,
    /// Run small and short, in about ten seconds
    #[arg(long)]
    pub quick: bool,
    /// Compare every byte of every value
    #[arg(long)]
    pub verify: bool,
    /// Bytes of a key
    #[arg(long, value_name = "BYTES", default_value_t = 20)]
    pub key_bytes: usize,
    /// Rounds of each case
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// CPUs of the clients, as 1 or 4-7,9
    #[arg(long, value_name = "CPUS")]
    client_cpus: Option<Cpus>,
    /// CPUs of the servers on this host
    #[arg(long, value_name = "CPUS")]
    pub server_cpus: Option<Cpus>,
    /// Do not measure the client's own limit first, with a server that only answers
    #[arg(long)]
    no_ceiling: bool,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as a page: one HTML file without external resources
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Common {
    /// Returns the measured cache.
    ///
    /// # Errors
    /// A server cannot be reached.
    pub fn target(&self) -> Result<Target> {
        Target::new(NAME, &self.servers, self.protocol)
    }

    /// Measures, prints the table that `table` makes, and keeps the results if requested.
    ///
    /// `rounds` are those of a full run.
    ///
    /// # Errors
    /// A server fails or answers wrongly, or the results cannot be written.
    pub fn measure(
        &self,
        experiment: &dyn Experiment,
        rounds: u32,
        table: impl Fn(&Results) -> String,
    ) -> Result<()> {
        self.measure_all(&[self.target()?], experiment, rounds, table)
    }

    fn check(&self) -> Result<()> {
        let twice = |number: usize| self.servers[..number].contains(&self.servers[number]);
        if let Some(number) = (0..self.servers.len()).find(|number| twice(*number)) {
            bail!("--server {} is given twice", self.servers[number]);
        }
        output::check(&[("--json", self.json.as_deref()), ("--report", self.report.as_deref())])
    }

    /// Returns each server as a separate cache, named after its transport.
    ///
    /// # Errors
    /// A server cannot be reached.
    pub fn targets(&self) -> Result<Vec<Target>> {
        let transports: Vec<&str> = self.servers.iter().map(Url::transport).collect();
        let target = |(number, url): (usize, &Url)| {
            let is_alone =
                transports.iter().filter(|transport| **transport == transports[number]).count() == 1;
            let name = if is_alone { transports[number].to_owned() } else { url.to_string() };
            Target::new(&name, std::slice::from_ref(url), self.protocol)
        };
        self.servers.iter().enumerate().map(target).collect()
    }

    /// Measures several caches as [`Common::measure`] does one.
    ///
    /// # Errors
    /// As for [`Common::measure`].
    pub fn measure_all(
        &self,
        targets: &[Target],
        experiment: &dyn Experiment,
        rounds: u32,
        table: impl Fn(&Results) -> String,
    ) -> Result<()> {
        self.check()?;
        let rounds = self.rounds.unwrap_or(if self.quick { 1 } else { rounds });
        let client_limit = if self.no_ceiling { None } else { Some(this_program()?) };
        let (client_cpus, server_cpus) = (self.client_cpus.clone(), self.server_cpus.clone());
        let plan = Plan { rounds, client_cpus, server_cpus, client_limit };
        let targets: Vec<_> = targets.iter().map(|target| (target, None)).collect();
        let bar = Bar::default();
        let results = experiment::run(experiment, &targets, &plan, &bar);
        bar.finish();
        let results = results?;
        let mut text = format!("{}\n{}\n\n{}", results.run.machine, results.method, table(&results));
        let limits = results.limits();
        if !limits.is_empty() {
            text.push('\n');
            text.push_str(&limits);
        }
        // Try all outputs, so that a failure of one does not lose the others.
        let kept = self.json.as_deref().map_or(Ok(()), |path| results.save(path));
        let page = |path| html::save(vec![(experiment.name().to_owned(), results)], path);
        let reported = self.report.as_deref().map_or(Ok(()), page);
        let printed = output::print(&text);
        kept.and(reported).and(printed)
    }
}

/// Returns the path of this program, which is also the dummy ([`Plan::client_limit`]).
///
/// # Errors
/// The system does not report it.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot tell which program this is; go on with --no-ceiling")
}

/// Shows progress on a terminal.
pub struct Bar(ProgressBar);

impl Default for Bar {
    fn default() -> Bar {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3}% {eta:>4}");
        let bar = ProgressBar::new(0).with_style(style.expect("the template is right"));
        Bar(bar)
    }
}

impl Bar {
    /// Removes the bar, so that others may print.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn begin(&self, rounds: u64) {
        self.0.set_length(rounds);
        // Not earlier: a bar without a length is drawn as a full one.
        self.0.enable_steady_tick(Duration::from_millis(200));
    }

    fn round(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }
}
