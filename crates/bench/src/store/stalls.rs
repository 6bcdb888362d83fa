//! The longest operations of workers while the store grows, reclaims, expires a million items at once,
//! or flushes everything.
//!
//! On shared processors most long operations are those during which the scheduler took the processor away. The system
//! counts such switches, and those of threads that waited for a lock, so each operation is classified: its own CPU
//! time, and its wall time if it waited for a lock. Time that the host takes from a virtual machine appears as CPU
//! time; the activity "nothing" shows how much that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fabcache_store::{Expiry, Handle, Store};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use super::Plan;
use super::keys::{SetClock, fill, get, key, memory_for, set, store};
use super::scaling::thread_cpu_ns;
use crate::random::Random;

/// Items that expire together, and items held meanwhile.
const MANY: u64 = 1_000_000;
/// First number of the keys that are stored meanwhile.
const OTHERS: u64 = 1 << 40;
/// Number of worker threads.
const WORKERS: usize = 2;
/// The pause of the server's housekeeper.
const PAUSE: Duration = Duration::from_micros(200);
/// Bytes of a long value.
const LONG_VALUE_BYTES: usize = 4 << 20;

/// The store's activity during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// No store at all: the machine's effect on a loop that times itself.
    Nothing,
    /// Only the operations: 9 GETs per overwriting SET.
    Quiet,
    /// The index, from empty to two million items.
    Growth,
    /// Eviction: every SET is of a new key, into full memory.
    Eviction,
    /// Compaction: SETs overwrite at random, into almost full memory.
    Compaction,
    /// Eviction by values of 4 MiB that another thread stores.
    LongValues,
    /// A million items that expire at once.
    Expiry,
    /// A million items that are flushed.
    Flush,
}

impl Activity {
    /// All activities.
    pub const ALL: [Activity; 8] = [
        Activity::Nothing,
        Activity::Quiet,
        Activity::Growth,
        Activity::Eviction,
        Activity::Compaction,
        Activity::LongValues,
        Activity::Expiry,
        Activity::Flush,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Nothing => "nothing",
            Activity::Quiet => "quiet",
            Activity::Growth => "index grows",
            Activity::Eviction => "eviction",
            Activity::Compaction => "compaction",
            Activity::LongValues => "4 MiB values",
            Activity::Expiry => "10^6 expire",
            Activity::Flush => "10^6 flushed",
        }
    }
}

/// The longest of many operations, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Stalls {
    /// The store's activity during the measurement.
    pub activity: Activity,
    /// Operations measured.
    pub operations: u64,
    /// Wall time: 99.99th percentile and maximum.
    pub wall_us: [f64; 2],
    /// CPU time: 99.99th percentile and maximum.
    pub cpu_us: [f64; 2],
    /// Operations that waited for a lock.
    pub waited: u64,
    /// Maximum wall time of those, including other threads' time on the CPU.
    pub waited_us_max: f64,
    /// Items whose memory was reclaimed without an access to them.
    pub reclaimed: u64,
    /// Wall time until that was complete, in milliseconds; 0 if nothing expired.
    pub reclaimed_ms: f64,
}

/// Measures workers during every activity.
///
/// # Errors
/// Memory is exhausted, or the system does not report a thread's times.
pub fn measure(plan: &Plan) -> Result<Vec<Stalls>> {
    Activity::ALL.iter().map(|activity| measure_activity(*activity, plan)).collect()
}

/// The operations of one worker.
struct WorkerTimes {
    wall: Histogram<u64>,
    cpu: Histogram<u64>,
    waited: u64,
    waited_ns_max: u64,
}

/// Returns how often this thread has waited. The file also has its CPU time, but only as of the last tick.
fn waits() -> Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).context("the system does not tell what a thread did")?;
    Ok(usage.voluntary_context_switches())
}

impl WorkerTimes {
    fn new() -> WorkerTimes {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        WorkerTimes { wall: histogram(), cpu: histogram(), waited: 0, waited_ns_max: 0 }
    }

    fn measure(&mut self, operation: impl FnOnce()) -> Result<()> {
        let waits_before = waits()?;
        let cpu = thread_cpu_ns();
        let begun = Instant::now();
        operation();
        let wall_ns = begun.elapsed().as_nanos() as u64;
        let cpu_ns = thread_cpu_ns() - cpu;
        self.wall.record(wall_ns)?;
        self.cpu.record(cpu_ns)?;
        if waits()? > waits_before {
            self.waited += 1;
            self.waited_ns_max = self.waited_ns_max.max(wall_ns);
        }
        Ok(())
    }

    fn add(&mut self, other: &WorkerTimes) {
        self.wall.add(&other.wall).expect("the same digits");
        self.cpu.add(&other.cpu).expect("the same digits");
        self.waited += other.waited;
        self.waited_ns_max = self.waited_ns_max.max(other.waited_ns_max);
    }
}

/// The store under test, and its busy thread.
struct BusyStore {
    activity: Activity,
    store: Arc<Store>,
    clock: SetClock,
    value_bytes: usize,
    stop: AtomicBool,
    reclaimed_ns: AtomicU64,
}

fn measure_activity(activity: Activity, plan: &Plan) -> Result<Stalls> {
    let items = match activity {
        Activity::Expiry | Activity::Flush | Activity::Growth => 3 * MANY,
        Activity::Compaction => MANY * 3 / 4,
        _ => MANY,
    };
    let (store, clock) = store(memory_for(items, plan.value_bytes), WORKERS + 3)?;
    let world = BusyStore {
        activity,
        store,
        clock,
        value_bytes: plan.value_bytes,
        stop: AtomicBool::new(false),
        reclaimed_ns: AtomicU64::new(0),
    };
    world.prepare();
    let before = world.store.sums().reclaimed;
    let mut seen = WorkerTimes::new();
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..WORKERS)
            .map(|i| {
                scope.spawn({
                    let world = &world;
                    move || world.work(i)
                })
            })
            .collect();
        scope.spawn(|| world.run_activity());
        thread::sleep(plan.time.max(Duration::from_secs(2)));
        world.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            seen.add(&worker.join().expect("no worker panics")?);
        }
        Ok(())
    })?;
    let of = |histogram: &Histogram<u64>| {
        [histogram.value_at_quantile(0.9999), histogram.max()].map(|ns| ns as f64 / 1e3)
    };
    Ok(Stalls {
        activity,
        operations: seen.wall.len(),
        wall_us: of(&seen.wall),
        cpu_us: of(&seen.cpu),
        waited: seen.waited,
        waited_us_max: seen.waited_ns_max as f64 / 1e3,
        reclaimed: world.store.sums().reclaimed - before,
        reclaimed_ms: world.reclaimed_ns.load(Ordering::Relaxed) as f64 / 1e6,
    })
}

impl BusyStore {
    fn prepare(&self) {
        let handle = Handle::new(&self.store);
        let value = vec![b'v'; self.value_bytes];
        if self.activity != Activity::Growth {
            fill(&handle, MANY, self.value_bytes);
        }
        if matches!(self.activity, Activity::Expiry | Activity::Flush) {
            let expiry = Expiry::from_client(100, self.store.now(), self.store.clock_origin());
            (0..MANY).for_each(|number| set(&handle, &key(OTHERS + number), &value, expiry));
        }
        if self.activity == Activity::Eviction {
            let more = |number: &u64| number.is_multiple_of(1_000) && self.store.sums().evictions > 0;
            let filled = (2 * OTHERS..).find(|number| {
                set(&handle, &key(*number), &value, Expiry::NEVER);
                more(number)
            });
            debug_assert!(filled.is_some());
        }
        handle.maintain();
    }

    fn work(&self, worker: usize) -> Result<WorkerTimes> {
        let handle = Handle::new(&self.store);
        let mut random = Random::new(worker as u64 + 1);
        let value = vec![b'v'; self.value_bytes];
        let (mut out, mut seen) = (Vec::new(), WorkerTimes::new());
        let mut number = worker as u64;
        while !self.stop.load(Ordering::Relaxed) {
            number += WORKERS as u64;
            let some = key(random.below(MANY as u32).into());
            match self.activity {
                Activity::Nothing => seen.measure(|| {})?,
                Activity::Growth if number < 2 * MANY => {
                    let key = key(number);
                    seen.measure(|| set(&handle, &key, &value, Expiry::NEVER))?;
                }
                Activity::Growth => break,
                Activity::Eviction => {
                    let key = key(OTHERS + number);
                    seen.measure(|| set(&handle, &key, &value, Expiry::NEVER))?;
                }
                Activity::Compaction => seen.measure(|| set(&handle, &some, &value, Expiry::NEVER))?,
                _ if number % 10 < 1 => seen.measure(|| set(&handle, &some, &value, Expiry::NEVER))?,
                _ => seen.measure(|| {
                    get(&handle, &some, &mut out);
                })?,
            }
        }
        Ok(seen)
    }

    /// Runs the housekeeper's work, which may disturb the workers.
    fn run_activity(&self) {
        let handle = Handle::new(&self.store);
        thread::sleep(Duration::from_millis(500));
        match self.activity {
            Activity::Expiry => self.clock.advance(103),
            Activity::Flush => handle.flush(Expiry::AT_ONCE),
            _ => {}
        }
        let begun = Instant::now();
        handle.maintain_with(|| thread::sleep(PAUSE));
        if matches!(self.activity, Activity::Expiry | Activity::Flush) {
            self.reclaimed_ns.store(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        let value = vec![b'l'; LONG_VALUE_BYTES];
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.activity == Activity::LongValues {
                number += 1;
                set(&handle, &key(OTHERS + number), &value, Expiry::NEVER);
            } else {
                thread::sleep(Duration::from_millis(20));
            }
            handle.maintain_with(|| thread::sleep(PAUSE));
        }
    }
}
