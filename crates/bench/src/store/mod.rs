//! The store by itself, in this process: what an operation costs, how that scales with threads, and how long one may
//! take at worst.
//!
//! - `keys.rs`: keys and their store.
//! - `operations.rs`: nanoseconds an operation, by items resident, hot and cold, beside the machine's limits.
//! - `floors.rs`: the machine's dependent load and copy.
//! - `instructions.rs`: instructions an operation, counted by callgrind in a child process.
//! - `scaling.rs`: CPU time an operation by threads.
//! - `stalls.rs`: the longest operations while the store is busy with something else.
//! - `report.rs`, `plot.rs`: the results.

pub mod floors;
pub mod instructions;
pub mod keys;
pub mod operations;
pub mod plot;
pub mod report;
pub mod scaling;
pub mod stalls;

use std::time::Duration;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Items resident, for each measurement of single operations.
    pub items: Vec<u64>,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Items resident while threads are scaled.
    pub scaling_items: u64,
    /// How long each figure is measured.
    pub time: Duration,
    /// Measure the longest operations.
    pub stalls: bool,
}
