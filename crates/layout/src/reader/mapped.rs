//! Reading a region that is mapped: what a client on the server's host does, with no more than loads.

use std::ops::Range;
#[cfg(not(loom))]
use std::sync::Arc;

use crate::header::{self, HeaderError, PUBLISHED_BYTES};
use crate::memory::Memory;
use crate::sync::{Ordering, fence};

#[cfg(not(loom))]
use super::Region;
use super::{Fetched, Get, Hit, Known, Location, Mode, Outcome, Reader, Rejections, Step, Value};

/// A mapped region and what is known of it. One thread reads; others have their own.
#[derive(Debug)]
pub struct Mapped {
    memory: Memory,
    reader: Reader,
    known: Known,
    bytes: Vec<u8>,
    /// What the memory is of, if this keeps it.
    #[cfg(not(loom))]
    _region: Option<Arc<Region>>,
}

impl Mapped {
    /// The region in `memory`.
    ///
    /// # Errors
    /// There is none, or none that this version reads.
    pub fn open(memory: Memory, mode: Mode) -> Result<Mapped, HeaderError> {
        let reader = Reader::new(&header::read(&memory)?, mode)?;
        let known = Known::new(reader.geometry());
        Ok(Mapped {
            memory,
            reader,
            known,
            bytes: Vec::new(),
            #[cfg(not(loom))]
            _region: None,
        })
    }

    /// The same of a region that it keeps mapped.
    ///
    /// # Errors
    /// As for [`Mapped::open`].
    #[cfg(not(loom))]
    pub fn over(region: &Arc<Region>, mode: Mode) -> Result<Mapped, HeaderError> {
        let mapped = Mapped::open(region.memory().clone(), mode)?;
        Ok(Mapped { _region: Some(Arc::clone(region)), ..mapped })
    }

    /// The reader.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// A server keeps the region.
    pub fn is_alive(&self) -> bool {
        header::is_alive(&self.memory)
    }

    /// Begins a batch of GETs at second `now` of the region's clock, by this client's own monotonic clock. What was
    /// answered before is seen by them. False if no server keeps the region: it is not to be read then.
    pub fn begin(&mut self, now: u32) -> bool {
        let mut line = [0; PUBLISHED_BYTES];
        self.memory.copy_out(header::PUBLISHED_AT, &mut line);
        fence(Ordering::Acquire);
        self.known.begin(&line, now);
        self.known.is_alive()
    }

    /// Reads a key.
    pub fn get(&mut self, key: &[u8]) -> (Outcome, Rejections) {
        let get = Get::by_key(&self.reader, key);
        self.run(get)
    }

    /// Reads a key's item where it was found before.
    pub fn get_at(&mut self, key: &[u8], location: Location) -> (Outcome, Rejections) {
        let get = Get::at(&self.reader, key, location);
        self.run(get)
    }

    /// The value of a hit, which was the last GET.
    pub fn value<'a>(&'a self, hit: &'a Hit) -> &'a [u8] {
        match &hit.value {
            Value::Fetched(Range { start, end }) => self.bytes.get(*start..*end).unwrap_or_default(),
            Value::Assembled(value) => value,
        }
    }

    fn run(&mut self, mut get: Get<'_>) -> (Outcome, Rejections) {
        let mut step = get.next(&self.reader, &mut self.known, Fetched::Nothing);
        loop {
            let fetched = match step {
                Step::Word(offset) => Fetched::Word(self.memory.load(offset, Ordering::Acquire)),
                Step::Bytes { offset, len } => {
                    self.bytes.clear();
                    self.memory.append_to(offset, len, &mut self.bytes);
                    // The next fetch comes behind this one.
                    fence(Ordering::Acquire);
                    Fetched::Bytes(&self.bytes)
                }
                Step::Done(outcome) => return (outcome, get.rejections()),
            };
            step = get.next(&self.reader, &mut self.known, fetched);
        }
    }
}
