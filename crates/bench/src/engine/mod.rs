//! Many concurrent clients that check every response.
//!
//! - `work.rs`: their work; `wire.rs`: requests and answers; `outcome.rs`: the result of a round.
//! - `sockets.rs`: many clients on one thread, over TCP and Unix sockets; `link.rs`: one of their connections.
//! - `memory.rs`: a client through shared memory.
//! - `processes.rs`: clients in other processes, started together; `load.rs`: clients of a filled target, in any
//!   process.
//! - `table.rs`: figures of such rounds as a table.
//!
//! Every round begins with all clients connected, and ends with the last response.

mod link;
mod load;
mod memory;
mod outcome;
mod processes;
mod sockets;
pub mod table;
mod wire;
mod work;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_client::{Address, Protocol};
use serde::{Deserialize, Serialize};

use crate::items::Items;
use crate::target::{Target, Url, protocol, protocol_name};
use link::takes_meta;
pub use load::{Clients, Load};
use memory::Memory;
pub use memory::TIMED_EVERY;
pub use outcome::Outcome;
pub use processes::{Workers, worker};
use sockets::Sockets;
pub use wire::Encoding;
use work::Schedule;
pub use work::{Arrivals, Pace, Popularity, Sizes, Work};

/// Maximum number of clients.
pub const CLIENTS_MAX: usize = 10_000;

/// Clients and their work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// URLs of the servers.
    pub urls: Vec<String>,
    /// The name of the protocol over sockets.
    pub protocol: String,
    /// The clients' work.
    pub work: Work,
    /// Number of clients.
    pub clients: usize,
    /// Threads that drive them. Shared-memory clients have one thread each, regardless of this value.
    pub threads: usize,
    /// How long a server may leave requests unanswered before it counts as failed, in nanoseconds.
    pub timeout_ns: u64,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// When clients make requests. The rate of an open loop is the sum over all clients.
    pub pace: Pace,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// Seed of the random sequence.
    pub seed: u64,
}

/// The connected clients of this process.
#[derive(Debug)]
pub struct Engine {
    work: Work,
    items: Items,
    drivers: Vec<(Driver, usize)>,
    clients: usize,
}

#[derive(Debug)]
enum Driver {
    Sockets(Box<Sockets>),
    Memory(Box<Memory>),
}

impl Plan {
    /// Returns a plan for clients of a target.
    pub fn new(target: &Target, work: &Work, clients: usize, threads: usize) -> Plan {
        Plan {
            urls: target.urls.iter().map(Url::to_string).collect(),
            protocol: protocol_name(target.protocol).to_owned(),
            work: work.clone(),
            clients,
            threads,
            timeout_ns: as_ns(target.timeout),
        }
    }
}

impl Round {
    /// Returns this round's part for `clients` of `of` clients.
    fn part(&self, clients: usize, of: usize, which: usize) -> Round {
        let pace = match self.pace {
            Pace::Closed => Pace::Closed,
            Pace::Open { rate_per_s, arrivals } => {
                Pace::Open { rate_per_s: rate_per_s * clients as f64 / of as f64, arrivals }
            }
        };
        let seed = fabcache_testbed::random::mix(
            self.seed.wrapping_mul(CLIENTS_MAX as u64).wrapping_add(which as u64),
        );
        Round { pace, seed, ..*self }
    }

    fn schedule(&self) -> Option<Schedule> {
        match self.pace {
            Pace::Closed => None,
            Pace::Open { rate_per_s, arrivals } => Some(Schedule::new(rate_per_s, arrivals, self.seed)),
        }
    }
}

impl Engine {
    /// Connects the clients.
    ///
    /// # Errors
    /// A server cannot be reached, or not over this transport; the plan is invalid.
    pub fn connect(plan: &Plan) -> Result<Engine> {
        plan.work.check()?;
        ensure!(
            (1..=CLIENTS_MAX).contains(&plan.clients) && (1..=plan.clients).contains(&plan.threads),
            "{} clients on {} threads: give from 1 to {CLIENTS_MAX} clients, and no more threads than clients",
            plan.clients,
            plan.threads
        );
        let urls: Result<Vec<Url>> = plan.urls.iter().map(|url| url.parse()).collect();
        let urls = urls?;
        let first = urls.first().context("no server")?;
        let protocol = protocol(&plan.protocol)?;
        let timeout = Duration::from_nanos(plan.timeout_ns);
        let mut drivers = Vec::new();
        if first.shared_memory {
            ensure!(
                plan.work.batch == 1 || plan.work.pipeline == 1,
                "through shared memory a client has either many keys in a request, or many requests in flight"
            );
            let mut target = Target::new("server", &urls, protocol)?;
            target.timeout = timeout;
            for _ in 0..plan.clients {
                drivers.push((Driver::Memory(Box::new(Memory::connect(&target, &plan.work)?)), 1));
            }
        } else {
            let addresses: Vec<Address> = urls.iter().map(|url| url.address.clone()).collect();
            let forms: Result<Vec<Encoding>> =
                addresses.iter().map(|address| encoding(address, protocol)).collect();
            let forms = forms?;
            for clients in parts(plan.clients, plan.threads) {
                let sockets = Sockets::connect(&addresses, &forms, clients, timeout)?;
                drivers.push((Driver::Sockets(Box::new(sockets)), clients));
            }
        }
        let items = Items::new(plan.work.key_bytes)?;
        Ok(Engine { work: plan.work.clone(), items, drivers, clients: plan.clients })
    }

    /// Runs a round.
    ///
    /// # Errors
    /// A server fails or answers wrongly.
    pub fn run(&mut self, round: &Round) -> Result<Outcome> {
        let Engine { work, items, drivers, clients } = self;
        let barrier = Barrier::new(drivers.len());
        let run = |which: usize, (driver, of): &mut (Driver, usize)| {
            let round = round.part(*of, *clients, which);
            barrier.wait();
            let begun = Instant::now();
            match driver {
                Driver::Sockets(sockets) => sockets.run(work, items, &round, begun),
                Driver::Memory(memory) => memory.run(work, items, &round, begun),
            }
        };
        let mut all = Outcome::new(work.sizes.classes());
        // Times without a due request count as part of the round.
        if matches!(round.pace, Pace::Open { .. }) {
            all.elapsed_ns = round.duration_ns;
        }
        if let [only] = &mut drivers[..] {
            all.add(&run(0, only)?);
            return Ok(all);
        }
        let run = &run;
        let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
            let numbered = drivers.iter_mut().enumerate();
            let threads: Vec<_> =
                numbered.map(|(which, driver)| scope.spawn(move || run(which, driver))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a client's thread panicked"))?)
                .collect()
        });
        for outcome in outcomes {
            all.add(&outcome?);
        }
        Ok(all)
    }
}

/// Returns the encoding for a server.
fn encoding(address: &Address, protocol: Protocol) -> Result<Encoding> {
    Ok(match protocol {
        Protocol::Text => Encoding::Text,
        Protocol::Meta => Encoding::Meta,
        Protocol::Binary => Encoding::Binary,
        Protocol::Auto if takes_meta(address)? => Encoding::Meta,
        Protocol::Auto => Encoding::Text,
    })
}

/// Splits a number into parts as equal as possible.
fn parts(all: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| all / count + usize::from(at < all % count))
}

/// Returns the time, after the beginning, from which on late requests are given up in an open loop.
fn overdue_ns(duration_ns: u64) -> u64 {
    duration_ns.saturating_mul(2)
}

fn as_ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
