//! Instructions per operation, counted by callgrind.
//!
//! A child process runs twice with different numbers of operations; the difference is theirs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::operations::{Bench, Operation};

/// Items in the child's store.
const ITEMS: u64 = 10_000;
/// Numbers of operations of the two runs.
const COUNTS: [u64; 2] = [1_000, 11_000];

/// Instructions of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct Instructions {
    /// The operation.
    pub operation: Operation,
    /// Instructions per operation, including making its key.
    pub each: f64,
    /// Items resident.
    pub items: u64,
}

/// Counts instructions; returns `None` without valgrind. `program`, given `arguments`, the operation's
/// index and the count, calls [`run_child`].
///
/// # Errors
/// Valgrind fails.
pub fn measure(program: &Path, arguments: &[&str]) -> Result<Option<Vec<Instructions>>> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Ok(None);
    }
    let all = Operation::ALL.iter().enumerate().map(|(i, operation)| {
        let [few, many] = COUNTS.map(|count| collected(program, arguments, i, count));
        let each = (many? - few?) / (COUNTS[1] - COUNTS[0]) as f64;
        Ok(Instructions { operation: *operation, each, items: ITEMS })
    });
    all.collect::<Result<Vec<_>>>().map(Some)
}

/// Performs the counted operations.
///
/// # Errors
/// The operation does not exist.
pub fn run_child(operation: usize, count: u64) -> Result<()> {
    let operation = *Operation::ALL.get(operation).context("no such operation")?;
    let bench = Bench::new(ITEMS, 100)?;
    if operation == Operation::SetNew {
        bench.fill_up();
    }
    bench.run(operation, ITEMS, count);
    Ok(())
}

fn collected(program: &Path, arguments: &[&str], operation: usize, count: u64) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .args([operation.to_string(), count.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "callgrind: {text}");
    let line =
        text.lines().find_map(|line| line.split_once("Collected : ")).context("callgrind counts nothing")?;
    line.1.trim().parse().context("callgrind's count is no number")
}
