//! Reading a server's items without asking for them: from memory that it shares, or over the fabric.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_layout::KeyHash;

use super::Server;
use crate::bounds::KEYS_READ_AT_ONCE;
use crate::fabric::{Batch, GetHandle, GetResult, LatencySample, ServerFallback, Target};
use crate::message::Encoding;
use crate::path_selector;
use crate::registered::{RegisteredBuffer, ValuePlacement};
use crate::shm::{self, Items, ReadResult, Reader, Readers, accesses_lines};

/// What is known of a server's memory.
#[derive(Debug, Default)]
pub struct ServerMemory {
    /// Idle readers.
    pub readers: Readers,
    items: Mutex<Option<Arc<Items>>>,
}

/// A key that is to be read from a server's memory soon.
#[derive(Debug)]
pub enum ReadTicket {
    /// It is read when it is asked for.
    Shared(shm::ReadTicket),
    /// It is being read.
    Remote(GetHandle),
}

impl Server {
    /// Reads a key from the server's memory, if it is to be read; a value replaces what is in `value`. Where the server is to be
    /// asked, with what [`Server::note_time`] is to be told then.
    pub fn read(&self, key: &[u8], value: &mut Vec<u8>) -> (ReadResult, Option<LatencySample>) {
        match self.reader() {
            Some(reader) => (self.read_by(reader, |reader| reader.get(key, value)), None),
            None => self.read_remote(key, value),
        }
    }

    #[cold]
    fn read_remote(&self, key: &[u8], value: &mut Vec<u8>) -> (ReadResult, Option<LatencySample>) {
        let mut target = Target::new(std::mem::take(value), None);
        match self.begin_remote(key, Batch::None, &mut target) {
            Ok(begun) => (self.end_remote_into(begun, value), None),
            Err(ServerFallback { timed }) => {
                *value = target.value;
                (ReadResult::Ask, timed)
            }
        }
    }

    /// The same into registered memory.
    pub fn read_registered(
        &self,
        key: &[u8],
        buffer: &mut RegisteredBuffer,
    ) -> (ReadResult, Option<LatencySample>) {
        if let Some(reader) = self.reader() {
            return (self.read_by(reader, |reader| reader.get(key, buffer.other())), None);
        }
        let mut target = buffer.target();
        match self.begin_remote(key, Batch::None, &mut target) {
            Ok(begun) => (self.end_registered(begun, buffer), None),
            Err(ServerFallback { timed }) => {
                buffer.take_back(target.value, ValuePlacement::Nothing);
                (ReadResult::Ask, timed)
            }
        }
    }

    fn end_registered(&self, begun: GetHandle, buffer: &mut RegisteredBuffer) -> ReadResult {
        let (read, value, within) = self.end_remote(begun);
        let found = match read {
            ReadResult::Hit { .. } => within.map_or(ValuePlacement::Other, ValuePlacement::Within),
            _ => ValuePlacement::Nothing,
        };
        if buffer.take_back(value, found) { read } else { ReadResult::Ask }
    }

    fn begin_remote(
        &self,
        key: &[u8],
        batch: Batch,
        target: &mut Target,
    ) -> Result<GetHandle, ServerFallback> {
        self.remote.as_ref().ok_or(ServerFallback { timed: None })?.begin(key, batch, target)
    }

    /// The server was asked until then, and a value has so many bytes if there is one.
    pub fn note_time(&self, timed: LatencySample, ended: Instant, value_bytes: Option<usize>) {
        if let Some(remote) = &self.remote {
            remote.note_time(timed, ended, value_bytes);
        }
    }

    /// What it came to, where no registered memory was given.
    fn end_remote_into(&self, begun: GetHandle, value: &mut Vec<u8>) -> ReadResult {
        let (read, found, _) = self.end_remote(begun);
        *value = found;
        read
    }

    /// What it came to, with the value, or where it lies in registered memory.
    fn end_remote(&self, begun: GetHandle) -> (ReadResult, Vec<u8>, Option<Range<usize>>) {
        let Some(remote) = &self.remote else { return (ReadResult::Ask, Vec::new(), None) };
        let GetResult { read, mut value, within, accesses } = remote.end(begun);
        if !matches!(read, ReadResult::Hit { .. }) {
            // It may have been read in part.
            value.clear();
        }
        if let Some(accesses) = accesses {
            self.tell(&accesses);
        }
        (read, value, within)
    }

    #[inline]
    fn read_by(&self, mut reader: Box<Reader>, read: impl FnOnce(&mut Reader) -> ReadResult) -> ReadResult {
        let read = read(&mut reader);
        self.keep(reader, matches!(read, ReadResult::Gone));
        read
    }

    /// The same, where nothing is waited for: not even to tell the server of reads, which is left to [`Server::read`].
    pub fn try_fast(&self, key: &[u8], value: &mut Vec<u8>) -> ReadResult {
        let Some(mut reader) = self.reader() else { return ReadResult::Ask };
        let read = if reader.must_report() { ReadResult::Ask } else { reader.get(key, value) };
        if matches!(read, ReadResult::Gone) {
            self.forget_dead();
        } else {
            self.memory.readers.put(reader);
        }
        read
    }

    /// A key that is to be read from the server's memory soon.
    ///
    /// # Errors
    /// The server is to be asked: its memory is not shared, that is faster, or a value is on its way to be stored, and a get
    /// sees what was to be stored before it.
    pub fn prefetch(&self, key: &[u8], target: &mut Target) -> Result<ReadTicket, ServerFallback> {
        if self.storing.load(Ordering::Acquire) > 0 {
            return Err(ServerFallback { timed: None });
        }
        let Some(mut reader) = self.reader() else {
            return self.begin_remote(key, Batch::Window, target).map(ReadTicket::Remote);
        };
        let ticket = reader.prefetch(key);
        self.memory.readers.put(reader);
        Ok(ReadTicket::Shared(ticket))
    }

    /// Reads a key that was foreseen; a value replaces what is in `value`, or is in the registered memory that was given.
    pub fn read_prefetched(
        &self,
        key: &[u8],
        ticket: ReadTicket,
        value: &mut Vec<u8>,
        registered: Option<&mut RegisteredBuffer>,
    ) -> ReadResult {
        match (ticket, self.reader(), registered) {
            (ReadTicket::Shared(ticket), Some(reader), registered) => {
                let value = registered.map_or(value, RegisteredBuffer::other);
                self.read_by(reader, |reader| reader.get_prefetched(key, ticket, value))
            }
            (ReadTicket::Shared(_), None, _) => ReadResult::Ask,
            (ReadTicket::Remote(begun), _, Some(registered)) => self.end_registered(begun, registered),
            (ReadTicket::Remote(begun), _, None) => self.end_remote_into(begun, value),
        }
    }

    /// Counts operations in flight that store.
    pub fn storing(&self) -> &Arc<AtomicUsize> {
        &self.storing
    }

    /// Reads many keys from the server's shared memory, with their cache misses overlapped. Calls `take` with each
    /// result in order; it may take the value. Returns the sample for [`Server::note_time`] if all are to be asked
    /// for because that is faster.
    pub fn read_many<'k>(
        &self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, ReadResult, &mut Vec<u8>),
    ) -> Option<LatencySample> {
        let Some(mut reader) = self.reader() else { return self.read_many_afar(count, key, take) };
        for from in (0..count).step_by(KEYS_READ_AT_ONCE) {
            let mut is_gone = false;
            reader.get_many(
                (count - from).min(KEYS_READ_AT_ONCE),
                |number| key(from + number),
                |number, found, value| {
                    is_gone |= matches!(found, ReadResult::Gone);
                    take(from + number, found, value);
                },
            );
            self.report(&mut reader);
            if is_gone {
                (from + KEYS_READ_AT_ONCE..count)
                    .for_each(|number| take(number, ReadResult::Gone, &mut Vec::new()));
                self.keep(reader, true);
                return None;
            }
        }
        self.keep(reader, false);
        None
    }

    fn read_many_afar<'k>(
        &self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, ReadResult, &mut Vec<u8>),
    ) -> Option<LatencySample> {
        let timed = self.remote.as_ref().and_then(|remote| remote.choose_many(count, &key));
        if timed.is_some_and(|timed| timed.way == path_selector::ReadPath::Request) {
            (0..count).for_each(|number| take(number, ReadResult::Ask, &mut Vec::new()));
            return timed;
        }
        let (mut in_flight, mut value_bytes) = (VecDeque::new(), None);
        let mut end = |number, begun: Option<GetHandle>| {
            let mut value = Vec::new();
            let read = begun.map_or(ReadResult::Ask, |begun| self.end_remote_into(begun, &mut value));
            if matches!(read, ReadResult::Hit { .. }) {
                value_bytes = Some(value.len());
            }
            take(number, read, &mut value);
        };
        for number in 0..count {
            let begun = loop {
                let begun = self.begin_remote(key(number), Batch::Chosen, &mut Target::default()).ok();
                // Where there is no room for more, one that is over makes some.
                match (begun, in_flight.pop_front()) {
                    (None, Some((first, begun))) => end(first, begun),
                    (begun, first) => {
                        first.into_iter().for_each(|first| in_flight.push_front(first));
                        break begun;
                    }
                }
            };
            in_flight.push_back((number, begun));
        }
        in_flight.into_iter().for_each(|(number, begun)| end(number, begun));
        if let Some(timed) = timed {
            self.note_time(timed, Instant::now(), value_bytes);
        }
        None
    }

    /// Gives a reader back, after it found the server there or gone.
    #[inline]
    pub(super) fn keep(&self, mut reader: Box<Reader>, is_gone: bool) {
        if is_gone {
            return self.forget_dead();
        }
        self.report(&mut reader);
        self.memory.readers.put(reader);
    }

    #[cold]
    fn forget_dead(&self) {
        // Those that others use find out themselves; and another server's memory may be there already.
        self.memory.readers.retain(Reader::is_alive);
        self.memory.items().take_if(|items| !items.is_alive());
    }

    #[inline]
    fn reader(&self) -> Option<Box<Reader>> {
        self.memory.readers.take().or_else(|| self.new_reader())
    }

    #[cold]
    pub(super) fn new_reader(&self) -> Option<Box<Reader>> {
        // Before the items are looked up: at worst it is taken for one of the former.
        let region = self.memory.readers.region();
        let items = self.memory.items().clone()?;
        items.reader(region).ok()
    }

    /// Tells the server of what was read, if that is enough to be told.
    #[inline]
    fn report(&self, reader: &mut Reader) {
        if let Some(accesses) = reader.take_accesses() {
            self.tell(&accesses);
        }
    }

    /// Tells the server of reads. Where that fails nothing is lost but what it would have known.
    #[cold]
    pub(super) fn tell(&self, accesses: &[(KeyHash, u8)]) {
        let Ok(mut connection) = self.take() else { return };
        if connection.form() != Encoding::Mixed {
            // It shares no memory any more.
            return self.give_back(connection, &Ok(()));
        }
        let lines = accesses_lines(accesses);
        let told = connection.send([lines.as_bytes()]);
        self.give_back(connection, &told);
    }
}

impl ServerMemory {
    pub(super) fn items(&self) -> MutexGuard<'_, Option<Arc<Items>>> {
        self.items.lock().expect("no thread panics while it holds what is known of memory")
    }
}
