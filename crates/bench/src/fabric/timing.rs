//! Percentiles of single calls, and calls per second, for durations from a microsecond to many
//! milliseconds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Untimed calls before a round, unless they take as long as a quarter of it.
const CALLS_TO_WARM_UP: u64 = 200;
/// Maximum nanoseconds of a call that are distinguished.
const LONGEST_NS: u64 = 60_000_000_000;

/// Percentiles of the consecutive calls of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: f64,
    /// Number of timed calls.
    pub calls: u64,
    /// Number of calls, including those that warm up.
    pub all_calls: u64,
}

/// Times calls one by one for a round. `call` receives its number.
///
/// # Errors
/// A call fails.
pub fn times(round: Duration, call: impl FnMut(u64) -> Result<()>) -> Result<Times> {
    limited_times(round, u64::MAX, CALLS_TO_WARM_UP, call)
}

/// Times calls as [`times`] does, with a limit on their number and on those that warm up.
///
/// # Errors
/// A call fails.
pub fn limited_times(
    round: Duration,
    most: u64,
    warm_up: u64,
    mut call: impl FnMut(u64) -> Result<()>,
) -> Result<Times> {
    let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).context("a histogram")?;
    let mut number = 0;
    let started = Instant::now();
    while number < warm_up.min(most / 2) && (number == 0 || started.elapsed() < round / 4) {
        call(number)?;
        number += 1;
    }
    let mut before = Instant::now();
    let started = before;
    while number < most && (times.is_empty() || before - started < round) {
        call(number)?;
        // The check of a response falls into the next call's time, so it must be cheap.
        let now = Instant::now();
        times.saturating_record((now - before).as_nanos() as u64);
        before = now;
        number += 1;
    }
    let at = |percent: f64| times.value_at_percentile(percent) as f64;
    Ok(Times { p50_ns: at(50.0), p99_ns: at(99.0), calls: times.len(), all_calls: number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_timed_one_by_one() {
        let mut numbers = Vec::new();
        let call = |number: u64| {
            numbers.push(number);
            std::thread::sleep(Duration::from_millis(if number.is_multiple_of(2) { 1 } else { 0 }));
            Ok(())
        };
        let found = limited_times(Duration::from_secs(60), 21, 4, call).expect("no call fails");
        assert_eq!((found.calls, found.all_calls, numbers.len()), (17, 21, 21));
        assert!(found.p99_ns >= 1e6 && found.p50_ns <= found.p99_ns, "{found:?}");
        let once = times(Duration::ZERO, |_| Ok(())).expect("no call fails");
        assert_eq!(once.calls, 1, "one is timed however short the round");
    }
}
