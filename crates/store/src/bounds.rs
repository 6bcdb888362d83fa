//! Every bound of the store, with its reason. Under loom some are smaller, so that a model is small and meets them.

/// Mutexes that groups of the index share, for each thread that writes: so many that two rarely meet by chance.
pub const GROUP_LOCKS_PER_THREAD: usize = 64;
/// At least so many …
pub const GROUP_LOCKS_MIN: usize = if cfg!(loom) { 2 } else { 256 };
/// … and at most, for each takes two cache lines.
pub const GROUP_LOCKS_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// A lock-free read starts again when what it read changed under it. After so many times it takes the group's lock,
/// so that a read always ends.
pub const READ_RETRIES_MAX: u32 = if cfg!(loom) { 1 } else { 16 };

/// Buckets that a chain of one group may have. Far beyond what hashing yields; a longer chain is a damaged one, and
/// the walk must end.
pub const CHAIN_BUCKETS_MAX: u32 = 4096;

/// While memory is free, a table grows when its items exceed this part of its home slots, in 1/128: beyond it a lookup
/// reads the overflow area more often than it need …
pub const LOAD_MAX_ROOMY_PER_128: u32 = 118;
/// … and once memory is full when they exceed this one, for idle slots cost items.
pub const LOAD_MAX_FULL_PER_128: u32 = 123;

/// A table grows by this part of itself (1/n) while memory is free, when rehashing is what costs …
pub const GROWTH_DIVISOR_ROOMY: u32 = 3;
/// … and by this part once memory is full. Each item written then moves as many.
pub const GROWTH_DIVISOR_FULL: u32 = 16;

/// Where nothing may be evicted, chain buckets that are ready before a group moves: beyond its own places in the new
/// table they hold a quarter of its keys.
pub const CHAIN_BUCKETS_READY_MIN: u64 = if cfg!(loom) { 1 } else { 8 };

/// Values up to this many bytes are copied into the answer; longer ones are pinned and sent from where they lie.
pub const COPIED_VALUE_BYTES_MAX: u32 = if cfg!(loom) { 16 } else { 16 << 10 };

/// An item takes at most this part of a segment (1/n), or is chained: bounds what is lost at a segment's end.
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

/// Received bytes of a long value for which its writer does a share of reclaim: as much as one share can gain where items
/// are small, so that others need not free what a long value takes.
pub const UPLOAD_SHARE_BYTES: usize = 32 << 10;

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

/// Items that one step of reclaim passes over: tens of microseconds, so that no writer waits long for another …
pub const RECLAIM_STEP_ITEMS: u32 = 64;
/// … and bytes, for chunks of long values are copied.
pub const RECLAIM_STEP_BYTES: u64 = 256 << 10;

/// Items that each write passes over for the first free segment that is missing, and four times as many for two: some
/// of them move, in the main queue up to nine of ten, so that it takes more than ten to gain what one write took …
pub const RECLAIM_SHARE_ITEMS: u32 = 8;
/// … and as many again for each so many bytes that it wrote.
pub const RECLAIM_SHARE_BYTES: u64 = 1 << 10;
/// Items that one thread may leave to pass over while others reclaim, and then passes over at once: half a
/// millisecond if all move.
pub const RECLAIM_OWED_ITEMS_MAX: u32 = 512;

/// A writer that waits for memory takes at most so many steps for others' sake: then what is being evicted goes whole.
pub const MAKE_ROOM_STEPS_MAX: u32 = 64;

/// Segments that one write may want at once: for a chunk made of two, its end, and the item.
pub const SEGMENTS_FOR_ONE_WRITE_MAX: usize = 4;
/// Segments for items that there must be: those kept back, and what one write may want.
pub const SEGMENTS_FOR_ITEMS_MIN: u32 =
    if cfg!(loom) { 1 } else { (2 * RECLAIM_RESERVE_SEGMENTS + SEGMENTS_FOR_ONE_WRITE_MAX) as u32 };
/// Times that a write starts again because memory was short. Others take what was freed for it at most a few times in a
/// row; a write always ends.
pub const WRITE_TRIES_MAX: usize = 256;

/// A segment whose dead bytes exceed this part (1/n) of it is compacted before any live item is evicted.
pub const COMPACTION_DEAD_DIVISOR: u64 = 6;
/// … but the one that is next to be evicted only if so many items live in it.
pub const COMPACTED_ITEMS_MIN: u64 = if cfg!(loom) { 0 } else { 4 };
/// Where nothing is evicted this part (1/n): what is written again may leave more dead before memory is short for it
/// ([`REWRITE_RESERVE_DIVISOR`]), and a writer that waits for a segment does not wait for the moving of many more.
pub const COMPACTION_DEAD_DIVISOR_WITHOUT_EVICTION: u64 = 2 * REWRITE_RESERVE_DIVISOR as u64;

/// Segments that one step of reclaim looks at to choose one: a tenth of a millisecond when none is in the cache.
pub const SURVEY_STEP_SEGMENTS: u32 = 4096;

/// The small queue has this part (1/n) of the segments that hold items: what is not read again is gone soon. Chosen by
/// miss ratios (`fabcache bench policies`): a tenth, as published, was worse on most traces.
pub const SMALL_QUEUE_DIVISOR: u32 = 20;

/// More reads than this count as so many: what was popular must not stay for long when it no longer is.
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

/// The unused part of the main segments' share adds up to at most so many segments: fewer than may be emptied without
/// gain.
pub const MAIN_SPARE_SEGMENTS: u64 = EMPTIED_FOR_NOTHING_MAX as u64 * 3 / 4;

/// Ghosts for each item, as a fraction: fewer than published, as these go by chance of their row.
pub const GHOSTS_PER_ITEM_NUMERATOR: u64 = 7;
/// See [`GHOSTS_PER_ITEM_NUMERATOR`].
pub const GHOSTS_PER_ITEM_DIVISOR: u64 = 10;
/// Rows of ghosts that are allocated at once.
pub const GHOST_ROWS_PER_CHUNK: usize = if cfg!(loom) { 1 } else { 4096 };
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

/// Times noted in a segment to tell when its items were written; beyond, neighbouring ones are merged.
pub const TIME_MARKS_MAX: usize = 64;

/// Flush epochs that may pass before items of the first could be taken for current ones (8 bits, less a margin).
pub const FLUSH_EPOCHS_UNSWEPT_MAX: u64 = 250;

/// Open segments are at most this part (1/n) of all: less than 3%, as their free ends are idle memory. Tails, which are
/// nearly full, may be as many again.
pub const OPEN_SEGMENTS_DIVISOR: usize = 34;

/// Items without expiry may have this part (1/n) of them, so that threads do not write to the same one …
pub const LASTING_LANES_DIVISOR: usize = 4;
/// … and items that expire several for each class, once there are so many classes.
pub const CLASSES_BEFORE_LANES: usize = 32;

/// One item in so many is counted to tell which times to live are common …
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

/// Looks at a segment that others write, until none of them is in the middle of it. A reservation lasts less than a
/// microsecond, unless its thread was interrupted: then the walk is put off.
pub const STABLE_LOOKS_MAX: u32 = if cfg!(loom) { 1 } else { 200 };

/// Items that housekeeping passes over in one go: less than a quarter of a millisecond even when all are expired.
/// Then it pauses, as a worker may want its processor.
pub const UPKEEP_STEP_ITEMS: u32 = 512;
/// Groups of the index that it moves in one go, of a few hundred items each.
pub const UPKEEP_STEP_GROUPS: u32 = 4;

/// Keys whose buckets and items are prefetched together: about as many cache misses as a core has in flight.
pub const KEYS_AHEAD_MAX: usize = 12;
