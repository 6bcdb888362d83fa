//! One operation in flight, and the slot of its request object that receives the result.
//!
//! ```text
//!   idle --issue--> in flight --answer or failure--> over --taken--> idle
//! ```
//! From its issue until it is over, all that an operation needs is in the connection's queue: the caller's buffers too,
//! which nobody else can reach meanwhile. A request object that is dropped takes nothing away from it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use crate::answer::Answer;
use crate::error::Failure;
use crate::fabric::LentBuffer;
use crate::message::Message;

/// One operation on its way.
#[derive(Debug)]
pub struct Operation {
    /// Its request; how that ends is up to the connection.
    pub message: Message,
    /// The caller's key, to be given back.
    pub key: Vec<u8>,
    /// The caller's value to be stored, or buffer for the one that is found.
    pub value: Vec<u8>,
    /// A copy of a value that stayed with the caller.
    pub copy: Vec<u8>,
    /// A value that is not in a `Vec`.
    pub held: Option<OwnedPayload>,
    /// A value in registered memory.
    pub lent: Option<LentBuffer>,
    /// What follows the request.
    pub payload: Payload,
    /// Receives the result.
    pub slot: Arc<OperationSlot>,
    /// The mark of its answer.
    pub opaque: u32,
    /// The time of its completion is to be recorded.
    pub is_timed: bool,
}

/// What an operation sends behind its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: it asks for a value.
    None,
    /// The caller's value.
    Value,
    /// The copy.
    Copy,
    /// The owned value.
    Owned,
    /// The lent value, if the stream accepts it so.
    Lent,
    /// Nothing any more: all was sent at once.
    Sent,
}

/// A value in whatever it came in, until its operation is over.
pub struct OwnedPayload(pub Box<dyn AsRef<[u8]> + Send>);

impl fmt::Debug for OwnedPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

impl OwnedPayload {
    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl Operation {
    /// Returns the parts to send, in order.
    pub fn parts(&self) -> [&[u8]; 3] {
        match self.payload {
            Payload::None | Payload::Sent => [self.message.as_bytes(), b"", b""],
            Payload::Value => [self.message.as_bytes(), &self.value, self.message.value_end()],
            Payload::Copy => [self.message.as_bytes(), &self.copy, self.message.value_end()],
            Payload::Owned => {
                let value = self.held.as_ref().map_or(&b""[..], OwnedPayload::bytes);
                [self.message.as_bytes(), value, self.message.value_end()]
            }
            Payload::Lent => {
                let value = self.lent.as_ref().map_or(&b""[..], LentBuffer::bytes);
                [self.message.as_bytes(), value, self.message.value_end()]
            }
        }
    }

    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

/// What a request object shares with its operation. Its lock is held for a moment only, and no other is taken
/// meanwhile.
#[derive(Debug, Default)]
pub struct OperationSlot(Mutex<State>);

/// The state of a slot.
#[derive(Debug, Default)]
pub struct State {
    /// The result, until it is taken.
    pub over: Option<CompletedOperation>,
    /// The memory of the last operation's request and copy, for the next.
    pub spare: (Message, Vec<u8>),
    /// Woken at completion.
    pub waker: Option<Waker>,
    /// The connection counts it among those for which it is driven.
    pub is_awaited: bool,
}

/// An operation that is over.
#[derive(Debug)]
pub struct CompletedOperation {
    /// The caller's key.
    pub key: Vec<u8>,
    /// The caller's value, or the one that was found.
    pub value: Vec<u8>,
    /// The value that was lent.
    pub lent: Option<LentBuffer>,
    /// The answer.
    pub result: Result<Answer, Failure>,
    /// When it completed, if that is recorded.
    pub at: Option<Instant>,
}

impl OperationSlot {
    /// Its state, alone.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds a request's state")
    }

    /// Its operation is over.
    pub fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }
}

impl Operation {
    /// Stores the result. Returns the waker to wake, and whether the connection was driven for it.
    pub fn end(mut self, result: Result<Answer, Failure>) -> (Option<Waker>, bool) {
        if self.payload == Payload::None && !matches!(result, Ok(Answer::Value(_))) {
            // The received part of an incomplete value.
            self.value.clear();
        }
        self.copy.clear();
        // The thread that learns of the end gets it back.
        drop(self.held.take());
        let at = self.is_timed.then(Instant::now);
        let mut state = self.slot.lock();
        state.spare = (self.message, self.copy);
        state.over =
            Some(CompletedOperation { key: self.key, value: self.value, lent: self.lent, result, at });
        (state.waker.take(), std::mem::take(&mut state.is_awaited))
    }
}
