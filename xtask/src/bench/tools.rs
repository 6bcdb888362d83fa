//! Compares `fabcache bench` with other tools on the same work, in interleaved rounds.
//!
//! Servers run on one CPU and clients on another, if there are two.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::ProgramsUnderTest;
use crate::process::{self, Interrupt, Scratch};
use crate::servers::{Programs, Server, Transport};

/// Time limit of a round, which takes seconds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(120);

/// The CPUs of clients and servers.
const CLIENT_CPU: usize = 1;
const SERVER_CPU: usize = 0;

/// Enough memory that nothing is evicted.
const MEMORY_MIB: u32 = 1024;

/// Mean key and value lengths of memcslap, whose keys have 20 to 59 bytes and values 50 to 5,000.
const KEY_BYTES: u32 = 39;
const VALUE_BYTES: u32 = 1_695;

/// memcaslap's work: nine gets per set, keys of 20 bytes, values of 400.
const MEMCASLAP_WORK: &str = "key\n20 20 1\nvalue\n400 400 1\ncmd\n0 0.1\n1 0.9\n";
/// Numbers of clients, and keys of each of memcaslap's clients.
const CLIENTS: [u32; 2] = [4, 16];
const KEYS_OF_A_CLIENT: u32 = 1 << 10;
/// The number of keys in memcaslap's notation.
const WINDOW: &str = "1k";
/// Maximum misses per thousand gets; with more, the work would differ.
const MISSES_PER_THOUSAND_MAX: u64 = 10;

/// The amount of work.
#[derive(Clone, Copy)]
pub(super) struct Amount {
    pub(super) rounds: u32,
    pub(super) calls: u32,
    pub(super) seconds: u32,
}

/// Runs the work with a tool and returns the figure.
type Measure = Box<dyn Fn(&Runner<'_>) -> Result<f64>>;

/// A comparison: the same work for both tools.
struct Row {
    name: String,
    theirs: Measure,
    ours: Measure,
    figures: Vec<[f64; 2]>,
}

/// Runs programs, and knows the servers and CPUs.
struct Runner<'a> {
    under_test: &'a ProgramsUnderTest,
    server: &'a Server,
    scratch: &'a Path,
    pinned: bool,
    interrupt: &'a Interrupt,
}

/// Runs the comparisons, and prints tables.
///
/// # Errors
/// A server does not start; a tool fails, or prints something unknown.
pub(super) fn run(under_test: &ProgramsUnderTest, amount: Amount, interrupt: &Interrupt) -> Result<()> {
    let pinned = std::thread::available_parallelism()?.get() > CLIENT_CPU;
    if !pinned {
        println!("there is one CPU: servers and clients share it");
    }
    let programs = Programs { memory_mib: MEMORY_MIB, ..under_test.programs.clone() };
    for transport in [Transport::MemcachedTcp, Transport::MemcachedUnix] {
        let scratch = Scratch::create()?;
        let server = Server::start(&programs, transport, scratch.path(), 0, interrupt)?;
        if pinned {
            server.pin_to(SERVER_CPU)?;
        }
        let runner = Runner { under_test, server: &server, scratch: scratch.path(), pinned, interrupt };
        let mut calls = Vec::new();
        for binary in [false, true] {
            for operation in ["get", "set"] {
                calls.push(latency(transport, operation, binary, amount.calls));
            }
        }
        let title = format!("{}: us for a call", transport.name());
        runner.compare(&title, "memcslap", &mut calls, amount.rounds)?;
        if transport.is_local() {
            // memcaslap does not support Unix sockets.
            continue;
        }
        let rows = CLIENTS.iter().flat_map(|clients| [(*clients, false), (*clients, true)]);
        let mut rates: Vec<Row> =
            rows.map(|(clients, binary)| throughput(transport, clients, binary, amount.seconds)).collect();
        let title = format!("{}: operations a second, 1 thread", transport.name());
        runner.compare(&title, "memcaslap", &mut rates, amount.rounds)?;
    }
    Ok(())
}

/// Compares memcaslap with `throughput`.
fn throughput(transport: Transport, clients: u32, binary: bool, seconds: u32) -> Row {
    let protocol = if binary { "binary" } else { "text" };
    let theirs = move |runner: &Runner<'_>| {
        let work = runner.scratch.join("memcaslap");
        std::fs::write(&work, MEMCASLAP_WORK)?;
        let mut command = runner.command(Path::new("memcaslap"));
        command.arg(format!("--servers={}", runner.server.address())).arg("-F").arg(&work);
        command.args(["-T", "1", "-c", &clients.to_string(), "-t", &format!("{seconds}s")]);
        command.args(["-w", WINDOW]).args(binary.then_some("--binary"));
        rate_of_memcaslap(&runner.output(&mut command)?)
    };
    let ours = move |runner: &Runner<'_>| {
        let number = [clients, seconds, clients * KEYS_OF_A_CLIENT].map(|number| number.to_string());
        let names = ["--clients", "--seconds", "--keys"];
        let mut arguments: Vec<&str> = vec!["throughput", "--protocol", protocol, "--threads", "1"];
        arguments.extend(["--sizes", "400", "--get-share", "0.9", "--key-bytes", "20"]);
        arguments.extend(names.iter().zip(&number).flat_map(|(name, number)| [*name, number]));
        let sample = runner.sample(transport, &arguments)?;
        let figure = |name: &str| sample[name].as_f64().with_context(|| format!("no {name}"));
        Ok(figure("operations")? / figure("elapsed_ns")? * 1e9)
    };
    Row {
        name: format!("{clients} clients, {protocol}"),
        theirs: Box::new(theirs),
        ours: Box::new(ours),
        figures: Vec::new(),
    }
}

/// Compares memcslap with `latency`.
fn latency(transport: Transport, operation: &'static str, binary: bool, calls: u32) -> Row {
    let protocol = if binary { "binary" } else { "text" };
    let theirs = move |runner: &Runner<'_>| {
        let mut command = runner.command(Path::new("memcslap"));
        // Keys differ between runs: without a flush the server would evict.
        command.args(["--flush", "--concurrency=1", &format!("--test={operation}")]);
        command
            .arg(format!("--execute-number={calls}"))
            .arg(format!("--servers={}", runner.server.address()));
        command.args(binary.then_some("--binary"));
        us_of_memcslap(&runner.output(&mut command)?, operation, calls)
    };
    let ours = move |runner: &Runner<'_>| {
        let number = [VALUE_BYTES, VALUE_BYTES, KEY_BYTES, calls, calls].map(|number| number.to_string());
        let names = ["--min", "--max", "--key-bytes", "--iterations", "--keys"];
        let mut arguments: Vec<&str> = vec!["latency", "-b", operation, "--protocol", protocol];
        arguments.extend(names.iter().zip(&number).flat_map(|(name, number)| [*name, number]));
        let sample = runner.sample(transport, &arguments)?;
        let figure = |name: &str| sample[name].as_f64().with_context(|| format!("no {name}"));
        Ok(figure("elapsed_ns")? / figure("operations")? / 1e3)
    };
    Row {
        name: format!("{operation}, {protocol} protocol"),
        theirs: Box::new(theirs),
        ours: Box::new(ours),
        figures: Vec::new(),
    }
}

impl Runner<'_> {
    fn command(&self, program: &Path) -> Command {
        if !self.pinned {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &CLIENT_CPU.to_string()]).arg(program);
        command
    }

    /// Returns the output of a command.
    fn output(&self, command: &mut Command) -> Result<String> {
        let run = process::run(command, self.scratch, ROUND_TIME_MAX, self.interrupt)?;
        ensure!(
            run.failure.is_none(),
            "{command:?}: {}\n{}{}",
            run.failure.unwrap_or_default(),
            run.stdout,
            run.stderr
        );
        Ok(run.stdout)
    }

    /// Returns the single sample of a brief run of `fabcache bench`.
    fn sample(&self, transport: Transport, arguments: &[&str]) -> Result<Value> {
        let json = self.scratch.join("results.json");
        let scheme = if transport.is_local() { "unix" } else { "tcp" };
        let mut command = self.command(&self.under_test.tool);
        command.arg("bench").args(arguments).args(["--rounds", "1", "--no-ceiling", "--server"]);
        command.arg(format!("{scheme}://{}", self.server.address())).arg("--json").arg(&json);
        self.output(&mut command)?;
        let results: Value =
            serde_json::from_str(&process::read(&json)).context("the results are no JSON")?;
        let samples = results["samples"].as_array().context("the results have no samples")?;
        ensure!(samples.len() == 1, "{command:?} took {} samples, not one", samples.len());
        Ok(samples[0].clone())
    }

    /// Runs rounds, and prints medians.
    fn compare(&self, title: &str, tool: &str, rows: &mut [Row], rounds: u32) -> Result<()> {
        for round in 0..rounds {
            for row in rows.iter_mut() {
                let mut figures = [0.0; 2];
                // Alternate, so that neither always comes first.
                for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let measure = if which == 0 { &row.ours } else { &row.theirs };
                    figures[which] = measure(self).with_context(|| row.name.clone())?;
                }
                row.figures.push(figures);
            }
        }
        println!("{title}, {rounds} rounds");
        println!("{:<26} {:>14} {tool:>14} {:>8} {:>16}", "", "fabcache bench", "ratio", "least, greatest");
        for row in rows {
            let of = |figure: fn(&[f64; 2]) -> f64| sorted(row.figures.iter().map(figure));
            let (ours, theirs) = (of(|figures| figures[0]), of(|figures| figures[1]));
            let ratios = of(|figures| figures[0] / figures[1]);
            let middle = ratios.len() / 2;
            println!(
                "{:<26} {:>14.1} {:>14.1} {:>8.3} {:>8.3} {:>7.3}",
                row.name,
                ours[middle],
                theirs[middle],
                ratios[middle],
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
        Ok(())
    }
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures
}

/// Parses `Time to get   100 keys by    1 threads:     0.359 seconds.` All keys must have been found.
fn us_of_memcslap(text: &str, operation: &str, calls: u32) -> Result<f64> {
    let unknown = || format!("memcslap printed:\n{text}");
    let start = format!("Time to {operation}");
    let line = text.lines().find(|line| line.starts_with(&start) && line.contains("threads:"));
    let words: Vec<&str> = line.with_context(unknown)?.split_whitespace().collect();
    let done: u32 = words.get(3).and_then(|word| word.parse().ok()).with_context(unknown)?;
    ensure!(done == calls, "memcslap did {done} of {calls}: the server evicts");
    let seconds =
        words.iter().rev().nth(1).and_then(|word| word.parse::<f64>().ok()).with_context(unknown)?;
    Ok(seconds * 1e6 / f64::from(calls))
}

/// Parses the third number of `Run time: 2.0s Ops: 91643 TPS: 45815 Net_rate: 20.3M/s`, if the gets
/// found values.
fn rate_of_memcaslap(text: &str) -> Result<f64> {
    let unknown = || format!("memcaslap printed:\n{text}");
    let number = |name: &str| {
        let mut words = text.split_whitespace().skip_while(|word| *word != name);
        words.nth(1).and_then(|word| word.parse::<u64>().ok()).with_context(unknown)
    };
    let (gets, misses) = (number("cmd_get:")?, number("get_misses:")?);
    ensure!(misses * 1_000 <= gets * MISSES_PER_THOUSAND_MAX, "{misses} of memcaslap's {gets} gets missed");
    Ok(number("TPS:")? as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcslap_output_is_parsed() {
        let text = "Time to set            5000 keys:                     0.380 seconds.\n\
                    ---\nTime to get            5000 keys by    1 threads:     0.350 seconds.\n";
        assert_eq!(us_of_memcslap(text, "get", 5_000).expect("it is there"), 70.0);
        let error = us_of_memcslap(text, "get", 5_001).expect_err("one is missing").to_string();
        assert!(error.contains("5000 of 5001"), "{error}");
        assert!(us_of_memcslap(text, "set", 5_000).is_err(), "that is how it fills the server");
        assert!(us_of_memcslap("", "get", 1).is_err());
    }

    #[test]
    fn memcaslap_output_is_parsed() {
        let of = |misses: u64| {
            rate_of_memcaslap(&format!(
                "cmd_get: 82477\ncmd_set: 9166\nget_misses: {misses}\n\n\
                 Run time: 2.0s Ops: 91643 TPS: 45815 Net_rate: 20.3M/s\n"
            ))
        };
        assert_eq!(of(0).expect("it is there"), 45_815.0);
        assert!(of(5_000).is_err() && rate_of_memcaslap("").is_err());
    }
}
