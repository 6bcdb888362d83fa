//! The dummy's metadata of items: the length of each value.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::items::Items;

/// Lengths of items with consecutive numbers.
type Chunk = OnceLock<Box<[AtomicU32]>>;

const CHUNK_ITEMS: u64 = 1 << 16;
/// Items with greater numbers, and foreign keys, are in a table with a lock.
const DENSE_ITEMS: u64 = 1 << 26;
/// First number of foreign keys.
const FOREIGN: u64 = 1 << 63;

/// Lengths of values, by the number of the item.
#[derive(Debug)]
pub struct Lengths {
    dense: Box<[Chunk]>,
    others: Mutex<HashMap<u64, u32>>,
}

impl Lengths {
    /// Returns an empty table.
    pub fn new() -> Lengths {
        let chunks = (0..DENSE_ITEMS / CHUNK_ITEMS).map(|_| Chunk::new());
        Lengths { dense: chunks.collect(), others: Mutex::default() }
    }

    /// Returns the number of the item with this key: that of [`Items`], or a foreign key's own.
    #[inline]
    pub fn number(key: &[u8]) -> u64 {
        Items::number(key).unwrap_or_else(|| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hasher.finish() | FOREIGN
        })
    }

    /// Returns the length of an item's value, if it was stored.
    #[inline]
    pub fn get(&self, number: u64) -> Option<u32> {
        // Entries hold the length plus one: zero is an absent item.
        let kept = if number < DENSE_ITEMS {
            let chunk = self.dense[(number / CHUNK_ITEMS) as usize].get()?;
            chunk[(number % CHUNK_ITEMS) as usize].load(Ordering::Relaxed)
        } else {
            self.others().get(&number).copied().unwrap_or(0)
        };
        kept.checked_sub(1)
    }

    /// Sets the length of an item's value, or removes the item.
    #[inline]
    pub fn put(&self, number: u64, len: Option<u32>) {
        let kept = len.map_or(0, |len| len.saturating_add(1));
        if number < DENSE_ITEMS {
            let chunk = &self.dense[(number / CHUNK_ITEMS) as usize];
            let chunk = chunk.get_or_init(|| (0..CHUNK_ITEMS).map(|_| AtomicU32::new(0)).collect());
            chunk[(number % CHUNK_ITEMS) as usize].store(kept, Ordering::Relaxed);
        } else if kept == 0 {
            self.others().remove(&number);
        } else {
            self.others().insert(number, kept);
        }
    }

    /// Removes all items.
    pub fn clear(&self) {
        let chunks = self.dense.iter().filter_map(Chunk::get);
        chunks.flat_map(|chunk| chunk.iter()).for_each(|len| len.store(0, Ordering::Relaxed));
        self.others().clear();
    }

    fn others(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.others.lock().expect("no thread panics while it holds the table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_remembered() {
        let lengths = Lengths::new();
        let foreign = Lengths::number(b"a key of another program");
        assert!(foreign >= FOREIGN);
        for number in [0, 1, CHUNK_ITEMS, DENSE_ITEMS - 1, DENSE_ITEMS, foreign] {
            assert_eq!(lengths.get(number), None);
            lengths.put(number, Some(0));
            assert_eq!(lengths.get(number), Some(0));
            lengths.put(number, Some(4096));
            assert_eq!(lengths.get(number), Some(4096));
            lengths.put(number, None);
            assert_eq!(lengths.get(number), None);
            lengths.put(number, Some(1));
        }
        lengths.clear();
        assert_eq!((lengths.get(0), lengths.get(foreign)), (None, None));
    }
}
