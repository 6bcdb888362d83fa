//! One GET: a state machine that says what to fetch next and judges what was fetched.

use crate::bounds::{FETCHED_WHOLE_BYTES_MAX, LINKS_READ_MAX, READ_ATTEMPTS_MAX, READ_FETCHES_MAX};
use crate::directory::{BLOCKS_PER_TABLE_MAX, Head, block_number_offset, head_offset};
use crate::geometry::{BUCKET_BYTES, GROUP_BYTES, Places};
use crate::hash::KeyHash;
use crate::header::FLUSH_EPOCH_AT;
use crate::item::{ALIGN_BYTES, HEADER_BYTES_MAX, Item, KEY_BYTES_MAX, PieceEntry, State};
use crate::segment::generation_offset;
use crate::size_class;
use crate::slot::Slot;

use super::known::KnownGeneration;
use super::{
    Fetched, Hit, Known, Location, Miss, Outcome, Reader, Reason, Rejection, Rejections, Step, Value, judge,
};

/// The most slots with the key's tag in what is fetched of the index at once: of 32 slots with tags of 12 bits that many
/// are there by chance in one of 10^18 fetches.
const CANDIDATES_MAX: usize = 6;

/// All that can be before the value of an item.
const HEAD_BYTES_MAX: u64 = (HEADER_BYTES_MAX + KEY_BYTES_MAX) as u64;

/// One GET under way.
///
/// [`Get::next`] is called with nothing first, then with what it asked for, until it says that it is done.
#[derive(Debug)]
pub struct Get<K> {
    key: K,
    hash: KeyHash,
    stage: Stage,
    /// Bytes that the last step asked for.
    asked_bytes: usize,
    /// How often the segment had been emptied, by what was known, when its generation was asked for.
    asked_count: Option<u64>,
    attempts: u32,
    fetches: u32,
    rejections: Rejections,
    /// Looked for at a known location, not by key.
    by_location: bool,
    /// Long values are put where they are wanted.
    places: bool,
    /// Its line comes later, and the pieces of a long value are for whoever runs it.
    is_apart: bool,
    search: Search,
    candidate: Candidate,
    judged: Option<Judged>,
    assembly: Assembly,
}

/// What was asked for last, and so what is handed in next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Head,
    BlockNumbers,
    Home,
    Overflow,
    Link,
    /// Of the candidate's segment, before its slot is fetched again.
    Generation,
    SlotAgain,
    Item,
    /// What of a long item is before its value.
    ItemHead,
    /// Its value, to be put in place.
    Value,
    /// The generation of the candidate's segment, behind its bytes.
    Still,
    FlushEpoch,
    /// Behind all places of a key that is in none.
    HeadStill,
    PieceGeneration,
    Piece,
    PieceValue,
    PieceStill,
    /// All pieces, by whoever runs it.
    Pieces,
    Done,
}

/// Why pieces that were fetched by others come to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PiecesFailed {
    /// One of them does not count.
    Rejected(Rejection),
    /// The table says what cannot be.
    Damaged,
}

/// Where a search by key stands.
#[derive(Debug)]
struct Search {
    partition: usize,
    /// The head with which it began.
    head: u64,
    /// It is in the table that groups are moving to.
    in_next: bool,
    places: Places,
    moved: bool,
    links: u32,
    /// What of the places comes behind the slots at hand.
    rest: Rest,
    /// Slots with the key's tag, and where they lie.
    slots: [(u64, Slot); CANDIDATES_MAX],
    slots_len: usize,
    slots_done: usize,
    /// What was known when these were fetched …
    stamp: u64,
    /// … and when they were asked for, in nanoseconds, where that is told.
    asked_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    Overflow,
    Link(u64),
    Nothing,
}

/// An item being looked at.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    slot_at: u64,
    slot: Slot,
    /// What was known when its slot was fetched, and when that was asked for.
    stamp: u64,
    asked_ns: u64,
    segment: u32,
    location: Location,
}

/// What its bytes say.
#[derive(Debug)]
struct Judged {
    item: Item,
    same_key: bool,
    value_at: usize,
    /// Its value is in place.
    is_placed: bool,
    pieces: Vec<PieceEntry>,
}

/// A value being put together.
#[derive(Debug, Default)]
struct Assembly {
    pieces: Vec<PieceEntry>,
    next: usize,
    segment: u32,
    generation: u64,
    /// The bytes fetched last are those of the piece, and in `value`.
    is_taken: bool,
    value: Vec<u8>,
    /// Bytes that are in place, and those that will be.
    placed: usize,
    whole: usize,
}

impl<K: AsRef<[u8]>> Get<K> {
    /// A GET by key.
    pub fn by_key(reader: &Reader, key: K) -> Get<K> {
        let hash = reader.hash(key.as_ref());
        Get::by_hash(reader, key, hash)
    }

    /// The same of a key whose hash is known.
    #[inline]
    pub(super) fn by_hash(reader: &Reader, key: K, hash: KeyHash) -> Get<K> {
        let location = Location { offset: 0, generation: 0, bytes: 0 };
        Get::new(reader, key, hash, location, false)
    }

    /// A GET at the location where the key's item was found before: a hit, or stale.
    pub fn at(reader: &Reader, key: K, location: Location) -> Get<K> {
        let hash = reader.hash(key.as_ref());
        Get::new(reader, key, hash, location, true)
    }

    #[inline]
    fn new(reader: &Reader, key: K, hash: KeyHash, location: Location, by_location: bool) -> Get<K> {
        let places = Places { home: 0, neighbour: 0, overflow: 0, overflow_end: 0 };
        Get {
            key,
            hash,
            stage: Stage::Start,
            asked_bytes: 0,
            attempts: 0,
            fetches: 0,
            rejections: Rejections::default(),
            by_location,
            places: false,
            is_apart: false,
            asked_count: None,
            search: Search {
                partition: hash.partition(reader.geometry.partition_bits),
                head: 0,
                in_next: false,
                places,
                moved: false,
                links: 0,
                rest: Rest::Nothing,
                slots: [(0, Slot::EMPTY); CANDIDATES_MAX],
                slots_len: 0,
                slots_done: 0,
                stamp: 0,
                asked_ns: 0,
            },
            candidate: Candidate {
                slot_at: 0,
                slot: Slot::EMPTY,
                stamp: 0,
                asked_ns: 0,
                segment: 0,
                location,
            },
            judged: None,
            assembly: Assembly::default(),
        }
    }

    /// Long values are put where they are wanted ([`Step::Value`]). Not of [`Mode::Remote`], where all bytes of an item are
    /// under its checksum.
    ///
    /// [`Mode::Remote`]: super::Mode::Remote
    #[inline]
    pub fn placing(mut self, reader: &Reader) -> Get<K> {
        self.places = !reader.is_remote();
        self
    }

    /// It is run by [`Remote`](super::Remote): the published line is known by the time that what [`Get::awaits_line`] is
    /// handed in, not when it begins, and of a long value it says only which pieces it has ([`Step::Pieces`]).
    pub(super) fn apart(mut self) -> Get<K> {
        self.is_apart = true;
        self
    }

    /// What it asked for last is judged by the published line.
    pub(super) fn awaits_line(&self) -> bool {
        matches!(self.stage, Stage::Item | Stage::HeadStill)
    }

    /// At a known location, and its item was asked for.
    pub(super) fn is_at_item(&self) -> bool {
        self.by_location && self.stage == Stage::Item
    }

    /// By key, and an item was asked for.
    pub(super) fn is_at_slots_item(&self) -> bool {
        !self.by_location && self.stage == Stage::Item
    }

    /// What it asked for is asked for now.
    pub(super) fn note_asked(&mut self, ns: u64) {
        match self.stage {
            Stage::Home | Stage::Overflow | Stage::Link => self.search.asked_ns = ns,
            Stage::SlotAgain => self.candidate.asked_ns = ns,
            _ => {}
        }
    }

    /// When the slot was asked for that says that the item is there.
    pub(super) fn slot_asked_ns(&self) -> u64 {
        self.candidate.asked_ns
    }

    /// It asked whether the generation is still the same behind its item.
    pub(super) fn asks_still(&self) -> bool {
        self.stage == Stage::Still
    }

    /// The segment where it looks, and the generation that this has if its item counts.
    pub(super) fn place(&self) -> (u32, u64) {
        (self.candidate.segment, self.candidate.location.generation)
    }

    /// The generation that it is handed was asked for before it asked: the segment's count as it was known then.
    pub(super) fn set_asked_count(&mut self, count: Option<u64>) {
        self.asked_count = count;
    }

    /// The key.
    pub(super) fn key(&self) -> &K {
        &self.key
    }

    /// The pieces of the value, after [`Step::Pieces`].
    pub(super) fn pieces(&self) -> &[PieceEntry] {
        &self.assembly.pieces
    }

    /// All pieces are in place, or one did not count, or they cannot be.
    pub(super) fn end_pieces(
        &mut self,
        reader: &Reader,
        known: &mut Known,
        end: Result<(), PiecesFailed>,
    ) -> Step {
        match end {
            Ok(()) => self.hit(Value::Placed),
            Err(PiecesFailed::Rejected(why)) => self.reject(reader, known, why),
            Err(PiecesFailed::Damaged) => self.ask_server(Reason::Damaged),
        }
    }

    /// The hash of the key, by which the server is told of sampled reads.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// What did not count so far, and why.
    pub fn rejections(&self) -> Rejections {
        self.rejections
    }

    /// The value of a hit that is [`Value::Assembled`].
    pub fn take_assembled(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.assembly.value)
    }

    /// Takes what was asked for and says what to fetch next. `known` is of the same region, and its batch began after
    /// this GET was asked for, or together with it.
    pub fn next(&mut self, reader: &Reader, known: &mut Known, fetched: Fetched<'_>) -> Step {
        match (self.stage, fetched) {
            (Stage::Start, Fetched::Nothing) => self.start(reader, known),
            (_, Fetched::Word(word)) => self.take_word(reader, known, word),
            (_, Fetched::Bytes(bytes)) if bytes.len() == self.asked_bytes => {
                self.take_bytes(reader, known, bytes, false)
            }
            (Stage::Item, Fetched::Settled(bytes)) if bytes.len() == self.asked_bytes => {
                self.take_bytes(reader, known, bytes, true)
            }
            (Stage::Value, Fetched::Placed) => self.ask_still(reader, known),
            (Stage::PieceValue, Fetched::Placed) => self.ask_piece_still(reader, known),
            _ => self.ask_server(Reason::Damaged),
        }
    }

    fn take_word(&mut self, reader: &Reader, known: &mut Known, word: u64) -> Step {
        let partition = self.search.partition;
        match self.stage {
            Stage::Head => {
                known.set_head(partition, word);
                self.search(reader, known)
            }
            Stage::Generation => {
                known.set_generation(self.candidate.segment, word, self.asked_count);
                self.ask_slot_again(known)
            }
            Stage::SlotAgain if Slot(word).same_item(self.candidate.slot) => {
                self.look_at_candidate(reader, known)
            }
            Stage::SlotAgain => self.reject(reader, known, Rejection::SlotChanged),
            Stage::Still => self.take_still(reader, known, word),
            Stage::FlushEpoch => {
                known.set_flush_epoch(word);
                self.judge_epoch(reader, known, true)
            }
            Stage::HeadStill if word == self.search.head && known.published().is_some() => {
                self.done(Outcome::Miss(Miss::Absent))
            }
            Stage::HeadStill if word == self.search.head => self.ask_server(Reason::Clock),
            Stage::HeadStill => {
                known.set_head(partition, word);
                self.reject(reader, known, Rejection::HeadChanged)
            }
            Stage::PieceGeneration => {
                known.set_generation(self.assembly.segment, word, self.asked_count);
                self.ask_piece(reader, known)
            }
            Stage::PieceStill => self.take_piece_still(reader, known, word),
            _ => self.ask_server(Reason::Damaged),
        }
    }

    fn take_bytes(&mut self, reader: &Reader, known: &mut Known, bytes: &[u8], settled: bool) -> Step {
        match self.stage {
            Stage::BlockNumbers => {
                let search = &self.search;
                let head = Head::from_word(search.head);
                let table = if search.in_next { 1 - head.current } else { head.current };
                known.set_block_numbers(search.partition, table, search.head, bytes);
                self.search_table(reader, known, true)
            }
            Stage::Home => {
                let places = self.search.places;
                let start = places.home.min(places.neighbour);
                if !self.take_slots(start, bytes) {
                    return self.ask_server(Reason::Contended);
                }
                let first = (places.home - start) as usize / 8;
                let is_overflowed = slot_in(bytes, first).is_overflowed();
                self.search.rest = if is_overflowed { Rest::Overflow } else { Rest::Nothing };
                self.next_candidate(reader, known)
            }
            Stage::Overflow | Stage::Link => {
                let start =
                    if let Rest::Link(at) = self.search.rest { at } else { self.search.places.overflow };
                if !self.take_slots(start, bytes) {
                    return self.ask_server(Reason::Contended);
                }
                // An item in the last slot is copied to the linked bucket before the link replaces it, so it is seen
                // here or there.
                let link = slot_in(bytes, bytes.len() / 8 - 1).link_offset();
                self.search.rest = link.map_or(Rest::Nothing, Rest::Link);
                self.next_candidate(reader, known)
            }
            Stage::Item => self.take_item(reader, known, bytes, settled),
            Stage::ItemHead => self.take_item_head(reader, known, bytes),
            Stage::Piece => self.take_piece(reader, known, bytes),
            _ => self.ask_server(Reason::Damaged),
        }
    }

    // ---- what to fetch ----

    fn ask_word(&mut self, stage: Stage, offset: u64) -> Step {
        debug_assert!(offset.is_multiple_of(8));
        self.ask(stage, Step::Word(offset))
    }

    fn ask_bytes(&mut self, stage: Stage, offset: u64, len: u64) -> Step {
        self.asked_bytes = len as usize;
        self.ask(stage, Step::Bytes { offset, len: len as usize })
    }

    fn ask(&mut self, stage: Stage, step: Step) -> Step {
        self.stage = stage;
        // How many of the others there are is bounded by the table of pieces.
        let is_counted =
            !matches!(stage, Stage::PieceGeneration | Stage::Piece | Stage::PieceValue | Stage::PieceStill);
        self.fetches += u32::from(is_counted);
        if self.fetches > READ_FETCHES_MAX {
            return self.ask_server(Reason::Contended);
        }
        step
    }

    fn done(&mut self, outcome: Outcome) -> Step {
        self.stage = Stage::Done;
        Step::Done(outcome)
    }

    fn ask_server(&mut self, reason: Reason) -> Step {
        self.done(Outcome::AskServer(reason))
    }

    /// What was fetched does not count: by key, again from what is known now.
    fn reject(&mut self, reader: &Reader, known: &mut Known, why: Rejection) -> Step {
        self.rejections.count(why);
        if self.by_location {
            return self.done(Outcome::Stale(why));
        }
        self.attempts += 1;
        if self.attempts >= READ_ATTEMPTS_MAX {
            return self.ask_server(Reason::Contended);
        }
        self.assembly = Assembly::default();
        self.search(reader, known)
    }

    fn start(&mut self, reader: &Reader, known: &mut Known) -> Step {
        if known.published().is_none() && !self.is_apart {
            return self.ask_server(Reason::Clock);
        }
        if !self.by_location {
            return self.search(reader, known);
        }
        let offset = self.candidate.location.offset;
        match reader.geometry.segment_of(offset) {
            Some(segment) if offset.is_multiple_of(ALIGN_BYTES) => {
                self.candidate.segment = segment;
                self.ask_item(reader)
            }
            _ => self.reject(reader, known, Rejection::Recycled),
        }
    }

    // ---- searching the index ----

    fn search(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let partition = self.search.partition;
        let Some(head) = known.head(partition) else {
            return self.ask_word(Stage::Head, head_offset(&reader.geometry, partition));
        };
        self.search.head = head;
        self.search.in_next = false;
        self.search.links = 0;
        self.search_table(reader, known, false)
    }

    /// Fetches home and neighbour in the current table, or the one that groups are moving to.
    fn search_table(&mut self, reader: &Reader, known: &mut Known, numbers_fetched: bool) -> Step {
        let geometry = &reader.geometry;
        let search = &mut self.search;
        let partition = search.partition;
        if known.head(partition) != Some(search.head) {
            return self.reject(reader, known, Rejection::HeadChanged);
        }
        let head = Head::from_word(search.head);
        let (table, groups) = match (search.in_next, head.next_groups) {
            (true, Some(next_groups)) => (1 - head.current, next_groups),
            _ => (head.current, head.groups),
        };
        let blocks = groups.div_ceil(1 << geometry.block_shift) as usize;
        let group = self.hash.group(geometry.partition_bits, groups);
        let block = (group >> geometry.block_shift) as usize;
        let Some(number) = known.block_number(partition, table, block) else {
            if numbers_fetched || blocks > BLOCKS_PER_TABLE_MAX || blocks == 0 {
                return self.head_is_wrong(reader, known, Rejection::HeadChanged);
            }
            let at = block_number_offset(geometry, partition, table, 0);
            return self.ask_bytes(Stage::BlockNumbers, at, blocks as u64 * 4);
        };
        let Some(offset) = reader.group_offset(number, group) else {
            return self.head_is_wrong(reader, known, Rejection::HeadChanged);
        };
        search.places = Places::of(offset, self.hash);
        search.moved = false;
        search.stamp = known.stamp();
        let start = search.places.home.min(search.places.neighbour);
        self.ask_bytes(Stage::Home, start, 2 * BUCKET_BYTES)
    }

    /// What is known of the partition is of no use.
    fn head_is_wrong(&mut self, reader: &Reader, known: &mut Known, why: Rejection) -> Step {
        known.forget_partition(self.search.partition);
        self.reject(reader, known, why)
    }

    /// Whether there are few enough.
    fn take_slots(&mut self, start: u64, bytes: &[u8]) -> bool {
        let search = &mut self.search;
        let tag = self.hash.tag();
        (search.slots_len, search.slots_done) = (0, 0);
        // All without a branch, for nearly all are other keys'.
        let (mut matching, mut moved) = (0u64, false);
        let words = bytes.as_chunks().0;
        for (i, word) in words.iter().enumerate() {
            let slot = Slot(u64::from_le_bytes(*word));
            moved |= slot.is_moved();
            matching |= u64::from(slot.matches(tag)) << i;
        }
        search.moved |= moved && !cfg!(fabcache_without = "moved");
        while matching != 0 {
            let i = matching.trailing_zeros() as usize;
            matching &= matching - 1;
            let Some(next) = search.slots.get_mut(search.slots_len) else { return false };
            *next = (start + 8 * i as u64, slot_in(bytes, i));
            search.slots_len += 1;
        }
        true
    }

    /// Looks at the next slot with the key's tag, or fetches the next of the key's places.
    fn next_candidate(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let search = &mut self.search;
        if search.slots_done < search.slots_len {
            let (slot_at, slot) = search.slots[search.slots_done];
            search.slots_done += 1;
            if slot.is_on_flash() {
                return self.ask_server(Reason::OnFlash);
            }
            let Some(segment) = reader.geometry.segment_of(slot.offset()) else {
                return self.reject(reader, known, Rejection::Torn);
            };
            let bytes = size_class::bytes_max(slot.class()).try_into().unwrap_or(u32::MAX);
            let location = Location { offset: slot.offset(), generation: 0, bytes };
            let (stamp, asked_ns) = (search.stamp, search.asked_ns);
            self.candidate = Candidate { slot_at, slot, stamp, asked_ns, segment, location };
            return self.look_at_candidate(reader, known);
        }
        match search.rest {
            Rest::Overflow => {
                search.stamp = known.stamp();
                let places = search.places;
                self.ask_bytes(Stage::Overflow, places.overflow, places.overflow_end - places.overflow)
            }
            Rest::Link(at) if reader.is_index(at, BUCKET_BYTES) && at.is_multiple_of(BUCKET_BYTES) => {
                search.stamp = known.stamp();
                search.links += 1;
                if search.links > LINKS_READ_MAX {
                    return self.ask_server(Reason::Contended);
                }
                self.ask_bytes(Stage::Link, at, BUCKET_BYTES)
            }
            Rest::Link(_) => self.reject(reader, known, Rejection::Torn),
            Rest::Nothing => self.end_of_table(reader, known),
        }
    }

    fn end_of_table(&mut self, reader: &Reader, known: &mut Known) -> Step {
        if !self.search.moved {
            // Nothing found in tables that were replaced meanwhile says nothing.
            let head = head_offset(&reader.geometry, self.search.partition);
            return self.ask_word(Stage::HeadStill, head);
        }
        if self.search.in_next || Head::from_word(self.search.head).next_groups.is_none() {
            return self.head_is_wrong(reader, known, Rejection::Moved);
        }
        self.search.in_next = true;
        self.search_table(reader, known, false)
    }

    // ---- looking at an item ----

    /// Fetches the candidate's bytes if its slot was fetched after the generation that is known.
    fn look_at_candidate(&mut self, reader: &Reader, known: &mut Known) -> Step {
        match known.generation(self.candidate.segment, self.candidate.stamp) {
            KnownGeneration::Before(generation) => {
                self.candidate.location.generation = generation;
                self.ask_item(reader)
            }
            KnownGeneration::After => self.ask_slot_again(known),
            KnownGeneration::Unknown => {
                self.ask_generation(Stage::Generation, reader, known, self.candidate.segment)
            }
        }
    }

    fn ask_generation(&mut self, stage: Stage, reader: &Reader, known: &Known, segment: u32) -> Step {
        self.asked_count = known.count(segment);
        self.ask_word(stage, generation_offset(&reader.geometry, segment))
    }

    fn ask_slot_again(&mut self, known: &Known) -> Step {
        self.candidate.stamp = known.stamp();
        self.ask_word(Stage::SlotAgain, self.candidate.slot_at)
    }

    /// Bytes that the candidate's item may have.
    fn item_bytes_max(&self, reader: &Reader) -> u64 {
        let Candidate { segment, location, .. } = self.candidate;
        let left = reader.geometry.segment_end(segment) - location.offset;
        u64::from(location.bytes).min(left)
    }

    fn ask_item(&mut self, reader: &Reader) -> Step {
        let (offset, len) = (self.candidate.location.offset, self.item_bytes_max(reader));
        if self.places && len > FETCHED_WHOLE_BYTES_MAX {
            return self.ask_bytes(Stage::ItemHead, offset, HEAD_BYTES_MAX);
        }
        self.ask_bytes(Stage::Item, offset, len)
    }

    fn ask_still(&mut self, reader: &Reader, known: &Known) -> Step {
        self.ask_generation(Stage::Still, reader, known, self.candidate.segment)
    }

    /// Puts the value of the key's item in place; of another's no more is fetched. What is wrong is told by the generation.
    fn take_item_head(&mut self, reader: &Reader, known: &Known, bytes: &[u8]) -> Step {
        let offset = self.candidate.location.offset;
        let item = reader.head_in(bytes, self.item_bytes_max(reader)).ok();
        if item.is_some_and(|item| item.is_chained()) {
            return self.ask_bytes(Stage::Item, offset, self.item_bytes_max(reader));
        }
        self.judged = item.map(|item| Judged {
            same_key: !item.is_piece() && judge::key(&item, bytes) == self.key.as_ref(),
            value_at: item.payload_at() as usize,
            is_placed: true,
            pieces: Vec::new(),
            item,
        });
        match &self.judged {
            Some(judged) if judged.same_key => {
                let len = judged.item.value_len as usize;
                let offset = offset + judged.value_at as u64;
                self.ask(Stage::Value, Step::Value { at: 0, offset, len, whole: len })
            }
            _ => self.ask_still(reader, known),
        }
    }

    fn take_item(&mut self, reader: &Reader, known: &mut Known, bytes: &[u8], settled: bool) -> Step {
        let Location { offset, generation, .. } = self.candidate.location;
        let item = reader.item_in(bytes, offset, generation).ok();
        self.judged = item.map(|item| Judged {
            same_key: !item.is_piece() && judge::key(&item, bytes) == self.key.as_ref(),
            value_at: item.payload_at() as usize,
            is_placed: false,
            pieces: if item.is_chained() { judge::pieces(&item, bytes) } else { Vec::new() },
            item,
        });
        let is_its_own = cfg!(fabcache_without = "behind") || self.is_state_sure(known, settled);
        if reader.is_remote() && item.is_some() && is_its_own {
            return self.judge(reader, known);
        }
        self.ask_still(reader, known)
    }

    /// Whether the state can be judged without looking at the generation behind it. It is under no checksum, so it may be
    /// what has been written over it since, of which nothing else need have been seen.
    fn is_state_sure(&self, known: &Known, settled: bool) -> bool {
        if self.by_location {
            // The generation was the same behind the bytes if no segment that is counted with this was emptied since.
            return settled && known.stood(self.candidate.segment, self.candidate.location.generation);
        }
        // The state says nothing of another key's item; and one that is dead is only looked for again.
        settled || self.judged.as_ref().is_some_and(|it| !it.same_key || it.item.state.has(State::DEAD))
    }

    fn take_still(&mut self, reader: &Reader, known: &mut Known, word: u64) -> Step {
        if !self.is_still(word, self.candidate.location.generation) {
            known.set_generation(self.candidate.segment, word, self.asked_count);
            return self.reject(reader, known, Rejection::Recycled);
        }
        known.set_generation(self.candidate.segment, word, self.asked_count);
        match self.judged {
            Some(_) => self.judge(reader, known),
            None => self.reject(reader, known, Rejection::Torn),
        }
    }

    fn is_still(&self, word: u64, generation: u64) -> bool {
        word == generation || cfg!(fabcache_without = "generation")
    }

    /// The bytes are those of one item.
    fn judge(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let Some(judged) = &self.judged else { return self.ask_server(Reason::Damaged) };
        if !judged.same_key {
            if self.by_location {
                return self.reject(reader, known, Rejection::OtherKey);
            }
            return self.next_candidate(reader, known);
        }
        if judged.item.state.has(State::DEAD) && !cfg!(fabcache_without = "dead_mark") {
            return self.reject(reader, known, Rejection::Dead);
        }
        self.judge_epoch(reader, known, false)
    }

    fn judge_epoch(&mut self, reader: &Reader, known: &mut Known, just_fetched: bool) -> Step {
        let (Some(judged), Some(line)) = (&self.judged, known.published()) else {
            return self.ask_server(Reason::Clock);
        };
        let item = judged.item;
        if !item.state.in_epoch(line.flush_epoch) {
            if just_fetched {
                return self.gone(reader, known, Miss::Flushed, Rejection::Flushed);
            }
            // It may have been stored after a flush that came after the line was fetched.
            return self.ask_word(Stage::FlushEpoch, FLUSH_EPOCH_AT);
        }
        if item.is_expired(known.now()) {
            return self.gone(reader, known, Miss::Expired, Rejection::Expired);
        }
        if item.is_chained() {
            return self.start_pieces(reader, known);
        }
        if judged.is_placed {
            return self.hit(Value::Placed);
        }
        self.hit(Value::Fetched { at: judged.value_at, len: item.value_len as usize })
    }

    fn gone(&mut self, reader: &Reader, known: &mut Known, miss: Miss, stale: Rejection) -> Step {
        if self.by_location {
            return self.reject(reader, known, stale);
        }
        self.done(Outcome::Miss(miss))
    }

    fn hit(&mut self, value: Value) -> Step {
        let Some(Judged { item, .. }) = self.judged else { return self.ask_server(Reason::Damaged) };
        let frequency = (!self.by_location).then(|| self.candidate.slot.frequency());
        let location = Location { bytes: item.bytes() as u32, ..self.candidate.location };
        let hit = Hit::of(&item, frequency, value, location);
        self.done(Outcome::Hit(hit))
    }

    // ---- pieces of a long value ----

    fn start_pieces(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let Some(judged) = &mut self.judged else { return self.ask_server(Reason::Damaged) };
        let pieces = std::mem::take(&mut judged.pieces);
        let sum: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if sum != u64::from(judged.item.value_len) || sum > reader.geometry.region_bytes {
            return self.ask_server(Reason::Damaged);
        }
        let whole = sum as usize;
        self.assembly = Assembly { pieces, whole, ..Assembly::default() };
        if self.is_apart {
            self.stage = Stage::Pieces;
            return Step::Pieces { whole };
        }
        self.ask_piece(reader, known)
    }

    fn ask_piece(&mut self, reader: &Reader, known: &mut Known) -> Step {
        let geometry = &reader.geometry;
        let Some(piece) = self.assembly.pieces.get(self.assembly.next) else {
            return self.hit_of_pieces();
        };
        let segment = geometry.segment_of(piece.offset);
        let Some(segment) = segment.filter(|_| piece.offset.is_multiple_of(ALIGN_BYTES)) else {
            return self.ask_server(Reason::Damaged);
        };
        let generation = known.last_generation(segment).filter(|known| *known as u32 == piece.generation);
        let Some(generation) = generation else {
            if self.stage == Stage::PieceGeneration {
                return self.reject(reader, known, Rejection::Recycled);
            }
            self.assembly.segment = segment;
            return self.ask_generation(Stage::PieceGeneration, reader, known, segment);
        };
        let value_len = if self.places { 0 } else { u64::from(piece.len) };
        let len = HEADER_BYTES_MAX as u64 + value_len;
        let (offset, left) = (piece.offset, geometry.segment_end(segment) - piece.offset);
        (self.assembly.segment, self.assembly.generation) = (segment, generation);
        self.ask_bytes(Stage::Piece, offset, len.min(left))
    }

    fn take_piece(&mut self, reader: &Reader, known: &mut Known, bytes: &[u8]) -> Step {
        let assembly = &mut self.assembly;
        let Some(piece) = assembly.pieces.get(assembly.next) else {
            return self.ask_server(Reason::Damaged);
        };
        let left = reader.geometry.segment_end(assembly.segment) - piece.offset;
        let item = match self.places {
            true => reader.head_in(bytes, left),
            false => reader.item_in(bytes, piece.offset, assembly.generation),
        };
        let item = item.ok().filter(|item| {
            let is_listed = item.value_len == piece.len && item.checksum == piece.checksum;
            item.is_piece() && !item.is_chained() && item.cas == self.hash.0 && is_listed
        });
        assembly.is_taken = item.is_some();
        if let (Some(item), true) = (item, self.places) {
            let (at, len) = (assembly.placed, item.value_len as usize);
            let offset = piece.offset + item.payload_at();
            assembly.placed += len;
            let step = Step::Value { at, offset, len, whole: assembly.whole };
            return self.ask(Stage::PieceValue, step);
        }
        if let Some(item) = item {
            let value = &bytes[item.payload_at() as usize..][..item.value_len as usize];
            assembly.value.extend_from_slice(value);
            if reader.is_remote() {
                return self.next_piece(reader, known);
            }
        }
        self.ask_piece_still(reader, known)
    }

    fn ask_piece_still(&mut self, reader: &Reader, known: &Known) -> Step {
        self.ask_generation(Stage::PieceStill, reader, known, self.assembly.segment)
    }

    fn take_piece_still(&mut self, reader: &Reader, known: &mut Known, word: u64) -> Step {
        if !self.is_still(word, self.assembly.generation) {
            known.set_generation(self.assembly.segment, word, self.asked_count);
            return self.reject(reader, known, Rejection::Recycled);
        }
        match self.assembly.is_taken {
            true => self.next_piece(reader, known),
            false => self.reject(reader, known, Rejection::Torn),
        }
    }

    fn next_piece(&mut self, reader: &Reader, known: &mut Known) -> Step {
        self.assembly.next += 1;
        self.ask_piece(reader, known)
    }

    fn hit_of_pieces(&mut self) -> Step {
        if self.places {
            return self.hit(Value::Placed);
        }
        self.hit(Value::Assembled)
    }
}

fn slot_in(bytes: &[u8], i: usize) -> Slot {
    bytes.as_chunks().0.get(i).map_or(Slot::EMPTY, |word| Slot(u64::from_le_bytes(*word)))
}

impl Reader {
    /// Where a group of the block with this number is, if that can be.
    pub(super) fn group_offset(&self, number: u32, group: u32) -> Option<u64> {
        let within = u64::from(group & ((1 << self.geometry.block_shift) - 1)) * GROUP_BYTES;
        let offset = u64::from(number) * self.geometry.block_unit_bytes() + within;
        self.is_index(offset, GROUP_BYTES).then_some(offset)
    }

    /// Whether these bytes can be the index's: in one segment.
    fn is_index(&self, offset: u64, len: u64) -> bool {
        let segment = self.geometry.segment_of(offset);
        segment.is_some_and(|segment| len <= self.geometry.segment_end(segment) - offset)
    }
}
