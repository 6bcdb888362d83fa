//! Ghosts: fingerprints of evicted items, so that an item that is requested again soon after is recognized.
//!
//! A table of rows, each a word of fingerprints, the newest at the bottom: a new one displaces the oldest. With hashes
//! spread evenly over rows, items are forgotten in about the order in which they were evicted, as in the ghost queue of
//! S3-FIFO. A fingerprint of 12 bits takes 1.6 bytes, and about one new item in a thousand is mistaken for a ghost; one
//! of 16 bits takes two bytes, and one item in sixteen thousand is.
//!
//! Reclaim adds fingerprints under its lock; others look them up and remove those found. A race at worst loses or
//! keeps a ghost.

use std::sync::OnceLock;

use fabcache_layout::KeyHash;
use fabcache_layout::sync::{AtomicU64, AtomicUsize, Ordering};

use crate::bounds::GHOST_ROWS_PER_CHUNK;

/// Recently evicted items, by fingerprints of `BITS` bits.
pub struct Ghosts<const BITS: u32> {
    /// Allocated when the first ghost is added.
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Rows in use.
    rows: AtomicUsize,
}

impl<const BITS: u32> std::fmt::Debug for Ghosts<BITS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ghosts({} rows)", self.rows.load(Ordering::Relaxed))
    }
}

impl<const BITS: u32> Ghosts<BITS> {
    const PER_ROW: u32 = u64::BITS / BITS;
    const MASK: u64 = (1 << BITS) - 1;
    const ROW_MASK: u64 = u64::MAX >> (u64::BITS - BITS * Self::PER_ROW);

    /// Returns an empty set of at most `ghosts_max` ghosts.
    pub fn new(ghosts_max: u64) -> Ghosts<BITS> {
        let rows_max = Self::rows_for(ghosts_max);
        Ghosts {
            chunks: (0..rows_max.div_ceil(GHOST_ROWS_PER_CHUNK)).map(|_| OnceLock::new()).collect(),
            rows: AtomicUsize::new(0),
        }
    }

    fn rows_for(ghosts: u64) -> usize {
        ghosts.div_ceil(u64::from(Self::PER_ROW)).max(1) as usize
    }

    /// Sets the number of ghosts that are remembered. A large change forgets the existing ones.
    pub fn fit(&self, ghosts: u64) {
        let wanted = Self::rows_for(ghosts).min(self.chunks.len() * GHOST_ROWS_PER_CHUNK);
        let rows = self.rows.load(Ordering::Relaxed);
        if wanted > rows + rows / 4 || wanted < rows / 2 {
            self.rows.store(wanted, Ordering::Relaxed);
        }
    }

    /// The item with this hash was evicted.
    pub fn add(&self, hash: KeyHash) {
        let Some((row, fingerprint)) = self.place(hash) else { return };
        let chunk = self.chunks[row / GHOST_ROWS_PER_CHUNK]
            .get_or_init(|| (0..GHOST_ROWS_PER_CHUNK).map(|_| AtomicU64::new(0)).collect());
        let word = &chunk[row % GHOST_ROWS_PER_CHUNK];
        let older = word.load(Ordering::Relaxed);
        word.store((older << BITS | fingerprint) & Self::ROW_MASK, Ordering::Relaxed);
    }

    /// Returns whether an item with this hash is a ghost.
    #[inline]
    pub fn contains(&self, hash: KeyHash) -> bool {
        self.find(hash).is_some()
    }

    /// Forgets the item with this hash; returns whether it was a ghost.
    pub fn remove(&self, hash: KeyHash) -> bool {
        self.find(hash).is_some_and(|(word, seen, shift)| {
            let without = seen & !(Self::MASK << shift);
            word.compare_exchange(seen, without, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    #[inline]
    fn find(&self, hash: KeyHash) -> Option<(&AtomicU64, u64, u32)> {
        let (row, fingerprint) = self.place(hash)?;
        let word = &self.chunks[row / GHOST_ROWS_PER_CHUNK].get()?[row % GHOST_ROWS_PER_CHUNK];
        let seen = word.load(Ordering::Relaxed);
        let mut shifts = (0..Self::PER_ROW).map(|i| i * BITS);
        shifts.find(|shift| seen >> shift & Self::MASK == fingerprint).map(|shift| (word, seen, shift))
    }

    /// Returns the row of a hash, and its fingerprint; `None` before the first eviction.
    #[inline]
    fn place(&self, hash: KeyHash) -> Option<(usize, u64)> {
        let rows = self.rows.load(Ordering::Relaxed);
        // Other bits than those that the index goes by, which are alike among neighbours.
        let mixed = hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let row = ((u128::from(mixed) * rows as u128) >> 64) as usize;
        (rows > 0).then_some((row, (mixed & Self::MASK).max(1)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn hash(i: u64) -> KeyHash {
        KeyHash::of(&i.to_le_bytes(), 1)
    }

    #[test]
    fn latest_ghosts_replace_the_oldest() {
        let ghosts = Ghosts::<12>::new(700_000);
        assert!(!ghosts.contains(hash(1)), "nothing was evicted");
        ghosts.fit(70_000);
        (0..500_000).for_each(|i| ghosts.add(hash(i)));
        let found = |range: std::ops::Range<u64>| {
            let len = range.end - range.start;
            range.filter(|i| ghosts.contains(hash(*i))).count() as f64 / len as f64
        };
        assert!(found(480_000..500_000) > 0.97);
        assert!(found(0..300_000) < 0.02);
        assert!(found(1_000_000..1_300_000) < 0.005, "strangers");
    }

    #[test]
    fn restored_key_is_no_longer_a_ghost() {
        let ghosts = Ghosts::<12>::new(70);
        ghosts.fit(70);
        (0..20).for_each(|i| ghosts.add(hash(i)));
        assert!(ghosts.remove(hash(7)) && !ghosts.remove(hash(7)));
        assert!(!ghosts.contains(hash(7)));
        assert!((0..20).filter(|i| ghosts.contains(hash(*i))).count() >= 18);
    }

    #[test]
    fn ghost_count_follows_the_item_count() {
        let ghosts = Ghosts::<16>::new(1_000);
        ghosts.fit(10);
        let few = ghosts.rows.load(Ordering::Relaxed);
        ghosts.fit(1_000_000_000);
        assert!(ghosts.rows.load(Ordering::Relaxed) > few);
        (0..10_000).for_each(|i| ghosts.add(hash(i)));
        ghosts.fit(10);
        assert_eq!(ghosts.rows.load(Ordering::Relaxed), few);
    }
}
