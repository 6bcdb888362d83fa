//! One direction of a channel, seen from either end.
//!
//! The word of a slot: bits 0 to 31 the round in which it was filled, counted from 1 modulo 2^32, bits 32 to 62 how many
//! bytes, bit 63 whether they lie in staging, at the offset that the slot holds instead.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::memory::Memory;
use crate::sync::{Ordering, fence, without};

use super::{Direction, Shape, WORD_BYTES};

/// A protocol violation by the other end. The channel is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError;

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the other end broke the protocol of the channel")
    }
}

impl std::error::Error for ProtocolError {}

/// Staged bytes go in chunks of this fraction (1/n) of the staging area, so that one is consumed while the next is
/// written …
const STAGED_PARTS: u64 = 4;
/// … and no chunk is smaller than this fraction of it, except the last.
const STAGED_PARTS_MAX: u64 = 16;

const STAGED: u64 = 1 << 63;

fn slot_word(round: u32, len: u64, staged: bool) -> u64 {
    debug_assert!(len < 1 << 31);
    u64::from(round) | len << 32 | if staged { STAGED } else { 0 }
}

#[derive(Debug)]
struct Ring {
    memory: Memory,
    at: Direction,
    slots: u64,
    slot_bytes: u64,
    staging_bytes: u64,
}

impl Ring {
    fn new(memory: Memory, shape: &Shape, at: Direction) -> Ring {
        assert!(shape.is_sound() && shape.channel_bytes() <= memory.len(), "a shape that fits");
        let (slots, slot_bytes) = (shape.slots.into(), shape.slot_bytes.into());
        Ring { memory, at, slots, slot_bytes, staging_bytes: shape.staging_bytes }
    }

    #[inline]
    fn slot(&self, number: u64) -> u64 {
        self.at.slots + (number & (self.slots - 1)) * self.slot_bytes
    }

    /// Returns the round in which slot `number` is filled.
    #[inline]
    fn round(&self, number: u64) -> u32 {
        ((number >> self.slots.trailing_zeros()) as u32).wrapping_add(1)
    }

    /// Returns the bytes that a slot carries.
    #[inline]
    fn payload(&self) -> u64 {
        self.slot_bytes - WORD_BYTES
    }

    /// Announces that this end sleeps: the end that resets the word notifies.
    fn want(&self, word: u64) {
        self.memory.store(word, 1, Ordering::Relaxed);
        // Before the next poll: either it sees the other end's change, or the other end sees this word.
        wake_fence();
    }

    /// Marks this end awake. Returns whether the other end has notified it meanwhile, or is about to.
    fn unwant(&self, word: u64) -> bool {
        self.memory.compare_exchange(word, 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_err()
    }

    /// After a change: returns whether the other end sleeps and must be notified.
    #[inline]
    fn is_wanted(&self, word: u64) -> bool {
        // After the change: either the other end sees it, or this end sees the word.
        wake_fence();
        self.memory.load(word, Ordering::Relaxed) != 0 && self.take(word)
    }

    #[cold]
    fn take(&self, word: u64) -> bool {
        self.memory.compare_exchange(word, 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Orders this end's writes before its read of the other end's words: one of the two sees the other's.
#[inline]
fn wake_fence() {
    if !without("wake_fence") {
        fence(Ordering::SeqCst);
    }
}

/// The end that fills slots.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    /// Slots filled so far.
    filled: u64,
    /// Slots consumed, as last read.
    consumed: u64,
    /// Bytes of staging allocated so far, including gaps at its end …
    staged: u64,
    /// … and given back.
    unstaged: u64,
    /// The slots whose bytes are staged, and where those end.
    outstanding: VecDeque<(u64, u64)>,
}

impl Producer {
    pub(super) fn new(memory: Memory, shape: &Shape, at: Direction) -> Producer {
        Producer {
            ring: Ring::new(memory, shape, at),
            filled: 0,
            consumed: 0,
            staged: 0,
            unstaged: 0,
            outstanding: VecDeque::new(),
        }
    }

    /// Reads what the consumer has released.
    fn look(&mut self) -> Result<(), ProtocolError> {
        let consumed = self.ring.memory.load(self.ring.at.consumed, Ordering::Acquire);
        if consumed < self.consumed || consumed > self.filled {
            return Err(ProtocolError);
        }
        self.consumed = consumed;
        while let Some((slot, end)) = self.outstanding.front()
            && *slot < consumed
        {
            self.unstaged = *end;
            self.outstanding.pop_front();
        }
        Ok(())
    }

    /// Sends a prefix of `parts`; returns the number of bytes, 0 if there is no room now.
    ///
    /// # Errors
    /// The other end broke the channel.
    #[inline]
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, ProtocolError> {
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let mut left = Remainder { parts, at: 0 };
        let mut sent = 0;
        while sent < whole {
            if self.filled - self.consumed == self.ring.slots {
                self.look()?;
                if self.filled - self.consumed == self.ring.slots {
                    break;
                }
            }
            let remaining = (whole - sent) as u64;
            let taken = if remaining <= self.ring.payload() {
                let at = self.ring.slot(self.filled) + WORD_BYTES;
                left.copy_to(&self.ring.memory, at, remaining);
                self.publish(remaining, false);
                remaining
            } else {
                self.stage(&mut left, remaining)?
            };
            if taken == 0 {
                break;
            }
            sent += taken as usize;
        }
        Ok(sent)
    }

    /// Sends data that is longer than a slot; returns 0 if staging is full.
    fn stage(&mut self, left: &mut Remainder<'_>, remaining: u64) -> Result<u64, ProtocolError> {
        let size = self.ring.staging_bytes;
        let wanted = remaining.min(size / STAGED_PARTS);
        let least = remaining.min(size / STAGED_PARTS_MAX);
        let mut offset = self.staged % size;
        let mut gap = 0;
        if size - offset < least {
            (offset, gap) = (0, size - offset);
        }
        if size - (self.staged - self.unstaged) < gap + wanted {
            self.look()?;
        }
        let free = size - (self.staged - self.unstaged);
        let len = wanted.min(size - offset).min(free.saturating_sub(gap));
        if len < least {
            return Ok(0);
        }
        left.copy_to(&self.ring.memory, self.ring.at.staging + offset, len);
        self.staged += gap + len;
        self.outstanding.push_back((self.filled, self.staged));
        let slot = self.ring.slot(self.filled);
        self.ring.memory.store(slot + WORD_BYTES, offset, Ordering::Relaxed);
        self.publish(len, true);
        Ok(len)
    }

    #[inline]
    fn publish(&mut self, len: u64, staged: bool) {
        let word = slot_word(self.ring.round(self.filled), len, staged);
        self.ring.memory.store(self.ring.slot(self.filled), word, Ordering::Release);
        self.filled += 1;
    }

    /// After sending: returns whether the consumer sleeps and must be notified.
    #[inline]
    pub fn must_notify(&self) -> bool {
        self.ring.is_wanted(self.ring.at.data_wanted)
    }

    /// Marks this end asleep until there is room. Check for room again afterwards.
    pub fn want_room(&self) {
        self.ring.want(self.ring.at.room_wanted);
    }

    /// Marks this end awake.
    pub fn unwant_room(&self) {
        self.ring.unwant(self.ring.at.room_wanted);
    }

    /// Returns whether everything that was sent has been consumed.
    ///
    /// # Errors
    /// The other end broke the channel.
    pub fn is_drained(&mut self) -> Result<bool, ProtocolError> {
        self.look()?;
        Ok(self.consumed == self.filled)
    }

    /// Returns whether a slot is free; staging may be full.
    ///
    /// # Errors
    /// The other end broke the channel.
    pub fn has_room(&mut self) -> Result<bool, ProtocolError> {
        self.look()?;
        let staging_is_free =
            self.ring.staging_bytes - (self.staged - self.unstaged) >= self.ring.staging_bytes / 2;
        Ok(self.filled - self.consumed < self.ring.slots && staging_is_free)
    }
}

/// The bytes still to copy.
struct Remainder<'a> {
    parts: &'a [IoSlice<'a>],
    /// Bytes of the first part that were copied.
    at: usize,
}

impl Remainder<'_> {
    /// Copies the next `len` bytes, which must exist.
    #[inline]
    fn copy_to(&mut self, memory: &Memory, mut offset: u64, mut len: u64) {
        while len > 0 {
            let part = &self.parts[0][self.at..];
            let taken = part.len().min(len as usize);
            memory.copy_in(offset, &part[..taken]);
            (offset, len) = (offset + taken as u64, len - taken as u64);
            self.at += taken;
            if self.at == self.parts[0].len() {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
    }
}

/// The bytes of a slot, or the rest of them.
#[derive(Clone, Copy, Debug)]
struct SlotBytes {
    at: u64,
    len: u64,
}

/// The end that empties slots.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    /// Slots emptied so far.
    consumed: u64,
    /// The rest of the current slot's data.
    rest: Option<SlotBytes>,
}

impl Consumer {
    pub(super) fn new(memory: Memory, shape: &Shape, at: Direction) -> Consumer {
        Consumer { ring: Ring::new(memory, shape, at), consumed: 0, rest: None }
    }

    /// Returns the word of the next slot if it is full.
    #[inline]
    fn next(&self) -> Option<u64> {
        let word = self.ring.memory.load(self.ring.slot(self.consumed), Ordering::Acquire);
        (word as u32 == self.ring.round(self.consumed)).then_some(word)
    }

    /// Returns whether there is something to receive.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.rest.is_some() || self.next().is_some()
    }

    /// Appends received bytes to `into`, at most `most`. Returns their number.
    ///
    /// # Errors
    /// The other end broke the channel.
    pub fn append_to(&mut self, into: &mut Vec<u8>, most: usize) -> Result<usize, ProtocolError> {
        self.take(most, |memory, at, len, _| memory.append_to(at, len, into))
    }

    /// Fills `into` from the front with received bytes. Returns their number.
    ///
    /// # Errors
    /// The other end broke the channel.
    #[inline]
    pub fn receive(&mut self, into: &mut [u8]) -> Result<usize, ProtocolError> {
        self.take(into.len(), |memory, at, len, done| memory.copy_out(at, &mut into[done..done + len]))
    }

    #[inline]
    fn take(
        &mut self,
        most: usize,
        mut copy: impl FnMut(&Memory, u64, usize, usize),
    ) -> Result<usize, ProtocolError> {
        let before = self.consumed;
        let mut taken = 0;
        while taken < most {
            let SlotBytes { at, len } = match self.rest {
                Some(rest) => rest,
                None => match self.next() {
                    Some(word) => self.bytes_of(word)?,
                    None => break,
                },
            };
            let part = len.min((most - taken) as u64);
            copy(&self.ring.memory, at, part as usize, taken);
            taken += part as usize;
            self.rest = (part < len).then(|| SlotBytes { at: at + part, len: len - part });
            self.consumed += u64::from(part == len);
        }
        if self.consumed != before {
            // After the copies.
            self.ring.memory.store(self.ring.at.consumed, self.consumed, Ordering::Release);
        }
        Ok(taken)
    }

    /// The bytes of a slot; none only if the other end is no friend.
    #[inline]
    fn bytes_of(&self, word: u64) -> Result<SlotBytes, ProtocolError> {
        let ring = &self.ring;
        let len = word >> 32 & 0x7fff_ffff;
        let at = ring.slot(self.consumed) + WORD_BYTES;
        if word & STAGED == 0 {
            return if len > 0 && len <= ring.payload() {
                Ok(SlotBytes { at, len })
            } else {
                Err(ProtocolError)
            };
        }
        let offset = ring.memory.load(at, Ordering::Relaxed);
        let fits = len > 0 && offset <= ring.staging_bytes && len <= ring.staging_bytes - offset;
        if fits { Ok(SlotBytes { at: ring.at.staging + offset, len }) } else { Err(ProtocolError) }
    }

    /// After receiving: returns whether the producer sleeps for room and must be notified.
    #[inline]
    pub fn must_notify(&self) -> bool {
        self.ring.is_wanted(self.ring.at.room_wanted)
    }

    /// Marks this end asleep until data arrives. Check for data again afterwards.
    pub fn want_data(&self) {
        self.ring.want(self.ring.at.data_wanted);
    }

    /// Marks this end awake. Returns whether the other end has notified it meanwhile, or is about to.
    pub fn unwant_data(&self) -> bool {
        self.ring.unwant(self.ring.at.data_wanted)
    }
}

#[cfg(all(test, not(loom)))]
impl Producer {
    /// Sets the ring's state as after this many slots were filled and emptied.
    pub(super) fn skip_to(&mut self, number: u64) {
        (self.filled, self.consumed) = (number, number);
    }
}

#[cfg(all(test, not(loom)))]
impl Consumer {
    /// Sets the ring's state as after this many slots were filled and emptied.
    pub(super) fn skip_to(&mut self, number: u64) {
        self.consumed = number;
        self.ring.memory.store(self.ring.at.consumed, number, Ordering::Release);
    }
}
