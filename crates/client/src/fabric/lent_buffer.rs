//! A value in registered memory that is being sent.
//!
//! ```text
//!   RegisteredBuffer ──> LentBuffer ──show──> the link's list of what the server may read
//!          ^                 │                       │ the server releases it, or the link closes
//!          └─────────────────┘ the operation has completed
//! ```
//! The operation and the link share the memory, and no caller may write it before one of them has dropped its share. A link
//! drops its share when the server reports that it has finished reading, or when the link's endpoint is closed.

use std::ops::{Deref, Range};
use std::sync::Arc;

use fabcache_fabric::channel::LentMemory;
use fabcache_fabric::{Domain, ReadableMemory, RegisteredMemory};

/// The memory of a registered buffer.
#[derive(Debug)]
pub enum CallerMemory {
    /// Only this process accesses it.
    Exclusive(RegisteredMemory),
    /// A server may read it, or could when this was last checked.
    Readable(Arc<ReadableMemory>),
}

impl CallerMemory {
    /// Returns the memory for exclusive use.
    ///
    /// # Errors
    /// A server may still read it; the memory is returned unchanged.
    pub fn reclaim(self) -> Result<RegisteredMemory, CallerMemory> {
        match self {
            CallerMemory::Exclusive(memory) => Ok(memory),
            CallerMemory::Readable(shown) => {
                Arc::try_unwrap(shown).map(ReadableMemory::into_registered).map_err(CallerMemory::Readable)
            }
        }
    }
}

impl Deref for CallerMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            CallerMemory::Exclusive(memory) => memory,
            CallerMemory::Readable(shown) => shown,
        }
    }
}

/// A value that must not change until it is sent.
#[derive(Debug)]
pub struct LentBuffer {
    /// The registered memory that holds it.
    memory: Option<CallerMemory>,
    value: Range<usize>,
    /// The value, if it is not in registered memory.
    other: Vec<u8>,
    /// It could not be registered.
    is_refused: bool,
}

impl LentBuffer {
    /// Returns a buffer whose value is a range of registered memory, or else in `other`.
    pub fn new(within: Option<(CallerMemory, Range<usize>)>, other: Vec<u8>) -> LentBuffer {
        let (memory, value) = within.map_or((None, 0..0), |(memory, value)| (Some(memory), value));
        LentBuffer { memory, value, other, is_refused: false }
    }

    /// Returns the value.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Some(memory) => memory.get(self.value.clone()).unwrap_or_default(),
            None => &self.other,
        }
    }

    /// Makes the value readable for servers that this domain reaches; `None` if it must be copied.
    pub fn show(&mut self, domain: &Arc<Domain>) -> Option<(LentMemory, Arc<ReadableMemory>)> {
        let shown = match self.memory.take()? {
            CallerMemory::Readable(shown) => shown,
            CallerMemory::Exclusive(memory) if self.is_refused => {
                self.memory = Some(CallerMemory::Exclusive(memory));
                return None;
            }
            CallerMemory::Exclusive(memory) => match memory.show(domain) {
                Ok(shown) => Arc::new(shown),
                Err((memory, _)) => {
                    // Decided once: if memory becomes available later, a part would already have been copied.
                    (self.memory, self.is_refused) = (Some(CallerMemory::Exclusive(memory)), true);
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
        self.memory = Some(CallerMemory::Readable(Arc::clone(&shown)));
        Some((lent, shown))
    }

    /// Returns the registered memory and the value it was built from.
    pub fn into_parts(self) -> (Option<CallerMemory>, Vec<u8>) {
        (self.memory, self.other)
    }
}
