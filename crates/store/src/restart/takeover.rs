//! A start over the region that another server left in its file.
//!
//! Nothing is written to the region before the saved state has been checked against it. The first write begins the
//! next incarnation, and with it the saved state is used up.

use fabcache_layout::format::LEASE_MAX;
use fabcache_layout::header::{self, Birth};
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use fabcache_layout::{Memory, succession};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::saved_state::{SavedState, StateError};
use crate::backing::{FoundFile, Meta};
use crate::bounds::SEGMENTS_FOR_ITEMS_MIN;
use crate::clock::{Clock, boot_id, elapsed_since};
use crate::error::{CreateError, Unusable};
use crate::expiry::Expirer;
use crate::index::Index;
use crate::reclaim::Reclaim;
use crate::segments::{Queue, Segments};
use crate::store::{Parts, Store, StoreOptions};

/// Why the items of a region were not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// The last server did not stop cleanly.
    #[error("the server that used it did not stop cleanly")]
    Unclean,
    /// The state that it saved cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// The region that a file holds, mapped, and a store of its items. Nothing was written yet.
pub(crate) struct Takeover {
    state: SavedState,
    parts: Parts,
    segments_limit: u32,
    /// The wall clock went back since the last server stopped, on another boot of the system.
    pub(crate) clock_went_back: bool,
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
    let geometry = birth.geometry;
    let unusable = |found: &FoundFile, why| Err(CreateError::Unusable { file: found.path().into(), why });
    let wanted = options.memory_bytes_max.max(options.memory_bytes);
    if wanted > geometry.region_bytes {
        return unusable(&found, Unusable::Smaller { bytes: geometry.region_bytes, wanted });
    }
    let mapping = found.map(geometry.region_bytes)?;
    // SAFETY: the mapping has at least that many bytes, is aligned to a page, and no references into it exist. It lives as
    // long as the memory: as a part of the backing, which is the store's last field, or until this function returns
    // without a store.
    let memory = unsafe { Memory::new(mapping.base(), geometry.region_bytes) };
    let restored = saved_state(&memory, birth, meta).and_then(|state| {
        let segments = Segments::restore(
            memory.clone(),
            geometry,
            &state.segments,
            !options.evict,
            options.threads.max(1),
            options.grace,
        )?;
        let is_index = |id| segments.kind(id) == fabcache_layout::segment::Kind::Index;
        let index = Index::restore(memory.clone(), geometry, options.group_locks(), &state.index, is_index)?;
        if index.items() != segments.live().0 {
            return Err(StateError::Disagrees("the number of items").into());
        }
        Ok((state, segments, index))
    });
    let (state, segments, index) = match restored {
        Ok(restored) => restored,
        Err(why) => return Ok(Err((found, why))),
    };
    let segments_limit =
        (options.memory_bytes.saturating_sub(geometry.first_segment) >> geometry.segment_shift) as u32;
    let least = segments.index_segments() + SEGMENTS_FOR_ITEMS_MIN;
    if segments_limit < least {
        let needed = geometry.first_segment + (u64::from(least) << geometry.segment_shift);
        return unusable(&found, Unusable::IndexTooLarge { needed });
    }
    let is_same_boot = boot_id() == Some(succession::boot_id(&memory));
    let (record, published) = (succession::time(&memory), header::clock(&memory));
    let time = options.take_time();
    let elapsed = elapsed_since(record, published, is_same_boot, &*time, birth.clock_origin);
    let last_cas = succession::cas_limit(&memory);
    let parts = Parts {
        memory,
        geometry,
        hash_seed: birth.hash_seed,
        secret: meta.secret.clone(),
        index,
        segments,
        clock: Clock::resume(time, birth.clock_origin, elapsed.ns),
        last_cas,
        backing: Box::new(found.with(mapping)),
    };
    Ok(Ok(Takeover { state, parts, segments_limit, clock_went_back: elapsed.went_back }))
}

/// Returns the state that the last server saved, if it stopped cleanly.
fn saved_state(memory: &Memory, birth: &Birth, meta: &Meta) -> Result<SavedState, NotKept> {
    let record = succession::clean_stop(memory).ok_or(NotKept::Unclean)?;
    let is_its = record.bytes == meta.state.len() as u64
        && record.hash == xxh3_64_with_seed(&meta.state, birth.region_id);
    if !is_its {
        return Err(StateError::OtherBytes.into());
    }
    let state = SavedState::decode(&meta.state)?;
    if state.region_id != birth.region_id || state.incarnation != birth.incarnation {
        return Err(StateError::OtherBytes.into());
    }
    Ok(state)
}

impl Takeover {
    /// Takes the region over.
    pub(crate) fn begin(self, options: &StoreOptions) -> Store {
        let Takeover { state, parts, segments_limit, .. } = self;
        let memory = parts.memory.clone();
        succession::begin_incarnation(&memory);
        header::grant_leases(&memory, options.lease.min(LEASE_MAX));
        let mut store = Store::of_parts(options, parts);
        store.note_boot();
        store.publish_second(store.clock.now());
        store.swept_epoch = AtomicU64::new(succession::swept_epoch(&memory));
        store.stored_epoch = AtomicU64::new(state.stored_epoch);
        store.flushed_order = AtomicU64::new(state.flushed_order);
        store.flush_at = AtomicU32::new(succession::flush_at(&memory));
        store.expirer = Mutex::new(Expirer::of_epoch(state.expired_epoch));
        let reclaim = Reclaim::restored(&state.reclaim, options.eviction);
        let (share, reads) = (reclaim.eviction().small_share(), reclaim.eviction().least(Queue::Small));
        store.simulation.continue_with(share);
        store.small_share.store(share.to_bits(), Ordering::Relaxed);
        store.promotion_reads.store(reads, Ordering::Relaxed);
        *store.reclaim = Mutex::new(reclaim);
        store.limit_segments(segments_limit);
        succession::set_verified(&memory);
        store
    }
}
