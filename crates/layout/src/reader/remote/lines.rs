//! When the published line is fetched, with the counts of emptied segments behind it: one fetch for many GETs.
//!
//! Each GET needs a line that was asked for after it began. One at a known location is settled by it if it was asked for
//! behind its item: then, where the segment's count is the same as before, so is the generation. A lone GET is not to wait
//! for a line, and a full window is not to fetch one for each GET. So a line is asked for when somebody needs one and none
//! is on its way, or when enough wait for the next.
//!
//! A line may carry a lease: for so long after its fetch was posted it is as good as one that is fetched now.

/// Lines on their way at once at most: with more the last would only be there sooner by part of a fetch's time.
const LINES_MAX: u32 = 4;

/// Counts the order in which fetches are posted and complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SequenceNumber(u64);

impl SequenceNumber {
    /// Never.
    pub(super) const NEVER: SequenceNumber = SequenceNumber(u64::MAX);

    /// The one before it.
    fn before(self) -> SequenceNumber {
        SequenceNumber(self.0.saturating_sub(1))
    }

    /// The next.
    pub(super) fn next(&mut self) -> SequenceNumber {
        self.0 += 1;
        *self
    }
}

/// Lines asked for.
#[derive(Debug)]
pub(super) struct Lines {
    every: u32,
    /// When the newest was asked for …
    asked: (SequenceNumber, u64),
    /// … which has failed.
    has_failed: bool,
    /// When the newest was asked for of which is known what it says.
    metadata: (SequenceNumber, u64),
    /// Until when that may be taken to be so.
    leased_until: u64,
    on_their_way: u32,
    /// Somebody needs one that is asked for after this.
    needed: SequenceNumber,
    /// GETs at known locations that do, since the newest was asked for.
    waiting: u32,
}

impl Lines {
    /// None yet; while some are on their way, one for so many GETs at known locations.
    pub(super) fn new(every: u32) -> Lines {
        Lines {
            every: every.max(1),
            asked: Default::default(),
            has_failed: false,
            metadata: Default::default(),
            leased_until: 0,
            on_their_way: 0,
            needed: SequenceNumber::default(),
            waiting: 0,
        }
    }

    /// A GET needs one that is asked for after `moment`; at a known location it does nothing but wait for it.
    pub(super) fn need(&mut self, moment: SequenceNumber, waits: bool) {
        self.needed = self.needed.max(moment);
        self.waiting += u32::from(waits);
    }

    /// For a GET that begins at `ns`: as if it had begun before the line that is known, if that has a lease by then.
    pub(super) fn leased(&self, ns: u64) -> Option<SequenceNumber> {
        (ns < self.leased_until).then(|| self.metadata.0.before())
    }

    /// Whether one asked for after `moment` is known.
    pub(super) fn covers(&self, moment: SequenceNumber) -> bool {
        self.metadata.0 > moment
    }

    /// Whether one that is asked for after `moment` settles what came in at `ns`, as the server writes over nothing for so
    /// long: it is still to be asked for, or was soon enough before.
    pub(super) fn is_asked_within(&self, moment: SequenceNumber, ns: u64, grace_ns: u64) -> bool {
        let is_to_come = self.asked.0 <= moment;
        grace_ns > 0 && (is_to_come || !self.has_failed && is_within(self.asked.1, ns, grace_ns))
    }

    /// Whether the newest that is known settles what came in at `ns`, though it was not fetched behind it.
    pub(super) fn is_known_within(&self, ns: u64, grace_ns: u64) -> bool {
        is_within(self.metadata.1, ns, grace_ns)
    }

    /// Whether one is to be asked for now.
    pub(super) fn is_wanted(&self) -> bool {
        let is_due = self.waiting >= self.every && self.on_their_way < LINES_MAX;
        self.needed > self.asked.0 && (self.on_their_way == 0 || is_due)
    }

    /// One was asked for.
    pub(super) fn ask(&mut self, moment: SequenceNumber, ns: u64) {
        (self.asked, self.has_failed) = ((moment, ns), false);
        self.on_their_way += 1;
        self.waiting = 0;
    }

    /// One came in that was asked for at this moment, with a lease of so many nanoseconds. Whether it is the newest.
    pub(super) fn take(&mut self, asked: (SequenceNumber, u64), lease_ns: u64) -> bool {
        self.on_their_way -= 1;
        let is_newest = asked.0 > self.metadata.0;
        if is_newest {
            self.metadata = asked;
            self.leased_until = end_of(asked.1, lease_ns);
        }
        is_newest
    }

    /// One failed that was asked for at this moment.
    pub(super) fn fail(&mut self, asked: SequenceNumber) {
        self.on_their_way -= 1;
        self.has_failed |= asked == self.asked.0;
    }
}

/// Whether what was over at `to` was within the grace that began at `from`, or later.
pub(super) fn is_within(from: u64, to: u64, grace_ns: u64) -> bool {
    grace_ns > 0 && to < end_of(from, grace_ns)
}

/// When what a server leaves as it is for so long may be otherwise. Clocks do not differ by a tenth.
fn end_of(from: u64, length_ns: u64) -> u64 {
    from.saturating_add(length_ns / 10 * 9)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_is_for_many_while_another_is_on_its_way() {
        let mut now = SequenceNumber::default();
        let mut lines = Lines::new(4);
        assert!(!lines.is_wanted());
        let first = now.next();
        lines.need(first, true);
        assert!(lines.is_wanted() && !lines.covers(first));
        let asked = now.next();
        lines.ask(asked, 1_000);
        assert!(!lines.is_wanted());
        for _ in 0..3 {
            let moment = now.next();
            lines.need(moment, true);
            assert!(!lines.is_wanted(), "one is on its way");
        }
        lines.need(now.next(), true);
        assert!(lines.is_wanted(), "enough wait");
        let second = now.next();
        lines.ask(second, 2_000);
        let behind = now.next();
        lines.need(behind, false);
        assert!(lines.take((second, 2_000), 0) && lines.covers(first) && !lines.covers(behind));
        assert!(!lines.take((asked, 1_000), 0) && !lines.covers(behind), "an older one says nothing new");
        assert!(lines.is_wanted(), "none is on its way");
        assert!(!lines.covers(SequenceNumber::NEVER));
    }

    #[test]
    fn one_with_a_lease_is_good_for_who_begins_later() {
        let mut now = SequenceNumber::default();
        let mut lines = Lines::new(4);
        let mut ask = |lines: &mut Lines, ns| {
            let moment = now.next();
            lines.ask(moment, ns);
            (moment, ns)
        };
        assert_eq!(lines.leased(0), None);
        let first = ask(&mut lines, 1_000);
        let second = ask(&mut lines, 1_500);
        assert!(lines.take(first, 1_000));
        let started = lines.leased(1_899).expect("for nine tenths of it");
        assert!(lines.covers(started) && lines.leased(1_900).is_none());
        lines.need(started, true);
        assert!(!lines.is_wanted(), "it is known");
        // The newest says what is so, whatever one before it has promised.
        assert!(lines.take(second, 0) && lines.leased(1_600).is_none());
        let (older, newer) = (ask(&mut lines, 2_000), ask(&mut lines, 2_001));
        assert!(lines.take(newer, 0) && !lines.take(older, 1_000) && lines.leased(2_002).is_none());
    }
}
