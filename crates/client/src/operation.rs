//! One operation in flight, and the slot of its request object that receives the result.
//!
//! ```text
//!   idle --issue--> in flight --answer or failure--> over --taken--> idle
//! ```
//! From issue to completion, the connection's queue owns everything that an operation needs, including the caller's
//! buffers. Dropping a request object does not affect it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use crate::answer::Answer;
use crate::error::Failure;
use crate::fabric::LentBuffer;
use crate::message::Message;

/// An operation in flight.
#[derive(Debug)]
pub struct Operation {
    /// The request; the connection ends it.
    pub message: Message,
    /// The caller's key, which is returned.
    pub key: Vec<u8>,
    /// The caller's value to store, or the buffer for the value found.
    pub value: Vec<u8>,
    /// A copy of a value that the caller keeps.
    pub copy: Vec<u8>,
    /// A value that is not in a `Vec`.
    pub held: Option<OwnedPayload>,
    /// A value in registered memory.
    pub lent: Option<LentBuffer>,
    /// The payload that follows the request.
    pub payload: Payload,
    /// Receives the result.
    pub slot: Arc<OperationSlot>,
    /// The mark of its answer.
    pub opaque: u32,
    /// Whether its completion time is recorded.
    pub is_timed: bool,
}

/// The payload that an operation sends after its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a read.
    None,
    /// The caller's value.
    Value,
    /// The copy.
    Copy,
    /// The owned value.
    Owned,
    /// The lent value, if the stream accepts it so.
    Lent,
    /// Nothing more: everything was sent at once.
    Sent,
}

/// A value of any owner, kept until its operation completes.
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

    /// Returns the total bytes of all parts.
    pub fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

/// The state that a request object shares with its operation. Its lock is held briefly, and no other lock is taken
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
    /// Whether the connection is driven for this operation.
    pub is_awaited: bool,
}

/// A completed operation.
#[derive(Debug)]
pub struct CompletedOperation {
    /// The caller's key.
    pub key: Vec<u8>,
    /// The caller's value, or the value found.
    pub value: Vec<u8>,
    /// The value that was lent.
    pub lent: Option<LentBuffer>,
    /// The answer.
    pub result: Result<Answer, Failure>,
    /// When it completed, if that is recorded.
    pub at: Option<Instant>,
}

impl OperationSlot {
    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds a request's state")
    }

    /// Returns whether the operation has completed.
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
        // The thread that takes the result gets the memory back.
        drop(self.held.take());
        let at = self.is_timed.then(Instant::now);
        let mut state = self.slot.lock();
        state.spare = (self.message, self.copy);
        state.over =
            Some(CompletedOperation { key: self.key, value: self.value, lent: self.lent, result, at });
        (state.waker.take(), std::mem::take(&mut state.is_awaited))
    }
}
