//! Items and chunks, written to a segment.

use fabcache_layout::item::{self, ChunkEntry, Encoded, Item, NewItem, State};
use fabcache_layout::{KeyHash, header};

use crate::info::Expiry;
use crate::segments::{ClaimPurpose, NoSpace, Queue, Reservation};
use crate::store::Store;

impl Store {
    /// Writes an item into its reservation and publishes it for reclaim; the slot is the caller's.
    #[inline]
    pub(crate) fn write_item(
        &self,
        reservation: Reservation,
        new: &NewItem<'_>,
        payload: &[u8],
        expiry: Expiry,
    ) {
        let offset = reservation.offset;
        let is_item = !new.key.is_empty();
        debug_assert_eq!(payload.len() as u64, new.payload_len());
        self.write_bytes(reservation.segment, offset, &new.encode(), new.key, payload);
        self.segments.count_live(offset, new.bytes(), u64::from(is_item));
        if is_item {
            self.segments.note_expiry(&reservation, new.expiry, self.now());
        }
        self.segments.commit(reservation, expiry.second());
    }

    /// Writes header, key, payload and checksum to reserved bytes.
    #[inline(always)]
    pub(super) fn write_bytes(
        &self,
        segment: u32,
        offset: u64,
        encoded: &Encoded,
        key: &[u8],
        payload: &[u8],
    ) {
        let header = encoded.as_bytes();
        let len = (header.len() + key.len() + payload.len()) as u64;
        self.memory.copy_in_parts(offset, [header, key, payload]);
        let kind = encoded.kind();
        let generation = self.segments.generation(segment);
        // SAFETY: the reservation is exclusively ours, and was just written in full.
        unsafe { item::seal(&self.memory, &self.secret, generation, offset, kind, len) };
    }

    /// Writes a chunk of a value of the key with this hash: as much of `bytes` as fits the open segment, if that is
    /// not too short a chunk. An orphan is one that no item has yet, and is counted as such.
    pub(crate) fn write_chunk(
        &self,
        owner: KeyHash,
        queue: Queue,
        expiry: Expiry,
        bytes: &[u8],
        claim: ClaimPurpose,
        is_orphan: bool,
    ) -> Result<ChunkEntry, NoSpace> {
        let fill = |at, len| self.memory.copy_in(at, &bytes[..len]);
        self.fill_chunk(owner, queue, expiry, bytes.len(), claim, is_orphan, fill)
    }

    /// Writes a chunk as [`Store::write_chunk`], of at most `len` bytes that `fill` puts at an offset.
    #[expect(clippy::too_many_arguments, reason = "all of them describe the one chunk")]
    pub(crate) fn fill_chunk(
        &self,
        owner: KeyHash,
        queue: Queue,
        expiry: Expiry,
        len: usize,
        claim: ClaimPurpose,
        is_orphan: bool,
        fill: impl FnOnce(u64, usize),
    ) -> Result<ChunkEntry, NoSpace> {
        let now = self.now();
        let wanted = len.min(self.chunk_value_bytes_max());
        let mut new = NewItem {
            state: State::live(header::flush_epoch(&self.memory)),
            cas: owner.0,
            value_len: wanted as u32,
            ..NewItem::default()
        };
        let whole = new.bytes();
        let least = whole.min(self.chunk_bytes_min());
        let class = match claim {
            ClaimPurpose::Move => self.segments.class_of_moved_chunks(queue, expiry.second(), now),
            ClaimPurpose::New | ClaimPurpose::Rewrite => {
                self.segments.class_of(queue, expiry.second(), now, 0)
            }
        };
        let reservation = self.segments.reserve_between(class, least, whole, now, claim)?;
        new.value_len = (reservation.len as usize - new.head_len()).min(wanted) as u32;
        debug_assert!(new.bytes() <= reservation.len);
        let (offset, segment) = (reservation.offset, reservation.segment);
        let generation = self.segments.generation(segment);
        if is_orphan {
            // The segment cannot be taken while the reservation exists, and must be counted as an orphan when it
            // ends.
            self.segments.count_orphan(offset, 1);
        }
        let encoded = new.encode();
        let header = encoded.as_bytes();
        let payload_at = header.len() as u64;
        self.memory.copy_in(offset, header);
        fill(offset + payload_at, new.value_len as usize);
        let written = payload_at + u64::from(new.value_len);
        // SAFETY: the reservation is exclusively ours, and was just written in full.
        unsafe { item::seal(&self.memory, &self.secret, generation, offset, encoded.kind(), written) };
        self.segments.count_live(offset, new.bytes(), 0);
        self.segments.commit(reservation, expiry.second());
        let checksum = Item::read(&self.memory, offset).expect("just written").checksum;
        Ok(ChunkEntry { offset, generation: generation as u32, len: new.value_len, checksum })
    }

    /// The bytes of a chunk that is stable.
    pub(crate) fn chunk_value(&self, chunk: ChunkEntry) -> Vec<u8> {
        let header = Item::read(&self.memory, chunk.offset).expect("a chunk is in the region");
        let mut bytes = vec![0; chunk.len as usize];
        self.memory.copy_out(chunk.offset + header.payload_at(), &mut bytes);
        bytes
    }
}
