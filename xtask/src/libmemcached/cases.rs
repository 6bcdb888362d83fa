//! Runs libmemcached's own test cases, with its library on memcached and with libfabcache.so on fabcached.
//!
//! Their program is not here, and is not built here. It is a Catch2 program that runs one case by its name, and starts
//! the server that `MEMCACHED_BINARY` names. It must be linked with libmemcached's shared libraries, because a library
//! inside the program would be the one that runs. A case counts if it passes with libmemcached on memcached.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clients::last_lines;
use crate::process::{self, Interrupt, Scratch};

use super::{Subject, folder};

/// The environment's name for the program.
const VARIABLE: &str = "LIBMEMCACHED_TESTS";

/// Time limit of a case; the slowest takes a minute.
const CASE_TIME_MAX: Duration = Duration::from_secs(180);

/// The cases that are run: those of the library, not of the command-line tools.
const CASES: &str = "memcached*";

/// The outcome of a case.
enum CaseOutcome {
    Passed,
    /// It fails with libmemcached on memcached, too.
    FailsAnyway,
    /// The last lines of its output.
    Failed(String),
}

/// Runs every case of the program, if there is one.
///
/// # Errors
/// A case fails that is not listed, or a listed one does not.
pub(super) fn run(subject: &Subject, named: Option<&Path>, interrupt: &Interrupt) -> Result<()> {
    let Some(program) = named.map(PathBuf::from).or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from))
    else {
        println!("NOT RUN: libmemcached's own cases: name its test program with --cases or {VARIABLE}");
        return Ok(());
    };
    let program = super::absolute(&program)?;
    let listed = parse(&fs::read_to_string(folder().join("cases.txt"))?)?;
    check_linkage(&program)?;
    let names = names(&program, interrupt)?;
    let mut differing = BTreeSet::new();
    let (mut passed, mut skipped) = (0, 0);
    for name in &names {
        match run_case(&program, name, subject, interrupt)? {
            CaseOutcome::Passed => passed += 1,
            CaseOutcome::FailsAnyway => {
                println!("SKIP {name}: it fails with libmemcached on memcached");
                skipped += 1;
            }
            CaseOutcome::Failed(report) => {
                if !listed.contains_key(name) {
                    println!("FAIL {name}:\n{report}");
                }
                differing.insert(name.clone());
            }
        }
    }
    let unlisted = differing.iter().filter(|name| !listed.contains_key(*name)).count();
    println!(
        "libmemcached's own cases: {} run, {passed} passed, {} failed as listed, {unlisted} failed, {skipped} skipped",
        names.len(),
        differing.len() - unlisted
    );
    ensure!(unlisted == 0, "{unlisted} of libmemcached's cases fail with libfabcache.so");
    let unused: Vec<&String> = listed.keys().filter(|name| !differing.contains(*name)).collect();
    ensure!(unused.is_empty(), "lines of cases.txt that nothing needs: {unused:?}");
    Ok(())
}

/// Checks that the program takes the library's functions from outside.
fn check_linkage(program: &Path) -> Result<()> {
    let output = Command::new("nm").args(["-D", "--undefined-only"]).arg(program).output();
    let output = output.context("nm (Debian: binutils) is needed")?;
    let imports = String::from_utf8_lossy(&output.stdout);
    ensure!(
        imports.lines().any(|line| line.split_whitespace().last() == Some("memcached_create")),
        "{} does not import memcached_create, so LD_PRELOAD would not reach it; link it with libmemcached's shared \
         libraries instead of its static ones",
        program.display()
    );
    Ok(())
}

/// Returns the names of the program's cases.
fn names(program: &Path, interrupt: &Interrupt) -> Result<Vec<String>> {
    let scratch = Scratch::create()?;
    let mut command = Command::new(program);
    command.args([CASES, "--list-test-names-only"]);
    // Its status is the number of cases.
    let run = process::run(&mut command, scratch.path(), CASE_TIME_MAX, interrupt)?;
    let names: Vec<String> =
        run.stdout.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    ensure!(!names.is_empty(), "{} lists no cases:\n{}", program.display(), last_lines(&run.stderr));
    Ok(names)
}

/// Runs a case with libmemcached on memcached, and then with libfabcache.so on fabcached.
fn run_case(program: &Path, name: &str, subject: &Subject, interrupt: &Interrupt) -> Result<CaseOutcome> {
    let run = |server: &Path, library: Option<&Path>| -> Result<Option<String>> {
        let scratch = Scratch::create()?;
        let mut command = Command::new(program);
        command.arg(name).env("MEMCACHED_BINARY", server).current_dir(scratch.path());
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let run = process::run(&mut command, scratch.path(), CASE_TIME_MAX, interrupt)?;
        Ok(run.failure.map(|failure| {
            let output = format!("{}{}", run.stdout, run.stderr);
            // The logs of its servers follow.
            let last = last_lines(output.split("Output of Server").next().unwrap_or_default());
            format!("{failure}\n{last}")
        }))
    };
    if run(&subject.programs.memcached, None)?.is_some() {
        return Ok(CaseOutcome::FailsAnyway);
    }
    let failure = run(&subject.programs.fabcached, Some(&subject.library))?;
    Ok(failure.map_or(CaseOutcome::Passed, CaseOutcome::Failed))
}

/// Parses the cases that fail on purpose: `CASE | REASON` per line.
fn parse(text: &str) -> Result<BTreeMap<String, String>> {
    text.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (name, reason) = line
                .split_once(" | ")
                .with_context(|| format!("cases.txt: {line:?} is not CASE | REASON"))?;
            Ok((name.trim().to_owned(), reason.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_cases_have_reasons() {
        let text = fs::read_to_string(folder().join("cases.txt")).expect("it is there");
        let listed = parse(&text).expect("it is a list");
        assert!(listed.values().all(|reason| !reason.is_empty()));
        assert!(parse("a case without a reason").is_err());
    }
}
