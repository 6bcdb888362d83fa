//! The value of a new item, computed from the client's value and the existing one, as bytes or as chunks.

use std::borrow::Cow;

use fabcache_layout::KeyHash;
use fabcache_layout::item::{ChunkEntry, HEADER_BYTES_MAX, KEY_BYTES_MAX};

use super::{Change, ExistingItem, NewValue, Value, Write, WriteObstacle};
use crate::error::OutOfMemory;
use crate::handle::Handle;
use crate::info::Expiry;
use crate::segments::{ClaimPurpose, NoSpace, Queue};
use crate::store::Store;
use crate::upload::{CompletedUpload, Upload};

/// The value of a new item, worked out.
pub(super) struct Content<'a> {
    pub(super) len: u64,
    /// The whole value, if there are no chunks.
    pub(super) bytes: Cow<'a, [u8]>,
    pub(super) chunks: Vec<ChunkEntry>,
    /// Chunks written for this item only.
    made: Vec<ChunkEntry>,
    /// Chunks whose bytes were copied into one of `made`.
    merged: Vec<ChunkEntry>,
    /// The old item's chunks stay alive, except for the merged ones.
    pub(super) keeps_old: bool,
    /// The upload whose chunks become this item's.
    upload: Option<&'a CompletedUpload>,
    /// The class of chunks written for this item.
    queue: Queue,
}

impl<'a> Content<'a> {
    fn of_bytes(bytes: Cow<'a, [u8]>) -> Content<'a> {
        Content { len: bytes.len() as u64, bytes, ..Content::of_chunks(Vec::new(), 0) }
    }

    fn of_chunks(chunks: Vec<ChunkEntry>, len: u64) -> Content<'a> {
        Content {
            len,
            bytes: (&[][..]).into(),
            chunks,
            made: Vec::new(),
            merged: Vec::new(),
            keeps_old: false,
            upload: None,
            queue: Queue::Small,
        }
    }

    /// The bytes written after the key: the value, or the table of chunks.
    pub(super) fn payload(&self) -> Cow<'_, [u8]> {
        if self.chunks.is_empty() {
            return Cow::Borrowed(&self.bytes);
        }
        self.chunks.iter().flat_map(|chunk| chunk.to_bytes()).collect()
    }

    /// The item is not stored after all.
    pub(super) fn give_up(&self, store: &Store) {
        for chunk in &self.made {
            store.kill_chunk(*chunk);
        }
    }

    /// The item is stored: those of an upload are no longer orphans, merged chunks die.
    pub(super) fn settle(&self, store: &Store) {
        if let Some(upload) = self.upload {
            upload.adopt();
        }
        for chunk in &self.merged {
            store.kill_chunk(*chunk);
        }
    }
}

impl Handle {
    /// Works out the value of the new item.
    pub(super) fn content<'a>(
        &self,
        hash: KeyHash,
        existing: &mut ExistingItem<'_>,
        write: &Write<'a>,
        cut: Option<&'a CompletedUpload>,
    ) -> Result<Content<'a>, WriteObstacle> {
        match write.value {
            NewValue::Is(Value::CompletedUpload(uploaded)) => self.content_of_upload(uploaded),
            NewValue::Is(Value::Bytes(bytes)) => match cut {
                Some(cut) => self.content_of_upload(cut),
                None if self.fits_contiguously(bytes.len() as u64) => Ok(Content::of_bytes(bytes.into())),
                None => Err(WriteObstacle::Chunks),
            },
            NewValue::Same => Ok(self.content_of_existing(existing)),
            NewValue::Number { number, width } => {
                Ok(Content::of_bytes(format!("{number:<width$}").into_bytes().into()))
            }
            NewValue::Appended(value) => self.joined(hash, existing, write, value, cut, true),
            NewValue::Prepended(value) => self.joined(hash, existing, write, value, cut, false),
        }
    }

    fn content_of_upload<'a>(&self, uploaded: &'a CompletedUpload) -> Result<Content<'a>, WriteObstacle> {
        if let Some(bytes) = uploaded.as_bytes() {
            return Ok(Content::of_bytes(bytes.into()));
        }
        // Reclaim takes chunks of a value still being received only when nothing else is left.
        if uploaded.chunks().iter().any(|chunk| self.store.live_chunk(*chunk).is_none()) {
            return Err(WriteObstacle::Lost);
        }
        Ok(Content {
            upload: Some(uploaded),
            ..Content::of_chunks(uploaded.chunks().to_vec(), uploaded.len())
        })
    }

    fn content_of_existing<'a>(&self, existing: &ExistingItem<'_>) -> Content<'a> {
        let (Some(at), Some(item)) = (existing.linked.at, existing.linked.item) else {
            return Content::of_bytes((&[][..]).into());
        };
        let offset = at.slot.offset();
        if item.is_chained() {
            let chunks = self.store.chunks(offset, &item);
            return Content { keeps_old: true, ..Content::of_chunks(chunks, u64::from(item.value_len)) };
        }
        let mut bytes = Vec::new();
        self.store.memory.append_to(offset + item.payload_at(), item.value_len as usize, &mut bytes);
        Content::of_bytes(bytes.into())
    }

    /// Joins the existing value and a new part, as bytes if the result is short, else as chunks: the old ones, the
    /// new ones, and one in place of two where short ones meet, so that frequent appends do not create many.
    fn joined<'a>(
        &self,
        hash: KeyHash,
        existing: &mut ExistingItem<'_>,
        write: &Write<'_>,
        value: Value<'a>,
        cut: Option<&'a CompletedUpload>,
        after: bool,
    ) -> Result<Content<'a>, WriteObstacle> {
        let old = self.content_of_existing(existing);
        let new = match (value, cut) {
            (_, Some(cut)) => self.content_of_upload(cut)?,
            (Value::CompletedUpload(uploaded), None) => self.content_of_upload(uploaded)?,
            (Value::Bytes(bytes), None) => Content::of_bytes(bytes.into()),
        };
        let len = old.len + new.len;
        if old.chunks.is_empty() && new.chunks.is_empty() && self.fits_contiguously(len) {
            let (first, second) = if after { (&old.bytes, &new.bytes) } else { (&new.bytes, &old.bytes) };
            return Ok(Content::of_bytes([&**first, &**second].concat().into()));
        }
        if new.chunks.is_empty() && new.bytes.len() > self.store.chunk_value_bytes_max() {
            return Err(WriteObstacle::Chunks);
        }
        let mut joined = Content {
            keeps_old: !old.chunks.is_empty(),
            upload: new.upload,
            queue: self.queue_for(hash, existing.linked.at.map(|at| at.slot)),
            ..Content::of_chunks(Vec::new(), len)
        };
        let parts = if after { [old, new] } else { [new, old] };
        for part in parts {
            if let Err(why) = self.add_part(hash, write.expiry, &mut joined, part) {
                joined.give_up(&self.store);
                return Err(why.into());
            }
        }
        Ok(joined)
    }

    fn add_part(
        &self,
        hash: KeyHash,
        expiry: Expiry,
        joined: &mut Content<'_>,
        part: Content<'_>,
    ) -> Result<(), NoSpace> {
        let store = &*self.store;
        let mut chunks = part.chunks.into_iter();
        let mut seam = if part.bytes.is_empty() { None } else { Some(part.bytes.into_owned()) };
        if let Some(last) = joined.chunks.last().copied() {
            let next_len = seam
                .as_ref()
                .map_or_else(|| chunks.as_slice().first().map_or(0, |p| p.len as usize), Vec::len);
            if next_len > 0 && last.len as usize + next_len <= store.chunk_value_bytes_max() {
                let mut bytes = store.chunk_value(last);
                match seam.take() {
                    Some(next) => bytes.extend_from_slice(&next),
                    None => {
                        let next = chunks.next().expect("it has a length");
                        bytes.extend_from_slice(&store.chunk_value(next));
                        joined.merged.push(next);
                    }
                }
                joined.chunks.pop();
                joined.merged.push(last);
                seam = Some(bytes);
            }
        }
        let mut rest = seam.as_deref().unwrap_or_default();
        while !rest.is_empty() {
            let chunk = store.write_chunk(hash, joined.queue, expiry, rest, ClaimPurpose::New, false)?;
            rest = &rest[chunk.len as usize..];
            joined.made.push(chunk);
            joined.chunks.push(chunk);
        }
        joined.chunks.extend(chunks);
        Ok(())
    }

    pub(crate) fn fits_contiguously(&self, value_len: u64) -> bool {
        value_len + (HEADER_BYTES_MAX + KEY_BYTES_MAX) as u64 <= self.store.contiguous_bytes_max()
    }

    /// Cuts the value of a change into chunks, without the lock.
    pub(super) fn cut(&self, key: &[u8], change: Change<'_>) -> Result<CompletedUpload, OutOfMemory> {
        let Change::Write(Write {
            value:
                NewValue::Is(Value::Bytes(bytes))
                | NewValue::Appended(Value::Bytes(bytes))
                | NewValue::Prepended(Value::Bytes(bytes)),
            expiry,
            ..
        }) = change
        else {
            unreachable!("only bytes that a client sent are cut");
        };
        let mut upload = Upload::begin(&self.store, key, expiry, bytes.len() as u64);
        upload.write(self, bytes)?;
        upload.finish_in_chunks(self)
    }
}
