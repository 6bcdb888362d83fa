//! What the cache needs of OpenSHMEM.

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use fabcache_layout::Memory;

use crate::error::Error;

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

    /// Orders the writes to each PE: it sees those before this call no later than those after it. So it does what this thread
    /// has stored in its own heap before, and what this thread has loaded from there was loaded before.
    fn fence(&mut self);

    /// Wakes a PE's threads that [sleep](SymmetricHeap::sleep) on the `count` words at this offset, if this process has that
    /// PE's heap mapped, as on the same host; else they find the work when their sleep is over.
    ///
    /// # Panics
    /// The words lie outside of the heap, or are not aligned.
    fn wake(&mut self, pe: usize, offset: u64, count: usize);

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

    /// Sleeps for this time at most, unless there is work, on the 4-byte word at this offset, which no other thread sleeps on.
    /// Who makes work wakes it then.
    ///
    /// # Panics
    /// The word lies outside of the heap, or is not aligned.
    fn sleep(&self, offset: u64, time: Duration, has_work: &mut dyn FnMut() -> bool);

    /// Wakes the thread of this PE that sleeps on the word at this offset.
    ///
    /// # Panics
    /// The word lies outside of the heap, or is not aligned.
    fn wake(&self, offset: u64);

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
