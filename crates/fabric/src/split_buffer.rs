//! One buffer for several operations at a time, each of which has a part of it that is its own.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::memory::Buffer;

/// A buffer of which parts are given away.
#[derive(Debug)]
pub struct SplitBuffer(Arc<SplitBufferInner>);

pub(crate) struct SplitBufferInner {
    whole: Buffer,
    /// The ranges that are taken.
    taken: Mutex<Vec<Range<usize>>>,
}

impl SplitBuffer {
    /// Of this buffer, whose bytes can be reached through its parts only from now on.
    pub fn new(whole: Buffer) -> SplitBuffer {
        SplitBuffer(Arc::new(SplitBufferInner { whole, taken: Mutex::default() }))
    }

    /// A part of it; none if it is not within it, or somebody has a byte of it.
    pub fn take(&self, range: Range<usize>) -> Option<Buffer> {
        if range.start >= range.end || range.end > self.0.whole.bytes() {
            return None;
        }
        let mut taken = self.0.taken();
        if taken.iter().any(|other| other.start < range.end && range.start < other.end) {
            return None;
        }
        taken.push(range.clone());
        drop(taken);
        Some(Buffer::part(&self.0.whole, range, Arc::clone(&self.0)))
    }

    /// Its bytes, whoever has parts of it.
    pub fn bytes(&self) -> usize {
        self.0.whole.bytes()
    }

    /// Returns the whole buffer when no part of it is taken.
    ///
    /// # Errors
    /// A part is still in use.
    pub fn join(self) -> Result<Buffer, SplitBuffer> {
        Arc::try_unwrap(self.0).map(|own| own.whole).map_err(SplitBuffer)
    }
}

impl SplitBufferInner {
    /// Nobody has this part any more.
    pub(crate) fn give_back(&self, range: Range<usize>) {
        self.taken().retain(|taken| *taken != range);
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.taken.lock().expect("no thread panics while it takes a part")
    }
}

impl fmt::Debug for SplitBufferInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes are taken", self.taken().len(), self.whole.bytes())
    }
}
