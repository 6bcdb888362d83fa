//! A value in registered memory that is being sent.
//!
//! ```text
//!   RegisteredBuffer ──> Loan ──show──> the link's list of what the server may read
//!          ^              │                    │ the server lets go, or the link has ended
//!          └──────────────┘ the operation is over
//! ```
//! The memory is shown to the server, and shared by the loan and the link; nobody writes it before only one of them is left. A
//! link lets go of it when the server says that it does not read it any more, or when its port is closed and the server cannot.

use std::ops::{Deref, Range};
use std::sync::Arc;

use fabcache_fabric::channel::LentMemory;
use fabcache_fabric::{Domain, ReadableMemory, RegisteredMemory};

/// Memory of a caller's.
#[derive(Debug)]
pub enum CallerMemory {
    /// Nobody else's.
    ForkGuard(RegisteredMemory),
    /// A server may read it, or might when somebody last looked.
    ReadableMemory(Arc<ReadableMemory>),
}

impl CallerMemory {
    /// Nobody else's.
    ///
    /// # Errors
    /// A server may still read it.
    pub fn reclaim(self) -> Result<RegisteredMemory, CallerMemory> {
        match self {
            CallerMemory::ForkGuard(memory) => Ok(memory),
            CallerMemory::ReadableMemory(shown) => Arc::try_unwrap(shown)
                .map(ReadableMemory::into_registered)
                .map_err(CallerMemory::ReadableMemory),
        }
    }
}

impl Deref for CallerMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            CallerMemory::ForkGuard(memory) => memory,
            CallerMemory::ReadableMemory(shown) => shown,
        }
    }
}

/// A value that is being sent, as it is until that is over.
#[derive(Debug)]
pub struct LentBuffer {
    /// Where it lies.
    memory: Option<CallerMemory>,
    value: Range<usize>,
    /// Where it lies if it is not in registered memory.
    other: Vec<u8>,
    /// It could not be registered.
    is_refused: bool,
}

impl LentBuffer {
    /// A part of registered memory; none: what is in `other`.
    pub fn new(within: Option<(CallerMemory, Range<usize>)>, other: Vec<u8>) -> LentBuffer {
        let (memory, value) = within.map_or((None, 0..0), |(memory, value)| (Some(memory), value));
        LentBuffer { memory, value, other, is_refused: false }
    }

    /// What is sent.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Some(memory) => memory.get(self.value.clone()).unwrap_or_default(),
            None => &self.other,
        }
    }

    /// For servers to read that are reached by this domain; none if it is to be copied.
    pub fn show(&mut self, domain: &Arc<Domain>) -> Option<(LentMemory, Arc<ReadableMemory>)> {
        let shown = match self.memory.take()? {
            CallerMemory::ReadableMemory(shown) => shown,
            CallerMemory::ForkGuard(memory) if self.is_refused => {
                self.memory = Some(CallerMemory::ForkGuard(memory));
                return None;
            }
            CallerMemory::ForkGuard(memory) => match memory.show(domain) {
                Ok(shown) => Arc::new(shown),
                Err((memory, _)) => {
                    // It is asked for once: if there were room only later, a part would have been copied.
                    (self.memory, self.is_refused) = (Some(CallerMemory::ForkGuard(memory)), true);
                    return None;
                }
            },
        };
        let (remote, at) = (shown.remote(), self.value.start as u64);
        let lent = LentMemory {
            address: remote.address.wrapping_add(at),
            key: remote.key,
            bytes: self.value.len() as u64,
        };
        self.memory = Some(CallerMemory::ReadableMemory(Arc::clone(&shown)));
        Some((lent, shown))
    }

    /// Returns the parts that it was made of.
    pub fn into_parts(self) -> (Option<CallerMemory>, Vec<u8>) {
        (self.memory, self.other)
    }
}
