//! Waiting for a condition, with one time limit.

use std::time::{Duration, Instant};

/// Nothing that a test waits for takes longer, even on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Emulated processors are slower; this variable says that they are.
const EMULATED: &str = "FABCACHE_EMULATED";

/// How many times slower, at most.
const EMULATED_FACTOR: u32 = 5;

/// Between two checks of a condition.
const POLL_PERIOD: Duration = Duration::from_millis(1);

/// Returns how long a test may wait: a minute, five where `FABCACHE_EMULATED` is set.
pub fn time_max() -> Duration {
    if std::env::var_os(EMULATED).is_some() { TIME_MAX * EMULATED_FACTOR } else { TIME_MAX }
}

/// Returns how often to repeat a check: `emulated` where `FABCACHE_EMULATED` is set, else `usual`.
pub fn amount(usual: usize, emulated: usize) -> usize {
    if std::env::var_os(EMULATED).is_some() { emulated } else { usual }
}

/// Polls until the condition holds.
///
/// # Panics
/// It does not hold within [`time_max`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + time_max();
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(POLL_PERIOD);
    }
}
