//! For how long nothing is written over a segment after its generation has ended.
//!
//! Remote readers that rely on it need not load the counter of emptied segments after an item: a counter that was
//! unchanged at some moment of their read shows that the item was not overwritten for a while after that. Free
//! segments still in their grace period are skipped; a writer that finds no other waits.

use std::thread;
use std::time::{Duration, Instant};

use fabcache_layout::sync::{AtomicU64, Ordering, without};

/// The segments in their grace period, and its end.
#[derive(Debug)]
pub(super) struct GracePeriod {
    length: Duration,
    /// The origin of the times below.
    began: Instant,
    /// The time of each segment, in nanoseconds; empty if no grace is promised.
    until: Box<[AtomicU64]>,
}

impl GracePeriod {
    pub(super) fn new(length: Duration, segments: u32) -> GracePeriod {
        let segments = if length.is_zero() { 0 } else { segments };
        GracePeriod {
            length,
            began: Instant::now(),
            until: (0..segments).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// For how long.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// A segment's generation has ended.
    pub(super) fn begin(&self, id: u32) {
        if let Some(until) = self.until.get(id as usize) {
            // Before another thread learns through the free list's lock that it is free.
            until.store((self.began.elapsed() + self.length).as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the remaining grace.
    pub(super) fn left(&self, id: u32) -> Option<Duration> {
        let until = Duration::from_nanos(self.until.get(id as usize)?.load(Ordering::Relaxed));
        if without("grace") {
            return None;
        }
        until.checked_sub(self.began.elapsed()).filter(|left| !left.is_zero())
    }

    /// Waits until the grace period is over.
    pub(super) fn wait(&self, id: u32) {
        while let Some(left) = self.left(id) {
            thread::sleep(left);
        }
    }
}
