//! The region's clock: whole seconds since its origin, the same for all threads and readers.
//!
//! Seconds change when the wall clock's do at the moment of creation; afterwards they follow the monotonic clock, so
//! that a jump of the wall clock neither expires nor revives anything.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The clock starts at this second, so that 0 (never) and 1 (at once) are free as expiry times.
pub const FIRST_SECOND: u32 = 2;

/// A store's source of time.
pub trait TimeSource: Send + Sync + std::fmt::Debug {
    /// Seconds and nanoseconds of a clock that never goes back.
    fn monotonic(&self) -> (u64, u32);
    /// Unix time in seconds and nanoseconds.
    fn wall(&self) -> (u64, u32);
}

/// The system's clocks.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemTimeSource;

impl TimeSource for SystemTimeSource {
    fn monotonic(&self) -> (u64, u32) {
        // A few milliseconds coarse, which seconds do not notice, and a tenth of the cost.
        let now = clock_gettime(ClockId::MonotonicCoarse);
        (now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn wall(&self) -> (u64, u32) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (now.as_secs(), now.subsec_nanos())
    }
}

/// Turns the source's time into the region's.
#[derive(Debug)]
pub struct Clock {
    source: Box<dyn TimeSource>,
    /// Monotonic nanoseconds at which the region's second 0 would have started.
    zero_ns: i128,
    origin: u64,
}

impl Clock {
    /// A clock that starts now at [`FIRST_SECOND`].
    pub fn start(source: Box<dyn TimeSource>) -> Clock {
        let (wall_s, wall_ns) = source.wall();
        let (mono_s, mono_ns) = source.monotonic();
        let mono = i128::from(mono_s) * 1_000_000_000 + i128::from(mono_ns);
        let zero_ns = mono - i128::from(FIRST_SECOND) * 1_000_000_000 - i128::from(wall_ns);
        Clock { source, zero_ns, origin: wall_s.saturating_sub(u64::from(FIRST_SECOND)) }
    }

    /// Unix time of the region's second 0.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Monotonic time of the region's second 0, in nanoseconds.
    pub fn zero_ns(&self) -> i128 {
        self.zero_ns
    }

    /// Nanoseconds since second 0.
    pub fn elapsed_ns(&self) -> i128 {
        let (s, ns) = self.source.monotonic();
        i128::from(s) * 1_000_000_000 + i128::from(ns) - self.zero_ns
    }

    /// Returns the time until the clock shows another second, and a little more: the clock is coarse.
    pub fn until_next_second(&self) -> std::time::Duration {
        let into = self.elapsed_ns().rem_euclid(1_000_000_000) as u64;
        std::time::Duration::from_nanos(1_005_000_000 - into)
    }

    /// The second it is.
    pub fn now(&self) -> u32 {
        (self.elapsed_ns() / 1_000_000_000).clamp(i128::from(FIRST_SECOND), i128::from(u32::MAX - 1)) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug, Clone, Default)]
    struct Fake(Arc<AtomicU64>);

    impl TimeSource for Fake {
        fn monotonic(&self) -> (u64, u32) {
            let ms = self.0.load(Ordering::Relaxed);
            (ms / 1000, (ms % 1000) as u32 * 1_000_000)
        }

        fn wall(&self) -> (u64, u32) {
            (1_000_000, 900_000_000)
        }
    }

    #[test]
    fn seconds_follow_the_wall_clock() {
        let fake = Fake::default();
        fake.0.store(5_000, Ordering::Relaxed);
        let clock = Clock::start(Box::new(fake.clone()));
        assert_eq!((clock.now(), clock.origin()), (2, 999_998));
        fake.0.store(5_099, Ordering::Relaxed);
        assert_eq!(clock.now(), 2);
        fake.0.store(5_100, Ordering::Relaxed);
        assert_eq!(clock.now(), 3);
        fake.0.store(4_000, Ordering::Relaxed);
        assert_eq!(clock.now(), 2, "a clock that goes back stays at the start");
    }
}
