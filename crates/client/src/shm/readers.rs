//! Idle readers of one server's memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crossbeam_utils::atomic::AtomicCell;

use super::items::Reader;
use crate::bounds::IDLE_READERS_MAX;

/// Idle readers: one slot without a lock, which suffices for most programs, and a list.
#[derive(Default)]
pub struct Readers {
    at_hand: AtomicCell<Option<Box<Reader>>>,
    /// Counts the regions: readers of former ones are not handed out.
    region: AtomicU64,
    others: Mutex<Vec<Reader>>,
}

impl Readers {
    /// Takes an idle reader, if there is one.
    #[inline]
    pub fn take(&self) -> Option<Box<Reader>> {
        loop {
            let reader = self.at_hand.take().or_else(|| self.others().pop().map(Box::new))?;
            // A reader that was in use during the change is returned afterwards.
            if reader.region == self.region() {
                return Some(reader);
            }
        }
    }

    /// Returns the number of the current region.
    pub fn region(&self) -> u64 {
        self.region.load(Ordering::Acquire)
    }

    /// Switches to another region.
    pub fn change_region(&self) {
        self.region.fetch_add(1, Ordering::AcqRel);
        self.retain(|_| false);
    }

    /// Returns a reader.
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

    /// Drops the readers that do not satisfy `keep`.
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
