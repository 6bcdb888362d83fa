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
pub mod remote;
mod validate;

pub use get::Get;
pub use hints::reads_to_report;
pub use mapped::Mapped;
pub use metadata_cache::MetadataCache;
pub use prefetch::KEYS_AHEAD;
#[cfg(not(loom))]
pub use region::Region;
pub use remote::Remote;

use crate::bounds::SEGMENTS_FROM_AFAR_MAX;
use crate::checksum::Secret;
use crate::geometry::Geometry;
use crate::hash::KeyHash;
use crate::header::{Birth, HeaderError};
use crate::item::{Item, State};

/// How it is told that fetched bytes are those of one item.
#[derive(Clone, Debug)]
pub enum Validation {
    /// By its checksum, for which the server gave the region's secret.
    Remote(Secret),
    /// By the segment's generation, looked at before and after: for memory of the same host, whose loads are ordered by
    /// acquire fences.
    SameHost,
}

/// What is the same for all GETs of a region.
#[derive(Clone, Debug)]
pub struct Reader {
    geometry: Geometry,
    hash_seed: u64,
    mode: Validation,
}

impl Reader {
    /// A reader of the region with this header.
    ///
    /// # Errors
    /// The geometry is not sound, or has more segments than are read from afar.
    pub fn new(birth: &Birth, mode: Validation) -> Result<Reader, HeaderError> {
        let is_too_much =
            matches!(mode, Validation::Remote(_)) && birth.geometry.segments > SEGMENTS_FROM_AFAR_MAX;
        if !birth.geometry.is_sound() || is_too_much {
            return Err(HeaderError::Geometry);
        }
        Ok(Reader { geometry: birth.geometry, hash_seed: birth.hash_seed, mode })
    }

    /// Where everything lies.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The hash of a key in this region.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.hash_seed)
    }

    fn is_remote(&self) -> bool {
        matches!(self.mode, Validation::Remote(_))
    }
}

/// What a GET wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The eight bytes at this offset, a multiple of 8, as one word.
    Word(u64),
    /// `len` bytes from `offset` on; at most a segment. They are kept until the next bytes are asked for: the value
    /// of a hit is in them.
    Bytes {
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// `len` bytes from `offset` on, to be put at `at` of the value, of which nothing is behind them. Only where this is
    /// wanted ([`Get::placing`]): so a long value is copied once.
    Value {
        /// Where in the value: 0, or behind what was last put there.
        at: usize,
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Bytes of the whole value, if it is what it seems to be.
        whole: usize,
    },
    /// The chunks of a value of so many bytes, where these are fetched by whoever runs the GET ([`Remote`]).
    Chunks {
        /// Bytes of the whole value.
        whole: usize,
    },
    /// Nothing: this is what it came to.
    Done(ReadOutcome),
}

/// What was fetched.
#[derive(Clone, Copy, Debug)]
pub enum Fetched<'a> {
    /// Nothing yet.
    Nothing,
    /// The word that was asked for.
    Word(u64),
    /// The bytes that were asked for.
    Bytes(&'a [u8]),
    /// The bytes that were asked for, of an item. At a known location: behind them were fetched the counts of emptied
    /// segments that are known. By key: nothing was written over since the slot said that the item was there.
    Settled(&'a [u8]),
    /// The bytes of the value are where they were wanted.
    Placed,
}

/// What a GET came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The item.
    Hit(Hit),
    /// The key is not stored.
    Miss(Miss),
    /// Nothing valid is at the location any more; a GET by key tells.
    Stale(Rejection),
    /// The region does not tell: ask the server.
    AskServer(FallbackReason),
    /// No server maintains the region any more; nothing read from it counts. Only [`Remote`] returns this.
    Gone,
}

/// An item that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Client flags.
    pub flags: u32,
    /// CAS value, as stored.
    pub cas: u64,
    /// Second of the region's clock from which it is expired; 0 for never.
    pub expiry: u32,
    /// It is stale (meta protocol).
    pub stale: bool,
    /// A client was told that it won (meta protocol).
    pub token_sent: bool,
    /// Its key was given in base64.
    pub binary_key: bool,
    /// Reads that its slot counts, if it was found by key.
    pub frequency: Option<u8>,
    /// The value.
    pub value: Value,
    /// Where it was found: a later GET may look there at once.
    pub location: Location,
}

impl Hit {
    /// Whether it is expired at this second.
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

/// Where the value of a hit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// In the bytes fetched last.
    Fetched {
        /// Where it starts there.
        at: usize,
        /// Its bytes.
        len: usize,
    },
    /// Put together from chunks: [`Get::take_assembled`].
    Assembled,
    /// Where it was to be put ([`Step::Value`]).
    Placed,
}

/// Where an item was once found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its offset.
    pub offset: u64,
    /// The generation of its segment.
    pub generation: u64,
    /// Bytes to fetch: all that it has, where it was found, or may have.
    pub bytes: u32,
}

/// Why there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// No such key.
    Absent,
    /// It was there and has expired.
    Expired,
    /// It was there and has been flushed.
    Flushed,
}

/// Why the server is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// The clock of the status line has stopped.
    Clock,
    /// What was read kept changing.
    Contended,
    /// The item is on the flash tier.
    OnFlash,
    /// The region says what cannot be, or a fetch was not what was asked for.
    Damaged,
    /// A fetch failed.
    NotFetched,
}

/// Why what was fetched does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The bytes are no item in a generation that is the same: half written, or never one.
    Torn,
    /// The segment's generation has ended.
    Recycled,
    /// The item was replaced, deleted, evicted or moved.
    Dead,
    /// The item at a known location was flushed.
    Flushed,
    /// The item at a known location has expired.
    Expired,
    /// The slot changed before its item was looked at.
    SlotChanged,
    /// The group had moved to a table not known of.
    Moved,
    /// The partition's head had changed.
    HeadChanged,
    /// Another key's item is at a known location.
    OtherKey,
}

/// How many rejections of each kind; those are numbered as in [`Rejection`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejections(pub [u32; Rejection::KINDS]);

impl Rejection {
    /// How many kinds there are.
    pub const KINDS: usize = Rejection::ALL.len();
    /// All of them, in order.
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
    /// How many of one kind.
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
