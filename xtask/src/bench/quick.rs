//! Runs every subcommand briefly; checks that it succeeds, that it measured something, and that
//! responses were verified.
//!
//! The durations are printed but not checked: they depend on the load of the machine.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::ProgramsUnderTest;
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
    programs(
        "restart",
        &["fabcached={fabcached}", "--base", "memcached={memcached}", "--items", "10000", "--quick"],
    ),
    programs(
        "hybrid",
        &[
            "flash",
            "--fabcached",
            "{fabcached}",
            "--memcached",
            "{memcached}",
            "--quick",
            "--verify",
            "--json",
            "{json}",
        ],
    ),
    programs("policies", &["--quick"]),
    nothing("dummy", "it is a server, which every other measurement uses"),
    nothing("memory", "it fills servers, which takes minutes"),
    nothing("store", "it has no brief form"),
    nothing("fabric", "it needs libfabric; cargo xtask rdma runs its brief form"),
    nothing("openshmem", "it needs OpenSHMEM; cargo xtask openshmem runs its brief form"),
    nothing("report", "it shows other results"),
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
struct Summary {
    samples: usize,
    operations: u64,
    verified: u64,
}

/// Runs all measurements, or those with these names.
///
/// # Errors
/// A name is unknown, or a measurement fails.
pub(super) fn run(under_test: &ProgramsUnderTest, only: &[String], interrupt: &Interrupt) -> Result<()> {
    ensure_all_listed(under_test, interrupt)?;
    for name in only {
        let known = MEASUREMENTS.iter().any(|measurement| measurement.subcommand == name);
        ensure!(known, "unknown measurement {name}");
    }
    let mut failed = 0;
    let wanted = |measurement: &&Measurement| {
        only.is_empty() || only.iter().any(|name| name == measurement.subcommand)
    };
    for measurement in MEASUREMENTS.iter().filter(wanted) {
        let routes: &[Option<Route>] = match measurement.against {
            Against::Urls => &WAYS.map(Some),
            Against::Programs => &[None],
            Against::Nothing(why) => {
                println!("{:<12} is not run: {why}", measurement.subcommand);
                continue;
            }
        };
        for route in routes {
            failed += u32::from(!run_one(under_test, measurement, *route, interrupt)?);
        }
    }
    ensure!(failed == 0, "{failed} brief measurements failed");
    Ok(())
}

/// Checks that every subcommand is listed here; one that is not would never be tested.
fn ensure_all_listed(under_test: &ProgramsUnderTest, interrupt: &Interrupt) -> Result<()> {
    let scratch = Scratch::create()?;
    let mut help = Command::new(&under_test.tool);
    let help = process::run(help.args(["bench", "--help"]), scratch.path(), TIME_MAX, interrupt)?;
    let there = subcommands(&help.stdout);
    ensure!(!there.is_empty(), "fabcache bench --help names no subcommands: {}{}", help.stdout, help.stderr);
    let known: BTreeSet<&str> = MEASUREMENTS.iter().map(|measurement| measurement.subcommand).collect();
    let unknown: Vec<&&str> = there.difference(&known).collect();
    ensure!(unknown.is_empty(), "xtask/src/bench/quick.rs lacks {unknown:?}");
    let gone: Vec<&&str> = known.difference(&there).collect();
    ensure!(gone.is_empty(), "xtask/src/bench/quick.rs lists {gone:?}, which do not exist");
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

/// Runs one measurement and prints the outcome.
fn run_one(
    under_test: &ProgramsUnderTest,
    measurement: &Measurement,
    route: Option<Route>,
    interrupt: &Interrupt,
) -> Result<bool> {
    let scratch = Scratch::create()?;
    let mut command = Command::new(&under_test.tool);
    // The error says what failed; a backtrace adds nothing.
    command.args(["bench", measurement.subcommand]).env("RUST_BACKTRACE", "0");
    let memcached = under_test.programs.memcached.to_string_lossy();
    let fabcached = under_test.programs.fabcached.to_string_lossy();
    let json = scratch.path().join("results.json");
    for argument in measurement.arguments {
        let argument = argument.replace("{memcached}", &memcached).replace("{fabcached}", &fabcached);
        command.arg(argument.replace("{json}", &json.to_string_lossy()));
    }
    let mut server = None;
    if let Some(route) = route {
        let started = Server::start(&under_test.programs, route.transport, scratch.path(), 0, interrupt)?;
        command.arg("--server").arg(format!("{}://{}", route.scheme, started.address()));
        command.arg("--json").arg(&json);
        server = Some(started);
    }
    let began = Instant::now();
    let run = process::run(&mut command, scratch.path(), TIME_MAX, interrupt)?;
    let seconds = began.elapsed().as_secs_f64();
    let mut faults: Vec<String> = run.failure.iter().cloned().collect();
    let mut reported = String::new();
    let tells = server.is_some() || measurement.arguments.contains(&"{json}");
    if run.failure.is_none() && tells {
        match found(&process::read(&json)) {
            Ok(found) => reported = found.to_string(),
            Err(error) => faults.push(format!("{error:#}")),
        }
    }
    if let Some(server) = &mut server {
        faults.extend(server.fault());
    }
    let name = route.map_or("servers of its own", |route| route.name);
    let result = if faults.is_empty() { "ok" } else { "FAILED" };
    println!("{:<12} {name:<26} {result:<6} {seconds:>6.1} s  {reported}", measurement.subcommand);
    if !faults.is_empty() {
        println!("{command:?}\n{}\n{}{}", faults.join("\n"), run.stdout, run.stderr);
    }
    Ok(faults.is_empty())
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} samples, {} operations, {} answers compared",
            self.samples, self.operations, self.verified
        )
    }
}

/// Summarizes and checks results.
fn found(json: &str) -> Result<Summary> {
    let results: Value = serde_json::from_str(json).context("the results are not JSON")?;
    let samples = results["samples"].as_array().context("the results have no samples")?;
    let mut found = Summary { samples: samples.len(), ..Summary::default() };
    for sample in samples {
        let number = |name: &str| sample[name].as_u64().with_context(|| format!("a sample has no {name}"));
        let (operations, errors) = (number("operations")?, number("errors")?);
        if operations == 0 || errors > 0 || number("elapsed_ns")? == 0 {
            bail!("a sample with {operations} operations and {errors} errors: {}", sample["operation"]);
        }
        found.operations += operations;
        found.verified += number("verified")?;
    }
    ensure!(found.samples > 0, "no samples");
    ensure!(found.verified > 0, "no answer was compared");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_are_read_from_help() {
        let help = "Measures\n\nUsage: bench\n\nCommands:\n  latency  Measures how long\n           it takes\n  dummy    A server\n\nOptions:\n  -h  Help\n";
        assert_eq!(subcommands(help), ["dummy", "latency"].into());
        assert!(subcommands("nothing").is_empty());
    }

    #[test]
    fn results_without_work_or_comparisons_are_rejected() {
        let sample = |operations: u64, errors: u64, verified: u64| {
            format!(
                "{{\"operation\":\"get\",\"operations\":{operations},\"errors\":{errors},\"verified\":{verified},\"elapsed_ns\":5}}"
            )
        };
        let of = |samples: &[String]| found(&format!("{{\"samples\":[{}]}}", samples.join(",")));
        let fine = of(&[sample(3, 0, 0), sample(4, 0, 4)]).expect("all is well");
        assert_eq!(fine, Summary { samples: 2, operations: 7, verified: 4 });
        let broken = [vec![], vec![sample(3, 0, 0)], vec![sample(0, 0, 1)], vec![sample(3, 1, 3)]];
        for samples in broken {
            assert!(of(&samples).is_err(), "{samples:?}");
        }
        assert!(found("").is_err() && found("{}").is_err());
    }
}
