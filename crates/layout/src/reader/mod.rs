//! Reading a region that the server writes meanwhile, without the server: the algorithm, for every transport.
//!
//! It does no I/O. A [`Get`] names the next fetch and validates its result; the caller has the region mapped
//! ([`mapped`]) or fetches over a fabric. It ends with a hit, a miss, or the advice to ask the server.
//!
//! ```text
//!  GET by key:  head -> block numbers -> home and neighbour -> [overflow -> links] -> no slot -> head again -> miss
//!               (MetadataCache)             |     ^                  |
//!                                           slots |                  all MOVED: the same in the other table
//!                                           v     | not this key
//!               generation (cached)   ->   item --+--> chunks -> hit
//!                                           |
//!                                           torn, recycled, dead: again, a few times; then ask the server
//!  GET at a known location:                item -> generation -> hit, or stale: by key
//! ```
//!
//! Requirements on a transport: a fetch happens between its request and its result, each aligned eight bytes of it at
//! one moment in between, in any order. Overlapping fetches may be executed in any order.
//!
//! Why a hit is valid:
//! - Its bytes are those of one item as written. [`Validation::Remote`]: the checksum shows it, which is keyed, and
//!   bound to offset and generation. [`Validation::SameHost`]: the generation is the same after the last byte as
//!   before the first.
//! - The item had been published. By key: its slot was fetched after the generation, so the slot pointed to an item
//!   of that generation or a later one, and bytes of a later one would not pass. At a cached location: an earlier GET
//!   had it from a slot, with its generation.
//! - It was not overwritten or deleted before the GET began: writers mark the old item dead before they publish the
//!   new one and before they are answered, and the state was fetched after the GET began. That the state is this
//!   item's own, not a later writer's, follows from the generation, fetched after it; or by key from the slot, if
//!   nothing is overwritten for a while and the item was fetched within that time of the slot. (The checksum does not
//!   cover the state, nor does it show that the two are from the same time although they lie in one word: a later
//!   value is copied there in parts of any size.)
//! - It was not flushed or expired: the flush epoch was fetched after the GET began, or the item is of a later one.
//!
//! Why a miss is right: all places were seen, none said MOVED, and the head was the same behind them, so they were the
//! places. Keys do not change place within a group, so one that was there all the time was seen.
//!
//! A client may cache heads, block numbers and generations for as long as it likes ([`MetadataCache`]): outdated ones
//! are detected.

mod fast_path;
mod get;
mod hints;
pub mod mapped;
mod metadata_cache;
mod prefetch;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
pub mod region_clock;
pub mod remote;
mod validate;

pub use get::Get;
pub use hints::{next_random, reads_to_report};
pub use mapped::Mapped;
pub use metadata_cache::MetadataCache;
pub use prefetch::PREFETCHED_KEYS;
#[cfg(not(loom))]
pub use region::{Protection, Region};
pub use remote::Remote;

use crate::bounds::REMOTE_SEGMENTS_MAX;
use crate::checksum::Secret;
use crate::geometry::Geometry;
use crate::hash::KeyHash;
use crate::header::{Birth, HeaderError};
use crate::item::{Item, State};

/// How fetched bytes are validated as those of one item.
#[derive(Clone, Debug)]
pub enum Validation {
    /// By its checksum, for which the server granted the region's secret.
    Remote(Secret),
    /// By the segment's generation, read before and after: for memory of the same host, whose loads are ordered by
    /// acquire fences.
    SameHost,
}

/// The parameters shared by all GETs of a region.
#[derive(Clone, Debug)]
pub struct Reader {
    geometry: Geometry,
    hash_seed: u64,
    incarnation: u32,
    mode: Validation,
}

impl Reader {
    /// Returns a reader of the region with this header.
    ///
    /// # Errors
    /// The geometry is invalid, or has more segments than are read remotely.
    pub fn new(birth: &Birth, mode: Validation) -> Result<Reader, HeaderError> {
        let is_too_much =
            matches!(mode, Validation::Remote(_)) && birth.geometry.segments > REMOTE_SEGMENTS_MAX;
        if !birth.geometry.is_sound() || is_too_much {
            return Err(HeaderError::Geometry);
        }
        let Birth { geometry, hash_seed, incarnation, .. } = *birth;
        Ok(Reader { geometry, hash_seed, incarnation, mode })
    }

    /// Returns the incarnation of the server that maintains the region: reads are invalid under another.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Returns the region's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the hash of a key in this region.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.hash_seed)
    }

    fn is_remote(&self) -> bool {
        matches!(self.mode, Validation::Remote(_))
    }
}

/// The next fetch of a GET, or its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The eight bytes at this offset, a multiple of 8, as one word.
    Word(u64),
    /// Fetch `len` bytes from `offset`, at most a segment. Keep them until the next fetch: the value of a hit is in
    /// them.
    Bytes {
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// Fetch `len` bytes from `offset` to offset `at` of the value, which has no bytes after them yet. Only if
    /// requested ([`Get::placing`]): it avoids a second copy of a long value.
    Value {
        /// The offset in the value: 0, or the end of the last placed bytes.
        at: usize,
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Bytes of the whole value, if the item is valid.
        whole: usize,
    },
    /// Fetch the chunks of a value of this length; for drivers that fetch them themselves ([`Remote`]).
    Chunks {
        /// Bytes of the whole value.
        whole: usize,
    },
    /// Done: the result.
    Done(ReadOutcome),
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug)]
pub enum Fetched<'a> {
    /// Nothing was requested yet.
    Nothing,
    /// The requested word.
    Word(u64),
    /// The requested bytes.
    Bytes(&'a [u8]),
    /// The requested bytes, of an item. At a cached location: the known counters of emptied segments were fetched after
    /// them. By key: nothing was overwritten since the slot pointed to the item.
    Settled(&'a [u8]),
    /// The bytes of the value were placed.
    Placed,
}

/// The result of a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The item.
    Hit(Hit),
    /// The key is not stored.
    Miss(Miss),
    /// Nothing valid is at the location any more; retry by key.
    Stale(Rejection),
    /// The region is inconclusive: ask the server.
    Fallback(FallbackReason),
    /// No server maintains the region any more; reads from it are invalid. Only [`Remote`] returns this.
    Gone,
}

/// An item that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Client flags.
    pub flags: u32,
    /// CAS value, as stored.
    pub cas: u64,
    /// The second of the region's clock from which it is expired; 0 for never.
    pub expiry: u32,
    /// It is stale (meta protocol).
    pub stale: bool,
    /// A client was told that it won (meta protocol).
    pub token_sent: bool,
    /// Its key was given in base64.
    pub binary_key: bool,
    /// The reads that its slot counts, if it was found by key.
    pub frequency: Option<u8>,
    /// The value.
    pub value: Value,
    /// Where it was found, for a later GET.
    pub location: Location,
}

impl Hit {
    /// Returns whether it is expired at this second.
    pub(crate) fn is_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }

    #[inline]
    fn of(item: &Item, frequency: Option<u8>, value: Value, location: Location) -> Hit {
        Hit {
            flags: item.flags,
            cas: item.cas,
            expiry: item.expiry,
            stale: item.state.has(State::STALE),
            token_sent: item.state.has(State::TOKEN_SENT),
            binary_key: item.has_binary_key(),
            frequency,
            value,
            location,
        }
    }
}

/// The location of a hit's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// In the bytes fetched last.
    Fetched {
        /// Its offset there.
        at: usize,
        /// Its length.
        len: usize,
    },
    /// Assembled from chunks: [`Get::take_assembled`].
    Assembled,
    /// Where it was placed ([`Step::Value`]).
    Placed,
}

/// The location of an item found before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its offset.
    pub offset: u64,
    /// The generation of its segment.
    pub generation: u64,
    /// Bytes to fetch: the item's, or its maximum.
    pub bytes: u32,
}

/// The kind of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The key is absent.
    Absent,
    /// The item has expired.
    Expired,
    /// The item was flushed.
    Flushed,
}

/// Why the server must be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// The clock of the status line has stopped.
    Clock,
    /// Items that the server found at its start are not verified yet.
    Unverified,
    /// The data kept changing.
    Contended,
    /// The item may be on the flash tier.
    OnFlash,
    /// The value is longer than the reader reads.
    TooLong,
    /// The region is corrupt, or a fetch returned something else than requested.
    Damaged,
    /// A fetch failed.
    NotFetched,
}

/// Why fetched data was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The bytes are not an item, though the generation is unchanged: half written, or never an item.
    Torn,
    /// The segment's generation has ended.
    Recycled,
    /// The item was replaced, deleted, evicted or moved.
    Dead,
    /// The item at a known location was flushed.
    Flushed,
    /// The item at a known location has expired.
    Expired,
    /// The slot changed before its item was read.
    SlotChanged,
    /// The group moved to an unknown table.
    Moved,
    /// The partition's head had changed.
    HeadChanged,
    /// Another key's item is at a cached location.
    OtherKey,
}

/// The number of rejections of each kind, numbered as in [`Rejection`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections(pub [u32; Rejection::KINDS]);

impl Rejection {
    /// The number of kinds.
    pub const KINDS: usize = Rejection::ALL.len();
    /// All kinds, in order.
    pub const ALL: [Rejection; 9] = [
        Rejection::Torn,
        Rejection::Recycled,
        Rejection::Dead,
        Rejection::Flushed,
        Rejection::Expired,
        Rejection::SlotChanged,
        Rejection::Moved,
        Rejection::HeadChanged,
        Rejection::OtherKey,
    ];
}

impl Rejections {
    /// Returns the number of one kind.
    pub fn of(&self, kind: Rejection) -> u32 {
        self.0[kind as usize]
    }

    fn count(&mut self, kind: Rejection) {
        self.0[kind as usize] += 1;
    }

    fn add(&mut self, others: &Rejections) {
        for (sum, count) in self.0.iter_mut().zip(others.0) {
            *sum += count;
        }
    }
}
