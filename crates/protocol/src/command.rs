//! The one command type that every protocol decodes to.
//!
//! A [`Request`] consists of a [`Command`] and the [`Encoding`] of its answer. Keys and inline values borrow from the
//! input buffer. Nothing here depends on a socket, a clock or the store.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr;

use crate::bounds::WORDS_MAX;
use crate::encoding::Encoding;
use crate::fabric_attach::FabricAttach;
use crate::refusal::Refusal;

/// A decoded request: what to do, and how to write the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// The command.
    pub command: Command<'a>,
    /// The encoding of the answer.
    pub encoding: Encoding<'a>,
}

/// Expiry time as the client gave it, in seconds: 0 is never, negative is at once, up to 30 days is relative to
/// now, anything above is Unix time (protocol.txt, "Expiration times").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exptime(pub i64);

/// A command.
#[derive(Debug, Clone, PartialEq)]
pub enum Command<'a> {
    /// Read one key. A text multiget is one `Get` a key.
    Get(Get<'a>),
    /// Write one key.
    Store(Store<'a>),
    /// Remove one key, or mark it stale.
    Delete(Delete<'a>),
    /// Add to or subtract from a decimal number.
    Arithmetic(Arithmetic<'a>),
    /// Change the expiry time, without reading the value.
    Touch(Touch<'a>),
    /// `me`: describe an item without counting as an access.
    Inspect(&'a [u8]),
    /// `flush_all`: forget everything, now or after a delay. Negative is now.
    Flush(Exptime),
    /// Answered at once: meta `mn`, binary Noop.
    Noop,
    /// The protocol version of the server.
    Version,
    /// `verbosity N`.
    Verbosity(u32),
    /// Close the connection. Binary Quit is answered first, text `quit` is not.
    Quit,
    /// `stats`: the words after it (none for plain `stats`).
    Stats(Words<'a>),
    /// `cache_memlimit`, in megabytes.
    CacheMemlimit(u64),
    /// `shutdown`, `shutdown graceful`, or an invalid mode.
    Shutdown {
        /// The words after `shutdown`, if any.
        mode: Option<&'a [u8]>,
    },
    /// `refresh_certs`.
    RefreshCerts,
    /// `lru_crawler …`: the words after it.
    LruCrawler(Words<'a>),
    /// `lru …`: the words after it.
    Lru(Words<'a>),
    /// `slabs …`: the words after it.
    Slabs(Words<'a>),
    /// `extstore …`: the words after it.
    Extstore(Words<'a>),
    /// `watch …`: the words after it.
    Watch(Words<'a>),
    /// `shm attach`: pass the region and a channel, in these versions of their formats.
    ShmAttach {
        /// Version of the channel's.
        channel: u64,
        /// Version of the region's; 0 for the channel alone.
        region: u64,
    },
    /// `shm accessed`: reads that the server did not see, by any transport. Not answered.
    ShmAccessed(Accesses<'a>),
    /// `fabric hello`: report the provider, for clients that support these versions.
    FabricHello {
        /// Version of the messages.
        channel: u64,
        /// Version of the region's format.
        region: u64,
    },
    /// `fabric attach`: attach over the fabric.
    FabricAttach(FabricAttach<'a>),
    /// Text authentication (a `set` before the connection is let in): answered by `Stored` or `AuthFailure`. The
    /// decoder stays shut until the server calls [`Decoder::require_auth`](crate::Decoder::require_auth) again.
    Authenticate {
        /// The bytes before the first space.
        user: &'a [u8],
        /// The bytes after it.
        password: &'a [u8],
    },
    /// SASL: list the mechanisms.
    SaslList,
    /// SASL: start with a mechanism and its first payload.
    SaslAuth {
        /// The mechanism, as the client named it.
        mechanism: &'a [u8],
        /// For PLAIN: authorisation identity, NUL, user, NUL, password.
        payload: &'a [u8],
    },
    /// SASL: continue.
    SaslStep {
        /// The mechanism, as the client named it.
        mechanism: &'a [u8],
        /// The mechanism's data.
        payload: &'a [u8],
    },
    /// A request that the protocol rejects; the server answers it and continues.
    Refused(Refusal),
}

/// Read one key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Get<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The client requests the value, not only metadata.
    pub value: bool,
    /// The CAS value of the value that the client has: the answer leaves it out while it is the item's (meta `C`).
    pub compare: Option<u64>,
    /// Set a new expiry time on a hit (`gat`, meta `T`, binary GAT).
    pub touch: Option<Exptime>,
    /// The answer contains the time to live before `touch` took effect (meta `t` precedes `T`).
    pub ttl_before_touch: bool,
    /// The time to live that the answer reports for an item just created: that of the last `T` or `N` before `t`.
    pub created_ttl: Option<Exptime>,
    /// On a miss create an empty item with this expiry time and tell the client that it won (meta `N`, or a later
    /// `T`).
    pub vivify: Option<Exptime>,
    /// Tell one client that it won when the item expires within this time (meta `R`). 0 and negative never win.
    pub recache: Option<Exptime>,
    /// `recache` uses the expiry time before `touch` (meta `R` precedes `T`).
    pub recache_before_touch: bool,
    /// The CAS value to give an item that is created (meta `E`); one that is only touched keeps its own.
    pub new_cas: Option<u64>,
    /// Not an access for the purposes of eviction and of `h`, `l` (meta `u`).
    pub no_bump: bool,
}

/// How a [`Store`] treats an existing item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Store in any case.
    #[default]
    Set,
    /// Only if the key is absent.
    Add,
    /// Only if the key is present.
    Replace,
    /// After the existing value.
    Append,
    /// Before the existing value.
    Prepend,
}

/// The data of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// The whole value, without its terminator, which was valid.
    Inline(&'a [u8]),
    /// The value follows as [`Decoded::Value`](crate::Decoded) parts.
    Streamed {
        /// Bytes, without the terminator.
        len: u64,
    },
}

impl Value<'_> {
    /// Returns the bytes of the value, without the terminator.
    pub fn len(&self) -> u64 {
        match self {
            Value::Inline(bytes) => bytes.len() as u64,
            Value::Streamed { len } => *len,
        }
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Value<'_> {
    fn default() -> Self {
        Value::Inline(b"")
    }
}

/// Write one key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Store<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// How an existing item is treated. With `compare` it is `Set`, `Append` or `Prepend`.
    pub mode: StoreMode,
    /// Opaque to the server. Ignored by append and prepend.
    pub flags: u32,
    /// Ignored by append and prepend, except for `vivify`.
    pub exptime: Exptime,
    /// The data.
    pub value: Value<'a>,
    /// Store only if the item's CAS value is this one; an absent key answers "not found" (append and prepend:
    /// "not stored", unless `vivify` creates it).
    pub compare: Option<u64>,
    /// The CAS value to give the new item (meta `E`).
    pub new_cas: Option<u64>,
    /// With `compare` and `Set`: a smaller CAS value than the item's stores anyway and marks the item stale
    /// (meta `I`).
    pub invalidate: bool,
    /// Append and prepend create an absent key with this expiry time (meta `N`).
    pub vivify: Option<Exptime>,
}

/// Remove one key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delete<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// Only if the item's CAS value is this one.
    pub compare: Option<u64>,
    /// The CAS value to give an item that stays (meta `E`).
    pub new_cas: Option<u64>,
    /// Do not remove: mark stale, and let the next reader win (meta `I`).
    pub stale: bool,
    /// With `stale` or `drop_value`: the new expiry time (meta `T`). Without it `stale` keeps the item's, and
    /// `drop_value` leaves an item that never expires.
    pub touch: Option<Exptime>,
    /// Keep the item, without its value (meta `x`).
    pub drop_value: bool,
    /// With `drop_value`: the client flags that remain (meta `F`, else 0).
    pub flags: u32,
}

/// Add to or subtract from a decimal number of up to 20 digits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arithmetic<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// Subtract, stopping at 0; else add, wrapping at 2^64.
    pub decrement: bool,
    /// The delta.
    pub delta: u64,
    /// Create an absent key with this value and expiry time.
    pub create: Option<(u64, Exptime)>,
    /// Set a new expiry time on an existing item (meta `T`).
    pub touch: Option<Exptime>,
    /// Like [`Get::ttl_before_touch`].
    pub ttl_before_touch: bool,
    /// Like [`Get::created_ttl`].
    pub created_ttl: Option<Exptime>,
    /// Only if the item's CAS value is this one.
    pub compare: Option<u64>,
    /// The CAS value to give the new item (meta `E`).
    pub new_cas: Option<u64>,
}

/// Change an expiry time.
#[derive(Debug, Clone, PartialEq)]
pub struct Touch<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The new expiry time.
    pub exptime: Exptime,
}

/// Reads reported by a client, which the server did not see: nine bytes a key, its hash in the region (8, little
/// endian) and the number of reads (1), in base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accesses<'a>(&'a [u8]);

impl<'a> Accesses<'a> {
    /// Characters of one word.
    const CHARACTERS: usize = 12;

    /// Parses the reads of one word, if its length is right.
    pub(crate) fn new(word: &'a [u8]) -> Option<Accesses<'a>> {
        (!word.is_empty() && word.len().is_multiple_of(Accesses::CHARACTERS)).then_some(Accesses(word))
    }

    /// Appends the line that reports these reads, hash and count of each, which fit a line.
    pub fn encode(reads: impl Iterator<Item = (u64, u8)>, line: &mut String) {
        line.push_str("shm accessed ");
        for (hash, count) in reads {
            let mut record = [count; 9];
            record[..8].copy_from_slice(&hash.to_le_bytes());
            // Nine bytes are twelve characters, so entries do not overlap.
            STANDARD.encode_string(record, line);
        }
        line.push_str("\r\n");
    }

    /// Hash and count of each, up to the first that is not base64.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u8)> {
        self.0.chunks(Accesses::CHARACTERS).map_while(|text| {
            let mut record = [0; 9];
            let len = STANDARD.decode_slice_unchecked(text, &mut record).ok()?;
            let (hash, reads) = record.split_first_chunk()?;
            (len == record.len()).then_some((u64::from_le_bytes(*hash), reads[0]))
        })
    }
}

/// The words of a line, without the spaces around them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// The words of `line`.
    pub fn new(line: &'a [u8]) -> Words<'a> {
        Words(line)
    }

    /// Returns the remaining words, unparsed.
    pub fn text(&self) -> &'a [u8] {
        // Spaces only: other white space is part of a word.
        let start = self.0.iter().position(|byte| *byte != b' ').unwrap_or(self.0.len());
        let end = self.0.iter().rposition(|byte| *byte != b' ').map_or(start, |at| at + 1);
        &self.0[start..end]
    }

    /// Remaining bytes of the line, including spaces.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no word remains.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.0.iter().all(|byte| *byte == b' ')
    }

    /// Returns at most as many words as may follow a command.
    pub(crate) fn bounded(self) -> Words<'a> {
        let mut rest = self.clone();
        rest.by_ref().take(WORDS_MAX - 1).for_each(drop);
        Words(&self.0[..self.0.len() - rest.0.len()])
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let word = &self.0[start..];
        let end = memchr(b' ', word).unwrap_or(word.len());
        self.0 = &word[end..];
        Some(&word[..end])
    }
}

impl std::fmt::Debug for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.clone().map(|word| word.escape_ascii().to_string())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_split_at_blanks() {
        let mut words = Words::new(b"  a  bc d ");
        assert_eq!(words.text(), b"a  bc d");
        assert_eq!(words.next(), Some(&b"a"[..]));
        assert_eq!(words.text(), b"bc d");
        assert_eq!(words.by_ref().count(), 2);
        assert_eq!(words.next(), None);
        assert_eq!(Words::new(b"   ").count(), 0);
        assert_eq!(Words::new(&b"w ".repeat(1000)).bounded().count(), WORDS_MAX - 1);
        assert_eq!(Words::new(b" w").bounded().count(), 1);
    }
}
