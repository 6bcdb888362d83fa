//! Sets of keys that were seen lately, as fingerprints.
//!
//! A table of rows, each a word of five fingerprints of 12 bits, the newest at the bottom: a new one displaces the
//! oldest. With hashes spread evenly over rows, keys are forgotten in about the order in which they were added, at
//! 1.6 bytes each. About one other key in a thousand is mistaken for one of the set.
//!
//! Any thread may add, look up and remove. A race at worst loses or keeps a key.

use std::sync::OnceLock;

use fabcache_layout::KeyHash;
use fabcache_layout::sync::{AtomicU64, AtomicUsize, Ordering};

use crate::bounds::RECENT_KEY_ROWS_PER_CHUNK;

const FINGERPRINT_BITS: u32 = 12;
const FINGERPRINT_MASK: u64 = (1 << FINGERPRINT_BITS) - 1;
const KEYS_PER_ROW: u32 = u64::BITS / FINGERPRINT_BITS;
const ROW_MASK: u64 = (1 << (FINGERPRINT_BITS * KEYS_PER_ROW)) - 1;

/// Keys that were added lately.
pub struct RecentKeys {
    /// Allocated when the first key is added.
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Rows in use.
    rows: AtomicUsize,
}

impl std::fmt::Debug for RecentKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecentKeys({} rows)", self.rows.load(Ordering::Relaxed))
    }
}

impl RecentKeys {
    /// Returns an empty set, of at most `keys_max` keys.
    pub fn new(keys_max: u64) -> RecentKeys {
        let rows_max = RecentKeys::rows_for(keys_max);
        RecentKeys {
            chunks: (0..rows_max.div_ceil(RECENT_KEY_ROWS_PER_CHUNK)).map(|_| OnceLock::new()).collect(),
            rows: AtomicUsize::new(0),
        }
    }

    fn rows_for(keys: u64) -> usize {
        keys.div_ceil(u64::from(KEYS_PER_ROW)).max(1) as usize
    }

    /// Sets how many keys the set has, about. A large change forgets the existing ones.
    pub fn fit(&self, keys: u64) {
        let wanted = RecentKeys::rows_for(keys).min(self.chunks.len() * RECENT_KEY_ROWS_PER_CHUNK);
        let rows = self.rows.load(Ordering::Relaxed);
        if wanted > rows + rows / 4 || wanted < rows / 2 {
            self.rows.store(wanted, Ordering::Relaxed);
        }
    }

    /// Adds a key.
    pub fn add(&self, hash: KeyHash) {
        let Some((row, fingerprint)) = self.place(hash) else { return };
        let chunk = self.chunks[row / RECENT_KEY_ROWS_PER_CHUNK]
            .get_or_init(|| (0..RECENT_KEY_ROWS_PER_CHUNK).map(|_| AtomicU64::new(0)).collect());
        let word = &chunk[row % RECENT_KEY_ROWS_PER_CHUNK];
        let older = word.load(Ordering::Relaxed);
        word.store((older << FINGERPRINT_BITS | fingerprint) & ROW_MASK, Ordering::Relaxed);
    }

    /// Returns whether the set has the key.
    #[inline]
    pub fn contains(&self, hash: KeyHash) -> bool {
        self.find(hash).is_some()
    }

    /// Removes a key.
    pub fn remove(&self, hash: KeyHash) {
        if let Some((word, seen, shift)) = self.find(hash) {
            let without = seen & !(FINGERPRINT_MASK << shift);
            let _ = word.compare_exchange(seen, without, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    #[inline]
    fn find(&self, hash: KeyHash) -> Option<(&AtomicU64, u64, u32)> {
        let (row, fingerprint) = self.place(hash)?;
        let word = &self.chunks[row / RECENT_KEY_ROWS_PER_CHUNK].get()?[row % RECENT_KEY_ROWS_PER_CHUNK];
        let seen = word.load(Ordering::Relaxed);
        let mut shifts = (0..KEYS_PER_ROW).map(|i| i * FINGERPRINT_BITS);
        shifts.find(|shift| seen >> shift & FINGERPRINT_MASK == fingerprint).map(|shift| (word, seen, shift))
    }

    /// Returns the row of a hash, and its fingerprint; `None` before the first [`RecentKeys::fit`].
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
    fn latest_keys_replace_the_oldest() {
        let keys = RecentKeys::new(1_000_000);
        assert!(!keys.contains(hash(1)), "nothing was added");
        keys.fit(100_000);
        (0..500_000).for_each(|i| keys.add(hash(i)));
        let found = |range: std::ops::Range<u64>| {
            let len = range.end - range.start;
            range.filter(|i| keys.contains(hash(*i))).count() as f64 / len as f64
        };
        assert!(found(480_000..500_000) > 0.97);
        assert!(found(0..300_000) < 0.02);
        assert!(found(1_000_000..1_300_000) < 0.005, "strangers");
    }

    #[test]
    fn removed_key_is_not_found() {
        let keys = RecentKeys::new(100);
        keys.fit(100);
        (0..20).for_each(|i| keys.add(hash(i)));
        keys.remove(hash(7));
        assert!(!keys.contains(hash(7)));
        assert!((0..20).filter(|i| keys.contains(hash(*i))).count() >= 18);
    }

    #[test]
    fn number_of_rows_follows_the_number_of_keys() {
        let keys = RecentKeys::new(1_000);
        keys.fit(10);
        let few = keys.rows.load(Ordering::Relaxed);
        keys.fit(1_000_000_000);
        assert!(keys.rows.load(Ordering::Relaxed) > few);
        (0..10_000).for_each(|i| keys.add(hash(i)));
        keys.fit(10);
        assert_eq!(keys.rows.load(Ordering::Relaxed), few);
    }
}
