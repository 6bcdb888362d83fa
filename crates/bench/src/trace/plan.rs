//! Options of a replay.

use super::generate::Shape;
use super::reader::Format;

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The size of synthetic traces.
    pub shape: Shape,
    /// The format of files; `None` to detect it.
    pub format: Option<Format>,
    /// Whether malformed records are skipped and counted; otherwise they are an error.
    pub skips_malformed: bool,
    /// Maximum number of requests of each trace.
    pub requests_max: u64,
    /// Maximum number of gets and sets in flight. With 1, each is awaited and timed.
    pub window: usize,
    /// Whether a get that misses is followed by a set.
    pub fills: bool,
    /// Speed relative to the trace; `None` for as fast as possible.
    pub speed: Option<f64>,
    /// Whether times to live are divided by the speed.
    pub scales_ttl: bool,
    /// Whether servers are flushed before each round.
    pub flushes: bool,
    /// Whether to compare every byte of every hit.
    pub verify: bool,
}
