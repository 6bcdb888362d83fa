//! How long an end of a channel spins before it sleeps.
//!
//! Spinning costs a processor. Sleeping costs both ends a system call, and the sleeper the time to wake up. The
//! policy learns which is cheaper: while polls succeed, it spins as long or longer; when they do not, because the
//! other end takes longer or needs this very processor, the spin shrinks to nothing. Then it is tried again now and
//! then: soon at first, since one pause of the other end is soon over, and more rarely after each unsuccessful try.
//!
//! ```text
//!             unsuccessful, and no shorter spin is worth it
//!   spinning -----------------------------------------> sleeping
//!      ^  ^                                             |     ^
//!      |  '------ successful ---- trying <--------------'     | unsuccessful: twice as many sleeps before the next
//!      |                            |   so many sleeps later   |
//!      '- successful, or half       '--------------------------'
//! ```

use std::time::Duration;

/// Usual upper bound of a spin: as long as notifying and waking take, also on most virtual machines …
const LOOK_NS_USUAL: u32 = 200_000;
/// … but if sleeps took longer, spins last as long, up to this bound.
const LOOK_NS_MAX: u32 = 1_000_000;
/// … and a shorter one than this finds nothing that sleeping would miss.
const LOOK_NS_MIN: u32 = 3_000;
/// Sleeps before spinning is tried again, the first time: the wakeups that an unsuccessful try costs take several
/// times as long together …
const SLEEPS_MIN: u16 = 16;
/// … and at most: then it takes a hundredth of the time.
const SLEEPS_MAX: u16 = 1024;

/// How long to spin for the other end, learnt from the waits so far. Eight bytes, so that threads can share it in one
/// word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct SpinPolicy {
    /// Duration of the next spin; 0 for none.
    look_ns: u32,
    /// Sleeps since the last try.
    sleeps: u16,
    /// Unsuccessful tries, minus the successful ones.
    failures: u8,
    /// The next spin is a trial.
    is_trying: bool,
}

impl Default for SpinPolicy {
    fn default() -> SpinPolicy {
        SpinPolicy { look_ns: LOOK_NS_USUAL, sleeps: 0, failures: 0, is_trying: false }
    }
}

impl SpinPolicy {
    /// Returns how long to spin before sleeping; `None` for not at all.
    #[inline]
    pub fn spin_time(self) -> Option<Duration> {
        (self.look_ns > 0).then(|| Duration::from_nanos(self.look_ns.into()))
    }

    /// Records a successful spin.
    #[inline]
    #[must_use]
    pub fn after_success(self) -> SpinPolicy {
        SpinPolicy {
            look_ns: (self.look_ns * 2).min(LOOK_NS_USUAL).max(self.look_ns),
            sleeps: 0,
            failures: self.failures.saturating_sub(1),
            is_trying: false,
        }
    }

    /// The poll was unsuccessful or skipped, and this end slept for `slept`, if that was because of the other end.
    #[must_use]
    pub fn after_sleep(self, slept: Duration) -> SpinPolicy {
        if self.look_ns > 0 {
            let shorter = if self.look_ns / 2 < LOOK_NS_MIN { 0 } else { self.look_ns / 2 };
            let look_ns = if self.is_trying { 0 } else { shorter };
            let most = (SLEEPS_MAX / SLEEPS_MIN).ilog2() as u8;
            let failures = (self.failures + u8::from(self.is_trying)).min(most);
            return SpinPolicy { look_ns, sleeps: 0, failures, is_trying: false };
        }
        let sleeps = self.sleeps + 1;
        if sleeps < SLEEPS_MIN << self.failures {
            return SpinPolicy { sleeps, ..self };
        }
        // At least as long as a sleeping peer takes to wake up: while this end sleeps, the peer has no reason to
        // start. Half of the time that this end slept is its own wakeup.
        let slept_ns = u32::try_from(slept.as_nanos()).unwrap_or(u32::MAX);
        SpinPolicy { look_ns: slept_ns.clamp(LOOK_NS_USUAL, LOOK_NS_MAX), sleeps: 0, is_trying: true, ..self }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const USUAL: Option<Duration> = Some(Duration::from_nanos(LOOK_NS_USUAL as u64));
    const SHORT: Duration = Duration::from_micros(20);

    /// Sleeps until the next trial; returns the number of sleeps.
    fn sleep_until_try(spin: &mut SpinPolicy) -> u32 {
        let mut sleeps = 0;
        while spin.spin_time().is_none() {
            *spin = spin.after_sleep(SHORT);
            sleeps += 1;
        }
        sleeps
    }

    fn given_up() -> SpinPolicy {
        let mut spin = SpinPolicy::default();
        let mut looks = 0;
        while spin.spin_time().is_some() {
            spin = spin.after_sleep(SHORT);
            looks += 1;
        }
        assert!(looks > 3, "not at once: {looks}");
        spin
    }

    #[test]
    fn unsuccessful_polling_stops_and_is_retried_ever_more_rarely() {
        let mut spin = given_up();
        let mut expected = u32::from(SLEEPS_MIN);
        for _ in 0..20 {
            assert_eq!(sleep_until_try(&mut spin), expected);
            assert_eq!(spin.spin_time(), USUAL);
            spin = spin.after_sleep(SHORT);
            assert_eq!(spin.spin_time(), None, "one trial");
            expected = (expected * 2).min(SLEEPS_MAX.into());
        }
    }

    #[test]
    fn successful_retry_resumes_polling() {
        let mut spin = given_up();
        for _ in 0..20 {
            sleep_until_try(&mut spin);
            spin = spin.after_sleep(SHORT);
        }
        sleep_until_try(&mut spin);
        for _ in 0..20 {
            spin = spin.after_success();
            assert_eq!(spin.spin_time(), USUAL);
        }
        while spin.spin_time().is_some() {
            spin = spin.after_sleep(SHORT);
        }
        assert_eq!(sleep_until_try(&mut spin), SLEEPS_MIN.into(), "old unsuccessful polls are forgotten");
    }

    #[test]
    fn slow_wakeups_lengthen_polling() {
        let mut spin = given_up();
        while spin.spin_time().is_none() {
            spin = spin.after_sleep(Duration::from_micros(600));
        }
        for _ in 0..3 {
            assert_eq!(spin.spin_time(), Some(Duration::from_micros(600)));
            spin = spin.after_success();
        }
        spin = given_up();
        while spin.spin_time().is_none() {
            spin = spin.after_sleep(Duration::from_secs(3600));
        }
        assert_eq!(spin.spin_time(), Some(Duration::from_nanos(LOOK_NS_MAX.into())));
    }

    #[test]
    fn single_success_does_not_end_the_backoff() {
        let mut spin = given_up();
        for _ in 0..20 {
            sleep_until_try(&mut spin);
            spin = spin.after_sleep(SHORT);
        }
        sleep_until_try(&mut spin);
        spin = spin.after_success();
        while spin.spin_time().is_some() {
            spin = spin.after_sleep(SHORT);
        }
        assert_eq!(sleep_until_try(&mut spin), u32::from(SLEEPS_MAX) / 2);
    }
}
