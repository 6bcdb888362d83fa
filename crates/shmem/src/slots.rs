//! A ring of slots in one PE's heap, which one other PE writes.
//!
//! ```text
//!   writer: put the message ── fence ── put the flag        reader: load the flag (acquire) ── copy the message
//!   flag: length of the message (32 bits, low), its number + 1 (32 bits)
//! ```
//! Messages are numbered, and message `n` lies in slot `n mod slots`. The reader takes them in order and copies each at
//! once. The writer writes a slot again only when the reader has said, in a message of its own ring, that it has copied the
//! one before. The fence of that message comes after the copy.
//!
//! A ring may have a *mutex* instead of this order, to compare with. Both ends take it for each message:
//! ```text
//!   writer: lock ── put the message ── put the flag ── fence ── unlock
//!   reader: load the flag: it has come ── lock ── copy the message ── fence ── unlock
//! ```
//! A reader of an empty slot leaves the mutex alone: it would delay the writer for as long as it polls, which says nothing of
//! what a mutex costs a message.

use fabcache_layout::Memory;
use fabcache_layout::sync::{Ordering, fence, without, yield_now};

use crate::remote_heaps::RemoteHeaps;

/// Bytes of the flag before a message.
pub const FLAG_BYTES: u32 = 8;

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Slots, a power of two.
    pub slots: u32,
    /// Bytes of a slot, with its flag; a multiple of 8.
    pub slot_bytes: u32,
}

impl RingShape {
    /// Returns the bytes of all slots.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Returns the length of the longest message.
    pub fn message_bytes_max(&self) -> usize {
        (self.slot_bytes - FLAG_BYTES) as usize
    }

    /// Returns the offset of a message's slot.
    fn slot(&self, number: u32) -> u64 {
        u64::from(number % self.slots) * u64::from(self.slot_bytes)
    }
}

/// The flag of a message.
fn flag(number: u32, len: usize) -> u64 {
    u64::from(number.wrapping_add(1)) << 32 | len as u64
}

/// The word of a mutex that nobody holds …
const FREE: u64 = 0;
/// … and of one that somebody holds.
const HELD: u64 = 1;

/// Takes the mutex at this offset of a PE's heap: waits for as long as the PE of its holder is stopped.
fn lock(heaps: &mut dyn RemoteHeaps, pe: usize, at: u64) {
    while heaps.compare_swap(pe, at, FREE, HELD) != FREE {
        // The holder may need this PE's help to release it, or its CPU.
        heaps.progress();
        yield_now();
    }
    // The caller reads what the last holder has put, and overwrites nothing that the last holder still copies.
    if !without("slot_lock_acquire") {
        fence(Ordering::Acquire);
    }
}

/// Releases the mutex.
fn unlock(heaps: &mut dyn RemoteHeaps, pe: usize, at: u64) {
    // The puts of this thread arrive before the release, and its copies end before it: otherwise the next holder could read
    // what the slot held before. `shmem_ctx_quiet` would do as well, but over TCP it waits for stopped PEs.
    if !without("slot_unlock_fence") {
        heaps.fence();
    }
    heaps.atomic_set(pe, at, FREE);
}

/// The writing end.
#[derive(Debug)]
pub struct SlotWriter {
    pe: usize,
    start: u64,
    shape: RingShape,
    mutex: Option<u64>,
    next: u32,
}

impl SlotWriter {
    /// Writes the ring at this offset of a PE's heap, which is all 0 now.
    pub fn new(pe: usize, start: u64, shape: RingShape) -> SlotWriter {
        SlotWriter { pe, start, shape, mutex: None, next: 0 }
    }

    /// Sets where the ring's mutex lies in the PE's heap, if it has one: an aligned word, which is 0 now.
    pub fn with_mutex(self, mutex: Option<u64>) -> SlotWriter {
        SlotWriter { mutex, ..self }
    }

    /// Writes the next message. The reader has copied the one that was in its slot.
    ///
    /// # Panics
    /// The message is too long.
    pub fn write(&mut self, heaps: &mut dyn RemoteHeaps, message: &[u8]) {
        assert!(message.len() <= self.shape.message_bytes_max(), "a message of {} bytes", message.len());
        let at = self.start + self.shape.slot(self.next);
        if let Some(mutex) = self.mutex {
            lock(heaps, self.pe, mutex);
        }
        if !message.is_empty() {
            heaps.put(self.pe, at + u64::from(FLAG_BYTES), message);
        }
        // The reader sees the message no later than its flag, and so other data that was put, which the message may be about.
        // This thread copied earlier messages before the reader sees the flag, which may return their credits.
        if self.mutex.is_none() && !without("slot_fence") {
            heaps.fence();
        }
        heaps.put_word(self.pe, at, flag(self.next, message.len()));
        if let Some(mutex) = self.mutex {
            unlock(heaps, self.pe, mutex);
        }
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
    shape: RingShape,
    mutex: Option<u64>,
    next: u32,
}

impl SlotReader {
    /// Reads the ring in this memory.
    pub fn new(memory: Memory, shape: RingShape) -> SlotReader {
        SlotReader { memory, shape, mutex: None, next: 0 }
    }

    /// Sets where the ring's mutex lies in this PE's heap, if it has one: an aligned word, which is 0 now.
    pub fn with_mutex(self, mutex: Option<u64>) -> SlotReader {
        SlotReader { mutex, ..self }
    }

    /// Returns whether the next slot's flag has changed.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.memory.load(self.shape.slot(self.next), Ordering::Relaxed) >> 32
            == u64::from(self.next.wrapping_add(1))
    }

    /// Copies the next message, if it has come, and returns its length.
    ///
    /// # Errors
    /// The flag is invalid. The ring cannot be read any more.
    pub fn read(
        &mut self,
        heaps: &mut dyn RemoteHeaps,
        into: &mut Vec<u8>,
    ) -> Result<Option<usize>, SlotError> {
        let (at, number) = (self.shape.slot(self.next), self.next);
        // The message is copied after its flag was seen.
        let order = if without("slot_acquire") { Ordering::Relaxed } else { Ordering::Acquire };
        let flag = self.memory.load(at, order);
        let written = (flag >> 32) as u32;
        if written != number.wrapping_add(1) {
            // What was there before: nothing, or the message of the round before.
            let before = number.wrapping_sub(self.shape.slots).wrapping_add(1);
            return if flag == 0 || written == before { Ok(None) } else { Err(SlotError { number, flag }) };
        }
        let len = (flag & u64::from(u32::MAX)) as usize;
        if len > self.shape.message_bytes_max() {
            return Err(SlotError { number, flag });
        }
        into.clear();
        into.resize(len, 0);
        let mutex = self.mutex.map(|mutex| (heaps.pe(), mutex));
        if let Some((own, mutex)) = mutex {
            lock(heaps, own, mutex);
        }
        self.memory.copy_out(at + u64::from(FLAG_BYTES), into);
        if let Some((own, mutex)) = mutex {
            unlock(heaps, own, mutex);
        }
        self.next = number.wrapping_add(1);
        Ok(Some(len))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::local::LocalJob;

    const SHAPE: RingShape = RingShape { slots: 8, slot_bytes: 128 };

    const MUTEX: u64 = 8 * 128;

    fn ring(mutex: Option<u64>) -> (LocalJob, SlotWriter, SlotReader) {
        let job = LocalJob::new(2, MUTEX + 64);
        let reader = SlotReader::new(job.memory(1).clone(), SHAPE).with_mutex(mutex);
        (job, SlotWriter::new(1, 0, SHAPE).with_mutex(mutex), reader)
    }

    fn come_in_order(mutex: Option<u64>) {
        let (job, mut writer, mut reader) = ring(mutex);
        let (mut heaps, mut own) = (job.of(0), job.of(1));
        // The numbers wrap meanwhile.
        (writer.next, reader.next) = (u32::MAX - 19, u32::MAX - 19);
        let mut message = Vec::new();
        for round in 0..100u8 {
            assert_eq!(reader.read(&mut own, &mut message), Ok(None));
            for number in 0..round % 9 {
                writer.write(&mut heaps, &vec![round ^ number; usize::from(round) % 121]);
            }
            for number in 0..round % 9 {
                assert!(reader.has_come());
                assert_eq!(reader.read(&mut own, &mut message), Ok(Some(usize::from(round) % 121)));
                assert!(message.iter().all(|byte| *byte == round ^ number));
            }
            assert!(!reader.has_come());
        }
    }

    #[test]
    fn messages_come_in_order_through_all_slots_and_numbers() {
        come_in_order(None);
    }

    #[test]
    fn messages_come_in_order_through_a_ring_with_a_mutex() {
        come_in_order(Some(MUTEX));
    }

    /// Runs `access` while somebody holds the mutex, and checks that it waits.
    fn waits<R: Send>(job: &LocalJob, access: impl FnOnce() -> R + Send) -> R {
        job.memory(1).store(MUTEX, HELD, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(access);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished(), "it does not wait for the mutex");
            job.memory(1).store(MUTEX, FREE, Ordering::Relaxed);
            waiting.join().expect("no panic")
        })
    }

    #[test]
    fn both_ends_wait_for_the_mutex_but_not_for_messages() {
        let (job, mut writer, mut reader) = ring(Some(MUTEX));
        let (mut heaps, mut own, mut message) = (job.of(0), job.of(1), Vec::new());
        job.memory(1).store(MUTEX, HELD, Ordering::Relaxed);
        assert_eq!(reader.read(&mut own, &mut message), Ok(None), "nothing has come");
        waits(&job, || writer.write(&mut heaps, b"one"));
        assert_eq!(waits(&job, || reader.read(&mut own, &mut message)), Ok(Some(3)));
        assert_eq!((&message[..], job.memory(1).load(MUTEX, Ordering::Relaxed)), (&b"one"[..], FREE));
    }

    #[test]
    fn invalid_flags_are_errors() {
        for wrong in [flag(0, 121), flag(1, 4), flag(7, 4), 5, u64::MAX] {
            let (job, _, mut reader) = ring(None);
            job.memory(1).store(0, wrong, Ordering::Release);
            let read = reader.read(&mut job.of(1), &mut Vec::new());
            assert_eq!(read, Err(SlotError { number: 0, flag: wrong }), "{wrong:#x}");
        }
    }
}
