//! The value of a new item: worked out from what a client sent and what was there, as bytes or as pieces.

use std::borrow::Cow;

use fabcache_layout::KeyHash;
use fabcache_layout::item::{HEADER_BYTES_MAX, Item, KEY_BYTES_MAX, PieceEntry};

use super::{Blocked, Change, Existing, NewValue, Value, Write};
use crate::error::OutOfMemory;
use crate::handle::Handle;
use crate::info::Expiry;
use crate::segments::{Claim, NoSpace, Queue};
use crate::store::Store;
use crate::upload::{Upload, Uploaded};

/// The value of a new item, worked out.
pub(super) struct Content<'a> {
    pub(super) len: u64,
    /// All of it, if there are no pieces.
    pub(super) bytes: Cow<'a, [u8]>,
    pub(super) pieces: Vec<PieceEntry>,
    /// Pieces written for this item only.
    made: Vec<PieceEntry>,
    /// Pieces whose bytes went into one of `made`.
    merged: Vec<PieceEntry>,
    /// The old item's pieces go on living, but for the merged ones.
    keeps_old: bool,
    /// The upload whose pieces become this item's.
    upload: Option<&'a Uploaded>,
    /// Where pieces written for this item go.
    queue: Queue,
}

impl<'a> Content<'a> {
    fn of_bytes(bytes: Cow<'a, [u8]>) -> Content<'a> {
        Content { len: bytes.len() as u64, bytes, ..Content::of_pieces(Vec::new(), 0) }
    }

    fn of_pieces(pieces: Vec<PieceEntry>, len: u64) -> Content<'a> {
        Content {
            len,
            bytes: (&[][..]).into(),
            pieces,
            made: Vec::new(),
            merged: Vec::new(),
            keeps_old: false,
            upload: None,
            queue: Queue::Small,
        }
    }

    /// What is written behind the key: the bytes, or the table of pieces.
    pub(super) fn payload(&self) -> Cow<'_, [u8]> {
        if self.pieces.is_empty() {
            return Cow::Borrowed(&self.bytes);
        }
        self.pieces.iter().flat_map(|piece| piece.to_bytes()).collect()
    }

    /// The item is not stored after all.
    pub(super) fn give_up(&self, store: &Store) {
        for piece in &self.made {
            store.kill_piece(*piece);
        }
    }

    /// Ends the pieces of the item that this one replaces, unless it goes on having them.
    pub(super) fn kill_old_pieces(&self, store: &Store, offset: u64, old: &Item) {
        if !self.keeps_old {
            store.kill_pieces(offset, old);
        }
    }

    /// The item is stored: those of an upload are no longer orphans, merged pieces die.
    pub(super) fn settle(&self, store: &Store) {
        if let Some(upload) = self.upload {
            upload.adopt();
        }
        for piece in &self.merged {
            store.kill_piece(*piece);
        }
    }
}

impl Handle {
    /// Works out the value of the new item.
    pub(super) fn content<'a>(
        &self,
        hash: KeyHash,
        existing: &mut Existing<'_>,
        write: &Write<'a>,
        cut: Option<&'a Uploaded>,
    ) -> Result<Content<'a>, Blocked> {
        match write.value {
            NewValue::Is(Value::Uploaded(uploaded)) => self.content_of_upload(uploaded),
            NewValue::Is(Value::Bytes(bytes)) => match cut {
                Some(cut) => self.content_of_upload(cut),
                None if self.fits_contiguously(bytes.len() as u64) => Ok(Content::of_bytes(bytes.into())),
                None => Err(Blocked::Pieces),
            },
            NewValue::Same => Ok(self.content_of_existing(existing)),
            NewValue::Number { number, width } => {
                Ok(Content::of_bytes(format!("{number:<width$}").into_bytes().into()))
            }
            NewValue::Appended(value) => self.joined(hash, existing, write, value, cut, true),
            NewValue::Prepended(value) => self.joined(hash, existing, write, value, cut, false),
        }
    }

    fn content_of_upload<'a>(&self, uploaded: &'a Uploaded) -> Result<Content<'a>, Blocked> {
        if let Some(bytes) = uploaded.as_bytes() {
            return Ok(Content::of_bytes(bytes.into()));
        }
        // Reclaim takes pieces of a value still being received only when nothing else is left.
        if uploaded.pieces().iter().any(|piece| self.store.live_piece(*piece).is_none()) {
            return Err(Blocked::Lost);
        }
        Ok(Content {
            upload: Some(uploaded),
            ..Content::of_pieces(uploaded.pieces().to_vec(), uploaded.len())
        })
    }

    fn content_of_existing<'a>(&self, existing: &Existing<'_>) -> Content<'a> {
        let (Some(at), Some(item)) = (existing.at, existing.item) else {
            return Content::of_bytes((&[][..]).into());
        };
        let offset = at.slot.offset();
        if item.is_chained() {
            let pieces = self.store.pieces(offset, &item);
            return Content { keeps_old: true, ..Content::of_pieces(pieces, u64::from(item.value_len)) };
        }
        let mut bytes = Vec::new();
        self.store.memory.append_to(offset + item.payload_at(), item.value_len as usize, &mut bytes);
        Content::of_bytes(bytes.into())
    }

    /// The existing value and a new part, as bytes if that is short, else as pieces: the old ones, the new ones, and
    /// one in place of two where short ones meet, so that appending often does not make many.
    fn joined<'a>(
        &self,
        hash: KeyHash,
        existing: &mut Existing<'_>,
        write: &Write<'_>,
        value: Value<'a>,
        cut: Option<&'a Uploaded>,
        after: bool,
    ) -> Result<Content<'a>, Blocked> {
        let old = self.content_of_existing(existing);
        let new = match (value, cut) {
            (_, Some(cut)) => self.content_of_upload(cut)?,
            (Value::Uploaded(uploaded), None) => self.content_of_upload(uploaded)?,
            (Value::Bytes(bytes), None) => Content::of_bytes(bytes.into()),
        };
        let len = old.len + new.len;
        if old.pieces.is_empty() && new.pieces.is_empty() && self.fits_contiguously(len) {
            let (first, second) = if after { (&old.bytes, &new.bytes) } else { (&new.bytes, &old.bytes) };
            return Ok(Content::of_bytes([&**first, &**second].concat().into()));
        }
        if new.pieces.is_empty() && new.bytes.len() > self.store.piece_value_bytes_max() {
            return Err(Blocked::Pieces);
        }
        let mut joined = Content {
            keeps_old: !old.pieces.is_empty(),
            upload: new.upload,
            queue: self.queue_for(hash, existing),
            ..Content::of_pieces(Vec::new(), len)
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
        let mut pieces = part.pieces.into_iter();
        let mut seam = if part.bytes.is_empty() { None } else { Some(part.bytes.into_owned()) };
        if let Some(last) = joined.pieces.last().copied() {
            let next_len = seam
                .as_ref()
                .map_or_else(|| pieces.as_slice().first().map_or(0, |p| p.len as usize), Vec::len);
            if next_len > 0 && last.len as usize + next_len <= store.piece_value_bytes_max() {
                let mut bytes = store.piece_value(last);
                match seam.take() {
                    Some(next) => bytes.extend_from_slice(&next),
                    None => {
                        let next = pieces.next().expect("it has a length");
                        bytes.extend_from_slice(&store.piece_value(next));
                        joined.merged.push(next);
                    }
                }
                joined.pieces.pop();
                joined.merged.push(last);
                seam = Some(bytes);
            }
        }
        let mut rest = seam.as_deref().unwrap_or_default();
        while !rest.is_empty() {
            let piece = store.write_piece(hash, joined.queue, expiry, rest, Claim::New, false)?;
            rest = &rest[piece.len as usize..];
            joined.made.push(piece);
            joined.pieces.push(piece);
        }
        joined.pieces.extend(pieces);
        Ok(())
    }

    pub(crate) fn fits_contiguously(&self, value_len: u64) -> bool {
        value_len + (HEADER_BYTES_MAX + KEY_BYTES_MAX) as u64 <= self.store.contiguous_bytes_max()
    }

    /// Cuts the value of a change into pieces, without the lock.
    pub(super) fn cut(&self, key: &[u8], change: Change<'_>) -> Result<Uploaded, OutOfMemory> {
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
        upload.finish_in_pieces(self)
    }
}
