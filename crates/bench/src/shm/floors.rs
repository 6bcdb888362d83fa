//! Floors of the machine for any program, over memory like that of the server.

use std::hint::{black_box, spin_loop};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_layout::mapping::Mapping;
use fabcache_store::{Expiry, Handle};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;

use super::servers::{resident_bytes, value};
use super::{CLIENT_CPU, HOT_KEYS, Plan, SERVER_CPU};
use crate::process::pin;
use crate::random::Random;
use crate::store::keys;
use crate::store::scaling::thread_cpu_ns;
use fabcache_testbed::statistics::median;

const LINE_BYTES: u64 = 64;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Maximum size of this memory: latency hardly grows beyond it.
const BYTES_MAX: u64 = 1 << 30;
/// Loads, or round trips, between clock readings.
const STEPS: u64 = 4096;
/// Maximum number of polls for the other CPU's answer: a few seconds.
const POLLS_MAX: u32 = 1 << 28;
/// Bytes copied between clock readings.
const COPIED_AT_ONCE: u64 = 4 << 20;

/// The machine's floors over memory of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Floors {
    /// Bytes of memory.
    pub bytes: u64,
    /// Nanoseconds of a load whose address depends on the previous load.
    pub dependent_load_ns: f64,
    /// Nanoseconds of a load whose address is independent of others.
    pub independent_load_ns: f64,
    /// Nanoseconds to copy a value from a random address to the destination of the previous copy.
    pub copy_cold_ns: f64,
    /// The same for 64 repeated values.
    pub copy_hot_ns: f64,
}

/// Measures a cache line's round trip between the client's and the server's CPU: nanoseconds of wall
/// time, median of runs.
/// # Errors
/// The machine has fewer than two CPUs.
pub fn cache_line_round_trip_ns(time: Duration) -> Result<f64> {
    let line = AtomicU64::new(0);
    const END: u64 = u64::MAX;
    let echo = || {
        let pinned = pin(None, &SERVER_CPU.into());
        let mut last = 0;
        while pinned.is_ok() && last != END {
            let seen = line.load(Ordering::Acquire);
            if seen != last && (seen & 1 == 1) {
                last = if seen == END { END } else { seen + 1 };
                line.store(last, Ordering::Release);
            } else {
                spin_loop();
            }
        }
        pinned
    };
    let request = || {
        pin(None, &CLIENT_CPU.into())?;
        let started = Instant::now();
        let mut runs = Vec::new();
        let mut number = 0;
        while runs.is_empty() || started.elapsed() < time {
            let begun = Instant::now();
            for _ in 0..STEPS {
                line.store(number + 1, Ordering::Release);
                number += 2;
                let mut polls = 0u32;
                while line.load(Ordering::Acquire) != number {
                    polls += 1;
                    ensure!(polls < POLLS_MAX, "the other CPU does not answer");
                    spin_loop();
                }
            }
            runs.push(begun.elapsed().as_nanos() as f64 / STEPS as f64);
        }
        Ok(median(runs))
    };
    std::thread::scope(|scope| {
        let echo = scope.spawn(echo);
        let requested = scope.spawn(request).join().expect("no thread panics");
        line.store(END, Ordering::Release);
        echo.join().expect("no thread panics").context("the server needs a CPU of its own")?;
        requested
    })
}

/// Returns the CPU time of a SET of a hot key by a store in this process, in nanoseconds.
///
/// # Errors
/// The memory cannot be mapped.
pub fn store_set_ns(items: u64, plan: &Plan) -> Result<f64> {
    let (store, _clock) = keys::store(keys::memory_for(items, plan.small_value_bytes), 1)?;
    let handle = Handle::new(&store);
    keys::fill(&handle, items, plan.small_value_bytes);
    let hot: Vec<_> =
        (0..HOT_KEYS).map(|number| (keys::key(number), value(number, plan.small_value_bytes))).collect();
    let mut hot = hot.iter().cycle();
    Ok(repeat(plan, STEPS, || {
        let (key, value) = hot.next().expect("without end");
        keys::set(&handle, key, value, Expiry::NEVER);
    }))
}

/// Measures over about as many bytes as the items take, in pages of the same kind.
///
/// # Errors
/// Memory is exhausted.
pub fn measure(items: u64, value_bytes: usize, plan: &Plan) -> Result<Floors> {
    let wanted = resident_bytes(items, value_bytes).clamp(HUGE_PAGE_BYTES, BYTES_MAX);
    let bytes = 1u64 << wanted.ilog2();
    let mut flags = MemfdFlags::CLOEXEC;
    if plan.huge_pages {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let file = memfd_create("fabcache-bench", flags)?;
    rustix::fs::ftruncate(&file, bytes)?;
    let mapping = Mapping::to_write(file.as_fd(), bytes).context("no memory for the floors")?;
    // SAFETY: it is not used any more when this function returns, which keeps the mapping until then.
    let memory = unsafe { mapping.memory() };
    let lines = bytes / LINE_BYTES;
    // One cycle through all lines, x -> ax + c modulo a power of two, which no prefetcher predicts.
    let next = |line: u64| (line.wrapping_mul(0x5_deec_e66d) + 11) & (lines - 1);
    for line in 0..lines {
        memory.store(line * LINE_BYTES, next(line) * LINE_BYTES, Ordering::Relaxed);
    }
    let mut at = 0;
    let dependent_load_ns = repeat(plan, STEPS, || at = memory.load(at, Ordering::Relaxed));
    black_box(at);
    let (mut random, mut sum) = (Random::new(3), 0u64);
    let independent_load_ns = repeat(plan, STEPS, || {
        let line = (u128::from(random.bits()) * u128::from(lines)) >> 64;
        sum = sum.wrapping_add(memory.load(line as u64 * LINE_BYTES, Ordering::Relaxed));
    });
    black_box(sum);
    // SAFETY: nothing writes it any more, and it stays mapped until this function returns.
    let all = unsafe { memory.bytes(0, bytes as usize) };
    let places = (bytes / value_bytes as u64).max(1);
    let mut to = vec![0; value_bytes];
    let mut copy = |places: u64| {
        repeat(plan, (COPIED_AT_ONCE / value_bytes as u64).clamp(8, STEPS), || {
            let place = (u128::from(random.bits()) * u128::from(places)) >> 64;
            let from = place as usize * value_bytes;
            to.copy_from_slice(black_box(&all[from..from + value_bytes]));
            black_box(&to);
        })
    };
    let (copy_cold_ns, copy_hot_ns) = (copy(places), copy(places.min(HOT_KEYS)));
    Ok(Floors { bytes, dependent_load_ns, independent_load_ns, copy_cold_ns, copy_hot_ns })
}

/// Returns the median nanoseconds of CPU time of `step`, over runs of `steps`.
fn repeat(plan: &Plan, steps: u64, mut step: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut runs = Vec::new();
    while runs.len() < 3 || started.elapsed() < plan.round {
        let begun = thread_cpu_ns();
        for _ in 0..steps {
            step();
        }
        runs.push((thread_cpu_ns() - begun) as f64 / steps as f64);
    }
    median(runs)
}
