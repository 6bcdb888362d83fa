//! The producer and the consumer of staging or landing memory.

use std::collections::VecDeque;

use super::{PIECE_BYTES_MAX, ProtocolError};

/// The end that fills the memory.
#[derive(Debug)]
pub(super) struct RingProducer {
    bytes: usize,
    /// The offset of the next chunk, if it fits there.
    head: usize,
    /// The bytes of all chunks so far …
    filled: u64,
    /// … and the total of returned bytes.
    emptied: u64,
    /// The chunks not returned: the offset of each, and the value of `filled` after it.
    pieces: VecDeque<(usize, u64)>,
}

impl RingProducer {
    pub fn new(bytes: u64) -> RingProducer {
        RingProducer { bytes: bytes as usize, head: 0, filled: 0, emptied: 0, pieces: VecDeque::new() }
    }

    /// Maximum bytes of a chunk; 0 without a ring.
    pub fn piece_bytes(&self) -> usize {
        PIECE_BYTES_MAX.min(self.bytes / 4)
    }

    /// Returns the offset for a chunk of this many bytes, if there is room.
    pub fn room(&self, bytes: usize) -> Option<usize> {
        debug_assert!(bytes > 0);
        let Some((tail, _)) = self.pieces.front() else {
            return (bytes <= self.bytes).then_some(0);
        };
        if self.head > *tail {
            // After the head, or again from the start.
            let at = if bytes <= self.bytes - self.head { self.head } else { 0 };
            (at > 0 || bytes <= *tail).then_some(at)
        } else {
            (bytes <= tail - self.head).then_some(self.head)
        }
    }

    /// Allocates a chunk where there was room.
    pub fn fill(&mut self, at: usize, bytes: usize) {
        assert!(self.room(bytes) == Some(at), "a piece goes where there is room");
        self.head = at + bytes;
        self.filled += bytes as u64;
        self.pieces.push_back((at, self.filled));
    }

    /// Records the total of returned bytes.
    pub fn give_back(&mut self, total: u64) -> Result<(), ProtocolError> {
        if total < self.emptied || total > self.filled {
            return Err(ProtocolError::Total(total));
        }
        self.emptied = total;
        while self.pieces.front().is_some_and(|(_, end)| *end <= total) {
            self.pieces.pop_front();
        }
        Ok(())
    }
}

/// The end that empties the memory.
#[derive(Debug)]
pub(super) struct RingConsumer {
    bytes: u64,
    /// The bytes announced so far …
    came: u64,
    /// … those of wholly consumed chunks …
    consumed: u64,
    /// … and the total reported to the other end.
    reported: u64,
}

impl RingConsumer {
    pub fn new(bytes: u64) -> RingConsumer {
        RingConsumer { bytes, came: 0, consumed: 0, reported: 0 }
    }

    /// Records a chunk announced by the other end.
    pub fn came(&mut self, at: u64, bytes: u64) -> Result<(), ProtocolError> {
        let end = at.checked_add(bytes).filter(|end| *end <= self.bytes);
        let in_flight = self.came - self.reported;
        if bytes == 0 || end.is_none() || in_flight + bytes > self.bytes {
            return Err(ProtocolError::Range { at, bytes });
        }
        self.came += bytes;
        Ok(())
    }

    /// Records that a chunk was wholly consumed.
    pub fn consumed(&mut self, bytes: u64) {
        self.consumed += bytes;
        debug_assert!(self.consumed <= self.came);
    }

    /// Returns the total to report to the other end, if it is worth a message now.
    pub fn due(&self) -> Option<u64> {
        (self.consumed > self.reported && self.consumed - self.reported >= self.bytes / 4)
            .then_some(self.consumed)
    }

    /// Records that the total was reported.
    pub fn reported(&mut self, total: u64) {
        self.reported = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_do_not_wrap_or_overlap() {
        let mut ring = RingProducer::new(100);
        assert_eq!(ring.piece_bytes(), 25);
        for at in [0, 25, 50] {
            assert_eq!(ring.room(25), Some(at));
            ring.fill(at, 25);
        }
        ring.fill(75, 20);
        assert_eq!((ring.room(6), ring.room(5), ring.room(1)), (None, Some(95), Some(95)));
        ring.give_back(24).expect("it was filled");
        assert_eq!(ring.room(6), None, "a chunk is returned whole");
        ring.give_back(25).expect("it was filled");
        assert_eq!((ring.room(26), ring.room(25)), (None, Some(0)));
        ring.fill(0, 25);
        assert_eq!((ring.room(1), ring.head), (None, 25));
        ring.give_back(95).expect("it was filled");
        assert_eq!((ring.room(75), ring.room(76)), (Some(25), None));
        for total in [94, 121, u64::MAX] {
            assert_eq!(ring.give_back(total), Err(ProtocolError::Total(total)));
        }
        ring.give_back(120).expect("it was filled");
        assert_eq!(ring.room(100), Some(0));
        assert_eq!(RingProducer::new(0).piece_bytes(), 0);
    }

    #[test]
    fn empty_ring_has_room_for_a_chunk() {
        // Random sizes: the producer's ring and the totals that the consumer reports.
        let mut x = 7u64;
        let (mut ring, mut other) = (RingProducer::new(1000), RingConsumer::new(1000));
        let mut unconsumed = 0;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = 1 + (x >> 33) as usize % ring.piece_bytes();
            let Some(at) = ring.room(bytes) else {
                assert!(unconsumed > 0, "stuck");
                other.consumed(std::mem::take(&mut unconsumed));
                if let Some(total) = other.due() {
                    other.reported(total);
                    ring.give_back(total).expect("it was filled");
                }
                assert!(ring.room(bytes).is_some(), "stuck");
                continue;
            };
            ring.fill(at, bytes);
            other.came(at as u64, bytes as u64).expect("it is in the ring");
            unconsumed += bytes as u64;
        }
    }

    #[test]
    fn ranges_outside_the_ring_are_rejected() {
        let mut ring = RingConsumer::new(100);
        for (at, bytes) in [(0, 0), (0, 101), (100, 1), (u64::MAX, 1), (1, u64::MAX), (99, 2)] {
            assert_eq!(ring.came(at, bytes), Err(ProtocolError::Range { at, bytes }));
        }
        ring.came(10, 90).expect("it is in the ring");
        assert_eq!(ring.came(0, 11), Err(ProtocolError::Range { at: 0, bytes: 11 }), "more than it holds");
        ring.consumed(24);
        assert_eq!(ring.due(), None);
        ring.consumed(1);
        assert_eq!(ring.due(), Some(25));
        ring.reported(25);
        ring.came(0, 35).expect("there is room again");
        assert_eq!(RingConsumer::new(0).came(0, 1), Err(ProtocolError::Range { at: 0, bytes: 1 }));
        assert_eq!(RingConsumer::new(0).due(), None);
    }
}
