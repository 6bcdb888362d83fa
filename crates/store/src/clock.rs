//! The region's clock: whole seconds since its origin, the same for all threads and readers.
//!
//! Seconds change when the wall clock's do at the moment of creation; afterwards they follow the monotonic clock, so
//! that a jump of the wall clock neither expires nor revives anything.

use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(not(loom))]
use fabcache_layout::succession::TimeRecord;
use rustix::time::{ClockId, clock_gettime};

/// The clock starts at this second, so that 0 (never) and 1 (at once) are free as expiry times.
pub const FIRST_SECOND: u32 = 2;

/// A store's source of time.
pub trait TimeSource: Send + Sync + std::fmt::Debug {
    /// Seconds and nanoseconds of a clock that never goes back.
    fn monotonic(&self) -> (u64, u32);
    /// Unix time in seconds and nanoseconds.
    fn wall(&self) -> (u64, u32);
    /// Seconds and nanoseconds since the system's boot, its suspension included (CLOCK_BOOTTIME). By default the
    /// monotonic clock, of a system that is not suspended.
    fn boottime(&self) -> (u64, u32) {
        self.monotonic()
    }
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

    fn boottime(&self) -> (u64, u32) {
        let now = clock_gettime(ClockId::Boottime);
        (now.tv_sec as u64, now.tv_nsec as u32)
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
        let zero_ns =
            nanoseconds(mono_s, mono_ns) - i128::from(FIRST_SECOND) * SECOND_NS - i128::from(wall_ns);
        Clock { source, zero_ns, origin: wall_s.saturating_sub(u64::from(FIRST_SECOND)) }
    }

    /// A clock of which so many nanoseconds have passed since second 0, whose Unix time is `origin`.
    #[cfg(not(loom))]
    pub fn resume(source: Box<dyn TimeSource>, origin: u64, elapsed_ns: i128) -> Clock {
        let (mono_s, mono_ns) = source.monotonic();
        Clock { source, zero_ns: nanoseconds(mono_s, mono_ns) - elapsed_ns, origin }
    }

    /// Returns when this second began, by the clocks that a successor has too.
    #[cfg(not(loom))]
    pub fn record(&self, second: u32) -> TimeRecord {
        let into = self.elapsed_ns() - i128::from(second) * SECOND_NS;
        let began = |(s, ns): (u64, u32)| (nanoseconds(s, ns) - into).try_into().unwrap_or(0);
        TimeRecord { second, boottime_ns: began(self.source.boottime()), wall_ns: began(self.source.wall()) }
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
        nanoseconds(s, ns) - self.zero_ns
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

/// The time on the clock of a region that was kept.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed {
    /// Nanoseconds since second 0.
    pub ns: i128,
    /// The wall clock went back: how long the region had no server is unknown.
    pub went_back: bool,
}

/// Returns the time on the clock of a region that had no server for a while: `published` is the second that the last one
/// published, `record` when it did. On another boot of the system only the wall clock goes on.
#[cfg(not(loom))]
pub fn elapsed_since(
    record: Option<TimeRecord>,
    published: u32,
    is_same_boot: bool,
    source: &dyn TimeSource,
    origin: u64,
) -> Elapsed {
    let ns = |(s, ns): (u64, u32)| nanoseconds(s, ns);
    // Without a whole record: origin and wall clock alone.
    let by_wall = (0, i128::from(origin) * SECOND_NS, ns(source.wall()));
    let (second, then, now) = match record {
        Some(record) if is_same_boot => (record.second, record.boottime_ns.into(), ns(source.boottime())),
        Some(record) => (record.second, record.wall_ns.into(), ns(source.wall())),
        None => by_wall,
    };
    let elapsed = i128::from(second) * SECOND_NS + now - then;
    let least = i128::from(published) * SECOND_NS;
    Elapsed { ns: elapsed.max(least), went_back: elapsed < least }
}

/// Returns the id of the system's boot (random(4)), if the system shows it.
#[cfg(not(loom))]
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().split('-').collect();
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

const SECOND_NS: i128 = 1_000_000_000;

fn nanoseconds(s: u64, ns: u32) -> i128 {
    i128::from(s) * SECOND_NS + i128::from(ns)
}

/// A clock that stays until a test sets it.
#[cfg(all(test, not(loom)))]
#[derive(Clone, Debug, Default)]
pub(crate) struct SetClock(std::sync::Arc<std::sync::atomic::AtomicU64>);

#[cfg(all(test, not(loom)))]
impl SetClock {
    /// Sets the time since the clock was made.
    pub(crate) fn set(&self, time: std::time::Duration) {
        self.0.store(time.as_nanos() as u64, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
impl TimeSource for SetClock {
    fn monotonic(&self) -> (u64, u32) {
        let time = std::time::Duration::from_nanos(self.0.load(std::sync::atomic::Ordering::Relaxed));
        (1_000 + time.as_secs(), time.subsec_nanos())
    }

    fn wall(&self) -> (u64, u32) {
        self.monotonic()
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

    /// Clocks that differ: monotonic, wall and boot time.
    #[derive(Debug, Clone, Copy)]
    struct Three(u64, u64, u64);

    impl TimeSource for Three {
        fn monotonic(&self) -> (u64, u32) {
            (self.0, 500_000_000)
        }

        fn wall(&self) -> (u64, u32) {
            (self.1, 0)
        }

        fn boottime(&self) -> (u64, u32) {
            (self.2, 0)
        }
    }

    #[test]
    fn region_goes_on_by_the_boot_time_or_the_wall_clock() {
        let clock = Clock::start(Box::new(Three(10, 1_000, 20)));
        let later = Clock { source: Box::new(Three(12, 1_002, 22)), ..clock };
        assert_eq!((later.now(), later.elapsed_ns()), (4, 4_000_000_000));
        let record = later.record(3);
        assert_eq!(record, TimeRecord { second: 3, boottime_ns: 21_000_000_000, wall_ns: 1_001_000_000_000 });
        let elapsed = |record, is_same_boot, source| {
            let elapsed = elapsed_since(record, 3, is_same_boot, &source, 998);
            (elapsed.ns / SECOND_NS, elapsed.went_back)
        };
        assert_eq!(elapsed(Some(record), true, Three(0, 0, 31)), (13, false), "suspension counts");
        assert_eq!(elapsed(Some(record), false, Three(0, 1_101, 1)), (103, false), "another boot");
        assert_eq!(elapsed(Some(record), false, Three(0, 900, 1)), (3, true), "the wall clock went back");
        assert_eq!(elapsed(None, true, Three(0, 1_010, 1)), (12, false), "no whole record");
        assert_eq!(elapsed(None, true, Three(0, 0, 1)), (3, true));
        let resumed = Clock::resume(Box::new(Three(7, 0, 0)), 998, 13 * SECOND_NS);
        assert_eq!((resumed.now(), resumed.origin()), (13, 998));
    }

    #[test]
    fn boot_id_is_the_same_at_each_call() {
        assert!(boot_id().is_some_and(|id| id != [0; 16]));
        assert_eq!(boot_id(), boot_id());
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
