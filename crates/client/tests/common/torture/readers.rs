//! Readers, which check every result.

use fabcache_client::{Client, CompletedRequest, FabricMode, Item, Outcome, RegisteredBuffer, Request};

use super::Scenario;
use super::ledger::{Before, COUNTERS, Ledger};
use super::value::{check, key};
use super::writers::{FLAGS, counter_key};
use fabcache_testbed::random::SplitMix64;
use fabcache_testbed::wait::amount;

/// The number of keys read at a time.
pub fn window() -> usize {
    amount(32, 8)
}

/// Keys that are read often, so that their cached locations are used.
const HOT_KEYS: usize = 300;

/// The size of a registered buffer: fits most values.
fn room(scenario: Scenario) -> usize {
    if scenario == Scenario::Long { 128 << 10 } else { 20 << 10 }
}

/// A way to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// One after the other, without the server.
    Alone,
    /// Many at a time, without the server.
    Windows,
    /// Many in one call, without the server.
    Multiget,
    /// As by default.
    Auto,
    /// Through the server.
    Asking,
}

impl Sort {
    pub const ALL: [Sort; 5] = [Sort::Alone, Sort::Windows, Sort::Multiget, Sort::Auto, Sort::Asking];

    pub fn mode(self) -> FabricMode {
        match self {
            Sort::Alone | Sort::Windows | Sort::Multiget => FabricMode::OneSided,
            Sort::Auto => FabricMode::Auto,
            Sort::Asking => FabricMode::Request,
        }
    }
}

/// Counts of reads.
#[derive(Debug, Default)]
pub struct Tally {
    pub hits: u64,
    pub misses: u64,
    pub counters: u64,
}

impl Tally {
    pub fn reads(&self) -> u64 {
        self.hits + self.misses + self.counters
    }
}

struct Reader<'a> {
    scenario: Scenario,
    sort: Sort,
    cache: &'a Client,
    ledger: &'a Ledger,
    random: SplitMix64,
    tally: Tally,
    window: usize,
    /// The buffer for every other value.
    registered: Vec<RegisteredBuffer>,
}

/// Reads until the run ends; panics on a wrong result, which stops the others as well.
pub fn read(scenario: Scenario, sort: Sort, seed: u64, cache: &Client, ledger: &Ledger) -> Tally {
    let _stop = ledger.stop_when_dropped();
    let random = SplitMix64::new(1_000 + seed);
    let width = window();
    let registered = (0..width).map(|_| cache.register(room(scenario))).collect();
    let mut reader =
        Reader { scenario, sort, cache, ledger, random, tally: Tally::default(), window: width, registered };
    let mut window: Vec<(Request, Option<(usize, Before)>)> =
        (0..width).map(|_| (cache.request(), None)).collect();
    let mut next = 0;
    while ledger.goes_on() {
        if reader.random.once_in(50) {
            reader.read_counter();
        }
        match sort {
            Sort::Windows => {
                reader.read_in_window(&mut window[next]);
                next = (next + 1) % width;
            }
            Sort::Multiget => reader.read_many(),
            _ => reader.read_one(),
        }
    }
    for (mut request, begun) in window {
        if begun.is_some() {
            request.wait().result.expect("answered");
        }
    }
    reader.tally
}

fn item(outcome: Outcome, value: Vec<u8>) -> Option<Item> {
    match outcome {
        Outcome::Found { flags, cas } => Some(Item { value, flags, cas }),
        Outcome::NotFound | Outcome::Stored => None,
    }
}

impl Reader<'_> {
    fn key(&mut self) -> usize {
        match self.random.below(10) {
            0 => 0,
            1..6 => self.random.below(HOT_KEYS),
            _ => self.random.below(self.ledger.keys()),
        }
    }

    fn read_one(&mut self) {
        let number = self.key();
        let before = self.ledger.before(number);
        let item = if self.random.once_in(2) {
            let buffer = &mut self.registered[number % self.window];
            let outcome = self.cache.get_registered(&key(number), buffer).expect("answered");
            item(outcome, buffer.to_vec())
        } else {
            self.cache.get(&key(number)).expect("answered")
        };
        self.check(number, before, item);
    }

    fn read_in_window(&mut self, (request, begun): &mut (Request, Option<(usize, Before)>)) {
        if let Some((number, before)) = begun.take() {
            let CompletedRequest { mut value, result, .. } = request.wait();
            if let Some(buffer) = request.take_buffer() {
                value = buffer.to_vec();
                self.registered.push(buffer);
            }
            self.check(number, before, item(result.expect("answered"), value));
        }
        let number = self.key();
        *begun = Some((number, self.ledger.before(number)));
        match self.registered.pop() {
            Some(buffer) if self.random.once_in(2) => request.iget_registered(key(number), buffer),
            buffer => {
                self.registered.extend(buffer);
                request.iget(key(number), Vec::new());
            }
        }
    }

    fn read_many(&mut self) {
        let numbers: Vec<usize> = (0..self.window).map(|_| self.key()).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
        let before: Vec<Before> = numbers.iter().map(|number| self.ledger.before(*number)).collect();
        let many = self.cache.get_many(&keys).expect("keys");
        assert!(many.failed.is_empty(), "{:?}", many.failed);
        for ((number, before), item) in numbers.into_iter().zip(before).zip(many.items) {
            self.check(number, before, item);
        }
    }

    fn check(&mut self, number: usize, before: Before, item: Option<Item>) {
        if self.sort.mode() == FabricMode::OneSided {
            self.ledger.count_read();
        }
        match item {
            Some(item) => {
                let (version, stored_after) = check(number, &item.value);
                self.ledger.check(number, before, version, stored_after);
                assert_eq!(item.flags, FLAGS, "key {number}");
                self.tally.hits += 1;
                self.ledger.count_hit(self.sort);
            }
            None => {
                self.ledger.check_missed(self.scenario, number, before);
                self.tally.misses += 1;
            }
        }
    }

    /// A counter is at least the acknowledged number and at most the started one.
    fn read_counter(&mut self) {
        let counter = self.random.below(COUNTERS);
        let counted = self.ledger.counted(counter);
        let item = self.cache.get(&counter_key(counter)).expect("answered");
        let counting = self.ledger.counting(counter);
        let Some(item) = item else {
            return assert!(self.scenario != Scenario::Roomy, "counter {counter} is missing");
        };
        let text = String::from_utf8(item.value).expect("digits");
        let number: u64 = text.trim_end().parse().unwrap_or_else(|_| panic!("counter {counter}: {text:?}"));
        assert!(
            (counted..=counting).contains(&number),
            "counter {counter}: {number}, not {counted} to {counting}"
        );
        self.tally.counters += 1;
    }
}
