//! Floors of the machine for any program: dependent loads and a copy.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

use super::Plan;
use super::scaling::thread_cpu_ns;
use fabcache_testbed::statistics::median;

const LINE_BYTES: u64 = 64;
const LINE_WORDS: usize = 8;
/// Maximum size of the memory beside the store: latency hardly grows beyond it.
const BYTES_MAX: u64 = 2 << 30;

/// The machine's floors over memory of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Floors {
    /// Bytes of memory.
    pub bytes: u64,
    /// Nanoseconds of a load whose address depends on the previous load.
    pub dependent_load_ns: f64,
    /// Nanoseconds to copy a cached value.
    pub copy_ns: f64,
}

/// Measures over about as many bytes as a store takes (at most 2 GiB, a power of two), in pages of the same size.
pub fn measure(store_bytes: u64, plan: &Plan) -> Floors {
    let lines = (store_bytes.min(BYTES_MAX) / LINE_BYTES).max(64);
    let lines = 1usize << lines.ilog2();
    let mut memory = vec![0u64; lines * LINE_WORDS];
    // One cycle through all lines, x -> ax + c modulo a power of two, which no prefetcher predicts.
    let next = |line: usize| (line.wrapping_mul(0x5_deec_e66d) + 11) & (lines - 1);
    for line in 0..lines {
        memory[line * LINE_WORDS] = (next(line) * LINE_WORDS) as u64;
    }
    let mut at = 0;
    let dependent_load_ns = repeat(plan, 1_000, || at = memory[at] as usize);
    black_box(at);
    let value = vec![b'v'; plan.value_bytes];
    let mut out = Vec::with_capacity(plan.value_bytes);
    let copy_ns = repeat(plan, 1_000, || {
        out.clear();
        out.extend_from_slice(black_box(&value));
        black_box(&out);
    });
    Floors { bytes: lines as u64 * LINE_BYTES, dependent_load_ns, copy_ns }
}

/// Returns the median nanoseconds of `step`, over runs of `steps`.
fn repeat(plan: &Plan, steps: u32, mut step: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut runs = Vec::new();
    while runs.is_empty() || started.elapsed() < plan.time {
        let begun = thread_cpu_ns();
        for _ in 0..steps {
            step();
        }
        runs.push((thread_cpu_ns() - begun) as f64 / f64::from(steps));
    }
    median(runs.iter().copied())
}
