//! A server's items, read where they lie.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fabcache_layout::KeyHash;
use fabcache_layout::reader::{Mapped, Mode, Outcome, Region, reads_to_tell};
use rustix::time::{ClockId, clock_gettime};

use crate::bounds::ACCESSES_TOLD_AT_ONCE;

const NS_PER_SECOND: i128 = 1_000_000_000;

/// One server's region.
#[derive(Debug)]
pub struct Items {
    region: Arc<Region>,
    /// Which file it is.
    file: (u64, u64),
    /// The monotonic clock at second 0 of the region's, in nanoseconds: early rather than late.
    zero_ns: i128,
}

/// A reader of a region.
#[derive(Debug)]
pub struct Reader {
    mapped: Mapped,
    zero_ns: i128,
    random: u32,
    /// Reads of which the server is to be told.
    accesses: Vec<(KeyHash, u8)>,
}

/// What a reader found.
#[derive(Debug)]
pub enum Found {
    /// The key's item: its flags and CAS; the value was put where it was wanted.
    Hit {
        /// Client flags.
        flags: u32,
        /// CAS.
        cas: u64,
    },
    /// There is none.
    Miss,
    /// The server must be asked.
    Ask,
    /// The server is gone: nothing of this region counts any more.
    Gone,
}

impl Items {
    /// The region in a file that a server handed over.
    ///
    /// # Errors
    /// It is none of this version, could still be cut short, or the system's.
    pub fn open(file: BorrowedFd<'_>, bytes: u64, zero_ns: i128) -> io::Result<Items> {
        let region = Arc::new(Region::map(file, bytes)?);
        let items = Items { region, file: identity(file)?, zero_ns };
        // A region that cannot be read is told now.
        items.reader().map(|_| items)
    }

    /// Whether the file is the one of this region.
    ///
    /// # Errors
    /// The system's.
    pub fn is_of(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(identity(file)? == self.file)
    }

    /// Whether a server keeps the region.
    pub fn is_alive(&self) -> bool {
        self.region.is_alive()
    }

    /// A reader, for one thread at a time.
    ///
    /// # Errors
    /// The region's header is not sound.
    pub fn reader(&self) -> io::Result<Reader> {
        let mapped = Mapped::over(&self.region, Mode::SameHost)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("the region: {error:?}")))?;
        let random = monotonic_ns() as u32 | 1;
        Ok(Reader {
            mapped,
            zero_ns: self.zero_ns,
            random,
            accesses: Vec::with_capacity(ACCESSES_TOLD_AT_ONCE),
        })
    }
}

impl Reader {
    /// Whether a server keeps what it reads.
    pub fn is_alive(&self) -> bool {
        self.mapped.is_alive()
    }

    /// Reads a key; its value replaces what is in `value`.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Found {
        let second = (i128::from(monotonic_ns()) - self.zero_ns) / NS_PER_SECOND;
        if !self.mapped.begin(second.clamp(0, u32::MAX.into()) as u32) {
            return Found::Gone;
        }
        let (outcome, _) = self.mapped.get(key);
        match outcome {
            Outcome::Hit(hit) if hit.stale || hit.token_sent => Found::Ask,
            Outcome::Hit(hit) => {
                value.clear();
                value.extend_from_slice(self.mapped.value(&hit));
                let reads = reads_to_tell(&hit, self.random());
                if reads > 0 {
                    self.accesses.push((self.mapped.reader().hash(key), reads));
                }
                Found::Hit { flags: hit.flags, cas: hit.cas }
            }
            Outcome::Miss(_) => Found::Miss,
            Outcome::Stale(_) | Outcome::AskServer(_) => Found::Ask,
        }
    }

    /// Reads of which the server is to be told now, if there are enough of them.
    pub fn take_accesses(&mut self) -> Option<Vec<(KeyHash, u8)>> {
        (self.accesses.len() >= ACCESSES_TOLD_AT_ONCE).then(|| std::mem::take(&mut self.accesses))
    }

    /// xorshift32: any number will do.
    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

/// Nanoseconds of a clock that never goes back, some milliseconds coarse, as the server's.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn identity(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}
