//! Writers, over the fabric and over a socket.

use fabcache_client::{Client, Outcome, Request, Ttl};

use super::Scenario;
use super::ledger::{COUNTERS, Ledger};
use super::value::{key, value};
use fabcache_testbed::random::SplitMix64;
use fabcache_testbed::wait::amount;

pub const WRITERS: usize = 3;
/// Keys of the last writer.
const WINDOW: usize = 16;
const FILLED_AT_ONCE: usize = 64;
/// Keys of each writer; memory has room for all.
const FILLERS: usize = 50_000;
/// The flags of all values.
pub const FLAGS: u32 = 7;

/// Stores each key once; if the index is to grow, fills it to just below the threshold. It has so many slots, in all servers.
pub fn fill(scenario: Scenario, cache: &Client, ledger: &Ledger, index_slots: u64) {
    let numbers: Vec<usize> = (0..ledger.keys()).collect();
    for some in numbers.chunks(FILLED_AT_ONCE) {
        let begun = some.iter().map(|number| {
            let version = ledger.begin(*number);
            let value = value(*number, version, ledger.flushes(), number % 300);
            (*number, version, cache.iset_with_flags(key(*number), value, Ttl::NEVER, FLAGS))
        });
        for (number, version, request) in begun.collect::<Vec<_>>() {
            stored(request);
            ledger.answer(number, version);
        }
    }
    for counter in 0..COUNTERS {
        count(cache, ledger, counter, 1);
    }
    if scenario == Scenario::Roomy {
        let fillers = ((1 << index_slots.ilog2()) / 8 * 7_usize).saturating_sub(ledger.keys());
        let names: Vec<Vec<u8>> = (0..fillers).map(|number| filler(WRITERS, number)).collect();
        for some in names.chunks(FILLED_AT_ONCE) {
            let begun = some.iter().map(|name| cache.iset(&name[..], b"", Ttl::NEVER));
            begun.collect::<Vec<_>>().into_iter().for_each(stored);
        }
    }
}

fn stored(mut request: Request) {
    assert!(matches!(request.wait().result, Ok(Outcome::Stored)));
}

/// Returns an extra key that makes the index grow.
fn filler(writer: usize, number: usize) -> Vec<u8> {
    format!("filler-{writer}-{number}").into_bytes()
}

pub fn counter_key(counter: usize) -> Vec<u8> {
    format!("counter-{counter}").into_bytes()
}

/// Increments a counter, creating a missing one: memory may be short.
fn count(cache: &Client, ledger: &Ledger, counter: usize, by: u64) {
    let number = ledger.counted(counter) + by;
    ledger.begin_counter(counter, number);
    let came = cache.incr_or_set(&counter_key(counter), by, number, Ttl::NEVER).expect("counted");
    assert_eq!(came, number, "counter {counter}");
    ledger.answer_counter(counter, number);
}

struct Writer<'a> {
    scenario: Scenario,
    number: usize,
    cache: &'a Client,
    ledger: &'a Ledger,
    random: SplitMix64,
    fillers: usize,
    /// Once in this many writes, an expiring key is taken.
    rarely: usize,
    /// Length of the longest values.
    long: usize,
}

/// Writes this writer's keys, one of them far more often than the others.
pub fn write(scenario: Scenario, number: usize, cache: &Client, ledger: &Ledger) {
    let random = SplitMix64::new(number as u64 + 1);
    let (rarely, long) = (amount(100, 20), amount(2 << 20, 256 << 10));
    let mut writer = Writer { scenario, number, cache, ledger, random, fillers: 0, rarely, long };
    let mut window: Vec<(Request, Option<(usize, u64)>)> =
        (0..WINDOW).map(|_| (cache.request(), None)).collect();
    while ledger.goes_on() {
        let _guard = ledger.flushing.read().expect("no thread panics while it flushes");
        if number == WRITERS - 1 {
            writer.write_window(&mut window);
        } else {
            writer.write_one();
        }
    }
}

impl Writer<'_> {
    fn key(&mut self) -> usize {
        if self.number == 0 && self.random.once_in(4) {
            return 0;
        }
        loop {
            let number = self.random.below(self.ledger.keys() / WRITERS) * WRITERS + self.number;
            if !self.scenario.ends(number) || self.random.once_in(self.rarely) {
                return number;
            }
        }
    }

    fn value(&mut self, number: usize, version: u64) -> Vec<u8> {
        let len = match self.random.below(400) {
            _ if self.scenario == Scenario::Long => 1_000 + self.random.below(119_000),
            0 if self.scenario == Scenario::Roomy => self.random.below(self.long),
            0..8 => self.random.below(60_000),
            8..40 => self.random.below(6_000),
            _ => self.random.below(300),
        };
        value(number, version, self.ledger.flushes(), len)
    }

    fn write_one(&mut self) {
        let Writer { scenario, cache, ledger, .. } = *self;
        match self.random.below(20) {
            0 => return self.count(),
            1 => return self.touch(),
            2..5 if scenario == Scenario::Roomy => return self.fill_up(),
            _ => {}
        }
        let number = self.key();
        let version = ledger.begin(number);
        let name = key(number);
        if scenario.ends(number) {
            let value = self.value(number, version);
            cache.set_with_flags(&name, &value, Ttl::seconds(1), FLAGS).expect("stored");
            return ledger.answer_ending(number, version, 1);
        }
        if scenario.may_miss(number) && self.random.once_in(10) {
            cache.delete(&name).expect("answered");
        } else {
            let value = self.value(number, version);
            cache.set_with_flags(&name, &value, Ttl::NEVER, FLAGS).expect("stored");
        }
        ledger.answer(number, version);
    }

    /// Increments one of this writer's counters.
    fn count(&mut self) {
        let counter = self.random.below(COUNTERS / WRITERS) * WRITERS + self.number;
        let by = 1 + self.random.below(1000) as u64;
        count(self.cache, self.ledger, counter, by);
    }

    /// Touching changes bytes of the item besides its value.
    fn touch(&mut self) {
        let number = self.key();
        if !self.scenario.ends(number) {
            self.cache.touch(&key(number), Ttl::seconds(100_000)).expect("answered");
        }
    }

    fn fill_up(&mut self) {
        self.fillers = (self.fillers + 1) % FILLERS;
        self.cache.set(&filler(self.number, self.fillers), b"", Ttl::NEVER).expect("stored");
    }

    /// Writes many at a time, without waiting for each.
    fn write_window(&mut self, window: &mut [(Request, Option<(usize, u64)>)]) {
        for at in 0..window.len() {
            let number = self.key();
            let is_under_way =
                window.iter().any(|(_, begun)| begun.is_some_and(|(other, _)| other == number));
            if self.scenario.ends(number) || is_under_way {
                continue;
            }
            let version = self.ledger.begin(number);
            let value = self.value(number, version);
            window[at].0.iset_with_flags(key(number), value, Ttl::NEVER, FLAGS);
            window[at].1 = Some((number, version));
        }
        for (request, begun) in window {
            if let Some((number, version)) = begun.take() {
                assert!(matches!(request.wait().result, Ok(Outcome::Stored)), "key {number}");
                self.ledger.answer(number, version);
            }
        }
    }
}
