//! Waking who awaits something: that is anybody's code, run by whichever thread sees the end of it.

use std::panic::catch_unwind;
use std::task::Waker;

/// Wakes one. What panics in it is told by the panic's hook, and is its own loss: the thread has others to wake, and goes on to
/// see to what they await.
pub fn wake(waker: Waker) {
    let _ = catch_unwind(|| waker.wake());
}
