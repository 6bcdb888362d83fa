//! Reads that the store itself needs.
//!
//! A growing table moves the slots of items on flash without a read, but for the few whose keys may go to several groups
//! (`layout::flash_slot`). Their group waits until they are read, and with it the growth of the table.

use std::collections::{HashMap, VecDeque};
use std::io;

use fabcache_layout::KeyHash;
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::sync::Mutex;

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

/// What a slot leads to: an item's fraction and page, and which use of the page's segment.
type RecordName = (u32, u32, u64);

/// A key that growth needs.
#[derive(Debug)]
struct WantedKey {
    /// When growth first needed it.
    since_ns: u64,
    /// Its hash, once it was read.
    hash: Option<KeyHash>,
}

#[derive(Debug, Default)]
struct State {
    /// Slots to be read.
    queue: VecDeque<MaintenanceRead>,
    under_way: usize,
    /// Of the group that is moved next.
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

/// A read that the store itself needs: what it is for.
#[derive(Debug)]
pub struct MaintenanceRead {
    wanted: VisitedOnFlash,
    name: RecordName,
}

impl Flash {
    fn record_name(&self, at: SlotSnapshot) -> RecordName {
        let item = FlashItem::from_slot(at.slot).expect("the slot is one on flash");
        let id = self.segments.segment_of(item.page).expect("the page is one");
        (item.rest, item.page, self.segments.sequence(id))
    }
}

impl Store {
    /// Returns the hashes of keys on flash of one group, or has them read. The caller holds the group's lock, and no other group
    /// is moved meanwhile.
    pub(crate) fn hashes_on_flash(&self, slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>> {
        let flash = self.flash.as_ref().expect("there are slots on flash");
        let now_ns = self.clock_ns();
        let names: Vec<RecordName> = slots.iter().map(|(seen, _)| flash.record_name(*seen)).collect();
        let mut has_queued = false;
        let hashes = flash.maintenance_reads.with(|state| {
            state.keys.retain(|name, _| names.contains(name));
            let mut hashes = Vec::new();
            for (name, (seen, hash)) in names.iter().zip(slots) {
                let key = state.keys.entry(*name).or_insert_with(|| {
                    has_queued = true;
                    let wanted = VisitedOnFlash::new(*hash, *seen);
                    state.queue.push_back(MaintenanceRead { wanted, name: *name });
                    WantedKey { since_ns: now_ns, hash: None }
                });
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
    /// Begins the next read that the store itself needs. [`Observer::flash_has_reads`](crate::Observer) reports more.
    pub fn take_maintenance_read(&self) -> Option<(Box<FlashRead>, MaintenanceRead)> {
        let flash = self.store.flash.as_ref()?;
        loop {
            let what = flash.maintenance_reads.with(|state| {
                let what = if state.under_way < READS_MAX { state.queue.pop_front() } else { None };
                state.under_way += usize::from(what.is_some());
                what
            })?;
            if let Some(read) = self.read_visited(&what.wanted) {
                return Some((read, what));
            }
            // The slot has changed.
            flash.maintenance_reads.with(|state| {
                state.under_way -= 1;
                state.keys.remove(&what.name);
            });
        }
    }

    /// Takes the result of such a read. Returns what is to be read next for it.
    pub fn finish_maintenance_read(
        &self,
        read: Box<FlashRead>,
        what: MaintenanceRead,
        buffer: PageBuffer,
        result: io::Result<usize>,
    ) -> Option<(Box<FlashRead>, MaintenanceRead)> {
        let store = &*self.store;
        let flash = store.flash.as_ref().expect("it made the read");
        let hash = match self.finish_visit(read, buffer, result) {
            VisitResult::More(read) => return Some((read, what)),
            VisitResult::Item(item) => Some(item.hash),
            VisitResult::Changed | VisitResult::Miss(_) => None,
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
