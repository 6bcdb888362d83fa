//! The sets of measurements, by name: single experiments, and selections of them.

use anyhow::{Context, Result, bail};

use crate::blocks::Blocks;
use crate::engine::Load;
use crate::experiment::{Experiment, Rounds};
use crate::hybrid::Hybrid;
use crate::latency::{Latency, Operation};
use crate::mixture::Mixture;
use crate::multiget::Multiget;
use crate::nonblocking::NonBlocking;
use crate::results::Case;
use crate::target::Target;
use crate::throughput::Throughput;
use crate::trace::plan::Plan as ReplayPlan;
use crate::trace::replay::Replay;

/// Rounds of quick sets.
const QUICK_ROUNDS: u32 = 3;
/// Sizes of values in the set `quick`.
const QUICK_VALUES_BYTES: [usize; 3] = [64, 4 << 10, 128 << 10];

/// A named set of experiments, itself an experiment.
pub struct Set {
    name: &'static str,
    parts: Vec<Box<dyn Experiment>>,
    /// Rounds of each case.
    pub rounds: u32,
}

/// Seconds of a quick round; there are many of them.
const QUICK_SECONDS: f64 = 0.1;
/// Requests in flight; set `pipelined`: value sizes, seconds of a round. Short rounds, and many, for
/// ratios.
const PIPELINES: [usize; 2] = [1, 32];
const PIPELINED_VALUE_BYTES: usize = 100;
const PIPELINED_SECONDS: f64 = 0.2;
/// Keys of a multiget.
const BATCH: usize = 48;
/// Set `sockets`: connections, and connections that store long values; keys; the share of reads; sizes of values.
const SOCKET_CLIENTS: [usize; 2] = [50, 8];
const SOCKET_KEYS: [u64; 2] = [5_000, 400_000];
const SOCKET_GET_SHARE: f64 = 0.9;
const SOCKET_VALUES_BYTES: [usize; 3] = [PIPELINED_VALUE_BYTES, 4 << 10, 128 << 10];
const SOCKET_SECONDS: f64 = 0.5;

/// The experiments of a set.
type Experiments = Result<Vec<Box<dyn Experiment>>>;

/// The definition of a set.
struct SetDefinition {
    name: &'static str,
    /// Rounds of a full run; odd, so that one is the median.
    rounds: u32,
    parts: fn(&SetOptions) -> Experiments,
}

/// Options for building sets.
#[derive(Clone, Copy, Debug)]
pub struct SetOptions {
    /// Shorter runs.
    pub quick: bool,
    /// Compare every byte of every value.
    pub verify: bool,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Servers may be flushed, so that no round finds another's items.
    pub empties: bool,
}

/// Definitions of all sets except `all`, which runs each of these but `quick`.
const DEFINITIONS: [SetDefinition; 11] = [
    SetDefinition { name: "quick", rounds: 11, parts: quick },
    SetDefinition { name: "latency", rounds: 11, parts: latency },
    SetDefinition { name: "throughput", rounds: 11, parts: throughput },
    SetDefinition { name: "pipelined", rounds: 31, parts: pipelined },
    SetDefinition { name: "sockets", rounds: 11, parts: sockets },
    SetDefinition { name: "multiget", rounds: 11, parts: multiget },
    SetDefinition { name: "mixture", rounds: 11, parts: mixture },
    SetDefinition { name: "nonblocking", rounds: 11, parts: nonblocking },
    SetDefinition { name: "hybrid", rounds: 3, parts: hybrid },
    SetDefinition { name: "trace", rounds: 3, parts: trace },
    // Last of all: it fails where servers have less memory than it writes.
    SetDefinition { name: "blocks", rounds: 3, parts: blocks },
];

impl SetOptions {
    /// Returns the load, shortened if there are many rounds.
    fn load(&self, standard: Load) -> Load {
        let seconds = if self.quick { QUICK_SECONDS } else { standard.seconds };
        Load { seconds, ..standard }
    }
}

impl Set {
    /// The names of all sets.
    pub fn names() -> Vec<&'static str> {
        DEFINITIONS.iter().map(|recipe| recipe.name).chain(["all"]).collect()
    }

    /// Returns the sets with these names.
    ///
    /// # Errors
    /// There is no set of this name; the key length is not supported.
    pub fn of_names(names: &[String], wishes: &SetOptions) -> Result<Vec<Set>> {
        let mut sets: Vec<Set> = Vec::new();
        for name in names {
            let is_named = |known: &str| match name.as_str() {
                "all" => known != "quick",
                name => known == name,
            };
            let named: Vec<&SetDefinition> =
                DEFINITIONS.iter().filter(|recipe| is_named(recipe.name)).collect();
            if named.is_empty() {
                bail!("unknown set {name:?}; the sets are {}", Set::names().join(", "));
            }
            for recipe in named {
                if sets.iter().all(|set| set.name != recipe.name) {
                    let parts = (recipe.parts)(wishes)?;
                    let rounds = if wishes.quick { QUICK_ROUNDS } else { recipe.rounds };
                    sets.push(Set { name: recipe.name, parts, rounds });
                }
            }
        }
        Ok(sets)
    }
}

/// Returns the most important cases: single calls, many clients, multigets.
fn quick(wishes: &SetOptions) -> Experiments {
    let short = SetOptions { quick: true, ..*wishes };
    let SetOptions { verify, key_bytes, .. } = short;
    let latency = Latency::standard(true, verify, key_bytes)?;
    let operations = vec![Operation::Set, Operation::Get];
    let throughput = Throughput::standard(true, verify, key_bytes)?;
    let multiget = Multiget::standard(true, verify, key_bytes)?;
    Ok(vec![
        Box::new(Latency { operations, sizes: QUICK_VALUES_BYTES.to_vec(), ..latency }),
        Box::new(Throughput { clients: vec![16], load: short.load(throughput.load), ..throughput }),
        Box::new(Multiget {
            batches: vec![BATCH],
            clients: vec![1],
            load: short.load(multiget.load),
            ..multiget
        }),
    ])
}

fn latency(wishes: &SetOptions) -> Experiments {
    Ok(vec![Box::new(Latency::standard(wishes.quick, wishes.verify, wishes.key_bytes)?)])
}

fn throughput(wishes: &SetOptions) -> Experiments {
    let throughput = Throughput::standard(wishes.quick, wishes.verify, wishes.key_bytes)?;
    Ok(vec![Box::new(Throughput { load: wishes.load(throughput.load), ..throughput })])
}

fn multiget(wishes: &SetOptions) -> Experiments {
    let multiget = Multiget::standard(wishes.quick, wishes.verify, wishes.key_bytes)?;
    Ok(vec![Box::new(Multiget { load: wishes.load(multiget.load), ..multiget })])
}

fn mixture(wishes: &SetOptions) -> Experiments {
    let mixture = Mixture::standard(wishes.quick, wishes.verify, wishes.key_bytes)?;
    Ok(vec![Box::new(Mixture { load: wishes.load(mixture.load), ..mixture })])
}

/// Returns one connection with one request in flight or many: shows the server's work, not the
/// system's.
fn pipelined(wishes: &SetOptions) -> Experiments {
    let [one, many] = PIPELINES;
    let values = |pipeline, get_share| (PIPELINED_VALUE_BYTES, 1, pipeline, get_share);
    let cases = [values(one, 1.0), values(many, 1.0), values(one, 0.0), values(many, 0.0)];
    pipelines(wishes, &cases, 1, &|load| load.seconds = PIPELINED_SECONDS)
}

/// Returns the loads of busy web servers: 50 connections that read and write short values with one request in flight or
/// many, multigets, and long values.
fn sockets(wishes: &SetOptions) -> Experiments {
    let [one, deep] = PIPELINES;
    let [short, page, long] = SOCKET_VALUES_BYTES;
    let [many, few] = SOCKET_CLIENTS;
    let cases = [
        (short, many, one, SOCKET_GET_SHARE),
        (short, many, deep, SOCKET_GET_SHARE),
        (short, many, deep, 0.0),
        (page, many, one, SOCKET_GET_SHARE),
        (long, few, one, 0.0),
    ];
    pipelines(wishes, &cases, many, &|load| {
        load.seconds = if wishes.quick { QUICK_SECONDS } else { SOCKET_SECONDS };
        load.work.keys = SOCKET_KEYS[usize::from(!wishes.quick)];
    })
}

/// Returns loads of values of a size, by so many clients with so many requests in flight each and a share of reads; and
/// multigets of short values by `multiget_clients`.
fn pipelines(
    wishes: &SetOptions,
    cases: &[(usize, usize, usize, f64)],
    multiget_clients: usize,
    adjust: &dyn Fn(&mut Load),
) -> Experiments {
    let mut parts: Vec<Box<dyn Experiment>> = Vec::new();
    let load = |standard: Load, pipeline: usize, get_share: f64| {
        let mut load = wishes.load(standard);
        adjust(&mut load);
        (load.work.pipeline, load.work.get_share) = (pipeline, get_share);
        load
    };
    for (size, clients, pipeline, get_share) in cases {
        let standard = Throughput::standard(wishes.quick, wishes.verify, wishes.key_bytes)?;
        let load = load(standard.load, *pipeline, *get_share);
        parts.push(Box::new(Throughput { sizes: vec![*size], clients: vec![*clients], load, ..standard }));
    }
    let standard = Multiget::standard(wishes.quick, wishes.verify, wishes.key_bytes)?;
    let (load, sizes) = (load(standard.load, 1, 1.0), vec![PIPELINED_VALUE_BYTES]);
    parts.push(Box::new(Multiget { batches: vec![BATCH], sizes, clients: vec![multiget_clients], load }));
    Ok(parts)
}

fn nonblocking(wishes: &SetOptions) -> Experiments {
    Ok(vec![Box::new(NonBlocking::standard(wishes.quick, wishes.verify, wishes.key_bytes)?)])
}

fn hybrid(wishes: &SetOptions) -> Experiments {
    let hybrid = Hybrid::standard(wishes.quick, wishes.verify, wishes.key_bytes)?;
    Ok(vec![Box::new(Hybrid { flushes: wishes.empties, ..hybrid })])
}

fn blocks(wishes: &SetOptions) -> Experiments {
    Ok(vec![Box::new(Blocks::standard(wishes.quick, wishes.verify, wishes.key_bytes)?)])
}

fn trace(wishes: &SetOptions) -> Experiments {
    let plan = ReplayPlan { flushes: wishes.empties, ..ReplayPlan::new(wishes.quick, wishes.verify) };
    Ok(vec![Box::new(Replay::new(Vec::new(), plan))])
}

impl Experiment for Set {
    fn name(&self) -> &'static str {
        self.name
    }

    fn method(&self) -> String {
        let parts = self.parts.iter().map(|part| match self.parts.len() {
            1 => part.method(),
            _ => format!("{}: {}", part.name(), part.method()),
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    fn cases(&self) -> Vec<Case> {
        self.parts.iter().flat_map(|part| part.cases()).collect()
    }

    fn has_client_limit(&self) -> bool {
        self.parts.iter().all(|part| part.has_client_limit())
    }

    fn prepare<'e>(&'e self, target: &'e Target, case: &Case) -> Result<Box<dyn Rounds + 'e>> {
        let part = self.parts.iter().find(|part| part.cases().contains(case));
        part.with_context(|| format!("{} belongs to no experiment", case.name()))?.prepare(target, case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISHES: SetOptions = SetOptions { quick: true, verify: false, key_bytes: 20, empties: true };

    #[test]
    fn sets_are_found_by_name() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Set::of_names(&names, &WISHES)
        };
        let names = |sets: Vec<Set>| sets.iter().map(|set| set.name).collect::<Vec<_>>();
        assert_eq!(names(of(&["latency", "quick", "latency"]).expect("sets")), ["latency", "quick"]);
        let all = of(&["all"]).expect("sets");
        assert_eq!(all.len(), DEFINITIONS.len() - 1);
        let error = of(&["latenzy"]).err().expect("there is none").to_string();
        assert!(error.contains("latenzy") && error.contains("quick, latency, throughput"), "{error}");
    }

    #[test]
    fn cases_of_a_set_are_distinct() {
        for name in Set::names() {
            let sets = Set::of_names(&[name.to_owned()], &SetOptions { quick: false, ..WISHES })
                .expect("experiments");
            let set = &sets[0];
            let cases = set.cases();
            assert!(!cases.is_empty() && !set.method().is_empty() && set.rounds % 2 == 1, "{name}");
            for (i, case) in cases.iter().enumerate() {
                assert!(!cases[..i].contains(case), "{name} has {} twice", case.name());
            }
        }
    }
}
