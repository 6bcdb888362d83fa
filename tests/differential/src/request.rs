//! Requests with two placeholders: the prefix of the sequence's keys, and CAS values.
//!
//! Keys start with a prefix of fixed length, so that a sequence can be replayed on fresh keys with the
//! same framing. A CAS value refers to the last one that this server gave for this key, because the two
//! servers count differently: memcached 1.6.45 also counts stores that fail, 1.6.18 counts flushes.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Length of the prefix: a multiple of three, so that base64 of a key is base64 of the prefix followed
/// by that of the rest.
pub const PREFIX_LEN: usize = 6;

/// The start of every key of one sequence.
pub type Prefix = [u8; PREFIX_LEN];

/// The CAS value for a key without a known one: no server counts that far in a run.
pub const CAS_UNKNOWN: u64 = 999_999_999_999;

/// Returns the prefix with this number, unique in a run.
pub fn prefix(number: u64) -> Prefix {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut prefix = [b'0'; PREFIX_LEN];
    let mut rest = number;
    for digit in prefix[1..].iter_mut().rev() {
        *digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
    }
    // A letter first, so that a key is never a number.
    prefix[0] = b'k' + (rest % 16) as u8;
    prefix
}

/// A key of a sequence, without the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its number within the sequence.
    pub id: u16,
    /// The bytes after the prefix.
    pub tail: Rc<[u8]>,
}

impl Key {
    /// Returns the length of the whole key.
    pub fn len(&self) -> usize {
        PREFIX_LEN + self.tail.len()
    }

    /// Returns false: a key has its prefix.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the whole key.
    pub fn bytes(&self, prefix: &Prefix) -> Vec<u8> {
        [&prefix[..], &self.tail].concat()
    }
}

/// The encoding of a CAS value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CasWire {
    /// Text and meta.
    Decimal,
    /// The header of a binary packet.
    BigEndian,
}

/// The last CAS value that the server gave for a key, changed by `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CasRef {
    /// The key's number within the sequence.
    pub key: u16,
    /// 0 for a match.
    pub offset: i64,
    /// The encoding.
    pub wire: CasWire,
}

impl CasRef {
    fn write(&self, last: Option<u64>, out: &mut Vec<u8>) {
        // At least 1: 0 means "no check" in a binary header.
        let value = last.unwrap_or(CAS_UNKNOWN).saturating_add_signed(self.offset).max(1);
        match self.wire {
            CasWire::Decimal => out.extend_from_slice(value.to_string().as_bytes()),
            CasWire::BigEndian => out.extend_from_slice(&value.to_be_bytes()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Bytes(Vec<u8>),
    Prefix,
    Prefix64,
    Cas(CasRef),
}

/// The bytes of one command with placeholders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    parts: Vec<Part>,
}

impl Request {
    /// Returns a request that starts with these bytes.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self::default().put(bytes)
    }

    /// Adds bytes.
    #[must_use]
    pub fn put(mut self, bytes: impl AsRef<[u8]>) -> Self {
        match self.parts.last_mut() {
            Some(Part::Bytes(last)) => last.extend_from_slice(bytes.as_ref()),
            _ => self.parts.push(Part::Bytes(bytes.as_ref().to_vec())),
        }
        self
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: &Key) -> Self {
        self.parts.push(Part::Prefix);
        self.put(&*key.tail)
    }

    /// Adds a key in base64.
    #[must_use]
    pub fn key64(mut self, key: &Key) -> Self {
        self.parts.push(Part::Prefix64);
        self.put(STANDARD.encode(&*key.tail))
    }

    /// Adds a CAS value.
    #[must_use]
    pub fn cas(mut self, cas: CasRef) -> Self {
        self.parts.push(Part::Cas(cas));
        self
    }

    /// Appends another request.
    #[must_use]
    pub fn append(mut self, other: &Request) -> Self {
        for part in &other.parts {
            match part {
                Part::Bytes(bytes) => self = self.put(bytes),
                hole => self.parts.push(hole.clone()),
            }
        }
        self
    }

    /// Returns the keys whose CAS values the request needs.
    pub fn cas_keys(&self) -> impl Iterator<Item = u16> + '_ {
        self.parts.iter().filter_map(|part| match part {
            Part::Cas(cas) => Some(cas.key),
            _ => None,
        })
    }

    /// Fills the placeholders.
    pub fn render(&self, prefix: &Prefix, last: impl Fn(u16) -> Option<u64>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Prefix => out.extend_from_slice(prefix),
                Part::Prefix64 => out.extend_from_slice(STANDARD.encode(prefix).as_bytes()),
                Part::Cas(cas) => cas.write(last(cas.key), out),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(request: &Request, last: Option<u64>) -> Vec<u8> {
        let mut out = Vec::new();
        request.render(&prefix(0), |_| last, &mut out);
        out
    }

    #[test]
    fn placeholders_are_filled() {
        let key = Key { id: 3, tail: Rc::from(&b"xyz"[..]) };
        let request = Request::of("cas ").key(&key).put(" 0 0 1 ").cas(CasRef {
            key: 3,
            offset: 2,
            wire: CasWire::Decimal,
        });
        assert_eq!(rendered(&request, Some(40)), b"cas k00000xyz 0 0 1 42");
        assert_eq!(request.cas_keys().collect::<Vec<_>>(), [3]);
        let binary = Request::default().cas(CasRef { key: 3, offset: -9, wire: CasWire::BigEndian });
        assert_eq!(rendered(&binary, Some(5)), 1u64.to_be_bytes());
    }

    #[test]
    fn base64_of_a_key_splits_after_the_prefix() {
        let key = Key { id: 0, tail: Rc::from(&b"ab"[..]) };
        let whole = STANDARD.encode(key.bytes(&prefix(77)));
        let mut out = Vec::new();
        Request::default().key64(&key).render(&prefix(77), |_| None, &mut out);
        assert_eq!(out, whole.as_bytes());
    }

    #[test]
    fn prefixes_differ() {
        let mut all: Vec<_> = (0..100_000).map(prefix).collect();
        all.dedup();
        assert_eq!(all.len(), 100_000);
        assert!(all.iter().all(|p| p.is_ascii() && p[0].is_ascii_lowercase()));
    }
}
