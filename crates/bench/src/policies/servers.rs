//! Two servers with the same memory, and the miss ratio of each.
//!
//! The first is memcached, or a server with its flags, with `-m` for the size. The second may use as
//! much memory as the first uses at the end. Its `-m` is found by trials: first from its memory when
//! empty, then from the difference.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde::Serialize;

use super::client::Client;
use super::compare::{Case, Plan, Progress};
use super::report::Line;
use crate::server::{MeasuredProgram, Server};
use crate::trace::Trace;
use crate::trace::content::Content;
use crate::trace::tally::{Part, Tally};

/// The minimum -m of memcached.
const MEGABYTES_MIN: u64 = 2;
/// Maximum number of adjustments of the second server's memory. They converge, mostly after one.
const TRIES_MAX: u32 = 4;

/// The second server may leave at most this part (1/n) unused.
const UNUSED_DIVISOR: u64 = 100;

/// A server after a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerRun {
    /// Its `-m`, in bytes.
    pub memory_bytes: u64,
    /// Unshared memory at the end: anonymous, shared and huge pages.
    pub resident_bytes: u64,
    /// Requests that missed.
    pub misses: Tally,
    /// SETs that the server refused.
    pub refused: u64,
    /// The greatest lag, in milliseconds, behind a trace with expiry times.
    pub late_ms: u64,
}

/// One trace at one size.
#[derive(Clone, Debug, Serialize)]
pub struct ServersRow {
    /// The trace.
    pub trace: String,
    /// Memory in percent of the footprint.
    pub percent: f64,
    /// Requests.
    pub requests: Tally,
    /// The runs of both servers, the first of which defines the memory; `None` if the size was skipped.
    pub runs: Option<[ServerRun; 2]>,
    /// Why it was skipped.
    pub skipped: Option<String>,
}

impl ServersRow {
    /// Returns the miss ratios of both, unless the size was skipped.
    pub fn ratios(&self) -> Option<[f64; 2]> {
        let [first, other] = self.runs.as_ref()?;
        let ratio = |run: &ServerRun| run.misses.ratio(&self.requests, Part::All);
        Some([ratio(first)?, ratio(other)?])
    }

    /// Returns the misses of both.
    pub fn line(&self) -> Line<'_> {
        let misses = |server: usize| self.runs.as_ref().map(|runs| &runs[server].misses);
        Line {
            trace: &self.trace,
            percent: self.percent,
            requests: &self.requests,
            misses: vec![misses(0), misses(1)],
        }
    }
}

/// Compares `other` with `first`.
///
/// # Errors
/// A server does not start, does not answer, or returns a wrong value.
pub fn compare(
    plan: &Plan,
    first: &MeasuredProgram,
    other: &MeasuredProgram,
    progress: &dyn Progress,
) -> Result<Vec<ServersRow>> {
    let content = Content::default();
    let mut rows = Vec::new();
    for source in &plan.sources {
        for case in Case::all(plan, source, &content, progress)? {
            for (percent, memory_bytes) in &case.memory {
                let pair = Pair { trace: &case.trace, percent: *percent, content: &content, progress };
                let row = pair.compare(first, other, *memory_bytes)?;
                progress.note(&row.note());
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// A trace and memory that two servers are compared on.
struct Pair<'a> {
    trace: &'a Trace,
    percent: f64,
    content: &'a Content,
    progress: &'a dyn Progress,
}

impl Pair<'_> {
    fn compare(
        &self,
        first: &MeasuredProgram,
        other: &MeasuredProgram,
        memory_bytes: u64,
    ) -> Result<ServersRow> {
        let megabytes = memory_bytes >> 20;
        let row = |runs, skipped: Option<String>| ServersRow {
            trace: self.trace.name.clone(),
            percent: self.percent,
            requests: Tally::of_requests(self.trace),
            runs,
            skipped,
        };
        if megabytes < MEGABYTES_MIN {
            return Ok(row(None, Some(format!("{} takes at least -m {MEGABYTES_MIN}", first.name))));
        }
        let (run, slab_bytes) = self.replay(first, &megabytes.to_string(), megabytes << 20)?;
        // Each slab class gets a page, regardless of -m; one more than that is usual.
        if slab_bytes > (megabytes + 1) << 20 {
            let taken = slab_bytes as f64 / f64::from(1 << 20);
            let why = format!("{} at -m {megabytes} takes {taken:.0} MB for pages of slabs", first.name);
            return Ok(row(None, Some(why)));
        }
        let found = self.fit(other, run.resident_bytes)?;
        Ok(match found {
            Some(second) => row(Some([run, second]), None),
            None => row(None, Some(format!("{} does not fit {} bytes", other.name, run.resident_bytes))),
        })
    }

    /// Returns the run with the most memory that fits `resident_bytes`.
    fn fit(&self, server: &MeasuredProgram, resident_bytes: u64) -> Result<Option<ServerRun>> {
        let empty = {
            let socket = Socket::new();
            let flags = ["-t", "1", "-m", &kilobytes(resident_bytes)];
            let server = Server::start_unix(server, &socket.0, &flags)?;
            server.resident_bytes()?
        };
        fit(resident_bytes, empty, |memory| Ok(self.replay(server, &kilobytes(memory), memory)?.0))
    }

    /// Replays on a fresh server with this `-m`; also returns the memory of its slabs, if it has any.
    fn replay(&self, program: &MeasuredProgram, limit: &str, memory_bytes: u64) -> Result<(ServerRun, u64)> {
        let what = format!("{} {}% {}", self.trace.name, self.percent, program.name);
        self.progress.begin(&what, self.trace.requests.len() as u64);
        let socket = Socket::new();
        let server = Server::start_unix(program, &socket.0, &["-t", "1", "-m", limit])?;
        let mut client = Client::connect(&socket.0, self.content)?;
        let paced = self.trace.objects.iter().any(|object| object.ttl_s > 0);
        let replayed = client
            .replay(self.trace, paced, &|done| self.progress.advance(done))
            .with_context(|| format!("{} with -m {limit}, replaying {}", program.name, self.trace.name))?;
        let slab_bytes = client.stat("stats slabs", "total_malloced").unwrap_or(0);
        let run = ServerRun {
            memory_bytes,
            resident_bytes: server.resident_bytes()?,
            misses: replayed.misses,
            refused: replayed.refused,
            late_ms: replayed.late.as_millis() as u64,
        };
        Ok((run, slab_bytes))
    }
}

/// Tries values of `-m` for a run that uses at most `allowed_bytes`, and nearly all of them.
///
/// An empty server takes `empty_bytes`.
fn fit(
    allowed_bytes: u64,
    empty_bytes: u64,
    mut run: impl FnMut(u64) -> Result<ServerRun>,
) -> Result<Option<ServerRun>> {
    let mut memory_bytes = allowed_bytes.saturating_sub(empty_bytes);
    let mut best: Option<ServerRun> = None;
    for _ in 0..TRIES_MAX {
        let done = run(memory_bytes)?;
        let resident_bytes = done.resident_bytes;
        let unused = allowed_bytes.saturating_sub(resident_bytes);
        if resident_bytes <= allowed_bytes {
            best = best.filter(|best| best.resident_bytes > resident_bytes).or(Some(done));
            if unused <= allowed_bytes / UNUSED_DIVISOR {
                break;
            }
        } else if best.is_some() {
            break;
        }
        memory_bytes = (memory_bytes + unused).saturating_sub(resident_bytes.saturating_sub(allowed_bytes));
    }
    Ok(best)
}

fn kilobytes(bytes: u64) -> String {
    format!("{}k", bytes >> 10)
}

/// A socket with a unique path.
struct Socket(PathBuf);

impl Socket {
    fn new() -> Socket {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Socket(std::env::temp_dir().join(format!("fabcache-bench-{}-{count}", std::process::id())))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl ServersRow {
    fn note(&self) -> String {
        let result = match (self.ratios(), &self.skipped) {
            (Some([first, other]), _) => format!("{:.3}% and {:.3}% misses", first * 100.0, other * 100.0),
            (None, why) => format!("skipped: {}", why.as_deref().unwrap_or("unknown")),
        };
        format!("{} {}%: {result}", self.trace, self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a server that uses `beside` bytes and a part of its `-m`.
    fn run(memory_bytes: u64, beside: u64) -> ServerRun {
        let resident_bytes = memory_bytes + memory_bytes / 50 + beside;
        ServerRun { memory_bytes, resident_bytes, misses: Tally::default(), refused: 0, late_ms: 0 }
    }

    #[test]
    fn memory_converges_to_the_budget() {
        let mut tries = 0;
        let found = fit(100 << 20, 1 << 20, |memory| {
            tries += 1;
            Ok(run(memory, 3 << 20))
        });
        let found = found.expect("no error").expect("it fits");
        assert!(found.resident_bytes <= 100 << 20 && found.resident_bytes > 99 << 20, "{found:?}");
        assert_eq!(tries, 2);
        let never_touched = fit(100 << 20, 1 << 20, |memory| {
            Ok(ServerRun { resident_bytes: memory - memory / 20, ..run(memory, 0) })
        });
        let found = never_touched.expect("no error").expect("it fits");
        assert!(found.resident_bytes <= 100 << 20 && found.resident_bytes >= 99 << 20, "{found:?}");
        let never = fit(1 << 20, 1 << 20, |memory| Ok(run(memory, 3 << 20)));
        assert_eq!(never.expect("no error"), None);
    }
}
