//! GETs from other PEs' regions that this process has mapped, as those of its host. They are loads in a worker's own thread: nothing
//! calls OpenSHMEM, and no stopped PE delays them.

use fabcache_layout::Memory;
use fabcache_layout::hash::KeyHash;
use fabcache_layout::reader::region_clock::{RegionClock, monotonic_ns, precise_monotonic_ns};
use fabcache_layout::reader::{Hit, Mapped, Miss, ReadOutcome, Validation, next_random, reads_to_report};
use fabcache_protocol::Item;

use super::gets::{ACCESSES_PER_REPORT, report};
use super::operation::{Completion, Operation};
use super::pes::Pes;

/// Longer values go by messages, in parts: copying one at once would delay the worker's other clients.
const VALUE_BYTES_MAX: usize = 2 << 20;

/// Another PE's region in this process's memory.
#[derive(Clone, Debug)]
pub struct MappedRegion {
    /// Its bytes.
    pub memory: Memory,
    /// Its clock, as the PE told it at the start.
    pub clock: RegionClock,
}

/// The result of a read.
#[derive(Debug)]
pub enum MappedRead {
    /// The item; its value is in the caller's buffer.
    Hit(Item),
    /// The PE has no such item.
    Miss(Miss),
    /// The PE must be asked.
    AskPe,
}

/// One worker's reads of all PEs.
#[derive(Debug, Default)]
pub struct MappedReads {
    /// By PE; none before the first read.
    readers: Vec<Option<MappedReader>>,
    /// The value of the last hit.
    pub value: Vec<u8>,
}

#[derive(Debug)]
struct MappedReader {
    mapped: Mapped,
    clock: RegionClock,
    /// Decides which reads are reported.
    random: u32,
    accesses: Vec<(KeyHash, u8)>,
}

impl MappedReads {
    /// Reads a key of a PE.
    pub fn get(&mut self, pes: &Pes, pe: usize, key: &[u8]) -> MappedRead {
        let Some(region) = &pes.mapped[pe] else { return MappedRead::AskPe };
        if self.readers.len() <= pe {
            self.readers.resize_with(pe + 1, || None);
        }
        let reader = &mut self.readers[pe];
        if reader.is_none() {
            *reader = MappedReader::open(region);
        }
        let Some(reader) = reader else { return MappedRead::AskPe };
        let read = reader.get(key, &mut self.value);
        if reader.accesses.len() >= ACCESSES_PER_REPORT {
            reader.report(pes, pe);
        }
        read
    }
}

impl MappedReader {
    /// Returns none if the region cannot be read.
    fn open(region: &MappedRegion) -> Option<MappedReader> {
        let mut mapped = Mapped::open(region.memory.clone(), Validation::SameHost).ok()?;
        mapped.limit_values(VALUE_BYTES_MAX);
        let random = monotonic_ns() as u32 | 1;
        Some(MappedReader { mapped, clock: region.clock, random, accesses: Vec::new() })
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> MappedRead {
        let second = self.clock.second_at(monotonic_ns());
        if !self.mapped.begin(second) {
            // The PE has ended, or has never served.
            return MappedRead::AskPe;
        }
        self.clock.correct(second, self.mapped.region_second(), precise_monotonic_ns);
        match self.mapped.get_into(key, value) {
            // The first reader of a stale item wins the right to recache it, which the server grants.
            ReadOutcome::Hit(hit) if hit.stale || hit.token_sent => MappedRead::AskPe,
            ReadOutcome::Hit(hit) => {
                self.note(key, &hit);
                let Hit { flags, cas, binary_key, .. } = hit;
                MappedRead::Hit(Item { flags, cas, len: value.len() as u64, binary_key, ..Item::default() })
            }
            ReadOutcome::Miss(miss) => MappedRead::Miss(miss),
            ReadOutcome::Stale(_) | ReadOutcome::Fallback(_) | ReadOutcome::Gone => MappedRead::AskPe,
        }
    }

    /// Reports reads to their PE. One that takes nothing from its queue learns nothing.
    fn report(&mut self, pes: &Pes, pe: usize) {
        if pes.queues[pe].has_any() {
            return self.accesses.clear();
        }
        let request = report(&mut self.accesses);
        let completion = Completion::Unawaited;
        pes.submit(pe, Operation { request, direct: None, strips_end: false, completion });
    }

    /// Notes a read that the PE must learn of.
    fn note(&mut self, key: &[u8], hit: &Hit) {
        let reads = reads_to_report(hit, next_random(&mut self.random));
        if reads > 0 {
            self.accesses.push((self.mapped.reader().hash(key), reads));
        }
    }
}
