//! Runs every subcommand briefly; checks that it succeeds, that it measured something, and that
//! responses were verified.
//!
//! The durations are printed but not checked: they depend on the load of the machine.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Measured;
use crate::process::{self, Interrupt, Scratch};
use crate::servers::{Server, Transport};

/// Time limit of a brief measurement, which takes ten seconds on an idle machine.
const TIME_MAX: Duration = Duration::from_secs(180);

/// A subcommand with its arguments, and the servers it needs.
struct Measurement {
    subcommand: &'static str,
    arguments: &'static [&'static str],
    against: Against,
}

/// The servers that a measurement needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Against {
    /// Running servers, reached over each transport.
    Urls,
    /// The measurement starts them: programs replace `{fabcached}` and `{memcached}` in its arguments, and
    /// the result file replaces `{json}`, if the results have the format of server results.
    Programs,
    /// None; the reason: it does not measure servers, is no measurement, or takes long.
    Nothing(&'static str),
}

const fn urls(subcommand: &'static str) -> Measurement {
    Measurement { subcommand, arguments: &["--quick", "--verify"], against: Against::Urls }
}

const fn programs(subcommand: &'static str, arguments: &'static [&'static str]) -> Measurement {
    Measurement { subcommand, arguments, against: Against::Programs }
}

const fn nothing(subcommand: &'static str, why: &'static str) -> Measurement {
    Measurement { subcommand, arguments: &[], against: Against::Nothing(why) }
}

/// Every subcommand of `fabcache bench`.
const MEASUREMENTS: &[Measurement] = &[
    urls("latency"),
    urls("nonblocking"),
    urls("blocks"),
    urls("hybrid"),
    urls("throughput"),
    urls("mixture"),
    urls("multiget"),
    urls("dissect"),
    urls("trace"),
    programs(
        "compare",
        &["fabcached={fabcached} --shm", "memcached={memcached}", "--quick", "--verify", "--json", "{json}"],
    ),
    programs("shm", &["fabcached={fabcached}", "--against", "memcached={memcached}", "--quick"]),
    programs("policies", &["--quick"]),
    nothing("dummy", "it is a server, and measured beside every other"),
    nothing("memory", "it fills servers, which takes minutes"),
    nothing("store", "it has no brief form"),
    nothing("fabric", "it needs libfabric; cargo xtask rdma runs its brief form"),
    nothing("report", "it shows what others measured"),
    nothing("help", "it is no measurement"),
];

/// A transport to a server.
#[derive(Clone, Copy)]
struct Route {
    name: &'static str,
    transport: Transport,
    scheme: &'static str,
}

const WAYS: [Route; 5] = [
    Route { name: "memcached, TCP", transport: Transport::MemcachedTcp, scheme: "tcp" },
    Route { name: "memcached, Unix socket", transport: Transport::MemcachedUnix, scheme: "unix" },
    Route { name: "fabcached, TCP", transport: Transport::FabcachedTcp, scheme: "tcp" },
    Route { name: "fabcached, Unix socket", transport: Transport::SharedMemory, scheme: "unix" },
    Route { name: "fabcached, shared memory", transport: Transport::SharedMemory, scheme: "shm" },
];

/// A summary of results.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    samples: usize,
    operations: u64,
    verified: u64,
}

/// Runs all measurements, or those with these names.
///
/// # Errors
/// One is not known here, or fails.
pub(super) fn run(subject: &Measured, only: &[String], interrupt: &Interrupt) -> Result<()> {
    ensure_all_known(subject, interrupt)?;
    for name in only {
        let known = MEASUREMENTS.iter().any(|measurement| measurement.subcommand == name);
        ensure!(known, "there is no subcommand {name} among the measurements");
    }
    let mut failed = 0;
    let wanted = |measurement: &&Measurement| {
        only.is_empty() || only.iter().any(|name| name == measurement.subcommand)
    };
    for measurement in MEASUREMENTS.iter().filter(wanted) {
        let ways: &[Option<Route>] = match measurement.against {
            Against::Urls => &WAYS.map(Some),
            Against::Programs => &[None],
            Against::Nothing(why) => {
                println!("{:<12} is not run: {why}", measurement.subcommand);
                continue;
            }
        };
        for way in ways {
            failed += u32::from(!is_fine(subject, measurement, *way, interrupt)?);
        }
    }
    ensure!(failed == 0, "{failed} brief measurements failed");
    Ok(())
}

/// A subcommand that nobody added here would never be checked.
fn ensure_all_known(subject: &Measured, interrupt: &Interrupt) -> Result<()> {
    let scratch = Scratch::create()?;
    let mut help = Command::new(&subject.tool);
    let help = process::run(help.args(["bench", "--help"]), scratch.path(), TIME_MAX, interrupt)?;
    let there = subcommands(&help.stdout);
    ensure!(!there.is_empty(), "fabcache bench --help names no subcommands: {}{}", help.stdout, help.stderr);
    let known: BTreeSet<&str> = MEASUREMENTS.iter().map(|measurement| measurement.subcommand).collect();
    let unknown: Vec<&&str> = there.difference(&known).collect();
    ensure!(unknown.is_empty(), "xtask/src/bench/quick.rs does not know of {unknown:?}");
    let gone: Vec<&&str> = known.difference(&there).collect();
    ensure!(gone.is_empty(), "xtask/src/bench/quick.rs knows of {gone:?}, which there are not");
    Ok(())
}

/// Returns the subcommands that a help text lists.
fn subcommands(help: &str) -> BTreeSet<&str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.starts_with("  "));
    // Continuation lines are indented further.
    let listed = listed.filter(|line| !line.starts_with("   "));
    listed.filter_map(|line| line.split_whitespace().next()).collect()
}

/// Runs one, and says what became of it.
fn is_fine(
    subject: &Measured,
    measurement: &Measurement,
    way: Option<Route>,
    interrupt: &Interrupt,
) -> Result<bool> {
    let scratch = Scratch::create()?;
    let mut command = Command::new(&subject.tool);
    // The error says what went wrong; a backtrace adds nothing.
    command.args(["bench", measurement.subcommand]).env("RUST_BACKTRACE", "0");
    let memcached = subject.programs.memcached.to_string_lossy();
    let fabcached = subject.programs.fabcached.to_string_lossy();
    let json = scratch.path().join("results.json");
    for argument in measurement.arguments {
        let argument = argument.replace("{memcached}", &memcached).replace("{fabcached}", &fabcached);
        command.arg(argument.replace("{json}", &json.to_string_lossy()));
    }
    let mut server = None;
    if let Some(way) = way {
        let started = Server::start(&subject.programs, way.transport, scratch.path(), 0, interrupt)?;
        command.arg("--server").arg(format!("{}://{}", way.scheme, started.address()));
        command.arg("--json").arg(&json);
        server = Some(started);
    }
    let began = Instant::now();
    let run = process::run(&mut command, scratch.path(), TIME_MAX, interrupt)?;
    let seconds = began.elapsed().as_secs_f64();
    let mut faults: Vec<String> = run.failure.iter().cloned().collect();
    let mut told = String::new();
    let tells = server.is_some() || measurement.arguments.contains(&"{json}");
    if run.failure.is_none() && tells {
        match found(&process::read(&json)) {
            Ok(found) => told = found.to_string(),
            Err(error) => faults.push(format!("{error:#}")),
        }
    }
    if let Some(server) = &mut server {
        faults.extend(server.fault());
    }
    let name = way.map_or("servers of its own", |way| way.name);
    let result = if faults.is_empty() { "ok" } else { "FAILED" };
    println!("{:<12} {name:<26} {result:<6} {seconds:>6.1} s  {told}", measurement.subcommand);
    if !faults.is_empty() {
        println!("{command:?}\n{}\n{}{}", faults.join("\n"), run.stdout, run.stderr);
    }
    Ok(faults.is_empty())
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} samples, {} operations, {} answers compared",
            self.samples, self.operations, self.verified
        )
    }
}

/// Looks at results.
fn found(json: &str) -> Result<Found> {
    let results: Value = serde_json::from_str(json).context("the results are no JSON")?;
    let samples = results["samples"].as_array().context("the results have no samples")?;
    let mut found = Found { samples: samples.len(), ..Found::default() };
    for sample in samples {
        let number = |name: &str| sample[name].as_u64().with_context(|| format!("a sample has no {name}"));
        let (operations, errors) = (number("operations")?, number("errors")?);
        if operations == 0 || errors > 0 || number("elapsed_ns")? == 0 {
            bail!("a sample with {operations} operations and {errors} errors: {}", sample["operation"]);
        }
        found.operations += operations;
        found.verified += number("verified")?;
    }
    ensure!(found.samples > 0, "there are no samples");
    ensure!(found.verified > 0, "no answer was compared");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_text_lists_subcommands() {
        let help = "Measures\n\nUsage: bench\n\nCommands:\n  latency  Measures how long\n           it takes\n  dummy    A server\n\nOptions:\n  -h  Help\n";
        assert_eq!(subcommands(help), ["dummy", "latency"].into());
        assert!(subcommands("nothing").is_empty());
    }

    #[test]
    fn results_without_work_or_comparisons_are_none() {
        let sample = |operations: u64, errors: u64, verified: u64| {
            format!(
                "{{\"operation\":\"get\",\"operations\":{operations},\"errors\":{errors},\"verified\":{verified},\"elapsed_ns\":5}}"
            )
        };
        let of = |samples: &[String]| found(&format!("{{\"samples\":[{}]}}", samples.join(",")));
        let fine = of(&[sample(3, 0, 0), sample(4, 0, 4)]).expect("all is well");
        assert_eq!(fine, Found { samples: 2, operations: 7, verified: 4 });
        let broken = [vec![], vec![sample(3, 0, 0)], vec![sample(0, 0, 1)], vec![sample(3, 1, 3)]];
        for samples in broken {
            assert!(of(&samples).is_err(), "{samples:?}");
        }
        assert!(found("").is_err() && found("{}").is_err());
    }
}
