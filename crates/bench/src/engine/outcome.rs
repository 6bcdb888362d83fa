//! The result of a round.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// The counts and times of some clients in one round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Keys read or written.
    pub operations: u64,
    /// From the first request to the last answer, in nanoseconds; in an open loop at least the intended duration.
    pub elapsed_ns: u64,
    /// Keys that missed.
    pub misses: u64,
    /// Values of which every byte was compared.
    pub verified: u64,
    /// Bytes of values read and written.
    pub value_bytes: u64,
    /// Requests that were due and not made, because clients waited for responses until the end. Their
    /// waiting time is included in the latency.
    pub unsent: u64,
    /// Latency by the size class of a request's first value.
    pub latency: Vec<Histogram>,
    /// CPU time of the clients, if they are other processes.
    pub client_cpu_ns: u64,
}

impl Outcome {
    /// Returns an empty result with this number of classes.
    pub fn new(classes: usize) -> Outcome {
        Outcome { latency: vec![Histogram::default(); classes], ..Outcome::default() }
    }

    /// Adds the result of concurrent clients.
    pub fn add(&mut self, other: &Outcome) {
        self.operations += other.operations;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.misses += other.misses;
        self.verified += other.verified;
        self.value_bytes += other.value_bytes;
        self.unsent += other.unsent;
        self.client_cpu_ns += other.client_cpu_ns;
        if self.latency.len() < other.latency.len() {
            self.latency.resize(other.latency.len(), Histogram::default());
        }
        for (mine, theirs) in self.latency.iter_mut().zip(&other.latency) {
            mine.add(theirs);
        }
    }

    /// Returns the latency of all classes together.
    pub fn all_latency(&self) -> Histogram {
        let mut all = Histogram::default();
        self.latency.iter().for_each(|class| all.add(class));
        all
    }

    /// Returns the operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}
