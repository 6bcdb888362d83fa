//! Reads a server's items without a request: from shared memory, or one-sided over the fabric.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_layout::KeyHash;

use super::Server;
use crate::bounds::KEYS_READ_AT_ONCE;
use crate::fabric::{GetCompletion, GetHandle, Target, ValuePlacement};
use crate::message::Encoding;
use crate::path_selector::{Batch, LatencySample, ReadPath};
use crate::read_result::{ReadResult, ServerFallback};
use crate::registered::RegisteredBuffer;
use crate::shm::{self, Items, Reader, Readers, accesses_lines};

/// A server's shared memory.
#[derive(Debug, Default)]
pub struct ServerMemory {
    /// Idle readers.
    pub readers: Readers,
    items: Mutex<Option<Arc<Items>>>,
}

/// A key that will be read from a server's memory soon.
#[derive(Debug)]
pub enum ReadTicket {
    /// In shared memory: prefetched, and read later.
    Shared(shm::ReadTicket),
    /// Over the fabric: the read is in flight.
    Remote(GetHandle),
}

impl Server {
    /// Reads a key from the server's memory into `value`.
    pub fn read(&self, key: &[u8], value: &mut Vec<u8>) -> ReadResult {
        match self.reader() {
            Some(reader) => self.read_by(reader, |reader| reader.get(key, value)),
            None => self.read_remote(key, value),
        }
    }

    #[cold]
    fn read_remote(&self, key: &[u8], value: &mut Vec<u8>) -> ReadResult {
        let mut target = Target::new(std::mem::take(value), None);
        match self.begin_remote(key, Batch::Single, &mut target) {
            Ok(begun) => self.end_remote_into(begun, value),
            Err(fallback) => {
                *value = target.value;
                ReadResult::Fallback(fallback)
            }
        }
    }

    /// As [`Server::read`], into registered memory.
    pub fn read_registered(&self, key: &[u8], buffer: &mut RegisteredBuffer) -> ReadResult {
        if let Some(reader) = self.reader() {
            return self.read_by(reader, |reader| reader.get(key, buffer.other()));
        }
        let mut target = buffer.target();
        match self.begin_remote(key, Batch::Single, &mut target) {
            Ok(begun) => self.end_registered(begun, buffer),
            Err(fallback) => {
                buffer.take_back(target.value, ValuePlacement::Nowhere);
                ReadResult::Fallback(fallback)
            }
        }
    }

    fn end_registered(&self, begun: GetHandle, buffer: &mut RegisteredBuffer) -> ReadResult {
        let GetCompletion { read, value, placement, .. } = self.end_remote(begun);
        if buffer.take_back(value, placement) { read } else { ReadResult::FALLBACK }
    }

    fn begin_remote(
        &self,
        key: &[u8],
        batch: Batch,
        target: &mut Target,
    ) -> Result<GetHandle, ServerFallback> {
        self.remote.as_ref().ok_or(ServerFallback { sample: None })?.begin(key, batch, target)
    }

    /// Records the latency of a read or request that ended at `ended`, and the length of the value found.
    pub fn note_time(&self, sample: LatencySample, ended: Instant, value_bytes: Option<usize>) {
        if let Some(remote) = &self.remote {
            remote.note_time(sample, ended, value_bytes);
        }
    }

    /// Waits for a GET without registered memory.
    fn end_remote_into(&self, begun: GetHandle, value: &mut Vec<u8>) -> ReadResult {
        let completion = self.end_remote(begun);
        *value = completion.value;
        completion.read
    }

    /// Waits for a GET, and reports collected reads to the server.
    fn end_remote(&self, begun: GetHandle) -> GetCompletion {
        let Some(remote) = &self.remote else { return GetCompletion::fallback(Vec::new()) };
        let mut completion = remote.complete(begun);
        if !matches!(completion.read, ReadResult::Hit { .. }) {
            // It may hold a part of a value.
            completion.value.clear();
        }
        if let Some(accesses) = completion.accesses.take() {
            self.report_accesses(&accesses);
        }
        completion
    }

    #[inline]
    fn read_by(&self, mut reader: Box<Reader>, read: impl FnOnce(&mut Reader) -> ReadResult) -> ReadResult {
        let read = read(&mut reader);
        self.keep(reader, matches!(read, ReadResult::Gone));
        read
    }

    /// As [`Server::read`], but never waits: it leaves reporting reads to the server to [`Server::read`].
    pub fn try_fast(&self, key: &[u8], value: &mut Vec<u8>) -> ReadResult {
        let Some(mut reader) = self.reader() else { return ReadResult::FALLBACK };
        let read = if reader.must_report() { ReadResult::FALLBACK } else { reader.get(key, value) };
        if matches!(read, ReadResult::Gone) {
            self.forget_dead();
        } else {
            self.memory.readers.put(reader);
        }
        read
    }

    /// Prefetches a key, or starts its read over the fabric.
    ///
    /// # Errors
    /// The server must be asked: its memory is not shared, a request is faster, or a store is in flight, whose value a
    /// later GET must see.
    pub fn prefetch(&self, key: &[u8], target: &mut Target) -> Result<ReadTicket, ServerFallback> {
        if self.storing.load(Ordering::Acquire) > 0 {
            return Err(ServerFallback { sample: None });
        }
        let Some(mut reader) = self.reader() else {
            return self.begin_remote(key, Batch::Window, target).map(ReadTicket::Remote);
        };
        let ticket = reader.prefetch(key);
        self.memory.readers.put(reader);
        Ok(ReadTicket::Shared(ticket))
    }

    /// Reads a prefetched key into `value`, or into the registered memory.
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
            (ReadTicket::Shared(_), None, _) => ReadResult::FALLBACK,
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
        let Some(mut reader) = self.reader() else { return self.read_many_remote(count, key, take) };
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

    fn read_many_remote<'k>(
        &self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut take: impl FnMut(usize, ReadResult, &mut Vec<u8>),
    ) -> Option<LatencySample> {
        let sample = self.remote.as_ref().and_then(|remote| remote.choose_many(count, &key));
        if sample.is_some_and(|sample| sample.path == ReadPath::Request) {
            (0..count).for_each(|number| take(number, ReadResult::FALLBACK, &mut Vec::new()));
            return sample;
        }
        let (mut in_flight, mut value_bytes) = (VecDeque::new(), None);
        let mut end = |number, begun: Option<GetHandle>| {
            let mut value = Vec::new();
            let read = begun.map_or(ReadResult::FALLBACK, |begun| self.end_remote_into(begun, &mut value));
            if matches!(read, ReadResult::Hit { .. }) {
                value_bytes = Some(value.len());
            }
            take(number, read, &mut value);
        };
        for number in 0..count {
            let begun = loop {
                let begun = self.begin_remote(key(number), Batch::Decided, &mut Target::default()).ok();
                // If all slots are in use, completing the first frees one.
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
        if let Some(sample) = sample {
            self.note_time(sample, Instant::now(), value_bytes);
        }
        None
    }

    /// Returns a reader to the pool, or drops all of a server that is gone.
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
        // Readers in use find out themselves; a new server's memory may be there already.
        self.memory.readers.retain(Reader::is_alive);
        self.memory.items().take_if(|items| !items.is_alive());
    }

    #[inline]
    fn reader(&self) -> Option<Box<Reader>> {
        self.memory.readers.take().or_else(|| self.new_reader())
    }

    #[cold]
    pub(super) fn new_reader(&self) -> Option<Box<Reader>> {
        // Read before the items: in a race the reader is taken for one of the former region.
        let region = self.memory.readers.region();
        let items = self.memory.items().clone()?;
        items.reader(region).ok()
    }

    /// Reports reads to the server, if there are enough.
    #[inline]
    fn report(&self, reader: &mut Reader) {
        if let Some(accesses) = reader.take_accesses() {
            self.report_accesses(&accesses);
        }
    }

    /// Reports reads to the server; a failure loses only this information.
    #[cold]
    pub(super) fn report_accesses(&self, accesses: &[(KeyHash, u8)]) {
        let Ok(mut connection) = self.take() else { return };
        if connection.encoding() != Encoding::Mixed {
            // The server does not share memory any more.
            return self.give_back(connection, &Ok(()));
        }
        let lines = accesses_lines(accesses);
        let sent = connection.send([lines.as_bytes()]);
        self.give_back(connection, &sent);
    }
}

impl ServerMemory {
    /// Switches to the region of the latest connection; none if the server does not hand it out.
    pub(super) fn change(&self, items: Option<Arc<Items>>) {
        let current = items.as_ref().map(Arc::as_ptr);
        let former = std::mem::replace(&mut *self.items(), items);
        if former.is_some_and(|former| current != Some(Arc::as_ptr(&former))) {
            self.readers.change_region();
        }
    }

    pub(super) fn items(&self) -> MutexGuard<'_, Option<Arc<Items>>> {
        self.items.lock().expect("no thread panics while it holds a server's memory")
    }
}
