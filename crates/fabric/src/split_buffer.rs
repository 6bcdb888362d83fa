//! One buffer for several operations at a time, each on a disjoint part of it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::memory::{Buffer, PartOwner};

/// A buffer whose parts are used by different operations.
#[derive(Debug)]
pub struct SplitBuffer(Arc<SplitBufferInner>);

struct SplitBufferInner {
    /// Never dereferenced: its parts may be borrowed, or in use by the provider.
    whole: Buffer,
    /// The ranges that are taken.
    taken: Mutex<Vec<Range<usize>>>,
}

impl SplitBuffer {
    /// Takes a buffer, whose bytes are from now on reached only through its parts.
    pub fn new(whole: Buffer) -> SplitBuffer {
        SplitBuffer(Arc::new(SplitBufferInner { whole, taken: Mutex::default() }))
    }

    /// Takes a part; `None` if it is out of bounds or overlaps a part in use.
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
        let owner: Arc<dyn PartOwner> = self.0.clone();
        // SAFETY: the owner holds the whole buffer, whose bytes only its parts access. `taken` has held this range since
        // it was found to overlap none of the others, until the part gives it back.
        Some(unsafe { Buffer::part(&self.0.whole, range, owner) })
    }

    /// Returns the length of the whole buffer.
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

impl PartOwner for SplitBufferInner {
    fn give_back(&self, base: NonNull<u8>, bytes: usize) {
        let start = base.addr().get() - self.whole.base().addr().get();
        self.taken().retain(|taken| *taken != (start..start + bytes));
    }
}

impl SplitBufferInner {
    fn taken(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.taken.lock().expect("no thread panics while it takes a part")
    }
}

impl fmt::Debug for SplitBufferInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes are taken", self.taken().len(), self.whole.bytes())
    }
}
