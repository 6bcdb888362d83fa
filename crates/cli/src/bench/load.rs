//! Options of measurements with many clients: their places and their work.

use clap::Args;
use fabcache_bench::engine::{Load, Popularity};

/// Options of clients.
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Clients, each number by itself. A client has a connection to each server
    #[arg(long, value_name = "NUMBER,…", value_delimiter = ',')]
    pub clients: Option<Vec<usize>>,
    /// Threads that the clients of a process are driven by; through shared memory each client has its own
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    threads: usize,
    /// Processes that clients are spread over; 0 is this one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    processes: usize,
    /// Requests of a client that may be in flight at once
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pipeline: usize,
    /// Keys, as far as all items take no more than half of the servers' memory
    #[arg(long, value_name = "NUMBER")]
    keys: Option<u64>,
    /// Distribution of keys: Zipf's law with this exponent [default: uniform]
    #[arg(long, value_name = "EXPONENT")]
    zipf: Option<f64>,
    /// Seconds of a round
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
}

impl LoadArguments {
    /// A load as these options have it.
    ///
    /// # Errors
    /// It cannot be.
    pub fn change(&self, load: &mut Load) -> anyhow::Result<()> {
        load.threads = self.threads;
        load.processes = self.processes;
        load.work.pipeline = self.pipeline;
        load.work.keys = self.keys.unwrap_or(load.work.keys);
        load.work.popularity = self.zipf.map_or(Popularity::Uniform, Popularity::Zipf);
        load.seconds = self.seconds.unwrap_or(load.seconds);
        load.check()
    }
}
