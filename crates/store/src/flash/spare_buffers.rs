//! Buffers of long items that were written, for the next ones.
//!
//! The system zeroes the memory of a new buffer, which takes longer than to fill it.

use super::PageBuffer;

/// The most bytes of all buffers: as many as one long item has in the largest segment.
const BYTES_MAX: usize = 64 << 20;
/// Buffers that no item has used for so long are taken back.
const UNUSED_NS: u64 = 1_000_000_000;

/// The buffers, those that were written last behind.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    buffers: Vec<PageBuffer>,
    /// When the last one was written.
    added_ns: u64,
}

impl SpareBuffers {
    /// Takes a buffer that has memory for so many bytes.
    pub fn take(&mut self, bytes: usize) -> Option<PageBuffer> {
        let at = self.buffers.iter().rposition(|buffer| buffer.capacity() >= bytes)?;
        Some(self.buffers.remove(at))
    }

    /// Adds a buffer, in place of older ones beyond the most bytes.
    pub fn add(&mut self, buffer: PageBuffer, now_ns: u64) {
        self.added_ns = now_ns;
        self.buffers.push(buffer);
        while self.buffers.iter().map(PageBuffer::capacity).sum::<usize>() > BYTES_MAX {
            self.buffers.remove(0);
        }
    }

    /// Takes the buffers that no item has used for a while.
    pub fn take_unused(&mut self, now_ns: u64) -> Vec<PageBuffer> {
        let is_over = now_ns.saturating_sub(self.added_ns) >= UNUSED_NS;
        if is_over { std::mem::take(&mut self.buffers) } else { Vec::new() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::page::PAGE_BYTES;
    use super::*;

    #[test]
    fn buffers_are_used_again_for_a_while() {
        let buffer = |bytes| PageBuffer::with_capacity(PAGE_BYTES, bytes);
        let mut spare = SpareBuffers::default();
        assert!(spare.take(1).is_none());
        spare.add(buffer(1 << 20), 0);
        spare.add(buffer(4 << 20), 5);
        assert_eq!(spare.take(2 << 20).map(|buffer| buffer.capacity()), Some(4 << 20));
        assert!(spare.take(2 << 20).is_none());
        assert_eq!(spare.take_unused(4 + UNUSED_NS).len(), 0);
        // The older ones go first.
        spare.add(buffer(BYTES_MAX), 6);
        assert_eq!(spare.buffers.iter().map(PageBuffer::capacity).collect::<Vec<_>>(), [BYTES_MAX]);
        assert_eq!(spare.take_unused(6 + UNUSED_NS).len(), 1);
        assert!(spare.take(1).is_none());
    }
}
