//! Idle readers of one server's memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crossbeam_utils::atomic::AtomicCell;

use super::items::Reader;
use crate::bounds::IDLE_READERS_MAX;

/// Idle readers: one that is taken and put back without a lock, which most programs never need more than, and others.
#[derive(Default)]
pub struct Readers {
    at_hand: AtomicCell<Option<Box<Reader>>>,
    /// Counts the regions that these were of: readers of former ones are not given out.
    region: AtomicU64,
    others: Mutex<Vec<Reader>>,
}

impl Readers {
    /// One of them, if there is any.
    #[inline]
    pub fn take(&self) -> Option<Box<Reader>> {
        loop {
            let reader = self.at_hand.take().or_else(|| self.others().pop().map(Box::new))?;
            // A reader in use meanwhile comes back behind the change.
            if reader.region == self.region() {
                return Some(reader);
            }
        }
    }

    /// Which region readers are of that are made from now on.
    pub fn region(&self) -> u64 {
        self.region.load(Ordering::Acquire)
    }

    /// Another region has taken the place of the last.
    pub fn change_region(&self) {
        self.region.fetch_add(1, Ordering::AcqRel);
        self.retain(|_| false);
    }

    /// Puts one back.
    #[inline]
    pub fn put(&self, reader: Box<Reader>) {
        if let Some(other) = self.at_hand.swap(Some(reader)) {
            self.put_aside(*other);
        }
    }

    #[cold]
    fn put_aside(&self, reader: Reader) {
        let mut others = self.others();
        if others.len() < IDLE_READERS_MAX {
            others.push(reader);
        }
    }

    /// Drops those of which this is not so.
    pub fn retain(&self, keep: impl Fn(&Reader) -> bool) {
        let mut others = self.others();
        others.extend(self.at_hand.take().map(|reader| *reader));
        others.retain(keep);
    }

    fn others(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.others.lock().expect("no thread panics while it takes a reader")
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("others", &self.others().len()).finish_non_exhaustive()
    }
}
