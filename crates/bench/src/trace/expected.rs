//! The contents that a server should have during a replay, and checks of its responses.
//!
//! Every store of a key has another value, determined by the object and the number of its stores, so
//! that an old value is recognized. Values of up to 19 bytes are decimal numbers, so that they can be
//! incremented and decremented. Keys differ between runs. The memory per object is a few bytes,
//! independent of its values.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use crate::items::{Items, KEY_BYTES_MIN};
use fabcache_testbed::random::mix;

/// The characters of keys.
const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
/// Length of the shortest key: an object's number in such digits.
const NUMBER_DIGITS: u32 = u64::BITS.div_ceil(6);
/// Maximum number of decimal digits of a counter.
const COUNTED_BYTES_MAX: usize = 19;

/// The known state of an object.
#[derive(Clone, Copy, Debug)]
pub struct KnownObject {
    content: Content,
    key_bytes: u8,
    /// Number of stores.
    version: u32,
    /// Bytes of its value, as last given by the trace.
    pub value_bytes: u32,
    /// Its time to live, as last given by the trace.
    pub ttl_s: u32,
}

/// The expected value, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// No item.
    Nothing,
    /// A value of this many bytes.
    Value(u32),
    /// A number changed by `incr` or `decr`.
    Number(u64),
    /// A value of this many bytes, changed by `append` or `prepend`.
    Joined(u64),
    /// Unknown: a server refused to change it.
    Unknown,
}

/// The expectations for all objects.
#[derive(Debug)]
pub struct Expected {
    known: HashMap<u64, KnownObject>,
    items: Items,
    salt: u64,
    /// Whether every byte is compared.
    verify: bool,
}

impl Expected {
    /// Returns expectations without any item. Runs with different `salt` have different keys.
    ///
    /// # Errors
    /// The CPU lacks a known source of random numbers.
    pub fn new(salt: u64, verify: bool) -> Result<Expected> {
        Ok(Expected { known: HashMap::new(), items: Items::new(KEY_BYTES_MIN)?, salt: mix(salt), verify })
    }

    /// Returns the number of objects.
    pub fn objects(&self) -> usize {
        self.known.len()
    }

    /// Returns the state of an object. A key keeps its first length.
    pub fn object(&mut self, object: u64, key_bytes: u8) -> &mut KnownObject {
        let nothing =
            KnownObject { content: Content::Nothing, key_bytes, version: 0, value_bytes: 0, ttl_s: 0 };
        self.known.entry(object).or_insert(nothing)
    }

    fn get(&self, object: u64) -> Option<&KnownObject> {
        self.known.get(&object)
    }

    /// Writes the key of a known object to `key`.
    pub fn key(&self, object: u64, key: &mut Vec<u8>) {
        let len = self.get(object).map_or(0, |known| known.key_bytes);
        let number = mix(object ^ self.salt);
        let digit = |bits: u64| ALPHABET[(bits & 63) as usize];
        key.clear();
        key.extend((0..NUMBER_DIGITS).map(|i| digit(number >> (6 * i))));
        let mut filling = mix(number);
        while key.len() < usize::from(len) {
            key.push(digit(filling));
            filling = filling.rotate_right(6);
        }
    }

    /// Writes the next value of an object, of `len` bytes, to `value`.
    pub fn next_value(&self, object: u64, len: u32, value: &mut Vec<u8>) {
        let version = self.get(object).map_or(0, |known| known.version) + 1;
        self.value(self.number(object, version), len, value);
    }

    /// Records that the value made last is or will be stored; returns its version.
    pub fn stored(&mut self, object: u64, len: u32) -> u32 {
        let known = self.object(object, 0);
        known.version += 1;
        known.content = Content::Value(len);
        known.version
    }

    /// Records that a server refused this version: the former value may remain.
    pub fn refused(&mut self, object: u64, version: Option<u32>) {
        let known = self.object(object, 0);
        if version.is_none_or(|version| version == known.version) {
            known.content = Content::Unknown;
        }
    }

    /// Records a deletion.
    pub fn deleted(&mut self, object: u64) {
        self.object(object, 0).content = Content::Nothing;
    }

    /// Records an `append` or `prepend` of `len` bytes.
    pub fn joined(&mut self, object: u64, len: u32) {
        let known = self.object(object, 0);
        known.content = match known.content {
            Content::Value(before) => Content::Joined(u64::from(before) + u64::from(len)),
            Content::Joined(before) => Content::Joined(before + u64::from(len)),
            // A number that became shorter may have kept its length.
            Content::Number(_) | Content::Nothing | Content::Unknown => Content::Unknown,
        };
    }

    /// Checks that an item may exist, because a server found one to change.
    ///
    /// # Errors
    /// Nothing was stored.
    pub fn was_there(&self, object: u64) -> Result<()> {
        let is_nothing = self.get(object).is_none_or(|known| known.content == Content::Nothing);
        ensure!(!is_nothing, "the server has something under it, and nothing was stored or it was deleted");
        Ok(())
    }

    /// Records an `incr` or `decr` by one that returned `now`.
    ///
    /// # Errors
    /// The number is not the expected one.
    pub fn counted(&mut self, object: u64, up: bool, now: u64) -> Result<()> {
        self.was_there(object)?;
        let before = match self.get(object).map(|known| known.content) {
            Some(Content::Number(before)) => Some(before),
            Some(Content::Value(len)) => {
                let mut value = Vec::new();
                self.value(self.last_number(object), len, &mut value);
                decimal(&value)
            }
            _ => None,
        };
        let then = before.map(|before| if up { before.wrapping_add(1) } else { before.saturating_sub(1) });
        ensure!(then.is_none_or(|then| then == now), "it was {before:?}, and was counted to {now}");
        self.object(object, 0).content = Content::Number(now);
        Ok(())
    }

    /// Checks a value found; returns whether every byte was compared.
    ///
    /// # Errors
    /// The value is wrong; the error says why.
    pub fn check(&self, object: u64, found: &[u8]) -> Result<bool> {
        self.was_there(object)?;
        let content = self.get(object).map_or(Content::Nothing, |known| known.content);
        match content {
            Content::Nothing | Content::Unknown => Ok(false),
            Content::Number(number) => {
                ensure!(decimal(found) == Some(number), "a wrong number: not {number}");
                Ok(true)
            }
            Content::Joined(len) => {
                ensure!(found.len() as u64 == len, "a wrong value: {} bytes, not {len}", found.len());
                Ok(false)
            }
            Content::Value(len) => {
                ensure!(found.len() == len as usize, "a wrong value: {} bytes, not {len}", found.len());
                let number = self.last_number(object);
                let is_short = found.len() <= COUNTED_BYTES_MAX;
                let is_right = if is_short {
                    let mut value = Vec::new();
                    self.value(number, len, &mut value);
                    value == found
                } else {
                    self.items.is_right(number, len as usize, found, self.verify)
                };
                ensure!(is_right, "a wrong value, of the right length");
                Ok(is_short || self.verify)
            }
        }
    }

    fn last_number(&self, object: u64) -> u64 {
        self.number(object, self.get(object).map_or(0, |known| known.version))
    }

    fn number(&self, object: u64, version: u32) -> u64 {
        mix(object ^ mix(self.salt ^ u64::from(version)))
    }

    fn value(&self, number: u64, len: u32, value: &mut Vec<u8>) {
        let len = len as usize;
        if len > COUNTED_BYTES_MAX {
            return self.items.value(number, len, value);
        }
        value.clear();
        let mut rest = number;
        // The first digit is not zero: counting would remove it.
        value.extend((0..len).map(|i| {
            let digits = if i == 0 { 9 } else { 10 };
            let digit = rest % digits + 10 - digits;
            rest /= digits;
            b'0' + digit as u8
        }));
    }
}

/// Parses a decimal number. Servers pad one that became shorter with spaces.
fn decimal(value: &[u8]) -> Option<u64> {
    str::from_utf8(value).ok()?.trim_end_matches(' ').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        let mut expected = Expected::new(7, true).expect("keys");
        expected.object(1, 30);
        expected.object(2, 3);
        expected
    }

    fn store(expected: &mut Expected, object: u64, len: u32) -> Vec<u8> {
        let mut value = Vec::new();
        expected.next_value(object, len, &mut value);
        expected.stored(object, len);
        assert_eq!(value.len(), len as usize);
        value
    }

    #[test]
    fn keys_keep_their_length_and_differ_between_runs() {
        let (mut key, mut other) = (Vec::new(), Vec::new());
        expected().key(1, &mut key);
        assert_eq!(key.len(), 30);
        expected().key(2, &mut other);
        assert_eq!(other.len(), 11);
        let mut again = Expected::new(8, true).expect("keys");
        again.object(1, 30);
        again.key(1, &mut other);
        assert_ne!(key, other);
    }

    #[test]
    fn old_and_foreign_values_are_noticed() {
        let mut expected = expected();
        assert!(expected.check(1, b"").is_err(), "nothing was stored");
        for len in [0, 1, 19, 20, 5_000] {
            let value = store(&mut expected, 1, len);
            assert!(expected.check(1, &value).expect("the value"));
            assert!(expected.check(1, &[&value[..], b"x"].concat()).is_err());
            let other = store(&mut expected, 2, len);
            if len > 1 {
                assert!(expected.check(1, &other).is_err(), "another object's, {len} bytes");
                store(&mut expected, 1, len);
                assert!(expected.check(1, &value).is_err(), "an old one, {len} bytes");
            }
        }
        expected.deleted(1);
        assert!(expected.check(1, b"").is_err(), "it was deleted");
        assert!(expected.was_there(1).is_err() && expected.was_there(2).is_ok());
    }

    #[test]
    fn counting_and_joining_are_followed() {
        let mut expected = expected();
        let value = store(&mut expected, 1, 4);
        let number = decimal(&value).expect("short values are numbers");
        assert!((1_000..10_000).contains(&number));
        assert!(expected.counted(1, true, number).is_err(), "it did not grow");
        expected.counted(1, true, number + 1).expect("one more");
        expected.counted(1, false, number).expect("one less");
        assert!(expected.check(1, format!("{number} ").as_bytes()).expect("a space is left"));
        assert!(expected.check(1, b"x").is_err());

        store(&mut expected, 2, 100);
        expected.joined(2, 50);
        expected.joined(2, 1);
        assert!(!expected.check(2, &[0; 151]).expect("as long as both"));
        assert!(expected.check(2, &[0; 150]).is_err());
    }

    #[test]
    fn refused_changes_leave_the_value_unknown() {
        let mut expected = expected();
        store(&mut expected, 1, 100);
        let refused = store(&mut expected, 1, 100);
        expected.refused(1, Some(2));
        assert!(!expected.check(1, b"anything").expect("it is not known"));
        let last = store(&mut expected, 1, 100);
        expected.refused(1, Some(2));
        assert!(expected.check(1, &last).is_ok() && expected.check(1, &refused).is_err());
    }
}
