//! Sizes and offsets of the region's format, shared by all modules. docs/region.md describes the format.

use std::time::Duration;

// Header.

/// Bytes of the header: a page, so that it can be fetched or registered alone.
pub const HEADER_BYTES: u64 = 4096;
/// "FABCACHE".
pub const MAGIC: u64 = u64::from_le_bytes(*b"FABCACHE");
/// Version of the format. Readers refuse any other.
pub const FORMAT_VERSION: u64 = 6;
/// What a client states in place of a version to get a channel without the region.
pub const NO_REGION: u64 = 0;
/// What a client states in place of a version to get a region that has only a part of the keys that its server answers for.
pub const SHARD_REGION: u64 = FORMAT_VERSION | 1 << 32;
pub(crate) const MAGIC_AT: u64 = 0;
pub(crate) const FORMAT_AT: u64 = 8;
pub(crate) const REGION_BYTES_AT: u64 = 16;
/// partition bits, block shift, segment shift: a byte each; number of segments: the upper four bytes.
pub(crate) const SHAPE_AT: u64 = 24;
pub(crate) const DIRECTORY_AT: u64 = 32;
pub(crate) const SEGMENT_TABLE_AT: u64 = 40;
pub(crate) const FIRST_SEGMENT_AT: u64 = 48;
pub(crate) const HASH_SEED_AT: u64 = 56;
/// Unix time, in seconds, of second 0 of the region's clock.
pub(crate) const CLOCK_ORIGIN_AT: u64 = 64;
/// Random identity of the region; the files beside a kept region repeat it.
pub(crate) const REGION_ID_AT: u64 = 72;
/// The status line: written by the server's threads, read by every reader.
pub(crate) const CLOCK_AT: u64 = 128;
/// Offset of the flush epoch.
pub const FLUSH_EPOCH_AT: u64 = CLOCK_AT + 8;
/// Offset of the liveness word: a robust futex (get_robust_list(2)) that a thread of the server holds. The kernel
/// releases it when the process ends, however it ends, and before it closes the process's sockets. So readers see
/// that the server has ended before another one can listen at its address.
pub const LIVENESS_AT: u64 = CLOCK_AT + 16;
/// Bits of the liveness word that name the thread (FUTEX_TID_MASK); 0 if no thread holds it.
pub const LIVENESS_HOLDER_MASK: u32 = 0x3fff_ffff;
/// Offset of the incarnation: which server since the region's creation maintains it, in the low 31 bits, and
/// [`UNVERIFIED`]. It shares its word with the liveness word, so one fetch shows both.
pub const INCARNATION_AT: u64 = LIVENESS_AT + 4;
/// The bit of the incarnation's word that says that items of earlier incarnations are not verified yet: readers ask the
/// server, which verifies what it returns.
pub const UNVERIFIED: u32 = 1 << 31;
/// Offset of the lease: how long remote readers may trust the status line. Microseconds in the low 16 bits, and above
/// them the flush epoch that the lease is for, so a lease never applies to an epoch fetched a moment earlier or later.
pub const LEASE_AT: u64 = CLOCK_AT + 24;
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_micros(u16::MAX as u64);
/// Offset of the status line.
pub const STATUS_AT: u64 = CLOCK_AT;
/// Bytes of the status line that every reader uses.
pub const STATUS_BYTES: usize = 24;
/// Number of counters of emptied segments; a segment's counter is its number modulo this. A counter changes after the
/// segment's generation and before its items are overwritten. So one fetch shows a remote reader that the generations
/// of all segments with unchanged counters are unchanged.
pub const RECYCLED_COUNTS: usize = if cfg!(loom) { 1 } else { 32 };
/// Offset of these counters: on cache lines of their own, which readers of the same host never load.
pub const RECYCLED_AT: u64 = if cfg!(loom) { CLOCK_AT + 32 } else { CLOCK_AT + 64 };
/// Bytes of the status line and the counters after it, which a remote reader fetches together.
pub const STATUS_AND_COUNTS_BYTES: usize = (RECYCLED_AT - STATUS_AT) as usize + 8 * RECYCLED_COUNTS;
/// The words for a successor: only servers read them.
///
/// Zero while a server runs; after a clean stop the incarnation that stopped, and [`CLEAN_STOP`] in the upper half.
pub(crate) const CLEAN_MARK_AT: u64 = RECYCLED_AT + 8 * RECYCLED_COUNTS as u64;
/// The upper half of the clean mark.
pub(crate) const CLEAN_STOP: u32 = u32::from_le_bytes(*b"STOP");
/// xxh3 of the saved state, seeded with the region's identity.
pub(crate) const STATE_HASH_AT: u64 = CLEAN_MARK_AT + 8;
/// Bytes of the saved state.
pub(crate) const STATE_BYTES_AT: u64 = CLEAN_MARK_AT + 16;
/// No server of the region gave a CAS value above this.
pub(crate) const CAS_LIMIT_AT: u64 = CLEAN_MARK_AT + 24;
/// The flush epoch whose older items are all removed from the index.
pub(crate) const SWEPT_EPOCH_AT: u64 = CLEAN_MARK_AT + 32;
/// The second of the next delayed flush; 0 for none.
pub(crate) const FLUSH_AT_AT: u64 = CLEAN_MARK_AT + 40;
/// The system's boot id (random(4)), 16 bytes.
pub(crate) const BOOT_ID_AT: u64 = CLEAN_MARK_AT + 64;
/// CLOCK_BOOTTIME at the second in [`TIME_SECOND_AT`], in nanoseconds.
pub(crate) const BOOTTIME_AT: u64 = BOOT_ID_AT + 16;
/// CLOCK_REALTIME at that second, in nanoseconds.
pub(crate) const WALL_TIME_AT: u64 = BOOT_ID_AT + 24;
/// The second of the region's clock at which both were taken; its complement in the upper half. Stored last.
pub(crate) const TIME_SECOND_AT: u64 = BOOT_ID_AT + 32;
/// End of the header's used part.
pub const USED_BYTES: u64 = (TIME_SECOND_AT + 8).next_multiple_of(64);
const _: () = assert!(STATUS_AT + STATUS_BYTES as u64 <= LEASE_AT && LEASE_AT < RECYCLED_AT);
const _: () =
    assert!(INCARNATION_AT + 4 == LEASE_AT && STATUS_AND_COUNTS_BYTES as u64 + STATUS_AT == CLEAN_MARK_AT);
#[cfg(not(loom))]
const _: () =
    assert!(CLEAN_MARK_AT == 448 && BOOT_ID_AT == 512 && TIME_SECOND_AT == 544 && USED_BYTES == 576);
const _: () = assert!(USED_BYTES <= HEADER_BYTES);

// Directory.

/// Maximum number of block numbers in a table.
pub const BLOCKS_PER_TABLE_MAX: usize = if cfg!(loom) { 4 } else { 320 };
pub(crate) const HEAD_BYTES: u64 = 64;
/// In the line of the head: see [`crate::directory::flash_bits_offset`].
pub(crate) const FLASH_BITS_AT: u64 = 8;
pub(crate) const TABLE_BYTES: u64 = BLOCKS_PER_TABLE_MAX as u64 * 4;
/// Bytes of one partition in the directory.
pub const PARTITION_BYTES: u64 = HEAD_BYTES + 2 * TABLE_BYTES;
pub(crate) const GROUPS_BITS: u32 = 17;
pub(crate) const VERSION_BITS: u32 = 28;
/// Maximum number of groups that the head can represent.
pub const GROUPS_MAX: u32 = (1 << GROUPS_BITS) - 1;
const _: () = assert!(2 * GROUPS_BITS + 1 + 1 + VERSION_BITS == u64::BITS);

// Index.

/// Slots in a bucket: one cache line of them.
pub const SLOTS_PER_BUCKET: usize = if cfg!(loom) { 2 } else { 8 };
/// Bytes in a bucket.
pub const BUCKET_BYTES: u64 = SLOTS_PER_BUCKET as u64 * 8;
/// Hash bits that pick the home bucket in its group.
pub const BUCKET_BITS: u32 = if cfg!(loom) { 1 } else { 5 };
/// Home buckets in a group.
pub const BUCKETS_PER_GROUP: usize = 1 << BUCKET_BITS;
/// Buckets at the end of each group for the keys that find home and neighbour full. At nine tenths of the home
/// slots in use and after much churn an eighth of the keys live here.
pub const OVERFLOW_BUCKETS: usize = if cfg!(loom) { 1 } else { 4 };
/// Bytes in a group. All slots of a group are under one lock of the server.
pub const GROUP_BYTES: u64 = (BUCKETS_PER_GROUP + OVERFLOW_BUCKETS) as u64 * BUCKET_BYTES;

// Segment table.

/// Bytes of an entry.
pub const SEGMENT_ENTRY_BYTES: u64 = 32;
pub(crate) const GENERATION_AT: u64 = 0;
pub(crate) const USE_AT: u64 = 8;
pub(crate) const OPENED_AT: u64 = 16;
pub(crate) const ORDER_AT: u64 = 24;
