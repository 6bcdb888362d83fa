//! Receives a chained value chunk by chunk.
//!
//! Received bytes become chunks in the region, each complete as soon as it is written, so that a slow client does not
//! keep segments from being reclaimed. Until an item adopts them they are orphans: reclaim takes them only as a last
//! resort, and then the upload fails.

use std::cell::Cell;
use std::sync::Arc;

use fabcache_layout::KeyHash;
use fabcache_layout::item::ChunkEntry;

use crate::bounds::UPLOAD_SHARE_BYTES;
use crate::error::OutOfMemory;
use crate::handle::Handle;
use crate::info::Expiry;
use crate::segments::{ClaimPurpose, NoSpace, Queue};
use crate::store::Store;

/// Space to receive into is freed at a turn's end if the gathered bytes are less than this part (1/n) of the buffer.
const SPARSE_DIVISOR: usize = 4;
/// Bytes of space that are always offered.
const SPACE_BYTES_MIN: usize = 16 << 10;

/// A value being received.
#[derive(Debug)]
pub struct Upload {
    parts: CompletedUpload,
    expiry: Expiry,
    announced: u64,
}

/// A value that was received whole.
#[derive(Debug)]
pub struct CompletedUpload {
    store: Arc<Store>,
    owner: KeyHash,
    queue: Queue,
    /// Received and not yet in a chunk.
    waiting: Gathered,
    /// Orphans until adopted.
    chunks: Vec<ChunkEntry>,
    received: u64,
    adopted: Cell<bool>,
}

/// Gathered bytes, and behind them initialized space to receive more into.
#[derive(Debug, Default)]
struct Gathered {
    bytes: Vec<u8>,
    len: usize,
}

impl Gathered {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends bytes; up to `end` bytes from the start will follow them.
    fn append(&mut self, more: &[u8], end: usize) {
        self.bytes.truncate(self.len);
        self.bytes.reserve_exact(end - self.len);
        self.bytes.extend_from_slice(more);
        self.len = self.bytes.len();
    }

    /// Returns space behind the gathered bytes, at most up to `end` bytes from their start: in proportion to them, as a
    /// client that sends little at a time would have it zeroed again each time.
    fn space(&mut self, end: usize) -> &mut [u8] {
        let end = end.min((SPARSE_DIVISOR * self.len).max(self.bytes.len()).max(SPACE_BYTES_MIN));
        if self.bytes.len() < end {
            self.bytes.reserve_exact(end - self.bytes.len());
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.len..end]
    }

    /// Removes bytes from the start.
    fn remove(&mut self, count: usize) {
        self.bytes.copy_within(count..self.len, 0);
        self.len -= count;
    }

    /// Frees the space if it is most of the buffer.
    fn settle(&mut self) {
        if self.bytes.capacity() > SPARSE_DIVISOR * self.len {
            self.bytes.truncate(self.len);
            self.bytes.shrink_to_fit();
        }
    }
}

impl Upload {
    /// Begins to receive `announced` bytes for `key`; the expiry only says which items it will lie among.
    pub fn begin(store: &Arc<Store>, key: &[u8], expiry: Expiry, announced: u64) -> Upload {
        let owner = store.recovered_hash(key);
        let parts = CompletedUpload {
            owner,
            queue: store.queue_of_new(owner),
            store: Arc::clone(store),
            waiting: Gathered::default(),
            chunks: Vec::new(),
            received: 0,
            adopted: Cell::new(false),
        };
        Upload { parts, expiry, announced }
    }

    /// Returns the announced bytes.
    pub fn len(&self) -> u64 {
        self.announced
    }

    /// Returns whether none were announced.
    pub fn is_empty(&self) -> bool {
        self.announced == 0
    }

    /// Bytes still to come.
    pub fn missing(&self) -> u64 {
        self.announced - self.parts.received
    }

    /// Adds received bytes: at most the missing ones.
    ///
    /// # Errors
    /// Memory is full and nothing may be evicted. The bytes are gathered, and [`Upload::resume`] tries to write them again, before
    /// more are received.
    pub fn write(&mut self, handle: &Handle, mut bytes: &[u8]) -> Result<(), OutOfMemory> {
        assert!(bytes.len() as u64 <= self.missing(), "more bytes than were announced");
        let chunk_bytes = handle.store().chunk_value_bytes_max();
        let mut written = self.resume(handle);
        while !bytes.is_empty() {
            let end = self.gathered_max();
            let parts = &mut self.parts;
            let space = chunk_bytes.saturating_sub(parts.waiting.len);
            // After a failure all is gathered.
            let len = if written.is_ok() { bytes.len().min(space) } else { bytes.len() };
            let (part, rest) = bytes.split_at(len);
            bytes = rest;
            parts.count_received(handle, len);
            let mut taken = 0;
            if written.is_ok() && parts.waiting.len == 0 && len == chunk_bytes {
                let _ = parts.add_chunks(handle, self.expiry, part, &mut taken);
            }
            if taken < len {
                parts.waiting.append(&part[taken..], end.max(parts.waiting.len + len));
            }
            if written.is_ok() {
                written = self.resume(handle);
            }
        }
        written
    }

    /// Returns whether chunks wait for [`Upload::resume`].
    pub fn is_blocked(&self) -> bool {
        self.parts.waiting.len >= self.parts.store.chunk_value_bytes_max()
    }

    /// Writes the chunks that are gathered.
    ///
    /// # Errors
    /// As for [`Upload::write`].
    pub fn resume(&mut self, handle: &Handle) -> Result<(), OutOfMemory> {
        let chunk_bytes = handle.store().chunk_value_bytes_max();
        while self.is_blocked() {
            let written = self.parts.write_waiting(handle, self.expiry, chunk_bytes);
            if self.is_blocked() {
                written?;
            }
        }
        Ok(())
    }

    /// Returns space for the next of the missing bytes, so that they are received without a copy.
    ///
    /// # Panics
    /// Gathered chunks wait for [`Upload::resume`].
    pub fn space(&mut self) -> &mut [u8] {
        assert!(!self.is_blocked(), "more is received before it was resumed");
        let end = self.gathered_max();
        self.parts.waiting.space(end)
    }

    /// Returns how many bytes are gathered before they are written: a chunk, or the rest of the value.
    fn gathered_max(&self) -> usize {
        let missing = usize::try_from(self.missing()).unwrap_or(usize::MAX);
        let parts = &self.parts;
        parts.store.chunk_value_bytes_max().min(parts.waiting.len.saturating_add(missing))
    }

    /// Adds `len` bytes that were received into [`Upload::space`].
    ///
    /// # Errors
    /// As for [`Upload::write`].
    pub fn fill(&mut self, handle: &Handle, len: usize) -> Result<(), OutOfMemory> {
        let waiting = &mut self.parts.waiting;
        assert!(len <= waiting.bytes.len() - waiting.len, "more bytes than there is space for");
        waiting.len += len;
        self.parts.count_received(handle, len);
        self.resume(handle)
    }

    /// Returns how many of the next bytes complete a chunk, and so may be received by [`Upload::receive_chunk`] if they
    /// are available; 0 if the value may yet become one item.
    pub fn chunk_rest(&self) -> usize {
        if self.is_blocked() {
            return 0;
        }
        let end = self.gathered_max();
        let is_chunk = end == self.parts.store.chunk_value_bytes_max() || !self.parts.chunks.is_empty();
        if is_chunk { end - self.parts.waiting.len } else { 0 }
    }

    /// Receives at most [`Upload::chunk_rest`] bytes, which should be available, straight into the region. `receive` gets
    /// the space and whether the value ends with it. It hands the space to the kernel without access of its own, and
    /// returns how many bytes were filled.
    ///
    /// Returns the length of the space. If there is none, receive into [`Upload::space`].
    ///
    /// The reservation ends with this call, so that no client can keep a segment from being reclaimed.
    pub fn receive_chunk(
        &mut self,
        handle: &Handle,
        receive: impl FnOnce(&mut [u8], bool) -> usize,
    ) -> Option<usize> {
        let (missing, rest) = (self.missing(), self.chunk_rest());
        if rest == 0 {
            return None;
        }
        let parts = &mut self.parts;
        let mut receive = Some(receive);
        // A segment may end within the gathered bytes, which become a chunk of their own then.
        loop {
            let (store, waiting) = (&*parts.store, parts.waiting.as_bytes());
            let wanted = waiting.len() + rest;
            let (mut space_len, mut filled, mut taken_back) = (0, 0, Vec::new());
            let fill = |at: u64, len: usize| {
                let before = waiting.len().min(len);
                store.memory.copy_in(at, &waiting[..before]);
                space_len = len - before;
                let Some(receive) = receive.take_if(|_| space_len > 0) else { return };
                let at = at + before as u64;
                let is_last = space_len as u64 == missing;
                // SAFETY: the bytes are of a reservation that `fill_chunk` made and has not committed; `receive` only
                // hands them to the kernel.
                filled = unsafe { store.memory.fill(at, space_len, |space| receive(space, is_last)) };
                if filled < space_len {
                    // Once it is committed, reclaim may take the chunk.
                    taken_back.resize(filled, 0);
                    store.memory.copy_out(at, &mut taken_back);
                }
            };
            match store.fill_chunk(
                parts.owner,
                parts.queue,
                self.expiry,
                wanted,
                ClaimPurpose::New,
                true,
                fill,
            ) {
                Ok(chunk) if filled == space_len => {
                    parts.chunks.push(chunk);
                    parts.waiting.remove(chunk.len as usize - space_len);
                }
                Ok(chunk) => {
                    parts.kill_orphans(&[chunk]);
                    let end = parts.waiting.len + filled;
                    parts.waiting.append(&taken_back, end);
                }
                Err(NoSpace::Full) => handle.make_room(ClaimPurpose::New, 0).ok()?,
                Err(NoSpace::TooLong) => return None,
            }
            if space_len > 0 {
                parts.count_received(handle, filled);
                return Some(space_len);
            }
        }
    }

    /// Frees space that the received bytes do not justify: the client may stall.
    pub fn settle(&mut self) {
        self.parts.waiting.settle();
    }

    /// Ends receiving, and returns the value, ready to be stored.
    ///
    /// # Errors
    /// As for [`Upload::write`], and it may be tried again.
    pub fn complete(&mut self, handle: &Handle) -> Result<&CompletedUpload, OutOfMemory> {
        assert_eq!(self.missing(), 0, "an upload is finished when all has arrived");
        let fits = handle.fits_contiguously(self.announced);
        if !(self.parts.chunks.is_empty() && fits) {
            self.write_rest(handle)?;
        }
        Ok(&self.parts)
    }

    /// As [`Upload::complete`], and gives up the value if memory is full.
    ///
    /// # Errors
    /// As for [`Upload::write`].
    pub fn finish(mut self, handle: &Handle) -> Result<CompletedUpload, OutOfMemory> {
        self.complete(handle)?;
        Ok(self.parts)
    }

    /// As [`Upload::finish`], in chunks even if the value is short.
    pub(crate) fn finish_in_chunks(mut self, handle: &Handle) -> Result<CompletedUpload, OutOfMemory> {
        self.write_rest(handle)?;
        Ok(self.parts)
    }

    fn write_rest(&mut self, handle: &Handle) -> Result<(), OutOfMemory> {
        self.parts.write_waiting(handle, self.expiry, usize::MAX)
    }
}

impl CompletedUpload {
    /// Returns the bytes of the value.
    pub fn len(&self) -> u64 {
        self.received
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// The value, if it is not in chunks.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        self.chunks.is_empty().then_some(self.waiting.as_bytes())
    }

    pub(crate) fn chunks(&self) -> &[ChunkEntry] {
        &self.chunks
    }

    /// Appends the value to `out`. False if reclaim took a part of it. The caller holds the lock of the owner's group.
    pub(crate) fn append_to(&self, store: &Store, out: &mut Vec<u8>) -> bool {
        if let Some(bytes) = self.as_bytes() {
            out.extend_from_slice(bytes);
            return true;
        }
        self.chunks.iter().all(|chunk| {
            let is_there = store.live_chunk(*chunk).is_some();
            if is_there {
                out.extend_from_slice(&store.chunk_value(*chunk));
            }
            is_there
        })
    }

    /// An item has the chunks now. Called under the lock of the owner's group.
    pub(crate) fn adopt(&self) {
        if !self.adopted.replace(true) {
            self.count_orphans_out(&self.chunks);
        }
    }

    fn count_orphans_out(&self, chunks: &[ChunkEntry]) {
        for chunk in chunks {
            self.store.segments.count_orphan(chunk.offset, -1);
        }
    }

    fn kill_orphans(&self, chunks: &[ChunkEntry]) {
        {
            let _group = self.store.index.lock(self.owner);
            for chunk in chunks {
                self.store.kill_chunk(*chunk);
            }
        }
        self.count_orphans_out(chunks);
    }

    /// Counts received bytes, and does the share of reclaim that they take.
    fn count_received(&mut self, handle: &Handle, len: usize) {
        self.received += len as u64;
        for at in (0..len).step_by(UPLOAD_SHARE_BYTES) {
            handle.reclaim_ahead((len - at).min(UPLOAD_SHARE_BYTES) as u64);
        }
    }

    /// Writes chunks of the first `len` bytes that wait, or of all. Those that it writes wait no longer.
    fn write_waiting(&mut self, handle: &Handle, expiry: Expiry, len: usize) -> Result<(), OutOfMemory> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut taken = 0;
        let written =
            self.add_chunks(handle, expiry, &waiting.as_bytes()[..len.min(waiting.len)], &mut taken);
        waiting.remove(taken);
        self.waiting = waiting;
        written
    }

    /// Writes chunks of these bytes, and counts in `taken` those that are written.
    fn add_chunks(
        &mut self,
        handle: &Handle,
        expiry: Expiry,
        bytes: &[u8],
        taken: &mut usize,
    ) -> Result<(), OutOfMemory> {
        while *taken < bytes.len() {
            let rest = &bytes[*taken..];
            match self.store.write_chunk(self.owner, self.queue, expiry, rest, ClaimPurpose::New, true) {
                Ok(chunk) => {
                    self.chunks.push(chunk);
                    *taken += chunk.len as usize;
                }
                Err(NoSpace::Full) => handle.make_room(ClaimPurpose::New, 0)?,
                Err(NoSpace::TooLong) => return Err(OutOfMemory::Full),
            }
        }
        Ok(())
    }
}

impl Drop for CompletedUpload {
    fn drop(&mut self) {
        if !self.adopted.get() && !self.chunks.is_empty() {
            self.kill_orphans(&self.chunks);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn space_of_a_stalled_client_is_freed() {
        let mut gathered = Gathered::default();
        gathered.append(b"first", 5);
        let space = gathered.space(UPLOAD_SHARE_BYTES);
        assert_eq!(space.len(), SPACE_BYTES_MIN - 5);
        space[..6].copy_from_slice(b"second");
        gathered.len += 6;
        gathered.settle();
        assert!(gathered.bytes.capacity() <= SPARSE_DIVISOR * gathered.len, "{}", gathered.bytes.capacity());
        gathered.append(b"third", 16);
        assert_eq!(gathered.as_bytes(), b"firstsecondthird");
        gathered.len = 0;
        gathered.settle();
        assert_eq!(gathered.bytes.capacity(), 0);
        let part = [7; 20 << 10];
        gathered.append(&part, part.len());
        assert_eq!(gathered.space(1 << 20).len(), (SPARSE_DIVISOR - 1) * part.len());
    }
}
