//! One request of a recorded trace.

use anyhow::{Context, Result, ensure};

/// Maximum length of a key.
pub const KEY_BYTES_MAX: u32 = 250;
/// Maximum length of a value: the largest that memcached can be configured for.
pub const VALUE_BYTES_MAX: u32 = 1 << 30;
/// Bytes of a record of libCacheSim's `oracleGeneral` format.
pub const ORACLE_BYTES: usize = 24;
/// Maximum length of a line: the longest key with room for all numbers, and more.
pub const LINE_BYTES_MAX: usize = 4_096;
/// Key length for 24-byte records, which have no keys: that of a volume's block number in text.
pub const ORACLE_KEY_BYTES: u8 = 24;
/// Columns of a line after the key.
const COLUMNS_BEHIND_KEY: usize = 5;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in seconds.
    pub second: u64,
    /// Identifies the object: a number, or a hash of the key.
    pub object: u64,
    /// Bytes of the key.
    pub key_bytes: u8,
    /// Bytes of the value. May be 0 if nothing is stored and no value was found.
    pub value_bytes: u32,
    /// The operation.
    pub operation: Operation,
    /// The time to live in seconds; 0 for unlimited, or if nothing is stored.
    pub ttl_s: u32,
}

/// An operation of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are memcached's commands")]
pub enum Operation {
    Get,
    Gets,
    Set,
    Add,
    Replace,
    Cas,
    Append,
    Prepend,
    Delete,
    Incr,
    Decr,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 11] = [
        Operation::Get,
        Operation::Gets,
        Operation::Set,
        Operation::Add,
        Operation::Replace,
        Operation::Cas,
        Operation::Append,
        Operation::Prepend,
        Operation::Delete,
        Operation::Incr,
        Operation::Decr,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Gets => "gets",
            Operation::Set => "set",
            Operation::Add => "add",
            Operation::Replace => "replace",
            Operation::Cas => "cas",
            Operation::Append => "append",
            Operation::Prepend => "prepend",
            Operation::Delete => "delete",
            Operation::Incr => "incr",
            Operation::Decr => "decr",
        }
    }

    /// Returns whether the operation reads a value.
    pub fn reads(self) -> bool {
        matches!(self, Operation::Get | Operation::Gets)
    }

    /// Returns whether the operation stores a value with a time to live.
    pub fn stores_whole(self) -> bool {
        matches!(self, Operation::Set | Operation::Add | Operation::Replace | Operation::Cas)
    }
}

impl Record {
    /// Parses a record of the `oracleGeneral` format, little endian: seconds (u32), object (u64), bytes
    /// (u32), and the index of the object's next access (i64), which is ignored.
    ///
    /// # Errors
    /// The value is too long for any server.
    pub fn of_oracle(bytes: &[u8; ORACLE_BYTES]) -> Result<Record> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let value_bytes = word(12);
        ensure!(value_bytes <= VALUE_BYTES_MAX, "an object of {value_bytes} bytes");
        Ok(Record {
            second: word(0).into(),
            object: u64::from(word(4)) | u64::from(word(8)) << 32,
            key_bytes: ORACLE_KEY_BYTES,
            value_bytes,
            operation: Operation::Get,
            ttl_s: 0,
        })
    }

    /// Parses a line of Twitter's traces, without its end: timestamp (s), anonymised key, bytes of the key, bytes of
    /// the value, client, operation, time to live (s). A key may have commas.
    ///
    /// # Errors
    /// A column is invalid: the error says which and why.
    pub fn of_line(line: &[u8]) -> Result<Record> {
        let line = str::from_utf8(line).context("not UTF-8")?;
        let columns = "a line has seven columns, separated by commas";
        let (second, rest) = line.split_once(',').context(columns)?;
        let mut behind: Vec<&str> = rest.rsplitn(COLUMNS_BEHIND_KEY + 1, ',').collect();
        ensure!(behind.len() == COLUMNS_BEHIND_KEY + 1, "{columns}");
        let (key, behind) = (behind.pop().unwrap_or_default(), behind);
        let [ttl, operation, _client, value_bytes, key_bytes] = behind[..] else { anyhow::bail!(columns) };
        let number = |name: &str, text: &str, max: u64| {
            let number = text.parse::<u64>().ok().filter(|number| *number <= max);
            number.with_context(|| format!("the {name} is {text:?}, not a number up to {max}"))
        };
        let key_bytes = number("key's size", key_bytes, KEY_BYTES_MAX.into())?;
        ensure!(key_bytes > 0 && !key.is_empty(), "the key is empty");
        let named = Operation::ALL.into_iter().find(|known| known.name() == operation);
        Ok(Record {
            second: number("timestamp", second, u64::MAX / 2)?,
            object: hash(key.as_bytes()),
            key_bytes: key_bytes as u8,
            value_bytes: number("value's size", value_bytes, VALUE_BYTES_MAX.into())? as u32,
            operation: named.with_context(|| format!("unknown operation {operation:?}"))?,
            ttl_s: number("TTL", ttl, u32::MAX.into())? as u32,
        })
    }
}

/// Hashes a key. For a thousand million keys the probability of a collision is one in forty.
fn hash(key: &[u8]) -> u64 {
    use std::hash::Hasher;
    // The same in each run.
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_read() {
        let record = Record::of_line(b"17,nz:u:eeW511W3,16,301,25,gets,0").expect("a line");
        assert_eq!((record.second, record.key_bytes, record.value_bytes), (17, 16, 301));
        assert_eq!((record.operation, record.ttl_s), (Operation::Gets, 0));
        let same = Record::of_line(b"18,nz:u:eeW511W3,16,5,1,set,86400").expect("a line");
        assert_eq!((same.object, same.operation, same.ttl_s), (record.object, Operation::Set, 86_400));
        let with_commas = Record::of_line(b"18,a,b,,c,16,5,1,delete,0").expect("a line");
        assert_ne!(with_commas.object, record.object);
        for (line, culprit) in [
            (&b""[..], "seven columns"),
            (b"1,k,1,1,1,get", "seven columns"),
            (b"x,k,1,1,1,get,0", "timestamp is \"x\""),
            (b"1,,1,1,1,get,0", "key is empty"),
            (b"1,k,0,1,1,get,0", "key is empty"),
            (b"1,k,251,1,1,get,0", "key's size is \"251\", not a number up to 250"),
            (b"1,k,1,-1,1,get,0", "value's size is \"-1\""),
            (b"1,k,1,1073741825,1,get,0", "value's size"),
            (b"1,k,1,1,1,GET,0", "unknown operation \"GET\""),
            (b"1,k,1,1,1,get,4294967296", "TTL"),
            (b"1,\xff,1,1,1,get,0", "not UTF-8"),
        ] {
            let error = format!("{:#}", Record::of_line(line).expect_err("it is malformed"));
            assert!(error.contains(culprit), "{}: {error}", String::from_utf8_lossy(line));
        }
    }

    proptest! {
        #[test]
        fn records_round_trip(
            second in 0..u64::MAX / 2,
            key in "[^\\n\\r]{1,60}",
            key_bytes in 1..=KEY_BYTES_MAX,
            value_bytes in 0..=VALUE_BYTES_MAX,
            client in 0u32..,
            operation in prop::sample::select(Operation::ALL.to_vec()),
            ttl_s in 0u32..,
            object in 0u64..,
            next in 0i64..,
        ) {
            let line = format!("{second},{key},{key_bytes},{value_bytes},{client},{},{ttl_s}", operation.name());
            let read = Record::of_line(line.as_bytes()).expect("a line");
            let key_bytes = key_bytes as u8;
            let hashed = hash(key.as_bytes());
            prop_assert_eq!(read, Record { second, object: hashed, key_bytes, value_bytes, operation, ttl_s });
            let second = second as u32;
            let words = [&second.to_le_bytes()[..], &object.to_le_bytes(), &value_bytes.to_le_bytes(), &next.to_le_bytes()];
            let read = Record::of_oracle(words.concat().as_slice().try_into().expect("24 bytes")).expect("a record");
            prop_assert_eq!((read.second, read.object, read.value_bytes), (second.into(), object, value_bytes));
        }

        #[test]
        fn any_line_is_parsed_or_rejected(line in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Record::of_line(&line);
        }
    }
}
