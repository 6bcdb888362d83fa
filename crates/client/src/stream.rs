//! The bytes to and from one server, whatever carries them.
//!
//! Nothing but what blocks by name ever blocks, so that the same stream serves calls that wait and calls that do not.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::time::Instant;

use crate::fabric::LentBuffer;
use crate::message::Encoding;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Something has arrived, or the server sends no more.
    Arrived,
    /// Something can be sent.
    CanSend,
    /// One of the two.
    Either,
}

impl Until {
    /// Returns whether a thread that waits for this is also woken by `other`.
    pub fn covers(self, other: Until) -> bool {
        self == other || self == Until::Either
    }
}

/// What came of lending a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// It is sent, with what comes before it.
    Sent,
    /// Nothing can be sent now.
    Later,
    /// Not by this stream: it is to be sent as any other.
    Never,
}

/// The bytes to and from one server.
pub trait Stream: Send + Debug {
    /// The encoding that the server at its other end accepts.
    fn form(&self) -> Encoding;

    /// Sends a beginning of the parts: how many bytes, 0 if none can be sent now. Never blocks.
    ///
    /// # Errors
    /// The stream is broken.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends `before` and behind it a value that the server reads from where it lies: all or nothing. Never blocks. The value
    /// shares its memory with the stream then, as long as the server may read it.
    ///
    /// # Errors
    /// The stream is broken.
    fn lend(&mut self, before: &[u8], value: &mut LentBuffer) -> io::Result<Lending> {
        let _ = (before, value);
        Ok(Lending::Never)
    }

    /// Adds what has arrived to `into`, as far as its spare capacity goes, which is not none: how many bytes, 0 if
    /// nothing is there now; none if the server sends no more. Never blocks.
    ///
    /// # Errors
    /// The stream is broken.
    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>>;

    /// Blocks for what is waited for, until the deadline at most. May return earlier.
    ///
    /// # Errors
    /// The system's. That the stream is broken is told by what is tried next.
    fn wait(&mut self, until: Until, deadline: Instant) -> io::Result<()>;

    /// Several short requests cost hardly more than one, if they are sent at once: while answers are awaited, further ones
    /// are gathered.
    fn gathers(&self) -> bool {
        false
    }

    /// Another way to wait for the same stream, while threads send and receive.
    ///
    /// # Errors
    /// The system's: it may need a descriptor.
    fn waiter(&self) -> io::Result<Box<dyn Waiter>>;
}

/// Waits for a stream beside its owner. One thread at a time waits.
pub trait Waiter: Send + Sync + Debug {
    /// As [`Stream::wait`].
    ///
    /// # Errors
    /// As [`Stream::wait`].
    fn wait(&self, until: Until, deadline: Instant) -> io::Result<()>;

    /// Ends the wait that is under way, or else the next one at once.
    fn wake(&self);
}
