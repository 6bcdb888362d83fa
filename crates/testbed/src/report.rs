//! Lines that the test runner does not capture.

use std::fmt::Display;
use std::io::Write;

/// Writes a line past the test runner.
pub fn report(line: &str) {
    // Nobody may read it.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Reports tests that are not run, and why; an error's causes, too.
pub fn not_run(tests: &str, why: &impl Display) {
    report(&format!("NOT RUN: {tests}: {why:#}"));
}
