//! Reads a server's items in place.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabcache_layout::KeyHash;
use fabcache_layout::reader::{
    FallbackReason, Mapped, PREFETCHED_KEYS, Protection, ReadOutcome, Region, Validation, next_random,
    reads_to_report,
};

use crate::bounds::{ACCESSES_PER_REPORT, KEYS_FORESEEN_MAX};
use crate::read_result::ReadResult;
use crate::region_clock::{RegionClock, monotonic_ns, precise_monotonic_ns};

/// The part of a file that is a region.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Its length.
    pub bytes: u64,
    /// How the file is protected.
    pub protection: Protection,
    /// Where it begins, if it has a shard of the keys that its server answers for; else it begins the file.
    pub shard_at: Option<u64>,
}

/// One server's region.
#[derive(Debug)]
pub struct Items {
    region: Arc<Region>,
    /// The file's identity.
    file: (u64, u64),
    /// The region's clock, as the attachment left it.
    clock: RegionClock,
    /// It has a shard: the server may have a key that is not there.
    is_shard: bool,
    /// The number of readers created.
    readers: AtomicU64,
}

/// A reader of a region.
#[derive(Debug)]
pub struct Reader {
    mapped: Mapped,
    prefetched: PrefetchHint,
    /// The number of the server's region, as counted by [`super::Readers::region`].
    pub region: u64,
    clock: RegionClock,
    random: u32,
    /// Reads to report to the server.
    accesses: Vec<(KeyHash, u8)>,
    /// How many of the next keys are read at once instead of prefetched: the server had to be asked for keys.
    reads_at_once: u16,
    /// The region is a shard.
    is_shard: bool,
}

/// Keys that will be read soon and are not prefetched yet.
#[derive(Debug)]
struct PrefetchHint {
    /// Identifies the reader of these hints.
    reader: u64,
    /// The keys' hashes in the order of their hints …
    hashes: Vec<KeyHash>,
    /// … and the number of earlier hints.
    before: u64,
}

/// Identifies a hinted key to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTicket {
    reader: u64,
    number: u64,
    /// Whether to read the key now, so that requests to the server overlap.
    pub reads_at_once: bool,
}

/// After a key was found on flash, or not in a shard, so many more are read at once.
const READS_AT_ONCE: u16 = 64;

impl PrefetchHint {
    fn add(&mut self, hash: KeyHash) -> ReadTicket {
        if self.hashes.len() == KEYS_FORESEEN_MAX {
            // Prefetching is only a hint: excess keys are read without it.
            self.skip(KEYS_FORESEEN_MAX / 2);
        }
        self.hashes.push(hash);
        let number = self.before + self.hashes.len() as u64 - 1;
        ReadTicket { reader: self.reader, number, reads_at_once: false }
    }

    fn skip(&mut self, count: usize) {
        self.hashes.drain(..count);
        self.before += count as u64;
    }

    /// Returns whether the key of this ticket still waits here for its prefetch. Readers of the server's next region
    /// count from the same number, so a ticket may wrongly seem to be one of these.
    fn has(&self, ticket: ReadTicket) -> bool {
        let end = self.before + self.hashes.len() as u64;
        ticket.reader == self.reader && (self.before..end).contains(&ticket.number)
    }
}

impl Items {
    /// Maps the region of a file descriptor that a server handed over.
    ///
    /// # Errors
    /// The region has another version, lacks this protection, or the system fails.
    pub fn open(file: BorrowedFd<'_>, extent: Extent, clock: RegionClock) -> io::Result<Items> {
        let Extent { bytes, protection, shard_at } = extent;
        let region = Arc::new(Region::map_part(file, shard_at.unwrap_or(0), bytes, protection)?);
        let is_shard = shard_at.is_some();
        let items = Items { region, file: identity(file)?, clock, is_shard, readers: AtomicU64::new(0) };
        // Reject an unreadable region now.
        items.reader(0).map(|_| items)
    }

    /// Returns whether the file is this region's, and of the same server: a restarted one may have kept the file.
    ///
    /// # Errors
    /// The system fails.
    pub fn is_of(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(identity(file)? == self.file && self.is_alive())
    }

    /// Returns whether a server maintains the region.
    pub fn is_alive(&self) -> bool {
        self.region.is_alive()
    }

    /// Returns a reader for one thread at a time, of the server's region with this number.
    ///
    /// # Errors
    /// The region's header is invalid.
    pub fn reader(&self, region: u64) -> io::Result<Box<Reader>> {
        let mapped = Mapped::over(&self.region, Validation::SameHost)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("the region: {error:?}")))?;
        let random = monotonic_ns() as u32 | 1;
        let accesses = Vec::with_capacity(ACCESSES_PER_REPORT);
        // Boxed, because readers move from call to call.
        let number = self.readers.fetch_add(1, Ordering::Relaxed);
        let prefetched =
            PrefetchHint { reader: number, hashes: Vec::with_capacity(KEYS_FORESEEN_MAX), before: 0 };
        Ok(Box::new(Reader {
            mapped,
            prefetched,
            region,
            clock: self.clock,
            random,
            accesses,
            reads_at_once: 0,
            is_shard: self.is_shard,
        }))
    }
}

impl Reader {
    /// Returns whether a server maintains the region that it reads.
    pub fn is_alive(&self) -> bool {
        self.mapped.is_alive()
    }

    /// Reads a key; its value replaces the contents of `value`.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> ReadResult {
        if !self.begin() {
            return ReadResult::Gone;
        }
        let outcome = self.mapped.get_into(key, value);
        let is_elsewhere = match outcome {
            ReadOutcome::Fallback(FallbackReason::OnFlash) => true,
            ReadOutcome::Miss(_) => self.is_shard,
            _ => false,
        };
        if is_elsewhere {
            self.reads_at_once = READS_AT_ONCE;
        }
        let random = self.random();
        let read = found(&outcome, random, &mut self.accesses, || self.mapped.reader().hash(key));
        or_elsewhere(read, self.is_shard)
    }

    /// Records a key that will be read soon: it is prefetched together with others, unless the server must be asked for many.
    pub fn prefetch(&mut self, key: &[u8]) -> ReadTicket {
        if self.reads_at_once > 0 {
            self.reads_at_once -= 1;
            // No hint has this number.
            return ReadTicket { reader: self.prefetched.reader, number: u64::MAX, reads_at_once: true };
        }
        self.prefetched.add(self.mapped.reader().hash(key))
    }

    /// Reads a hinted key, by this reader or another.
    pub fn get_prefetched(&mut self, key: &[u8], ticket: ReadTicket, value: &mut Vec<u8>) -> ReadResult {
        while self.prefetched.has(ticket) {
            let count = self.prefetched.hashes.len().min(PREFETCHED_KEYS);
            self.mapped.prefetch(&self.prefetched.hashes[..count]);
            self.prefetched.skip(count);
        }
        self.get(key, value)
    }

    /// Reads `count` keys. Calls `take` with each result in order; it may take the value.
    pub fn get_many<'k>(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, ReadResult, &mut Vec<u8>),
    ) {
        if !self.begin() {
            return (0..count).for_each(|number| take(number, ReadResult::Gone, &mut Vec::new()));
        }
        let Reader { mapped, random, accesses, is_shard, .. } = self;
        mapped.get_many(count, key, |number, hash, outcome, value| {
            let read = found(&outcome, next_random(random), accesses, || hash);
            take(number, or_elsewhere(read, *is_shard), value);
        });
    }

    /// Prefetches the hinted keys. Returns false if the server is gone.
    fn begin(&mut self) -> bool {
        let second = self.clock.second_at(monotonic_ns());
        let is_alive = self.mapped.begin(second);
        self.clock.correct(second, self.mapped.region_second(), precise_monotonic_ns);
        is_alive
    }

    /// Returns whether enough reads were collected to report them.
    pub fn must_report(&self) -> bool {
        self.accesses.len() >= ACCESSES_PER_REPORT
    }

    /// Takes the reads to report to the server, if there are enough.
    pub fn take_accesses(&mut self) -> Option<Vec<(KeyHash, u8)>> {
        let next = || Vec::with_capacity(ACCESSES_PER_REPORT);
        self.must_report().then(|| std::mem::replace(&mut self.accesses, next()))
    }

    fn random(&mut self) -> u32 {
        next_random(&mut self.random)
    }
}

/// Returns the result of a read, and records the access if it must be reported to the server.
#[inline]
fn found(
    outcome: &ReadOutcome,
    random: u32,
    accesses: &mut Vec<(KeyHash, u8)>,
    hash: impl FnOnce() -> KeyHash,
) -> ReadResult {
    let result = ReadResult::from(outcome);
    if let (ReadResult::Hit { .. }, ReadOutcome::Hit(hit)) = (&result, outcome) {
        let reads = reads_to_report(hit, random);
        if reads > 0 {
            accesses.push((hash(), reads));
        }
    }
    result
}

/// Returns what a read is worth: the keys that are not in a shard may be another server's, which this one asks.
#[inline]
fn or_elsewhere(read: ReadResult, is_shard: bool) -> ReadResult {
    if is_shard && matches!(read, ReadResult::Miss) { ReadResult::FALLBACK } else { read }
}

fn identity(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}
