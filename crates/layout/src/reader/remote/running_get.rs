//! One GET in flight: what it waits for, and what has arrived.

use crate::hash::KeyHash;
use crate::item::KEY_BYTES_MAX;

use super::super::{FallbackReason, Get, Location, Reader, Rejections};
use super::GetId;
use super::chunks::ChunkProgress;
use super::lines::SequenceNumber;

/// An owned key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    len: u8,
    bytes: [u8; KEY_BYTES_MAX],
}

impl Key {
    /// Returns `None` if the key is too long.
    pub(super) fn of(key: &[u8]) -> Option<Key> {
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Key { len: key.len() as u8, bytes })
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Where a GET reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// At the cached location, then by key.
    Cached(Location),
    /// At this location only.
    At(Location),
    /// By key.
    ByKey,
}

impl Source {
    fn get(self, reader: &Reader, key: Key, hash: KeyHash) -> Get<Key> {
        let get = match self {
            Source::Cached(location) | Source::At(location) => Get::at(reader, key, location),
            Source::ByKey => Get::by_hash(reader, key, hash),
        };
        get.apart()
    }
}

/// A generation that was requested after the item, before the GET requests it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    /// The segment's counter at the time of the request.
    pub(super) count: Option<u64>,
    pub(super) word: Option<u64>,
}

/// The fetched input of a GET's next step, which may have to wait for the status line.
#[derive(Debug)]
pub(super) enum StepInput<B> {
    Nothing,
    Word(u64),
    Bytes {
        bytes: B,
        /// The number of requested bytes.
        len: usize,
        /// They are followed by the counters of emptied segments.
        is_settled: bool,
    },
}

/// A GET in flight.
#[derive(Debug)]
pub(super) struct RunningGet<B, T> {
    pub(super) id: GetId,
    pub(super) token: T,
    /// Distinguishes fetches of this attempt from those of earlier ones.
    pub(super) serial: u32,
    pub(super) source: Source,
    pub(super) get: Get<Key>,
    /// When it started, or an equivalent moment …
    pub(super) started: SequenceNumber,
    /// … because the line requested after that moment has a lease.
    pub(super) is_leased: bool,
    /// It needs a line requested after this moment.
    pub(super) needs_line: SequenceNumber,
    /// The counters of that line settle its item, not a generation of its own.
    pub(super) by_counts: bool,
    pub(super) behind: Option<Behind>,
    /// The generation in flight, if it was requested by this GET.
    pub(super) wants_behind: bool,
    pub(super) arrived: Option<StepInput<B>>,
    /// When that arrived.
    pub(super) arrived_ns: u64,
    /// The requested data is a word.
    pub(super) wants_word: bool,
    /// The bytes passed in last, which contain the value of a hit.
    pub(super) bytes: Option<B>,
    pub(super) chunks: ChunkProgress,
    /// A fetch failed while others write to its value.
    pub(super) failed: Option<FallbackReason>,
    /// Unsuccessful attempts, by reason.
    pub(super) rejections: Rejections,
}

impl<B, T> RunningGet<B, T> {
    pub(super) fn new(
        reader: &Reader,
        key: Key,
        hash: KeyHash,
        source: Source,
        id: GetId,
        token: T,
        (started, is_leased): (SequenceNumber, bool),
    ) -> RunningGet<B, T> {
        RunningGet {
            id,
            token,
            serial: id.serial,
            started,
            is_leased,
            source,
            get: source.get(reader, key, hash),
            needs_line: started,
            by_counts: false,
            behind: None,
            wants_behind: false,
            arrived: None,
            arrived_ns: 0,
            wants_word: false,
            bytes: None,
            chunks: ChunkProgress::default(),
            failed: None,
            rejections: Rejections::default(),
        }
    }

    /// Starts again, by key.
    pub(super) fn begin_by_key(&mut self, reader: &Reader) {
        self.source = Source::ByKey;
        self.begin_again(reader);
    }

    /// Starts again from the same source, at a moment after which no line is known.
    pub(super) fn begin_without_lease(&mut self, reader: &Reader, started: SequenceNumber) {
        (self.started, self.is_leased) = (started, false);
        self.begin_again(reader);
    }

    fn begin_again(&mut self, reader: &Reader) {
        self.rejections.add(&self.get.rejections());
        let (key, hash) = (*self.get.key(), self.get.hash());
        self.get = self.source.get(reader, key, hash);
        self.needs_line = self.started;
        (self.by_counts, self.wants_behind) = (false, false);
        (self.behind, self.arrived) = (None, None);
    }
}
