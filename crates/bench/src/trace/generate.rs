//! Synthetic traces: the same seed gives the same trace.

use std::ops::Range;

use serde::Serialize;

use super::{Object, Request, Trace};
use crate::random::Random;
use crate::zipf::Zipf;
use fabcache_testbed::random::mix;

/// A synthetic trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Zipf's law with exponent 0.8.
    Zipf08,
    /// Zipf's law with exponent 1.
    Zipf10,
    /// Zipf's law with exponent 1.2.
    Zipf12,
    /// Zipf's law with exponent 1, interrupted by scans over objects that are requested once: a fifth of all
    /// requests.
    Scan,
    /// A loop over objects, a tenth more than fit.
    Loop,
    /// Objects gain and lose popularity, with times to live from some seconds to unlimited.
    Churn,
    /// Zipf's law with exponent 1, whose ranks drift between objects.
    Drift,
    /// Zipf's law with exponent 0.9 over values of 4 B to 20 KB.
    Sizes,
    /// Zipf's law with exponent 1, and as many requests for objects that are requested once.
    OneHit50,
    /// Zipf's law with exponent 1, and four times as many requests for objects that are requested once.
    OneHit80,
    /// Memory full of objects that were read once; then bursts of 10%, 30% and 65% of memory, twice, each stored and
    /// then read.
    Bursts,
    /// Zipf's law with exponent 1, a scan over twice what memory holds, then three bursts of 30% of memory.
    ScanBursts,
    /// Zipf's law with exponent 1, and as many sessions: stored, and read once after 30% of memory was stored.
    Sessions,
    /// Zipf's law with exponent 1 over objects that are all replaced three times.
    Change,
    /// Bursts of 1%, 10%, 30% and 65% of memory, each stored and then read, in memory that objects fill that were read
    /// once.
    OnceBursts,
    /// The same bursts in memory that objects fill that were read three times.
    ThriceBursts,
    /// The same bursts in memory that objects fill that a fourth of a burst's requests read.
    BusyBursts,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 17] = [
        Kind::Zipf08,
        Kind::Zipf10,
        Kind::Zipf12,
        Kind::Scan,
        Kind::Loop,
        Kind::Churn,
        Kind::Drift,
        Kind::Sizes,
        Kind::OneHit50,
        Kind::OneHit80,
        Kind::Bursts,
        Kind::ScanBursts,
        Kind::Sessions,
        Kind::Change,
        Kind::OnceBursts,
        Kind::ThriceBursts,
        Kind::BusyBursts,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Zipf08 => "zipf-0.8",
            Kind::Zipf10 => "zipf-1.0",
            Kind::Zipf12 => "zipf-1.2",
            Kind::Scan => "zipf-scan",
            Kind::Loop => "loop",
            Kind::Churn => "churn-ttl",
            Kind::Drift => "drift",
            Kind::Sizes => "sizes",
            Kind::OneHit50 => "one-hit-50",
            Kind::OneHit80 => "one-hit-80",
            Kind::Bursts => "bursts",
            Kind::ScanBursts => "scan-bursts",
            Kind::Sessions => "sessions",
            Kind::Change => "change",
            Kind::OnceBursts => "once-bursts",
            Kind::ThriceBursts => "thrice-bursts",
            Kind::BusyBursts => "busy-bursts",
        }
    }

    /// Returns whether the trace follows from the size of the memory it is replayed in.
    pub fn depends_on_memory(self) -> bool {
        match self {
            Kind::Loop | Kind::Bursts | Kind::ScanBursts | Kind::Sessions => true,
            Kind::OnceBursts | Kind::ThriceBursts | Kind::BusyBursts => true,
            Kind::Zipf08 | Kind::Zipf10 | Kind::Zipf12 | Kind::Scan | Kind::Churn | Kind::Drift => false,
            Kind::Sizes | Kind::OneHit50 | Kind::OneHit80 | Kind::Change => false,
        }
    }

    /// Returns the kind with this name.
    pub fn of_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The size of a loop, relative to the cache.
const LOOP_EXCESS: f64 = 1.1;
/// Objects in a full run of the traces that depend on memory; memory holds a share of them.
const MEMORY_OBJECTS: u32 = 500_000;

/// The size and seed of synthetic traces.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Objects and requests, as a multiple of a full run.
    pub scale: f64,
    /// Seed of the random sequence.
    pub seed: u64,
    /// Speed of time: a multiple means more requests per second, and shorter times to live.
    pub speed: u32,
}

impl Shape {
    fn count(&self, full: u32) -> u32 {
        ((f64::from(full) * self.scale).round() as u32).max(100)
    }

    /// Returns how many objects fit into the memory of a trace that depends on it.
    pub fn objects_in_memory(&self, share: f64) -> u32 {
        (f64::from(self.count(MEMORY_OBJECTS)) * share).round().max(1.0) as u32
    }

    /// Generates a trace. One that depends on memory is for a memory of this share of half a million objects.
    pub fn generate(&self, kind: Kind, share: f64) -> Trace {
        let maker = |objects| TraceBuilder::new(kind, *self, self.count(objects), self.count(REQUESTS));
        let fit = self.objects_in_memory(share);
        match kind {
            Kind::Zipf08 => maker(1_000_000).zipf(0.8),
            Kind::Zipf10 => maker(1_000_000).zipf(1.0),
            Kind::Zipf12 => maker(4_000_000).zipf(1.2),
            Kind::Scan => maker(2_000_000).zipf_and_scans(),
            Kind::Loop => {
                let mut maker = maker(MEMORY_OBJECTS);
                maker.universe = (f64::from(fit) * LOOP_EXCESS).round() as u32;
                maker.looping()
            }
            Kind::Churn => maker(REQUESTS).churn(),
            Kind::Drift => maker(1_000_000).drift(),
            Kind::Sizes => maker(200_000).zipf(0.9),
            Kind::OneHit50 => maker(1_000_000).zipf_and_new(2),
            Kind::OneHit80 => maker(1_000_000).zipf_and_new(5),
            Kind::Bursts => maker(0).fill_and_bursts(fit),
            Kind::ScanBursts => maker(1_000_000).scan_and_bursts(fit),
            Kind::Sessions => maker(1_000_000).zipf_and_sessions(fit),
            Kind::Change => maker(1_000_000).zipf_and_change(),
            Kind::OnceBursts => maker(0).fills_and_bursts(fit, 1, false),
            Kind::ThriceBursts => maker(0).fills_and_bursts(fit, 3, false),
            Kind::BusyBursts => maker(0).fills_and_bursts(fit, 1, true),
        }
    }
}

/// Sizes of repeated bursts in percent of memory.
const BURSTS_OF_PERCENT: [u32; 6] = [10, 30, 65, 10, 30, 65];
/// Sizes in percent of memory of bursts that each follow a fill of memory.
pub(super) const FILLS_AND_BURSTS_OF_PERCENT: [u32; 4] = [1, 10, 30, 65];
/// A session is read when so many others, in percent of memory, were stored.
pub(super) const SESSION_PERCENT: u32 = 30;
/// Working sets of a changing trace.
pub(super) const WORKING_SETS: u32 = 4;
/// Requests of a full run.
const REQUESTS: u32 = 4_000_000;
/// Requests in one second of a trace.
const REQUESTS_PER_SECOND: u32 = 4_000;
/// An object that is not yet requested.
const UNKNOWN: u32 = u32::MAX;

/// Builds a trace.
struct TraceBuilder {
    kind: Kind,
    speed: u32,
    trace: Trace,
    random: Random,
    seed: u64,
    /// The number of possible objects.
    universe: u32,
    requests: u32,
    /// The trace's index of each object.
    known: Vec<u32>,
}

impl TraceBuilder {
    fn new(kind: Kind, shape: Shape, universe: u32, requests: u32) -> TraceBuilder {
        let seed = mix(shape.seed ^ (kind as u64) << 32);
        let mut trace = Trace { name: kind.name().to_owned(), ..Trace::default() };
        trace.requests.reserve_exact(requests as usize);
        let known = vec![UNKNOWN; universe as usize];
        TraceBuilder {
            kind,
            speed: shape.speed,
            trace,
            random: Random::new(seed),
            seed,
            universe,
            requests,
            known,
        }
    }

    fn request(&mut self, number: u32) {
        if number as usize >= self.known.len() {
            self.known.resize(number as usize + 1, UNKNOWN);
        }
        let known = &mut self.known[number as usize];
        if *known == UNKNOWN {
            *known = self.trace.objects.len() as u32;
            self.trace.objects.push(object(self.kind, self.seed, self.speed, number));
        }
        let second = self.trace.requests.len() as u32 / (REQUESTS_PER_SECOND * self.speed);
        self.trace.requests.push(Request { second, object: *known });
    }

    fn is_done(&self) -> bool {
        self.trace.requests.len() >= self.requests as usize
    }

    /// Requests an object by its popularity.
    fn request_popular(&mut self, zipf: &Zipf) {
        let rank = zipf.sample(&mut self.random);
        self.request(rank - 1);
    }

    fn zipf(mut self, exponent: f64) -> Trace {
        let zipf = Zipf::new(self.universe, exponent);
        while !self.is_done() {
            self.request_popular(&zipf);
        }
        self.trace
    }

    /// All but one in `every` requests are for objects that are not requested again.
    fn zipf_and_new(mut self, every: u32) -> Trace {
        let zipf = Zipf::new(self.universe, 1.0);
        let mut new = self.universe;
        while !self.is_done() {
            if self.random.below(every) == 0 {
                self.request_popular(&zipf);
            } else {
                self.request(new);
                new += 1;
            }
        }
        self.trace
    }

    /// Reserves numbers for new objects, as many as this percentage of `fit`.
    fn new_objects(&mut self, fit: u32, percent: u32) -> Range<u32> {
        let from = self.universe;
        self.universe += (u64::from(fit) * u64::from(percent) / 100).max(1) as u32;
        from..self.universe
    }

    /// Fills memory with new objects: stores each tenth of them, and then reads it so many times.
    fn fill(&mut self, fit: u32, reads: u32) {
        for _ in 0..10 {
            let numbers = self.new_objects(fit, 10);
            for _ in 0..=reads {
                numbers.clone().for_each(|number| self.request(number));
            }
        }
    }

    /// Stores new objects, and then reads each: a burst. A fourth of its requests are for any of `others`.
    fn burst(&mut self, fit: u32, percent: u32, others: Option<&Range<u32>>) {
        let numbers = self.new_objects(fit, percent);
        let mut reads = Vec::with_capacity(numbers.len());
        for reads_burst in [false, true] {
            for number in numbers.clone() {
                if let Some(others) = others.filter(|_| self.random.below(3) == 0) {
                    let other = others.start + self.random.below(others.len() as u32);
                    self.request(other);
                }
                if reads_burst {
                    reads.push(self.trace.requests.len() as u32);
                }
                self.request(number);
            }
        }
        self.trace.bursts.push(reads);
    }

    fn fill_and_bursts(mut self, fit: u32) -> Trace {
        // Twice what memory holds, in parts of which nothing is read later.
        (0..2).for_each(|_| self.fill(fit, 1));
        self.bursts(fit, &BURSTS_OF_PERCENT)
    }

    /// Fills memory with objects that are read so many times, before each burst; with `reads_others`, they are also
    /// read during the burst.
    fn fills_and_bursts(mut self, fit: u32, reads: u32, reads_others: bool) -> Trace {
        self.fill(fit, reads);
        for percent in FILLS_AND_BURSTS_OF_PERCENT {
            let from = self.universe;
            self.fill(fit, reads);
            let filled = from..self.universe;
            self.burst(fit, percent, reads_others.then_some(&filled));
        }
        self.trace
    }

    fn scan_and_bursts(mut self, fit: u32) -> Trace {
        let zipf = Zipf::new(self.universe, 1.0);
        for _ in 0..self.requests / 4 {
            self.request_popular(&zipf);
        }
        let from = self.universe;
        self.universe += 2 * fit;
        (from..self.universe).for_each(|number| self.request(number));
        self.bursts(fit, &[30; 3])
    }

    fn bursts(mut self, fit: u32, percents: &[u32]) -> Trace {
        percents.iter().for_each(|percent| self.burst(fit, *percent, None));
        self.trace
    }

    fn zipf_and_sessions(mut self, fit: u32) -> Trace {
        let zipf = Zipf::new(self.universe, 1.0);
        let age = (fit * SESSION_PERCENT / 100).max(1);
        let (first, mut new) = (self.universe, self.universe);
        while !self.is_done() {
            if self.random.below(2) == 0 {
                self.request_popular(&zipf);
                continue;
            }
            self.request(new);
            new += 1;
            if new - first > age {
                self.request(new - 1 - age);
            }
        }
        self.trace.requests.truncate(self.requests as usize);
        self.trace
    }

    fn zipf_and_change(mut self) -> Trace {
        let zipf = Zipf::new(self.universe, 1.0);
        for set in 0..WORKING_SETS {
            for _ in 0..self.requests / WORKING_SETS {
                let rank = zipf.sample(&mut self.random);
                self.request(set * self.universe + rank - 1);
            }
        }
        self.trace
    }

    /// The lower half of the universe is popular by Zipf's law; the upper is scanned.
    fn zipf_and_scans(mut self) -> Trace {
        let popular = self.universe / 2;
        let zipf = Zipf::new(popular, 1.0);
        let scan = (self.requests / 200).max(1);
        let mut scanned = popular;
        while !self.is_done() {
            for _ in 0..4 * scan {
                self.request_popular(&zipf);
            }
            for _ in 0..scan {
                self.request(scanned);
                scanned = if scanned + 1 == self.universe { popular } else { scanned + 1 };
            }
        }
        self.trace.requests.truncate(self.requests as usize);
        self.trace
    }

    fn looping(mut self) -> Trace {
        for i in 0..self.requests {
            self.request(i % self.universe);
        }
        self.trace
    }

    /// Every eighth request is for a new object; the others are for older ones, of age `a` in proportion to
    /// `1/a`.
    fn churn(mut self) -> Trace {
        let ages = Zipf::new(self.universe / 16, 1.0);
        // The trace begins with objects of all ages.
        let mut newest = self.universe / 16;
        while !self.is_done() {
            if self.random.below(8) == 0 && newest + 1 < self.universe {
                newest += 1;
                self.request(newest);
            } else {
                let age = ages.sample(&mut self.random);
                self.request(newest + 1 - age);
            }
        }
        self.trace
    }

    /// Every tenth request, an object of a popular rank and one of any rank swap.
    fn drift(mut self) -> Trace {
        let zipf = Zipf::new(self.universe, 1.0);
        let mut of_rank: Vec<u32> = (0..self.universe).collect();
        while !self.is_done() {
            if self.random.below(10) == 0 {
                let (one, other) = (zipf.sample(&mut self.random) - 1, self.random.below(self.universe));
                of_rank.swap(one as usize, other as usize);
            }
            let rank = zipf.sample(&mut self.random);
            self.request(of_rank[rank as usize - 1]);
        }
        self.trace
    }
}

/// Derives an object from its number.
fn object(kind: Kind, seed: u64, speed: u32, number: u32) -> Object {
    let mut random = Random::new(seed ^ u64::from(number));
    let key_bytes = 16 + random.below(25) as u8;
    let value_bytes = match kind {
        // As many of 4 to 8 bytes as of 8 to 16, and so on.
        Kind::Sizes => (4.0 * (20_480.0f64 / 4.0).powf(random.unit())).round() as u32,
        _ => match random.below(20) {
            0..=13 => 10 + random.below(191),
            14..=18 => 200 + random.below(801),
            _ => 1_000 + random.below(3_097),
        },
    };
    let ttl_s = match kind {
        Kind::Churn => match [10, 50, 200, 200, 600, 0, 0][random.below(7) as usize] {
            0 => 0,
            ttl_s => (ttl_s / speed).max(1),
        },
        _ => 0,
    };
    Object { key_bytes, value_bytes, ttl_s }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const SHAPE: Shape = Shape { scale: 0.005, seed: 1, speed: 1 };

    #[test]
    fn traces_are_whole_and_repeatable() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_name(kind.name()), Some(kind));
            let trace = SHAPE.generate(kind, 1.0);
            let expected = match kind {
                // Two memories, and 210% of one, each twice.
                Kind::Bursts => 20_500,
                Kind::ScanBursts => 5_000 + 5_000 + 3 * 2 * 750,
                // Five memories, and 106% of one.
                Kind::OnceBursts => 5 * 5_000 + 2 * 2_650,
                Kind::ThriceBursts => 5 * 10_000 + 2 * 2_650,
                Kind::BusyBursts => trace.requests.len(),
                _ => 20_000,
            };
            assert_eq!(trace.requests.len(), expected, "{kind:?}");
            assert!(trace.requests.is_sorted_by_key(|request| request.second));
            let requested: HashSet<u32> = trace.requests.iter().map(|request| request.object).collect();
            assert_eq!(requested.len(), trace.objects.len(), "{kind:?}");
            assert!(trace.objects.iter().all(|o| (16..=40).contains(&o.key_bytes)));
            let again = SHAPE.generate(kind, 1.0);
            assert_eq!((again.objects, again.requests), (trace.objects.clone(), trace.requests.clone()));
            let other = Shape { seed: 2, ..SHAPE }.generate(kind, 1.0);
            assert_ne!(other.objects, trace.objects, "{kind:?}");
        }
    }

    #[test]
    fn each_trace_has_its_pattern() {
        let sizes = SHAPE.generate(Kind::Sizes, 1.0);
        let values = || sizes.objects.iter().map(|object| object.value_bytes);
        assert!(values().all(|len| (4..=20_480).contains(&len)));
        assert!(values().any(|len| len < 8) && values().any(|len| len > 16_000));

        let churn = SHAPE.generate(Kind::Churn, 1.0);
        let ttls: HashSet<u32> = churn.objects.iter().map(|object| object.ttl_s).collect();
        assert_eq!(ttls, HashSet::from([0, 10, 50, 200, 600]));

        let fast = Shape { speed: 10, ..SHAPE }.generate(Kind::Churn, 1.0);
        let ttls: HashSet<u32> = fast.objects.iter().map(|object| object.ttl_s).collect();
        assert_eq!(ttls, HashSet::from([0, 1, 5, 20, 60]));
        let seconds = |trace: &Trace| trace.requests.iter().map(|request| request.second).max();
        assert_eq!((seconds(&churn), seconds(&fast)), (Some(4), Some(0)));

        let round = SHAPE.generate(Kind::Loop, 0.5);
        assert_eq!((SHAPE.objects_in_memory(0.5), round.objects.len()), (1_250, 1_375));
        assert!(round.requests.iter().enumerate().all(|(i, r)| r.object as usize == i % 1_375));

        let bursts = SHAPE.generate(Kind::Bursts, 1.0);
        let last = &bursts.requests[20_500 - 2 * 1_625..];
        assert!(
            (0..1_625).all(|i| last[i].object == last[1_625 + i].object),
            "65% of 2,500, stored and read"
        );
        let counts: Vec<usize> = bursts.bursts.iter().map(Vec::len).collect();
        assert_eq!(counts, [250, 750, 1_625, 250, 750, 1_625]);
        assert!(bursts.bursts[5].iter().copied().eq(20_500 - 1_625..20_500), "the reads of the last burst");

        let change = SHAPE.generate(Kind::Change, 1.0);
        let of = |part: usize| -> HashSet<u32> {
            change.requests[part * 5_000..(part + 1) * 5_000].iter().map(|request| request.object).collect()
        };
        assert!(of(0).is_disjoint(&of(1)) && of(2).is_disjoint(&of(3)));

        let scan = SHAPE.generate(Kind::Scan, 1.0);
        let next = scan.next_accesses();
        let mut counts = vec![0u32; scan.objects.len()];
        scan.requests.iter().for_each(|request| counts[request.object as usize] += 1);
        // A scan of 100 objects after 400 others.
        assert!(scan.requests[400..500].iter().all(|request| counts[request.object as usize] == 1));
        assert!(next[..400].iter().any(|&next| next != super::super::NEVER));
    }

    /// Returns a builder whose requests by popularity are all for one object: the first.
    fn builder_with_one_popular(kind: Kind, requests: u32) -> TraceBuilder {
        let mut builder = TraceBuilder::new(kind, SHAPE, 1, requests);
        builder.request(0);
        builder
    }

    #[test]
    fn each_session_is_stored_and_read_once_at_its_age() {
        let (fit, age) = (1_000, 300);
        let trace = builder_with_one_popular(Kind::Sessions, 20_000).zipf_and_sessions(fit);
        let mut requests: Vec<u32> = trace.requests.iter().map(|request| request.object).collect();
        requests.retain(|&object| object != 0);
        // Each session has the next number, and the one `age` sessions older is read after it.
        let mut expected = (1..).flat_map(|new| [Some(new), (new > age).then(|| new - age)]).flatten();
        assert!(requests.len() > 13_000, "two thirds: {}", requests.len());
        assert!(requests.iter().all(|&object| expected.next() == Some(object)));
    }

    #[test]
    fn one_hit_traces_have_their_part_of_objects_requested_once() {
        for (kind, every, part) in [(Kind::OneHit50, 2, 0.5), (Kind::OneHit80, 5, 0.8)] {
            let trace = builder_with_one_popular(kind, 20_000).zipf_and_new(every);
            let once = trace.objects.len() - 1;
            let popular = trace.requests.iter().filter(|request| request.object == 0).count();
            assert_eq!(once + popular, 20_000, "{kind:?}: every other object is requested once");
            assert!((once as f64 / 20_000.0 - part).abs() < 0.02, "{kind:?}: {once} are requested once");

            let trace = SHAPE.generate(kind, 1.0);
            let mut counts = vec![0u32; trace.objects.len()];
            trace.requests.iter().for_each(|request| counts[request.object as usize] += 1);
            let once = counts.iter().filter(|count| **count == 1).count();
            assert!(once as f64 > (part - 0.02) * 20_000.0, "{kind:?}: {once} are requested once");
        }
    }

    /// Returns, for each burst, the requests from the fill before it to its last read, and how many of them fill.
    fn fills(trace: &Trace, reads: usize) -> Vec<(&[Request], usize)> {
        let filling = 2_500 * (1 + reads);
        let mut from = filling;
        let bursts = trace.bursts.iter().map(|burst| {
            let end = *burst.last().expect("a burst has reads") as usize + 1;
            (&trace.requests[std::mem::replace(&mut from, end)..end], filling)
        });
        bursts.collect()
    }

    #[test]
    fn bursts_are_stored_and_read_in_memory_that_is_full() {
        let (reads_of, sizes) = ([(Kind::OnceBursts, 1), (Kind::ThriceBursts, 3)], [25, 250, 750, 1_625]);
        for (kind, reads) in reads_of {
            let trace = SHAPE.generate(kind, 1.0);
            assert_eq!(trace.bursts.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
            for ((requests, filling), burst) in fills(&trace, reads).into_iter().zip(sizes) {
                let mut counts = HashMap::new();
                for request in &requests[..filling] {
                    *counts.entry(request.object).or_insert(0) += 1;
                }
                assert_eq!(counts.len(), 2_500, "{kind:?}: memory is filled");
                assert!(counts.values().all(|count| *count == 1 + reads), "{kind:?}: {reads} reads each");
                let objects: Vec<u32> = requests[filling..].iter().map(|request| request.object).collect();
                assert_eq!(objects.len(), 2 * burst);
                assert_eq!(objects[..burst], objects[burst..], "{kind:?}: stored, then read");
                let new: HashSet<&u32> =
                    objects.iter().filter(|object| !counts.contains_key(object)).collect();
                assert_eq!(new.len(), burst, "{kind:?}: new objects");
            }
        }
    }

    #[test]
    fn busy_bursts_share_their_time_with_older_objects() {
        let trace = SHAPE.generate(Kind::BusyBursts, 1.0);
        for ((requests, filling), reads) in fills(&trace, 1).into_iter().zip(&trace.bursts) {
            let filled: HashSet<u32> = requests[..filling].iter().map(|request| request.object).collect();
            assert_eq!(filled.len(), 2_500);
            let (old, new): (Vec<u32>, Vec<u32>) = requests[filling..]
                .iter()
                .map(|request| request.object)
                .partition(|object| filled.contains(object));
            let (stored, read) = new.split_at(reads.len());
            assert_eq!(stored, read, "each object of the burst is stored, then read");
            assert!(
                reads.iter().map(|at| &trace.requests[*at as usize].object).eq(read),
                "its reads are marked"
            );
            let share = old.len() as f64 / (requests.len() - filling) as f64;
            assert!(
                (share - 0.25).abs() < 3.0 * (0.25 * 0.75 / new.len() as f64).sqrt(),
                "{share} of older ones"
            );
            let distinct = old.iter().collect::<HashSet<_>>().len();
            assert!(distinct as f64 > old.len() as f64 * 0.6, "spread: {distinct} of {}", old.len());
        }
    }
}
