//! The slot of one GET: its result, its time limit and the task that awaits it.

use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use fabcache_layout::KeyHash;

use super::target::ValuePlacement;
use crate::read_result::ReadResult;

/// Receives the result of a GET. Its lock is held briefly, and no other lock is taken meanwhile.
#[derive(Debug)]
pub struct GetSlot {
    state: Mutex<State>,
    time_limit: Duration,
}

#[derive(Debug)]
struct State {
    completion: Option<GetCompletion>,
    /// Woken at completion.
    waker: Option<Waker>,
    deadline: Instant,
    /// A thread has found the deadline exceeded once.
    was_late: bool,
}

/// A completed GET.
#[derive(Debug)]
pub struct GetCompletion {
    /// The result.
    pub read: ReadResult,
    /// The memory that was lent for the value.
    pub value: Vec<u8>,
    /// Where the value of a hit is.
    pub placement: ValuePlacement,
    /// When it completed.
    pub at: Instant,
    /// Reads to report to the server now: they were collected from earlier GETs.
    pub accesses: Option<Vec<(KeyHash, u8)>>,
}

impl GetCompletion {
    /// Returns the completion of a GET that read nothing: the server must be asked.
    pub fn fallback(value: Vec<u8>) -> GetCompletion {
        GetCompletion {
            read: ReadResult::FALLBACK,
            value,
            placement: ValuePlacement::Nowhere,
            at: Instant::now(),
            accesses: None,
        }
    }

    /// Returns the length of the value of a hit.
    pub fn value_bytes(&self) -> Option<usize> {
        match &self.placement {
            ValuePlacement::Nowhere => None,
            ValuePlacement::Registered(range) => Some(range.len()),
            ValuePlacement::Other => Some(self.value.len()),
        }
    }
}

impl GetSlot {
    pub fn new(now: Instant, time_limit: Duration) -> GetSlot {
        let state = State { completion: None, waker: None, deadline: now + time_limit, was_late: false };
        GetSlot { state: Mutex::new(state), time_limit }
    }

    /// Returns the deadline for a thread that starts to wait now.
    pub fn deadline_from(&self, now: Instant) -> Instant {
        self.is_late(now);
        self.lock().deadline
    }

    /// Returns whether the GET has exceeded its time limit. The thread that finds out may itself be late, since nothing
    /// is read while no thread polls; so the time limit then starts a second time.
    pub fn is_late(&self, now: Instant) -> bool {
        let mut state = self.lock();
        if now >= state.deadline && !std::mem::replace(&mut state.was_late, true) {
            state.deadline = now + self.time_limit;
        }
        now >= state.deadline
    }

    /// Takes the result, once.
    pub fn take(&self) -> Option<GetCompletion> {
        self.lock().completion.take()
    }

    /// Returns whether the result is available and was not taken.
    pub fn is_complete(&self) -> bool {
        self.lock().completion.is_some()
    }

    /// Registers a waker to be woken at completion. Returns the waker it replaces, or this one if the GET is complete.
    pub fn watch(&self, waker: Waker) -> Option<Waker> {
        let mut state = self.lock();
        if state.completion.is_some() { Some(waker) } else { state.waker.replace(waker) }
    }

    /// Returns the deadline, if a task awaits the GET.
    pub fn awaited_until(&self) -> Option<Instant> {
        let state = self.lock();
        state.waker.as_ref().map(|_| state.deadline)
    }

    /// Stores the result, and returns the waker to wake.
    pub fn complete(&self, completion: GetCompletion) -> Option<Waker> {
        let mut state = self.lock();
        state.completion = Some(completion);
        state.waker.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds a GET's result")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_unpolled_past_its_deadline_gets_a_new_deadline() {
        const TIME_LIMIT: Duration = Duration::from_secs(10);
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let slot = GetSlot::new(began, TIME_LIMIT);
        assert!(!slot.is_late(after(9)));
        assert_eq!(slot.deadline_from(after(9)), after(10), "waiting in time does not extend it");
        assert!(!slot.is_late(after(30)), "no thread polled");
        assert_eq!(slot.deadline_from(after(31)), after(40));
        assert!(!slot.is_late(after(39)));
        assert!(slot.is_late(after(40)) && slot.is_late(after(90)), "the deadline is extended once");
        let slot = GetSlot::new(began, TIME_LIMIT);
        assert_eq!(slot.deadline_from(after(30)), after(40));
        slot.watch(Waker::noop().clone());
        assert_eq!(slot.awaited_until(), Some(after(40)), "the same for a task");
        assert!(slot.is_late(after(41)));
    }
}
