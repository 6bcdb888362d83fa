//! Reads a mapped region, as a client on the server's host does, with loads only.

#[cfg(not(loom))]
use std::sync::Arc;

use crate::format::STATUS_BYTES;
use crate::hash::KeyHash;
use crate::header::{self, HeaderError};
use crate::memory::Memory;
use crate::slot::Slot;
use crate::sync::{Ordering, fence};

#[cfg(not(loom))]
use super::Region;
use super::prefetch::PREFETCHED_KEYS;
use super::{
    FallbackReason, Fetched, Get, Hit, Location, MetadataCache, ReadOutcome, Reader, Rejections, Step,
    Validation, Value,
};

/// A mapped region and its cached metadata, for one thread.
#[derive(Debug)]
pub struct Mapped {
    memory: Memory,
    reader: Reader,
    metadata: MetadataCache,
    bytes: Vec<u8>,
    /// The assembled value of the last GET that had no target.
    value: Vec<u8>,
    /// Longer values are not read.
    value_bytes_max: usize,
    /// Keeps the mapping alive, if this reader owns it.
    #[cfg(not(loom))]
    _region: Option<Arc<Region>>,
}

impl Mapped {
    /// Opens the region in `memory`.
    ///
    /// # Errors
    /// There is no region, or none of a supported version.
    pub fn open(memory: Memory, mode: Validation) -> Result<Mapped, HeaderError> {
        let reader = Reader::new(&header::read(&memory)?, mode)?;
        let metadata = MetadataCache::new(&reader);
        Ok(Mapped {
            memory,
            reader,
            metadata,
            bytes: Vec::new(),
            value: Vec::new(),
            value_bytes_max: usize::MAX,
            #[cfg(not(loom))]
            _region: None,
        })
    }

    /// Like [`Mapped::open`], for a region that it keeps mapped.
    ///
    /// # Errors
    /// As for [`Mapped::open`].
    #[cfg(not(loom))]
    pub fn over(region: &Arc<Region>, mode: Validation) -> Result<Mapped, HeaderError> {
        let mapped = Mapped::open(region.memory().clone(), mode)?;
        Ok(Mapped { _region: Some(Arc::clone(region)), ..mapped })
    }

    /// Leaves values that are longer to the server. The bound is at least the length of a segment, whose items the fast path reads.
    pub fn limit_values(&mut self, bytes: usize) {
        self.value_bytes_max = bytes;
    }

    /// Returns the reader.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns whether the server that maintained the region when it was opened still does.
    pub fn is_alive(&self) -> bool {
        header::is_alive(&self.memory, self.reader.incarnation())
    }

    /// Begins a batch of GETs at second `now` of the region's clock, by this client's own monotonic clock. The batch
    /// sees everything answered before. Returns false if no server maintains the region: then it must not be read.
    pub fn begin(&mut self, now: u32) -> bool {
        let mut line = [0; STATUS_BYTES];
        self.memory.copy_out(crate::format::STATUS_AT, &mut line);
        fence(Ordering::Acquire);
        self.metadata.begin(&line, now);
        self.metadata.is_alive()
    }

    /// Returns the second that the region's clock showed when the batch began.
    pub fn region_second(&self) -> u32 {
        self.metadata.region_second()
    }

    /// Reads a key.
    pub fn get(&mut self, key: &[u8]) -> (ReadOutcome, Rejections) {
        let mut value = std::mem::take(&mut self.value);
        let done = self.get_hashed(key, self.reader.hash(key), &mut value);
        self.value = value;
        done
    }

    /// Reads a key's item at a cached location.
    pub fn get_at(&mut self, key: &[u8], location: Location) -> (ReadOutcome, Rejections) {
        let get = Get::at(&self.reader, key, location);
        let mut value = std::mem::take(&mut self.value);
        let done = self.run(get, &mut value);
        self.value = value;
        done
    }

    /// Returns the value of the last GET, which was a hit.
    pub fn value<'a>(&'a self, _: &'a Hit) -> &'a [u8] {
        &self.value
    }

    /// Reads a key. Its value replaces the contents of `value`, which is left empty by a miss.
    #[inline]
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> ReadOutcome {
        self.get_hashed(key, self.reader.hash(key), value).0
    }

    /// Reads `count` keys in order and prefetches for the next ones meanwhile. Calls `take` with the number of each,
    /// its hash, its result, and its value, which `take` may take.
    pub fn get_many<'k>(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, KeyHash, ReadOutcome, &mut Vec<u8>),
    ) {
        let mut value = Vec::new();
        let mut hashes = [KeyHash(0); PREFETCHED_KEYS];
        let mut slots = [Slot::EMPTY; PREFETCHED_KEYS];
        for from in (0..count).step_by(PREFETCHED_KEYS) {
            let hashes = &mut hashes[..PREFETCHED_KEYS.min(count - from)];
            for (number, hash) in (from..).zip(&mut *hashes) {
                *hash = self.reader.hash(key(number));
            }
            let stamp = self.metadata.stamp();
            self.reader.prefetch(&self.metadata, &self.memory, hashes, &mut slots);
            for (number, (hash, slot)) in (from..).zip(hashes.iter().zip(slots)) {
                let key = key(number);
                let seen = (slot, stamp);
                let hit = self.reader.try_fast_at(&self.metadata, &self.memory, key, seen, &mut value);
                let outcome = hit.unwrap_or_else(|| self.get_hashed(key, *hash, &mut value).0);
                take(number, *hash, outcome, &mut value);
            }
        }
    }

    /// Prefetches everything that reading keys with these hashes needs, with the cache misses overlapped.
    pub fn prefetch(&self, hashes: &[KeyHash]) {
        let mut slots = [Slot::EMPTY; PREFETCHED_KEYS];
        for hashes in hashes.chunks(PREFETCHED_KEYS) {
            self.reader.prefetch(&self.metadata, &self.memory, hashes, &mut slots);
        }
    }

    #[inline]
    fn get_hashed(&mut self, key: &[u8], hash: KeyHash, value: &mut Vec<u8>) -> (ReadOutcome, Rejections) {
        match self.reader.try_fast(&self.metadata, &self.memory, key, hash, value) {
            Some(outcome) => {
                if !matches!(outcome, ReadOutcome::Hit(_)) {
                    value.clear();
                }
                (outcome, Rejections::default())
            }
            None => self.run(Get::by_hash(&self.reader, key, hash), value),
        }
    }

    #[inline(never)]
    fn run(&mut self, get: Get<&[u8]>, value: &mut Vec<u8>) -> (ReadOutcome, Rejections) {
        let mut get = get.placing(&self.reader);
        let mut fetched = Fetched::Nothing;
        value.clear();
        loop {
            fetched = match get.next(&self.reader, &mut self.metadata, fetched) {
                Step::Word(offset) => Fetched::Word(self.memory.load(offset, Ordering::Acquire)),
                Step::Bytes { offset, len } => {
                    self.bytes.clear();
                    self.memory.append_to(offset, len, &mut self.bytes);
                    // The next fetch is ordered after this one.
                    fence(Ordering::Acquire);
                    Fetched::Bytes(&self.bytes)
                }
                Step::Value { whole, .. } if whole > self.value_bytes_max => {
                    value.clear();
                    return (ReadOutcome::Fallback(FallbackReason::TooLong), get.rejections());
                }
                Step::Value { at, offset, len, whole } => {
                    value.truncate(at);
                    value.reserve_exact(whole - at);
                    self.memory.append_to(offset, len, value);
                    fence(Ordering::Acquire);
                    Fetched::Placed
                }
                // Unreachable for GETs that run here.
                Step::Chunks { .. } => Fetched::Nothing,
                Step::Done(outcome) => {
                    self.put(&mut get, &outcome, value);
                    return (outcome, get.rejections());
                }
            };
        }
    }

    /// Places a GET's value, unless it is there already.
    fn put(&self, get: &mut Get<&[u8]>, outcome: &ReadOutcome, value: &mut Vec<u8>) {
        let ReadOutcome::Hit(hit) = outcome else { return value.clear() };
        match hit.value {
            Value::Fetched { at, len } => {
                value.clear();
                value.extend_from_slice(self.bytes.get(at..at + len).unwrap_or_default());
            }
            Value::Assembled => *value = get.take_assembled(),
            Value::Placed => {}
        }
    }
}
