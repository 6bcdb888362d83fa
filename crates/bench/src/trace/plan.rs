//! Options of a replay.

use super::generate::Shape;
use super::reader::Format;

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How large synthetic traces are.
    pub shape: Shape,
    /// How files are written; none to find it out.
    pub format: Option<Format>,
    /// Malformed records are skipped and counted; otherwise they are an error.
    pub skips_malformed: bool,
    /// Requests of each trace at most.
    pub requests_max: u64,
    /// Gets and sets in flight at most. With one each is waited for, and its time taken.
    pub window: usize,
    /// A get that misses is followed by a set.
    pub fills: bool,
    /// How many times as fast as the trace; none for as fast as it goes.
    pub speed: Option<f64>,
    /// Times to live are shorter by the speed.
    pub scales_ttl: bool,
    /// Servers are emptied before each round.
    pub flushes: bool,
    /// Whether every byte of every hit is compared.
    pub verify: bool,
}
