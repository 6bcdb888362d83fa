//! Many GETs at a time as over a fabric: reads run word by word in any order, and complete late in any order, while the
//! server's process writes.

use std::time::Duration;

use fabcache_layout::reader::remote::{CompletedGet, Now, RemoteOptions};
use fabcache_layout::reader::{Miss, ReadOutcome, Remote, Value};
use fabcache_layout::{Memory, header};
use fabcache_testbed::random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};

use crate::common::fabric::Fabric;
use crate::value::{check, key};
use crate::{Ledger, Scenario};

/// The number of GETs at a time.
const WINDOW: usize = 32;

/// How GETs at cached locations are validated.
#[derive(Clone, Copy, Debug)]
pub enum Settlement {
    /// By a read after the item's.
    Behind,
    /// The same, on a transport that reads in order.
    InOrder,
    /// By earlier reads, thanks to the server's grace period.
    Grace,
}

impl Settlement {
    pub const ALL: [Settlement; 3] = [Settlement::Behind, Settlement::InOrder, Settlement::Grace];
}

/// A GET in flight.
#[derive(Clone, Copy, Debug)]
struct PendingGet {
    key: usize,
    answered: u64,
    flushes: u64,
}

struct Window<'a> {
    ledger: &'a Ledger,
    scenario: Scenario,
    remote: Remote<Vec<u8>, u64>,
    fabric: Fabric,
    begun: [Option<PendingGet>; WINDOW],
    random: SplitMix64,
    hits: u64,
    kept: u64,
    misses: u64,
    requested: u64,
}

/// Reads this many keys; panics on a wrong result.
pub fn run(scenario: Scenario, way: Settlement, region: &Memory, ledger: &Ledger, gets: u64, seed: u64) {
    let options = RemoteOptions {
        gets: WINDOW,
        fetches: 40,
        in_order: matches!(way, Settlement::InOrder),
        grace_ns: if matches!(way, Settlement::Grace) { crate::GRACE.as_nanos() as u64 } else { 0 },
        gets_per_line: 8,
        ..RemoteOptions::default()
    };
    let birth = header::read(region).expect("a region");
    let mut window = Window {
        ledger,
        scenario,
        remote: Remote::new(&birth, ledger.secret(), options).expect("a sound region"),
        fabric: Fabric::new(region.clone(), options.in_order),
        begun: [None; WINDOW],
        random: SplitMix64::new(seed),
        hits: 0,
        kept: 0,
        misses: 0,
        requested: 0,
    };
    let mut begun = 0;
    while begun < gets || window.remote.gets_in_flight() > 0 {
        begun += window.begin((gets - begun) as usize);
        window.go_on();
    }
    let Window { hits, kept, misses, requested, fabric, .. } = window;
    let (fetches, lines) = fabric.posted;
    println!(
        "  {way:?}, window of {WINDOW}: {hits} hits, {kept} of them at kept locations, {misses} misses; {requested} times the \
         server was to be asked; {:.2} fetches a GET, {lines} lines",
        fetches as f64 / gets as f64
    );
    assert!(hits > gets / 100 && kept > gets / 1000, "too few hits");
    assert!(requested * 20 < gets, "readers fall back to the server too often");
}

impl Window<'_> {
    fn ns() -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    /// Begins as many GETs as there is room for.
    fn begin(&mut self, most: usize) -> u64 {
        let count = self.random.below(4).min(most).min(self.remote.free_slots());
        for _ in 0..count {
            // A few keys are read often, so that their cached locations are used.
            let keys = [1, 300, self.scenario.keys()][self.random.below(10).min(2)];
            let number =
                if self.random.once_in(2) { self.random.below(300) } else { self.random.below(keys) };
            let token = self.begun.iter().position(Option::is_none).expect("a free entry");
            let (answered, flushes) = (self.ledger.answered(number), self.ledger.flushes());
            self.begun[token] = Some(PendingGet { key: number, answered, flushes });
            let now = Now { second: crate::reader::second(self.ledger), ns: Window::ns() };
            self.remote.get(&key(number), token as u64, now);
        }
        count as u64
    }

    fn go_on(&mut self) {
        match self.random.below(8_000) {
            0 => std::thread::sleep(Duration::from_micros(100)),
            1..10 => std::thread::yield_now(),
            _ => {}
        }
        let random = &mut self.random;
        let mut below = |n| random.below(n);
        self.fabric.ns = Window::ns();
        self.fabric.post(&mut self.remote, &mut below);
        for _ in 0..6 {
            let parts = 1 + below(24);
            self.fabric.go_on(parts, &mut below);
        }
        let came = below(3);
        for _ in 0..came {
            let second = crate::reader::second(self.ledger);
            // After the reads were executed.
            self.fabric.ns = Window::ns();
            self.fabric.hand_in(&mut self.remote, second, false, &mut below);
        }
        while let Some(done) = self.remote.next_completed() {
            self.check(&done);
        }
    }

    fn check(&mut self, done: &CompletedGet<Vec<u8>, u64>) {
        let begun = self.begun[done.token as usize].take().expect("a started GET");
        let PendingGet { key: number, answered, flushes } = begun;
        let placed = self.fabric.take_value(done.id);
        match &done.outcome {
            ReadOutcome::Hit(hit) => {
                let value = match (hit.value, &done.buffer) {
                    (Value::Fetched { at, len }, Some(bytes)) => &bytes[at..at + len],
                    _ => &placed,
                };
                let (version, stored_after) = check(number, value);
                let last = self.ledger.begun(number);
                assert!(version >= answered, "key {number}: version {version} after {answered} was answered");
                assert!(version <= last, "key {number}: version {version}, but {last} is the last begun");
                assert!(stored_after >= flushes, "key {number}: flushed before the read began");
                assert!(hit.flags == 7);
                self.hits += 1;
                self.kept += u64::from(done.was_cached);
            }
            ReadOutcome::Miss(miss) => {
                assert!(self.scenario == Scenario::Short || *miss != Miss::Flushed, "nothing is flushed");
                assert!(self.scenario.may_miss(number) || answered == 0, "key {number} is missing");
                self.misses += 1;
            }
            ReadOutcome::Fallback(_) => self.requested += 1,
            ReadOutcome::Stale(_) | ReadOutcome::Gone => panic!("key {number}: {:?}", done.outcome),
        }
    }
}
