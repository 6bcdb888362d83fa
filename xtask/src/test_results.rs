//! Results of test programs: a line for each, and the end of the output of those that failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::test_programs::{self, LeftOut, Program};

/// Lines shown of the output of a failed program. The rest is in its log.
const LINES_MAX: usize = 60;

/// The results so far.
pub struct Results {
    /// The folder for logs.
    folder: PathBuf,
    /// Keep the output of every program, not only of failed ones.
    keeps_logs: bool,
    failed: Vec<String>,
}

impl Results {
    /// Makes the folder for logs.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(folder: &Path, keeps_logs: bool) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        Ok(Self { folder: folder.to_owned(), keeps_logs, failed: Vec::new() })
    }

    /// Reports how a program of tests ended; it has failed if it ran none.
    ///
    /// # Errors
    /// Its log cannot be written.
    pub fn add_tests(
        &mut self,
        name: &str,
        output: &str,
        failure: Option<String>,
        time: Duration,
    ) -> Result<()> {
        let outcome = failure.map_or_else(|| test_programs::passed(output), Err).map(|count| {
            let not_run = indented(&test_programs::not_run(output));
            format!(", {count} tests\n{not_run}")
        });
        self.add(name, output, outcome, time)
    }

    /// Reports what a program found out, or why it failed.
    ///
    /// # Errors
    /// Its log cannot be written.
    pub fn add(
        &mut self,
        name: &str,
        output: &str,
        outcome: Result<String, String>,
        time: Duration,
    ) -> Result<()> {
        let seconds = time.as_secs_f64();
        let log = self.folder.join(format!("{}.log", name.replace([' ', ',', ';', '/'], "-")));
        if self.keeps_logs || outcome.is_err() {
            fs::write(&log, output).with_context(|| format!("{} cannot be written", log.display()))?;
        }
        match outcome {
            Ok(found) => print!("ok    {name}, {seconds:.1} s{found}"),
            Err(why) => {
                println!("FAILED {name}, {seconds:.1} s: {why}; {} ends so:", log.display());
                print!("{}", indented(&last_lines(output, LINES_MAX)));
                self.failed.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Ends the list.
    ///
    /// # Errors
    /// A program failed.
    pub fn end(self) -> Result<()> {
        ensure!(self.failed.is_empty(), "{} failed: {}", self.failed.len(), self.failed.join(", "));
        Ok(())
    }
}

/// Reports the tests of a program that are not run in a place; returns whether that is all. `name` says where.
pub fn is_left_out(program: &Program, there: &str, name: &str) -> bool {
    let Some(LeftOut { tests, why }) = program.left_out(there) else { return false };
    println!("NOT RUN {name}, {}: {why}", if tests.is_empty() { "all".to_owned() } else { tests.join(", ") });
    tests.is_empty()
}

/// Returns the last lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Indents each line of a text, as what belongs to the line above.
pub fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}
