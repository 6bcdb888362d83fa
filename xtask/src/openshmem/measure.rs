//! Runs the brief form of `fabcache bench openshmem`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::differential;
use crate::process::{self, Interrupt, Scratch};
use crate::test_results::{Results, indented};

/// It takes some seconds.
const TIME_MAX: Duration = Duration::from_secs(180);
/// The caches, and their flags.
const CACHES: [(&str, &str); 2] = [("slots", " --openshmem-offload"), ("mutex", " --openshmem-mutex")];

/// Measures two caches briefly, one of them with mutexes, beside OpenSHMEM and memcached.
///
/// # Errors
/// Something cannot be started.
pub fn run(tool: &Path, server: &Path, interrupt: &Interrupt, results: &mut Results) -> Result<()> {
    let scratch = Scratch::create()?;
    let json = scratch.path().join("results.json");
    let mut command = Command::new(tool);
    command.args(["bench", "openshmem", "--quick", "--json"]).arg(&json).env("TMPDIR", scratch.path());
    command.args(CACHES.map(|(name, flags)| format!("{name}={}{flags}", server.display())));
    command.arg("--against").arg(format!("memcached={}", differential::their_program(None)?.display()));
    let begun = Instant::now();
    let run = process::run(&mut command, scratch.path(), TIME_MAX, interrupt)?;
    let output = format!("{}{}", run.stdout, run.stderr);
    let outcome = match run.failure {
        Some(failure) => Err(failure),
        None => figures(&process::read(&json), &["OpenSHMEM", "slots", "mutex", "memcached"])
            .map(|count| format!(", {count} figures\n{}", indented(&run.stdout)))
            .map_err(|error| format!("{error:#}")),
    };
    results.add("bench openshmem", &output, outcome, begun.elapsed())
}

/// Returns the number of figures in results, of which each target has as many.
fn figures(json: &str, targets: &[&str]) -> Result<usize> {
    let results: Value = serde_json::from_str(json).context("the results are not JSON")?;
    let figures = results["figures"].as_array().context("the results have no figures")?;
    for target in targets {
        let of = figures.iter().filter(|figure| figure["target"] == *target);
        let valid = of.filter(|figure| figure["p50_ns"].as_f64().is_some_and(|time| time > 0.0)).count();
        let expected = figures.len() / targets.len();
        ensure!(valid == expected && valid > 0, "{valid} of {expected} figures of {target}");
    }
    Ok(figures.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_without_figures_of_a_target_are_rejected() {
        let figure = |target: &str, time: f64| format!("{{\"target\":\"{target}\",\"p50_ns\":{time}}}");
        let of = |all: &[String]| figures(&format!("{{\"figures\":[{}]}}", all.join(",")), &["a", "b"]);
        assert_eq!(of(&[figure("a", 1.0), figure("b", 2.0)]).expect("all is there"), 2);
        let broken = [
            vec![],
            vec![figure("a", 1.0)],
            vec![figure("a", 1.0); 2],
            vec![figure("a", 1.0), figure("b", 0.0)],
        ];
        for all in broken {
            assert!(of(&all).is_err(), "{all:?}");
        }
        assert!(figures("", &[]).is_err());
    }
}
