//! The process that maps the region read-only, and checks every read.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use fabcache_layout::Memory;
use fabcache_layout::format::STATUS_BYTES;
use fabcache_layout::header;
use fabcache_layout::reader::{
    Fetched, Get, Location, Mapped, MetadataCache, Miss, ReadOutcome, Reader, Rejection, Rejections, Step,
    Validation, Value,
};
use fabcache_testbed::random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};

use crate::common::outside::map_all;
use crate::value::{check, key};
use crate::window::{self, Settlement};
use crate::writers::Server;
use crate::{Ledger, Scenario};

/// The first reader prints its progress after this many reads.
const PROGRESS_READS: u64 = 5_000_000;

/// Builds the order for a reader process.
pub fn order(scenario: usize, reads: u64, reader: u64, server: &Server) -> String {
    let (pid, region) = (std::process::id(), server.store.region().expect("a memory file").as_raw_fd());
    format!(
        "{scenario} {reads} {reader} /proc/{pid}/fd/{region} /proc/{pid}/fd/{}",
        server.ledger.file().as_raw_fd()
    )
}

/// Reads as ordered; panics on a wrong result.
pub fn run(order: &str) {
    let words: Vec<&str> = order.split(' ').collect();
    let [scenario, reads, number, region, ledger] = words[..] else { panic!("not an order: {order}") };
    let scenario = Scenario::ALL[scenario.parse::<usize>().expect("a number")];
    let [reads, number] = [reads, number].map(|word| word.parse().expect("a number"));
    let open = |path: &str| map_all(File::open(path).expect("the other process runs").as_fd());
    let ledger = Ledger::of(open(ledger));
    let region = open(region);
    let mut outsider = Outsider {
        scenario,
        same_host: Mapped::open(region.clone(), Validation::SameHost).expect("a region"),
        value: Vec::new(),
        slow: Slow::open(region, Validation::Remote(ledger.secret()), number),
        ledger,
        locations: vec![[None; 2]; scenario.keys()],
        random: SplitMix64::new(77 + number),
    };
    outsider.run(reads, number == 0);
    for (way, part) in Settlement::ALL.into_iter().zip(0..) {
        let seed = 5_000 + number * 10 + part;
        window::run(scenario, way, &outsider.slow.memory, &outsider.ledger, reads / 8, seed);
    }
}

/// A reader as over a fabric: fetches are late, and their words arrive in any order.
struct Slow {
    memory: Memory,
    reader: Reader,
    known: MetadataCache,
    bytes: Vec<u8>,
    /// The last value assembled from chunks.
    assembled: Vec<u8>,
    random: SplitMix64,
}

impl Slow {
    fn open(memory: Memory, mode: Validation, number: u64) -> Slow {
        let birth = header::read(&memory).expect("a region");
        let reader = Reader::new(&birth, mode).expect("a sound region");
        let known = MetadataCache::new(&reader);
        let random = SplitMix64::new(number + 9_999);
        Slow { memory, reader, known, bytes: Vec::new(), assembled: Vec::new(), random }
    }

    fn begin(&mut self, now: u32) {
        let mut line = [0; STATUS_BYTES];
        self.memory.copy_out(fabcache_layout::format::STATUS_AT, &mut line);
        self.known.begin(&line, now);
    }

    fn run(&mut self, key: &[u8], location: Option<Location>) -> (ReadOutcome, Rejections) {
        let mut get = match location {
            Some(location) => Get::at(&self.reader, key, location),
            None => Get::by_key(&self.reader, key),
        };
        let mut step = get.next(&self.reader, &mut self.known, Fetched::Nothing);
        loop {
            self.wait();
            let fetched = match step {
                Step::Word(offset) => {
                    Fetched::Word(self.memory.load(offset, std::sync::atomic::Ordering::Acquire))
                }
                Step::Bytes { offset, len } => {
                    self.fetch(offset, len);
                    Fetched::Bytes(&self.bytes)
                }
                Step::Value { .. } | Step::Chunks { .. } => unreachable!("values are not read in place"),
                Step::Done(outcome) => {
                    self.assembled = get.take_assembled();
                    return (outcome, get.rejections());
                }
            };
            step = get.next(&self.reader, &mut self.known, fetched);
        }
    }

    /// Sometimes delays a fetch long enough for anything to happen.
    fn wait(&mut self) {
        match self.random.below(4_000) {
            0 => std::thread::sleep(Duration::from_micros(200)),
            1..8 => std::thread::yield_now(),
            _ => {}
        }
    }

    /// Copies aligned words one by one, from the front, from the back, or from the middle.
    fn fetch(&mut self, offset: u64, len: usize) {
        self.bytes.clear();
        self.bytes.resize(len, 0);
        let cuts: Vec<u64> = {
            let first = offset.next_multiple_of(8).min(offset + len as u64);
            std::iter::once(offset).chain((first..offset + len as u64).step_by(8)).collect()
        };
        let parts = cuts.len();
        let (start, backwards) = (self.random.below(parts), self.random.once_in(2));
        for i in 0..parts {
            let part = (if backwards { parts - 1 - i } else { i } + start) % parts;
            let end = cuts.get(part + 1).copied().unwrap_or(offset + len as u64);
            let range = (cuts[part] - offset) as usize..(end - offset) as usize;
            self.memory.copy_out(cuts[part], &mut self.bytes[range]);
            if i == parts / 2 {
                self.wait();
            }
        }
    }
}

/// Returns the second by this process's clock.
pub fn second(ledger: &Ledger) -> u32 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    ((now.tv_sec * 1_000_000_000 + now.tv_nsec - ledger.clock_zero_ns()) / 1_000_000_000) as u32
}

/// Counts of reads by result.
#[derive(Default)]
struct Counts {
    hits: u64,
    hits_at: u64,
    misses: u64,
    requested: u64,
    rejections: [u64; Rejection::KINDS],
}

impl Counts {
    fn of(&self, kind: Rejection) -> u64 {
        self.rejections[kind as usize]
    }

    fn accepted(&self) -> f64 {
        let accepted = self.hits + self.hits_at + self.misses;
        accepted as f64 / (accepted + self.requested).max(1) as f64
    }

    fn print(&self, name: &str) {
        let Counts { hits, hits_at, misses, requested, .. } = self;
        println!(
            "  {name}: {:.4}% accepted: {hits} hits by key, {hits_at} at kept locations, {misses} misses; \
             {requested} times the server was to be asked",
            self.accepted() * 100.0
        );
        let kinds =
            Rejection::ALL.iter().zip(self.rejections).map(|(kind, count)| format!("{kind:?} {count}"));
        println!("    rejected: {}", kinds.collect::<Vec<_>>().join(", "));
    }
}

struct Outsider {
    scenario: Scenario,
    same_host: Mapped,
    /// The last value that the same-host reader found.
    value: Vec<u8>,
    slow: Slow,
    ledger: Ledger,
    /// Cached locations of each key, by kind of reader.
    locations: Vec<[Option<Location>; 2]>,
    random: SplitMix64,
}

impl Outsider {
    fn run(&mut self, reads: u64, tells: bool) {
        let started = Instant::now();
        let (mut hottest, mut others) = (Counts::default(), Counts::default());
        for done in 1..=reads {
            if tells && done % PROGRESS_READS == 0 {
                eprintln!("  {done} of {reads} reads, {:.0?}", started.elapsed());
            }
            if self.random.once_in(10) {
                self.read(0, &mut hottest);
            } else {
                // Some keys are read often, so that their cached locations are used.
                let keys = if self.random.once_in(2) { 500 } else { self.scenario.keys() };
                let key = 1 + self.random.below(keys - 1);
                self.read(key, &mut others);
            }
        }
        // Print one reader's lines together.
        let _lock = std::io::stdout().lock();
        hottest.print("hottest key");
        others.print("other keys");
        println!("  {:.1?}", started.elapsed());
        let flushed = hottest.of(Rejection::Flushed) + others.of(Rejection::Flushed);
        assert!(self.scenario == Scenario::Short || flushed == 0, "a state word of another item");
        assert!(others.hits > reads / 100 && others.hits_at > reads / 1000, "too few hits");
        assert!(others.accepted() >= 0.99, "readers fall back to the server too often");
    }

    fn now(&self) -> u32 {
        second(&self.ledger)
    }

    /// Reads a key like each kind of reader: at its cached location, and if that is stale, by key.
    fn read(&mut self, number: usize, counts: &mut Counts) {
        let key = key(number);
        let kind = self.random.below(2);
        let location = self.locations[number][kind].filter(|_| !self.random.once_in(3));
        let (answered, flushes) = (self.ledger.answered(number), self.ledger.flushes());
        let now = self.now();
        if kind == 0 {
            self.same_host.begin(now);
        } else {
            self.slow.begin(now)
        }
        let mut outcome = self.get(kind, &key, location, counts);
        let is_at = location.is_some() && matches!(outcome, ReadOutcome::Hit(_));
        if matches!(outcome, ReadOutcome::Stale(_)) {
            outcome = self.get(kind, &key, None, counts);
        }
        match outcome {
            ReadOutcome::Hit(hit) => {
                let value = match (hit.value, kind) {
                    (Value::Fetched { at, len }, 1) => &self.slow.bytes[at..at + len],
                    (Value::Assembled, 1) => &self.slow.assembled,
                    _ => &self.value,
                };
                let (version, stored_after) = check(number, value);
                let begun = self.ledger.begun(number);
                assert!(version >= answered, "key {number}: version {version} after {answered} was answered");
                assert!(version <= begun, "key {number}: version {version}, but {begun} is the last begun");
                assert!(stored_after >= flushes, "key {number}: flushed before the read began");
                assert!(hit.flags == 7 && (hit.expiry == 0 || hit.expiry > now));
                if is_at {
                    counts.hits_at += 1
                } else {
                    counts.hits += 1
                }
                // Old locations are kept long, so that other items are written there.
                if self.random.once_in(2) || self.locations[number][kind].is_none() {
                    self.locations[number][kind] = Some(hit.location);
                }
            }
            ReadOutcome::Miss(miss) => {
                assert!(self.scenario == Scenario::Short || miss != Miss::Flushed, "nothing is flushed");
                assert!(self.scenario.may_miss(number) || answered == 0, "key {number} is missing");
                counts.misses += 1;
            }
            ReadOutcome::Fallback(_) => counts.requested += 1,
            ReadOutcome::Stale(_) | ReadOutcome::Gone => unreachable!("a GET by key is neither"),
        }
    }

    fn get(
        &mut self,
        kind: usize,
        key: &[u8],
        location: Option<Location>,
        counts: &mut Counts,
    ) -> ReadOutcome {
        let (outcome, rejections) = match (kind, location) {
            (1, location) => self.slow.run(key, location),
            (_, None) if self.random.once_in(2) => (self.get_behind_others(key), Rejections::default()),
            (_, location) => {
                let (outcome, rejections) = match location {
                    Some(location) => self.same_host.get_at(key, location),
                    None => self.same_host.get(key),
                };
                if let ReadOutcome::Hit(hit) = &outcome {
                    self.value.clear();
                    self.value.extend_from_slice(self.same_host.value(hit));
                }
                (outcome, rejections)
            }
        };
        for (sum, count) in counts.rejections.iter_mut().zip(rejections.0) {
            *sum += u64::from(count);
        }
        outcome
    }

    /// Reads a key as the last of a batch, so that knowledge gained by the others does not apply to it.
    fn get_behind_others(&mut self, key: &[u8]) -> ReadOutcome {
        let others: [_; 5] =
            std::array::from_fn(|_| crate::value::key(self.random.below(self.scenario.keys())));
        let mut last = None;
        let value = &mut self.value;
        self.same_host.get_many(
            others.len() + 1,
            |number| others.get(number).map_or(key, |other| &other[..]),
            |number, _, outcome, found| {
                if number == others.len() {
                    std::mem::swap(value, found);
                    last = Some(outcome);
                }
            },
        );
        last.expect("the key is in the batch")
    }
}
