//! Access to the memory of a job, as the cache needs it.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

use fabcache_layout::Memory;
use fabcache_layout::sync::AtomicU32;

use crate::error::Error;
#[cfg(not(loom))]
use crate::heap_file::{self, HeapFile, HeapFileError};

/// Fills the ends of each part before a read: a failed one leaves it there.
const MARK: [u8; 8] = 0x6d9b_36da_5b6c_b64d_u64.to_ne_bytes();
/// Transports read long data in parts, none of which is shorter.
const PART_BYTES: usize = 4096;

/// Returns the first and the last bytes of each part.
fn ends_of_parts(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    fn ends(part: &mut [u8]) -> [&mut [u8]; 2] {
        let first = MARK.len().min(part.len());
        let (first, rest) = part.split_at_mut(first);
        let behind = rest.len().saturating_sub(MARK.len());
        [first, &mut rest[behind..]]
    }
    bytes.chunks_mut(PART_BYTES).flat_map(ends).filter(|end| !end.is_empty())
}

/// Access of one thread to the heaps of all PEs of a job.
///
/// An access may block for as long as its PE sleeps or is stopped; those of other PEs are not affected. Whether an access
/// failed is not told: what [`RemoteHeaps::get`] was to fill is then unchanged.
pub trait RemoteHeaps {
    /// The number of this PE.
    fn pe(&self) -> usize;

    /// The number of PEs.
    fn pes(&self) -> usize;

    /// Reads a PE's bytes at an offset: all of them when it returns, unless it failed.
    ///
    /// # Panics
    /// They lie outside of the heap.
    fn get(&mut self, pe: usize, offset: u64, into: &mut [u8]);

    /// Reads as [`RemoteHeaps::get`] does, and returns whether it succeeded.
    fn try_get(&mut self, pe: usize, offset: u64, into: &mut [u8]) -> bool {
        // The PE's bytes may equal one mark, but not both.
        [MARK, MARK.map(|byte| !byte)].iter().any(|mark| {
            ends_of_parts(into).for_each(|end| end.copy_from_slice(&mark[..end.len()]));
            self.get(pe, offset, into);
            ends_of_parts(into).all(|end| *end != mark[..end.len()])
        })
    }

    /// Writes a PE's bytes at an offset; the PE sees them at some time.
    ///
    /// # Panics
    /// They lie outside of the heap.
    fn put(&mut self, pe: usize, offset: u64, from: &[u8]);

    /// Writes a PE's aligned word at an offset; the PE sees it whole, at some time.
    ///
    /// # Panics
    /// It lies outside of the heap, or is not aligned.
    fn put_word(&mut self, pe: usize, offset: u64, word: u64);

    /// Replaces a PE's aligned word at an offset by `new` if it is `expected`, and returns what it was. This is atomic beside
    /// other calls of this and of [`RemoteHeaps::atomic_set`] only, by whichever PE: a network card that executes them does
    /// not lock out the CPU. So a PE accesses such a word of its own in the same way.
    ///
    /// # Panics
    /// It lies outside of the heap, or is not aligned.
    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64;

    /// Writes a PE's aligned word, which [`RemoteHeaps::compare_swap`] accesses as well.
    ///
    /// # Panics
    /// It lies outside of the heap, or is not aligned.
    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64);

    /// Orders the writes to each PE: it sees those before this call no later than those after it. So it does what this thread
    /// has stored in its own heap before, and what this thread has loaded from there was loaded before.
    fn fence(&mut self);

    /// Serves what other PEs request of this one, where the transport needs that.
    fn progress(&mut self);
}

/// Symmetric memory of a job, from the view of one PE.
pub trait SymmetricHeap: Send + Sync + Debug {
    /// The number of this PE.
    fn pe(&self) -> usize;

    /// The number of PEs.
    fn pes(&self) -> usize;

    /// The length of each PE's part.
    fn bytes(&self) -> u64;

    /// The address of this PE's byte at an offset. The memory stays allocated until the process ends.
    ///
    /// # Panics
    /// It lies outside of the heap.
    fn address(&self, offset: u64) -> NonNull<u8>;

    /// This PE's `len` bytes at `offset`, a multiple of 64, which other PEs read and write.
    ///
    /// # Panics
    /// They lie outside of the heap.
    fn memory(&self, offset: u64, len: u64) -> Memory;

    /// Returns the file of this PE's `len` bytes at `offset`, for programs of this host to read. Nobody uses the bytes yet, and
    /// all are 0.
    ///
    /// # Errors
    /// They are not one file, of which this process has a descriptor, or others could write it.
    ///
    /// # Panics
    /// They lie outside of the heap.
    #[cfg(not(loom))]
    fn file(&self, offset: u64, len: u64) -> Result<HeapFile, HeapFileError> {
        let start = self.address(offset).as_ptr().addr() as u64;
        heap_file::find(&self.memory(offset, len), start..start + len)
    }

    /// A PE's `len` bytes at `offset`, a multiple of 64, if this process has its heap mapped, as on the same host: loads read them
    /// without a call of OpenSHMEM.
    ///
    /// # Panics
    /// They lie outside of the heap.
    fn mapped(&self, pe: usize, offset: u64, len: u64) -> Option<Memory>;

    /// Returns whether this process has a PE's heap mapped.
    fn is_mapped(&self, pe: usize) -> bool {
        self.mapped(pe, 0, 0).is_some()
    }

    /// A PE's aligned 4-byte word at an offset, if this process has its heap mapped. It is accessed by atomics only.
    ///
    /// # Panics
    /// The word lies outside of the heap, or is not aligned.
    fn word(&self, pe: usize, offset: u64) -> Option<&AtomicU32>;

    /// The calling thread's access to the heaps of all PEs.
    ///
    /// # Errors
    /// The implementation has no more.
    fn open(&self) -> Result<Box<dyn RemoteHeaps>, Error>;
}

/// A PE's process, which allocates symmetric memory together with the others.
pub trait Process: Send + Sync + Debug {
    /// The number of this PE.
    fn pe(&self) -> usize;

    /// The number of PEs.
    fn pes(&self) -> usize;

    /// Allocates memory, zeroed in all PEs when this returns; collective, with the same length everywhere.
    ///
    /// # Errors
    /// There is not enough, in all PEs alike.
    fn allocate(&self, bytes: u64) -> Result<Arc<dyn SymmetricHeap>, Error>;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local::LocalJob;

    const LENGTHS: [usize; 9] = [1, 7, 8, 9, 17, 4096, 4097, 9000, 12_288];

    /// Reads only some of the parts.
    struct Failing(std::ops::Range<usize>);

    impl RemoteHeaps for Failing {
        fn pe(&self) -> usize {
            0
        }

        fn pes(&self) -> usize {
            1
        }

        fn get(&mut self, _: usize, _: u64, into: &mut [u8]) {
            into[self.0.clone()].fill(1);
        }

        fn put(&mut self, _: usize, _: u64, _: &[u8]) {}

        fn put_word(&mut self, _: usize, _: u64, _: u64) {}

        fn compare_swap(&mut self, _: usize, _: u64, expected: u64, _: u64) -> u64 {
            expected
        }

        fn atomic_set(&mut self, _: usize, _: u64, _: u64) {}

        fn fence(&mut self) {}

        fn progress(&mut self) {}
    }

    #[test]
    fn failed_reads_are_noticed() {
        for len in LENGTHS {
            for read in [0..0, 0..(len - 1) / PART_BYTES * PART_BYTES, PART_BYTES.min(len)..len, 0..len] {
                let is_whole = read == (0..len);
                assert_eq!(Failing(read).try_get(0, 0, &mut vec![1; len]), is_whole, "{len}");
            }
        }
    }

    #[test]
    fn all_bytes_can_be_read() {
        let job = LocalJob::new(1, 16_384);
        for len in LENGTHS {
            for mark in [MARK, MARK.map(|byte| !byte), [7; 8]] {
                let bytes: Vec<u8> = mark.into_iter().cycle().take(len).collect();
                job.memory(0).copy_in(64, &bytes);
                let mut read = vec![0; len];
                assert!(job.of(0).try_get(0, 64, &mut read), "{len}");
                assert!(read == bytes, "{len}");
            }
        }
    }
}
