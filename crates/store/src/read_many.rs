//! Reading in batches: the memory misses of many keys overlap.
//!
//! A batch goes through the index in passes: hashes and heads, buckets, items; each loads what the one before it
//! prefetched. Then [`Handle::locate`] and [`Handle::append_value`] read one key after the other. Both are optimistic:
//! what the passes saw may be old, so the slot and the partition's head are read again, as [`crate::read`] describes.
//! A single read is a batch of one.

use fabcache_layout::{KeyHash, Slot};

use crate::bounds::{COPIED_VALUE_BYTES_MAX, PREFETCHED_KEYS_MAX};
use crate::handle::Handle;
use crate::index::{HomeBucket, SlotSnapshot};
use crate::info::{Detail, ItemInfo, Miss};
use crate::read::{ItemSnapshot, ReadFailure};

/// A key's hash, and what the passes of its batch found in the index: a hint.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    hash: KeyHash,
    home: HomeBucket,
    /// The first slot with the key's tag in the home bucket; an empty slot for none.
    slot: SlotSnapshot,
}

impl Probe {
    /// No key's.
    pub const NONE: Probe =
        Probe { hash: KeyHash(0), home: HomeBucket::NONE, slot: SlotSnapshot { at: 0, slot: Slot::EMPTY } };

    #[inline]
    pub(crate) fn hash(&self) -> KeyHash {
        self.hash
    }

    #[inline]
    pub(crate) fn home(&self) -> HomeBucket {
        self.home
    }

    /// Returns the slot with the key's tag that was seen, if there was one.
    #[inline]
    pub(crate) fn item_slot(&self) -> Option<Slot> {
        Some(self.slot.slot).filter(|slot| slot.is_item())
    }

    /// Where a slot with the key's tag was.
    #[inline]
    pub(crate) fn slot_at(&self) -> u64 {
        self.slot.at
    }
}

/// The result of looking up a key.
#[derive(Debug)]
pub enum Located {
    /// A valid item with a short value.
    Item(LocatedItem),
    /// No valid item.
    Miss(Miss),
    /// It may be on flash: [`Handle::read_flash`].
    OnFlash,
    /// Something changed meanwhile, or the value is long or in chunks: [`Handle::get`] answers.
    Unsettled,
}

impl From<ReadFailure> for Located {
    fn from(why: ReadFailure) -> Located {
        match why {
            ReadFailure::Miss(miss) => Located::Miss(miss),
            ReadFailure::OnFlash => Located::OnFlash,
            ReadFailure::ConcurrentChange => Located::Unsettled,
        }
    }
}

/// An item whose value can be copied.
#[derive(Clone, Copy, Debug)]
pub struct LocatedItem {
    seen: ItemSnapshot,
    hash: KeyHash,
    cas: u64,
    now: u32,
}

impl LocatedItem {
    /// Returns the client flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.seen.item.flags
    }

    /// Returns the CAS value.
    #[inline]
    pub fn cas(&self) -> u64 {
        self.cas
    }

    /// Returns the bytes of the value.
    #[inline]
    pub fn value_len(&self) -> u32 {
        self.seen.item.value_len
    }
}

impl Handle {
    /// Prefetches the index and the items of the next keys, as many as `probes` has room for.
    ///
    /// Returns their number.
    #[inline]
    pub fn probe_many<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, probes: &mut [Probe]) -> usize {
        let index = &self.store.index;
        let mut taken = 0;
        for (probe, key) in probes.iter_mut().zip(keys) {
            probe.hash = self.store.recovered_hash(key);
            index.prefetch_head(probe.hash);
            taken += 1;
        }
        for probe in &mut probes[..taken] {
            probe.home = index.prefetch(probe.hash);
        }
        for probe in &mut probes[..taken] {
            probe.slot = index.prefetch_items(probe.hash, probe.home);
        }
        taken
    }

    /// Prefetches as [`Handle::probe_many`] does, for keys that are read later. Returns their number.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> usize {
        self.probe_many(keys, &mut [Probe::NONE; PREFETCHED_KEYS_MAX])
    }

    /// Returns the probe of one key.
    #[inline]
    pub fn probe(&self, key: &[u8]) -> Probe {
        let hash = self.store.recovered_hash(key);
        let home = self.store.index.prefetch(hash);
        Probe { hash, home, slot: self.store.index.prefetch_items(hash, home) }
    }

    /// Returns the probe of a key that is written: its hash alone.
    #[inline]
    pub fn probe_for_write(&self, key: &[u8]) -> Probe {
        Probe { hash: self.store.recovered_hash(key), ..Probe::NONE }
    }

    /// Looks up a key for a plain read, which counts as an access.
    // Else its result is copied.
    #[inline(always)]
    pub fn locate(&self, key: &[u8], probe: &Probe) -> Located {
        let (store, hash) = (&*self.store, probe.hash);
        let probed = match probe.slot.slot {
            Slot::EMPTY => None,
            _ => store.see(probe.slot, hash, probe.home.version, key).ok().flatten(),
        };
        let seen = match probed {
            Some(seen) => seen,
            None => match self.find(key, hash, true) {
                Ok(seen) => seen,
                Err(why) => return why.into(),
            },
        };
        let now = store.now();
        if let Err(why) = self.check_valid(hash, &seen, now) {
            return why.into();
        }
        if seen.item.is_chained() || seen.item.value_len > COPIED_VALUE_BYTES_MAX {
            return Located::Unsettled;
        }
        Located::Item(LocatedItem { hash, cas: store.cas_of(&seen.item), now, seen })
    }

    /// Returns the item's metadata, without its last access.
    #[inline]
    pub fn info(&self, found: &LocatedItem) -> ItemInfo {
        self.store.info(found.seen.slot(), &found.seen.item, found.now, Detail::Basic)
    }

    /// Appends the item's value to `out` and counts the read.
    ///
    /// Returns false if the item's memory was used again meanwhile: then the appended bytes are meaningless, and
    /// [`Handle::get`] answers.
    // Its few steps are those of each read.
    #[inline(always)]
    pub fn append_value(&self, found: &LocatedItem, out: &mut Vec<u8>) -> bool {
        let seen = &found.seen;
        let from = seen.offset() + seen.item.payload_at();
        self.store.memory.append_to(from, seen.item.value_len as usize, out);
        if self.unchanged(seen).is_err() {
            self.counters().read_retries.inc();
            return false;
        }
        self.note_read(found.hash, seen, found.now);
        true
    }
}
