//! Which way a key is read through a fabric: one-sided or by a request, whichever was faster lately.
//!
//! One-sided reads cost the server nothing, and more fetches than a request has messages; where a server's processor
//! must carry out the reads anyway, or a key's place is not known, a request may be faster. Nothing is assumed of that: the
//! times of both are kept as moving averages, for values of about the same size each, and now and then the other way is
//! tried. This has no clock and no randomness of its own.
//!
//! How long a key takes depends on how many are under way with it, so there are averages for keys that are waited for alone
//! ([`ServerPaths::alone`]), for windows of them ([`RunTracker`]) and for many at once ([`ServerPaths::many`]).

/// Answers of a way after which its average is believed.
const BELIEVED_AFTER: u32 = 8;
/// An average follows the last so many times.
const AVERAGED: u64 = 8;
/// A time counts for no more than so many averages: a stall says nothing of the way.
const OUTLIER_TIMES: u64 = 4;
/// A request must be faster by one in so many: else the server is spared.
const MARGIN: u64 = 10;
/// The way that was slower is tried once in so many reads …
const PROBED_ONE_IN: u32 = 64;
/// … and once in so many, if it was slower by so much that a probe costs as much as many reads.
const PROBED_RARELY_ONE_IN: u32 = 1024;
const MUCH_SLOWER_TIMES: u64 = 4;
/// Keys of a window that go one way before it is chosen anew, a few windows of most programs. The first half of them has those
/// beside it that went the way before, and says nothing of this one.
const KEYS_OF_A_RUN: u32 = 128;
/// So many keys at once share the round trips.
const MANY: usize = 8;
/// Values of up to so many bytes are alike, the last any longer ones.
const SIZES: [usize; 3] = [512, 8 << 10, 128 << 10];
const CLASSES: usize = SIZES.len() + 1;

/// A way to read a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// One-sided, where the item was found before.
    Kept,
    /// One-sided, by key.
    ByKey,
    /// The server is asked.
    Request,
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
        // The first ones are a plain mean.
        let weight = u64::from(self.count).min(AVERAGED);
        self.ns = (self.ns / weight).saturating_mul(weight - 1).saturating_add(ns / weight).max(1);
    }

    fn is_believed(&self) -> bool {
        self.count >= BELIEVED_AFTER
    }
}

/// What is known of the ways to one server.
#[derive(Clone, Debug, Default)]
pub struct PathSelector {
    classes: [[Average; 3]; CLASSES],
    /// The size of the last value, for keys of whose size nothing is known.
    last: usize,
}

impl PathSelector {
    /// The way to read a key: whose place is known or not, and the bytes of whose value, if these are known. `random` is any
    /// number drawn for this.
    pub fn choose(&self, is_kept: bool, value_bytes: Option<usize>, random: u32) -> ReadPath {
        let class = &self.classes[class_of(value_bytes.unwrap_or(self.last))];
        let one_sided = if is_kept { ReadPath::Kept } else { ReadPath::ByKey };
        let (own, asked) = (class[one_sided as usize], class[ReadPath::Request as usize]);
        match (own.is_believed(), asked.is_believed()) {
            (false, false) if random.is_multiple_of(2) => return ReadPath::Request,
            (false, _) => return one_sided,
            (true, false) => return ReadPath::Request,
            (true, true) => {}
        }
        let (best, other, ratio) = match asked.ns.saturating_add(asked.ns / MARGIN) < own.ns {
            true => (ReadPath::Request, one_sided, own.ns / asked.ns.max(1)),
            false => (one_sided, ReadPath::Request, asked.ns / own.ns.max(1)),
        };
        let one_in = if ratio >= MUCH_SLOWER_TIMES { PROBED_RARELY_ONE_IN } else { PROBED_ONE_IN };
        if random.is_multiple_of(one_in) { other } else { best }
    }

    /// A key was read this way in so many nanoseconds, the server's answer included if it had to be asked in the end. Its
    /// value had so many bytes, if there was one.
    pub fn note(&mut self, way: ReadPath, value_bytes: Option<usize>, ns: u64) {
        if let Some(bytes) = value_bytes {
            self.last = bytes;
        }
        self.classes[class_of(self.last)][way as usize].add(ns);
    }
}

/// Keys of which many are under way at a time.
#[derive(Clone, Debug, Default)]
pub struct RunTracker {
    ways: PathSelector,
    /// Of keys whose place is not known, and of those whose place is.
    runs: [Run; 2],
}

/// Keys one after the other that go one way.
#[derive(Clone, Copy, Debug)]
struct Run {
    way: ReadPath,
    left: u32,
}

impl Default for Run {
    fn default() -> Run {
        Run { way: ReadPath::Request, left: 0 }
    }
}

impl RunTracker {
    /// The way to read a key, and whether the time that it takes is to be noted.
    pub fn choose(&mut self, is_kept: bool, random: u32) -> (ReadPath, bool) {
        let run = &mut self.runs[usize::from(is_kept)];
        if run.left == 0 {
            *run = Run { way: self.ways.choose(is_kept, None, random), left: KEYS_OF_A_RUN };
        }
        run.left -= 1;
        (run.way, run.left < KEYS_OF_A_RUN / 2)
    }

    /// See [`PathSelector::note`]: from when it was asked for until it was there.
    pub fn note(&mut self, way: ReadPath, value_bytes: Option<usize>, ns: u64) {
        self.ways.note(way, value_bytes, ns);
    }
}

/// All that is known of one server.
#[derive(Clone, Debug, Default)]
pub struct ServerPaths {
    /// Keys that are waited for one by one.
    pub alone: PathSelector,
    /// Those of which many are under way.
    pub window: RunTracker,
    /// Those that are asked for in one call, few or many: the time is that of the call, for each of them.
    calls: [PathSelector; 2],
}

impl ServerPaths {
    /// Of so many keys in one call.
    pub fn many(&mut self, count: usize) -> &mut PathSelector {
        &mut self.calls[usize::from(count >= MANY)]
    }
}

fn class_of(bytes: usize) -> usize {
    SIZES.iter().position(|most| bytes <= *most).unwrap_or(SIZES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a key so often, with these times: how often each way was chosen.
    fn read(ways: &mut PathSelector, is_kept: bool, bytes: usize, reads: u32, times: [u64; 3]) -> [u32; 3] {
        let mut chosen = [0; 3];
        for read in 0..reads {
            let way = ways.choose(is_kept, Some(bytes), read.wrapping_mul(0x9e37_79b1) >> 7);
            chosen[way as usize] += 1;
            ways.note(way, Some(bytes), times[way as usize] + u64::from(read % 7));
        }
        chosen
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_tried_now_and_then() {
        let mut ways = PathSelector::default();
        let [_, by_key, request] = read(&mut ways, false, 100, 10_000, [0, 30_000, 20_000]);
        assert!(request > 9_700 && (100..300).contains(&by_key), "{by_key} {request}");
        let [kept, _, request] = read(&mut ways, true, 100, 10_000, [10_000, 30_000, 20_000]);
        assert!(kept > 9_700 && (100..300).contains(&request), "{kept} {request}");
    }

    #[test]
    fn the_server_is_spared_where_there_is_little_between_them() {
        let mut ways = PathSelector::default();
        let chosen = read(&mut ways, false, 100, 1_000, [0, 21_000, 20_000]);
        assert!(chosen[ReadPath::ByKey as usize] > 950, "{chosen:?}");
    }

    #[test]
    fn what_has_become_faster_is_found_out() {
        let mut ways = PathSelector::default();
        read(&mut ways, false, 100, 1_000, [0, 30_000, 20_000]);
        let chosen = read(&mut ways, false, 100, 3_000, [0, 5_000, 20_000]);
        assert!(chosen[ReadPath::ByKey as usize] > 2_000, "{chosen:?}");
    }

    #[test]
    fn what_is_far_slower_is_hardly_ever_tried() {
        let mut ways = PathSelector::default();
        read(&mut ways, false, 100, 100, [0, 1_000_000, 20_000]);
        let chosen = read(&mut ways, false, 100, 10_000, [0, 1_000_000, 20_000]);
        assert!((1..30).contains(&chosen[ReadPath::ByKey as usize]), "{chosen:?}");
    }

    #[test]
    fn sizes_are_told_apart() {
        let mut ways = PathSelector::default();
        for (bytes, times, expected) in [
            (100, [0, 30_000, 20_000], ReadPath::Request),
            (100_000, [0, 60_000, 90_000], ReadPath::ByKey),
            (1_000_000, [0, 500_000, 300_000], ReadPath::Request),
        ] {
            let chosen = read(&mut ways, false, bytes, 2_000, times);
            assert!(chosen[expected as usize] > 1_800, "{bytes}: {chosen:?}");
        }
        // A key of which nothing is known is taken for one as the last.
        ways.note(ReadPath::ByKey, Some(90_000), 60_000);
        assert_eq!(ways.choose(false, None, 1), ReadPath::ByKey);
        ways.note(ReadPath::Request, Some(2_000_000), 300_000);
        assert_eq!(ways.choose(false, None, 1), ReadPath::Request);
    }

    /// A window of 32 keys, of which the server answers one in `requested_ns`, and reads take `read_ns` each: one after the other in
    /// either case, so that how long one takes is what those before it take. How many keys were asked for.
    fn window(runs: &mut RunTracker, keys: u32, requested_ns: u64, read_ns: u64) -> u32 {
        let mut in_flight = std::collections::VecDeque::new();
        let (mut now, mut free) = (0u64, [0u64; 2]);
        let mut asked = 0;
        for key in 0..keys {
            if in_flight.len() == 32 {
                let (way, counts, began, ended) = in_flight.pop_front().expect("it is full");
                now = now.max(ended);
                if counts {
                    runs.note(way, Some(100), ended - began);
                }
            }
            let (way, counts) = runs.choose(false, key.wrapping_mul(0x9e37_79b1) >> 7);
            let is_asked = way == ReadPath::Request;
            asked += u32::from(is_asked);
            let queue = &mut free[usize::from(is_asked)];
            *queue = now.max(*queue) + if is_asked { requested_ns } else { read_ns };
            in_flight.push_back((way, counts, now, *queue));
        }
        asked
    }

    #[test]
    fn a_window_takes_the_way_that_gets_on_faster() {
        for (requested_ns, read_ns, share) in [(10, 40, 85..=100), (40, 10, 0..=15), (20, 21, 0..=15)] {
            let asked = window(&mut RunTracker::default(), 100_000, requested_ns * 1000, read_ns * 1000);
            assert!(share.contains(&(asked / 1000)), "{requested_ns} {read_ns}: {asked} of 100000");
        }
        // A change is noticed.
        let mut runs = RunTracker::default();
        window(&mut runs, 20_000, 10_000, 40_000);
        let asked = window(&mut runs, 100_000, 40_000, 10_000);
        assert!(asked < 40_000, "{asked}");
    }

    #[test]
    fn keys_of_a_run_go_one_way_and_half_of_them_count() {
        let mut runs = RunTracker::default();
        for _ in 0..50 {
            let run: Vec<_> = (0..KEYS_OF_A_RUN).map(|random| runs.choose(true, random)).collect();
            assert!(run.iter().all(|(way, _)| *way == run[0].0), "{run:?}");
            assert_eq!(run.iter().filter(|(_, counts)| *counts).count() as u32, KEYS_OF_A_RUN / 2);
            assert!(!run[0].1 && run[run.len() - 1].1);
            run.iter().for_each(|(way, _)| runs.note(*way, Some(100), 10_000));
        }
    }

    #[test]
    fn one_stall_changes_nothing_and_no_time_breaks_it() {
        let mut ways = PathSelector::default();
        read(&mut ways, true, 100, 200, [10_000, 0, 20_000]);
        ways.note(ReadPath::Kept, Some(100), 9_000_000_000);
        assert_eq!(ways.choose(true, Some(100), 1), ReadPath::Kept);
        for _ in 0..100 {
            ways.note(ReadPath::Kept, Some(100), u64::MAX);
            ways.note(ReadPath::Request, Some(100), 0);
        }
        assert_eq!(ways.choose(true, Some(100), 1), ReadPath::Request);
    }
}
