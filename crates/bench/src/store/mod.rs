//! The store by itself, in this process: the cost of an operation, its scaling with threads, and its
//! worst-case duration.
//!
//! - `keys.rs`: keys and their store.
//! - `operations.rs`: nanoseconds per operation, by resident items, hot and cold, beside the machine's
//!   limits.
//! - `floors.rs`: the machine's dependent load and copy.
//! - `instructions.rs`: instructions per operation, counted by callgrind in a child process.
//! - `scaling.rs`: CPU time per operation, by threads.
//! - `stalls.rs`: the longest operations while the store does background work.
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

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of resident items for the measurements of single operations.
    pub items: Vec<u64>,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Resident items while threads are scaled.
    pub scaling_items: u64,
    /// Duration of the measurement of each figure.
    pub time: Duration,
    /// Whether to measure the longest operations.
    pub stalls: bool,
}
