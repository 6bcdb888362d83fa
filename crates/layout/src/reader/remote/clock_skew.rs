//! How far a client's clock is ahead of the region's.
//!
//! The clocks of two hosts drift apart by seconds a day where nothing adjusts them, and a host may be suspended. A
//! client that is ahead would find items expired too early, and in time the region's clock stopped. A region's clock
//! that advances, and whose lines never show the client's second over a while, is permanently behind.

/// Consecutive seconds of the region's clock to observe: the clock must advance, and not only be late now and then.
const SECONDS: u32 = 60;

/// Observations of the two clocks.
#[derive(Debug, Default)]
pub(super) struct ClockSkew {
    /// Seconds by which the client's clock is ahead.
    by: u32,
    /// The last second that the region's clock showed, …
    last: u32,
    /// … the number of seconds observed before …
    seen: u32,
    /// … and the least further lead of the client's clock in each of them.
    least: u32,
}

impl ClockSkew {
    /// Returns the current second, by the client's clock and a line just fetched.
    pub(super) fn second(&mut self, own: u32, region: u32) -> u32 {
        let beyond = own.saturating_sub(self.by).saturating_sub(region);
        self.least = self.least.min(beyond);
        // A stopped clock shows only the second at which it stopped.
        self.seen += u32::from(region > self.last);
        self.last = self.last.max(region);
        if self.least == 0 || self.seen >= SECONDS {
            self.by = self.by.saturating_add(self.least);
            (self.seen, self.least) = (0, u32::MAX);
        }
        self.second_of(own)
    }

    /// Returns the current second, by the client's clock alone.
    pub(super) fn second_of(&self, own: u32) -> u32 {
        own.saturating_sub(self.by)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Fetches a line each second, of a region whose clock is behind by this much.
    fn resume(clock_skew: &mut ClockSkew, from: u32, seconds: u32, behind: impl Fn(u32) -> u32) -> u32 {
        (from..from + seconds)
            .map(|own| clock_skew.second(own, own - behind(own)))
            .last()
            .expect("some seconds")
    }

    #[test]
    fn permanently_late_clock_is_followed() {
        let mut clock_skew = ClockSkew::default();
        assert_eq!(resume(&mut clock_skew, 100, 200, |_| 0), 299);
        assert_eq!(resume(&mut clock_skew, 300, 30, |_| 5), 329, "the clock may be late only at times");
        assert_eq!(resume(&mut clock_skew, 330, 100, |_| 5), 424);
        assert_eq!(resume(&mut clock_skew, 430, 200, |_| 7), 622);
    }

    #[test]
    fn occasionally_late_clock_is_not_followed() {
        let mut clock_skew = ClockSkew::default();
        assert_eq!(resume(&mut clock_skew, 100, 1_000, |own| own % 4), 1_099);
    }

    #[test]
    fn stopped_clock_is_not_followed() {
        let mut clock_skew = ClockSkew::default();
        assert_eq!(resume(&mut clock_skew, 100, 10, |_| 0), 109);
        assert_eq!(resume(&mut clock_skew, 110, 1_000, |own| own - 109), 1_109);
        assert_eq!(resume(&mut clock_skew, 1_110, 10, |_| 0), 1_119);
        // Nor if no line was fetched while the clock advanced.
        assert_eq!(resume(&mut clock_skew, 2_000, 1_000, |own| own - 1_500), 2_999);
    }
}
