//! Ghosts: fingerprints of items that were evicted from the small queue, so that an item that is requested again soon
//! after goes to the main queue when it is stored again.
//!
//! A table of rows, each a word of five fingerprints of 12 bits, the newest at the bottom: a new one displaces the
//! oldest. With hashes spread evenly over rows, items are forgotten in about the order in which they were evicted, as
//! in the ghost queue of S3-FIFO, at 1.6 bytes each. About one new item in a thousand is mistaken for a ghost, and
//! gets a better place than it should.
//!
//! Reclaim adds fingerprints under its lock; writers look them up and remove those found. A race at worst loses or
//! keeps a ghost.

use std::sync::OnceLock;

use fabcache_layout::KeyHash;
use fabcache_layout::sync::{AtomicU64, AtomicUsize, Ordering};

use crate::bounds::{GHOST_ROWS_PER_CHUNK, GHOSTS_PER_ITEM_DIVISOR, GHOSTS_PER_ITEM_NUMERATOR};

const FINGERPRINT_BITS: u32 = 12;
const FINGERPRINT_MASK: u64 = (1 << FINGERPRINT_BITS) - 1;
const GHOSTS_PER_ROW: u32 = u64::BITS / FINGERPRINT_BITS;
const ROW_MASK: u64 = (1 << (FINGERPRINT_BITS * GHOSTS_PER_ROW)) - 1;

/// Recently evicted items.
pub struct Ghosts {
    /// Allocated when the first ghost is added.
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Rows in use.
    rows: AtomicUsize,
}

impl std::fmt::Debug for Ghosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ghosts({} rows)", self.rows.load(Ordering::Relaxed))
    }
}

impl Ghosts {
    /// Returns an empty set, with room for the ghosts of a store with at most `items_max` items.
    pub fn new(items_max: u64) -> Ghosts {
        let rows_max = Ghosts::rows_for(items_max);
        Ghosts {
            chunks: (0..rows_max.div_ceil(GHOST_ROWS_PER_CHUNK)).map(|_| OnceLock::new()).collect(),
            rows: AtomicUsize::new(0),
        }
    }

    fn rows_for(items: u64) -> usize {
        let ghosts = items * GHOSTS_PER_ITEM_NUMERATOR / GHOSTS_PER_ITEM_DIVISOR;
        ghosts.div_ceil(u64::from(GHOSTS_PER_ROW)).max(1) as usize
    }

    /// Adapts the number of ghosts to that of items. A large change forgets the existing ones.
    pub fn fit(&self, items: u64) {
        let wanted = Ghosts::rows_for(items).min(self.chunks.len() * GHOST_ROWS_PER_CHUNK);
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
        word.store((older << FINGERPRINT_BITS | fingerprint) & ROW_MASK, Ordering::Relaxed);
    }

    /// Returns whether an item with this hash is a ghost.
    #[inline]
    pub fn contains(&self, hash: KeyHash) -> bool {
        self.find(hash).is_some()
    }

    /// The item with this hash was stored again.
    pub fn remove(&self, hash: KeyHash) {
        if let Some((word, seen, shift)) = self.find(hash) {
            let without = seen & !(FINGERPRINT_MASK << shift);
            let _ = word.compare_exchange(seen, without, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    #[inline]
    fn find(&self, hash: KeyHash) -> Option<(&AtomicU64, u64, u32)> {
        let (row, fingerprint) = self.place(hash)?;
        let word = &self.chunks[row / GHOST_ROWS_PER_CHUNK].get()?[row % GHOST_ROWS_PER_CHUNK];
        let seen = word.load(Ordering::Relaxed);
        let mut shifts = (0..GHOSTS_PER_ROW).map(|i| i * FINGERPRINT_BITS);
        shifts.find(|shift| seen >> shift & FINGERPRINT_MASK == fingerprint).map(|shift| (word, seen, shift))
    }

    /// Returns the row of a hash, and its fingerprint; `None` before the first eviction.
    #[inline]
    fn place(&self, hash: KeyHash) -> Option<(usize, u64)> {
        let rows = self.rows.load(Ordering::Relaxed);
        // Other bits than those that the index goes by, which are alike among neighbours.
        let mixed = hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let row = ((u128::from(mixed) * rows as u128) >> 64) as usize;
        (rows > 0).then_some((row, (mixed & FINGERPRINT_MASK).max(1)))
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
        let ghosts = Ghosts::new(1_000_000);
        assert!(!ghosts.contains(hash(1)), "nothing was evicted");
        ghosts.fit(100_000);
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
        let ghosts = Ghosts::new(100);
        ghosts.fit(100);
        (0..20).for_each(|i| ghosts.add(hash(i)));
        ghosts.remove(hash(7));
        assert!(!ghosts.contains(hash(7)));
        assert!((0..20).filter(|i| ghosts.contains(hash(*i))).count() >= 18);
    }

    #[test]
    fn ghost_count_follows_the_item_count() {
        let ghosts = Ghosts::new(1_000);
        ghosts.fit(10);
        let few = ghosts.rows.load(Ordering::Relaxed);
        ghosts.fit(1_000_000_000);
        assert!(ghosts.rows.load(Ordering::Relaxed) > few);
        (0..10_000).for_each(|i| ghosts.add(hash(i)));
        ghosts.fit(10);
        assert_eq!(ghosts.rows.load(Ordering::Relaxed), few);
    }
}
