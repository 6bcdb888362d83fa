//! What the cache needs of OpenSHMEM.

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

    /// Orders the writes to each PE: it sees those before this call no later than those after it.
    fn fence(&mut self);

    /// Serves what other PEs request of this one, where the transport needs that.
    fn progress(&mut self);
}
