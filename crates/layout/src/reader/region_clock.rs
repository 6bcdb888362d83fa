//! The second of a region's clock, by a reader's own monotonic clock.

use rustix::time::{ClockId, clock_gettime};

const NS_PER_SECOND: i64 = 1_000_000_000;

/// A region's clock, continued by this client between the seconds that it sees in the region.
///
/// It is never early, up to drift: an item does not expire before the region's clock says so, and a running region does
/// not seem stopped. It may be late, which costs nothing while the region runs, because readers take the later of the
/// two clocks; each second of the region that it has not reached corrects it.
#[derive(Clone, Copy, Debug)]
pub struct RegionClock {
    /// The monotonic clock at second 0 of the region's clock, in nanoseconds; never too early.
    zero_ns: i64,
}

impl RegionClock {
    /// Returns the clock of which a server's answer says `clock_ns`. `now_ns` was read after the answer arrived.
    pub fn answered(clock_ns: u64, now_ns: i64) -> RegionClock {
        RegionClock { zero_ns: now_ns.saturating_sub_unsigned(clock_ns) }
    }

    /// Returns the second at a moment of [`monotonic_ns`].
    pub fn second_at(&self, now_ns: u64) -> u32 {
        let second = (now_ns as i64).saturating_sub(self.zero_ns) / NS_PER_SECOND;
        second.clamp(0, u32::MAX.into()) as u32
    }

    /// Corrects this clock, which read `second`, if the region has shown a later one. `now_ns` is only called then: it
    /// returns a moment of [`precise_monotonic_ns`] after the region was read.
    pub fn correct(&mut self, second: u32, region: u32, now_ns: impl FnOnce() -> i64) {
        if region > second {
            let zero_ns = now_ns().saturating_sub(i64::from(region) * NS_PER_SECOND);
            self.zero_ns = self.zero_ns.min(zero_ns);
        }
    }
}

/// Returns nanoseconds of a monotonic clock with a resolution of milliseconds, as the server's.
pub fn monotonic_ns() -> u64 {
    ns_of(ClockId::MonotonicCoarse) as u64
}

/// Returns nanoseconds of a clock that goes on while the system is suspended, for [`Now`](super::remote::Now).
pub fn precise_boot_ns() -> u64 {
    ns_of(ClockId::Boottime) as u64
}

/// Returns nanoseconds of the monotonic clock, never less than [`monotonic_ns`] returned before on any CPU.
pub fn precise_monotonic_ns() -> i64 {
    ns_of(ClockId::Monotonic)
}

fn ns_of(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * NS_PER_SECOND + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Returns a region's clock in nanoseconds, and its second, at a moment of this client's clock.
    fn region_at(now_ns: i64) -> (u64, u32) {
        let clock_ns = now_ns - 77_303 * MS;
        (clock_ns as u64, (clock_ns / NS_PER_SECOND) as u32)
    }

    #[test]
    fn slow_answer_makes_no_second_early() {
        for (there_ms, back_ms) in [(0, 0), (5_000, 0), (0, 5_000), (2_000, 2_000), (0, 100_000)] {
            let read_at = (100_000 + there_ms) * MS;
            let arrived = read_at + back_ms * MS;
            let mut clock = RegionClock::answered(region_at(read_at).0, arrived);
            let late = |clock: &RegionClock, now_ns| region_at(now_ns).1 - clock.second_at(now_ns as u64);
            for now_ns in (arrived..arrived + 3_000 * MS).step_by(10 * MS as usize) {
                assert!(late(&clock, now_ns) as i64 <= back_ms / 1000 + 1, "{there_ms} {back_ms}");
            }
            // It sees the region at these moments.
            for now_ns in (arrived..arrived + 3_000 * MS).step_by(10 * MS as usize) {
                let second = clock.second_at(now_ns as u64);
                clock.correct(second, region_at(now_ns).1, || now_ns);
                assert!(late(&clock, now_ns) == 0, "{there_ms} {back_ms}: it has seen this second");
            }
            // From then on, it is late by the time between two looks at most.
            for now_ns in (arrived + 3_000 * MS..arrived + 9_000 * MS).step_by(MS as usize) {
                let into_ns = region_at(now_ns).0 as i64 % NS_PER_SECOND;
                assert!(late(&clock, now_ns) == 0 || into_ns <= 10 * MS, "{there_ms} {back_ms}: {into_ns}");
            }
        }
    }

    #[test]
    fn stopped_region_does_not_stop_it() {
        let mut clock = RegionClock::answered(5 * NS_PER_SECOND as u64, 0);
        clock.correct(clock.second_at(0), 5, || unreachable!("nothing to correct"));
        assert_eq!(clock.second_at(4 * NS_PER_SECOND as u64), 9);
        clock.correct(9, 5, || unreachable!("nothing to correct"));
        assert_eq!(clock.second_at(4 * NS_PER_SECOND as u64), 9);
    }
}
