//! A cache over the symmetric memory of a job, beside OpenSHMEM by itself and beside a server over TCP.
//!
//! The benchmark is a job of two PEs of its own, beside that of the cache: `raw.rs` measures from one to the other. The first is
//! also the cache's client, of keys that another PE of the cache has.

pub mod raw;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::distribution::Mapping;
use fabcache_client::{Address, Client, Distribution, Options, Outcome, Request, Ttl};
use fabcache_shmem::{Job, Process};
use fabcache_testbed::statistics::median;
use serde::{Deserialize, Serialize};

use crate::fabric::timing::{Times, times};
use crate::report::ServersHeader;
use raw::{MEASURING, REMOTE, Raw};

/// Keys of each size.
const KEYS: usize = 64;
/// GETs under way of the client whose rate is measured.
const WINDOW: usize = 32;
/// Clients of which each waits for its answers.
const CLIENTS: usize = 16;

/// The configuration of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of a value.
    pub sizes: Vec<usize>,
    /// Interleaved rounds of everything.
    pub rounds: u32,
    /// Duration of a round.
    pub round: Duration,
    /// The Unix socket of one of the cache's PEs, the names of all, and the one whose keys are measured.
    pub cache: Option<CachePlan>,
    /// Another server, to compare with.
    pub against: Option<Address>,
}

/// A cache to measure.
#[derive(Clone, Debug)]
pub struct CachePlan {
    /// The Unix socket of the delegator.
    pub socket: Address,
    /// The names of the job's PEs.
    pub names: Vec<Address>,
    /// The one whose keys are measured.
    pub owner: usize,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A read of another PE's memory.
    RawRead,
    /// A write of another PE's memory and a flag, until its flag comes back.
    RawRoundTrip,
    /// A GET through the delegator.
    Get,
    /// A SET through the delegator.
    Set,
    /// A GET from the other server.
    AgainstGet,
    /// A SET to the other server.
    AgainstSet,
}

/// A figure of one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub what: What,
    /// Bytes of the value.
    pub bytes: usize,
    /// Which round.
    pub round: u32,
    /// Median duration.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

/// GETs per second of one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rate {
    /// Clients, each in a thread of its own.
    pub clients: usize,
    /// Operations under way of each.
    pub window: usize,
    /// Bytes of the value.
    pub bytes: usize,
    /// Which round.
    pub round: u32,
    /// GETs per second of all clients together.
    pub per_s: f64,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, where and how.
    #[serde(flatten)]
    pub header: ServersHeader,
    /// Durations.
    pub figures: Vec<Figure>,
    /// Rates.
    pub rates: Vec<Rate>,
}

/// Measures, as one PE of a job of two. Returns the figures in the first, and nothing in the other.
///
/// # Errors
/// The job has another number of PEs, or a server does not answer as it should.
pub fn measure(
    job: &Job,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<(Vec<Figure>, Vec<Rate>)>> {
    ensure!(job.pes() == 2, "the benchmark is a job of two PEs (oshrun -np 2), not of {}", job.pes());
    let largest = plan.sizes.iter().copied().max().context("no size is given")?;
    let mut raw = Raw::start(job, largest)?;
    if job.pe() == REMOTE {
        raw.answer(&AtomicBool::new(false));
        return Ok(None);
    }
    debug_assert_eq!(job.pe(), MEASURING);
    let measured = measure_from(&mut raw, plan, progress);
    raw.end();
    measured.map(Some)
}

fn measure_from(
    raw: &mut Raw,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<(Vec<Figure>, Vec<Rate>)> {
    let cache = plan.cache.as_ref().map(Target::of_cache).transpose()?;
    let against = plan.against.as_ref().map(Target::of_server).transpose()?;
    let (mut figures, mut rates) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        for &bytes in &plan.sizes {
            progress(&format!("round {} of {}, {bytes} bytes", round + 1, plan.rounds));
            let mut add = |what, times: Times| {
                figures.push(Figure { what, bytes, round, p50_ns: times.p50_ns, p99_ns: times.p99_ns });
            };
            add(What::RawRead, raw.reads(bytes, plan.round)?);
            add(What::RawRoundTrip, raw.round_trips(bytes, plan.round)?);
            if let Some(cache) = &cache {
                add(What::Set, cache.sets(bytes, plan.round)?);
                add(What::Get, cache.gets(bytes, plan.round)?);
            }
            if let Some(against) = &against {
                add(What::AgainstSet, against.sets(bytes, plan.round)?);
                add(What::AgainstGet, against.gets(bytes, plan.round)?);
            }
        }
        if let Some(cache) = &cache {
            progress(&format!("round {} of {}, rates", round + 1, plan.rounds));
            let bytes = plan.sizes[0];
            for (clients, window) in [(1, WINDOW), (CLIENTS, 1)] {
                let per_s = cache.rate(bytes, clients, window, plan.round)?;
                rates.push(Rate { clients, window, bytes, round, per_s });
            }
        }
    }
    Ok((figures, rates))
}

/// A server to measure, and keys there.
struct Target {
    client: Client,
    keys: Vec<String>,
}

impl Target {
    fn of_cache(plan: &CachePlan) -> Result<Target> {
        let mapping = Mapping::new(&Distribution::Ketama, &plan.names, |_| true);
        let is_owners = |key: &String| mapping.server_of(key.as_bytes()) == Some(plan.owner);
        let keys = (0..).map(|number| format!("key{number:05}")).filter(is_owners).take(KEYS).collect();
        Ok(Target { client: client(&plan.socket)?, keys })
    }

    fn of_server(address: &Address) -> Result<Target> {
        let keys = (0..KEYS).map(|number| format!("key{number:05}")).collect();
        Ok(Target { client: client(address)?, keys })
    }

    fn key(&self, number: u64) -> &[u8] {
        self.keys[number as usize % self.keys.len()].as_bytes()
    }

    fn sets(&self, bytes: usize, round: Duration) -> Result<Times> {
        let value = vec![b'v'; bytes];
        times(round, |number| Ok(self.client.set(self.key(number), &value, Ttl::NEVER)?))
    }

    fn gets(&self, bytes: usize, round: Duration) -> Result<Times> {
        self.fill(bytes)?;
        times(round, |number| match self.client.get(self.key(number))? {
            Some(item) if item.value.len() == bytes => Ok(()),
            other => bail!("a GET found {:?} bytes instead of {bytes}", other.map(|item| item.value.len())),
        })
    }

    fn fill(&self, bytes: usize) -> Result<()> {
        let value = vec![b'v'; bytes];
        self.keys.iter().try_for_each(|key| Ok(self.client.set(key.as_bytes(), &value, Ttl::NEVER)?))
    }

    /// Returns GETs per second of clients in threads of their own.
    fn rate(&self, bytes: usize, clients: usize, window: usize, round: Duration) -> Result<f64> {
        self.fill(bytes)?;
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        let total: Result<u64> = thread::scope(|scope| {
            let all: Vec<_> = (0..clients)
                .map(|number| {
                    scope.spawn({
                        let is_over = &is_over;
                        move || self.gets_until(window, number as u64, is_over)
                    })
                })
                .collect();
            thread::sleep(round);
            is_over.store(true, Ordering::Relaxed);
            all.into_iter().map(|one| one.join().expect("a client does not panic")).sum()
        });
        Ok(total? as f64 / began.elapsed().as_secs_f64())
    }

    fn gets_until(&self, window: usize, first: u64, is_over: &AtomicBool) -> Result<u64> {
        let mut number = first;
        let mut next = || {
            number += 1;
            self.key(number).to_vec()
        };
        let mut requests: Vec<Request> = (0..window).map(|_| self.client.iget(next(), Vec::new())).collect();
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            for request in &mut requests {
                let completed = request.wait();
                ensure!(matches!(completed.result?, Outcome::Found { .. }), "a GET found nothing");
                count += 1;
                request.iget(next(), completed.value);
            }
        }
        requests.iter_mut().try_for_each(|request| request.wait().result.map(drop))?;
        Ok(count)
    }
}

fn client(address: &Address) -> Result<Client> {
    Ok(Client::new([address.to_string().as_str()], Options::default())?)
}

impl Results {
    fn median_us(&self, what: What, bytes: usize) -> Option<f64> {
        let of = self.figures.iter().filter(|figure| figure.what == what && figure.bytes == bytes);
        let times: Vec<f64> = of.map(|figure| figure.p50_ns / 1e3).collect();
        (!times.is_empty()).then(|| median(times))
    }

    /// Returns the results as text.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.header.method);
        let mut sizes: Vec<usize> = self.figures.iter().map(|figure| figure.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let _ = writeln!(
            text,
            "{:>9} {:>9} {:>9} {:>7} {:>12} {:>9} {:>7} {:>11} {:>11}",
            "bytes", "get, raw", "GET", "ratio", "put+flag, raw", "SET", "ratio", "GET, other", "SET, other"
        );
        let cell = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.2}"));
        for bytes in sizes {
            let of = |what| self.median_us(what, bytes);
            let ratio =
                |ours: Option<f64>, raw: Option<f64>| cell(ours.zip(raw).map(|(ours, raw)| ours / raw));
            let _ = writeln!(
                text,
                "{bytes:>9} {:>9} {:>9} {:>7} {:>12} {:>9} {:>7} {:>11} {:>11}",
                cell(of(What::RawRead)),
                cell(of(What::Get)),
                ratio(of(What::Get), of(What::RawRead)),
                cell(of(What::RawRoundTrip)),
                cell(of(What::Set)),
                ratio(of(What::Set), of(What::RawRoundTrip)),
                cell(of(What::AgainstGet)),
                cell(of(What::AgainstSet)),
            );
        }
        text.push_str("medians in microseconds\n");
        for (clients, window) in [(1, WINDOW), (CLIENTS, 1)] {
            let of = self.rates.iter().filter(|rate| rate.clients == clients && rate.window == window);
            let rates: Vec<f64> = of.map(|rate| rate.per_s).collect();
            if !rates.is_empty() {
                let _ = writeln!(
                    text,
                    "{clients} client(s), {window} GETs under way each: {:.0} GETs/s",
                    median(rates)
                );
            }
        }
        text
    }
}
