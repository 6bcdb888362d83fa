//! Client limits: the rate that the clients reach with a server that only answers.

use std::path::Path;

use anyhow::{Context, Result};
use fabcache_client::Protocol;

use super::{Experiment, Rounds};
use crate::dummy::{Child, Listen};
use crate::limits::Limits;
use crate::process::Cpus;
use crate::results::Case;
use crate::target::{Target, Url};
use fabcache_testbed::statistics::median;

/// Its name in messages.
const NAME: &str = "the dummy";

/// Dummies, reached over the targets' transports.
#[derive(Debug)]
pub struct ClientLimits {
    dummies: Vec<Dummy>,
}

#[derive(Debug)]
struct Dummy {
    route: Route,
    /// The names of the targets with this transport.
    targets: Vec<String>,
    target: Target,
    // Declared last, so that its clients are dropped first.
    _process: Child,
}

/// How a target is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    transport: &'static str,
    protocol: Protocol,
    servers: usize,
    /// The server's limits; some measurements depend on them.
    limits: Limits,
}

impl Route {
    /// Returns the target's route; `None` for shared memory, which the clients read themselves.
    fn of(target: &Target) -> Option<Route> {
        let transport = target.urls.first().filter(|_| !target.shares_memory())?.transport();
        let servers = target.urls.len();
        let limits = target.client().and_then(|client| Limits::of(&client)).unwrap_or_default();
        let limits = Limits { memory_bytes: limits.memory_bytes / servers as u64, ..limits };
        Some(Route { transport, protocol: target.protocol, servers, limits })
    }

    fn listen(&self) -> Listen {
        match self.transport {
            "tcp" => Listen::Tcp(([127, 0, 0, 1], 0).into()),
            _ => Listen::private_socket(),
        }
    }
}

impl ClientLimits {
    /// Returns no dummies: no limit is measured.
    pub fn none() -> ClientLimits {
        ClientLimits { dummies: Vec::new() }
    }

    /// Starts a dummy for each transport of the targets, on these CPUs if given. `program` is the
    /// command-line tool. Threads and processes inherit their parent's CPUs: call this before pinning the
    /// clients.
    ///
    /// # Errors
    /// A dummy does not start.
    pub fn start<'t>(
        program: &Path,
        targets: impl Iterator<Item = &'t Target>,
        cpus: Option<&Cpus>,
    ) -> Result<ClientLimits> {
        // It must not limit the clients, which have at least one CPU.
        let threads = match cpus {
            Some(cpus) => cpus.count(),
            None => Cpus::current()?.count().saturating_sub(1),
        };
        let mut dummies: Vec<Dummy> = Vec::new();
        for measured in targets {
            let Some(route) = Route::of(measured) else { continue };
            if let Some(dummy) = dummies.iter_mut().find(|dummy| dummy.route == route) {
                dummy.targets.push(measured.name.clone());
                continue;
            }
            let listen: Vec<Listen> = (0..route.servers).map(|_| route.listen()).collect();
            let process = Child::start(program, &listen, route.limits, threads)?;
            let urls: Result<Vec<Url>> = process.urls().iter().map(|url| url.parse()).collect();
            // Names are unique, because some measurements record by name what they have filled.
            let name = format!("{NAME} for {}, process {}", measured.name, process.process().0);
            let target = Target::new(&name, &urls?, route.protocol)?;
            cpus.map_or(Ok(()), |cpus| process.process().pin(cpus))?;
            let targets = vec![measured.name.clone()];
            dummies.push(Dummy { route, targets, target, _process: process });
        }
        Ok(ClientLimits { dummies })
    }

    /// Returns the number of dummies.
    pub fn len(&self) -> usize {
        self.dummies.len()
    }

    /// Returns whether there is no dummy.
    pub fn is_empty(&self) -> bool {
        self.dummies.is_empty()
    }

    /// Prepares the dummies for a case.
    ///
    /// # Errors
    /// The case cannot be run on a dummy.
    pub fn prepare<'c>(&'c self, experiment: &'c dyn Experiment, case: &Case) -> Result<ClientLimit<'c>> {
        let what = format!("{} {}, with {NAME}", experiment.name(), case.name());
        let ready = |dummy: &'c Dummy| {
            let rounds = experiment.prepare(&dummy.target, case).with_context(|| what.clone())?;
            anyhow::Ok((dummy, rounds, Vec::new()))
        };
        let dummies: Result<Vec<_>> = self.dummies.iter().map(ready).collect();
        Ok(ClientLimit { dummies: dummies?, what: what.clone() })
    }
}

/// One case on the dummies.
pub struct ClientLimit<'c> {
    /// Each dummy with the case on it, and its operations per second in each round.
    dummies: Vec<(&'c Dummy, Box<dyn Rounds + 'c>, Vec<f64>)>,
    what: String,
}

impl ClientLimit<'_> {
    /// Runs a round on each dummy.
    ///
    /// # Errors
    /// A dummy does not answer as it should.
    pub fn round(&mut self, number: u32, mut begin: impl FnMut(&str)) -> Result<()> {
        for (_, rounds, rates) in &mut self.dummies {
            begin(&self.what);
            rates.push(rounds.round(number).with_context(|| self.what.clone())?.rate());
        }
        Ok(())
    }

    /// Returns the operations per second of the dummy on a target's route, the median of its rounds.
    pub fn per_s(&self, target: &str) -> Option<f64> {
        let is_of = |dummy: &Dummy| dummy.targets.iter().any(|known| known == target);
        let (_, _, rates) = self.dummies.iter().find(|(dummy, _, _)| is_of(dummy))?;
        Some(median(rates.iter().copied()))
    }
}
