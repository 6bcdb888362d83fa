//! Waking tasks: wakers run callers' code on the thread that completes an operation.

use std::panic::catch_unwind;
use std::task::Waker;

/// Wakes one task. A panic in the waker is reported by the panic hook and affects only that task: this thread has
/// others to wake and to serve.
pub fn wake(waker: Waker) {
    let _ = catch_unwind(|| waker.wake());
}
