//! Wakes and stops a thread of the flash tier: the writer, or the one that reads for the store.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;

/// The doorbell of one thread, and whether it is to end.
#[derive(Debug)]
pub struct ThreadControl {
    doorbell: OwnedFd,
    /// Whether the doorbell was rung since the thread last looked for work.
    is_notified: AtomicBool,
    is_stopping: AtomicBool,
}

impl ThreadControl {
    /// Creates the control of one thread.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<ThreadControl> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ThreadControl {
            doorbell,
            is_notified: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Notifies the thread that the store has work for it.
    pub fn notify(&self) {
        // Pairs with `drain`: either the thread looks for work later, or this rings.
        if !self.is_notified.swap(true, Ordering::AcqRel) {
            // It fails only if the doorbell was rung 2^64 times.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Asks the thread to end, once its requests under way have ended.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.notify();
    }

    /// Returns the descriptor that is readable after a notification.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Drains the doorbell, and returns whether the thread is to end.
    ///
    /// Later notifications ring again.
    pub(super) fn drain(&self) -> bool {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        self.is_notified.swap(false, Ordering::AcqRel);
        self.is_stopping.load(Ordering::Acquire)
    }
}
