//! One connection's received but unconsumed bytes.
//!
//! Consuming advances an offset; bytes move only after at least as many before them were consumed, so a long pipeline
//! moves each byte at most once, however many turns it takes.

use crate::bounds::IDLE_BUFFER_BYTES_MAX;

/// A larger buffer is shrunk when the pending bytes are less than this part (1/n) of it.
const SPARSE_DIVISOR: usize = 4;

/// Received bytes that wait.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Bytes consumed.
    used: usize,
}

impl Input {
    /// The bytes that wait.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Returns whether no bytes are pending.
    pub fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Drops `count` bytes from the front.
    pub fn consume(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.bytes.len());
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
        }
    }

    /// Appends bytes to the pending ones.
    pub fn append(&mut self, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        if self.used >= self.bytes.len() - self.used {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(more);
    }

    /// Gives back memory that what waits does not need.
    pub fn settle(&mut self) {
        if self.bytes.capacity() > IDLE_BUFFER_BYTES_MAX
            && self.waiting().len() < self.bytes.capacity() / SPARSE_DIVISOR
        {
            *self = Input { bytes: self.waiting().to_vec(), used: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_bytes_come_out_in_order() {
        let mut input = Input::default();
        let (mut next_in, mut next_out) = (0u32, 0u32);
        for turn in 0..2_000usize {
            let more: Vec<u8> = (0..turn % 97).flat_map(|i| (next_in + i as u32).to_le_bytes()).collect();
            next_in += (turn % 97) as u32;
            input.append(&more);
            let count = (input.waiting().len() / 4).min(turn * 31 % 101);
            for number in input.waiting()[..count * 4].chunks(4) {
                assert_eq!(number, next_out.to_le_bytes());
                next_out += 1;
            }
            input.consume(count * 4);
            input.settle();
            assert_eq!(input.waiting().len(), (next_in - next_out) as usize * 4);
            assert_eq!(input.is_empty(), next_in == next_out);
        }
    }

    #[test]
    fn buffer_size_follows_pending_bytes() {
        let mut input = Input::default();
        input.append(&vec![b'x'; 1 << 20]);
        input.consume((1 << 20) - 10);
        input.settle();
        assert_eq!((input.waiting(), input.bytes.capacity()), (&[b'x'; 10][..], 10));
        input.append(&vec![b'y'; 1 << 20]);
        input.consume((1 << 20) + 10);
        input.settle();
        assert_eq!((input.is_empty(), input.bytes.capacity()), (true, 0));
    }

    #[test]
    fn consuming_a_long_pipeline_moves_no_bytes() {
        let mut input = Input::default();
        input.append(&vec![b'x'; 60_000]);
        let start = input.bytes.as_ptr();
        for _ in 0..3_000 {
            input.consume(10);
            input.settle();
            assert_eq!(input.bytes.as_ptr(), start);
        }
    }
}
