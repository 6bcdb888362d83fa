//! Changes of keys whose items are on flash.

use fabcache_layout::{KeyHash, Slot};

use super::{Change, ExistingItem, LinkedItem, NewValue, Value, Write, WriteObstacle};
use crate::flash::{FetchedItem, OnFlash};
use crate::handle::Handle;
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::info::{ItemInfo, Miss};
use crate::store::Store;

impl LinkedItem {
    /// Returns whether the slot is one on flash.
    #[inline]
    pub(super) fn is_on_flash(&self) -> bool {
        self.at.is_some_and(|at| at.slot.is_on_flash())
    }

    /// Returns whether the slot is one on flash that may be the key's.
    #[inline]
    pub(super) fn is_unread(&self) -> bool {
        self.item.is_none() && self.is_on_flash()
    }
}

impl ExistingItem<'_> {
    /// Returns the change that stores an item of flash in memory as it is.
    pub(crate) fn promotion(&self) -> Change<'static> {
        match self.info {
            Ok(info) if self.linked.is_on_flash() => Change::Write(Write::unchanged(&info)),
            _ => Change::Keep,
        }
    }

    /// The value on flash, if it is one of at most `max` bytes.
    pub(super) fn value_on_flash(&mut self, max: u32) -> Option<&[u8]> {
        if self.info.is_err() || self.linked.item?.value_len > max {
            return None;
        }
        self.scratch.clear();
        let scratch = &mut self.scratch;
        self.handle
            .with_fetched(|fetched| fetched.value_parts().for_each(|part| scratch.extend_from_slice(part)))?;
        Some(&self.scratch)
    }
}

impl Handle {
    /// Finds a key that is not in memory.
    #[cold]
    pub(super) fn linked_on_flash(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        (epoch, now): (u64, u32),
    ) -> LinkedItem {
        let absent =
            LinkedItem { at: None, item: None, epoch, now, miss: Some(Miss::Absent), is_copy: false };
        match self.on_flash(group, hash, key, epoch) {
            OnFlash::Nothing => absent,
            OnFlash::Unread(at) => LinkedItem { at: Some(at), ..absent },
            OnFlash::Read(at, item, miss) => LinkedItem { at: Some(at), item: Some(item), miss, ..absent },
        }
    }

    /// Returns the change of an item on flash as one that needs nothing of it: its value, in `value`, becomes the new one's, and
    /// marks are set in a copy in memory.
    pub(super) fn change_on_flash<'v>(
        &self,
        existing: &mut ExistingItem<'_>,
        change: Change<'v>,
        value: &'v mut Vec<u8>,
    ) -> Result<Change<'v>, WriteObstacle> {
        let Ok(info) = existing.info else { return Ok(change) };
        let write = match change {
            Change::Mark { token_sent, fetched } => Write {
                token_sent: info.token_sent || token_sent,
                fetched: info.fetched || fetched,
                ..Write::unchanged(&info)
            },
            Change::Write(write) => write,
            Change::Keep | Change::Remove => return Ok(change),
        };
        existing.linked.is_copy = is_copy(&write, &info);
        let mut is_lost = false;
        let mut add = |part: Part<'_>| match part {
            Part::Existing => {
                let mut copy = |fetched: &FetchedItem| {
                    value.reserve_exact(fetched.header().value_len as usize);
                    fetched.value_parts().for_each(|part| value.extend_from_slice(part));
                };
                self.with_fetched(|fetched| copy(fetched));
            }
            Part::New(Value::Bytes(bytes)) => value.extend_from_slice(bytes),
            Part::New(Value::CompletedUpload(upload)) => is_lost |= !upload.append_to(&self.store, value),
        };
        match write.value {
            NewValue::Same => add(Part::Existing),
            NewValue::Appended(new) => {
                add(Part::Existing);
                add(Part::New(new));
            }
            NewValue::Prepended(new) => {
                add(Part::New(new));
                add(Part::Existing);
            }
            NewValue::Is(_) | NewValue::Number { .. } => return Ok(Change::Write(write)),
        }
        if is_lost {
            return Err(WriteObstacle::Lost);
        }
        Ok(Change::Write(Write { value: NewValue::Is(Value::Bytes(value)), ..write }))
    }

    /// Points a slot on flash to a new item of the key in memory.
    pub(super) fn replace_on_flash(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        existing: &LinkedItem,
        at: SlotSnapshot,
        slot: Slot,
    ) {
        let store = &*self.store;
        let flash = store.flash.as_ref().expect("it has the slot's item");
        if existing.is_copy {
            flash.counters.items_promoted.inc();
            if let Some(location) = self.with_fetched(|fetched| fetched.location()).flatten() {
                store.note_location(flash, slot.offset(), location);
            }
        }
        group.replace(at.at, slot);
        store.count_dead_on_flash(at.slot);
        // Of several slots that may be the key's, all but one are others'.
        if existing.item.is_none() {
            store.unlink_unread(group, hash);
        }
    }
}

impl Store {
    /// Unlinks all items on flash that may be the key's, unread.
    pub(super) fn unlink_unread(&self, group: &LockedGroup<'_>, hash: KeyHash) {
        while let Some(at) = group.find_on_flash(hash, |_| true) {
            group.clear(at.at);
            self.count_evicted_on_flash(at.slot);
        }
    }
}

/// A part of a joined value.
enum Part<'a> {
    Existing,
    New(Value<'a>),
}

/// Returns whether a write leaves an item as it is.
fn is_copy(write: &Write<'_>, info: &ItemInfo) -> bool {
    matches!(write.value, NewValue::Same)
        && write.cas == Some(info.cas)
        && (write.flags, write.expiry, write.binary_key) == (info.flags, info.expiry, info.binary_key)
        && (write.stale, write.token_sent) == (info.stale, info.token_sent)
}
