//! The time of a call, hop by hop: the same call with more and more of its parts.
//!
//! A request is measured at four stages, in turn, and what each adds to the one before is a hop:
//!
//! | stage | hop |
//! | --- | --- |
//! | the call's bytes to an echo, which answers as many bytes as the answer has | transport: system calls, the kernel, waking the other end; or the channel |
//! | the same bytes to the dummy, which decodes them and builds the answer | protocol |
//! | the client library's call to the dummy | client |
//! | the client library's call to the server | server: its other work, and the store |
//!
//! For a fabcached the store's part is shown separately: the same operation on a store in this process. Sets through
//! shared memory are requests too, through a channel.
//!
//! A get through shared memory is the client's read of a region; that of the first three stages is the dummy's:
//!
//! | stage | hop |
//! | --- | --- |
//! | a copy of the value from mapped memory | copy |
//! | a read by the key without the client library | lookup: hash, index, checks |
//! | the client library's get from the dummy's region | client |
//! | the client library's get from the server's region | server: what differs there |
//!
//! A PE of an OpenSHMEM job is asked for another PE's key, and for one of its own a stage before: the difference is the hop
//! to the other PE.
//!
//! - `requests.rs`, `memory.rs`, `job.rs`: the stages of requests, of reads, and of requests to a PE.
//! - `raw.rs`, `channel.rs`: bytes over sockets and through channels.
//! - `store.rs`: the store by itself, and the store whose region the dummy shares.
//! - `figure.rs`: bars.

mod channel;
mod figure;
mod job;
mod memory;
mod raw;
mod requests;
mod store;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::{Client, Ttl};

use crate::experiment::{Experiment, Rounds};
use crate::histogram::Histogram;
use crate::items::{self, Items};
use crate::latency::{Operation, cases};
use crate::process::Cpus;
use crate::results::{Case, Sample};
use crate::target::Target;
use fabcache_testbed::statistics::median;

pub use figure::table;
use job::Job;

/// Calls per round and stage: with `quick`, and otherwise.
const ITERATIONS: [u64; 2] = [100, 2_000];
/// Turns of each stage in a round, so that drifts of the machine affect all stages.
const TURNS: u64 = 10;
/// Untimed calls at the start of each turn.
const CALLS_TO_WARM_UP: u64 = 5;
/// Maximum memory of the items that are called in turn.
const STORED_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of these items.
const ITEMS_MAX: u64 = 1_000;

/// Names of hops among a sample's figures, in the order of a call's path.
pub const HOPS: [&str; 8] = [
    "client_ns",
    "transport_ns",
    "protocol_ns",
    "server_ns",
    "store_ns",
    "forward_ns",
    "lookup_ns",
    "copy_ns",
];
/// The name of the share of the requests to other PEs that were reads of their memory.
pub const ONE_SIDED: &str = "one_sided";
/// The name of their sum.
pub const TOTAL: &str = "total_ns";
/// The end of the names of the hops' noise ([`noise_name`]).
pub const NOISE: &str = "_noise_ns";

/// Returns the name of a hop's noise among a sample's figures.
pub fn noise_name(hop: &str) -> String {
    hop.trim_end_matches("_ns").to_owned() + NOISE
}

/// The experiment.
#[derive(Debug)]
pub struct Dissect {
    /// The measured calls: get, set.
    pub operations: Vec<Operation>,
    /// Bytes of values.
    pub sizes: Vec<usize>,
    /// Calls a round at each stage.
    pub iterations: u64,
    /// Whether every byte of every answer is compared.
    pub verify: bool,
    /// Keys and values.
    pub items: Items,
    /// The command-line tool, to run the dummy as a child process; `None`: a thread of this process.
    pub program: Option<PathBuf>,
    /// The CPUs of the dummy and the servers.
    pub server_cpus: Option<Cpus>,
    /// The initial CPUs of this process; the dummy uses them by default.
    pub all_cpus: Cpus,
}

impl Dissect {
    /// Returns gets and sets of 64 bytes, 4 and 64 KB.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Dissect> {
        Ok(Dissect {
            operations: vec![Operation::Get, Operation::Set],
            sizes: vec![64, 4 << 10, 64 << 10],
            iterations: ITERATIONS[usize::from(!quick)],
            verify,
            items: Items::new(key_bytes)?,
            program: None,
            server_cpus: None,
            all_cpus: Cpus::current()?,
        })
    }

    /// Returns the CPUs of the dummy.
    fn cpus(&self) -> &Cpus {
        self.server_cpus.as_ref().unwrap_or(&self.all_cpus)
    }

    fn keys(&self, value_bytes: usize) -> u64 {
        ITEMS_MAX.min(STORED_BYTES_MAX / value_bytes.max(1) as u64).max(1)
    }
}

impl Experiment for Dissect {
    fn name(&self) -> &'static str {
        "dissect"
    }

    fn method(&self) -> String {
        format!(
            "one thread, one call after the other, {} calls a round at each stage, stages in turn, keys of {} bytes; a hop is the \
             difference of the medians of two stages; its noise, after +-, is half of the range of the middle half of these differences \
             over {TURNS} turns; {}",
            self.iterations,
            self.items.key_bytes(),
            items::compared(self.verify)
        )
    }

    fn cases(&self) -> Vec<Case> {
        cases(&self.operations, &self.sizes)
    }

    fn has_client_limit(&self) -> bool {
        false
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let sets = match Operation::of_name(&case.operation)?[..] {
            [Operation::Get] => false,
            [Operation::Set] => true,
            _ => bail!("cannot dissect {:?}; use get or set", case.operation),
        };
        ensure!(self.iterations >= TURNS, "--iterations {}: at least {TURNS}", self.iterations);
        let value_bytes = case.number("value_bytes").unwrap_or_default() as usize;
        let call = Call { items: &self.items, sets, value_bytes, verify: self.verify };
        if let Some(job) = Job::of(target)? {
            job::prepare(self, call, target, &job)
        } else if target.shares_memory() && !sets {
            memory::prepare(self, call, target)
        } else {
            requests::prepare(self, call, target)
        }
    }
}

/// A measured call.
#[derive(Clone, Copy, Debug)]
struct Call<'e> {
    items: &'e Items,
    sets: bool,
    value_bytes: usize,
    verify: bool,
}

/// Reused memory of calls.
#[derive(Debug, Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Call<'_> {
    /// Makes the call for an item; returns its duration.
    fn make(
        &self,
        client: &Client,
        number: u64,
        buffers: &mut Buffers,
        sample: &mut Sample,
    ) -> Result<Duration> {
        let Buffers { key, value } = buffers;
        let Call { items, sets, value_bytes, verify } = *self;
        items.key(number, key);
        let named = || format!("the call for {}", String::from_utf8_lossy(key));
        if sets {
            items.value(number, value_bytes, value);
            let begun = Instant::now();
            client.set(key, value, Ttl::NEVER).with_context(named)?;
            return Ok(begun.elapsed());
        }
        let begun = Instant::now();
        let found = client.get(key).with_context(named)?;
        let taken = begun.elapsed();
        match found {
            None => sample.misses += 1,
            Some(item) => {
                sample.verified += u64::from(verify);
                let is_right = items.is_right(number, value_bytes, &item.value, verify);
                ensure!(is_right, "a wrong value under the key {}", String::from_utf8_lossy(key));
            }
        }
        Ok(taken)
    }
}

/// One stage: makes the call for the item with this number and returns its duration.
type Stage<'s> = &'s mut dyn FnMut(u64, &mut Sample) -> Result<Duration>;

/// The times of one stage.
#[derive(Clone, Debug, Default)]
struct Times {
    /// Of all calls.
    all: Histogram,
    /// The median of each turn, in nanoseconds.
    turns: Vec<f64>,
}

/// Runs all stages in turn over these items; returns the times of each.
///
/// The last stage is the whole call, which the sample describes.
fn in_turn(stages: &mut [Stage<'_>], iterations: u64, keys: u64) -> Result<(Sample, Vec<Times>)> {
    let mut times = vec![Times::default(); stages.len()];
    let mut whole = Sample::default();
    let mut next = vec![0u64; stages.len()];
    for _ in 0..TURNS {
        for (at, stage) in stages.iter_mut().enumerate() {
            let is_whole = at + 1 == times.len();
            let mut turn = Vec::new();
            for call in 0..CALLS_TO_WARM_UP + iterations / TURNS {
                let mut sample = Sample::default();
                let taken = stage(next[at] % keys, &mut sample)?;
                next[at] += 1;
                if call < CALLS_TO_WARM_UP {
                    continue;
                }
                times[at].all.record(taken.as_nanos() as u64);
                turn.push(taken.as_nanos() as f64);
                if is_whole {
                    whole.operations += 1;
                    whole.elapsed_ns += taken.as_nanos() as u64;
                    whole.misses += sample.misses;
                    whole.verified += sample.verified;
                }
            }
            times[at].turns.push(median(turn));
        }
    }
    whole.latency = times.last().map(|times| times.all.clone());
    Ok((whole, times))
}

/// Adds each stage's increase over the one before, by name, with its noise, and their sum.
fn add_hops(sample: &mut Sample, names: &[&str], stages: &[Times]) {
    let mut before = (0.0, vec![0.0; TURNS as usize]);
    for (name, Times { all, turns }) in names.iter().zip(stages) {
        let whole = all.percentile_ns(50.0);
        let increases: Vec<f64> = turns.iter().zip(&before.1).map(|(ns, before)| ns - before).collect();
        sample.figures.insert((*name).to_owned(), whole - before.0);
        sample.figures.insert(noise_name(name), noise(increases));
        before = (whole, turns.clone());
    }
    sample.figures.insert(TOTAL.to_owned(), before.0);
}

/// Returns half of the range of the middle half of these numbers.
fn noise(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let outside = numbers.len() / 4;
    match &numbers[outside..numbers.len() - outside] {
        [least, .., greatest] => (greatest - least) / 2.0,
        _ => 0.0,
    }
}

/// Moves the store's share out of the server's into a hop of its own.
fn split_store(sample: &mut Sample, store_ns: Option<f64>) {
    if let Some(store_ns) = store_ns {
        if let Some(server_ns) = sample.figures.get_mut("server_ns") {
            *server_ns -= store_ns;
        }
        sample.figures.insert("store_ns".to_owned(), store_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_add_up() {
        let mut sample = Sample::default();
        let stages = [10, 15, 14, 30].map(|ns| {
            let mut times = Times::default();
            (0..TURNS).for_each(|_| times.all.record(ns));
            // Of ten turns, the greatest and the least two do not count.
            times.turns = (0..TURNS).map(|turn| (ns + (ns == 30) as u64 * turn) as f64).collect();
            times
        });
        add_hops(&mut sample, &["transport_ns", "protocol_ns", "client_ns", "server_ns"], &stages);
        split_store(&mut sample, Some(2.0));
        let figure = |name: &str| sample.figures[name];
        assert_eq!((figure("transport_ns"), figure("protocol_ns")), (10.0, 5.0));
        assert_eq!(figure("client_ns"), -1.0, "as measured");
        assert_eq!((figure("client_noise_ns"), figure("server_noise_ns")), (0.0, 2.5));
        assert_eq!((figure("server_ns"), figure("store_ns"), figure(TOTAL)), (14.0, 2.0, 30.0));
        let hops: f64 = HOPS.iter().filter_map(|hop| sample.figures.get(*hop)).sum();
        assert_eq!(hops, figure(TOTAL));
    }

    #[test]
    fn stages_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let mut first = |number, _: &mut Sample| {
            order.borrow_mut().push((1, number));
            Ok(Duration::from_nanos(100))
        };
        let mut second = |number, sample: &mut Sample| {
            order.borrow_mut().push((2, number));
            sample.misses = 1;
            Ok(Duration::from_nanos(300))
        };
        let done = in_turn(&mut [&mut first, &mut second], 20, 3);
        let (sample, times) = done.expect("no call fails");
        assert_eq!((sample.operations, sample.misses, sample.elapsed_ns), (20, 20, 6_000));
        let turns: Vec<Vec<f64>> = times.iter().map(|times| times.turns.clone()).collect();
        assert_eq!(turns, [[100.0; TURNS as usize], [300.0; TURNS as usize]]);
        assert_eq!(times[1].all.count(), 20);
        let calls = CALLS_TO_WARM_UP as usize + 2;
        assert_eq!(order.borrow()[calls - 1], (1, (calls as u64 - 1) % 3));
        assert_eq!(order.borrow()[calls], (2, 0));
        assert_eq!(order.borrow()[2 * calls], (1, calls as u64 % 3));
    }
}
