//! Keys and values that identify themselves throughout.

use fabcache_layout::item::KEY_BYTES_MAX;
use fabcache_testbed::random::SplitMix64;

/// The start of a value: key, version, flushes acknowledged before it was stored, total bytes.
const STAMP_BYTES: usize = 32;

/// Returns the key with this number.
pub fn key(number: usize) -> Vec<u8> {
    let key = format!("key-{number:06}-{}", "p".repeat(number % 40)).into_bytes();
    debug_assert!(key.len() <= KEY_BYTES_MAX);
    key
}

/// Builds a value of at least [`STAMP_BYTES`].
pub fn value(key: usize, version: u64, flushes: u64, len: usize) -> Vec<u8> {
    let len = len.max(STAMP_BYTES);
    let mut value = Vec::with_capacity(len + 8);
    for word in [key as u64, version, flushes, len as u64] {
        value.extend(word.to_le_bytes());
    }
    let mut x = SplitMix64::new(key as u64 ^ version << 32);
    while value.len() < len {
        value.extend(x.next_u64().to_le_bytes());
    }
    value.truncate(len);
    value
}

/// Returns the version and flush count of the key's value.
///
/// # Panics
/// The value is torn, or of another key.
pub fn check(number: usize, found: &[u8]) -> (u64, u64) {
    let word = |i: usize| u64::from_le_bytes(found[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    assert!(found.len() >= STAMP_BYTES, "key {number}: a value of {} bytes", found.len());
    let (version, flushes) = (word(1), word(2));
    assert!(found == value(number, version, flushes, found.len()), "key {number}: a torn or foreign value");
    (version, flushes)
}
