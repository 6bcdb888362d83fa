//! Access to the heaps that this process has mapped.

use fabcache_layout::Memory;
use fabcache_layout::sync::{Ordering, fence};

use crate::remote_heaps::{RemoteHeaps, SymmetricHeap};

/// Access to the heaps that this process has mapped, its own among them, by loads and stores. Any thread may have one, and no
/// access blocks: OpenSHMEM has no part in it.
#[derive(Debug)]
pub struct MappedHeaps {
    pe: usize,
    heaps: Box<[Option<Memory>]>,
}

impl MappedHeaps {
    /// Returns access to all heaps of a job that are mapped.
    pub fn new(heap: &dyn SymmetricHeap) -> MappedHeaps {
        let heaps = (0..heap.pes()).map(|pe| heap.mapped(pe, 0, heap.bytes())).collect();
        MappedHeaps { pe: heap.pe(), heaps }
    }

    fn of(&self, pe: usize) -> &Memory {
        self.heaps[pe].as_ref().expect("only mapped heaps are accessed")
    }
}

/// A PE whose heap is not mapped is a panic in each access. Atomics are those of the CPU: a job whose rings have mutexes, which
/// OpenSHMEM's atomics take, must not drive its links by this.
impl RemoteHeaps for MappedHeaps {
    fn pe(&self) -> usize {
        self.pe
    }

    fn pes(&self) -> usize {
        self.heaps.len()
    }

    fn get(&mut self, pe: usize, offset: u64, into: &mut [u8]) {
        self.of(pe).copy_out(offset, into);
    }

    fn try_get(&mut self, pe: usize, offset: u64, into: &mut [u8]) -> bool {
        self.get(pe, offset, into);
        true
    }

    fn put(&mut self, pe: usize, offset: u64, from: &[u8]) {
        self.of(pe).copy_in(offset, from);
    }

    fn put_word(&mut self, pe: usize, offset: u64, word: u64) {
        self.of(pe).store(offset, word, Ordering::Relaxed);
    }

    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64 {
        let order = Ordering::Relaxed;
        self.of(pe).compare_exchange(offset, expected, new, order, order).unwrap_or_else(|word| word)
    }

    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64) {
        self.put_word(pe, offset, word);
    }

    fn fence(&mut self) {
        fence(Ordering::Release);
    }

    fn progress(&mut self) {}
}
