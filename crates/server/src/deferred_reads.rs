//! Reads whose values are not in memory: another thread completes them by tickets.

use std::sync::{Mutex, OnceLock};

use crate::worker::inbox::Ticket;

/// A read that waits for its value.
#[derive(Debug)]
pub struct DeferredRead {
    /// Completed with the value.
    pub ticket: Ticket,
    /// Its key.
    pub key: Box<[u8]>,
}

/// Returns the expected length of the value of a key whose reads are deferred.
pub type Selection = fn(&[u8]) -> Option<u64>;

/// Queue of reads that another thread completes. Only tests select any.
///
/// A text `get` or an `mg` of a short value in memory, or of none, is answered without asking the selection.
#[derive(Debug, Default)]
pub struct DeferredReads {
    selection: OnceLock<Selection>,
    /// No more than there are tickets.
    wanted: Mutex<Vec<DeferredRead>>,
}

impl DeferredReads {
    /// Defers the selected reads from now on, if no selection was made before.
    pub fn select(&self, selection: Selection) {
        self.selection.get_or_init(|| selection);
    }

    /// Returns the expected length of the key's value if the read is to be deferred.
    #[inline]
    pub fn expected_len(&self, key: &[u8]) -> Option<u64> {
        self.selection.get()?(key)
    }

    /// Adds a read.
    pub fn push(&self, read: DeferredRead) {
        self.wanted.lock().expect("no thread panics while it holds deferred reads").push(read);
    }

    /// Takes the reads to complete, in the order of their requests.
    pub fn take(&self) -> Vec<DeferredRead> {
        std::mem::take(&mut self.wanted.lock().expect("no thread panics while it holds deferred reads"))
    }
}
