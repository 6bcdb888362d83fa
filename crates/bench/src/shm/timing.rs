//! Percentiles of single calls, and calls per second.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use fabcache_testbed::statistics::median;

/// Calls between clock readings that end a round.
const CALLS_AT_ONCE: usize = 64;
/// Untimed calls before a round, which warm the caches.
const CALLS_TO_WARM_UP: usize = 512;
/// Maximum nanoseconds of a call that are distinguished.
const LONGEST_NS: u64 = 60_000_000_000;

/// Percentiles of the calls of a round, or medians over several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: f64,
    /// 99.9th percentile, in nanoseconds.
    pub p999_ns: f64,
}

impl Percentiles {
    /// Returns the medians over rounds.
    pub fn medians(rounds: &[Percentiles]) -> Percentiles {
        let of = |figure: fn(&Percentiles) -> f64| median(rounds.iter().map(figure));
        Percentiles { p50_ns: of(|p| p.p50_ns), p99_ns: of(|p| p.p99_ns), p999_ns: of(|p| p.p999_ns) }
    }
}

/// Returns the nanoseconds that reading the clock adds to a measured interval: the median of many.
pub fn clock_ns() -> f64 {
    median((0..10_001).map(|_| {
        let begun = Instant::now();
        begun.elapsed().as_nanos() as f64
    }))
}

/// Times single calls for a round: `prepare` makes the arguments, `call` is timed, `check` checks the
/// result.
///
/// `clock_ns` is subtracted from each.
///
/// # Errors
/// A call fails, or its result does not pass.
pub fn percentiles<G, R>(
    round: Duration,
    clock_ns: f64,
    mut prepare: impl FnMut() -> G,
    mut call: impl FnMut(&G) -> R,
    mut check: impl FnMut(&G, R) -> Result<()>,
) -> Result<Percentiles> {
    let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).context("a histogram")?;
    for _ in 0..CALLS_TO_WARM_UP {
        let given = prepare();
        let result = call(&given);
        check(&given, result)?;
    }
    let started = Instant::now();
    let mut given: Vec<G> = Vec::with_capacity(CALLS_AT_ONCE);
    while started.elapsed() < round {
        given.clear();
        given.extend((0..CALLS_AT_ONCE).map(|_| prepare()));
        for given in &given {
            let begun = Instant::now();
            let result = call(given);
            times.saturating_record(begun.elapsed().as_nanos() as u64);
            check(given, result)?;
        }
    }
    let at = |percent: f64| (times.value_at_percentile(percent) as f64 - clock_ns).max(0.0);
    Ok(Percentiles { p50_ns: at(50.0), p99_ns: at(99.0), p999_ns: at(99.9) })
}

/// Measures calls per second over a round: the median of its batches.
///
/// `prepare` makes a batch and returns its number of calls; `calls` makes them. Only `calls` is timed,
/// and the median ignores disturbances of less than half of the batches.
///
/// # Errors
/// A call fails.
pub fn rate<B>(
    round: Duration,
    batch: &mut B,
    mut prepare: impl FnMut(&mut B) -> u64,
    mut calls: impl FnMut(&mut B) -> Result<()>,
) -> Result<f64> {
    let started = Instant::now();
    let mut each_ns = Vec::new();
    // The first batch warms the caches.
    while each_ns.len() < 2 || started.elapsed() < round {
        let count = prepare(batch);
        let begun = Instant::now();
        calls(batch)?;
        each_ns.push(begun.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(1e9 / median(each_ns.drain(1..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_calls_are_the_higher_percentiles() {
        let mut count = 0u32;
        let prepare = || {
            count += 1;
            count
        };
        let sleep = |count: &u32| {
            if count.is_multiple_of(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            *count
        };
        let check = |given: &u32, result| {
            assert_eq!(*given, result);
            Ok(())
        };
        let found =
            percentiles(Duration::from_millis(50), 0.0, prepare, sleep, check).expect("no call fails");
        assert!(found.p50_ns < 1e6 && found.p99_ns >= 0.99e6 && found.p999_ns >= found.p99_ns, "{found:?}");
    }

    #[test]
    fn medians_are_of_each_figure() {
        let of = |p50_ns| Percentiles { p50_ns, p99_ns: 2.0 * p50_ns, p999_ns: 9.0 - p50_ns };
        let expected = Percentiles { p50_ns: 2.0, p99_ns: 4.0, p999_ns: 7.0 };
        assert_eq!(Percentiles::medians(&[of(3.0), of(1.0), of(2.0)]), expected);
    }
}
