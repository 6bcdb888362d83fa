//! Every bound of reading, with its reason.

/// Rounds of a read whose fetched bytes were torn, recycled or dead. After that many the reader asks the server: the
/// key is written faster than it can be read, or the region is damaged.
pub const READ_ATTEMPTS_MAX: u32 = if cfg!(loom) { 2 } else { 8 };

/// The most fetches of one GET, not counting those for the chunks of a long value. A sound region needs far fewer;
/// the limit ends a GET in a corrupt region.
pub const READ_FETCHES_MAX: u32 = if cfg!(loom) { 64 } else { 256 };

/// Items that may be longer than this are fetched up to the value first, when values are read into place: one more
/// fetch costs less than a second copy.
pub const FETCHED_WHOLE_BYTES_MAX: u64 = 1024;

/// Chain buckets that a reader follows from one overflow area before it asks the server. Hashing yields a few.
pub const LINKS_READ_MAX: u32 = 32;

/// Maximum seconds that the region's clock may be behind the reader's; beyond that the reader asks the server. The
/// clock advances each second and delayed flushes take effect with it, so a stopped clock may hide them.
pub const CLOCK_LAG_SECONDS_MAX: u32 = 3;

/// After the first two reads of an item, which are always reported, one read in this many is reported and counts as
/// this many. Measured: docs/decisions/0002-read-reports.md.
pub const REPORTED_ONE_IN: u8 = 8;

/// Maximum number of segments of a region that is read remotely: a reader keeps 24 bytes for each, and the server
/// states the number. A region of 4 TiB, the maximum, has half as many, unless it may grow to more than 8192 times
/// its initial size.
pub const REMOTE_SEGMENTS_MAX: u32 = 1 << 22;
