//! Items: the contents of a segment, one after the other, each aligned to 4 bytes.
//!
//! ```text
//!   0  state       2   atomic; outside the checksum                        (table below)
//!   2  options     1   which of the optional parts follow                  (table below)
//!   3  key length  1   0 for a chunk of a chained value
//!   4  checksum    4   checksum.rs, over options, key length and all that follows
//!   8  CAS         0, 4, 5 or 8, as few as hold it; for a chunk 8: the hash of its owner's key
//!      flags       4   if any; client flags
//!      expiry      4   if any; second of the region's clock from which the item is expired
//!      chunks      4   if chained; number of chunks
//!      length      1 to 4   bytes of the value
//!      key
//!      value           if chained, the table of chunks instead: CHUNK_ENTRY_BYTES each
//! ```
//! An item is immutable once its slot is published, but for the state word, which threads of the server change while
//! they hold the lock of the item's slot: without it the memory may be another's. That of a chunk, which has no slot, is
//! changed by atomic read-modify-write.
//!
//! ```text
//!  state bit  0      dead: replaced, deleted, evicted or moved; set before the writer is answered
//!             1      stale (meta protocol)
//!             2      token sent: a client was told that it won the right to recache
//!             3      fetched since it was stored, as far as the slot's frequency no longer tells
//!             4..8   window of the last access, see `access_window`
//!             8..16  flush epoch: the item is flushed when it differs from the header's
//!  options    0      flags present
//!             1      expiry present
//!             2      chained
//!             3      the key was given in base64 (meta protocol), and is shown so
//!             4..6   bytes of the length field, less one
//!             6..8   bytes of the CAS field: 0, 4, 5 or 8
//! ```
//! A counter of stores is below 2^32 for an hour at a million a second, and below 2^40 for twelve days, so the long CAS
//! is for those that clients make up, and for the largest and oldest caches.

use crate::checksum::{Secret, checksum};
use crate::memory::Memory;
use crate::sync::Ordering;

/// Items start at multiples of this.
pub const ALIGN_BYTES: u64 = 4;
/// Longest key.
pub const KEY_BYTES_MAX: usize = 250;
/// Bytes of an entry in the table of chunks of a chained value: location (8), generation (4), length (4),
/// checksum of the chunk (4).
pub const CHUNK_ENTRY_BYTES: usize = 20;

const STATE_BYTES: usize = 2;
const OPTIONS_BYTES: usize = 1;
const KEY_LENGTH_BYTES: usize = 1;
const CHECKSUM_BYTES: usize = 4;
const FIXED_BYTES: usize = STATE_BYTES + OPTIONS_BYTES + KEY_LENGTH_BYTES + CHECKSUM_BYTES;
const CHECKSUM_AT: usize = STATE_BYTES + OPTIONS_BYTES + KEY_LENGTH_BYTES;
/// Offset of the first byte under the checksum, except options and key length.
pub const SUMMED_AT: usize = CHECKSUM_AT + CHECKSUM_BYTES;
/// Bytes of the CAS field, by its option bits.
const CAS_BYTES: [usize; 4] = [0, 4, 5, 8];
/// Masks of the CAS bytes in an eight-byte word.
const CAS_MASKS: [u64; 4] = [0, u32::MAX as u64, (1 << 40) - 1, u64::MAX];
const CAS_OF_CHUNK: usize = 3;
const FIELD_BYTES: usize = 4;
const LENGTH_BYTES_MAX: usize = 4;
/// The longest header, before the key.
pub const HEADER_BYTES_MAX: usize = FIXED_BYTES + CAS_BYTES[3] + 3 * FIELD_BYTES + LENGTH_BYTES_MAX;

// The budget of a small item without flags and expiry: 13 or 14 bytes, 16 with padding, as long as the CAS is below
// 2^40; 20 whatever the CAS.
const LENGTH_BYTES_MIN: usize = 1;
const _: () = assert!(FIXED_BYTES + CAS_BYTES[2] + LENGTH_BYTES_MIN == 14);
const _: () = assert!((FIXED_BYTES + CAS_BYTES[3] + LENGTH_BYTES_MAX) as u64 <= 20);
const _: () = assert!(HEADER_BYTES_MAX == 32);
// The field is cut out of the eight bytes at its offset.
const _: () = assert!(SUMMED_AT + 8 <= HEADER_BYTES_MAX);
/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES_MAX: usize = FIXED_BYTES + CAS_BYTES[CAS_OF_CHUNK] + LENGTH_BYTES_MAX;

const FLAGS: u8 = 1 << 0;
const EXPIRY: u8 = 1 << 1;
const CHAINED: u8 = 1 << 2;
const BINARY_KEY: u8 = 1 << 3;
const LENGTH_SHIFT: u32 = 4;
const CAS_SHIFT: u32 = 6;

/// The state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct State(pub u16);

impl State {
    /// Replaced, deleted, evicted or moved.
    pub const DEAD: u16 = 1 << 0;
    /// Stale (meta protocol).
    pub const STALE: u16 = 1 << 1;
    /// A client has won the right to recache it.
    pub const TOKEN_SENT: u16 = 1 << 2;
    /// Read since it was stored.
    pub const FETCHED: u16 = 1 << 3;
    const WINDOW_SHIFT: u32 = 4;
    const WINDOW_MASK: u16 = 0xf << State::WINDOW_SHIFT;
    const EPOCH_SHIFT: u32 = 8;

    /// Returns the state of a live item of the given flush epoch.
    #[inline]
    pub fn live(epoch: u64) -> State {
        State((epoch as u16 & 0xff) << State::EPOCH_SHIFT)
    }

    /// Returns whether all of `bits` are set.
    #[inline]
    pub fn has(self, bits: u16) -> bool {
        self.0 & bits == bits
    }

    /// Returns the state with `bits` set.
    #[inline]
    pub fn with(self, bits: u16) -> State {
        State(self.0 | bits)
    }

    /// Returns whether it belongs to the given flush epoch.
    #[inline]
    pub fn in_epoch(self, epoch: u64) -> bool {
        self.0 >> State::EPOCH_SHIFT == epoch as u16 & 0xff
    }

    /// Returns the window of the last access.
    #[inline]
    pub fn window(self) -> u8 {
        (self.0 & State::WINDOW_MASK) as u8 >> State::WINDOW_SHIFT
    }

    /// Returns the state with another window.
    #[inline]
    pub fn with_window(self, window: u8) -> State {
        debug_assert!(window < 16);
        State(self.0 & !State::WINDOW_MASK | u16::from(window) << State::WINDOW_SHIFT)
    }
}

/// Returns the window of an access (or write) `age` seconds after the segment was opened: window `w` starts at
/// `2^(w-1) - 1` seconds. Sixteen values tell the last access to within half the segment's age, and reading changes a
/// state word at most fifteen times.
#[inline]
pub fn access_window(age: u32) -> u8 {
    ((age + 1).ilog2() + 1).min(15) as u8
}

/// Returns the seconds after the segment was opened at which a window (1 to 15) starts.
#[inline]
pub fn window_start(window: u8) -> u32 {
    (1u32 << (window.max(1) - 1)) - 1
}

/// The fields of an item's header. In untrusted bytes they may have any value; sizes are never trusted beyond the
/// segment (see [`Item::bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The state word at the time when the header was read.
    pub state: State,
    options: u8,
    /// Bytes of the key; 0 for a chunk.
    pub key_len: u8,
    /// See [`checksum()`].
    pub checksum: u32,
    /// The CAS value; for a chunk, the hash of its owner's key.
    pub cas: u64,
    /// Client flags.
    pub flags: u32,
    /// The second from which it is expired; 0 for never.
    pub expiry: u32,
    /// Chunks of a chained value.
    pub chunks: u32,
    /// Bytes of the value.
    pub value_len: u32,
    header_len: u8,
}

/// The parts of a new item.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewItem<'a> {
    /// The state word.
    pub state: State,
    /// 1 to 250 bytes; empty for a chunk.
    pub key: &'a [u8],
    /// The key was given in base64.
    pub binary_key: bool,
    /// The CAS value; for a chunk, the hash of its owner's key.
    pub cas: u64,
    /// Client flags.
    pub flags: u32,
    /// The second from which it is expired; 0 for never.
    pub expiry: u32,
    /// Chunks of a chained value; 0 if the value follows the key.
    pub chunks: u32,
    /// Bytes of the value.
    pub value_len: u32,
}

/// An encoded header, to be written before key and value.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
}

impl Encoded {
    /// Returns the bytes; the checksum is still zero.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the bytes of the whole item with so many bytes behind the header, including padding.
    #[inline]
    pub fn bytes_with(&self, len: usize) -> u64 {
        ((self.len + len) as u64).next_multiple_of(ALIGN_BYTES)
    }

    /// Sets the state word.
    #[inline]
    pub fn set_state(&mut self, state: State) {
        self.bytes[..STATE_BYTES].copy_from_slice(&state.0.to_le_bytes());
    }

    /// Returns options and key length, as they enter the checksum.
    #[inline]
    pub fn kind(&self) -> u16 {
        u16::from_le_bytes([self.bytes[2], self.bytes[3]])
    }
}

impl NewItem<'_> {
    /// Returns the bytes of the whole item in a segment, including padding.
    #[inline]
    pub fn bytes(&self) -> u64 {
        (self.head_len() as u64 + self.payload_len()).next_multiple_of(ALIGN_BYTES)
    }

    /// Returns the bytes of header and key.
    #[inline]
    pub fn head_len(&self) -> usize {
        let fields = [self.flags, self.expiry, self.chunks].iter().filter(|field| **field != 0).count();
        let cas_bytes = CAS_BYTES[self.cas_width()];
        FIXED_BYTES + cas_bytes + fields * FIELD_BYTES + self.length_bytes() + self.key.len()
    }

    /// Returns the bytes that follow the key.
    #[inline]
    pub fn payload_len(&self) -> u64 {
        match self.chunks {
            0 => u64::from(self.value_len),
            chunks => u64::from(chunks) * CHUNK_ENTRY_BYTES as u64,
        }
    }

    /// Returns which of [`CAS_BYTES`] the CAS takes.
    #[inline]
    fn cas_width(&self) -> usize {
        if self.key.is_empty() {
            return CAS_OF_CHUNK;
        }
        CAS_MASKS.iter().filter(|mask| self.cas > **mask).count()
    }

    #[inline]
    fn length_bytes(&self) -> usize {
        (4 - self.value_len.leading_zeros() as usize / 8).max(1)
    }

    /// Returns the header without the checksum.
    // Else the fields go through memory.
    #[inline(always)]
    pub fn encode(&self) -> Encoded {
        debug_assert!(self.key.len() <= KEY_BYTES_MAX);
        let (cas_width, length_bytes) = (self.cas_width(), self.length_bytes());
        let mut options = (length_bytes as u8 - 1) << LENGTH_SHIFT | (cas_width as u8) << CAS_SHIFT;
        if self.binary_key {
            options |= BINARY_KEY;
        }
        let mut bytes = [0; HEADER_BYTES_MAX];
        let mut len = SUMMED_AT + CAS_BYTES[cas_width];
        // Fields are written whole; the next one overwrites the zeros behind a short one.
        bytes[SUMMED_AT..SUMMED_AT + 8].copy_from_slice(&self.cas.to_le_bytes());
        if self.flags | self.expiry | self.chunks != 0 {
            for (field, option) in [(self.flags, FLAGS), (self.expiry, EXPIRY), (self.chunks, CHAINED)] {
                if field != 0 {
                    options |= option;
                    bytes[len..len + FIELD_BYTES].copy_from_slice(&field.to_le_bytes());
                    len += FIELD_BYTES;
                }
            }
        }
        bytes[len..len + LENGTH_BYTES_MAX].copy_from_slice(&self.value_len.to_le_bytes());
        bytes[..STATE_BYTES].copy_from_slice(&self.state.0.to_le_bytes());
        bytes[STATE_BYTES] = options;
        bytes[STATE_BYTES + OPTIONS_BYTES] = self.key.len() as u8;
        Encoded { bytes, len: len + length_bytes }
    }
}

impl Item {
    /// Decodes the first bytes of an item: `head` is [`HEADER_BYTES_MAX`] bytes from its start, zero-padded at the end
    /// of the region.
    #[inline]
    pub fn parse(head: &[u8; HEADER_BYTES_MAX]) -> Item {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let options = head[2];
        let cas_width = usize::from(options >> CAS_SHIFT);
        let cas = u64::from_le_bytes(head[SUMMED_AT..SUMMED_AT + 8].try_into().expect("eight bytes"));
        let mut at = FIXED_BYTES + CAS_BYTES[cas_width];
        let (mut flags, mut expiry, mut chunks) = (0, 0, 0);
        if options & (FLAGS | EXPIRY | CHAINED) != 0 {
            for (field, option) in [(&mut flags, FLAGS), (&mut expiry, EXPIRY), (&mut chunks, CHAINED)] {
                if options & option != 0 {
                    *field = word(at);
                    at += FIELD_BYTES;
                }
            }
        }
        let length_bytes = usize::from(options >> LENGTH_SHIFT & 3) + 1;
        // The bytes after a shorter field belong to the key and are cut off.
        let length = word(at) & u32::MAX >> (32 - 8 * length_bytes as u32);
        Item {
            state: State(u16::from_le_bytes([head[0], head[1]])),
            options,
            key_len: head[3],
            checksum: word(CHECKSUM_AT),
            cas: cas & CAS_MASKS[cas_width],
            flags,
            expiry,
            chunks,
            value_len: length,
            header_len: (at + length_bytes) as u8,
        }
    }

    /// Reads the header of the item at `offset`, which may be anything; `None` if that is outside the region.
    // Else the item is copied twice.
    #[inline(always)]
    pub fn read(memory: &Memory, offset: u64) -> Option<Item> {
        if memory.contains(offset, HEADER_BYTES_MAX as u64) {
            return Some(Item::parse(&memory.read(offset)));
        }
        let mut head = [0; HEADER_BYTES_MAX];
        let len = memory.len().checked_sub(offset)?;
        memory.copy_out(offset, &mut head[..len as usize]);
        Some(Item::parse(&head))
    }

    /// Returns whether the value is in chunks.
    #[inline]
    pub fn is_chained(&self) -> bool {
        self.options & CHAINED != 0
    }

    /// Returns whether it is a chunk of a chained value.
    #[inline]
    pub fn is_chunk(&self) -> bool {
        self.key_len == 0
    }

    /// Returns whether the key was given in base64.
    #[inline]
    pub fn has_binary_key(&self) -> bool {
        self.options & BINARY_KEY != 0
    }

    /// Returns the key's offset from the item's start.
    #[inline]
    pub fn key_at(&self) -> u64 {
        u64::from(self.header_len)
    }

    /// Returns the offset of the value, or of the chunk table, from the item's start.
    #[inline]
    pub fn payload_at(&self) -> u64 {
        u64::from(self.header_len) + u64::from(self.key_len)
    }

    /// Returns the bytes after the key.
    #[inline]
    pub fn payload_len(&self) -> u64 {
        if self.is_chained() {
            u64::from(self.chunks) * CHUNK_ENTRY_BYTES as u64
        } else {
            u64::from(self.value_len)
        }
    }

    /// Returns the bytes of the whole item, padding included. If the header may be invalid, the caller compares them
    /// with the rest of the segment.
    #[inline]
    pub fn bytes(&self) -> u64 {
        (self.payload_at() + self.payload_len()).next_multiple_of(ALIGN_BYTES)
    }

    /// Returns options and key length, as they enter the checksum.
    #[inline]
    pub fn kind(&self) -> u16 {
        u16::from_le_bytes([self.options, self.key_len])
    }

    /// Returns whether it is expired at second `now`.
    #[inline]
    pub fn is_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }
}

/// Writes the checksum of an item that is not yet published.
///
/// # Safety
/// The item at `offset`, of `len` bytes without padding, is fully written, not published, and the caller's alone.
// As a call, it is a thirtieth of a SET's instructions.
#[cfg(not(loom))]
#[inline(always)]
pub unsafe fn seal(memory: &Memory, secret: &Secret, generation: u64, offset: u64, kind: u16, len: u64) {
    // SAFETY: `bytes` requires that the range is not written while the slice lives; the caller guarantees it.
    let bytes = unsafe { memory.bytes(offset + SUMMED_AT as u64, len as usize - SUMMED_AT) };
    let sum = checksum(secret, generation, offset, kind, bytes);
    memory.store_u32(offset + CHECKSUM_AT as u64, sum, Ordering::Relaxed);
}

/// The same functions over model words.
///
/// # Safety
/// As above; nothing in the model depends on it.
#[cfg(loom)]
pub unsafe fn seal(memory: &Memory, secret: &Secret, generation: u64, offset: u64, kind: u16, len: u64) {
    let mut bytes = vec![0; len as usize - SUMMED_AT];
    memory.copy_out(offset + SUMMED_AT as u64, &mut bytes);
    let sum = checksum(secret, generation, offset, kind, &bytes);
    memory.store_u32(offset + CHECKSUM_AT as u64, sum, Ordering::Relaxed);
}

/// Returns the current state word of the item at `offset`.
#[inline]
pub fn load_state(memory: &Memory, offset: u64) -> State {
    State(memory.load_u16(offset, Ordering::Acquire))
}

/// Sets bits of the state word; returns the previous word.
#[inline]
pub fn set_state(memory: &Memory, offset: u64, bits: u16) -> State {
    State(memory.fetch_or_u16(offset, bits, Ordering::AcqRel))
}

/// Marks an item dead. The caller holds the lock of the item's slot.
///
/// A load and a store do: all that change the word of an item hold that lock, so none does so in between, and each sees
/// what the one before it stored.
#[inline]
pub fn mark_dead(memory: &Memory, offset: u64) {
    let state = State(memory.load_u16(offset, Ordering::Relaxed));
    memory.store_u16(offset, state.with(State::DEAD).0, Ordering::Release);
}

/// Clears the bits of `clear` and sets those of `set`.
#[inline]
pub fn change_state(memory: &Memory, offset: u64, clear: u16, set: u16) {
    let mut state = memory.load_u16(offset, Ordering::Relaxed);
    while let Err(now) =
        memory.compare_exchange_u16(offset, state, state & !clear | set, Ordering::AcqRel, Ordering::Relaxed)
    {
        state = now;
    }
}

/// Records the window of the last access.
pub fn set_window(memory: &Memory, offset: u64, window: u8) {
    change_state(memory, offset, State::WINDOW_MASK, State::default().with_window(window).0);
}

/// An entry in the table of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Offset of the chunk in the region.
    pub offset: u64,
    /// Low half of its segment's generation.
    pub generation: u32,
    /// Bytes of the value in it.
    pub len: u32,
    /// The chunk's checksum, as in its header.
    pub checksum: u32,
}

impl ChunkEntry {
    /// Encodes the entry.
    pub fn to_bytes(self) -> [u8; CHUNK_ENTRY_BYTES] {
        let mut bytes = [0; CHUNK_ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Decodes an entry of the table.
    pub fn from_bytes(bytes: &[u8; CHUNK_ENTRY_BYTES]) -> ChunkEntry {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        ChunkEntry {
            offset: u64::from(word(0)) | u64::from(word(4)) << 32,
            generation: word(8),
            len: word(12),
            checksum: word(16),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(key in prop::collection::vec(any::<u8>(), 1..=250), cas: u64, cas_shift in 0u32..64, flags: u32, expiry: u32, chunks in 0u32..9, value_len: u32, state: u16, binary_key: bool) {
            let cas = cas >> cas_shift;
            let new = NewItem { state: State(state), key: &key, binary_key, cas, flags, expiry, chunks, value_len };
            let encoded = new.encode();
            prop_assert_eq!(encoded.as_bytes().len() + key.len(), new.head_len());
            let mut head = [0xaa; HEADER_BYTES_MAX];
            head[..encoded.as_bytes().len()].copy_from_slice(encoded.as_bytes());
            let item = Item::parse(&head);
            prop_assert_eq!((item.state, item.cas, item.flags, item.expiry), (State(state), cas, flags, expiry));
            prop_assert_eq!((item.chunks, item.value_len, usize::from(item.key_len)), (chunks, value_len, key.len()));
            prop_assert_eq!(item.bytes(), new.bytes());
            prop_assert_eq!(item.is_chained(), chunks != 0);
            prop_assert!(!item.is_chunk());
            prop_assert_eq!(item.key_at() as usize, encoded.as_bytes().len());
            prop_assert_eq!((item.kind(), item.has_binary_key()), (encoded.kind(), binary_key));
        }

        #[test]
        fn any_bytes_parse(head: [u8; HEADER_BYTES_MAX]) {
            let item = Item::parse(&head);
            prop_assert!(item.bytes() >= (FIXED_BYTES + LENGTH_BYTES_MIN) as u64 && item.key_at() <= HEADER_BYTES_MAX as u64);
        }

        #[test]
        fn entries_round_trip(offset: u64, generation: u32, len: u32, checksum: u32) {
            let entry = ChunkEntry { offset, generation, len, checksum };
            prop_assert_eq!(ChunkEntry::from_bytes(&entry.to_bytes()), entry);
        }
    }

    #[test]
    fn small_item_overhead_depends_on_its_cas() {
        for (cas, header) in [
            (0, 9),
            (1, 13),
            (u64::from(u32::MAX), 13),
            (1 << 32, 14),
            ((1 << 40) - 1, 14),
            (1 << 40, 17),
            (u64::MAX, 17),
        ] {
            let new = NewItem { key: &[b'k'; 20], value_len: 100, cas, ..NewItem::default() };
            assert_eq!(new.head_len() - 20, header, "{cas}");
            assert_eq!(new.bytes(), (header as u64 + 120).next_multiple_of(4));
        }
    }

    #[test]
    fn headers_of_chunks_do_not_depend_on_the_hash() {
        for cas in [0, 1, u64::MAX] {
            let new = NewItem { cas, value_len: 1 << 24, ..NewItem::default() };
            assert_eq!(new.head_len(), CHUNK_HEADER_BYTES_MAX);
            let mut head = [0; HEADER_BYTES_MAX];
            head[..CHUNK_HEADER_BYTES_MAX].copy_from_slice(new.encode().as_bytes());
            assert!(Item::parse(&head).is_chunk());
            assert_eq!(Item::parse(&head).cas, cas);
        }
    }

    #[test]
    fn access_windows_are_accurate_to_half() {
        assert_eq!(access_window(0), 1);
        for age in 0..20_000 {
            let start = window_start(access_window(age));
            assert!(start <= age && age - start <= age / 2 + 1, "{age} {start}");
        }
        assert_eq!(access_window(u32::MAX - 1), 15);
    }
}
