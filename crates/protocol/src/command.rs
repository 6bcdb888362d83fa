//! The one command type that every protocol decodes to.
//!
//! A [`Request`] is what a client asked ([`Command`]) and how it wants to be answered ([`Form`]). Keys and
//! inline values borrow from the input buffer. Nothing here knows a socket, a clock or the store.

use crate::form::Form;
use crate::refusal::Refusal;

/// A decoded request: what to do, and how to write the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// What to do.
    pub command: Command<'a>,
    /// How the answer is written.
    pub form: Form<'a>,
}

/// Expiry time as the client gave it, in seconds: 0 is never, negative is at once, up to 30 days is relative to
/// now, anything above is Unix time (protocol.txt, "Expiration times").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exptime(pub i64);

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command<'a> {
    /// Read one key. A text multiget is one `Get` a key, then [`Command::EndOfKeys`].
    Get(Get<'a>),
    /// The end of a text `get`, `gets`, `gat` or `gats`: answered by `END`.
    EndOfKeys,
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
    /// `flush_all`: forget everything, now or after a delay.
    Flush(Exptime),
    /// Answered at once: meta `mn`, binary Noop.
    Noop,
    /// The protocol version of the server.
    Version,
    /// `verbosity N`.
    Verbosity(u32),
    /// Close the connection. Binary Quit is answered first, text `quit` is not.
    Quit,
    /// `stats`, with the words after it joined by single spaces (empty for plain `stats`).
    Stats(Vec<&'a [u8]>),
    /// `cache_memlimit`, in megabytes.
    CacheMemlimit(u64),
    /// `shutdown` or `shutdown graceful`; any other word after it is in `mode`.
    Shutdown {
        /// The word after `shutdown`, if any.
        mode: Option<&'a [u8]>,
    },
    /// `refresh_certs`.
    RefreshCerts,
    /// `lru_crawler …`: the words after it.
    LruCrawler(Vec<&'a [u8]>),
    /// `lru …`: the words after it.
    Lru(Vec<&'a [u8]>),
    /// `slabs …`: the words after it.
    Slabs(Vec<&'a [u8]>),
    /// `extstore …`: the words after it.
    Extstore(Vec<&'a [u8]>),
    /// `watch …`: the words after it.
    Watch(Vec<&'a [u8]>),
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
    /// A request that the protocol refuses; the server answers it and goes on.
    Refused(Refusal),
}

/// Read one key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Get<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// The client wants the value, not only metadata.
    pub value: bool,
    /// Set a new expiry time (`gat`, meta `T`, binary GAT).
    pub touch: Option<Exptime>,
    /// On a miss create an empty item with this expiry time and tell the client that it won (meta `N`).
    pub vivify: Option<Exptime>,
    /// Tell one client that it won when less than so many seconds remain (meta `R`).
    pub recache: Option<i32>,
    /// The CAS value to give an item that is created or touched (meta `E`).
    pub new_cas: Option<u64>,
    /// Not an access for the purposes of eviction and of `h`, `l` (reserved to meta flags that ask for it).
    pub no_bump: bool,
}

/// How a [`Store`] treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Store whatever is there.
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
    /// All of it, without its terminator, which was there and right.
    Inline(&'a [u8]),
    /// It follows as [`Decoded::Value`](crate::Decoded) parts.
    Streamed {
        /// Bytes, without the terminator.
        len: u64,
    },
}

impl Value<'_> {
    /// Bytes of the value, without the terminator.
    pub fn len(&self) -> u64 {
        match self {
            Value::Inline(bytes) => bytes.len() as u64,
            Value::Streamed { len } => *len,
        }
    }

    /// No bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Write one key.
#[derive(Debug, Clone, PartialEq)]
pub struct Store<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// How what is there is treated.
    pub mode: StoreMode,
    /// Opaque to the server. Ignored by append and prepend.
    pub flags: u32,
    /// Ignored by append and prepend, but for `vivify`.
    pub exptime: Exptime,
    /// The data.
    pub value: Value<'a>,
    /// Store only if the item's CAS value is this one; an absent key answers "not found".
    pub compare: Option<u64>,
    /// The CAS value to give the new item (meta `E`).
    pub new_cas: Option<u64>,
    /// With `compare`: an older CAS value stores anyway and marks the item stale (meta `I`).
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
    /// Do not remove: mark stale (meta `I`).
    pub stale: bool,
    /// With `stale` or `drop_value`: the new expiry time (meta `T`).
    pub touch: Option<Exptime>,
    /// Keep the item, without its value and flags (meta `x`).
    pub drop_value: bool,
}

/// Add to or subtract from a decimal number of up to 20 digits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arithmetic<'a> {
    /// 1 to 250 bytes.
    pub key: &'a [u8],
    /// Subtract, stopping at 0; else add, wrapping at 2^64.
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// Create an absent key with this value and expiry time.
    pub create: Option<(u64, Exptime)>,
    /// Set a new expiry time (meta `T`).
    pub touch: Option<Exptime>,
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
