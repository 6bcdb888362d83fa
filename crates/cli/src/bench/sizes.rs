//! Options for a range of value sizes.

use anyhow::{Result, ensure};
use clap::Args;
use fabcache_bench::latency::powers_of_two;

/// A range of sizes.
#[derive(Debug, Args)]
pub struct SizeArguments {
    /// The smallest value, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    min: usize,
    /// Largest value, in bytes; sizes in between are powers of two
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 10)]
    max: usize,
}

impl SizeArguments {
    /// Returns the powers of two between the ends, and both ends.
    ///
    /// # Errors
    /// The ends are not in ascending order.
    pub fn powers(&self) -> Result<Vec<usize>> {
        ensure!(
            (1..=self.max).contains(&self.min),
            "--min {} --max {}: sizes go from the smaller, at least 1, to the larger",
            self.min,
            self.max
        );
        Ok(powers_of_two(self.min, self.max))
    }
}
