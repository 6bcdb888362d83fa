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
    waiting: Vec<u8>,
    /// Orphans until adopted.
    chunks: Vec<ChunkEntry>,
    received: u64,
    adopted: Cell<bool>,
}

impl Upload {
    /// Begins to receive `announced` bytes for `key`; the expiry only says which items it will lie among.
    pub fn begin(store: &Arc<Store>, key: &[u8], expiry: Expiry, announced: u64) -> Upload {
        let owner = store.hash(key);
        let parts = CompletedUpload {
            owner,
            queue: store.queue_of_new(owner),
            store: Arc::clone(store),
            waiting: Vec::new(),
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
    /// Memory is full and nothing may be evicted. The upload cannot continue.
    pub fn write(&mut self, handle: &Handle, mut bytes: &[u8]) -> Result<(), OutOfMemory> {
        assert!(bytes.len() as u64 <= self.missing(), "more bytes than were announced");
        let chunk_bytes = handle.store().chunk_value_bytes_max();
        while !bytes.is_empty() {
            let parts = &mut self.parts;
            let (part, rest) = bytes.split_at(bytes.len().min(chunk_bytes - parts.waiting.len()));
            bytes = rest;
            parts.received += part.len() as u64;
            for paid_for in part.chunks(UPLOAD_SHARE_BYTES) {
                handle.reclaim_ahead(paid_for.len() as u64);
            }
            if parts.waiting.is_empty() && part.len() == chunk_bytes {
                parts.add_chunks(handle, self.expiry, part)?;
                continue;
            }
            parts.waiting.extend_from_slice(part);
            if parts.waiting.len() == chunk_bytes {
                let chunk = std::mem::take(&mut parts.waiting);
                parts.add_chunks(handle, self.expiry, &chunk)?;
            }
        }
        Ok(())
    }

    /// Ends receiving, and returns the value, ready to be stored.
    ///
    /// # Errors
    /// As for [`Upload::write`].
    pub fn finish(self, handle: &Handle) -> Result<CompletedUpload, OutOfMemory> {
        assert_eq!(self.missing(), 0, "an upload is finished when all has arrived");
        let fits = handle.fits_contiguously(self.announced);
        if self.parts.chunks.is_empty() && fits { Ok(self.parts) } else { self.finish_in_chunks(handle) }
    }

    /// As [`Upload::finish`], in chunks even if the value is short.
    pub(crate) fn finish_in_chunks(mut self, handle: &Handle) -> Result<CompletedUpload, OutOfMemory> {
        let rest = std::mem::take(&mut self.parts.waiting);
        if !rest.is_empty() {
            self.parts.add_chunks(handle, self.expiry, &rest)?;
        }
        Ok(self.parts)
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
        self.chunks.is_empty().then_some(&*self.waiting)
    }

    pub(crate) fn chunks(&self) -> &[ChunkEntry] {
        &self.chunks
    }

    /// An item has the chunks now. Called under the lock of the owner's group.
    pub(crate) fn adopt(&self) {
        if !self.adopted.replace(true) {
            self.count_orphans_out();
        }
    }

    fn count_orphans_out(&self) {
        for chunk in &self.chunks {
            self.store.segments.count_orphan(chunk.offset, -1);
        }
    }

    fn add_chunks(&mut self, handle: &Handle, expiry: Expiry, mut bytes: &[u8]) -> Result<(), OutOfMemory> {
        while !bytes.is_empty() {
            match self.store.write_chunk(self.owner, self.queue, expiry, bytes, ClaimPurpose::New, true) {
                Ok(chunk) => {
                    self.chunks.push(chunk);
                    bytes = &bytes[chunk.len as usize..];
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
        if self.adopted.get() || self.chunks.is_empty() {
            return;
        }
        {
            let _group = self.store.index.lock(self.owner);
            for chunk in &self.chunks {
                self.store.kill_chunk(*chunk);
            }
        }
        self.count_orphans_out();
    }
}
