//! Reads that bypass the server.

use anyhow::{Result, ensure};
use fabcache_client::Request;
use serde::Serialize;

use super::floors::{self, Floors};
use super::servers::{PathClient, Servers, check, is_value, resident_bytes};
use super::timing::{Percentiles, clock_ns, percentiles, rate};
use super::{HOT_KEYS, Plan};
use crate::random::Random;
use crate::server::MeasuredProgram;
use crate::store::keys::{BATCH, KEY_BYTES, key};
use fabcache_testbed::statistics::median;

/// Keys per multiget.
pub const KEYS_AT_ONCE: usize = 64;
/// Requests per window of reads.
pub const WINDOW: usize = 32;

/// Reads of one number of items with one value size.
#[derive(Clone, Debug, Serialize)]
pub struct Gets {
    /// Requested number of items …
    pub wanted_items: u64,
    /// … and the actual one, which is smaller if not all fit.
    pub items: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// The machine's floors.
    pub floors: Floors,
    /// Reads of random items through shared memory.
    pub cold: Percentiles,
    /// Reads of 64 hot items through shared memory.
    pub hot: Percentiles,
    /// The server's CPU time per read, in nanoseconds. With many items these are the first reads of each,
    /// which are reported to the server.
    pub server_cpu_ns: f64,
    /// The same after so many reads that nothing is reported; short values only.
    pub server_cpu_later_ns: Option<f64>,
    /// Reads of random items over the other server's Unix socket.
    pub against: Option<Percentiles>,
    /// Rates of multigets, of windows and of single reads; short values only.
    pub rates: Option<Rates>,
}

/// Reads of random items per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// Single reads.
    pub single_per_s: f64,
    /// 64 keys per call, each value in its own memory.
    pub many_per_s: f64,
    /// 64 keys per call, each value checked in place.
    pub each_per_s: f64,
    /// 32 request objects, reused.
    pub window_per_s: f64,
    /// 64 keys per call, over the other server's socket.
    pub against_many_per_s: Option<f64>,
}

/// Reads of an item until hardly any is reported: the first two are, and later ones by sampling until
/// the count saturates.
const REPORTED_READS_MAX: u32 = 32;

/// Measures every number of items with every length of values, as far as they fit.
///
/// # Errors
/// A server fails or answers wrongly.
pub fn measure(
    ours: &MeasuredProgram,
    against: Option<&MeasuredProgram>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Gets>> {
    let mut measured: Vec<Gets> = Vec::new();
    for items in &plan.items {
        for value_bytes in &plan.value_bytes {
            let fits = plan.resident_bytes_max / resident_bytes(1, *value_bytes);
            let wanted_items = *items;
            let items = wanted_items.min(fits).max(HOT_KEYS);
            if measured.iter().any(|gets| (gets.items, gets.value_bytes) == (items, *value_bytes)) {
                continue;
            }
            progress(&format!("reads of {items} items of {value_bytes} bytes"));
            // Before the servers are filled, because both need memory.
            let floors = floors::measure(items, *value_bytes, plan)?;
            let servers = Servers::start(ours, against, items, *value_bytes, plan)?;
            measured.push(Gets { wanted_items, ..one(&servers, floors, plan)? });
        }
    }
    Ok(measured)
}

fn one(servers: &Servers, floors: Floors, plan: &Plan) -> Result<Gets> {
    let shared = servers.shared()?;
    let against = servers.against()?;
    let len = servers.value_bytes;
    let clock_ns = clock_ns();
    let timed = |path: &PathClient, over: u64, seed: usize| {
        let mut random = Random::new(seed as u64);
        percentiles(
            plan.round,
            clock_ns,
            || {
                let number = u64::from(random.below(over as u32));
                (number, key(number))
            },
            |(_, key)| path.client.get(key),
            |(number, _), item| check(item?.as_ref(), *number, len),
        )
    };
    let (mut cold, mut hot, mut theirs, mut server_cpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        cold.push(timed(&shared, shared.items, round)?);
        hot.push(timed(&shared, HOT_KEYS, round)?);
        server_cpu.push(server_cpu_ns(servers, &shared, round, plan)?);
        if let Some(against) = &against {
            theirs.push(timed(against, against.items, round)?);
        }
    }
    let (mut rates, mut later) = (None, None);
    if len == plan.small_value_bytes {
        rates = Some(self::rates(&shared, against.as_ref(), len, plan)?);
        read_all(&shared, len)?;
        let rounds = (0..plan.rounds).map(|round| server_cpu_ns(servers, &shared, round, plan));
        later = Some(median(rounds.collect::<Result<Vec<_>>>()?));
    }
    Ok(Gets {
        wanted_items: servers.items,
        items: servers.items,
        value_bytes: len,
        floors,
        cold: Percentiles::medians(&cold),
        hot: Percentiles::medians(&hot),
        server_cpu_ns: median(server_cpu),
        server_cpu_later_ns: later,
        against: against.map(|_| Percentiles::medians(&theirs)),
        rates,
    })
}

/// Reads every item until the server counts no more reads of it.
fn read_all(shared: &PathClient, len: usize) -> Result<()> {
    let mut keys = Keys::new(shared.items, 0);
    for _ in 0..REPORTED_READS_MAX {
        for from in (0..shared.items).step_by(BATCH) {
            keys.take((from..shared.items).take(BATCH));
            get_each(shared, &keys, len)?;
        }
    }
    Ok(())
}

/// Measures the server's CPU time per read of random items.
fn server_cpu_ns(servers: &Servers, shared: &PathClient, seed: usize, plan: &Plan) -> Result<f64> {
    let mut keys = Keys::new(shared.items, seed);
    let mut reads = 0;
    let before = servers.ours.server.cpu_time()?;
    rate(plan.round, &mut keys, Keys::next, |keys| {
        reads += keys.0.len();
        keys.0.iter().try_for_each(|(_, key)| {
            ensure!(shared.client.get(key)?.is_some(), "an item is missing");
            Ok(())
        })
    })?;
    let cpu = servers.ours.server.cpu_time()? - before;
    Ok(cpu.as_nanos() as f64 / reads as f64)
}

fn rates(shared: &PathClient, against: Option<&PathClient>, len: usize, plan: &Plan) -> Result<Rates> {
    let mut found = [const { Vec::new() }; 5];
    let mut window: Vec<Request> = (0..WINDOW).map(|_| shared.client.request()).collect();
    for round in 0..plan.rounds {
        let mut keys = Keys::new(shared.items, round);
        found[0].push(rate(plan.round, &mut keys, Keys::next, |keys| {
            let mut each = keys.0.iter();
            each.try_for_each(|(number, key)| check(shared.client.get(key)?.as_ref(), *number, len))
        })?);
        found[1].push(rate(plan.round, &mut keys, Keys::next, |keys| get_many(shared, keys, len))?);
        found[2].push(rate(plan.round, &mut keys, Keys::next, |keys| get_window(&mut window, keys, len))?);
        found[3].push(rate(plan.round, &mut keys, Keys::next, |keys| get_each(shared, keys, len))?);
        if let Some(against) = against {
            let mut keys = Keys::new(against.items, round);
            found[4].push(rate(plan.round, &mut keys, Keys::next, |keys| get_many(against, keys, len))?);
        }
    }
    let [single, many, windowed, each, theirs] = found.map(median);
    Ok(Rates {
        single_per_s: single,
        many_per_s: many,
        each_per_s: each,
        window_per_s: windowed,
        against_many_per_s: against.map(|_| theirs),
    })
}

fn get_many(path: &PathClient, keys: &Keys, len: usize) -> Result<()> {
    for (numbers, keys) in keys.0.chunks(KEYS_AT_ONCE).zip(keys.1.chunks(KEYS_AT_ONCE)) {
        let many = path.client.get_many(keys)?;
        for (item, (number, _)) in many.items.iter().zip(numbers) {
            check(item.as_ref(), *number, len)?;
        }
    }
    Ok(())
}

fn get_each(path: &PathClient, keys: &Keys, len: usize) -> Result<()> {
    for (numbers, keys) in keys.0.chunks(KEYS_AT_ONCE).zip(keys.1.chunks(KEYS_AT_ONCE)) {
        let mut right = 0;
        let failed = path.client.get_each(keys, |at, found| {
            right += usize::from(is_value(found.value, numbers[at].0, len));
        })?;
        ensure!(failed.is_empty() && right == keys.len(), "{} of {} values are right", right, keys.len());
    }
    Ok(())
}

/// Waits for each request object before its next use, and reuses its buffers.
fn get_window(window: &mut [Request], keys: &Keys, len: usize) -> Result<()> {
    for (i, (_, key)) in keys.0.iter().enumerate() {
        let at = i % WINDOW;
        let mut buffers = (Vec::with_capacity(KEY_BYTES), Vec::new());
        if i >= WINDOW {
            let done = window[at].wait();
            let number = keys.0[i - WINDOW].0;
            ensure!(
                done.result.is_ok() && is_value(&done.value, number, len),
                "a wrong value under the key with number {number}: {:?}",
                done.result
            );
            buffers = (done.key, done.value);
        }
        let (mut bytes, value) = buffers;
        bytes.clear();
        bytes.extend_from_slice(key);
        window[at].iget(bytes, value);
    }
    window.iter_mut().try_for_each(|request| Ok(request.wait().result.map(drop)?))
}

/// A batch of random keys, with and without their numbers.
struct Keys(Vec<(u64, [u8; KEY_BYTES])>, Vec<[u8; KEY_BYTES]>, Random, u64);

impl Keys {
    fn new(items: u64, seed: usize) -> Keys {
        Keys(Vec::new(), Vec::new(), Random::new(seed as u64 + 1_000), items)
    }

    fn take(&mut self, numbers: impl Iterator<Item = u64>) {
        let Keys(keys, plain, ..) = self;
        keys.clear();
        keys.extend(numbers.map(|n| (n, key(n))));
        plain.clear();
        plain.extend(keys.iter().map(|(_, key)| *key));
    }

    fn next(&mut self) -> u64 {
        let items = self.3 as u32;
        let numbers: [u64; BATCH] = std::array::from_fn(|_| u64::from(self.2.below(items)));
        self.take(numbers.into_iter());
        BATCH as u64
    }
}
