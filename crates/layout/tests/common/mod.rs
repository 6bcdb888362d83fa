//! A region whose contents an input determines: arbitrary, or close to a real one's.

use fabcache_layout::checksum::SECRET_BYTES;
use fabcache_layout::directory::Head;
use fabcache_layout::format::STATUS_BYTES;
use fabcache_layout::header::Birth;
use fabcache_layout::item::{ChunkEntry, NewItem, State};
use fabcache_layout::reader::{Fetched, Get, Location, MetadataCache, ReadOutcome, Reader, Step, Validation};
use fabcache_layout::{Geometry, KeyHash, Secret, Slot};

/// Far more fetches than any GET makes, except for the chunks of a long value, which the input must hold.
const FETCHES_MAX: usize = 100_000;

const KEY: &[u8] = b"a key";

/// The bytes of an input in order; zeros once it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

/// Runs some GETs against a region that `input` determines. Each ends; no bytes pass for an item, as the secret is
/// unknown. Returns the results of those that need no checksum.
pub fn run(input: &[u8]) -> Vec<ReadOutcome> {
    let geometry = Geometry::of(1 << 20, 1 << 20).expect("large enough");
    let birth = Birth { geometry, hash_seed: 5, clock_origin: 0, region_id: 0, incarnation: 0 };
    let secret = Secret(std::array::from_fn::<u8, SECRET_BYTES, _>(|i| (i * 131 + 17) as u8));
    let mut input = Input(input);
    let is_remote = input.byte().is_multiple_of(2);
    let mode = if is_remote { Validation::Remote(secret) } else { Validation::SameHost };
    let reader = Reader::new(&birth, mode).expect("sound");
    let mut metadata = MetadataCache::new(&reader);
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        let mut line = [0; STATUS_BYTES];
        line[0] = input.byte() % 4;
        line[8] = input.byte() / 255;
        // The upper half of the liveness word: unverified, or another incarnation.
        line[23] = if input.byte() == 255 { 1 << 7 } else { 0 };
        metadata.begin(&line, u32::from(input.byte() % 5));
        let get = if input.byte().is_multiple_of(4) {
            let offset = offset(&geometry, &mut input);
            let generation = input.byte().into();
            Get::at(&reader, KEY, Location { offset, generation, bytes: 4 << (input.byte() % 20) })
        } else {
            Get::by_key(&reader, KEY)
        };
        let get = if input.byte().is_multiple_of(2) { get.placing(&reader) } else { get };
        let outcome = answer_all(&reader, &mut metadata, get, &mut input);
        assert!(!is_remote || !matches!(outcome, ReadOutcome::Hit(_)), "{outcome:?}");
        if !is_remote {
            outcomes.push(outcome);
        }
    }
    outcomes
}

fn answer_all(
    reader: &Reader,
    metadata: &mut MetadataCache,
    mut get: Get<&[u8]>,
    input: &mut Input<'_>,
) -> ReadOutcome {
    let geometry = *reader.geometry();
    let mut region = Region { hash: get.hash(), geometry, head: head(input), slots: (0, Vec::new()) };
    let (mut bytes, mut placed) = (Vec::new(), 0);
    let mut step = get.next(reader, metadata, Fetched::Nothing);
    for _ in 0..FETCHES_MAX {
        let fetched = match step {
            Step::Done(outcome) => {
                if let ReadOutcome::Hit(hit) = &outcome
                    && let fabcache_layout::reader::Value::Fetched { at, len } = hit.value
                {
                    assert!(at + len <= bytes.len());
                }
                return outcome;
            }
            Step::Chunks { .. } => unreachable!("chunks are fetched by the GET itself"),
            Step::Value { at, offset, len, whole } => {
                assert!(at == 0 || at == placed);
                placed = at + len;
                assert!(placed <= whole && whole as u64 <= geometry.region_bytes);
                assert!(offset + len as u64 <= geometry.region_bytes);
                Fetched::Placed
            }
            Step::Word(offset) => {
                assert!(offset.is_multiple_of(8) && offset + 8 <= geometry.region_bytes);
                Fetched::Word(region.word(offset, input))
            }
            Step::Bytes { offset, len } => {
                assert!(
                    len as u64 <= geometry.segment_bytes() && offset + len as u64 <= geometry.region_bytes
                );
                bytes = region.bytes(offset, len, input);
                Fetched::Bytes(&bytes)
            }
        };
        step = get.next(reader, metadata, fetched);
    }
    panic!("a GET does not end");
}

fn offset(geometry: &Geometry, input: &mut Input<'_>) -> u64 {
    geometry.segment_offset(u32::from(input.byte() % 4)) + u64::from(input.byte()) * 4
}

fn slot(hash: KeyHash, geometry: &Geometry, input: &mut Input<'_>) -> Slot {
    match input.byte() % 16 {
        0 => Slot(input.word()),
        1 => Slot::EMPTY.with_overflowed(),
        2 => Slot::MOVED,
        3 => Slot::link(geometry.segment_offset(u32::from(input.byte()) % geometry.segments)),
        4 => Slot::item(hash.tag(), offset(geometry, input), input.byte() % 64, input.byte() % 8),
        _ => Slot::EMPTY,
    }
}

fn head(input: &mut Input<'_>) -> u64 {
    let next_groups = (input.byte() % 2 == 1).then(|| u32::from(input.byte()));
    Head { current: usize::from(input.byte() % 2), groups: input.byte().into(), next_groups, version: 0 }
        .to_word()
}

/// The region's structured contents.
struct Region {
    hash: KeyHash,
    geometry: Geometry,
    head: u64,
    /// The last slots handed out, and their offsets.
    slots: (u64, Vec<u64>),
}

impl Region {
    fn word(&mut self, offset: u64, input: &mut Input<'_>) -> u64 {
        if input.byte() % 32 == 31 {
            return input.word();
        }
        if offset < self.geometry.directory {
            return 0;
        }
        if offset < self.geometry.segment_table {
            if input.byte() % 8 == 7 {
                self.head = head(input);
            }
            return self.head;
        }
        if offset < self.geometry.first_segment {
            return u64::from(input.byte() % 16 / 15);
        }
        let (start, slots) = &self.slots;
        slots.get((offset.wrapping_sub(*start) / 8) as usize).copied().unwrap_or(0)
    }

    fn bytes(&mut self, offset: u64, len: usize, input: &mut Input<'_>) -> Vec<u8> {
        let geometry = self.geometry;
        let mut bytes = Vec::with_capacity(len);
        if input.byte() % 32 == 31 {
            bytes.extend((0..len).map(|_| input.byte()));
        } else if offset < geometry.first_segment {
            let first = (geometry.first_segment / geometry.block_unit_bytes()) as u32;
            (0..len / 4).for_each(|_| bytes.extend((first + u32::from(input.byte())).to_le_bytes()));
        } else if input.byte() < 128 {
            let slots: Vec<u64> = (0..len / 8).map(|_| slot(self.hash, &geometry, input).0).collect();
            bytes.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
            self.slots = (offset, slots);
        } else {
            bytes.extend(item(self.hash, &geometry, input));
        }
        // A transport may sometimes complete a fetch that was not posted.
        bytes.resize(if input.byte() == 77 { len / 2 } else { len }, 0);
        bytes
    }
}

fn item(hash: KeyHash, geometry: &Geometry, input: &mut Input<'_>) -> Vec<u8> {
    let is_chunk = input.byte() % 4 >= 2;
    let chunks: Vec<ChunkEntry> = (0..input.byte() % 3)
        .map(|_| ChunkEntry {
            offset: offset(geometry, input),
            generation: u32::from(input.byte() % 16 / 15),
            len: u32::from(input.byte() % 2) * 8,
            checksum: 0,
        })
        .collect();
    let sum: u32 = chunks.iter().map(|chunk| chunk.len).sum();
    let is_chained = !is_chunk && !chunks.is_empty();
    let new = NewItem {
        state: if input.byte().is_multiple_of(8) { State(input.word() as u16) } else { State::live(0) },
        key: if is_chunk { &[] } else { KEY },
        cas: hash.0,
        expiry: u32::from(input.byte() % 4) * 100,
        chunks: if is_chained { chunks.len() as u32 } else { 0 },
        value_len: if is_chained && input.byte() > 31 { sum } else { u32::from(input.byte() % 3) * 700 },
        ..NewItem::default()
    };
    let mut bytes = new.encode().as_bytes().to_vec();
    bytes.extend(new.key);
    bytes.extend(chunks.iter().flat_map(|chunk| chunk.to_bytes()));
    bytes
}
