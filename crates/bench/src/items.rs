//! Keys and values determined by an item's number, so that every response can be checked.

use std::ops::Range;
use std::sync::LazyLock;

use anyhow::{Result, ensure};

use crate::random::Random;
use fabcache_testbed::random::mix;

/// The prefix of all keys, so that the keys of a cache in use are left alone.
const PREFIX: &[u8] = b"bench-";
/// The shortest key: the prefix and eight digits.
pub const KEY_BYTES_MIN: usize = PREFIX.len() + 8;
/// memcached's maximum.
pub const KEY_BYTES_MAX: usize = 250;
/// Length of the pool from which values are cut. Prime, so that lengths of powers of two yield different parts.
const POOL_BYTES: usize = 1_048_573;
/// Length of the item's number, which begins every value that is long enough.
const NUMBER_BYTES: usize = 8;

/// Generates keys and values.
#[derive(Debug)]
pub struct Items {
    key_bytes: usize,
    pool: &'static [u8],
}

/// The pool that all values are cut from.
static POOL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0);
    (0..POOL_BYTES.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).take(POOL_BYTES).collect()
});

/// The beginning of a value.
#[derive(Clone, Copy, Debug)]
pub struct ValueStart {
    bytes: [u8; NUMBER_BYTES],
    len: usize,
}

impl AsRef<[u8]> for ValueStart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Describes the comparison of responses.
pub fn compared(verify: bool) -> &'static str {
    if verify { "every byte of every value compared" } else { "length and number of every value compared" }
}

impl Items {
    /// Returns items with keys of `key_bytes`.
    ///
    /// # Errors
    /// The key length is invalid.
    pub fn new(key_bytes: usize) -> Result<Items> {
        ensure!(
            (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key_bytes),
            "a key of {key_bytes} bytes: give from {KEY_BYTES_MIN} to {KEY_BYTES_MAX}"
        );
        Ok(Items { key_bytes, pool: &POOL })
    }

    /// Returns the key length.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Writes the key with this number to `key`.
    #[inline]
    pub fn key(&self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(PREFIX);
        key.resize(self.key_bytes, b'0');
        let mut rest = number;
        for digit in key[PREFIX.len()..].iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }

    /// Writes the value of `len` bytes of an item to `value`.
    #[inline]
    pub fn value(&self, number: u64, len: usize, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&number.to_le_bytes()[..NUMBER_BYTES.min(len)]);
        let mut from = self.start(number);
        while value.len() < len {
            let piece = &self.pool[from..];
            value.extend_from_slice(&piece[..piece.len().min(len - value.len())]);
            from = 0;
        }
    }

    /// Returns the number of the item with this key; `None` for a foreign key.
    #[inline]
    pub fn number(key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(PREFIX).filter(|digits| !digits.is_empty())?;
        digits.iter().try_fold(0u64, |number, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            number.checked_mul(10)?.checked_add(u64::from(digit))
        })
    }

    /// Returns the parts of an item's value of `len` bytes: its beginning, then parts of the pool, which
    /// [`Items::piece`] returns.
    #[inline]
    pub fn pieces(
        &self,
        number: u64,
        len: usize,
    ) -> (ValueStart, impl Iterator<Item = Range<usize>> + use<>) {
        let begin = ValueStart { bytes: number.to_le_bytes(), len: NUMBER_BYTES.min(len) };
        let (mut from, mut left) = (self.start(number), len - begin.len);
        let parts = std::iter::from_fn(move || {
            let part = from..POOL_BYTES.min(from + left);
            left -= part.len();
            from = 0;
            (!part.is_empty()).then_some(part)
        });
        (begin, parts)
    }

    /// Returns a part of the pool.
    #[inline]
    pub fn piece(&self, part: Range<usize>) -> &[u8] {
        &self.pool[part]
    }

    /// Returns whether this is the value of `len` bytes of an item, comparing every byte.
    pub fn is_value(&self, number: u64, len: usize, found: &[u8]) -> bool {
        if !self.may_be_value(number, len, found) {
            return false;
        }
        let mut rest = &found[NUMBER_BYTES.min(len)..];
        let mut from = self.start(number);
        while !rest.is_empty() {
            let common = rest.len().min(POOL_BYTES - from);
            if rest[..common] != self.pool[from..from + common] {
                return false;
            }
            rest = &rest[common..];
            from = 0;
        }
        true
    }

    /// Returns whether length and number are those of this item's value: a fast check.
    #[inline]
    pub fn may_be_value(&self, number: u64, len: usize, found: &[u8]) -> bool {
        let reported = NUMBER_BYTES.min(len);
        found.len() == len && found[..reported] == number.to_le_bytes()[..reported]
    }

    /// Returns whether this is the value of `len` bytes of an item: by every byte if `verify`, else by the fast check.
    #[inline]
    pub fn is_right(&self, number: u64, len: usize, found: &[u8], verify: bool) -> bool {
        if verify { self.is_value(number, len, found) } else { self.may_be_value(number, len, found) }
    }

    /// Returns the position in the pool at which an item's value begins.
    fn start(&self, number: u64) -> usize {
        (mix(!number) % POOL_BYTES as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_detected() {
        let items = Items::new(20).expect("a length of keys");
        let (mut key, mut value) = (Vec::new(), Vec::new());
        items.key(4_711, &mut key);
        assert_eq!(key, b"bench-00000000004711");
        assert_eq!(Items::number(&key), Some(4_711));
        for other in [&b"bench-"[..], b"bench-1x", b"other-00000000004711", b"bench-99999999999999999999"] {
            assert_eq!(Items::number(other), None);
        }
        for len in [0, 1, 8, 9, 1_000, POOL_BYTES * 2 + 5] {
            items.value(77, len, &mut value);
            assert_eq!(value.len(), len);
            let (begin, parts) = items.pieces(77, len);
            let whole =
                parts.fold(begin.as_ref().to_vec(), |whole, part| [&whole, items.piece(part)].concat());
            assert!(whole == value, "{len}");
            assert!(items.is_value(77, len, &value) && !items.is_value(77, len + 1, &value));
            if len > 0 {
                assert!(!items.is_value(78, len, &value));
                let at = len - 1;
                value[at] ^= 1;
                assert!(!items.is_value(77, len, &value), "{len}");
            }
        }
        assert!(Items::new(4).is_err() && Items::new(251).is_err());
    }

    #[test]
    fn keys_have_their_length_and_differ() {
        for bytes in [KEY_BYTES_MIN, 20, KEY_BYTES_MAX] {
            let items = Items::new(bytes).expect("a length of keys");
            let (mut one, mut other) = (Vec::new(), Vec::new());
            items.key(99_999_999, &mut one);
            items.key(9_999_999, &mut other);
            assert!(one.len() == bytes && other.len() == bytes && one != other);
        }
    }
}
