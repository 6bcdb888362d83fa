//! Clients of a filled target: in this process or in others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::processes::Workers;
use super::{Engine, Outcome, Pace, Plan, Popularity, Round, Sizes, Work};
use crate::fill::fill;
use crate::items::Items;
use crate::limits::Limits;
use crate::results::{Case, Sample};
use crate::target::Target;

/// What servers keep of an item beside key and value, about: memcached 48 bytes or 56.
const ITEM_EXTRA_BYTES: usize = 56;
/// A round lasts a day at most.
const SECONDS_MAX: f64 = 86_400.0;

/// The clients, their work, and its duration.
#[derive(Debug)]
pub struct Load {
    /// Their work.
    pub work: Work,
    /// Threads that clients of a process are driven by.
    pub threads: usize,
    /// Processes that clients are spread over: 0 is this one.
    pub processes: usize,
    /// The program to start for them: `fabcache`; default: this program.
    pub program: Option<PathBuf>,
    /// How long a round lasts.
    pub seconds: f64,
    /// The sizes and number of items that servers were last filled with.
    pub filled: Mutex<BTreeMap<Vec<String>, (Sizes, u64)>>,
}

/// Clients, connected.
#[derive(Debug)]
pub enum Clients {
    /// In this process.
    Here(Box<Engine>),
    /// In other processes.
    There(Workers),
}

impl Load {
    /// Returns readers in this process, on one thread: with one key in a request, and one request in flight.
    pub fn new(keys: u64, key_bytes: usize, seconds: f64, verify: bool) -> Load {
        let work = Work {
            keys,
            key_bytes,
            popularity: Popularity::Uniform,
            sizes: Sizes::Same(0),
            get_share: 1.0,
            batch: 1,
            pipeline: 1,
            verify,
        };
        Load { work, threads: 1, processes: 0, program: None, seconds, filled: Mutex::default() }
    }

    /// Whether all of it can be.
    ///
    /// # Errors
    /// What cannot.
    pub fn check(&self) -> Result<()> {
        ensure!(self.threads > 0, "0 threads: give at least 1");
        ensure!(
            self.seconds > 0.0 && self.seconds <= SECONDS_MAX,
            "rounds of {} s: give more than 0, and at most {SECONDS_MAX}",
            self.seconds
        );
        self.work.check()
    }

    /// Returns the work with values of these sizes, one of so many kinds that are stored one after the other: no more
    /// items than the target's servers have memory for.
    ///
    /// # Errors
    /// The target cannot be reached.
    pub fn sized(&self, target: &Target, sizes: Sizes, kinds: usize) -> Result<Work> {
        let work = Work { sizes, ..self.work.clone() };
        let item_bytes = (work.mean_bytes() as usize).saturating_add(work.key_bytes + ITEM_EXTRA_BYTES);
        let keys = Limits::or_default(&target.client()?).items_of(item_bytes, kinds, work.keys);
        Ok(Work { keys, ..work })
    }

    /// Fills a target, unless it has the same items already, and connects clients.
    ///
    /// # Errors
    /// It does not store, or cannot be reached; the work cannot be.
    pub fn connect(&self, target: &Target, work: &Work, clients: usize) -> Result<Clients> {
        self.check()?;
        work.check()?;
        self.fill(target, work)?;
        let plan = Plan::new(target, work, clients, self.threads.min(clients));
        if self.processes == 0 {
            return Ok(Clients::Here(Box::new(Engine::connect(&plan)?)));
        }
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("this program is not known")?,
        };
        Ok(Clients::There(Workers::start(&program, &plan, self.processes.min(clients))?))
    }

    /// Stores what will be read, unless it was before.
    fn fill(&self, target: &Target, work: &Work) -> Result<()> {
        let place: Vec<String> = target.urls.iter().map(ToString::to_string).collect();
        let wanted = (work.sizes, work.keys);
        let items = Items::new(work.key_bytes)?;
        let client = target.client()?;
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        if filled.get(&place) == Some(&wanted) {
            // It may be another server by now.
            let mut last = Vec::new();
            items.key(work.keys - 1, &mut last);
            if client.get(&last)?.is_some() {
                return Ok(());
            }
        }
        filled.remove(&place);
        fill(&client, &items, 0..work.keys, |number| work.sizes.value_bytes(number))?;
        filled.insert(place, wanted);
        Ok(())
    }

    /// A round that lasts as long as it should.
    pub fn round(&self, pace: Pace, number: u32) -> Round {
        Round { pace, duration_ns: (self.seconds * 1e9) as u64, seed: u64::from(number) }
    }

    /// The conditions of a case that are not the usual ones.
    pub fn conditions(&self, case: Case) -> Case {
        let Work { pipeline, popularity, get_share, .. } = self.work;
        let mut case = case;
        if pipeline != 1 {
            case = case.with("pipeline", pipeline);
        }
        if let Popularity::Zipf(exponent) = popularity {
            case = case.with("zipf", exponent);
        }
        if get_share > 0.0 && get_share < 1.0 {
            case = case.with("get_share", get_share);
        }
        if self.processes > 0 {
            case = case.with("processes", self.processes);
        }
        if self.threads > 1 { case.with("threads", self.threads) } else { case }
    }

    /// Returns the name of the operation.
    pub fn operation(&self) -> &'static str {
        match self.work.get_share {
            share if share >= 1.0 => "get",
            share if share <= 0.0 => "set",
            _ => "mix",
        }
    }

    /// In words.
    pub fn method(&self) -> String {
        let Work { keys, key_bytes, popularity, pipeline, verify, .. } = self.work;
        let clients = match (self.processes, self.threads) {
            (0, 1) => "clients of one thread".to_owned(),
            (0, threads) => format!("clients of {threads} threads"),
            (processes, 1) => format!("clients of {processes} processes"),
            (processes, threads) => format!("clients of {processes} processes with {threads} threads each"),
        };
        let chosen = match popularity {
            Popularity::Uniform => "uniform".to_owned(),
            Popularity::Zipf(exponent) => format!("Zipf {exponent}"),
        };
        let compared = if verify { "every byte" } else { "length and number" };
        format!(
            "{clients} (through shared memory each with its own), with up to {pipeline} requests in flight each, for {} s a round; \
             at most {keys} keys of {key_bytes} bytes, {chosen}, in at most half of the servers' memory; {compared} of every value \
             compared; wall time of a request",
            self.seconds
        )
    }
}

impl Clients {
    /// Runs a round.
    ///
    /// # Errors
    /// As [`Engine::run`], or a process ended.
    pub fn run(&mut self, round: &Round) -> Result<Outcome> {
        match self {
            Clients::Here(engine) => engine.run(round),
            Clients::There(workers) => workers.run(round),
        }
    }
}

impl From<Outcome> for Sample {
    fn from(outcome: Outcome) -> Sample {
        let latency = outcome.all_latency();
        let per_s = outcome.value_bytes as f64 * 1e9 / outcome.elapsed_ns.max(1) as f64;
        let mut figures = BTreeMap::from([("value_bytes_per_s".to_owned(), per_s)]);
        if outcome.unsent > 0 {
            figures.insert("unsent".to_owned(), outcome.unsent as f64);
        }
        Sample {
            operations: outcome.operations,
            elapsed_ns: outcome.elapsed_ns,
            misses: outcome.misses,
            verified: outcome.verified,
            latency: (latency.count() > 0).then_some(latency),
            client_cpu_ns: (outcome.client_cpu_ns > 0).then_some(outcome.client_cpu_ns),
            figures,
            ..Sample::default()
        }
    }
}
