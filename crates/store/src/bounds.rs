//! Every bound of the store, with its reason. Under loom some are smaller, so that a model is small and meets them.

/// Mutexes that groups of the index share. Enough that 64 writing threads rarely meet by chance.
pub const GROUP_LOCKS: usize = if cfg!(loom) { 2 } else { 4096 };

/// A lock-free read starts again when what it read changed under it. After so many times it takes the group's lock,
/// so that a read always ends.
pub const READ_RETRIES_MAX: u32 = if cfg!(loom) { 1 } else { 16 };

/// Buckets that a chain of one group may have. Far beyond what hashing yields; a longer chain is a damaged one, and
/// the walk must end.
pub const CHAIN_BUCKETS_MAX: u32 = 4096;

/// A table grows when its items exceed this part of its home slots, in 1/128: beyond it a lookup reads the overflow
/// area too often, below it memory is idle.
pub const LOAD_MAX_PER_128: u32 = 118;

/// A table grows by this part of itself (1/n) while memory is free, when rehashing is what costs …
pub const GROWTH_DIVISOR_ROOMY: u32 = 3;
/// … and by this part once memory is full, when idle slots cost items.
pub const GROWTH_DIVISOR_FULL: u32 = 8;

/// Values up to this many bytes are copied into the answer; longer ones are pinned and sent from where they lie.
pub const COPIED_VALUE_BYTES_MAX: u32 = if cfg!(loom) { 16 } else { 16 << 10 };

/// An item takes at most this part of a segment (1/n), or is chained: bounds what is lost at a segment's end.
pub const CONTIGUOUS_ITEM_DIVISOR: u64 = if cfg!(loom) { 1 } else { 8 };

/// Pieces of a long value are cut to fill the end of a segment, but not shorter than this part of one (1/n): bounds
/// the number of pieces …
pub const PIECE_DIVISOR_MAX: u64 = 16;
/// … nor than this, in small segments: the table of the pieces of half the memory must fit one.
pub const PIECE_BYTES_MIN: u64 = 4 << 10;

/// Received bytes of a long value that wait on the heap before they become a piece in the region.
pub const UPLOAD_PIECE_BYTES: usize = 128 << 10;

/// Free segments that only reclaim may take, so that it always has somewhere to move live items to.
pub const RECLAIM_RESERVE_SEGMENTS: usize = 2;

/// Without eviction, and beyond those for reclaim, free segments (1/n of all) that only items written again in their own
/// place may take, so that what memory is full of can still be touched and counted. It is also what such writes may
/// leave dead before items are moved to gain it: with 1/n of it dead, n - 1 bytes move for each gained.
pub const REWRITE_RESERVE_DIVISOR: usize = 32;

/// Reclaim starts when fewer segments (1/n of all) are free, so that writers find one ready …
pub const FREE_SEGMENTS_WANTED_DIVISOR: usize = 128;
/// … and at least this many.
pub const FREE_SEGMENTS_WANTED_MIN: usize = 2;

/// Items that one step of reclaim passes over: tens of microseconds, so that no writer waits long for another.
pub const RECLAIM_STEP_ITEMS: u32 = 64;

/// A segment whose dead bytes exceed this part (1/n) of it is compacted before any live item is evicted.
pub const COMPACTION_DEAD_DIVISOR: u64 = 6;

/// Segments that may be emptied one after the other, with eviction, before one is gained: each is to gain a sixth of
/// itself, so more are emptied only where items do not fit closer or tables of chained values cost too much. Without
/// eviction it may be as many as there are, for there each dead byte counts.
pub const EMPTIED_FOR_NOTHING_MAX: u32 = 16;

/// Readers may pin this part (1/n) of all segments.
pub const PINNED_SEGMENTS_DIVISOR: u32 = 4;

/// Times noted in a segment to tell when its items were written; beyond, neighbouring ones are merged.
pub const TIME_MARKS_MAX: usize = 64;

/// Flush epochs that may pass before items of the first could be taken for current ones (8 bits, less a margin).
pub const FLUSH_EPOCHS_UNSWEPT_MAX: u64 = 250;

/// Where nothing is evicted and memory is full, all items are looked at for expired ones, but not more often: it takes
/// a second for some million items.
pub const FULL_CRAWL_SECONDS: u32 = 10;

/// Keys whose buckets and items are brought nearer at once: about as many cache misses as a core has under way.
pub const KEYS_AHEAD_MAX: usize = 12;
