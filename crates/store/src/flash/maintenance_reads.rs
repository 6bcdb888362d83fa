//! Reads that the store itself needs.
//!
//! A growing table moves the slots of items on flash without a read, but for the few whose keys may go to several groups
//! (`layout::flash_slot`). Their group waits until they are read, and with it the growth of the table. Compaction reads segments.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;

use fabcache_layout::KeyHash;
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::Mutex;

use super::compaction::SegmentRead;
use super::page::PAGE_BYTES;
use super::reading::FlashRead;
use super::visiting::{VisitResult, VisitedOnFlash};
use super::{Flash, PageBuffer};
use crate::handle::Handle;
use crate::index::SlotSnapshot;
use crate::store::Store;

/// Reads under way at once.
const READS_MAX: usize = 16;
/// With eviction, growth waits for a read no longer than this.
const GROWTH_WAITS_NS: u64 = 1_000_000_000;
/// Without eviction, a failed read is tried again after this long.
const RETRY_NS: u64 = 1_000_000_000;

/// What a slot leads to: an item's fraction and page, and which use of the page's segment.
type RecordName = (u32, u32, u64);

/// A key that growth needs.
#[derive(Debug)]
struct WantedKey {
    /// When growth first needed it.
    since_ns: u64,
    /// Its hash, once it was read.
    hash: Option<KeyHash>,
    /// When it is to be read, at once or again after a failed read; `None` while it is read.
    read_at_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Slots to be read.
    queue: VecDeque<WantedSlot>,
    under_way: usize,
    /// The keys of the group that is moved next.
    keys: HashMap<RecordName, WantedKey>,
}

/// Reads that the store needs, and what was read.
#[derive(Debug, Default)]
pub(super) struct MaintenanceReads(Mutex<State>);

impl MaintenanceReads {
    fn with<R>(&self, with: impl FnOnce(&mut State) -> R) -> R {
        with(&mut self.0.lock().expect("no thread panics while it holds the maintenance reads"))
    }
}

/// A slot whose key growth needs.
#[derive(Debug)]
struct WantedSlot {
    wanted: VisitedOnFlash,
    name: RecordName,
}

/// A read that the store itself needs.
#[derive(Debug)]
pub struct MaintenanceRead(Purpose);

#[derive(Debug)]
enum Purpose {
    /// The read of a key that growth needs.
    Key(Box<FlashRead>, WantedSlot),
    /// A read of the segment that is compacted.
    Compaction(SegmentRead),
}

impl MaintenanceRead {
    /// Returns the device, by its place in the options.
    pub fn device(&self) -> usize {
        match &self.0 {
            Purpose::Key(read, _) => read.device(),
            Purpose::Compaction(read) => read.device,
        }
    }

    /// Returns where to read, in bytes from the start of the device's segments.
    pub fn offset(&self) -> u64 {
        match &self.0 {
            Purpose::Key(read, _) => read.offset(),
            Purpose::Compaction(read) => read.offset,
        }
    }

    /// Takes the buffer, and returns which of its bytes to read: whole pages.
    ///
    /// # Panics
    /// It was taken before.
    pub fn take_buffer(&mut self) -> (PageBuffer, Range<usize>) {
        match &mut self.0 {
            Purpose::Key(read, _) => read.take_buffer(),
            Purpose::Compaction(read) => {
                let buffer = read.buffer.take().expect("the buffer is taken once");
                (buffer, 0..read.pages as usize * PAGE_BYTES)
            }
        }
    }
}

impl Flash {
    fn record_name(&self, at: SlotSnapshot) -> RecordName {
        let item = FlashItem::from_slot(at.slot).expect("the slot is one on flash");
        let id = self.segments.segment_of(item.page).expect("the page is one");
        (item.rest, item.page, self.segments.sequence(id))
    }
}

impl Store {
    /// Returns the hashes of one group's keys on flash; `None` while keys are still to be read.
    ///
    /// The caller holds the group's lock, and no other group is moved meanwhile.
    pub(crate) fn hashes_on_flash(&self, slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>> {
        let flash = self.flash.as_ref().expect("there are slots on flash");
        let now_ns = self.clock_ns();
        let names: Vec<RecordName> = slots.iter().map(|(seen, _)| flash.record_name(*seen)).collect();
        let mut has_queued = false;
        let hashes = flash.maintenance_reads.with(|state| {
            state.keys.retain(|name, _| names.contains(name));
            let mut hashes = Vec::new();
            for (name, (seen, hash)) in names.iter().zip(slots) {
                let key = state.keys.entry(*name).or_insert(WantedKey {
                    since_ns: now_ns,
                    hash: None,
                    read_at_ns: Some(now_ns),
                });
                if key.read_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
                    has_queued = true;
                    let wanted = VisitedOnFlash::new(*hash, *seen);
                    state.queue.push_back(WantedSlot { wanted, name: *name });
                }
                let is_lost = self.evicts() && now_ns.saturating_sub(key.since_ns) > GROWTH_WAITS_NS;
                if key.hash.is_some() || is_lost {
                    hashes.push(key.hash);
                }
            }
            (hashes.len() == slots.len()).then_some(hashes)
        });
        if has_queued && let Some(observer) = self.observer.get() {
            observer.flash_has_reads();
        }
        hashes
    }

    /// Unlinks an item on flash that no key has, if its slot is still there.
    fn drop_visited(&self, visited: &VisitedOnFlash) {
        let group = self.index.lock(visited.hash);
        if let Some(at) = group.find_slot_on_flash(visited.at.slot) {
            group.clear(at.at);
            self.count_evicted_on_flash(at.slot);
        }
    }
}

impl Handle {
    /// Begins the next read that the store itself needs.
    ///
    /// [`Observer::flash_has_reads`](crate::Observer) reports more.
    pub fn take_maintenance_read(&self) -> Option<MaintenanceRead> {
        let flash = self.store.flash.as_ref()?;
        let next = || {
            flash.maintenance_reads.with(|state| {
                let what = if state.under_way < READS_MAX { state.queue.pop_front() } else { None };
                state.under_way += usize::from(what.is_some());
                what
            })
        };
        while let Some(what) = next() {
            if let Some(read) = self.read_visited(&what.wanted) {
                return Some(MaintenanceRead(Purpose::Key(read, what)));
            }
            // The slot has changed.
            flash.maintenance_reads.with(|state| {
                state.under_way -= 1;
                state.keys.remove(&what.name);
            });
        }
        self.take_compaction_read(flash).map(|read| MaintenanceRead(Purpose::Compaction(read)))
    }

    /// Takes the result of a maintenance read: the bytes that were read into the buffer.
    ///
    /// Returns what is to be read next for it.
    pub fn finish_maintenance_read(
        &self,
        read: MaintenanceRead,
        buffer: PageBuffer,
        result: io::Result<usize>,
    ) -> Option<MaintenanceRead> {
        let flash = self.store.flash.as_ref().expect("it made the read");
        match read.0 {
            Purpose::Key(read, what) => self.finish_key_read(flash, read, what, buffer, result),
            Purpose::Compaction(read) => {
                self.finish_compaction_read(flash, &read, buffer, result);
                None
            }
        }
    }

    fn finish_key_read(
        &self,
        flash: &Flash,
        read: Box<FlashRead>,
        what: WantedSlot,
        buffer: PageBuffer,
        result: io::Result<usize>,
    ) -> Option<MaintenanceRead> {
        let store = &*self.store;
        let hash = match self.finish_visit(read, buffer, result) {
            VisitResult::More(read) => return Some(MaintenanceRead(Purpose::Key(read, what))),
            VisitResult::Item(item) => Some(item.hash),
            VisitResult::Changed | VisitResult::Miss(_) => None,
            VisitResult::Failed => {
                let retry_ns = store.clock_ns() + RETRY_NS;
                flash.maintenance_reads.with(|state| {
                    state.under_way -= 1;
                    if let Some(key) = state.keys.get_mut(&what.name) {
                        key.read_at_ns = Some(retry_ns);
                    }
                });
                return None;
            }
        };
        if hash.is_none() {
            store.drop_visited(&what.wanted);
        }
        flash.maintenance_reads.with(|state| {
            state.under_way -= 1;
            match (hash, state.keys.get_mut(&what.name)) {
                (Some(hash), Some(key)) => key.hash = Some(hash),
                (_, _) => _ = state.keys.remove(&what.name),
            }
        });
        None
    }
}
