//! OpenSHMEM by itself: reads of another PE's memory, and messages there and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use fabcache_shmem::{Job, Process, RemoteHeaps, SymmetricHeap};

use crate::fabric::timing::{Times, times};

/// The PE that measures.
pub const MEASURING: usize = 0;
/// The PE whose memory is accessed.
pub const REMOTE: usize = 1;

/// Where the number of the last message from the other PE lies; 64 bytes before the bytes that are accessed.
const FLAG_AT: u64 = 0;
const BYTES_AT: u64 = 64;
/// The message that ends the run.
const END: u64 = u64::MAX;

/// Plain OpenSHMEM in one PE.
pub struct Raw {
    heap: Arc<dyn SymmetricHeap>,
    heaps: Box<dyn RemoteHeaps>,
    /// Messages so far.
    sent: u64,
}

impl Raw {
    /// Allocates symmetric memory for accesses of so many bytes; collective.
    ///
    /// # Errors
    /// The heap is too small.
    pub fn start(job: &Job, bytes_max: usize) -> Result<Raw> {
        let heap = job.allocate(BYTES_AT + (bytes_max as u64).next_multiple_of(64))?;
        let heaps = heap.open().context("no access to other PEs' memory")?;
        Ok(Raw { heap, heaps, sent: 0 })
    }

    /// Answers messages until the other PE ends. `is_cut` ends it as well.
    pub fn answer(&mut self, is_cut: &AtomicBool) {
        let own = self.heap.memory(0, BYTES_AT);
        while !is_cut.load(Ordering::Relaxed) {
            match own.load(FLAG_AT, Ordering::Acquire) {
                END => return,
                number if number > self.sent => {
                    self.heaps.put_word(MEASURING, FLAG_AT, number);
                    self.sent = number;
                }
                _ => {
                    self.heaps.progress();
                    // With fewer CPUs than PEs, the other one needs this one.
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Times reads of the other PE's memory.
    ///
    /// # Errors
    /// None but those of the histogram.
    pub fn reads(&mut self, bytes: usize, round: Duration) -> Result<Times> {
        let mut into = vec![0; bytes];
        times(round, |_| {
            self.heaps.get(REMOTE, BYTES_AT, &mut into);
            Ok(())
        })
    }

    /// Times writes of so many bytes with a flag behind them, each until the other PE's flag comes back.
    ///
    /// # Errors
    /// None but those of the histogram.
    pub fn round_trips(&mut self, bytes: usize, round: Duration) -> Result<Times> {
        let (from, own) = (vec![1; bytes], self.heap.memory(0, BYTES_AT));
        times(round, |_| {
            self.sent += 1;
            self.heaps.put(REMOTE, BYTES_AT, &from);
            self.heaps.fence();
            self.heaps.put_word(REMOTE, FLAG_AT, self.sent);
            while own.load(FLAG_AT, Ordering::Acquire) < self.sent {
                self.heaps.progress();
                std::thread::yield_now();
            }
            Ok(())
        })
    }

    /// Ends the other PE's part.
    pub fn end(&mut self) {
        self.heaps.put_word(REMOTE, FLAG_AT, END);
    }
}
