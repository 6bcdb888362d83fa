//! `fabcache bench compare`: servers side by side.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabcache_bench::compare::{Comparison, Route, ServerUnderTest, Set, SetOptions, table, words};
use fabcache_bench::experiment::Plan;
use fabcache_bench::html;
use fabcache_bench::process::Cpus;
use fabcache_bench::results::Results;
use fabcache_bench::target::protocol;
use fabcache_client::Protocol;

use super::common::{Bar, this_program};
use super::output;

/// Default CPUs of servers and clients, one each.
const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;

/// The servers and the measurements.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Servers: NAME=PROGRAM, or 'NAME=PROGRAM FLAGS', or NAME=URL of a running one. A program gets
    /// memcached's flags, unless its own flags contain {port} or {socket}. The last is the baseline
    #[arg(required = true, value_name = "SERVER")]
    servers: Vec<ServerUnderTest>,
    /// Measurements, separated by commas: quick, latency, throughput, pipelined, multiget, mixture, nonblocking,
    /// hybrid, blocks, trace, or all
    #[arg(long = "set", value_name = "NAMES", value_delimiter = ',', default_value = "quick")]
    sets: Vec<String>,
    /// Transports, separated by commas: tcp, unix, shm for servers started with --shm, and fab for servers
    /// started with --fabric [default: all that each server supports]
    #[arg(long, value_name = "WAYS", value_delimiter = ',')]
    over: Vec<Route>,
    /// Additional flags of every started server, as '-t 1 -m 1024'
    #[arg(
        long,
        value_name = "FLAGS",
        default_value = "",
        allow_hyphen_values = true,
        hide_default_value = true
    )]
    common_flags: String,
    /// Protocol over sockets: auto, meta, text or binary
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = protocol)]
    protocol: Protocol,
    /// Run small and short: a set of two servers takes about ten seconds
    #[arg(long)]
    quick: bool,
    /// Compare every byte of every value
    #[arg(long)]
    verify: bool,
    /// Bytes of a key
    #[arg(long, value_name = "BYTES", default_value_t = 20)]
    key_bytes: usize,
    /// Rounds of each case on each server [default: 11, with --quick 3]
    #[arg(long, value_name = "NUMBER")]
    rounds: Option<u32>,
    /// CPUs of the servers, as 0 or 0-3,5 [default: 0]
    #[arg(long, value_name = "CPUS", conflicts_with = "no_pin")]
    server_cpus: Option<Cpus>,
    /// CPUs of the clients [default: 1]
    #[arg(long, value_name = "CPUS", conflicts_with = "no_pin")]
    client_cpus: Option<Cpus>,
    /// Do not measure the client's own limit first, with a server that only answers
    #[arg(long)]
    no_ceiling: bool,
    /// Do not pin servers and clients to CPUs
    #[arg(long)]
    no_pin: bool,
    /// Write the results as JSON to this file, or with several sets to a file per set in this folder
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write the results of all sets as one HTML page to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs the sets one by one, and prints a table of each.
///
/// # Errors
/// A server does not start, ends or answers wrongly, or the results cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let comparison = Comparison {
        servers: arguments.servers.clone(),
        over: if arguments.over.is_empty() { Route::ALL.to_vec() } else { arguments.over.clone() },
        common_flags: words(&arguments.common_flags).context("--common-flags")?,
        protocol: arguments.protocol,
    };
    comparison.routes()?;
    let wishes = SetOptions {
        quick: arguments.quick,
        verify: arguments.verify,
        key_bytes: arguments.key_bytes,
        empties: comparison.starts_all(),
    };
    let sets = Set::of_names(&arguments.sets, &wishes)?;
    ensure!(arguments.rounds != Some(0), "--rounds is at least 1");
    let plan = plan(arguments)?;
    let folder = arguments.json.as_deref().filter(|path| sets.len() > 1 || path.is_dir());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let file = arguments.json.as_deref().filter(|_| folder.is_none());
    output::check(&[("--json", file), ("--report", arguments.report.as_deref())])?;
    let mut all = Vec::new();
    for set in &sets {
        let plan = Plan { rounds: arguments.rounds.unwrap_or(set.rounds), ..plan.clone() };
        let bar = Bar::default();
        let results = comparison.run(set, &plan, &bar);
        bar.finish();
        let results = results?;
        let kept = arguments.json.as_deref().map_or(Ok(()), |path| {
            let file = folder.map(|folder| folder.join(format!("{}.json", results.subcommand)));
            results.save(file.as_deref().unwrap_or(path))
        });
        print(&results)?;
        kept?;
        all.push((results.subcommand.clone(), results));
        if let Some(path) = &arguments.report {
            // After each set, so that its results are kept if the next one fails.
            html::save(all.clone(), path)?;
        }
    }
    Ok(())
}

/// Assigns CPUs to servers and clients.
fn plan(arguments: &Arguments) -> Result<Plan> {
    let client_limit = if arguments.no_ceiling { None } else { Some(this_program()?) };
    if arguments.no_pin {
        return Ok(Plan { client_limit, ..Plan::default() });
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(
        cpus >= 2 || (arguments.server_cpus.is_some() && arguments.client_cpus.is_some()),
        "there is one CPU, and servers and clients want one each; --no-pin measures them on it all the same"
    );
    let or = |given: &Option<Cpus>, cpu: usize| Some(given.clone().unwrap_or_else(|| cpu.into()));
    let (server_cpus, client_cpus) =
        (or(&arguments.server_cpus, SERVER_CPU), or(&arguments.client_cpus, CLIENT_CPU));
    Ok(Plan { server_cpus, client_cpus, client_limit, ..Plan::default() })
}

fn print(results: &Results) -> Result<()> {
    let (run, method) = (&results.run, &results.method);
    output::print(&format!("{}, {}\n{method}\n\n{}\n", results.subcommand, run.machine, table(results)))
}
