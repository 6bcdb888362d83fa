//! Caches over the symmetric memory of jobs, beside OpenSHMEM by itself and beside another server.
//!
//! The benchmark is a job of two PEs of its own, beside those of the caches: `raw.rs` measures from one to the other. The first
//! is also the caches' client, of keys that another PE of the cache has. `servers.rs` starts what is measured.

pub mod raw;
pub mod report;
pub mod servers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fabcache_client::distribution::Mapping;
use fabcache_client::{Address, Client, Distribution, Options, Outcome, Request, Ttl};
use fabcache_shmem::{Job, Process};

use crate::fabric::timing::{Times, times};
use raw::{MEASURING, REMOTE, Raw};
use report::{Figure, RAW, Rate, What};

/// Keys of each size.
const KEYS: usize = 64;
/// Requests under way of the client whose rate is measured.
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
    /// The servers, which run: a label, and the address. Of a job, the Unix socket of a delegator.
    pub servers: Vec<(String, Address)>,
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
    let targets: Vec<Target> =
        plan.servers.iter().map(|(label, address)| Target::new(label, address)).collect::<Result<_>>()?;
    let (mut figures, mut rates) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        for &bytes in &plan.sizes {
            progress(&format!("round {} of {}, {bytes} bytes", round + 1, plan.rounds));
            let mut add = |target: &str, what, times: Times| {
                let (target, Times { p50_ns, p99_ns, .. }) = (target.to_owned(), times);
                figures.push(Figure { target, what, bytes, round, p50_ns, p99_ns });
            };
            add(RAW, What::Get, raw.reads(bytes, plan.round)?);
            add(RAW, What::Set, raw.round_trips(bytes, plan.round)?);
            for target in &targets {
                add(&target.label, What::Set, target.sets(bytes, plan.round)?);
                add(&target.label, What::Get, target.gets(bytes, plan.round)?);
            }
        }
        progress(&format!("round {} of {}, rates", round + 1, plan.rounds));
        let bytes = plan.sizes[0];
        for what in [What::Get, What::Set] {
            for (clients, window) in [(1, WINDOW), (CLIENTS, 1)] {
                for target in &targets {
                    let per_s = target.rate(what, bytes, clients, window, plan.round)?;
                    rates.push(Rate {
                        target: target.label.clone(),
                        what,
                        clients,
                        window,
                        bytes,
                        round,
                        per_s,
                    });
                }
            }
        }
    }
    Ok((figures, rates))
}

/// Returns the names and versions of the servers.
///
/// # Errors
/// A server does not answer.
pub fn versions(plan: &Plan) -> Result<Vec<(String, String)>> {
    let version = |(label, address): &(String, Address)| {
        let versions = client(address)?.versions();
        Ok((label.clone(), versions.into_iter().next().context("no server")??))
    };
    plan.servers.iter().map(version).collect()
}

fn client(address: &Address) -> Result<Client> {
    Ok(Client::new([address.to_string().as_str()], Options::default())?)
}

/// A server to measure, and keys there.
struct Target {
    label: String,
    client: Client,
    keys: Vec<String>,
}

impl Target {
    /// Connects to a server. Of a job's PE the keys are those of the next PE.
    fn new(label: &str, address: &Address) -> Result<Target> {
        let client = client(address)?;
        let stats = client.stats("fabcache").pop().context("no server")?;
        let keys = (0..).map(|number| format!("key{number:05}"));
        // Another server has no such statistics.
        let pe = stats.ok().and_then(|stats| PeStats::of(&stats));
        let keys = match pe {
            None => keys.take(KEYS).collect(),
            Some(PeStats { own, names }) => {
                let mapping = Mapping::new(&Distribution::Ketama, &names, |_| true);
                let owner = (own + 1) % names.len();
                keys.filter(|key| mapping.server_of(key.as_bytes()) == Some(owner)).take(KEYS).collect()
            }
        };
        Ok(Target { label: label.to_owned(), client, keys })
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

    /// Returns operations per second of clients in threads of their own.
    fn rate(&self, what: What, bytes: usize, clients: usize, window: usize, round: Duration) -> Result<f64> {
        self.fill(bytes)?;
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        let total: Result<u64> = thread::scope(|scope| {
            let all: Vec<_> = (0..clients)
                .map(|number| {
                    scope.spawn({
                        let is_over = &is_over;
                        move || self.requests_until(what, bytes, window, number as u64, is_over)
                    })
                })
                .collect();
            thread::sleep(round);
            is_over.store(true, Ordering::Relaxed);
            all.into_iter().map(|one| one.join().expect("a client does not panic")).sum()
        });
        Ok(total? as f64 / began.elapsed().as_secs_f64())
    }

    /// Returns the operations of one client until `is_over`.
    fn requests_until(
        &self,
        what: What,
        bytes: usize,
        window: usize,
        first: u64,
        is_over: &AtomicBool,
    ) -> Result<u64> {
        let mut number = first;
        let mut next = || {
            number += 1;
            self.key(number).to_vec()
        };
        let mut begin = || match what {
            What::Get => self.client.iget(next(), Vec::new()),
            What::Set => self.client.iset(next(), vec![b'v'; bytes], Ttl::NEVER),
        };
        let mut requests: Vec<Request> = (0..window).map(|_| begin()).collect();
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            for request in &mut requests {
                let completed = request.wait();
                match (what, completed.result?) {
                    (What::Get, Outcome::Found { .. }) => request.iget(next(), completed.value),
                    (What::Get, _) => bail!("a GET found nothing"),
                    (What::Set, _) => request.iset(next(), completed.value, Ttl::NEVER),
                }
                count += 1;
            }
        }
        requests.iter_mut().try_for_each(|request| request.wait().result.map(drop))?;
        Ok(count)
    }
}

/// What a PE says of its job.
#[derive(Debug, PartialEq, Eq)]
struct PeStats {
    own: usize,
    names: Vec<Address>,
}

impl PeStats {
    /// Reads the statistics of a server; none if it is not part of a job.
    fn of(stats: &[(String, String)]) -> Option<PeStats> {
        let find = |name: &str| Some(&stats.iter().find(|(stat, _)| stat == name)?.1);
        let own = find("openshmem_pe")?.parse().ok()?;
        let count: usize = find("openshmem_pes")?.parse().ok()?;
        let name = |pe| find(&format!("openshmem_pe:{pe}:name"))?.parse().ok();
        Some(PeStats { own, names: (0..count).map(name).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_are_read_from_statistics() {
        let stats = |lines: &[(&str, &str)]| {
            lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let mut of_job = stats(&[
            ("openshmem_pe", "1"),
            ("openshmem_pes", "2"),
            ("openshmem_pe:0:name", "127.0.0.1:5"),
            ("openshmem_pe:0:state", "up"),
            ("openshmem_pe:1:name", "node7"),
        ]);
        let names = ["127.0.0.1:5", "node7"].map(|name| name.parse().expect("an address")).to_vec();
        assert_eq!(PeStats::of(&of_job), Some(PeStats { own: 1, names }));
        of_job.pop();
        assert_eq!(PeStats::of(&of_job), None);
        assert_eq!(PeStats::of(&stats(&[("pid", "5")])), None);
    }
}
