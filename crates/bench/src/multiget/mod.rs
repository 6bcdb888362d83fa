//! Multigets beside single gets: keys per second and latency of a request, by the number of clients.

use anyhow::{Context, Result, ensure};

use crate::engine::table::{USUAL, table as any_table};
use crate::engine::{Clients, Load, Pace, Sizes, Work};
use crate::experiment::{Experiment, Rounds};
use crate::results::{Case, Results, Sample};
use crate::target::Target;

/// Keys of a multiget.
pub const BATCH: usize = 48;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 100;
/// Seconds of a round: with `quick`, and otherwise.
const SECONDS: [f64; 2] = [0.5, 1.0];
/// Number of keys: with `quick`, and otherwise.
const KEYS: [u64; 2] = [5_000, 100_000];

/// The experiment.
#[derive(Debug)]
pub struct Multiget {
    /// Keys per request.
    pub batches: Vec<usize>,
    /// Bytes of values.
    pub sizes: Vec<usize>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// The clients and their work.
    pub load: Load,
}

impl Multiget {
    /// Returns batches of 48 keys and of one.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn standard(quick: bool, verify: bool, key_bytes: usize) -> Result<Multiget> {
        let at = usize::from(!quick);
        let load = Load::new(KEYS[at], key_bytes, SECONDS[at], verify);
        load.work.check()?;
        let clients = if quick { vec![1, 16] } else { vec![1, 2, 4, 8, 16, 32, 64] };
        Ok(Multiget { batches: vec![1, BATCH], sizes: vec![VALUE_BYTES], clients, load })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        self.load.check()?;
        ensure!(!self.clients.contains(&0) && !self.clients.is_empty(), "there is at least 1 client");
        for batch in &self.batches {
            Work { batch: *batch, ..self.load.work.clone() }.check()?;
        }
        Ok(())
    }
}

impl Experiment for Multiget {
    fn name(&self) -> &'static str {
        "multiget"
    }

    fn method(&self) -> String {
        format!("closed loop; operations are keys, latency is a request's; {}", self.load.method())
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for size in &self.sizes {
            for clients in &self.clients {
                for batch in &self.batches {
                    let operation = if *batch == 1 { "get" } else { "multiget" };
                    let case = Case::new(operation).with("value_bytes", *size).with("clients", *clients);
                    cases.push(self.load.conditions(case.with("batch", *batch)));
                }
            }
        }
        cases
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        self.check()?;
        let number = |name: &str| case.number(name).with_context(|| format!("a case has {name}"));
        let (size, clients) = (number("value_bytes")? as usize, number("clients")? as usize);
        let work = self.load.sized(target, Sizes::Same(size), self.sizes.len())?;
        let work = Work { batch: number("batch")? as usize, get_share: 1.0, ..work };
        Ok(Box::new(Batches { load: &self.load, clients: self.load.connect(target, &work, clients)? }))
    }
}

/// Clients of one target.
struct Batches<'e> {
    load: &'e Load,
    clients: Clients,
}

impl Rounds for Batches<'_> {
    fn round(&mut self, number: u32) -> Result<Sample> {
        Ok(self.clients.run(&self.load.round(Pace::Closed, number))?.into())
    }
}

/// Returns keys per second, latencies and CPU time per key, by the number of clients.
pub fn table(results: &Results) -> String {
    any_table(results, &USUAL.iter().collect::<Vec<_>>())
}
