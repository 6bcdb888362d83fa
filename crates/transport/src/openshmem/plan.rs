//! Where each part of a PE's heap lies, the same in all PEs.

use std::ops::Range;

use fabcache_fabric::channel::{
    CREDITS_MESSAGES_MAX, CREDITS_MIN, MESSAGE_BYTES, PIECE_BYTES_MAX, RING_BYTES_MIN, SHORT_BYTES, Terms,
};
use fabcache_shmem::slots::{FLAG_BYTES, RingShape};

/// Slots of a ring: enough for the fewest credits …
pub const SLOTS_MIN: u32 = 8;
/// … and at most.
pub const SLOTS_MAX: u32 = 4096;
/// Bytes of a slot: a message without data and its flag fit …
pub const SLOT_BYTES_MIN: u32 = 128;
/// … and at most the longest message.
pub const SLOT_BYTES_MAX: u32 = MESSAGE_BYTES as u32;
/// Staging or landing memory of a link at most: no more is in flight.
pub const BUFFER_BYTES_MAX: u64 = 16 * PIECE_BYTES_MAX as u64;

/// Bytes of a heartbeat, a word; the rest of its line is free.
const HEARTBEAT_BYTES: u64 = 8;
/// Bytes of a word that counts threads, or on which one sleeps.
const SLEEP_WORD_BYTES: u64 = 4;
/// Threads of a PE that can be woken.
pub const SLEEPERS_MAX: usize = 12;
const _: () = assert!(HEARTBEAT_BYTES + SLEEP_WORD_BYTES * (1 + SLEEPERS_MAX as u64) <= LINE_BYTES);

/// Begins all messages: slots are written by one PE only, so it need not distinguish links.
pub const TOKEN: u64 = 0;

const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// The size of a link's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Slots of each direction, a power of two.
    pub slots: u32,
    /// Bytes of a slot, with its flag; a multiple of a cache line.
    pub slot_bytes: u32,
    /// Bytes through which long values go, in each direction; a multiple of a cache line.
    pub buffer_bytes: u64,
    /// Whether both ends of a ring take a mutex for each message, to compare with.
    pub has_mutexes: bool,
}

/// Why a shape is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The number of slots.
    #[error("a link has a power of two of slots, from {SLOTS_MIN} to {SLOTS_MAX}, not {0}")]
    Slots(u32),
    /// The length of a slot.
    #[error(
        "a slot has a multiple of {LINE_BYTES} bytes, from {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX}, not {0}"
    )]
    SlotBytes(u32),
    /// The length of the buffers.
    #[error(
        "a link's buffer has a multiple of {LINE_BYTES} bytes, from {RING_BYTES_MIN} to {BUFFER_BYTES_MAX}, not {0}"
    )]
    BufferBytes(u64),
}

const _: () = assert!(SHORT_BYTES + FLAG_BYTES as usize <= SLOT_BYTES_MIN as usize);
const _: () = assert!(SLOTS_MIN as u16 >= CREDITS_MIN + CREDITS_MESSAGES_MAX);

impl LinkShape {
    /// Checks the bounds.
    ///
    /// # Errors
    /// The shape is out of bounds.
    pub fn check(&self) -> Result<(), ShapeError> {
        if !self.slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&self.slots) {
            return Err(ShapeError::Slots(self.slots));
        }
        let is_slot = u64::from(self.slot_bytes).is_multiple_of(LINE_BYTES)
            && (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&self.slot_bytes);
        if !is_slot {
            return Err(ShapeError::SlotBytes(self.slot_bytes));
        }
        let is_buffer = self.buffer_bytes.is_multiple_of(LINE_BYTES)
            && (RING_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&self.buffer_bytes);
        if is_buffer { Ok(()) } else { Err(ShapeError::BufferBytes(self.buffer_bytes)) }
    }

    /// The slots of one direction.
    pub fn ring(&self) -> RingShape {
        RingShape { slots: self.slots, slot_bytes: self.slot_bytes }
    }

    /// Bytes that each PE has for each other one.
    pub fn bytes_for_each_pe(&self) -> u64 {
        2 * (self.ring().bytes() + self.buffer_bytes + self.mutex_bytes())
    }

    /// Bytes of a ring's mutex: a line of its own.
    fn mutex_bytes(&self) -> u64 {
        if self.has_mutexes { LINE_BYTES } else { 0 }
    }

    /// The parameters of a link.
    pub(super) fn terms(&self) -> Terms {
        // The messages that return credits need slots as well. So does the client's empty one, of which the server's last
        // message takes the place: the credit of that one is never returned.
        let credits = self.slots as u16 - CREDITS_MESSAGES_MAX;
        Terms {
            own_token: TOKEN,
            peer_token: TOKEN,
            own_credits: credits,
            peer_credits: credits,
            staging_bytes: self.buffer_bytes,
            landing_bytes: self.buffer_bytes,
        }
    }
}

/// Where each part of a PE's heap lies. Parts are for one other PE each, the one that writes the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapPlan {
    pes: usize,
    shape: LinkShape,
    /// Bytes of a card.
    card_bytes: u64,
    region_bytes: u64,
}

impl HeapPlan {
    /// Plans the heap of a job of so many PEs, whose cards and regions have so many bytes.
    pub fn new(pes: usize, shape: LinkShape, card_bytes: u64, region_bytes: u64) -> HeapPlan {
        HeapPlan { pes, shape, card_bytes: card_bytes.next_multiple_of(LINE_BYTES), region_bytes }
    }

    /// The shape of each link.
    pub fn shape(&self) -> LinkShape {
        self.shape
    }

    fn part(&self, before: u64, pe: usize, bytes: u64) -> Range<u64> {
        assert!(pe < self.pes, "the job has no PE {pe}");
        let start = before + pe as u64 * bytes;
        start..start + bytes
    }

    /// What a PE says of itself.
    pub fn card(&self, pe: usize) -> Range<u64> {
        self.part(0, pe, self.card_bytes)
    }

    /// The line in which a PE shows that it lives.
    pub fn heartbeat(&self, pe: usize) -> Range<u64> {
        self.part(self.card_bytes * self.pes as u64, pe, LINE_BYTES)
    }

    /// The word that counts a PE's threads that poll, in its own heap. It and the words on which threads sleep are the rest of the
    /// PE's own heartbeat, which no PE writes.
    pub fn polling_word(&self, own: usize) -> u64 {
        self.heartbeat(own).start + HEARTBEAT_BYTES
    }

    /// The word on which a thread of a PE sleeps, in its own heap.
    pub fn sleep_word(&self, own: usize, thread: usize) -> u64 {
        assert!(thread < SLEEPERS_MAX, "no word for thread {thread}");
        self.polling_word(own) + SLEEP_WORD_BYTES * (1 + thread as u64)
    }

    /// A page of words by which others find out whether words arrive whole.
    pub fn words(&self) -> Range<u64> {
        let start = self.heartbeat(self.pes - 1).end;
        start..start + PAGE_BYTES
    }

    /// The slots of requests of this client.
    pub fn requests(&self, client: usize) -> Range<u64> {
        self.part(self.words().end, client, self.shape.ring().bytes())
    }

    /// The slots of answers of this server.
    pub fn answers(&self, server: usize) -> Range<u64> {
        self.part(self.requests(self.pes - 1).end, server, self.shape.ring().bytes())
    }

    /// What this server reads.
    pub fn staging(&self, server: usize) -> Range<u64> {
        self.part(self.answers(self.pes - 1).end, server, self.shape.buffer_bytes)
    }

    /// What this server writes.
    pub fn landing(&self, server: usize) -> Range<u64> {
        self.part(self.staging(self.pes - 1).end, server, self.shape.buffer_bytes)
    }

    /// The line of the mutex of this client's requests.
    fn requests_line(&self, client: usize) -> Range<u64> {
        self.part(self.landing(self.pes - 1).end, client, self.shape.mutex_bytes())
    }

    /// The line of the mutex of this server's answers.
    fn answers_line(&self, server: usize) -> Range<u64> {
        self.part(self.requests_line(self.pes - 1).end, server, self.shape.mutex_bytes())
    }

    /// Where the mutex of this client's requests lies, if rings have one.
    pub fn requests_mutex(&self, client: usize) -> Option<u64> {
        self.shape.has_mutexes.then(|| self.requests_line(client).start)
    }

    /// Where the mutex of this server's answers lies, if rings have one.
    pub fn answers_mutex(&self, server: usize) -> Option<u64> {
        self.shape.has_mutexes.then(|| self.answers_line(server).start)
    }

    /// The cache's region.
    pub fn region(&self) -> Range<u64> {
        let start = self.answers_line(self.pes - 1).end.next_multiple_of(PAGE_BYTES);
        start..start + self.region_bytes
    }

    /// The length of the heap.
    pub fn bytes(&self) -> u64 {
        self.region().end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LinkShape =
        LinkShape { slots: 16, slot_bytes: 4096, buffer_bytes: 64 << 10, has_mutexes: false };

    #[test]
    fn parts_do_not_overlap() {
        let plan = HeapPlan::new(3, LinkShape { has_mutexes: true, ..SHAPE }, 100, 1 << 20);
        let of_each: [fn(&HeapPlan, usize) -> Range<u64>; 8] = [
            HeapPlan::card,
            HeapPlan::heartbeat,
            HeapPlan::requests,
            HeapPlan::answers,
            HeapPlan::staging,
            HeapPlan::landing,
            HeapPlan::requests_line,
            HeapPlan::answers_line,
        ];
        let mut end = 0;
        for part in of_each {
            for pe in 0..3 {
                let range = part(&plan, pe);
                if range.start == plan.words().end {
                    assert_eq!(plan.words().start, end);
                    end = range.start;
                }
                assert!(range.start == end && range.start.is_multiple_of(64) && !range.is_empty());
                end = range.end;
            }
        }
        assert!(plan.region().start >= end && plan.region().start.is_multiple_of(4096));
        assert_eq!(plan.bytes() - plan.region().start, 1 << 20);
        let without = HeapPlan::new(3, SHAPE, 100, 1 << 20);
        assert_eq!(without.region().start, without.landing(2).end.next_multiple_of(4096));
        assert_eq!((without.requests_mutex(0), without.answers_mutex(0)), (None, None));
    }

    #[test]
    fn shapes_out_of_bounds_are_refused() {
        assert_eq!(SHAPE.check(), Ok(()));
        assert_eq!(SHAPE.terms().check(), Ok(()));
        for slots in [0, 4, 12, 8192] {
            assert_eq!(LinkShape { slots, ..SHAPE }.check(), Err(ShapeError::Slots(slots)));
        }
        for slot_bytes in [0, 64, 1000, 16384] {
            assert_eq!(LinkShape { slot_bytes, ..SHAPE }.check(), Err(ShapeError::SlotBytes(slot_bytes)));
        }
        for buffer_bytes in [0, 32 << 10, (64 << 10) + 1, 1 << 30] {
            assert_eq!(
                LinkShape { buffer_bytes, ..SHAPE }.check(),
                Err(ShapeError::BufferBytes(buffer_bytes))
            );
        }
    }
}
