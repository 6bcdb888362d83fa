//! The store and the reference policies, with the same memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::replay::{self, StoreRun};
use super::report::Line;
use super::{EvictionPolicy, policy};
use crate::trace::content::{Content, VALUE_BYTES_MAX};
use crate::trace::generate::{Kind, Shape};
use crate::trace::mix::Mix;
use crate::trace::tally::{Part, Tally};
use crate::trace::{Trace, file};

/// The origin of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Generated.
    Synthetic(Kind),
    /// Recorded.
    File(PathBuf),
    /// Recorded, and mixed with a pattern of requests.
    Hybrid(PathBuf, Mix),
}

/// A comparison.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The traces.
    pub sources: Vec<Source>,
    /// Memory sizes in percent of a trace's footprint.
    pub percents: Vec<f64>,
    /// The size of synthetic traces.
    pub shape: Shape,
    /// The part of a trace's requests, in percent, that warms the cache up.
    pub warm_up_percent: f64,
    /// What the store evicts.
    pub eviction: EvictionPolicy,
}

/// One trace at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The trace.
    pub trace: String,
    /// Memory in percent of the footprint.
    pub percent: f64,
    /// Bytes of memory: of the whole store, and of everything that a policy keeps.
    pub memory_bytes: u64,
    /// Requests.
    pub requests: Tally,
    /// Objects.
    pub objects: u64,
    /// Bytes charged per object beside its key and value.
    pub overhead_bytes: f64,
    /// The store's run; `None` if no store is that small.
    pub store: Option<StoreRun>,
    /// Misses of each policy.
    pub policies: Vec<(policy::Name, Tally)>,
}

impl Row {
    /// Returns the store's miss ratio of a part of the requests.
    pub fn store_ratio(&self, part: Part) -> Option<f64> {
        self.store.as_ref()?.misses.ratio(&self.requests, part)
    }

    /// Returns a policy's miss ratio of a part of the requests.
    pub fn policy_ratio(&self, name: policy::Name, part: Part) -> Option<f64> {
        let (_, misses) = self.policies.iter().find(|(other, _)| *other == name)?;
        misses.ratio(&self.requests, part)
    }

    /// Returns the store's miss ratio relative to the better of S3-FIFO and memcached's LRU.
    pub fn relative(&self) -> Option<f64> {
        let ratio = |name| self.policy_ratio(name, Part::All);
        let best = ratio(policy::Name::S3Fifo)?.min(ratio(policy::Name::Segmented)?);
        self.store_ratio(Part::All).map(|store| store / best)
    }

    /// Returns the misses of the store and of all policies, in the order of [`policy::Name::ALL`].
    pub fn line(&self) -> Line<'_> {
        let policy = |name| self.policies.iter().find(|(other, _)| *other == name).map(|(_, misses)| misses);
        let store = self.store.as_ref().map(|store| &store.misses);
        let misses = [store].into_iter().chain(policy::Name::ALL.map(policy)).collect();
        Line { trace: &self.trace, percent: self.percent, requests: &self.requests, misses }
    }

    fn note(&self) -> String {
        let misses = |ratio| format!("{:.3}% misses", ratio * 100.0);
        let store = self.store_ratio(Part::All);
        format!("{} {}%: {}", self.trace, self.percent, store.map_or("skipped".into(), misses))
    }

    /// Returns the fraction of the store's memory that valid items take at the end, with their overhead.
    pub fn live_share(&self) -> Option<f64> {
        let live = |run: &StoreRun| run.content_bytes as f64 + run.items as f64 * self.overhead_bytes;
        self.store.as_ref().map(|run| live(run) / self.memory_bytes as f64)
    }
}

/// Receives the progress of a comparison.
pub trait Progress: Sync {
    /// Reports the start of a step with so many requests.
    fn begin(&self, what: &str, requests: u64);
    /// Reports so many more completed requests.
    fn advance(&self, requests: u64);
    /// Reports a finding.
    fn note(&self, text: &str);
}

/// Runs a comparison.
///
/// # Errors
/// A file cannot be read, or the store returns a wrong value.
pub fn compare(plan: &Plan, progress: &dyn Progress) -> Result<Vec<Row>> {
    let content = Content::default();
    let mut rows = Vec::new();
    for source in &plan.sources {
        for case in Case::all(plan, source, &content, progress)? {
            for row in case.rows(plan.eviction, &content, progress)? {
                progress.note(&row.note());
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// Reads a recorded trace.
fn read(path: &Path) -> Result<Trace> {
    let trace = file::read(path)?;
    let longest = trace.objects.iter().map(|object| object.value_bytes).max().unwrap_or(0);
    ensure!(longest <= VALUE_BYTES_MAX, "{} has objects of {longest} bytes", path.display());
    Ok(trace)
}

/// A trace and the memory sizes it is replayed in.
#[derive(Debug)]
pub struct Case {
    /// The trace.
    pub trace: Trace,
    /// The bytes charged for an object beside its key and value.
    pub overhead_bytes: f64,
    /// Memory sizes: percent of the footprint, and bytes.
    pub memory: Vec<(f64, u64)>,
}

impl Case {
    /// Returns the cases of a source: a trace that depends on memory is a different one for each size.
    ///
    /// # Errors
    /// A file cannot be read, or the store does not work.
    pub fn all(
        plan: &Plan,
        source: &Source,
        content: &Content,
        progress: &dyn Progress,
    ) -> Result<Vec<Case>> {
        let mut cases = Case::of_source(plan, source, content, progress)?;
        for Case { trace, .. } in &mut cases {
            trace.warm_up = (trace.requests.len() as f64 * plan.warm_up_percent / 100.0).round() as usize;
        }
        Ok(cases)
    }

    fn of_source(
        plan: &Plan,
        source: &Source,
        content: &Content,
        progress: &dyn Progress,
    ) -> Result<Vec<Case>> {
        match source {
            Source::Synthetic(kind) if kind.depends_on_memory() => {
                let case = |&percent: &f64| {
                    progress.begin(&format!("making {}", kind.name()), 0);
                    let share = percent / 100.0;
                    let trace = plan.shape.generate(*kind, share);
                    let overhead_bytes = replay::overhead_bytes(&trace, content)?;
                    let mean = trace.footprint_bytes(overhead_bytes) as f64 / trace.objects.len() as f64;
                    let memory = mean * f64::from(plan.shape.objects_in_memory(share));
                    Ok(Case { trace, overhead_bytes, memory: vec![(percent, memory as u64)] })
                };
                plan.percents.iter().map(case).collect()
            }
            Source::Synthetic(kind) => {
                progress.begin(&format!("making {}", kind.name()), 0);
                Ok(vec![Case::of(plan, plan.shape.generate(*kind, 1.0), content)?])
            }
            Source::File(path) => {
                progress.begin("reading", 0);
                Ok(vec![Case::of(plan, read(path)?, content)?])
            }
            Source::Hybrid(path, mix) => {
                progress.begin(&format!("mixing {}", mix.name()), 0);
                let recorded = Case::of(plan, read(path)?, content)?;
                Ok(recorded.hybrids(*mix, plan.shape.seed))
            }
        }
    }

    /// Returns a hybrid for each size. The sizes are those of the recorded trace.
    fn hybrids(&self, mix: Mix, seed: u64) -> Vec<Case> {
        let Case { trace, overhead_bytes, memory } = self;
        let mean = trace.footprint_bytes(*overhead_bytes) as f64 / trace.objects.len() as f64;
        let hybrid = |&(percent, memory_bytes): &(f64, u64)| Case {
            trace: mix.with(trace, (memory_bytes as f64 / mean) as u32, seed),
            overhead_bytes: *overhead_bytes,
            memory: vec![(percent, memory_bytes)],
        };
        memory.iter().map(hybrid).collect()
    }

    fn of(plan: &Plan, trace: Trace, content: &Content) -> Result<Case> {
        let overhead_bytes = replay::overhead_bytes(&trace, content)?;
        let footprint = trace.footprint_bytes(overhead_bytes) as f64;
        let memory = |&percent: &f64| (percent, (footprint * percent / 100.0) as u64);
        Ok(Case { trace, overhead_bytes, memory: plan.percents.iter().map(memory).collect() })
    }

    fn rows(&self, eviction: EvictionPolicy, content: &Content, progress: &dyn Progress) -> Result<Vec<Row>> {
        let next = self.trace.next_accesses();
        let charges = self.trace.charges(self.overhead_bytes);
        let row = |&(percent, memory_bytes): &(f64, u64)| {
            let requests = self.trace.requests.len() as u64;
            let what = format!("{} {percent}%", self.trace.name);
            progress.begin(&what, requests * (1 + policy::Name::ALL.len() as u64));
            // Runs alone, because it is timed.
            let store =
                replay::replay(&self.trace, content, memory_bytes, eviction, &|done| progress.advance(done))
                    .with_context(|| format!("the store, replaying {what}"))?;
            let policies = self.policies(memory_bytes, &charges, &next, progress);
            Ok(Row {
                trace: self.trace.name.clone(),
                percent,
                memory_bytes,
                requests: Tally::of_requests(&self.trace),
                objects: self.trace.objects.len() as u64,
                overhead_bytes: self.overhead_bytes,
                store,
                policies,
            })
        };
        self.memory.iter().map(row).collect()
    }

    /// Runs all policies, each in a thread.
    fn policies(
        &self,
        memory_bytes: u64,
        charges: &[u32],
        next: &[u32],
        progress: &dyn Progress,
    ) -> Vec<(policy::Name, Tally)> {
        std::thread::scope(|scope| {
            let run = |name: policy::Name| {
                scope.spawn(move || {
                    let misses = policy::misses(&mut *name.policy(memory_bytes, charges), &self.trace, next);
                    progress.advance(self.trace.requests.len() as u64);
                    (name, misses)
                })
            };
            let threads: Vec<_> = policy::Name::ALL.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("a policy does not panic")).collect()
        })
    }
}
