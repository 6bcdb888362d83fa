//! Options of measurements with many clients: the clients, and their work.

use clap::Args;
use fabcache_bench::engine::{Load, Popularity};

/// Options of clients.
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Numbers of clients, measured one by one. A client has a connection to each server
    #[arg(long, value_name = "NUMBER,…", value_delimiter = ',')]
    pub clients: Option<Vec<usize>>,
    /// Threads per process that drive the clients; shared-memory clients have one thread each
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    threads: usize,
    /// Client processes; 0 runs the clients in this process
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    processes: usize,
    /// Requests in flight per client
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pipeline: usize,
    /// Number of keys, limited so that all items take at most half of the servers' memory
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
    /// Applies these options to a load.
    ///
    /// # Errors
    /// A value is out of range.
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
