//! Values of objects: the object determines every byte, so that hits can be checked.

use super::Object;
use crate::random::Random;
use fabcache_testbed::random::mix;

/// Length of the pool from which values are cut: values of different objects rarely begin at the same place.
const POOL_BYTES: usize = 4 << 20;
/// The longest value.
pub const VALUE_BYTES_MAX: u32 = 1 << 20;
/// Length of the object's number, with which a value begins if it is long enough.
const NUMBER_BYTES: usize = 4;

/// Generates keys and values.
#[derive(Debug)]
pub struct Content {
    pool: Vec<u8>,
}

impl Default for Content {
    fn default() -> Content {
        let mut random = Random::new(0);
        let pool = (0..POOL_BYTES / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
        Content { pool }
    }
}

impl Content {
    /// Writes the key of an object to `key`: letters and digits that include its number.
    pub fn key(&self, number: u32, object: &Object, key: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        key.clear();
        key.extend((0..8).rev().map(|i| DIGITS[(number >> (4 * i)) as usize & 15]));
        let mut filling = mix(number.into());
        while key.len() < usize::from(object.key_bytes) {
            key.push(DIGITS[filling as usize & 15]);
            filling = filling.rotate_right(4);
        }
    }

    /// Writes the value of an object to `value`.
    pub fn value(&self, number: u32, object: &Object, value: &mut Vec<u8>) {
        let len = object.value_bytes as usize;
        value.clear();
        value.extend_from_slice(&number.to_le_bytes()[..NUMBER_BYTES.min(len)]);
        value.extend_from_slice(self.rest(number, len));
    }

    /// Returns whether these parts form the value of an object.
    pub fn is_value<'v>(&self, number: u32, object: &Object, parts: impl Iterator<Item = &'v [u8]>) -> bool {
        let len = object.value_bytes as usize;
        let number_bytes = &number.to_le_bytes()[..NUMBER_BYTES.min(len)];
        let mut wanted = [number_bytes, self.rest(number, len)];
        for mut part in parts {
            for piece in &mut wanted {
                let common = part.len().min(piece.len());
                if part[..common] != piece[..common] {
                    return false;
                }
                part = &part[common..];
                *piece = &piece[common..];
            }
            if !part.is_empty() {
                return false;
            }
        }
        wanted.iter().all(|piece| piece.is_empty())
    }

    fn rest(&self, number: u32, len: usize) -> &[u8] {
        let len = len.saturating_sub(NUMBER_BYTES);
        let places = POOL_BYTES - VALUE_BYTES_MAX as usize;
        let from = mix(!u64::from(number)) as usize % places;
        &self.pool[from..from + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_detected() {
        let content = Content::default();
        let object = |value_bytes| Object { key_bytes: 21, value_bytes, ttl_s: 0 };
        let (mut key, mut value) = (Vec::new(), Vec::new());
        content.key(0xab, &object(9), &mut key);
        assert!(key.starts_with(b"000000ab") && key.len() == 21 && key.is_ascii());
        for len in [0, 1, 4, 5, 1000] {
            content.value(77, &object(len), &mut value);
            assert_eq!(value.len(), len as usize);
            let halves = || [&value[..value.len() / 2], &value[value.len() / 2..]].into_iter();
            assert!(content.is_value(77, &object(len), halves()));
            assert!(!content.is_value(77, &object(len + 1), halves()));
            if len > 0 {
                assert!(!content.is_value(77, &object(len - 1), halves()));
                assert!(!content.is_value(78, &object(len), halves()));
                let mut torn = value.clone();
                torn[len as usize - 1] ^= 1;
                assert!(!content.is_value(77, &object(len), [&torn[..]].into_iter()));
            }
        }
    }
}
