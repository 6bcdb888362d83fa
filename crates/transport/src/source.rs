//! The contract of what a worker drives beside sockets.
//!
//! A [`Source`] completes work for many links, as the completion queue of a network card does. A worker polls it, or
//! sleeps until its descriptor is readable. No call blocks.
//!
//! ```text
//!   progress ─> serve the links it reports ─> arm ─┬─ Spin ────────────> progress
//!                                                  └─ SleepFor, Sleep ─> wait ─> disarm ─> progress
//! ```
//! Invariants, checked by the conformance suite:
//! 1. `progress` does a bounded amount of work. It reports each link with a new event: received bytes, room to send, or
//!    a failure. It reports no link twice for one event.
//! 2. `arm` returns [`WaitMode::Spin`] while an event is unreported.
//! 3. After any other result, an event makes the descriptor readable, and it stays so until `progress` and `arm`. A
//!    source without a descriptor signals by those of its links.
//! 4. Events that `progress` reported leave no signal behind: `arm` clears it.
//! 5. After `progress` failed, it fails again, and the links are broken.
//! 6. After `close`, the source takes no further link, and `progress` ends the dropped ones within a bounded time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::contract::Kind;

/// How a worker waits for the next event of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// It makes progress again without sleeping.
    Spin,
    /// It sleeps until a descriptor is readable, at most this long: no descriptor reports the awaited progress.
    SleepFor(Duration),
    /// It sleeps until a descriptor is readable.
    Sleep,
}

/// What a worker drives for many links at once.
pub trait Source: Send {
    /// Makes progress with all operations, and appends the tag of each link that has a new event.
    ///
    /// # Errors
    /// The source has failed, and its links with it.
    fn progress(&mut self, ready: &mut Vec<u64>) -> io::Result<()>;

    /// Returns whether the last `progress` found what neither a tag nor a descriptor reports. A worker then spins for more. The default
    /// is for sources that report everything.
    fn made_progress(&self) -> bool {
        false
    }

    /// Prepares to sleep: arms the wakeup unless the result is [`WaitMode::Spin`].
    fn arm(&mut self) -> WaitMode;

    /// Ends the sleep: events need not make the descriptor readable any more. The default does nothing, for sources
    /// whose signals cost nothing.
    fn disarm(&mut self) {}

    /// The descriptor to wait for. `None` if the source has none: then its links' descriptors signal.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns whether `progress` has an event to handle, for a worker that spins. The default polls the descriptor, for
    /// sources that signal without being armed.
    fn has_events(&self) -> bool {
        let Some(fd) = self.wait_fd() else { return false };
        let mut events = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut events, Some(&now)), Ok(1..))
    }

    /// Returns the number of links, including dropped ones that still send their last bytes. A source without links
    /// has nothing to wait for, so a worker need not arm it.
    fn links(&self) -> usize;

    /// The transport of its links.
    fn kind(&self) -> Kind;

    /// Begins the end: the source takes no further link. The worker drops its links, and makes progress until
    /// [`Source::links`] is 0 or it will wait no longer.
    fn close(&mut self);
}
