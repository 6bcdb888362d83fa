//! The result of a GET that reads the server's memory.

use fabcache_layout::reader::ReadOutcome;

use crate::path_selector::LatencySample;

/// The result of a read, for its caller.
#[derive(Debug)]
pub enum ReadResult {
    /// The key's item; its value is in the caller's target.
    Hit {
        /// Client flags.
        flags: u32,
        /// CAS.
        cas: u64,
    },
    /// The key is not stored.
    Miss,
    /// Unknown: the server must be asked.
    Fallback(ServerFallback),
    /// The server is gone, and its region with it.
    Gone,
}

/// The request to the server that must replace a read.
#[derive(Clone, Copy, Debug)]
pub struct ServerFallback {
    /// Set if the request was chosen, and its latency is to be recorded.
    pub sample: Option<LatencySample>,
}

impl ReadResult {
    /// The server must be asked, because reading its memory is impossible or inconclusive.
    pub const FALLBACK: ReadResult = ReadResult::Fallback(ServerFallback { sample: None });
}

impl From<&ReadOutcome> for ReadResult {
    #[inline]
    fn from(outcome: &ReadOutcome) -> ReadResult {
        match outcome {
            // A stale item, or one whose recache token was sent, needs the server.
            ReadOutcome::Hit(hit) if hit.stale || hit.token_sent => ReadResult::FALLBACK,
            ReadOutcome::Hit(hit) => ReadResult::Hit { flags: hit.flags, cas: hit.cas },
            ReadOutcome::Miss(_) => ReadResult::Miss,
            ReadOutcome::Stale(_) | ReadOutcome::Fallback(_) => ReadResult::FALLBACK,
            ReadOutcome::Gone => ReadResult::Gone,
        }
    }
}
