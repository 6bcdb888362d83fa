//! Clients of a filled target, in this process or in others.

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

/// Upper bound of a server's overhead per item; memcached's is 48 or 56 bytes.
const ITEM_EXTRA_BYTES: usize = 56;
/// Maximum duration of a round: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// The clients, their work, and its duration.
#[derive(Debug)]
pub struct Load {
    /// Their work.
    pub work: Work,
    /// Threads per process.
    pub threads: usize,
    /// Client processes; 0 runs the clients in this process.
    pub processes: usize,
    /// The program for client processes; default: this program.
    pub program: Option<PathBuf>,
    /// Duration of a round.
    pub seconds: f64,
    /// The sizes and number of items last stored on each set of servers.
    pub filled: Mutex<BTreeMap<Vec<String>, (Sizes, u64)>>,
}

/// Connected clients.
#[derive(Debug)]
pub enum Clients {
    /// In this process.
    Here(Box<Engine>),
    /// In other processes.
    There(Workers),
}

impl Load {
    /// Returns single-key readers in this process: one thread, one request in flight.
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

    /// Checks the configuration.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        ensure!(self.threads > 0, "0 threads: give at least 1");
        ensure!(
            self.seconds > 0.0 && self.seconds <= SECONDS_MAX,
            "rounds of {} s: give more than 0, and at most {SECONDS_MAX}",
            self.seconds
        );
        self.work.check()
    }

    /// Returns the work with values of these sizes, limited to as many items as the servers' memory holds.
    ///
    /// `kinds` is how many such sets of items are stored one after the other.
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
    /// The target does not store or cannot be reached; the work is invalid.
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

    /// Stores the items to read, unless the target has them already.
    fn fill(&self, target: &Target, work: &Work) -> Result<()> {
        let place: Vec<String> = target.urls.iter().map(ToString::to_string).collect();
        let wanted = (work.sizes, work.keys);
        let items = Items::new(work.key_bytes)?;
        let client = target.client()?;
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        if filled.get(&place) == Some(&wanted) {
            // Another server may listen there by now.
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

    /// Returns a round of the configured duration.
    pub fn round(&self, pace: Pace, number: u32) -> Round {
        Round { pace, duration_ns: (self.seconds * 1e9) as u64, seed: u64::from(number) }
    }

    /// Adds the conditions that differ from the defaults to a case.
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

    /// Describes the method.
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
    /// As for [`Engine::run`]; or a client process ended.
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
