//! Writing: one read-modify-write for everything that changes an item.
//!
//! Under the lock of the key's group: the existing item is found, the caller decides what becomes of it, the new item
//! is written to a segment, the old one is marked dead, and the slot is pointed to the new one. Memory is never
//! waited for under the lock: when there is none at hand the lock is given up, room is made, and it starts again.

use fabcache_layout::header;
use fabcache_layout::item::{
    self, HEADER_BYTES_MAX, Item, KEY_BYTES_MAX, NewItem, PieceEntry, State, access_window,
};
use fabcache_layout::{KeyHash, Slot, size_class};

use crate::error::OutOfMemory;
use crate::handle::Handle;
use crate::index::group::LockedGroup;
use crate::index::resize::Growth;
use crate::index::{NoBlock, SlotAt};
use crate::info::{Detail, Expiry, ItemInfo, Miss};
use crate::segments::{Claim, NoSpace, Reservation, class_of};
use crate::store::Store;
use crate::upload::{Upload, Uploaded};

/// What a client sent as a value.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// All of it.
    Bytes(&'a [u8]),
    /// Received piece by piece; for the key it was begun with.
    Uploaded(&'a Uploaded),
}

impl Value<'_> {
    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        match self {
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::Uploaded(uploaded) => uploaded.len(),
        }
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The value of a new item.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'a> {
    /// This.
    Is(Value<'a>),
    /// That of the existing item.
    Same,
    /// That of the existing item and this behind it.
    Appended(Value<'a>),
    /// This and that of the existing item behind it.
    Prepended(Value<'a>),
    /// A decimal number, with spaces behind it up to `width` bytes.
    Number {
        /// The number.
        number: u64,
        /// The least bytes.
        width: usize,
    },
}

/// A new item for the key.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Client flags.
    pub flags: u32,
    /// When it expires.
    pub expiry: Expiry,
    /// Its CAS value; none for the next of the store's counter.
    pub cas: Option<u64>,
    /// Its key was given in base64.
    pub binary_key: bool,
    /// It is stale (meta protocol).
    pub stale: bool,
    /// A client was told that it won.
    pub token_sent: bool,
    /// It counts as read.
    pub fetched: bool,
    /// It goes on being the same item for the purposes of eviction.
    pub same_item: bool,
    /// Its value.
    pub value: NewValue<'a>,
}

impl Write<'_> {
    fn claim(&self) -> Claim {
        if self.same_item { Claim::Rewrite } else { Claim::New }
    }
}

/// What becomes of the existing item.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// It stays as it is.
    Keep,
    /// It stays, with marks added.
    Mark {
        /// The token was given to a client.
        token_sent: bool,
        /// It counts as read.
        fetched: bool,
    },
    /// It goes.
    Remove,
    /// A new one takes its place.
    Write(Write<'a>),
}

impl Change<'_> {
    fn claim(&self) -> Claim {
        if let Change::Write(write) = self { write.claim() } else { Claim::New }
    }
}

/// What a new item got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Written {
    /// Its CAS value.
    pub cas: u64,
}

/// What is there when a write decides.
#[derive(Debug)]
pub struct Existing<'s> {
    store: &'s Store,
    at: Option<SlotAt>,
    item: Option<Item>,
    /// The item, if a valid one is there.
    pub info: Result<ItemInfo, Miss>,
    scratch: Vec<u8>,
}

impl Existing<'_> {
    /// The value, if it is one of at most `max` bytes.
    pub fn value(&mut self, max: u32) -> Option<&[u8]> {
        let (at, item) = (self.at?, self.item?);
        if self.info.is_err() || item.is_chained() || item.value_len > max {
            return None;
        }
        self.scratch.clear();
        let from = at.slot.offset() + item.payload_at();
        self.store.memory.append_to(from, item.value_len as usize, &mut self.scratch);
        Some(&self.scratch)
    }
}

/// Why a write cannot be done while the lock is held.
enum Blocked {
    /// No segment has room.
    Space,
    /// The index needs another block.
    Index,
    /// The value must first be cut into pieces.
    Pieces,
    /// Reclaim took a part of the value while it was being received, as nothing else was left to take.
    Lost,
}

impl From<NoSpace> for Blocked {
    fn from(_: NoSpace) -> Blocked {
        Blocked::Space
    }
}

impl Handle {
    /// Changes what is stored under `key` as `decide` says, which may be called several times and the last time
    /// counts. What it returned with the change is returned.
    ///
    /// # Errors
    /// Memory is full and nothing may be evicted. What was stored is still stored.
    pub fn mutate<'a, R>(
        &self,
        key: &[u8],
        mut decide: impl FnMut(&mut Existing<'_>) -> (Change<'a>, R),
    ) -> Result<(R, Written), OutOfMemory> {
        let store = &*self.store;
        let hash = store.hash(key);
        let mut cut: Option<Uploaded> = None;
        loop {
            let group = store.index.lock(hash);
            let mut existing = self.existing(&group, hash, key);
            let (change, result) = decide(&mut existing);
            let done = self.apply(&group, hash, key, &mut existing, change, cut.as_ref());
            self.scratch.give_back(std::mem::take(&mut existing.scratch));
            drop(group);
            match done {
                Ok(written) => {
                    if let Some(written) = written {
                        self.after_write(hash);
                        return Ok((result, written));
                    }
                    return Ok((result, Written::default()));
                }
                Err(Blocked::Space) => self.make_room(change.claim())?,
                Err(Blocked::Index) => {
                    let more = store.index.add_chain_memory(hash, &|| store.index_segment());
                    more.or_else(|NoBlock| self.make_room(Claim::New))?;
                }
                Err(Blocked::Pieces) => cut = Some(self.cut(key, change)?),
                Err(Blocked::Lost) => return Err(OutOfMemory),
            }
        }
    }

    fn existing<'s>(&'s self, group: &LockedGroup<'_>, hash: KeyHash, key: &[u8]) -> Existing<'s> {
        let store = &*self.store;
        let at = group.find(hash, |slot| store.has_key(slot.offset(), key));
        let item = at.and_then(|at| Item::read(&store.memory, at.slot.offset()));
        let now = store.now();
        let info = match (at, &item) {
            (Some(at), Some(item)) => match store.gone(item, now) {
                None => Ok(store.info(at.slot, item, now, Detail::Basic)),
                Some(miss) => Err(miss),
            },
            _ => Err(Miss::Absent),
        };
        Existing { store, at, item, info, scratch: self.scratch.take() }
    }

    fn apply(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        existing: &mut Existing<'_>,
        change: Change<'_>,
        cut: Option<&Uploaded>,
    ) -> Result<Option<Written>, Blocked> {
        let store = &*self.store;
        let there = existing.at.zip(existing.item);
        match change {
            Change::Write(write) => self.replace(group, hash, key, existing, &write, cut).map(Some),
            Change::Keep if existing.info.is_ok() => Ok(None),
            Change::Mark { token_sent, fetched } if existing.info.is_ok() => {
                let token = if token_sent { State::TOKEN_SENT } else { 0 };
                let read = if fetched { State::FETCHED } else { 0 };
                if let Some((at, _)) = there {
                    item::set_state(&store.memory, at.slot.offset(), token | read);
                }
                Ok(None)
            }
            // What is no longer valid goes whatever was decided.
            _ => {
                if let Some((at, item)) = there {
                    store.kill_item(at.slot.offset(), &item);
                    group.clear(at.at);
                }
                Ok(None)
            }
        }
    }

    fn replace(
        &self,
        group: &LockedGroup<'_>,
        hash: KeyHash,
        key: &[u8],
        existing: &mut Existing<'_>,
        write: &Write<'_>,
        cut: Option<&Uploaded>,
    ) -> Result<Written, Blocked> {
        let store = &*self.store;
        let content = self.content(hash, existing, write, cut)?;
        let now = store.now();
        let mut new = NewItem {
            state: self.new_state(write),
            key,
            binary_key: write.binary_key,
            cas: 0,
            flags: write.flags,
            expiry: write.expiry.second(),
            pieces: content.pieces.len() as u32,
            value_len: content.len as u32,
        };
        let frequency = match existing.at {
            Some(at) if write.same_item => at.slot.frequency(),
            _ => 0,
        };
        let class = class_of(new.expiry, now);
        let reservation = match store.segments.reserve(class, new.bytes(), now, write.claim()) {
            Ok(reservation) => reservation,
            Err(NoSpace) => {
                content.give_up(store);
                return Err(Blocked::Space);
            }
        };
        new.cas = match write.cas {
            Some(cas) => cas,
            None if store.cas_enabled => store.next_cas(),
            None => 0,
        };
        let age = now.saturating_sub(store.segments.opened(reservation.segment));
        new.state = new.state.with_window(access_window(age));
        let offset = reservation.offset;
        let table: Vec<u8> = content.pieces.iter().flat_map(|piece| piece.to_bytes()).collect();
        let payload = if content.pieces.is_empty() { &*content.bytes } else { &table };
        store.write_item(reservation, &new, payload, write.expiry);
        let slot = Slot::item(hash.tag(), offset, size_class::class_of(new.bytes()), frequency);
        match existing.at {
            Some(at) => {
                let old = existing.item.expect("a slot has an item");
                content.kill_old(store, at.slot.offset(), &old);
                group.replace(at.at, slot);
            }
            None => {
                if group.insert(hash, slot).is_err() {
                    store.abandon_item(offset, &new);
                    content.give_up(store);
                    return Err(Blocked::Index);
                }
            }
        }
        content.settle(store);
        self.counters().total_items.inc();
        Ok(Written { cas: if store.cas_enabled { new.cas } else { 0 } })
    }

    fn new_state(&self, write: &Write<'_>) -> State {
        let marks = [
            (write.stale, State::STALE),
            (write.token_sent, State::TOKEN_SENT),
            (write.fetched, State::FETCHED),
        ];
        let live = State::live(header::flush_epoch(&self.store.memory));
        marks.into_iter().filter(|(wanted, _)| *wanted).fold(live, |state, (_, bit)| state.with(bit))
    }

    /// Works out the value of the new item.
    fn content<'a>(
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
            ..Content::of_pieces(Vec::new(), len)
        };
        let parts = if after { [old, new] } else { [new, old] };
        for part in parts {
            if let Err(NoSpace) = self.add_part(hash, write.expiry, &mut joined, part) {
                joined.give_up(&self.store);
                return Err(Blocked::Space);
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
            let piece = store.write_piece(hash, expiry, rest, Claim::New)?;
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
    fn cut(&self, key: &[u8], change: Change<'_>) -> Result<Uploaded, OutOfMemory> {
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

    /// What a write leaves to do: growing the index, keeping segments free.
    fn after_write(&self, hash: KeyHash) {
        let store = &*self.store;
        let partition = store.index.partition_of(hash);
        if store.index.wants_growth(partition) {
            match store.index.grow(partition, store.is_roomy(), store, &|| store.index_segment()) {
                Growth::Moved => self.counters().groups_moved.inc(),
                Growth::Finished => {
                    self.counters().groups_moved.inc();
                    self.counters().tables_resized.inc();
                }
                Growth::None | Growth::Blocked => {}
            }
        }
        self.reclaim_ahead();
    }
}

/// The value of a new item, worked out.
struct Content<'a> {
    len: u64,
    /// All of it, if there are no pieces.
    bytes: std::borrow::Cow<'a, [u8]>,
    pieces: Vec<PieceEntry>,
    /// Pieces written for this item only.
    made: Vec<PieceEntry>,
    /// Pieces whose bytes went into one of `made`.
    merged: Vec<PieceEntry>,
    /// The old item's pieces go on living, but for the merged ones.
    keeps_old: bool,
    /// The upload whose pieces become this item's.
    upload: Option<&'a Uploaded>,
}

impl<'a> Content<'a> {
    fn of_bytes(bytes: std::borrow::Cow<'a, [u8]>) -> Content<'a> {
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
        }
    }

    /// The item is not stored after all.
    fn give_up(&self, store: &Store) {
        for piece in &self.made {
            store.kill_piece(*piece);
        }
    }

    /// Marks the item that this one replaces dead.
    fn kill_old(&self, store: &Store, offset: u64, old: &Item) {
        if self.keeps_old {
            store.kill_head(offset, old);
        } else {
            store.kill_item(offset, old);
        }
    }

    /// The item is stored: those of an upload are no longer orphans, merged pieces die.
    fn settle(&self, store: &Store) {
        if let Some(upload) = self.upload {
            upload.adopt();
        }
        for piece in &self.merged {
            store.kill_piece(*piece);
        }
    }
}

impl Store {
    /// Writes an item into its reservation and publishes it for reclaim; the slot is the caller's.
    pub(crate) fn write_item(
        &self,
        reservation: Reservation,
        new: &NewItem<'_>,
        payload: &[u8],
        expiry: Expiry,
    ) {
        let offset = reservation.offset;
        let items = u64::from(!new.key.is_empty());
        self.write_bytes(&reservation, new, payload);
        self.segments.count_live(offset, new.bytes(), items);
        self.segments.commit(reservation, expiry.second());
    }

    fn write_bytes(&self, reservation: &Reservation, new: &NewItem<'_>, payload: &[u8]) {
        debug_assert_eq!(payload.len() as u64, new.payload_len());
        let offset = reservation.offset;
        let encoded = new.encode();
        let header = encoded.as_bytes();
        let payload_at = (header.len() + new.key.len()) as u64;
        self.memory.copy_in(offset, header);
        self.memory.copy_in(offset + header.len() as u64, new.key);
        self.memory.copy_in(offset + payload_at, payload);
        let len = payload_at + payload.len() as u64;
        let kind = encoded.kind();
        let generation = self.segments.generation(reservation.segment);
        // SAFETY: the reservation is ours alone, and was just written whole.
        unsafe { item::seal(&self.memory, &self.secret, generation, offset, kind, len) };
    }

    /// Takes back an item that was written but not linked.
    fn abandon_item(&self, offset: u64, new: &NewItem<'_>) {
        item::set_state(&self.memory, offset, State::DEAD);
        self.segments.count_dead(offset, new.bytes(), 1);
    }

    /// Writes a piece of a value of the key with this hash: as much of `bytes` as fits the open segment, if that is
    /// not too short a piece.
    pub(crate) fn write_piece(
        &self,
        owner: KeyHash,
        expiry: Expiry,
        bytes: &[u8],
        claim: Claim,
    ) -> Result<PieceEntry, NoSpace> {
        let now = self.now();
        let wanted = bytes.len().min(self.piece_value_bytes_max());
        let mut new = NewItem {
            state: State::live(header::flush_epoch(&self.memory)),
            cas: owner.0,
            value_len: wanted as u32,
            ..NewItem::default()
        };
        let whole = new.bytes();
        let least = whole.min(self.piece_bytes_min());
        let class = class_of(expiry.second(), now);
        let reservation = self.segments.reserve_between(class, least, whole, now, claim)?;
        new.value_len = (reservation.len as usize - new.head_len()).min(wanted) as u32;
        debug_assert!(new.bytes() <= reservation.len);
        let (offset, segment) = (reservation.offset, reservation.segment);
        let generation = self.segments.generation(segment) as u32;
        self.write_item(reservation, &new, &bytes[..new.value_len as usize], expiry);
        let checksum = Item::read(&self.memory, offset).expect("just written").checksum;
        Ok(PieceEntry { offset, generation, len: new.value_len, checksum })
    }

    /// The bytes of a piece that is stable.
    pub(crate) fn piece_value(&self, piece: PieceEntry) -> Vec<u8> {
        let header = Item::read(&self.memory, piece.offset).expect("a piece is in the region");
        let mut bytes = vec![0; piece.len as usize];
        self.memory.copy_out(piece.offset + header.payload_at(), &mut bytes);
        bytes
    }

    /// More than a quarter of the segments is free.
    pub(crate) fn is_roomy(&self) -> bool {
        self.segments.free_count() as u32 > self.segments.limit() / 4
    }
}
