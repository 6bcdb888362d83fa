//! The sleep of a thread, on a word of its PE's heap: every process that has the word mapped can wake it.
//!
//! Another word there counts the threads that poll for the same work. While there is one, none is woken.

#[cfg(not(loom))]
use std::time::Duration;

use fabcache_layout::sync::{AtomicU32, Ordering, fence, without};
#[cfg(not(loom))]
use rustix::thread::futex;
#[cfg(not(loom))]
use rustix::time::Timespec;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Sleeps for this time at most, unless there is work.
#[cfg(not(loom))]
pub fn sleep(word: &AtomicU32, time: Duration, has_work: &mut dyn FnMut() -> bool) {
    if may_sleep(word, has_work) {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // Interrupted or late, the caller polls again.
        let _ = futex::wait(word, futex::Flags::empty(), ASLEEP, Some(&time));
    }
    word.store(AWAKE, Ordering::Relaxed);
}

/// Wakes the threads that sleep on the words, after work was made for them, unless threads poll for it.
#[cfg(not(loom))]
pub fn wake<'w>(polling: Option<&AtomicU32>, words: impl IntoIterator<Item = &'w AtomicU32>) {
    if must_wake(polling) {
        for word in words {
            if end_sleep(word) {
                // Nothing sleeps where the word is not a futex.
                let _ = futex::wake(word, futex::Flags::empty(), 1);
            }
        }
    }
}

/// Counts a thread that polls for work from now on: those that sleep need not be woken for it.
pub fn begin_polling(polling: &AtomicU32) {
    polling.fetch_add(1, Ordering::Relaxed);
}

/// Stops counting a thread, which then polls a last time.
pub fn end_polling(polling: &AtomicU32) {
    polling.fetch_sub(1, Ordering::Relaxed);
    // Either this thread sees the work, or who made it sees that this thread does not poll.
    if !without("polling_fence") {
        fence(Ordering::SeqCst);
    }
}

/// Returns whether threads poll for work.
pub fn is_polled(polling: &AtomicU32) -> bool {
    polling.load(Ordering::Relaxed) > 0
}

/// Marks the thread asleep. Returns whether there is no work.
pub fn may_sleep(word: &AtomicU32, has_work: &mut dyn FnMut() -> bool) -> bool {
    word.store(ASLEEP, Ordering::Relaxed);
    // Either this thread sees the work, or who made it sees the sleep.
    if !without("sleep_fence") {
        fence(Ordering::SeqCst);
    }
    !has_work()
}

/// Returns whether threads that sleep must be woken, after work was made for them.
pub fn must_wake(polling: Option<&AtomicU32>) -> bool {
    if !without("sleep_wake_fence") {
        fence(Ordering::SeqCst);
    }
    !polling.is_some_and(is_polled)
}

/// Marks the thread awake. Returns whether it was asleep.
pub fn end_sleep(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == ASLEEP && word.swap(AWAKE, Ordering::Relaxed) == ASLEEP
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_work_is_slept_through() {
        const COUNT: u64 = 20_000;
        const TIME: Duration = Duration::from_secs(20);
        let (word, made, taken) = (AtomicU32::new(AWAKE), AtomicU64::new(0), AtomicU64::new(0));
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    while made.load(Ordering::Relaxed) <= number {
                        sleep(&word, TIME, &mut || made.load(Ordering::Relaxed) > number);
                    }
                    taken.store(number + 1, Ordering::Relaxed);
                }
            });
            for number in 0..COUNT {
                made.store(number + 1, Ordering::Relaxed);
                wake(None, [&word]);
                while taken.load(Ordering::Relaxed) <= number {
                    std::thread::yield_now();
                }
            }
        });
        assert!(began.elapsed() < TIME, "it slept through work");
    }
}
