//! When a writer that searches for memory goes on, waits, or gives up.

use super::StepOutcome;
use crate::bounds::{MAKE_ROOM_STEPS_MAX, STUCK_STEPS_MAX, VAIN_STEPS_MAX};
use crate::handle::WhenFull;

/// The next action of a writer after a step of reclaim that freed too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterStep {
    /// It takes another step.
    GoOn,
    /// It waits for flash.
    AwaitFlash,
    /// It evicts what is not written to flash yet.
    SkipFlash,
    /// There is nothing to take back.
    GiveUp,
}

/// The search of one writer for memory.
#[derive(Debug)]
pub(super) struct RoomSearch {
    when_full: WhenFull,
    evicts: bool,
    steps: u32,
    vain_steps: u32,
    stuck_steps: u32,
}

impl RoomSearch {
    /// Begins the search of a writer that acts so when memory is full.
    pub fn new(when_full: WhenFull, evicts: bool) -> RoomSearch {
        RoomSearch { when_full, evicts, steps: 0, vain_steps: 0, stuck_steps: 0 }
    }

    /// Returns whether the victim is evicted as a whole, since the search took many steps.
    pub fn is_hurried(&self) -> bool {
        self.steps >= MAKE_ROOM_STEPS_MAX
    }

    /// Takes the outcome of a step. `flash_frees` returns whether memory will become free because of flash.
    pub fn after(&mut self, step: StepOutcome, flash_frees: impl FnOnce() -> bool) -> AfterStep {
        self.steps += 1;
        let awaits = self.when_full == WhenFull::AwaitFlash;
        match step {
            StepOutcome::Freed | StepOutcome::Worked => AfterStep::GoOn,
            StepOutcome::Stuck => {
                self.stuck_steps += 1;
                // A request that may wait is executed again after others, and goes on with the segments that are left.
                let is_paused = awaits && !self.evicts && self.stuck_steps >= STUCK_STEPS_MAX;
                if is_paused { AfterStep::AwaitFlash } else { AfterStep::GoOn }
            }
            StepOutcome::Waiting | StepOutcome::Nothing => {
                if flash_frees() && awaits {
                    return AfterStep::AwaitFlash;
                }
                if awaits && self.vain_steps < VAIN_STEPS_MAX {
                    // The writes for which the step waited may have ended since.
                    self.vain_steps += 1;
                    return AfterStep::GoOn;
                }
                if self.evicts { AfterStep::SkipFlash } else { AfterStep::GiveUp }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns what follows the first step of such an outcome after which the search does not go on, and how many went before.
    fn end_of(when_full: WhenFull, evicts: bool, step: StepOutcome, frees: bool) -> (u32, AfterStep) {
        let mut search = RoomSearch::new(when_full, evicts);
        (0..10_000)
            .map(|steps| (steps, search.after(step, || frees)))
            .find(|(_, after)| *after != AfterStep::GoOn)
            .unwrap_or((10_000, AfterStep::GoOn))
    }

    #[test]
    fn steps_without_gain_are_bounded() {
        use StepOutcome::{Nothing, Stuck, Waiting, Worked};
        let (evict, wait) = (WhenFull::Evict, WhenFull::AwaitFlash);
        for step in [Waiting, Nothing] {
            for evicts in [false, true] {
                let last = if evicts { AfterStep::SkipFlash } else { AfterStep::GiveUp };
                assert_eq!(end_of(wait, evicts, step, true), (0, AfterStep::AwaitFlash));
                assert_eq!(end_of(wait, evicts, step, false), (VAIN_STEPS_MAX, last));
                assert_eq!(end_of(evict, evicts, step, true), (0, last));
            }
        }
        assert_eq!(end_of(wait, false, Stuck, false), (STUCK_STEPS_MAX - 1, AfterStep::AwaitFlash));
        // The last try goes through all segments, each once.
        assert_eq!(end_of(evict, false, Stuck, true).1, AfterStep::GoOn);
        // Some victim can be emptied, if it is evicted.
        assert_eq!(end_of(wait, true, Stuck, false).1, AfterStep::GoOn);
        assert_eq!(end_of(wait, false, Worked, false).1, AfterStep::GoOn);
    }

    #[test]
    fn long_search_evicts_the_victim() {
        let mut search = RoomSearch::new(WhenFull::Evict, true);
        let steps = (0..1_000).take_while(|_| {
            let is_hurried = search.is_hurried();
            search.after(StepOutcome::Worked, || false);
            !is_hurried
        });
        assert_eq!(steps.count(), MAKE_ROOM_STEPS_MAX as usize);
    }
}
