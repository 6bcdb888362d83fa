//! How the answer to a request is encoded.
//!
//! The decoder selects the encoding; [`Encoding::reply`] and its siblings turn the server's [`Reply`] into bytes, or
//! into none if the client requested silence.

use crate::reply::{Item, Reply};
use crate::{binary, meta, text};

/// The encoding of the answer to one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Encoding<'a> {
    /// Classic text.
    Text(TextEncoding<'a>),
    /// Meta text.
    Meta(MetaEncoding<'a>),
    /// Binary.
    Binary(BinaryEncoding<'a>),
}

impl Encoding<'_> {
    /// Appends what precedes the value of a hit; the server appends the `item.len` bytes of the value, and then
    /// [`Encoding::value_tail`].
    #[inline]
    pub fn value_head(&self, item: &Item, out: &mut Vec<u8>) {
        match self {
            Encoding::Text(encoding) => text::encode::value_head(encoding, item, out),
            Encoding::Meta(encoding) => meta::encode::value_head(encoding, item, out),
            Encoding::Binary(encoding) => binary::encode::value_head(encoding, item, out),
        }
    }

    /// Appends what follows the value of a hit.
    #[inline]
    pub fn value_tail(&self, out: &mut Vec<u8>) {
        match self {
            Encoding::Text(encoding) => encoding.value_tail(out),
            Encoding::Meta(_) => out.extend_from_slice(b"\r\n"),
            Encoding::Binary(_) => {}
        }
    }

    /// Appends the answer, or nothing if the client requested silence.
    pub fn reply(&self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        match self {
            Encoding::Text(encoding) => text::encode::reply(encoding, reply, out),
            Encoding::Meta(encoding) => meta::encode::reply(encoding, reply, out),
            Encoding::Binary(encoding) => binary::encode::reply(encoding, reply, out),
        }
    }
}

/// Classic text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextEncoding<'a> {
    /// Which kind of command.
    pub command: TextCommand,
    /// The key, for `VALUE` lines; else empty.
    pub key: &'a [u8],
    /// The client requested no answer; errors are hidden too, as in memcached.
    pub noreply: bool,
    /// `VALUE` lines carry the CAS value (`gets`, `gats`).
    pub cas: bool,
    /// `END` follows: the request is that of the last key of a line.
    pub is_last: bool,
}

/// Which kind of classic text command, where the words of an answer depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextCommand {
    /// `get`, `gets`, `gat`, `gats`
    Get,
    /// `set` and its like.
    Store,
    /// `incr`, `decr`
    Arithmetic,
    /// Any other.
    #[default]
    Other,
}

/// Which meta command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaCommand {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `mn`
    Noop,
    /// `me`
    Inspect,
}

/// Meta text: the flags as the client sent them, answered in their order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetaEncoding<'a> {
    /// Which command.
    pub command: MetaCommand,
    /// The key, decoded, for the `k` flag.
    pub key: &'a [u8],
    /// The words after the key (after the key and the length for `ms`), unparsed.
    pub flags: &'a [u8],
    /// `q`: the expected answer is not sent.
    pub quiet: bool,
    /// `v`: the answer carries a value.
    pub value: bool,
    /// `b`: the key is base64; the answer says so too.
    pub binary_key: bool,
    /// `ms`: the length on the line, which the `s` flag answers when nothing was stored.
    pub value_len: u64,
}

impl MetaEncoding<'_> {
    /// That of a command whose key and flags are not known.
    #[inline]
    pub(crate) const fn new(command: MetaCommand) -> Self {
        MetaEncoding {
            command,
            key: b"",
            flags: b"",
            quiet: false,
            value: false,
            binary_key: false,
            value_len: 0,
        }
    }
}

/// Binary protocol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BinaryEncoding<'a> {
    /// The opcode as the client sent it.
    pub opcode: u8,
    /// Sent back unchanged.
    pub opaque: u32,
    /// The key, for GetK and its variants; else empty.
    pub key: &'a [u8],
}

/// A [`Encoding`] that owns its bytes, for an answer that is written after the request has left the input buffer: that
/// of a streamed value. Meant to be kept and reused.
#[derive(Debug, Clone)]
pub struct SavedEncoding {
    /// The key, then the flags.
    bytes: Vec<u8>,
    key_len: usize,
    encoding: Encoding<'static>,
}

impl SavedEncoding {
    /// Holds nothing worth answering yet.
    pub fn new() -> SavedEncoding {
        SavedEncoding { bytes: Vec::new(), key_len: 0, encoding: Encoding::Text(TextEncoding::default()) }
    }

    /// Replaces the kept copy with `form`.
    pub fn save(&mut self, encoding: &Encoding<'_>) {
        let (key, flags) = match encoding {
            Encoding::Text(encoding) => (encoding.key, &b""[..]),
            Encoding::Meta(encoding) => (encoding.key, encoding.flags),
            Encoding::Binary(encoding) => (encoding.key, &b""[..]),
        };
        self.bytes.clear();
        self.bytes.reserve(key.len() + flags.len());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(flags);
        self.key_len = key.len();
        self.encoding = match *encoding {
            Encoding::Text(TextEncoding { command, noreply, cas, is_last, .. }) => {
                Encoding::Text(TextEncoding { command, key: b"", noreply, cas, is_last })
            }
            Encoding::Meta(MetaEncoding { command, quiet, value, binary_key, value_len, .. }) => {
                Encoding::Meta(MetaEncoding {
                    command,
                    key: b"",
                    flags: b"",
                    quiet,
                    value,
                    binary_key,
                    value_len,
                })
            }
            Encoding::Binary(BinaryEncoding { opcode, opaque, .. }) => {
                Encoding::Binary(BinaryEncoding { opcode, opaque, key: b"" })
            }
        };
    }

    /// The form that was saved.
    pub fn encoding(&self) -> Encoding<'_> {
        let (key, flags) = self.bytes.split_at(self.key_len);
        match self.encoding {
            Encoding::Text(encoding) => Encoding::Text(TextEncoding { key, ..encoding }),
            Encoding::Meta(encoding) => Encoding::Meta(MetaEncoding { key, flags, ..encoding }),
            Encoding::Binary(encoding) => Encoding::Binary(BinaryEncoding { key, ..encoding }),
        }
    }
}

impl Default for SavedEncoding {
    fn default() -> Self {
        SavedEncoding::new()
    }
}
