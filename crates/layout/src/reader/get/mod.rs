//! One GET: a state machine that names the next fetch and validates its result.
//!
//! - `search.rs`: the search of a key's slots in the index.
//! - `item.rs`: reads one item and validates its bytes.
//! - `chunks.rs`: the chunks of a chained value, one after the other.

mod chunks;
mod item;
mod search;

use crate::bounds::{READ_ATTEMPTS_MAX, READ_FETCHES_MAX};
use crate::directory::Head;
use crate::geometry::BucketOffsets;
use crate::hash::KeyHash;
use crate::item::{ALIGN_BYTES, ChunkEntry, HEADER_BYTES_MAX, Item, KEY_BYTES_MAX};
use crate::slot::Slot;

use self::search::slot_in;
use super::{
    FallbackReason, Fetched, Location, MetadataCache, Miss, ReadOutcome, Reader, Rejection, Rejections, Step,
    Value,
};

/// Maximum number of slots with the key's tag in one fetch of the index: of 32 slots with tags of 12 bits, that many
/// match by chance in one of 10^18 fetches.
const CANDIDATES_MAX: usize = 6;

/// The most bytes before the value of an item.
const HEAD_BYTES_MAX: u64 = (HEADER_BYTES_MAX + KEY_BYTES_MAX) as u64;

/// One GET in progress.
///
/// Call [`Get::next`] with nothing first, then with the result of each fetch, until it returns the outcome.
#[derive(Debug)]
pub struct Get<K> {
    key: K,
    hash: KeyHash,
    stage: Stage,
    /// Bytes that the last step requested.
    requested_bytes: usize,
    /// The segment's counter of emptied segments, as known when its generation was requested.
    requested_count: Option<u64>,
    attempts: u32,
    fetches: u32,
    rejections: Rejections,
    /// The GET uses a known location instead of the key's slots.
    by_location: bool,
    /// Long values are placed where the caller requests.
    places: bool,
    /// The caller supplies the status line later, and fetches the chunks of a chained value itself.
    is_apart: bool,
    search: Search,
    candidate: Candidate,
    judged: Option<ValidatedItem>,
    assembly: Assembly,
}

/// The last request, and hence the next input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Head,
    BlockNumbers,
    Home,
    Overflow,
    /// The slot of a link, which may have arrived in two halves.
    LinkAgain,
    Link,
    /// The generation of the candidate's segment, before its slot is fetched again.
    Generation,
    SlotAgain,
    Item,
    /// The part of a chained value's item that precedes the value.
    ItemHead,
    /// Its value, to be placed.
    Value,
    /// The generation of the candidate's segment, after its bytes.
    Still,
    FlushEpoch,
    /// The head again, after all buckets missed.
    HeadStill,
    ChunkGeneration,
    Chunk,
    ChunkValue,
    ChunkStill,
    /// All chunks, fetched by the caller.
    Chunks,
    Done,
}

/// Why chunks that the caller fetched cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkError {
    /// One of them was rejected.
    Rejected(Rejection),
    /// The chunk table is corrupt.
    Damaged,
}

/// How the chunks of a value ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunksEnd {
    /// All are in place.
    Placed,
    /// They cannot be used.
    Failed(ChunkError),
}

/// The segment of an item, and the generation that the segment must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemPlace {
    pub(super) segment: u32,
    pub(super) generation: u64,
}

/// The state of a search by key.
#[derive(Debug)]
struct Search {
    partition: usize,
    /// The head at its start.
    head: u64,
    /// Whether it searches the table that groups are moving to.
    in_next: bool,
    places: BucketOffsets,
    moved: bool,
    /// A slot of its buckets is an item's on flash.
    on_flash: bool,
    links: u32,
    /// The part of the key's buckets that follows the slots at hand.
    rest: Rest,
    /// Slots with the key's tag, and their offsets.
    slots: [(u64, Slot); CANDIDATES_MAX],
    slots_len: usize,
    slots_done: usize,
    /// The stamp of the metadata when these were fetched …
    stamp: u64,
    /// … and when they were requested, in nanoseconds, if known.
    requested_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    Overflow,
    /// The bucket at `to`, linked by the slot at `slot_at`.
    Link {
        slot_at: u64,
        to: u64,
    },
    Nothing,
}

/// An item being checked.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    slot_at: u64,
    slot: Slot,
    /// The stamp of the metadata when its slot was fetched, and when that was requested.
    stamp: u64,
    requested_ns: u64,
    segment: u32,
    location: Location,
}

/// The result of validating its bytes.
#[derive(Debug)]
struct ValidatedItem {
    item: Item,
    same_key: bool,
    value_at: usize,
    /// Whether its value is already placed.
    is_placed: bool,
    chunks: Vec<ChunkEntry>,
}

/// A value being assembled.
#[derive(Debug, Default)]
struct Assembly {
    chunks: Vec<ChunkEntry>,
    next: usize,
    segment: u32,
    generation: u64,
    /// Whether the bytes fetched last are the chunk's, already in `value`.
    is_taken: bool,
    value: Vec<u8>,
    /// Bytes that are placed, and the total.
    placed: usize,
    whole: usize,
}

impl<K: AsRef<[u8]>> Get<K> {
    /// Returns a GET by key.
    pub fn by_key(reader: &Reader, key: K) -> Get<K> {
        let hash = reader.hash(key.as_ref());
        Get::by_hash(reader, key, hash)
    }

    /// Returns the GET of a key whose hash is known.
    #[inline]
    pub(super) fn by_hash(reader: &Reader, key: K, hash: KeyHash) -> Get<K> {
        let location = Location { offset: 0, generation: 0, bytes: 0 };
        Get::new(reader, key, hash, location, false)
    }

    /// Returns a GET at the location where the key's item was found before: it ends in a hit or stale.
    pub fn at(reader: &Reader, key: K, location: Location) -> Get<K> {
        let hash = reader.hash(key.as_ref());
        Get::new(reader, key, hash, location, true)
    }

    #[inline]
    fn new(reader: &Reader, key: K, hash: KeyHash, location: Location, by_location: bool) -> Get<K> {
        let places = BucketOffsets { home: 0, neighbour: 0, overflow: 0, overflow_end: 0 };
        Get {
            key,
            hash,
            stage: Stage::Start,
            requested_bytes: 0,
            attempts: 0,
            fetches: 0,
            rejections: Rejections::default(),
            by_location,
            places: false,
            is_apart: false,
            requested_count: None,
            search: Search {
                partition: hash.partition(reader.geometry.partition_bits),
                head: 0,
                in_next: false,
                places,
                moved: false,
                on_flash: false,
                links: 0,
                rest: Rest::Nothing,
                slots: [(0, Slot::EMPTY); CANDIDATES_MAX],
                slots_len: 0,
                slots_done: 0,
                stamp: 0,
                requested_ns: 0,
            },
            candidate: Candidate {
                slot_at: 0,
                slot: Slot::EMPTY,
                stamp: 0,
                requested_ns: 0,
                segment: 0,
                location,
            },
            judged: None,
            assembly: Assembly::default(),
        }
    }

    /// Places long values where the caller requests ([`Step::Value`]). Not for [`Validation::Remote`], whose checksum
    /// covers all bytes of an item.
    ///
    /// [`Validation::Remote`]: super::Validation::Remote
    #[inline]
    pub fn placing(mut self, reader: &Reader) -> Get<K> {
        self.places = !reader.is_remote();
        self
    }

    /// Prepares the GET for [`Remote`](super::Remote): the status line is known when the input that
    /// [`Get::awaits_line`] concerns is supplied, not when the GET starts, and for a long value the GET only returns
    /// its chunks ([`Step::Chunks`]).
    pub(super) fn apart(mut self) -> Get<K> {
        self.is_apart = true;
        self
    }

    /// Returns whether the status line decides about the last request.
    pub(super) fn awaits_line(&self) -> bool {
        matches!(self.stage, Stage::Item | Stage::HeadStill)
    }

    /// Returns whether it waits for an item at a cached location.
    pub(super) fn is_at_item(&self) -> bool {
        self.by_location && self.stage == Stage::Item
    }

    /// Returns whether it waits for an item by key.
    pub(super) fn is_at_slots_item(&self) -> bool {
        !self.by_location && self.stage == Stage::Item
    }

    /// Records that the request is posted now.
    pub(super) fn note_requested(&mut self, ns: u64) {
        match self.stage {
            Stage::Home | Stage::Overflow | Stage::Link => self.search.requested_ns = ns,
            Stage::SlotAgain => self.candidate.requested_ns = ns,
            _ => {}
        }
    }

    /// Returns when the slot that points to the item was requested.
    pub(super) fn slot_requested_ns(&self) -> u64 {
        self.candidate.requested_ns
    }

    /// Returns whether the last request was for the generation after its item.
    pub(super) fn awaits_generation_after(&self) -> bool {
        self.stage == Stage::Still
    }

    /// Returns the place of its item.
    pub(super) fn place(&self) -> ItemPlace {
        ItemPlace { segment: self.candidate.segment, generation: self.candidate.location.generation }
    }

    /// Sets the segment's counter as it was known when the generation now supplied was requested.
    pub(super) fn set_requested_count(&mut self, count: Option<u64>) {
        self.requested_count = count;
    }

    /// Returns the key.
    pub(super) fn key(&self) -> &K {
        &self.key
    }

    /// Returns the chunks of the value, after [`Step::Chunks`].
    pub(super) fn chunks(&self) -> &[ChunkEntry] {
        &self.assembly.chunks
    }

    /// Completes chunk fetching: all chunks are placed, one was rejected, or the table is corrupt.
    pub(super) fn end_chunks(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        end: ChunksEnd,
    ) -> Step {
        match end {
            ChunksEnd::Placed => self.hit(Value::Placed),
            ChunksEnd::Failed(ChunkError::Rejected(why)) => self.reject(reader, metadata, why),
            ChunksEnd::Failed(ChunkError::Damaged) => self.ask_server(FallbackReason::Damaged),
        }
    }

    /// Returns the hash of the key, by which sampled reads are reported to the server.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Returns the rejected attempts, by reason.
    pub fn rejections(&self) -> Rejections {
        self.rejections
    }

    /// Takes the value of a hit that is [`Value::Assembled`].
    pub fn take_assembled(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.assembly.value)
    }

    /// Takes the result of the last request and returns the next step. `metadata` is of the same region, and its
    /// batch began after this GET was requested, or together with it.
    pub fn next(&mut self, reader: &Reader, metadata: &mut MetadataCache, fetched: Fetched<'_>) -> Step {
        match (self.stage, fetched) {
            (Stage::Start, Fetched::Nothing) => self.start(reader, metadata),
            (_, Fetched::Word(word)) => self.take_word(reader, metadata, word),
            (_, Fetched::Bytes(bytes)) if bytes.len() == self.requested_bytes => {
                self.take_bytes(reader, metadata, bytes, false)
            }
            (Stage::Item, Fetched::Settled(bytes)) if bytes.len() == self.requested_bytes => {
                self.take_bytes(reader, metadata, bytes, true)
            }
            (Stage::Value, Fetched::Placed) => self.refetch_generation(reader, metadata),
            (Stage::ChunkValue, Fetched::Placed) => self.refetch_chunk_generation(reader, metadata),
            _ => self.ask_server(FallbackReason::Damaged),
        }
    }

    fn take_word(&mut self, reader: &Reader, metadata: &mut MetadataCache, word: u64) -> Step {
        let partition = self.search.partition;
        match self.stage {
            Stage::Head => {
                metadata.set_head(partition, word);
                self.search(reader, metadata)
            }
            Stage::Generation => {
                metadata.set_generation(self.candidate.segment, word, self.requested_count);
                self.refetch_slot(metadata)
            }
            Stage::SlotAgain if Slot(word).same_item(self.candidate.slot) => {
                self.check_candidate(reader, metadata)
            }
            Stage::SlotAgain => self.reject(reader, metadata, Rejection::SlotChanged),
            Stage::LinkAgain => self.take_link_again(reader, metadata, Slot(word)),
            Stage::Still => self.take_still(reader, metadata, word),
            Stage::FlushEpoch => {
                metadata.set_flush_epoch(word);
                self.judge_epoch(reader, metadata, true)
            }
            Stage::HeadStill if word == self.search.head => match metadata.status_line() {
                Ok(_) => self.done(ReadOutcome::Miss(Miss::Absent)),
                Err(reason) => self.ask_server(reason),
            },
            Stage::HeadStill => {
                metadata.set_head(partition, word);
                self.reject(reader, metadata, Rejection::HeadChanged)
            }
            Stage::ChunkGeneration => {
                metadata.set_generation(self.assembly.segment, word, self.requested_count);
                self.fetch_chunk(reader, metadata)
            }
            Stage::ChunkStill => self.take_chunk_still(reader, metadata, word),
            _ => self.ask_server(FallbackReason::Damaged),
        }
    }

    fn take_bytes(
        &mut self,
        reader: &Reader,
        metadata: &mut MetadataCache,
        bytes: &[u8],
        settled: bool,
    ) -> Step {
        match self.stage {
            Stage::BlockNumbers => {
                let search = &self.search;
                let head = Head::from_word(search.head);
                let table = if search.in_next { 1 - head.current } else { head.current };
                metadata.set_block_numbers(search.partition, table, search.head, bytes);
                self.search_table(reader, metadata, true)
            }
            Stage::Home => {
                let places = self.search.places;
                let start = places.home.min(places.neighbour);
                if !self.take_slots(start, bytes, false) {
                    return self.ask_server(FallbackReason::Contended);
                }
                let first = (places.home - start) as usize / 8;
                let is_overflowed = slot_in(bytes, first).is_overflowed();
                self.search.rest = if is_overflowed { Rest::Overflow } else { Rest::Nothing };
                self.next_candidate(reader, metadata)
            }
            Stage::Overflow | Stage::Link => {
                let start = match self.search.rest {
                    Rest::Link { to, .. } => to,
                    _ => self.search.places.overflow,
                };
                if !self.take_slots(start, bytes, true) {
                    return self.ask_server(FallbackReason::Contended);
                }
                // An item in the last slot is copied to the linked bucket before the link replaces it, so it is seen
                // here or there.
                let last = slot_in(bytes, bytes.len() / 8 - 1);
                let slot_at = start + bytes.len() as u64 - 8;
                let link = last.link_offset().filter(|_| last.is_link());
                self.search.rest = link.map_or(Rest::Nothing, |to| Rest::Link { slot_at, to });
                self.next_candidate(reader, metadata)
            }
            Stage::Item => self.take_item(reader, metadata, bytes, settled),
            Stage::ItemHead => self.take_item_head(reader, metadata, bytes),
            Stage::Chunk => self.take_chunk(reader, metadata, bytes),
            _ => self.ask_server(FallbackReason::Damaged),
        }
    }

    // ---- what to fetch ----

    fn fetch_word(&mut self, stage: Stage, offset: u64) -> Step {
        debug_assert!(offset.is_multiple_of(8));
        self.request(stage, Step::Word(offset))
    }

    fn fetch_bytes(&mut self, stage: Stage, offset: u64, len: u64) -> Step {
        self.requested_bytes = len as usize;
        self.request(stage, Step::Bytes { offset, len: len as usize })
    }

    fn request(&mut self, stage: Stage, step: Step) -> Step {
        self.stage = stage;
        // The chunk table bounds the number of the others.
        let is_counted =
            !matches!(stage, Stage::ChunkGeneration | Stage::Chunk | Stage::ChunkValue | Stage::ChunkStill);
        self.fetches += u32::from(is_counted);
        if self.fetches > READ_FETCHES_MAX {
            return self.ask_server(FallbackReason::Contended);
        }
        step
    }

    fn done(&mut self, outcome: ReadOutcome) -> Step {
        self.stage = Stage::Done;
        Step::Done(outcome)
    }

    fn ask_server(&mut self, reason: FallbackReason) -> Step {
        self.done(ReadOutcome::Fallback(reason))
    }

    /// Rejects the fetched bytes. A GET by key starts again from the present metadata.
    fn reject(&mut self, reader: &Reader, metadata: &mut MetadataCache, why: Rejection) -> Step {
        self.rejections.count(why);
        if self.by_location {
            return self.done(ReadOutcome::Stale(why));
        }
        self.attempts += 1;
        if self.attempts >= READ_ATTEMPTS_MAX {
            return self.ask_server(FallbackReason::Contended);
        }
        self.assembly = Assembly::default();
        self.search(reader, metadata)
    }

    fn start(&mut self, reader: &Reader, metadata: &mut MetadataCache) -> Step {
        if !self.is_apart
            && let Err(reason) = metadata.status_line()
        {
            return self.ask_server(reason);
        }
        if !self.by_location {
            return self.search(reader, metadata);
        }
        let offset = self.candidate.location.offset;
        match reader.geometry.segment_of(offset) {
            Some(segment) if offset.is_multiple_of(ALIGN_BYTES) => {
                self.candidate.segment = segment;
                self.fetch_item(reader)
            }
            _ => self.reject(reader, metadata, Rejection::Recycled),
        }
    }
}
