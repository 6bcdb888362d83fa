//! A ring of slots in one PE's heap, which one other PE writes.
//!
//! ```text
//!   writer: put the message ── fence ── put the flag        reader: load the flag (acquire) ── copy the message
//!   flag: length of the message (32 bits, low), its number + 1 (32 bits)
//! ```
//! Messages are numbered, and message `n` lies in slot `n mod slots`. The reader takes them in order and copies each at
//! once. The writer writes a slot again only when the reader has copied its message: it keeps to the credits that the reader
//! grants ([`fabcache_fabric::channel`]), which are fewer than the slots.

use std::sync::atomic::Ordering;

use fabcache_layout::Memory;
use fabcache_shmem::RemoteHeaps;

use super::plan::LinkShape;

/// Bytes of the flag before a message.
const FLAG_BYTES: u64 = 8;

/// The flag of a message.
fn flag(number: u32, len: usize) -> u64 {
    u64::from(number.wrapping_add(1)) << 32 | len as u64
}

/// The writing end.
#[derive(Debug)]
pub struct SlotWriter {
    pe: usize,
    start: u64,
    shape: LinkShape,
    next: u32,
}

impl SlotWriter {
    /// Writes the ring at this offset of a PE's heap, which is all 0 now.
    pub fn new(pe: usize, start: u64, shape: LinkShape) -> SlotWriter {
        SlotWriter { pe, start, shape, next: 0 }
    }

    /// The longest message.
    pub fn message_bytes_max(&self) -> usize {
        (u64::from(self.shape.slot_bytes) - FLAG_BYTES) as usize
    }

    /// Writes the next message. The reader has copied the one that was in its slot.
    ///
    /// # Panics
    /// The message is too long.
    pub fn write(&mut self, heaps: &mut dyn RemoteHeaps, message: &[u8]) {
        assert!(message.len() <= self.message_bytes_max(), "a message of {} bytes", message.len());
        let slot = u64::from(self.next % self.shape.slots);
        let at = self.start + slot * u64::from(self.shape.slot_bytes);
        if !message.is_empty() {
            heaps.put(self.pe, at + FLAG_BYTES, message);
        }
        // The reader sees the message no later than its flag; that of long data, too, which the message may be about.
        heaps.fence();
        heaps.put_word(self.pe, at, flag(self.next, message.len()));
        self.next = self.next.wrapping_add(1);
    }
}

/// A flag that no writer that keeps the rules writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slot of message {number} has the flag {flag:#x}")]
pub struct SlotError {
    number: u32,
    flag: u64,
}

/// The reading end.
#[derive(Debug)]
pub struct SlotReader {
    memory: Memory,
    shape: LinkShape,
    next: u32,
}

impl SlotReader {
    /// Reads the ring in this memory.
    pub fn new(memory: Memory, shape: LinkShape) -> SlotReader {
        SlotReader { memory, shape, next: 0 }
    }

    fn at(&self) -> u64 {
        u64::from(self.next % self.shape.slots) * u64::from(self.shape.slot_bytes)
    }

    /// Returns whether the next slot's flag has changed.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.memory.load(self.at(), Ordering::Relaxed) >> 32 == u64::from(self.next.wrapping_add(1))
    }

    /// Copies the next message, if it has come, and returns its length.
    ///
    /// # Errors
    /// The flag is invalid. The ring cannot be read any more.
    pub fn read(&mut self, into: &mut Vec<u8>) -> Result<Option<usize>, SlotError> {
        let (at, number) = (self.at(), self.next);
        let flag = self.memory.load(at, Ordering::Acquire);
        let written = (flag >> 32) as u32;
        if written != number.wrapping_add(1) {
            // What was there before: nothing, or the message of the round before.
            let before = number.wrapping_sub(self.shape.slots).wrapping_add(1);
            return if flag == 0 || written == before { Ok(None) } else { Err(SlotError { number, flag }) };
        }
        let len = flag & u64::from(u32::MAX);
        if len > u64::from(self.shape.slot_bytes) - FLAG_BYTES {
            return Err(SlotError { number, flag });
        }
        into.clear();
        into.resize(len as usize, 0);
        self.memory.copy_out(at + FLAG_BYTES, into);
        self.next = number.wrapping_add(1);
        Ok(Some(len as usize))
    }
}

#[cfg(test)]
mod tests {
    use fabcache_shmem::local::LocalJob;

    use super::*;

    const SHAPE: LinkShape = LinkShape { slots: 8, slot_bytes: 128, buffer_bytes: 64 << 10 };

    fn ring() -> (LocalJob, SlotWriter, SlotReader) {
        let job = LocalJob::new(2, 8 * 128);
        let reader = SlotReader::new(job.memory(1).clone(), SHAPE);
        (job, SlotWriter::new(1, 0, SHAPE), reader)
    }

    #[test]
    fn messages_come_in_order_through_all_slots_and_numbers() {
        let (job, mut writer, mut reader) = ring();
        let mut heaps = job.of(0);
        // The numbers wrap meanwhile.
        (writer.next, reader.next) = (u32::MAX - 19, u32::MAX - 19);
        let mut message = Vec::new();
        for round in 0..100u8 {
            assert_eq!(reader.read(&mut message), Ok(None));
            for number in 0..round % 9 {
                writer.write(&mut heaps, &vec![round ^ number; usize::from(round) % 121]);
            }
            for number in 0..round % 9 {
                assert!(reader.has_come());
                assert_eq!(reader.read(&mut message), Ok(Some(usize::from(round) % 121)));
                assert!(message.iter().all(|byte| *byte == round ^ number));
            }
            assert!(!reader.has_come());
        }
    }

    #[test]
    fn invalid_flags_are_errors() {
        for wrong in [flag(0, 121), flag(1, 4), flag(7, 4), 5, u64::MAX] {
            let (job, _, mut reader) = ring();
            job.memory(1).store(0, wrong, Ordering::Release);
            assert_eq!(reader.read(&mut Vec::new()), Err(SlotError { number: 0, flag: wrong }), "{wrong:#x}");
        }
    }
}
