//! The measured calls: GETs and SETs one at a time, and many in flight.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_client::{Client, Outcome, Request, Ttl};
use fabcache_store::{Expiry, Handle};

use super::connect::{Connect, keys_of, sized_key};
use super::names::{AUTO, AUTO_BY_KEY, BY_KEY, LOCATED, REGISTERED, STORE};
use super::report::{Figure, What};
use super::timing::{Times, limited_times, times};
use super::{HOT_KEYS, Plan};
use crate::process::Process;
use crate::shm::servers::{check, is_value, value};
use crate::store::keys;

/// Untimed calls that connect before GETs by key, each of another key.
const CALLS_TO_CONNECT: u64 = 8;
/// Clients of a round by key; each requests every key once.
const CLIENTS_A_ROUND: u32 = 4;

/// A client and its path.
#[derive(Debug)]
pub struct PathClient {
    /// Its name in tables.
    pub name: String,
    connect: Connect,
    client: Client,
    process: Process,
}

impl PathClient {
    /// Connects a client to a server.
    ///
    /// # Errors
    /// The server cannot be reached, or not over this path.
    pub fn new(name: &str, connect: Connect, process: Process) -> Result<PathClient> {
        let client = connect.client().with_context(|| name.to_owned())?;
        Ok(PathClient { name: name.into(), connect, client, process })
    }

    /// Measures times of GETs, and of SETs where this path has its own.
    ///
    /// # Errors
    /// The server fails, or answers wrongly.
    pub fn latencies(&mut self, bytes: usize, plan: &Plan) -> Result<Vec<Figure>> {
        let get = self.cpu_of(|way| match &*way.name {
            _ if way.asks_once() => way.gets_by_key(bytes, plan),
            REGISTERED => way.gets_registered(bytes, plan),
            _ => way.gets(bytes, plan),
        });
        let mut figures = vec![self.figure(What::Get, bytes, get?)];
        if self.has_sets() || self.name == REGISTERED {
            let set = self.cpu_of(|way| match &*way.name {
                REGISTERED => way.sets_registered(bytes, plan),
                _ => way.sets(bytes, plan),
            })?;
            figures.push(self.figure(What::Set, bytes, set));
        }
        Ok(figures)
    }

    /// Measures calls per second with so many in flight.
    ///
    /// # Errors
    /// The server fails, or answers wrongly.
    pub fn rates(&mut self, bytes: usize, window: usize, plan: &Plan) -> Result<Vec<Figure>> {
        let mut all = vec![What::Get];
        let is_registered = self.name == REGISTERED;
        all.extend((plan.chooses && window > 1 && !is_registered).then_some(What::Multiget));
        all.extend(self.has_sets().then_some(What::Set));
        let mut figures = Vec::new();
        for what in all {
            let load = Load { what, bytes, window, is_registered };
            let per_s = if self.asks_once() {
                self.rate_by_key(load, plan)?
            } else {
                let keys = HOT_KEYS.min(keys_of(bytes));
                load.rate(&self.client, plan.round, |number| number % keys, u64::MAX)?.per_s()
            };
            figures.push(Figure { way: self.name.clone(), what, bytes, window, per_s, ..Figure::default() });
        }
        Ok(figures)
    }

    /// One-sided clients send SETs as request clients do, except from registered memory.
    fn has_sets(&self) -> bool {
        ![LOCATED, REGISTERED, BY_KEY, AUTO, AUTO_BY_KEY].contains(&&*self.name)
    }

    /// Returns whether a client requests each key only once.
    fn asks_once(&self) -> bool {
        [BY_KEY, AUTO_BY_KEY].contains(&&*self.name)
    }

    fn figure(&self, what: What, bytes: usize, (times, cpu): (Times, Option<f64>)) -> Figure {
        let Times { p50_ns, p99_ns, .. } = times;
        let way = self.name.clone();
        Figure { way, what, bytes, p50_ns, p99_ns, server_cpu_ns: cpu, ..Figure::default() }
    }

    /// Measures the client's and the server's CPU time of a call.
    fn cpu_of(
        &mut self,
        calls: impl FnOnce(&mut PathClient) -> Result<Times>,
    ) -> Result<(Times, Option<f64>)> {
        let before = self.process.cpu_time().ok();
        let times = calls(self)?;
        let now = self.process.cpu_time().ok();
        let taken = now.zip(before).map(|(now, before)| now.saturating_sub(before));
        Ok((times, taken.map(|taken| taken.as_nanos() as f64 / times.all_calls as f64)))
    }

    fn gets(&mut self, bytes: usize, plan: &Plan) -> Result<Times> {
        let keys = HOT_KEYS.min(keys_of(bytes));
        for number in 0..keys {
            check(self.client.get(&sized_key(number, bytes))?.as_ref(), number, bytes)?;
        }
        times(plan.round, |call| {
            let number = call % keys;
            check(self.client.get(&sized_key(number, bytes))?.as_ref(), number, bytes)
        })
    }

    fn gets_registered(&mut self, bytes: usize, plan: &Plan) -> Result<Times> {
        let keys = HOT_KEYS.min(keys_of(bytes));
        let mut buffer = self.client.register(bytes);
        let mut get = |number| {
            self.client.get_registered(&sized_key(number, bytes), &mut buffer)?;
            ensure!(is_value(&buffer, number, bytes), "a wrong value of number {number}");
            Ok(())
        };
        (0..keys).try_for_each(&mut get)?;
        times(plan.round, |call| get(call % keys))
    }

    /// GETs each key once with a client that knows no location.
    fn gets_by_key(&mut self, bytes: usize, plan: &Plan) -> Result<Times> {
        let mut all: Vec<Times> = Vec::new();
        let mut left = plan.round;
        for _ in 0..CLIENTS_A_ROUND {
            let client = self.connect.client()?;
            let started = Instant::now();
            all.push(limited_times(left, keys_of(bytes), CALLS_TO_CONNECT, |number| {
                check(client.get(&sized_key(number, bytes))?.as_ref(), number, bytes)
            })?);
            left = left.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
        }
        // A client that timed more calls has more weight.
        let calls: u64 = all.iter().map(|times| times.calls).sum();
        let weighted = |of: fn(&Times) -> f64| {
            all.iter().map(|times| of(times) * times.calls as f64).sum::<f64>() / calls as f64
        };
        let all_calls = all.iter().map(|times| times.all_calls).sum();
        Ok(Times { p50_ns: weighted(|t| t.p50_ns), p99_ns: weighted(|t| t.p99_ns), calls, all_calls })
    }

    fn sets(&mut self, bytes: usize, plan: &Plan) -> Result<Times> {
        let keys = HOT_KEYS.min(keys_of(bytes));
        let values: Vec<Vec<u8>> = (0..keys).map(|number| value(number, bytes)).collect();
        times(plan.round, |call| {
            let number = call % keys;
            Ok(self.client.set(&sized_key(number, bytes), &values[number as usize], Ttl::NEVER)?)
        })
    }

    fn sets_registered(&mut self, bytes: usize, plan: &Plan) -> Result<Times> {
        let keys = HOT_KEYS.min(keys_of(bytes));
        let buffer = |number| {
            let mut buffer = self.client.register(bytes);
            buffer.resize(bytes).copy_from_slice(&value(number, bytes));
            buffer
        };
        let mut buffers: Vec<_> = (0..keys).map(buffer).collect();
        times(plan.round, |call| {
            let number = call % keys;
            let buffer = &mut buffers[number as usize];
            Ok(self.client.set_registered(&sized_key(number, bytes), buffer, Ttl::NEVER, 0)?)
        })
    }

    fn rate_by_key(&mut self, load: Load, plan: &Plan) -> Result<f64> {
        let mut all = Rate { calls: 0, time: Duration::ZERO };
        for _ in 0..CLIENTS_A_ROUND {
            let client = self.connect.client()?;
            // Connect, and let the window grow.
            let keys = keys_of(load.bytes);
            let warm = CALLS_TO_CONNECT.min(keys / 4);
            load.rate(&client, Duration::from_secs(60), |number| number, warm)?;
            let left = plan.round.saturating_sub(all.time);
            let found = load.rate(&client, left, |number| warm + number, keys - warm)?;
            all = Rate { calls: all.calls + found.calls, time: all.time + found.time };
            if all.time >= plan.round {
                break;
            }
        }
        Ok(all.per_s())
    }
}

/// Calls, and their duration.
#[derive(Clone, Copy, Debug)]
struct Rate {
    calls: u64,
    time: Duration,
}

impl Rate {
    fn per_s(self) -> f64 {
        self.calls as f64 / self.time.as_secs_f64()
    }
}

/// Calls with many in flight.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// GETs or SETs of one key each, or multigets.
    what: What,
    bytes: usize,
    window: usize,
    /// GETs into registered memory.
    is_registered: bool,
}

impl Load {
    /// Counts the calls of a round, on at most `most` keys, given by `key_of`.
    fn rate(self, client: &Client, round: Duration, key_of: impl Fn(u64) -> u64, most: u64) -> Result<Rate> {
        if self.what == What::Multiget {
            self.together(client, round, key_of, most)
        } else {
            self.one_by_one(client, round, key_of, most)
        }
    }

    /// Performs multigets of as many keys as the window has.
    fn together(
        self,
        client: &Client,
        round: Duration,
        key_of: impl Fn(u64) -> u64,
        most: u64,
    ) -> Result<Rate> {
        let Load { bytes, window, .. } = self;
        let (started, mut calls) = (Instant::now(), 0);
        while calls < most && (calls == 0 || started.elapsed() < round) {
            let numbers = (calls..most.min(calls + window as u64)).map(&key_of);
            let keys: Vec<_> = numbers.clone().map(|number| sized_key(number, bytes)).collect();
            let many = client.get_many(&keys)?;
            ensure!(many.failed.is_empty(), "many keys: {:?}", many.failed);
            for (number, item) in numbers.zip(&many.items) {
                check(item.as_ref(), number, bytes)?;
            }
            calls += keys.len() as u64;
        }
        Ok(Rate { calls, time: started.elapsed() })
    }

    /// Performs single calls with a full window in flight.
    fn one_by_one(
        self,
        client: &Client,
        round: Duration,
        key_of: impl Fn(u64) -> u64,
        most: u64,
    ) -> Result<Rate> {
        let Load { what, bytes, window, is_registered } = self;
        let sets = what == What::Set;
        let mut requests: Vec<Request> = (0..window).map(|_| client.request()).collect();
        let mut registered: Vec<_> =
            (0..window).filter(|_| is_registered).map(|_| client.register(bytes)).collect();
        let started = Instant::now();
        let (mut requested, mut ended) = (0u64, 0u64);
        loop {
            let more = requested < most && (requested == 0 || started.elapsed() < round);
            let at = (if more { requested } else { ended }) as usize % window;
            let mut buffers = (Vec::new(), Vec::new());
            if !more && ended == requested {
                break;
            }
            if !more || requested - ended == window as u64 {
                let number = key_of(ended);
                let done = requests[at].wait();
                match done.result? {
                    Outcome::Found { .. } if is_registered => {
                        let buffer = requests[at].take_buffer().context("it gives its buffer back")?;
                        ensure!(is_value(&buffer, number, bytes), "a wrong value of number {number}");
                        registered.push(buffer);
                    }
                    Outcome::Found { .. } => {
                        ensure!(is_value(&done.value, number, bytes), "a wrong value of number {number}");
                    }
                    Outcome::Stored if sets => {}
                    other => anyhow::bail!("number {number}: {other:?}"),
                }
                buffers = (done.key, done.value);
                ended += 1;
            }
            if more {
                let number = key_of(requested);
                let (mut key, mut kept) = buffers;
                key.clear();
                key.extend_from_slice(&sized_key(number, bytes));
                if is_registered {
                    requests[at].iget_registered(key, registered.pop().context("a buffer for each")?);
                } else if sets {
                    if kept.len() != bytes || !is_value(&kept, number, bytes) {
                        kept = value(number, bytes);
                    }
                    requests[at].iset(key, kept, Ttl::NEVER);
                } else {
                    requests[at].iget(key, kept);
                }
                requested += 1;
            }
        }
        Ok(Rate { calls: ended, time: started.elapsed() })
    }
}

/// Measures the store's own time for a GET and a SET.
///
/// # Errors
/// Memory is exhausted.
pub fn store(bytes: usize, plan: &Plan) -> Result<Vec<Figure>> {
    let items = keys_of(bytes);
    let (store, _clock) = keys::store(keys::memory_for(items, bytes) + (64 << 20), 1)?;
    let handle = Handle::new(&store);
    for number in 0..items {
        keys::set(&handle, &sized_key(number, bytes), &value(number, bytes), Expiry::NEVER);
    }
    let hot = HOT_KEYS.min(items);
    let values: Vec<Vec<u8>> = (0..hot).map(|number| value(number, bytes)).collect();
    let mut out = Vec::with_capacity(bytes);
    let round = plan.round / 4;
    let get = times(round, |call| {
        ensure!(keys::get(&handle, &sized_key(call % hot, bytes), &mut out), "an item is missing");
        Ok(())
    })?;
    let set = times(round, |call| {
        let number = call % hot;
        keys::set(&handle, &sized_key(number, bytes), &values[number as usize], Expiry::NEVER);
        Ok(())
    })?;
    let of = |what, times: Times| {
        let Times { p50_ns, p99_ns, .. } = times;
        Figure { way: STORE.into(), what, bytes, p50_ns, p99_ns, ..Figure::default() }
    };
    Ok(vec![of(What::Get, get), of(What::Set, set)])
}
