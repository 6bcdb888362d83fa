//! Keys and values that say which they are, all through.

use fabcache_layout::item::KEY_BYTES_MAX;

/// What starts a value: key, version, flushes answered before it was stored, bytes in all.
const STAMP_BYTES: usize = 32;

/// The key with this number.
pub fn key(number: usize) -> Vec<u8> {
    let key = format!("key-{number:06}-{}", "p".repeat(number % 40)).into_bytes();
    debug_assert!(key.len() <= KEY_BYTES_MAX);
    key
}

/// A value of at least [`STAMP_BYTES`].
pub fn value(key: usize, version: u64, flushes: u64, len: usize) -> Vec<u8> {
    let len = len.max(STAMP_BYTES);
    let mut value = Vec::with_capacity(len + 8);
    for word in [key as u64, version, flushes, len as u64] {
        value.extend(word.to_le_bytes());
    }
    let mut x = Random::new(key as u64 ^ version << 32);
    while value.len() < len {
        value.extend(x.next().to_le_bytes());
    }
    value.truncate(len);
    value
}

/// Version and flushes of the key's value.
///
/// # Panics
/// It is not one, or not as it was stored.
pub fn check(number: usize, found: &[u8]) -> (u64, u64) {
    let word = |i: usize| u64::from_le_bytes(found[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    assert!(found.len() >= STAMP_BYTES, "key {number}: a value of {} bytes", found.len());
    let (version, flushes) = (word(1), word(2));
    assert!(found == value(number, version, flushes, found.len()), "key {number}: a torn or foreign value");
    (version, flushes)
}

/// Cheap random numbers (xorshift).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Others for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    /// Once in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
