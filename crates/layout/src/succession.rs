//! The header's words that a server leaves for its successor in a region that is kept. Readers never use them.
//!
//! The clean mark says that the server before stopped cleanly, and saved beside the region what only its process knew.
//! It is cleared before the successor's first other write, so a saved state is used once. The other words also hold
//! after a server that was killed: they are stored before what depends on them is answered.

use crate::format::{
    BOOT_ID_AT, BOOTTIME_AT, CAS_LIMIT_AT, CLEAN_MARK_AT, CLEAN_STOP, CLOCK_AT, CLOCK_ORIGIN_AT,
    DIRECTORY_AT, FIRST_SEGMENT_AT, FLUSH_AT_AT, FLUSH_EPOCH_AT, HASH_SEED_AT, INCARNATION_AT, LIVENESS_AT,
    REGION_BYTES_AT, REGION_ID_AT, SEGMENT_TABLE_AT, SHAPE_AT, STATE_BYTES_AT, STATE_HASH_AT, SWEPT_EPOCH_AT,
    TIME_SECOND_AT, UNVERIFIED, WALL_TIME_AT,
};
use crate::header;
use crate::memory::Memory;
use crate::sync::Ordering;

/// The header's record of the state that a clean stop saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRecord {
    /// xxh3 of its bytes, seeded with the region's identity.
    pub hash: u64,
    /// Its number of bytes.
    pub bytes: u64,
}

impl StateRecord {
    /// Returns the record of a state of the region with this identity.
    pub fn of(state: &[u8], region_id: u64) -> StateRecord {
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(state, region_id);
        StateRecord { hash, bytes: state.len() as u64 }
    }
}

/// Marks the region as left by a clean stop of its present incarnation, with this saved state. The caller has stored
/// everything else.
pub fn mark_clean(memory: &Memory, state: StateRecord) {
    memory.store(STATE_HASH_AT, state.hash, Ordering::Relaxed);
    memory.store(STATE_BYTES_AT, state.bytes, Ordering::Relaxed);
    let mark = u64::from(header::incarnation(memory)) | u64::from(CLEAN_STOP) << 32;
    memory.store(CLEAN_MARK_AT, mark, Ordering::Release);
}

/// Returns the saved state if the last server stopped cleanly.
pub fn clean_stop(memory: &Memory) -> Option<StateRecord> {
    let mark = memory.load(CLEAN_MARK_AT, Ordering::Acquire);
    let is_clean = mark == u64::from(header::incarnation(memory)) | u64::from(CLEAN_STOP) << 32;
    is_clean.then(|| StateRecord {
        hash: memory.load(STATE_HASH_AT, Ordering::Relaxed),
        bytes: memory.load(STATE_BYTES_AT, Ordering::Relaxed),
    })
}

/// Returns the checksum of the header's words that stay as they are from a clean stop to the next server's first write. The
/// clean mark and what it records are not among them, nor is the liveness word.
pub fn lasting_sum(memory: &Memory) -> u64 {
    let words = [
        REGION_BYTES_AT,
        SHAPE_AT,
        DIRECTORY_AT,
        SEGMENT_TABLE_AT,
        FIRST_SEGMENT_AT,
        HASH_SEED_AT,
        CLOCK_ORIGIN_AT,
        REGION_ID_AT,
        CLOCK_AT,
        FLUSH_EPOCH_AT,
        CAS_LIMIT_AT,
        SWEPT_EPOCH_AT,
        FLUSH_AT_AT,
        BOOTTIME_AT,
        WALL_TIME_AT,
        TIME_SECOND_AT,
    ];
    let bytes: Vec<u8> =
        words.iter().flat_map(|at| memory.load(*at, Ordering::Relaxed).to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Begins the next incarnation, whose items are unverified: clears the clean mark, and the liveness word, which the
/// kernel does not clear when the system stops. Before any other write of the new server; returns the incarnation.
pub fn begin_incarnation(memory: &Memory) -> u32 {
    memory.store_u32(LIVENESS_AT, 0, Ordering::Release);
    let next = header::incarnation(memory).wrapping_add(1) & !UNVERIFIED;
    memory.store(CLEAN_MARK_AT, 0, Ordering::Release);
    memory.store_u32(INCARNATION_AT, next | UNVERIFIED, Ordering::Release);
    next
}

/// Notes that all items are verified: readers need not ask the server any more.
pub fn set_verified(memory: &Memory) {
    memory.store_u32(INCARNATION_AT, header::incarnation(memory), Ordering::Release);
}

/// Returns the limit of CAS values: no server of the region gave a higher one.
pub fn cas_limit(memory: &Memory) -> u64 {
    memory.load(CAS_LIMIT_AT, Ordering::Acquire)
}

/// Raises the limit of CAS values to at least `limit`, before a value above the last one is given.
pub fn raise_cas_limit(memory: &Memory, limit: u64) {
    let mut now = cas_limit(memory);
    while now < limit {
        match memory.compare_exchange(CAS_LIMIT_AT, now, limit, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

/// Stores the last CAS value as the limit: no thread takes any more.
pub fn end_cas(memory: &Memory, last: u64) {
    memory.store(CAS_LIMIT_AT, last, Ordering::Release);
}

/// Returns the flush epoch whose older items are all removed from the index.
pub fn swept_epoch(memory: &Memory) -> u64 {
    memory.load(SWEPT_EPOCH_AT, Ordering::Acquire)
}

/// Stores that epoch.
pub fn set_swept_epoch(memory: &Memory, epoch: u64) {
    memory.store(SWEPT_EPOCH_AT, epoch, Ordering::Release);
}

/// Returns the second of the next delayed flush; 0 for none.
pub fn flush_at(memory: &Memory) -> u32 {
    memory.load(FLUSH_AT_AT, Ordering::Acquire) as u32
}

/// Stores that second, before the flush is answered.
pub fn set_flush_at(memory: &Memory, second: u32) {
    memory.store(FLUSH_AT_AT, second.into(), Ordering::Release);
}

/// A second of the region's clock by the system's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRecord {
    /// The second.
    pub second: u32,
    /// CLOCK_BOOTTIME then, in nanoseconds.
    pub boottime_ns: u64,
    /// CLOCK_REALTIME then, in nanoseconds.
    pub wall_ns: u64,
}

/// Stores the system's times at a second of the region's clock.
pub fn set_time(memory: &Memory, record: TimeRecord) {
    // A record that a kill leaves half stored is rejected.
    memory.store(TIME_SECOND_AT, 0, Ordering::Release);
    memory.store(BOOTTIME_AT, record.boottime_ns, Ordering::Release);
    memory.store(WALL_TIME_AT, record.wall_ns, Ordering::Release);
    let second = u64::from(record.second) | u64::from(!record.second) << 32;
    memory.store(TIME_SECOND_AT, second, Ordering::Release);
}

/// Returns the last stored record of the times, if it is whole.
pub fn time(memory: &Memory) -> Option<TimeRecord> {
    let word = memory.load(TIME_SECOND_AT, Ordering::Acquire);
    let second = word as u32;
    ((word >> 32) as u32 == !second).then(|| TimeRecord {
        second,
        boottime_ns: memory.load(BOOTTIME_AT, Ordering::Relaxed),
        wall_ns: memory.load(WALL_TIME_AT, Ordering::Relaxed),
    })
}

/// Returns the boot id of the system on which the last server ran.
pub fn boot_id(memory: &Memory) -> [u8; 16] {
    memory.read(BOOT_ID_AT)
}

/// Stores the system's boot id.
pub fn set_boot_id(memory: &Memory, id: [u8; 16]) {
    memory.copy_in(BOOT_ID_AT, &id);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::format::HEADER_BYTES;

    #[repr(align(4096))]
    struct Page([u8; HEADER_BYTES as usize]);

    fn header() -> Memory {
        let page = Box::leak(Box::new(Page([0; HEADER_BYTES as usize])));
        // SAFETY: aligned, never freed, and used by nothing else.
        unsafe { Memory::new(NonNull::from(&mut page.0).cast(), HEADER_BYTES) }
    }

    #[test]
    fn clean_mark_is_of_one_incarnation() {
        let memory = header();
        assert_eq!(clean_stop(&memory), None, "a new region");
        assert_eq!(begin_incarnation(&memory), 1);
        let state = StateRecord { hash: 5, bytes: 6 };
        mark_clean(&memory, state);
        assert_eq!(clean_stop(&memory), Some(state));
        set_verified(&memory);
        assert_eq!(clean_stop(&memory), Some(state), "the mark does not depend on the flag");
        assert_eq!(begin_incarnation(&memory), 2);
        assert_eq!(clean_stop(&memory), None, "the state was used");
        memory.store_u32(INCARNATION_AT, UNVERIFIED - 1, Ordering::Relaxed);
        assert_eq!(begin_incarnation(&memory), 0, "it wraps");
    }

    #[test]
    fn times_are_whole_or_absent() {
        let memory = header();
        assert_eq!(time(&memory), None);
        let record = TimeRecord { second: 7, boottime_ns: 8, wall_ns: 9 };
        set_time(&memory, record);
        assert_eq!(time(&memory), Some(record));
        memory.store(TIME_SECOND_AT, 7, Ordering::Relaxed);
        assert_eq!(time(&memory), None);
    }
}
