//! Chooses how a key is read through a fabric: one-sided or by a request, whichever was faster recently.
//!
//! One-sided reads cost the server no CPU, but need more fetches than a request has messages. Where the server's CPU must
//! carry out the reads, or a key's location is unknown, a request may be faster. The selector therefore keeps moving
//! averages of both latencies, by size class of the value, and tries the slower path now and then. It has no clock and no
//! random numbers of its own.
//!
//! A key's latency depends on how many others are in flight, so there are separate averages for single keys
//! (`ServerPaths::single`), for windows of non-blocking GETs ([`RunTracker`]) and for multigets
//! (`ServerPaths::multigets`).

use std::time::Instant;

/// Samples of a path before its average is trusted.
const TRUSTED_SAMPLES: u32 = 8;
/// An average follows about this many samples.
const AVERAGED: u64 = 8;
/// A sample counts for at most this many times the average: a stall says nothing about the path.
const OUTLIER_TIMES: u64 = 4;
/// A request must be faster by one part in this many; otherwise the server's CPU is spared.
const MARGIN: u64 = 10;
/// The slower path is tried once in this many reads …
const PROBED_ONE_IN: u32 = 64;
/// … and once in this many if it is [`MUCH_SLOWER_TIMES`] slower, when a trial costs as much as many reads.
const PROBED_RARELY_ONE_IN: u32 = 1024;
const MUCH_SLOWER_TIMES: u64 = 4;
/// Keys of a window that use one path before it is chosen again: a few windows of most programs. The first half overlaps
/// with keys of the previous path, so its latencies are not recorded.
const KEYS_OF_A_RUN: u32 = 128;
/// From this many keys on a multiget counts as large: its keys share round trips.
const LARGE_MULTIGET: usize = 8;
/// Upper bounds of the size classes of values, in bytes; the last class is unbounded.
const SIZES: [usize; 3] = [512, 8 << 10, 128 << 10];
const CLASSES: usize = SIZES.len() + 1;

/// A path on which a key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// One-sided, at the item's cached location.
    CachedLocation,
    /// One-sided, by key.
    ByKey,
    /// By a request to the server.
    Request,
}

/// The set of GETs that a GET is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// A single GET.
    Single,
    /// A window of non-blocking GETs.
    Window,
    /// A multiget of this many keys.
    Multiget(usize),
    /// A multiget whose path was already chosen, and is one-sided.
    Decided,
}

/// A read whose latency is to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct LatencySample {
    /// The path.
    pub path: ReadPath,
    /// The set of GETs.
    pub batch: Batch,
    /// When it began.
    pub began: Instant,
}

/// A moving average of nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    ns: u64,
    count: u32,
}

impl Average {
    fn add(&mut self, ns: u64) {
        self.count = self.count.saturating_add(1);
        if self.count == 1 {
            self.ns = ns;
            return;
        }
        let ns = ns.min(self.ns.saturating_mul(OUTLIER_TIMES));
        // The first samples form a plain mean.
        let weight = u64::from(self.count).min(AVERAGED);
        self.ns = (self.ns / weight).saturating_mul(weight - 1).saturating_add(ns / weight).max(1);
    }

    fn is_trusted(&self) -> bool {
        self.count >= TRUSTED_SAMPLES
    }
}

/// The latencies of the paths to one server.
#[derive(Clone, Debug, Default)]
pub struct PathSelector {
    classes: [[Average; 3]; CLASSES],
    /// The size of the last value, assumed for keys whose size is unknown.
    last: usize,
}

impl PathSelector {
    /// Chooses the path for a key, given whether its location is cached, and its value's length if known. `random` is a
    /// random number.
    pub fn choose(&self, has_location: bool, value_bytes: Option<usize>, random: u32) -> ReadPath {
        let class = &self.classes[class_of(value_bytes.unwrap_or(self.last))];
        let one_sided = if has_location { ReadPath::CachedLocation } else { ReadPath::ByKey };
        let (read, request) = (class[one_sided as usize], class[ReadPath::Request as usize]);
        match (read.is_trusted(), request.is_trusted()) {
            (false, false) if random.is_multiple_of(2) => return ReadPath::Request,
            (false, _) => return one_sided,
            (true, false) => return ReadPath::Request,
            (true, true) => {}
        }
        let (best, other, ratio) = match request.ns.saturating_add(request.ns / MARGIN) < read.ns {
            true => (ReadPath::Request, one_sided, read.ns / request.ns.max(1)),
            false => (one_sided, ReadPath::Request, request.ns / read.ns.max(1)),
        };
        let one_in = if ratio >= MUCH_SLOWER_TIMES { PROBED_RARELY_ONE_IN } else { PROBED_ONE_IN };
        if random.is_multiple_of(one_in) { other } else { best }
    }

    /// Records the latency of a read on this path, including a request to the server if one was needed in the end, and
    /// the length of the value found.
    pub fn note(&mut self, path: ReadPath, value_bytes: Option<usize>, ns: u64) {
        if let Some(bytes) = value_bytes {
            self.last = bytes;
        }
        self.classes[class_of(self.last)][path as usize].add(ns);
    }
}

/// The path selector for windows of non-blocking GETs.
#[derive(Clone, Debug, Default)]
pub struct RunTracker {
    paths: PathSelector,
    /// For keys without and with a cached location.
    runs: [Run; 2],
}

/// Consecutive keys that use one path.
#[derive(Clone, Copy, Debug)]
struct Run {
    path: ReadPath,
    left: u32,
}

impl Default for Run {
    fn default() -> Run {
        Run { path: ReadPath::Request, left: 0 }
    }
}

impl RunTracker {
    /// Returns the path for a key, and whether its latency is to be recorded.
    pub fn choose(&mut self, has_location: bool, random: u32) -> (ReadPath, bool) {
        let run = &mut self.runs[usize::from(has_location)];
        if run.left == 0 {
            *run = Run { path: self.paths.choose(has_location, None, random), left: KEYS_OF_A_RUN };
        }
        run.left -= 1;
        (run.path, run.left < KEYS_OF_A_RUN / 2)
    }

    /// As [`PathSelector::note`]; the latency includes the time in the queue.
    pub fn note(&mut self, path: ReadPath, value_bytes: Option<usize>, ns: u64) {
        self.paths.note(path, value_bytes, ns);
    }
}

/// The latencies of all reads of one server.
#[derive(Clone, Debug, Default)]
pub struct ServerPaths {
    single: PathSelector,
    window: RunTracker,
    /// Small and large multigets; a key's latency is that of the call divided by its keys.
    multigets: [PathSelector; 2],
}

impl ServerPaths {
    /// Returns the path for a key, and whether its latency is to be recorded.
    pub fn choose(&mut self, batch: Batch, has_location: bool, random: u32) -> (ReadPath, bool) {
        match batch {
            Batch::Window => self.window.choose(has_location, random),
            Batch::Multiget(count) => (self.multiget(count).choose(has_location, None, random), true),
            Batch::Single | Batch::Decided => (self.single.choose(has_location, None, random), true),
        }
    }

    /// Records the latency of a sample that ended at `ended`.
    pub fn note(&mut self, sample: LatencySample, ended: Instant, value_bytes: Option<usize>) {
        let LatencySample { path, batch, began } = sample;
        let ns = ended.saturating_duration_since(began).as_nanos() as u64;
        match batch {
            Batch::Window => self.window.note(path, value_bytes, ns),
            Batch::Multiget(count) => self.multiget(count).note(path, value_bytes, ns / count.max(1) as u64),
            Batch::Single | Batch::Decided => self.single.note(path, value_bytes, ns),
        }
    }

    fn multiget(&mut self, count: usize) -> &mut PathSelector {
        &mut self.multigets[usize::from(count >= LARGE_MULTIGET)]
    }
}

fn class_of(bytes: usize) -> usize {
    SIZES.iter().position(|most| bytes <= *most).unwrap_or(SIZES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a key repeatedly with these latencies; returns how often each path was chosen.
    fn read(
        paths: &mut PathSelector,
        has_location: bool,
        bytes: usize,
        reads: u32,
        times: [u64; 3],
    ) -> [u32; 3] {
        let mut chosen = [0; 3];
        for read in 0..reads {
            let path = paths.choose(has_location, Some(bytes), read.wrapping_mul(0x9e37_79b1) >> 7);
            chosen[path as usize] += 1;
            paths.note(path, Some(bytes), times[path as usize] + u64::from(read % 7));
        }
        chosen
    }

    #[test]
    fn faster_path_is_used_and_the_other_probed_occasionally() {
        let mut paths = PathSelector::default();
        let [_, by_key, request] = read(&mut paths, false, 100, 10_000, [0, 30_000, 20_000]);
        assert!(request > 9_700 && (100..300).contains(&by_key), "{by_key} {request}");
        let [located, _, request] = read(&mut paths, true, 100, 10_000, [10_000, 30_000, 20_000]);
        assert!(located > 9_700 && (100..300).contains(&request), "{located} {request}");
    }

    #[test]
    fn one_sided_reads_win_when_latencies_are_close() {
        let mut paths = PathSelector::default();
        let chosen = read(&mut paths, false, 100, 1_000, [0, 21_000, 20_000]);
        assert!(chosen[ReadPath::ByKey as usize] > 950, "{chosen:?}");
    }

    #[test]
    fn path_becoming_faster_is_detected() {
        let mut paths = PathSelector::default();
        read(&mut paths, false, 100, 1_000, [0, 30_000, 20_000]);
        let chosen = read(&mut paths, false, 100, 3_000, [0, 5_000, 20_000]);
        assert!(chosen[ReadPath::ByKey as usize] > 2_000, "{chosen:?}");
    }

    #[test]
    fn much_slower_path_is_rarely_probed() {
        let mut paths = PathSelector::default();
        read(&mut paths, false, 100, 100, [0, 1_000_000, 20_000]);
        let chosen = read(&mut paths, false, 100, 10_000, [0, 1_000_000, 20_000]);
        assert!((1..30).contains(&chosen[ReadPath::ByKey as usize]), "{chosen:?}");
    }

    #[test]
    fn size_classes_have_separate_averages() {
        let mut paths = PathSelector::default();
        for (bytes, times, expected) in [
            (100, [0, 30_000, 20_000], ReadPath::Request),
            (100_000, [0, 60_000, 90_000], ReadPath::ByKey),
            (1_000_000, [0, 500_000, 300_000], ReadPath::Request),
        ] {
            let chosen = read(&mut paths, false, bytes, 2_000, times);
            assert!(chosen[expected as usize] > 1_800, "{bytes}: {chosen:?}");
        }
        // A key of unknown size is assumed to be of the last size.
        paths.note(ReadPath::ByKey, Some(90_000), 60_000);
        assert_eq!(paths.choose(false, None, 1), ReadPath::ByKey);
        paths.note(ReadPath::Request, Some(2_000_000), 300_000);
        assert_eq!(paths.choose(false, None, 1), ReadPath::Request);
    }

    /// Simulates a window of 32 keys: requests take `requested_ns` each, one after the other, and reads `read_ns`. Returns how
    /// many keys were requested.
    fn window(runs: &mut RunTracker, keys: u32, requested_ns: u64, read_ns: u64) -> u32 {
        let mut in_flight = std::collections::VecDeque::new();
        let (mut now, mut free) = (0u64, [0u64; 2]);
        let mut requested = 0;
        for key in 0..keys {
            if in_flight.len() == 32 {
                let (path, counts, began, ended) = in_flight.pop_front().expect("it is full");
                now = now.max(ended);
                if counts {
                    runs.note(path, Some(100), ended - began);
                }
            }
            let (path, counts) = runs.choose(false, key.wrapping_mul(0x9e37_79b1) >> 7);
            let is_requested = path == ReadPath::Request;
            requested += u32::from(is_requested);
            let queue = &mut free[usize::from(is_requested)];
            *queue = now.max(*queue) + if is_requested { requested_ns } else { read_ns };
            in_flight.push_back((path, counts, now, *queue));
        }
        requested
    }

    #[test]
    fn window_uses_the_path_with_more_throughput() {
        for (requested_ns, read_ns, share) in [(10, 40, 85..=100), (40, 10, 0..=15), (20, 21, 0..=15)] {
            let requested = window(&mut RunTracker::default(), 100_000, requested_ns * 1000, read_ns * 1000);
            assert!(share.contains(&(requested / 1000)), "{requested_ns} {read_ns}: {requested} of 100000");
        }
        // A change is noticed.
        let mut runs = RunTracker::default();
        window(&mut runs, 20_000, 10_000, 40_000);
        let requested = window(&mut runs, 100_000, 40_000, 10_000);
        assert!(requested < 40_000, "{requested}");
    }

    #[test]
    fn consecutive_keys_use_one_path_and_half_are_recorded() {
        let mut runs = RunTracker::default();
        for _ in 0..50 {
            let run: Vec<_> = (0..KEYS_OF_A_RUN).map(|random| runs.choose(true, random)).collect();
            assert!(run.iter().all(|(path, _)| *path == run[0].0), "{run:?}");
            assert_eq!(run.iter().filter(|(_, counts)| *counts).count() as u32, KEYS_OF_A_RUN / 2);
            assert!(!run[0].1 && run[run.len() - 1].1);
            run.iter().for_each(|(path, _)| runs.note(*path, Some(100), 10_000));
        }
    }

    #[test]
    fn stalls_are_ignored_and_extreme_times_handled() {
        let mut paths = PathSelector::default();
        read(&mut paths, true, 100, 200, [10_000, 0, 20_000]);
        paths.note(ReadPath::CachedLocation, Some(100), 9_000_000_000);
        assert_eq!(paths.choose(true, Some(100), 1), ReadPath::CachedLocation);
        for _ in 0..100 {
            paths.note(ReadPath::CachedLocation, Some(100), u64::MAX);
            paths.note(ReadPath::Request, Some(100), 0);
        }
        assert_eq!(paths.choose(true, Some(100), 1), ReadPath::Request);
    }
}
