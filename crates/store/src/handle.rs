//! A thread's access to the store.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::counters::StoreCounters;
use crate::flash::{Fetched, FlashReader};
use crate::store::Store;

/// One thread's access to the store: operations are its methods, in `read.rs`, `write/`, `upload.rs`.
#[derive(Debug)]
pub struct Handle {
    pub(crate) store: Arc<Store>,
    pub(crate) thread: usize,
    /// Items that this thread has yet to process as its part of reclaim. The cell keeps a handle to one thread at a
    /// time.
    pub(crate) owed_items: Cell<u32>,
    /// Old values that a write needs.
    pub(crate) scratch: Scratch,
    /// The item that was read from flash for the key that is changed next.
    pub(crate) fetched: RefCell<Option<Fetched>>,
    pub(crate) flash_reader: Arc<FlashReader>,
    pub(crate) when_full: Cell<WhenFull>,
}

impl Handle {
    /// Returns a handle with its own counters. There are at most as many as the store was created for.
    pub fn new(store: &Arc<Store>) -> Handle {
        Handle {
            thread: store.take_counters(),
            store: Arc::clone(store),
            owed_items: Cell::new(0),
            scratch: Scratch::default(),
            fetched: RefCell::default(),
            flash_reader: FlashReader::new(store),
            when_full: Cell::default(),
        }
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Sets whether writes fail with [`OutOfMemory::FlashBusy`](crate::OutOfMemory::FlashBusy) where writes to flash are about to
    /// free memory, or a search for it is long, rather than evict. They do not at first.
    pub fn wait_for_flash(&self, waits: bool) {
        self.when_full.set(if waits { WhenFull::AwaitFlash } else { WhenFull::Evict });
    }

    /// Calls `write` with writes that evict though the handle waits for flash.
    pub fn without_waiting<R>(&self, write: impl FnOnce(&Handle) -> R) -> R {
        self.with_when_full(WhenFull::Evict, write)
    }

    pub(crate) fn with_when_full<R>(&self, when_full: WhenFull, write: impl FnOnce(&Handle) -> R) -> R {
        let before = self.when_full.replace(when_full);
        let result = write(self);
        self.when_full.set(before);
        result
    }

    #[inline]
    pub(crate) fn counters(&self) -> &StoreCounters {
        self.store.counters(self.thread)
    }
}

/// The action of a write that finds memory full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// It evicts, if eviction is on.
    #[default]
    Evict,
    /// It fails while writes to flash make progress, else it evicts.
    AwaitFlash,
    /// It fails.
    Fail,
}

/// A buffer that is lent and returned. Its cell also keeps a handle to one thread at a time.
#[derive(Default)]
pub(crate) struct Scratch(Cell<Vec<u8>>);

impl Scratch {
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.take()
    }

    pub(crate) fn give_back(&self, buffer: Vec<u8>) {
        self.0.set(buffer);
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}
