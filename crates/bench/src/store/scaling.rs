//! CPU time per operation by threads, including more threads than CPUs.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Result;
use fabcache_store::{Expiry, Handle, Store};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::Plan;
use super::keys::{BATCH, KEY_BYTES, fill, get, key, memory_for, set, store};
use crate::random::Random;

/// The operations of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// GETs only.
    Get,
    /// SETs only.
    Set,
    /// Nine GETs to a SET.
    Mixed,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Mix; 3] = [Mix::Get, Mix::Set, Mix::Mixed];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Get => "get",
            Mix::Set => "set",
            Mix::Mixed => "90% get",
        }
    }

    fn sets(self, i: usize) -> bool {
        match self {
            Mix::Get => false,
            Mix::Set => true,
            Mix::Mixed => i.is_multiple_of(10),
        }
    }
}

/// Figures for one number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingFigures {
    /// The operations of the threads.
    pub mix: Mix,
    /// Number of threads.
    pub threads: usize,
    /// CPU time per operation, over all threads.
    pub cpu_ns: f64,
    /// Operations per second of all threads.
    pub operations_per_s: f64,
}

/// Measures every mix with every number of threads.
///
/// # Errors
/// Memory is exhausted.
pub fn measure(plan: &Plan) -> Result<Vec<ScalingFigures>> {
    let threads: usize = plan.threads.iter().sum();
    let (store, _) = store(memory_for(plan.scaling_items, plan.value_bytes), 1 + 3 * threads)?;
    let handle = Handle::new(&store);
    fill(&handle, plan.scaling_items, plan.value_bytes);
    handle.maintain();
    let mut all = Vec::new();
    for mix in Mix::ALL {
        for threads in &plan.threads {
            all.push(scale(&store, mix, *threads, plan));
        }
    }
    Ok(all)
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn scale(store: &Arc<Store>, mix: Mix, threads: usize, plan: &Plan) -> ScalingFigures {
    let start = Barrier::new(threads);
    let start_of_all = Instant::now();
    // Long enough for a few time slices of each thread, however many share a CPU.
    let time = plan.time.max(Duration::from_millis(20) * threads as u32);
    let work = |seed: usize| {
        let handle = Handle::new(store);
        let mut random = Random::new(seed as u64 + 1);
        let value = vec![b'v'; plan.value_bytes];
        let mut out = Vec::new();
        let mut keys = vec![[0; KEY_BYTES]; BATCH];
        start.wait();
        let begun = start_of_all.elapsed();
        let (mut cpu_ns, mut done) = (0, 0);
        while start_of_all.elapsed() < begun + time {
            keys.fill_with(|| key(random.below(plan.scaling_items as u32).into()));
            let before = thread_cpu_ns();
            for (i, key) in keys.iter().enumerate() {
                if mix.sets(i) {
                    set(&handle, key, &value, Expiry::NEVER);
                } else {
                    get(&handle, key, &mut out);
                }
            }
            cpu_ns += thread_cpu_ns() - before;
            done += keys.len();
        }
        (cpu_ns, done, begun, start_of_all.elapsed())
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let operations = done.iter().map(|(_, operations, ..)| *operations as f64).sum::<f64>();
    let cpu_ns = done.iter().map(|(cpu_ns, ..)| *cpu_ns as f64).sum::<f64>() / operations;
    let begun = done.iter().map(|(.., begun, _)| *begun).min().unwrap_or_default();
    let ended = done.iter().map(|(.., ended)| *ended).max().unwrap_or_default();
    ScalingFigures { mix, threads, cpu_ns, operations_per_s: operations / (ended - begun).as_secs_f64() }
}
