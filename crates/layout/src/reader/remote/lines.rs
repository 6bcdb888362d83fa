//! Decides when to fetch the status line with the counters of emptied segments: one fetch for many GETs.
//!
//! Each GET needs a line that was requested after the GET started. A GET at a cached location is settled by a line
//! requested after its item: if the segment's counter is unchanged, so is its generation. A single GET must not wait
//! for a line, and a full window must not fetch one for each GET. So a line is requested when a GET needs one and
//! none is in flight, or when enough GETs wait for the next.
//!
//! A line may carry a lease: within that time after its fetch was posted it is as good as a new one.

/// Maximum number of lines in flight: with more, the last would arrive sooner only by part of a fetch's time.
const LINES_MAX: u32 = 4;

/// Counts the order in which fetches are posted and complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SequenceNumber(u64);

impl SequenceNumber {
    /// Never.
    pub(super) const NEVER: SequenceNumber = SequenceNumber(u64::MAX);

    /// Returns the number before it.
    fn before(self) -> SequenceNumber {
        SequenceNumber(self.0.saturating_sub(1))
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> SequenceNumber {
        self.0 += 1;
        *self
    }
}

/// The requested lines.
#[derive(Debug)]
pub(super) struct Lines {
    every: u32,
    /// When the newest line was requested.
    requested: (SequenceNumber, u64),
    /// Whether the newest request failed.
    has_failed: bool,
    /// When the newest received line was requested.
    received: (SequenceNumber, u64),
    /// Until when the received line may be trusted, in nanoseconds.
    leased_until: u64,
    on_their_way: u32,
    /// The latest moment after which a line must be requested for some GET.
    needed: SequenceNumber,
    /// GETs at cached locations that need it, since the newest was requested.
    waiting: u32,
}

impl Lines {
    /// Returns the state without a line; while lines are in flight, one is fetched for `every` GETs at cached
    /// locations.
    pub(super) fn new(every: u32) -> Lines {
        Lines {
            every: every.max(1),
            requested: Default::default(),
            has_failed: false,
            received: Default::default(),
            leased_until: 0,
            on_their_way: 0,
            needed: SequenceNumber::default(),
            waiting: 0,
        }
    }

    /// Notes that a GET needs a line requested after `moment`; `waits` if the GET, at a cached location, only waits
    /// for it.
    pub(super) fn need(&mut self, moment: SequenceNumber, waits: bool) {
        self.needed = self.needed.max(moment);
        self.waiting += u32::from(waits);
    }

    /// For a GET that starts at `ns`: if the received line's lease is valid then, returns the moment that the line
    /// covers.
    pub(super) fn leased(&self, ns: u64) -> Option<SequenceNumber> {
        (ns < self.leased_until).then(|| self.received.0.before())
    }

    /// Returns whether a line requested after `moment` was received.
    pub(super) fn covers(&self, moment: SequenceNumber) -> bool {
        self.received.0 > moment
    }

    /// Returns whether a line requested after `moment` settles what arrived at `ns`, given the server's grace: it is
    /// still to be requested, or was requested early enough.
    pub(super) fn is_requested_within(&self, moment: SequenceNumber, ns: u64, grace_ns: u64) -> bool {
        let is_to_come = self.requested.0 <= moment;
        grace_ns > 0 && (is_to_come || !self.has_failed && is_within(self.requested.1, ns, grace_ns))
    }

    /// Returns whether the newest received line settles what arrived at `ns`, although it was not fetched after it.
    pub(super) fn is_known_within(&self, ns: u64, grace_ns: u64) -> bool {
        is_within(self.received.1, ns, grace_ns)
    }

    /// Returns whether a line must be requested now.
    pub(super) fn is_wanted(&self) -> bool {
        let is_due = self.waiting >= self.every && self.on_their_way < LINES_MAX;
        self.needed > self.requested.0 && (self.on_their_way == 0 || is_due)
    }

    /// Notes that a line was requested.
    pub(super) fn request(&mut self, moment: SequenceNumber, ns: u64) {
        (self.requested, self.has_failed) = ((moment, ns), false);
        self.on_their_way += 1;
        self.waiting = 0;
    }

    /// Notes a received line, its request and its lease in nanoseconds. Returns whether it is the newest.
    pub(super) fn take(&mut self, requested: (SequenceNumber, u64), lease_ns: u64) -> bool {
        self.on_their_way -= 1;
        let is_newest = requested.0 > self.received.0;
        if is_newest {
            self.received = requested;
            self.leased_until = end_of(requested.1, lease_ns);
        }
        is_newest
    }

    /// Notes the failure of a line.
    pub(super) fn fail(&mut self, requested: SequenceNumber) {
        self.on_their_way -= 1;
        self.has_failed |= requested == self.requested.0;
    }
}

/// Returns whether `to` is within the grace that began at `from`, or earlier.
pub(super) fn is_within(from: u64, to: u64, grace_ns: u64) -> bool {
    grace_ns > 0 && to < end_of(from, grace_ns)
}

/// Returns when a guarantee of this length ends for certain. Clocks do not differ by a tenth.
fn end_of(from: u64, length_ns: u64) -> u64 {
    from.saturating_add(length_ns / 10 * 9)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_line_serves_many_gets_while_the_next_is_in_flight() {
        let mut now = SequenceNumber::default();
        let mut lines = Lines::new(4);
        assert!(!lines.is_wanted());
        let first = now.next();
        lines.need(first, true);
        assert!(lines.is_wanted() && !lines.covers(first));
        let requested = now.next();
        lines.request(requested, 1_000);
        assert!(!lines.is_wanted());
        for _ in 0..3 {
            let moment = now.next();
            lines.need(moment, true);
            assert!(!lines.is_wanted(), "a line is in flight");
        }
        lines.need(now.next(), true);
        assert!(lines.is_wanted(), "enough GETs wait");
        let second = now.next();
        lines.request(second, 2_000);
        let behind = now.next();
        lines.need(behind, false);
        assert!(lines.take((second, 2_000), 0) && lines.covers(first) && !lines.covers(behind));
        assert!(
            !lines.take((requested, 1_000), 0) && !lines.covers(behind),
            "an older line says nothing new"
        );
        assert!(lines.is_wanted(), "no line is in flight");
        assert!(!lines.covers(SequenceNumber::NEVER));
    }

    #[test]
    fn leased_line_serves_gets_that_start_later() {
        let mut now = SequenceNumber::default();
        let mut lines = Lines::new(4);
        let mut request = |lines: &mut Lines, ns| {
            let moment = now.next();
            lines.request(moment, ns);
            (moment, ns)
        };
        assert_eq!(lines.leased(0), None);
        let first = request(&mut lines, 1_000);
        let second = request(&mut lines, 1_500);
        assert!(lines.take(first, 1_000));
        let started = lines.leased(1_899).expect("for nine tenths of it");
        assert!(lines.covers(started) && lines.leased(1_900).is_none());
        lines.need(started, true);
        assert!(!lines.is_wanted(), "the line is known");
        // The newest line is valid, whatever an earlier one promised.
        assert!(lines.take(second, 0) && lines.leased(1_600).is_none());
        let (older, newer) = (request(&mut lines, 2_000), request(&mut lines, 2_001));
        assert!(lines.take(newer, 0) && !lines.take(older, 1_000) && lines.leased(2_002).is_none());
    }
}
