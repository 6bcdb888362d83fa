//! Every bound of reading, with its reason.

/// A reader starts again when what it fetched was torn, recycled or dead. After so many times it asks the server: the
/// key is being written faster than it can be read, or the region is damaged.
pub const READ_ATTEMPTS_MAX: u32 = if cfg!(loom) { 2 } else { 8 };

/// Fetches that one GET may ask for, apart from those for the chunks of a long value. A sound region never needs nearly
/// as many; with any bytes at all a GET ends.
pub const READ_FETCHES_MAX: u32 = if cfg!(loom) { 64 } else { 256 };

/// Of items that may be longer than this, what is before the value is fetched first, where values are put in place: a
/// fetch more takes less than a second copy.
pub const FETCHED_WHOLE_BYTES_MAX: u64 = 1024;

/// Linked buckets that a reader follows behind one overflow area before it asks the server. Hashing yields a few.
pub const LINKS_READ_MAX: u32 = 32;

/// Seconds that the published clock may be behind the reader's before the server is asked. It is published each second,
/// and delayed flushes happen when it is; one that stands may hide them.
pub const CLOCK_LAG_SECONDS_MAX: u32 = 3;

/// After the first two reads of an item, which are always reported, one read of so many is reported, and counts as so
/// many. Measured: docs/decisions/0002-read-reports.md.
pub const TOLD_ONE_IN: u8 = 8;

/// Segments of a region that is read from afar: a reader keeps 24 bytes of each, and whoever serves the region says how many
/// there are. A region of 4 TiB, the most, has half as many, unless it is to grow to more than 8192 times what it began with.
pub const SEGMENTS_FROM_AFAR_MAX: u32 = 1 << 22;
