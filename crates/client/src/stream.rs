//! The byte stream to and from one server, over any transport.
//!
//! Only the functions documented as blocking block, so blocking and non-blocking calls use the same streams.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::time::Instant;

use crate::fabric::LentBuffer;
use crate::message::Encoding;

/// The condition to wait for.
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

/// The result of lending a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// The value was sent, with the bytes before it.
    Sent,
    /// Nothing can be sent now.
    Later,
    /// This stream cannot lend: send the value normally.
    Never,
}

/// The byte stream to and from one server.
pub trait Stream: Send + Debug {
    /// Returns the encoding that the server accepts.
    fn encoding(&self) -> Encoding;

    /// Sends the start of the parts; returns the number of bytes, 0 if none can be sent now. Never blocks.
    ///
    /// # Errors
    /// The stream is broken.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends `before`, followed by a value that the server reads in place: all or nothing. Never blocks. The value
    /// shares its memory with the stream as long as the server may read it.
    ///
    /// # Errors
    /// The stream is broken.
    fn lend(&mut self, before: &[u8], value: &mut LentBuffer) -> io::Result<Lending> {
        let _ = (before, value);
        Ok(Lending::Never)
    }

    /// Appends received bytes to `into`, up to its spare capacity, which must not be 0. Returns the number of bytes, 0
    /// if nothing arrived, or `None` if the server sends no more. Never blocks.
    ///
    /// # Errors
    /// The stream is broken.
    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>>;

    /// Blocks until the condition holds, or the deadline passes. May return early.
    ///
    /// # Errors
    /// The system fails. A broken stream is reported by the next send or receive.
    fn wait(&mut self, until: Until, deadline: Instant) -> io::Result<()>;

    /// Returns whether the stream gathers: several short requests cost hardly more than one if sent together, so
    /// requests are gathered while answers are outstanding.
    fn gathers(&self) -> bool {
        false
    }

    /// Returns another handle to wait for the stream, while threads send and receive.
    ///
    /// # Errors
    /// The system fails: it may need a descriptor.
    fn waiter(&self) -> io::Result<Box<dyn Waiter>>;
}

/// Waits for a stream on behalf of its owner. One thread at a time waits.
pub trait Waiter: Send + Sync + Debug {
    /// As [`Stream::wait`].
    ///
    /// # Errors
    /// As [`Stream::wait`].
    fn wait(&self, until: Until, deadline: Instant) -> io::Result<()>;

    /// Ends the current wait, or the next one at once.
    fn wake(&self);
}
