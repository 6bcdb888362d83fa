//! Times calls in an unchanged libmemcached program, with Debian's library and with libfabcache.so.
//!
//! The program runs on one CPU and the server on another. Rounds are interleaved, so that other load
//! affects all alike; the medians of the rounds are printed.

use fabcache_testbed::statistics::median;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, Interrupt, Scratch};

use super::differential::compile;
use super::{Subject, folder};
use crate::servers::{Server, Transport};

/// Calls of each kind per round.
const CALLS: u32 = 50_000;

/// Enough rounds for a robust median.
const ROUNDS: usize = 7;

/// Time limit of a round, which takes seconds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(60);

/// The CPUs of the program and of the servers.
const PROGRAM_CPU: usize = 1;
const SERVER_CPU: usize = 0;

/// The 50th and the 99th percentile of a round, in nanoseconds.
type Percentiles = [u64; 2];

/// Measures, and prints a table.
pub(super) fn run(subject: &Subject, interrupt: &Interrupt) -> Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    ensure!(
        cpus > PROGRAM_CPU,
        "two CPUs are needed, one for the program and one for the server; {cpus} is here"
    );
    let program = subject.scratch.join("latency");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile(cc.arg(folder().join("latency.c")).arg("-lmemcached"), interrupt)?;
    let scratch = Scratch::create()?;
    let transports = [Transport::MemcachedUnix, Transport::SharedMemory];
    let mut servers = Vec::new();
    for (number, transport) in transports.into_iter().enumerate() {
        let server = Server::start(&subject.programs, transport, scratch.path(), number, interrupt)?;
        server.pin_to(SERVER_CPU)?;
        servers.push((transport, server));
    }
    let mut rounds: BTreeMap<(usize, bool, String), Vec<Percentiles>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for (number, (_, server)) in servers.iter().enumerate() {
            for preloaded in [false, true] {
                let mut command = Command::new("taskset");
                command.args(["-c", &PROGRAM_CPU.to_string()]).arg(&program);
                command.arg(server.address()).arg(CALLS.to_string());
                if preloaded {
                    command.env("LD_PRELOAD", &subject.library);
                }
                let run = process::run(&mut command, scratch.path(), ROUND_TIME_MAX, interrupt)
                    .context("taskset (Debian: util-linux) is needed")?;
                if let Some(failure) = run.failure {
                    bail!("latency: {failure}\n{}", run.stderr);
                }
                for (call, percentiles) in parse(&run.stdout)? {
                    rounds.entry((number, preloaded, call)).or_default().push(percentiles);
                }
            }
        }
    }
    println!("nanoseconds, medians of {ROUNDS} rounds of {CALLS} calls, 64 bytes, one call at a time");
    println!("{:<26}{:<14}{:<6}{:>9}{:>9}", "server", "library", "call", "p50", "p99");
    for ((number, preloaded, call), rounds) in rounds {
        let library = if preloaded { "libfabcache" } else { "libmemcached" };
        let server = match (servers[number].0, preloaded) {
            (Transport::SharedMemory, false) => "fabcached, Unix socket",
            (transport, _) => transport.name(),
        };
        let [p50, p99] = [0, 1].map(|which| median(rounds.iter().map(|round| round[which] as f64)));
        println!("{server:<26}{library:<14}{call:<6}{p50:>9}{p99:>9}");
    }
    Ok(())
}

/// Parses the lines `CALL P50 P99`.
fn parse(text: &str) -> Result<Vec<(String, Percentiles)>> {
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [call, p50, p99] = words[..] else { bail!("not CALL P50 P99: {line}") };
            Ok((call.to_owned(), [p50.parse()?, p99.parse()?]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_output_is_parsed() {
        let parsed = parse("get 12 34\nset 56 78\n").expect("two lines");
        assert_eq!(parsed, [("get".to_owned(), [12, 34]), ("set".to_owned(), [56, 78])]);
        assert!(parse("get 12\n").is_err());
    }
}
