//! A start over the region that another server left in its file.
//!
//! After a clean stop nothing is written to the region before the saved state has been checked against it. The first
//! write begins the next incarnation and invalidates the saved state. After a kill the index is checked instead, while the
//! store is used (`recovery.rs`), if the boot is the same: another boot may have lost any part of what was written last.

use std::ops::Range;

use fabcache_layout::format::LEASE_MAX;
use fabcache_layout::header::{self, Birth};
use fabcache_layout::segment::{self, Kind, Use};
use fabcache_layout::succession::StateRecord;
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use fabcache_layout::{Geometry, Memory, succession};

use super::recovery::{Damaged, ItemChecks, Recovery};
use super::saved_state::{SavedState, StateError};
use super::tables_sum::tables_sum;
use crate::backing::{FoundFile, Meta};
use crate::bounds::SEGMENTS_FOR_ITEMS_MIN;
use crate::clock::{Clock, boot_id, elapsed_since};
use crate::error::{CreateError, Unusable};
use crate::expiry::Expirer;
use crate::flash::{Flash, FlashLoss, FlashOpening, restore_flash};
use crate::index::Index;
use crate::reclaim::Reclaim;
use crate::segments::{Queue, Segments};
use crate::store::{Parts, Store, StoreOptions};

/// Why no saved state is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unclean {
    /// The last server did not stop cleanly.
    #[error("the server that used it did not stop cleanly")]
    NotStopped,
    /// The state that it saved cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why the items of a region are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// It is unknown whether the boot is the same.
    #[error(
        "{0}, and it is unknown whether the system was started again since then: each server has to be able to read \
         /proc/sys/kernel/random/boot_id"
    )]
    UnknownBoot(Unclean),
    /// Without a saved state only memory of the same boot is trusted.
    #[error("{0}, and the system was started again since then")]
    OtherBoot(Unclean),
    /// The header's checksum is wrong.
    #[error("the header of its region is damaged")]
    Header,
    /// A part of the region that recovery needs is damaged.
    #[error("{0}, and {1}")]
    Damaged(Unclean, Damaged),
}

/// What a store knew before its server ended.
enum Knowledge {
    /// All of it, as saved by a clean stop.
    Saved(Box<SavedState>),
    /// What the index shows.
    Recovered { why: Unclean },
}

/// A segment that the memory limit has to admit first.
const RETIRED: Use = Use { kind: Kind::Retired, is_main: false, is_for_moves: false, used: 0 };

/// The region that a file holds, mapped, and the parts of a store of its items.
pub(crate) struct Takeover {
    knowledge: Knowledge,
    parts: Parts,
    segments_limit: u32,
    boot_id: Option<[u8; 16]>,
    /// The wall clock went back since the last server stopped, on another boot of the system.
    pub(crate) clock_went_back: bool,
    flash_opening: FlashOpening,
}

/// What became of the items.
pub(crate) enum Items {
    /// All are there.
    Kept,
    /// Each is checked before it is used.
    Recovered { why: Unclean },
}

/// Prepares to take over the region that the file holds.
///
/// # Errors
/// The options ask for more memory than the region has, or for less than its index takes; or the system fails. Inside,
/// why its items cannot be kept; the file is then returned.
pub(crate) fn prepare(
    options: &mut StoreOptions,
    found: FoundFile,
    birth: &Birth,
    meta: &Meta,
) -> Result<Result<Takeover, (FoundFile, NotKept)>, CreateError> {
    let found_geometry = birth.geometry;
    let (geometry, segments_limit) = geometry_for(options, &found, birth)?;
    let grows = geometry.region_bytes > found_geometry.region_bytes;
    // A refused start changes nothing, so the file grows behind the last refusal.
    let mapping = found.map(&geometry, grows)?;
    // SAFETY: the mapping has at least that many bytes, is aligned to a page, and no references into it exist. It lives as
    // long as the memory: as a part of the backing, which is the store's last field, or until this function returns
    // without a store.
    let memory = unsafe { Memory::new(mapping.base(), geometry.region_bytes) };
    let (boot_id, last_boot_id) = (boot_id(), succession::boot_id(&memory));
    let is_boot_known = boot_id.is_some() && last_boot_id != [0; 16];
    let is_same_boot = boot_id == Some(last_boot_id);
    let (record, published) = (succession::time(&memory), header::clock(&memory));
    let time = options.take_time();
    let elapsed = elapsed_since(record, published, is_same_boot, &*time, birth.clock_origin);
    let clock = Clock::resume(time, birth.clock_origin, elapsed.ns);
    // In the room of the table, which is no part of the region yet.
    for id in found_geometry.segments..geometry.segments {
        segment::set_use(&memory, &geometry, id, RETIRED);
    }
    let birth = &Birth { geometry, ..*birth };
    let new_segments = found_geometry.segments..geometry.segments;
    let make_flash = |flash| Flash::new(flash, &geometry, options.evict);
    let mut flash = options.flash.as_ref().map(make_flash).transpose()?;
    let restored = restore(options, &memory, birth, meta, new_segments);
    if restored.is_ok() || is_same_boot {
        found.end_saved_state(meta)?;
    }
    let known = match restored {
        Ok((state, segments, index)) => {
            let verification = Recovery::after_clean_stop(header::flush_epoch(&memory), clock.now());
            Ok((Knowledge::Saved(Box::new(state)), segments, index, verification))
        }
        // Recovery relies on the header.
        Err(Unclean::State(StateError::Header)) => Err(NotKept::Header),
        Err(why) if !is_boot_known => Err(NotKept::UnknownBoot(why)),
        Err(why) if !is_same_boot => Err(NotKept::OtherBoot(why)),
        Err(why) => recover(options, &memory, birth, clock.now())
            .map(|(segments, index, recovery)| (Knowledge::Recovered { why }, segments, index, recovery))
            .map_err(|damaged| NotKept::Damaged(why, damaged)),
    };
    let (knowledge, segments, index, recovery) = match known {
        Ok(known) => known,
        Err(why) => return Ok(Err((found, why))),
    };
    let flash_opening = match &knowledge {
        Knowledge::Saved(state) => {
            restore_flash(flash.as_mut(), options.flash.as_ref(), state.flash.as_ref())
        }
        Knowledge::Recovered { why } if index.has_flash() => {
            FlashOpening::Lost { items: None, why: FlashLoss::at_recovery(*why, flash.is_some()) }
        }
        Knowledge::Recovered { .. } => FlashOpening::New,
    };
    let parts = Parts {
        last_cas: succession::cas_limit(&memory),
        memory,
        geometry,
        hash_seed: birth.hash_seed,
        secret: meta.secret.clone(),
        index,
        segments,
        clock,
        recovery: Some(recovery),
        flash,
        backing: Box::new(found.with(mapping)),
    };
    let clock_went_back = elapsed.went_back;
    Ok(Ok(Takeover { knowledge, parts, segments_limit, boot_id, clock_went_back, flash_opening }))
}

/// Returns the geometry of the region with the options' memory, and how many segments these allow.
///
/// # Errors
/// They ask for more memory than the region has room for, or for less than its index takes.
fn geometry_for(
    options: &StoreOptions,
    found: &FoundFile,
    birth: &Birth,
) -> Result<(Geometry, u32), CreateError> {
    let unusable = |why| CreateError::Unusable { file: found.path().into(), why };
    let wanted = options.memory_bytes_max.max(options.memory_bytes);
    let grows = wanted > birth.geometry.region_bytes;
    let grown = if grows { birth.geometry.grown(wanted) } else { Some(birth.geometry) };
    let no_room = || unusable(Unusable::NoRoom { bytes: birth.geometry.room_bytes(), wanted });
    let geometry = grown.ok_or_else(no_room)?;
    let segments_limit = geometry.segments_within(options.memory_bytes) as u32;
    let least = index_segments(found, birth)? + SEGMENTS_FOR_ITEMS_MIN;
    if segments_limit < least {
        return Err(unusable(Unusable::IndexTooLarge { needed: geometry.bytes_to(least.into()) }));
    }
    Ok((geometry, segments_limit))
}

/// Returns how many segments the table gives to the index.
fn index_segments(found: &FoundFile, birth: &Birth) -> Result<u32, CreateError> {
    let geometry = &birth.geometry;
    let mapping = found.map(geometry, false)?;
    // SAFETY: as in `prepare`; it is dropped before the mapping.
    let memory = unsafe { Memory::new(mapping.base(), geometry.region_bytes) };
    let is_index = |id: &u32| {
        let segment_use = segment::load_use(&memory, geometry, *id);
        segment_use.is_some_and(|segment_use| segment_use.kind == Kind::Index)
    };
    Ok((0..geometry.segments).filter(is_index).count() as u32)
}

/// Restores what the last server saved, if it stopped cleanly; reads the region only.
fn restore(
    options: &StoreOptions,
    memory: &Memory,
    birth: &Birth,
    meta: &Meta,
    new_segments: Range<u32>,
) -> Result<(SavedState, Segments, Index), Unclean> {
    let mut state = saved_state(memory, birth, meta)?;
    state.segments.retired.extend(new_segments.clone().rev());
    let (fills_up, threads) = (!options.evict, options.threads.max(1));
    if state.header_sum != succession::lasting_sum(memory) {
        return Err(StateError::Header.into());
    }
    if state.tables_sum != tables_sum(memory, &birth.geometry, new_segments.start) {
        return Err(StateError::Disagrees("the checksum of the directory").into());
    }
    let segments =
        Segments::restore(memory.clone(), birth.geometry, &state.segments, fills_up, threads, options.grace)?;
    let is_index = |id| segments.kind(id) == Kind::Index;
    let locks = options.group_locks();
    let index = Index::restore(memory.clone(), birth.geometry, locks, &state.index, is_index)?;
    // More live in the segments if slots were damaged before: reclaim empties the segments of their items.
    let on_flash = state.flash.as_ref().map_or(0, |flash| flash.items);
    if index.items() > segments.live().0.saturating_add(on_flash) {
        return Err(StateError::Disagrees("the number of items").into());
    }
    Ok((state, segments, index))
}

/// Returns the state that the last server saved, if it stopped cleanly.
fn saved_state(memory: &Memory, birth: &Birth, meta: &Meta) -> Result<SavedState, Unclean> {
    let record = succession::clean_stop(memory).ok_or(Unclean::NotStopped)?;
    if record != StateRecord::of(&meta.state, birth.region_id) {
        return Err(StateError::OtherBytes.into());
    }
    let state = SavedState::decode(&meta.state)?;
    if state.region_id != birth.region_id || state.incarnation != birth.incarnation {
        return Err(StateError::OtherBytes.into());
    }
    Ok(state)
}

/// Begins to recover what the index points to, in a region whose server was killed, at second `now` of its clock.
fn recover(
    options: &StoreOptions,
    memory: &Memory,
    birth: &Birth,
    now: u32,
) -> Result<(Segments, Index, Recovery), Damaged> {
    let (geometry, threads) = (birth.geometry, options.threads.max(1));
    let segments = Segments::recover(memory.clone(), geometry, !options.evict, threads, options.grace)?;
    succession::begin_incarnation(memory);
    // Open segments may have holes.
    let open = segments.of_kind(Kind::Open);
    let recovery = Recovery::new(header::flush_epoch(memory), now, open);
    let hash_seed = birth.hash_seed;
    let checks = ItemChecks { memory, segments: &segments, hash_seed, recovery: &recovery, flash: None };
    let is_index = |id| segments.kind(id) == Kind::Index;
    let index = Index::recovering(memory.clone(), geometry, options.group_locks(), is_index, &checks)?;
    Ok((segments, index, recovery))
}

impl Takeover {
    /// Takes the region over.
    pub(crate) fn begin(self, options: &StoreOptions) -> (Store, Items) {
        let Takeover { knowledge, parts, segments_limit, boot_id, flash_opening, .. } = self;
        let memory = parts.memory.clone();
        if let Knowledge::Saved(_) = knowledge {
            succession::begin_incarnation(&memory);
        }
        header::grow(&memory, &parts.geometry);
        header::grant_leases(&memory, options.lease.min(LEASE_MAX));
        let mut store = Store::of_parts(options, parts);
        store.note_boot(boot_id);
        store.flash_opening = flash_opening;
        store.flush_at = AtomicU32::new(succession::flush_at(&memory));
        let items = match knowledge {
            Knowledge::Saved(state) => {
                store.continue_with(&state, options);
                Items::Kept
            }
            Knowledge::Recovered { why } => {
                let epoch = header::flush_epoch(&memory);
                store.swept_epoch = AtomicU64::new(succession::swept_epoch(&memory).min(epoch));
                store.stored_epoch = AtomicU64::new(epoch);
                store.expirer = Mutex::new(Expirer::of_epoch(epoch));
                store.finish_group();
                Items::Recovered { why }
            }
        };
        store.limit_segments(segments_limit);
        // A delayed flush that is due happens before the first request.
        store.tick_with_flushes();
        store.publish_second(store.clock.now());
        store.note_verified();
        (store, items)
    }
}

impl Store {
    /// Continues with what the last server saved.
    fn continue_with(&mut self, state: &SavedState, options: &StoreOptions) {
        self.swept_epoch = AtomicU64::new(succession::swept_epoch(&self.memory));
        self.stored_epoch = AtomicU64::new(state.stored_epoch);
        self.flushed_order = AtomicU64::new(state.flushed_order);
        self.expirer = Mutex::new(Expirer::of_epoch(state.expired_epoch));
        let reclaim = Reclaim::restored(&state.reclaim, options.eviction);
        let (share, reads) = (reclaim.eviction().small_share(), reclaim.eviction().least(Queue::Small));
        self.simulation.continue_with(share);
        self.small_share.store(share.to_bits(), Ordering::Relaxed);
        self.promotion_reads.store(reads, Ordering::Relaxed);
        *self.reclaim = Mutex::new(reclaim);
        self.check_growing_on_flash();
    }
}
