//! Every bound of the store, with its reason. Under loom some are smaller, so that a model is small and meets them.

/// Mutexes that index groups share, for each writing thread: enough that two rarely collide.
pub const GROUP_LOCKS_PER_THREAD: usize = 64;
/// At least this many …
pub const GROUP_LOCKS_MIN: usize = if cfg!(loom) { 2 } else { 256 };
/// … and at most, for each takes two cache lines.
pub const GROUP_LOCKS_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// A lock-free read starts again when what it read changed. After this many attempts it takes the group's lock, so
/// that every read ends.
pub const READ_RETRIES_MAX: u32 = if cfg!(loom) { 1 } else { 16 };

/// Buckets that writes link to one group: with them it holds twice its home slots, far beyond what hashing yields.
/// Keys that are made to collide meet this bound, so that the work of a write and of moving a group has one, too.
pub const CHAIN_BUCKETS_MAX: u32 = if cfg!(loom) { 2 } else { 32 };
const _: () = assert!(CHAIN_BUCKETS_MAX <= fabcache_layout::bounds::LINKS_READ_MAX);
/// Buckets of a chain that a lock-free search visits before it takes the lock. Growth without eviction may put the keys
/// of two full groups into one, and another growth more: longer chains are searched under the lock.
pub const CHAIN_BUCKETS_SEARCHED_MAX: u32 = 2 * CHAIN_BUCKETS_MAX;
/// Groups of the next table that the keys of one group go to at most: it is at most twice as large.
pub const GROUPS_MOVED_TO_MAX: u64 = 3;

/// While memory is free, a table grows when its items exceed this part of its home slots, in 1/128: beyond it a lookup
/// reads the overflow area more often than it need …
pub const LOAD_MAX_ROOMY_PER_128: u32 = 118;
/// … and once memory is full when they exceed this one, for idle slots cost items.
pub const LOAD_MAX_FULL_PER_128: u32 = 123;

/// A table grows by this part of itself (1/n) while memory is free, when rehashing is what costs …
pub const GROWTH_DIVISOR_ROOMY: u32 = 3;
/// … and by this part once memory is full. Each item written then moves as many.
pub const GROWTH_DIVISOR_FULL: u32 = 16;

/// Values up to this many bytes are copied into the answer; longer ones are pinned and sent from where they lie.
pub const COPIED_VALUE_BYTES_MAX: u32 = if cfg!(loom) { 16 } else { 16 << 10 };

/// An item takes at most this part of a segment (1/n), or is chained: bounds the waste at a segment's end.
pub const CONTIGUOUS_ITEM_DIVISOR: u64 = if cfg!(loom) { 1 } else { 4 };

/// An open segment that an item did not fit into goes on for smaller ones if more than this part of it (1/n) is left.
pub const TAIL_DIVISOR: u64 = 128;

/// Chunks of a long value are cut to fill the end of a segment, but not shorter than this part of one (1/n): bounds
/// the number of chunks …
pub const CHUNK_DIVISOR_MAX: u64 = 16;
/// … nor than this, in small segments: the table of the chunks of half the memory must fit one.
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;

/// Received bytes of a long value that wait on the heap before they become a chunk in the region.
pub const UPLOAD_CHUNK_BYTES: usize = 128 << 10;

/// Received bytes of a long value after which its writer does a share of reclaim: as much as one share can gain with
/// small items, so that other writers need not free what a long value takes.
pub const UPLOAD_SHARE_BYTES: usize = 32 << 10;

/// Memory (1/n of the limit) that maintenance touches ahead of writers …
pub const TOUCHED_AHEAD_DIVISOR: u64 = 8;

/// … and at most this much: what a client writes at 4 GB/s within eight milliseconds, in which the maintenance thread
/// gets a processor.
pub const TOUCHED_AHEAD_BYTES_MAX: u64 = 32 << 20;

/// Free segments that only reclaim may take, so that it always has somewhere to move live items to.
pub const RECLAIM_RESERVE_SEGMENTS: usize = 2;

/// Without eviction, and beyond those for reclaim, free segments (1/n of all) that only items written again in their own
/// place may take, so that what memory is full of can still be touched and counted. It is also what such writes may
/// leave dead before items are moved to gain it: with 1/n of it dead, n - 1 bytes move for each gained.
pub const REWRITE_RESERVE_DIVISOR: usize = 32;

/// Reclaim starts when fewer segments (1/n of all) are free, so that writers find one ready …
pub const FREE_SEGMENTS_WANTED_DIVISOR: usize = 256;
/// … and at least this many.
pub const FREE_SEGMENTS_WANTED_MIN: usize = 2;

/// With a flash tier, writers wait for it when no more memory is free than they may take before each has seen that: some turns
/// of a connection …
pub const WRITTEN_BEFORE_WAIT_BYTES: u64 = 512 << 10;
/// … and at most this part (1/n) of memory.
pub const FREE_SEGMENTS_LEAST_DIVISOR_MIN: usize = 32;

/// Items scanned by one step of reclaim: tens of microseconds, so that no writer waits long for another …
pub const RECLAIM_STEP_ITEMS: u32 = 64;
/// … and bytes, for chunks of long values are copied.
pub const RECLAIM_STEP_BYTES: u64 = 256 << 10;

/// Items that each write scans for the first missing free segment, and four times as many for two: some of them move,
/// in the main queue up to nine of ten, so that it takes more than ten to gain what one write took …
pub const RECLAIM_SHARE_ITEMS: u32 = 8;
/// … and as many again for each this many bytes written.
pub const RECLAIM_SHARE_BYTES: u64 = 1 << 10;
/// Items that one thread may owe while others reclaim, and then scans at once: half a millisecond if all move.
pub const RECLAIM_OWED_ITEMS_MAX: u32 = 512;

/// A writer that waits for memory makes at most this many steps before the current victim is evicted entirely.
pub const MAKE_ROOM_STEPS_MAX: u32 = 64;
/// And so many that could not go on before a write to flash had ended, although none is under way then.
pub const VAIN_STEPS_MAX: u32 = 8;
/// Without eviction, so many segments that could not be emptied: about a quarter of a millisecond. Then others are served before
/// it goes on.
pub const STUCK_STEPS_MAX: u32 = 256;

/// Segments that one write may need at once: for a chunk joined from two, its end, and the item.
pub const SEGMENTS_FOR_ONE_WRITE_MAX: usize = 4;
/// Segments for items that must exist: the reserve, and what one write may need.
pub const SEGMENTS_FOR_ITEMS_MIN: u32 =
    if cfg!(loom) { 1 } else { (2 * RECLAIM_RESERVE_SEGMENTS + SEGMENTS_FOR_ONE_WRITE_MAX) as u32 };
/// Groups that a write checks after a kill if it wants a table to grow, which has to wait for the last group.
pub const GROUPS_CHECKED_FOR_GROWTH: usize = 2;

/// How often recovery lets other threads run until a segment whose items have moved counts no live ones.
pub const RETIRE_WAITS_MAX: u32 = if cfg!(loom) { 100 } else { 1_000 };

/// Attempts of a write that runs out of memory. Others take what was freed for it at most a few times in a row; every
/// write ends.
pub const WRITE_TRIES_MAX: usize = 256;

/// A segment whose dead bytes exceed this part (1/n) of it is compacted before any live item is evicted.
pub const COMPACTION_DEAD_DIVISOR: u64 = 6;
/// … but the next one to be evicted only if this many items live in it.
pub const COMPACTED_ITEMS_MIN: u64 = if cfg!(loom) { 0 } else { 4 };
/// Without eviction this part (1/n): rewritten items may leave more dead bytes before memory runs out
/// ([`REWRITE_RESERVE_DIVISOR`]), and a writer that waits for a segment does not wait for many more to be moved.
pub const COMPACTION_DEAD_DIVISOR_WITHOUT_EVICTION: u64 = 2 * REWRITE_RESERVE_DIVISOR as u64;

/// Segments that one step of reclaim examines to choose one: a tenth of a millisecond if none is cached.
pub const SURVEY_STEP_SEGMENTS: u32 = 4096;

/// The part of the segments that hold items that the small queue has at first: without evidence against it, a new item
/// is worth as much as an old one, and a burst of two thirds of memory stays until it is read. The rest keeps what was
/// read several times from a scan.
pub const SMALL_QUEUE_SHARE_LARGE: f64 = 0.76;
/// Its part where that has more hits: items that are not read again leave soon. Chosen by miss ratios (`fabcache bench
/// policies`): a tenth, as published, was worse on most traces.
pub const SMALL_QUEUE_SHARE_SMALL: f64 = 0.05;
/// Where the small queue has more than this part, one read does not promote an item: there it had time to be read twice.
pub const STRICT_PROMOTION_SHARE: f64 = 0.3;
/// Items of a simulated cache once memory is full, if it has so many, to twice as many.
pub const SIMULATED_ITEMS_MIN: u64 = 512;
/// Items of a simulated cache at most: with ghosts a fifth of a megabyte for each of two.
pub const SIMULATED_ITEMS_MAX: usize = 3 * SIMULATED_ITEMS_MIN as usize;
/// Bytes of items that are expected before memory is full.
pub const EXPECTED_ITEM_BYTES: u64 = 256;
/// Ghosts of a simulated cache at most, unless it has more items: small items may have been evicted by large ones.
pub const SIMULATED_GHOSTS_MAX: usize = 2_048;
/// The other share is taken once it would have had so many more hits, as a part of the items in memory. Less, and
/// bursts are lost after a while of ordinary load; more, and loads that never change wait longer for the better share.
pub const SIMULATION_GAIN_SHARE: f64 = 0.09;
/// With fewer items the gain is taken of so many: a few hits are chance.
pub const SIMULATION_GAIN_ITEMS_MIN: usize = 256;

/// Reads of one key in so many are counted by queue; a power of two. Counting all costs a GET twenty instructions.
pub const QUEUE_HITS_SAMPLE: u64 = 16;

/// Higher read counts are capped to this: a formerly popular item must not stay for long.
pub const EVICTION_FREQUENCY_MAX: u8 = 3;

/// An item wears by its size as a part of the mean, but by no more and no less than this many times.
pub const EVICTION_SIZE_PART_MAX: u64 = 8;

/// An item that was not read leaves the small queue for the main one if it takes at most this part (1/n) of the mean.
/// With a half large caches did better and small ones, where few have time to be read, worse.
pub const EVICTION_UNREAD_KEPT_DIVISOR: u64 = 3;
/// At most this part (1/n), and it stays there for some rounds.
pub const EVICTION_UNREAD_CREDIT_DIVISOR: u64 = 8;

/// Of a main segment that eviction empties, at most this part is kept, so that ten are moved for one gained.
pub const MAIN_KEPT_NUMERATOR: u64 = 9;
/// See [`MAIN_KEPT_NUMERATOR`].
pub const MAIN_KEPT_DIVISOR: u64 = 10;

/// The unused part of the main segments' share adds up to at most this many segments: fewer than may be emptied
/// without gain.
pub const MAIN_SPARE_SEGMENTS: u64 = EMPTIED_FOR_NOTHING_MAX as u64 * 3 / 4;

/// Ghosts for each item, as a fraction: fewer than published, as these go by chance of their row.
pub const GHOSTS_PER_ITEM_NUMERATOR: u64 = 7;
/// See [`GHOSTS_PER_ITEM_NUMERATOR`].
pub const GHOSTS_PER_ITEM_DIVISOR: u64 = 10;
/// Rows of sets of recent keys that are allocated at once.
pub const RECENT_KEY_ROWS_PER_CHUNK: usize = if cfg!(loom) { 1 } else { 4096 };
/// No item takes less memory, index included: bounds the number of ghosts.
pub const ITEM_BYTES_MIN: u64 = if cfg!(loom) { 256 } else { 32 };

/// Segments that may be emptied one after the other, with eviction, before one is gained: each is to gain a sixth of
/// itself, so more are emptied only where items do not fit closer or tables of chained values cost too much.
pub const EMPTIED_FOR_NOTHING_MAX: u32 = 16;
/// Where nothing is evicted each is to gain a 64th of itself.
pub const EMPTIED_FOR_NOTHING_WITHOUT_EVICTION_MAX: u32 =
    COMPACTION_DEAD_DIVISOR_WITHOUT_EVICTION as u32 * 5 / 4;

/// Readers may pin this part (1/n) of all segments.
pub const PINNED_SEGMENTS_DIVISOR: u32 = 4;

/// Time marks of a segment, which date its items; neighbouring marks are merged beyond this.
pub const TIME_MARKS_MAX: usize = 64;

/// Flush epochs that may pass before items of the first could be mistaken for current ones (8 bits, less a margin).
pub const FLUSH_EPOCHS_UNSWEPT_MAX: u64 = 250;

/// Open segments are at most this part (1/n) of all: less than 3%, because their free ends are idle memory. Tails,
/// which are nearly full, may be as many again.
pub const OPEN_SEGMENTS_DIVISOR: usize = 34;

/// Items without expiry may use this part (1/n) of them, so that threads do not write to the same one …
pub const LONG_TTL_LANES_DIVISOR: usize = 4;
/// … and expiring items several for each bucket, if there are at least this many buckets.
pub const CLASSES_BEFORE_LANES: usize = 32;

/// Each queue needs this many of them before moved long values have their own: one for items without expiry, and one for
/// others, remain.
pub const MOVED_CHUNKS_OPEN_MIN: usize = 3;

/// One item in this many is counted to find common times to live …
pub const TTL_SAMPLE: u64 = if cfg!(loom) { 1 } else { 64 };
/// … and nothing is concluded from fewer.
pub const TTL_SAMPLES_MIN: u64 = 256;
/// Seconds between two conclusions.
pub const TTL_BALANCE_SECONDS: u32 = 10;

/// An item's memory may come back this part (1/n) of its time to live late, so that a segment whose items expire one
/// after the other is not walked for each: less than 1%, so that what waits its turn is still in time …
pub const LATE_TTL_DIVISOR: u32 = 128;
/// … but at least these seconds: with one more until the housekeeper comes it is two.
pub const LATE_SECONDS_MIN: u32 = 1;

/// Polls of a segment that others write, until no writer is in the middle of it. A reservation lasts less than a
/// microsecond, unless its thread was interrupted: then the walk is postponed.
pub const STABLE_CHECKS_MAX: u32 = if cfg!(loom) { 1 } else { 200 };

/// Bytes that are read to find out whether the length in a damaged header is right.
pub const CONFIRMATION_BYTES_MAX: u64 = 8 << 20;

/// Bytes that are verified in one go: less than a quarter of a millisecond, even from memory that is not cached.
pub const SCRUB_STEP_BYTES: u64 = 512 << 10;

/// Items that maintenance scans in one go: less than a quarter of a millisecond even if all are expired. Then it
/// pauses, as a worker may need its processor.
pub const MAINTENANCE_STEP_ITEMS: u32 = 512;
/// Groups of the index that it moves in one go, of a few hundred items each.
pub const MAINTENANCE_STEP_GROUPS: u32 = 4;

/// Writes of one run: as many as the protocol parses at once.
pub const RUN_SETS_MAX: usize = 32;

/// Keys whose buckets and items are prefetched together: about as many cache misses as a core has in flight.
pub const PREFETCHED_KEYS_MAX: usize = 12;

/// An item on flash returns to memory when it is read twice with fewer reads of flash between than this part of the
/// number of items in memory: more often than most of those.
pub const FLASH_READS_BETWEEN_DIVISOR: u64 = 16;
/// That number of reads at least.
pub const FLASH_READS_BETWEEN_MIN: u64 = 8;
