//! Lines that the test runner does not capture.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// How the lines of [`not_run`] begin.
const NOT_RUN: &str = "NOT RUN: ";

/// Writes a line past the test runner.
pub fn report(line: &str) {
    // Nobody may read it.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Reports tests that are not run, and why; an error's causes, too. The same line is reported once.
pub fn not_run(tests: &str, why: &impl Display) {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("{NOT_RUN}{tests}: {why:#}");
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !reported.contains(&line) {
        report(&line);
        reported.insert(line);
    }
}

/// Returns what tests need, or reports that they are not run, and why.
pub fn available<T>(tests: &str, needed: Result<T, impl Display>) -> Option<T> {
    needed.inspect_err(|why| not_run(tests, why)).ok()
}

/// Reports a line of another test program again, if it is one of [`not_run`].
pub(crate) fn pass_on(line: &str) {
    // It may follow the name of a test.
    if let Some(at) = line.find(NOT_RUN) {
        report(&line[at..]);
    }
}
