//! Evidence of how memory is best divided between the small and the main queue.
//!
//! A request for an item that was evicted shortly before would have been a hit if the item's queue had been larger. Of
//! each queue the latest evicted items are remembered, a quarter of the items that fill memory: so many would live if
//! the queue had that much more room. Only keys with certain hashes take part, one in [`EVIDENCE_SAMPLE`].

use fabcache_layout::KeyHash;
use fabcache_layout::sync::{AtomicU64, Ordering};

use crate::bounds::{EVIDENCE_GHOSTS_DIVISOR, EVIDENCE_SAMPLE};
use crate::ghosts::Ghosts;
use crate::segments::Queue;

/// The items that one queue evicted recently, and the requests for them.
#[derive(Debug)]
struct EvidenceQueue {
    recent: Ghosts<16>,
    requested: AtomicU64,
}

/// Evidence from both queues.
#[derive(Debug)]
pub struct Evidence {
    small: EvidenceQueue,
    main: EvidenceQueue,
}

/// Numbers of requests for recently evicted items, by the queue that evicted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvidenceCounts {
    /// Those that the small queue evicted.
    pub small: u64,
    /// Those that the main queue evicted.
    pub main: u64,
}

impl EvidenceCounts {
    /// Returns the difference to `earlier`.
    pub fn since(&self, earlier: &EvidenceCounts) -> EvidenceCounts {
        EvidenceCounts { small: self.small - earlier.small, main: self.main - earlier.main }
    }
}

impl Evidence {
    /// Returns the evidence of a store with at most `items_max` items: none.
    pub fn new(items_max: u64) -> Evidence {
        let queue =
            || EvidenceQueue { recent: Ghosts::new(ghosts_for(items_max)), requested: AtomicU64::new(0) };
        Evidence { small: queue(), main: queue() }
    }

    /// Adapts the number of remembered items to that of the items that fill memory.
    pub fn fit(&self, items: u64) {
        self.small.recent.fit(ghosts_for(items));
        self.main.recent.fit(ghosts_for(items));
    }

    /// Records that a queue evicts the item with this hash.
    pub fn note_evicted(&self, queue: Queue, hash: KeyHash) {
        if is_sampled(hash) {
            match queue {
                Queue::Small => self.small.recent.add(hash),
                Queue::Main => self.main.recent.add(hash),
            }
        }
    }

    /// Records that the key with this hash was requested, and has no item.
    #[inline]
    pub fn note_missed(&self, hash: KeyHash) {
        if is_sampled(hash) {
            self.note_sampled(hash);
        }
    }

    #[cold]
    fn note_sampled(&self, hash: KeyHash) {
        // One request is evidence once: a miss is followed by a write of the key.
        for queue in [&self.small, &self.main] {
            if queue.recent.remove(hash) {
                queue.requested.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the requests counted so far; each stands for [`EVIDENCE_SAMPLE`].
    pub fn counts(&self) -> EvidenceCounts {
        let count = |queue: &EvidenceQueue| queue.requested.load(Ordering::Relaxed);
        EvidenceCounts { small: count(&self.small), main: count(&self.main) }
    }
}

fn ghosts_for(items: u64) -> u64 {
    items / (EVIDENCE_GHOSTS_DIVISOR * EVIDENCE_SAMPLE)
}

/// Returns whether a key takes part: by bits that choose neither its group, nor its row or fingerprint among ghosts.
#[inline]
fn is_sampled(hash: KeyHash) -> bool {
    hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 & (EVIDENCE_SAMPLE - 1) == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> impl Iterator<Item = KeyHash> {
        range.map(|i| KeyHash::of(&i.to_le_bytes(), 1))
    }

    #[test]
    fn recent_evictions_that_are_requested_count_once_by_queue() {
        let evidence = Evidence::new(1_000_000);
        hashes(0..100).for_each(|hash| evidence.note_missed(hash));
        assert_eq!(evidence.counts(), EvidenceCounts::default(), "nothing was evicted");
        evidence.fit(100_000);
        hashes(0..50_000).for_each(|hash| evidence.note_evicted(Queue::Small, hash));
        hashes(100_000..110_000).for_each(|hash| evidence.note_evicted(Queue::Main, hash));
        for _ in 0..2 {
            hashes(0..20_000).for_each(|hash| evidence.note_missed(hash));
            hashes(35_000..50_000).for_each(|hash| evidence.note_missed(hash));
            hashes(100_000..110_000).for_each(|hash| evidence.note_missed(hash));
        }
        let EvidenceCounts { small, main } = evidence.counts();
        let expected = |count: u64| count / EVIDENCE_SAMPLE;
        assert!((expected(13_000)..expected(17_000)).contains(&small), "{small} of the latest quarter");
        assert!((expected(9_000)..expected(11_000)).contains(&main), "{main}");
    }
}
