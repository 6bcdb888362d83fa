//! Items, and the results of calls.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::answer::Answer;
use crate::bounds::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::command::{Action, Mode};
use crate::error::{Error, Failure};

/// The transport to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over TCP.
    Tcp,
    /// Over TCP, because the fabric is not available ([`crate::Fabric::or_tcp`]).
    InsteadOfFabric {
        /// The reason, as the server or libfabric gives it.
        why: String,
    },
    /// Over the fabric.
    Fabric {
        /// The provider's name.
        provider: String,
        /// Whether reads bypass the server's CPU.
        one_sided: bool,
    },
    /// Over a Unix socket.
    Unix {
        /// The server's reason for not sharing its memory, if that was requested.
        why: Option<String>,
    },
    /// Items are read from the server's memory, and requests go through a channel in memory.
    SharedMemory,
    /// All requests, reads too, go through a channel in memory: the server cannot let clients read its memory.
    Channel {
        /// The server's reason.
        why: String,
    },
}

/// The time to live of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl(When);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// A number of seconds.
    In(u32),
    /// A protocol number.
    Exactly(u64),
}

/// Protocol times up to this are relative to now, later ones are Unix times.
const THIRTY_DAYS: u32 = 30 * 24 * 3600;

impl Ttl {
    /// The item does not expire.
    pub const NEVER: Ttl = Ttl(When::Exactly(0));

    /// The item expires at once.
    pub const EXPIRED: Ttl = Ttl(When::Exactly(THIRTY_DAYS as u64 + 1));

    /// A lifetime in seconds; 0 means that the item never expires.
    pub fn seconds(seconds: u32) -> Ttl {
        Ttl(When::In(seconds.max(1)))
    }

    /// A number as in memcached's protocols: 0 never expires, a negative one expires at once, up to thirty days are
    /// seconds from now, and above that it is a Unix time.
    pub fn exact(exptime: i64) -> Ttl {
        u64::try_from(exptime).map_or(Ttl::EXPIRED, |exptime| Ttl(When::Exactly(exptime)))
    }

    /// Returns the number for the protocol: above thirty days it is a Unix time.
    pub(crate) fn exptime(self) -> u64 {
        match self.0 {
            When::Exactly(exptime) => exptime,
            When::In(seconds) if seconds <= THIRTY_DAYS => seconds.into(),
            When::In(seconds) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                now.as_secs() + u64::from(seconds)
            }
        }
    }
}

/// A stored item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub value: Vec<u8>,
    /// The flags that it was stored with, for the client's own use.
    pub flags: u32,
    /// The version of the item, for [`crate::Client::cas`].
    pub cas: u64,
}

/// A found item, borrowed for a callback.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The value. It may be taken; otherwise its memory is reused for the next one.
    pub value: &'a mut Vec<u8>,
    /// Like [`Item::flags`].
    pub flags: u32,
    /// Like [`Item::cas`].
    pub cas: u64,
}

/// The result of a read from memory that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastGet {
    /// A value was found.
    Found {
        /// Like [`Item::flags`].
        flags: u32,
        /// Like [`Item::cas`].
        cas: u64,
    },
    /// The key is absent.
    NotFound,
    /// Unknown: call [`crate::Client::get`], which may wait.
    Unknown,
}

/// The result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value is stored.
    Stored,
    /// The key exists, or does not, contrary to the condition of the call.
    NotStored,
    /// The item was changed since ([`crate::Client::cas`]).
    Exists,
    /// The key is absent ([`crate::Client::cas`]).
    NotFound,
}

/// The result of a multiget.
#[derive(Debug, Default)]
pub struct MultigetOutcome {
    /// The item of each key, in their order; `None` for an absent key or a failed server.
    pub items: Vec<Option<Item>>,
    /// The servers that failed.
    pub failed: Vec<Error>,
}

/// The result of a non-blocking operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value is stored.
    Stored,
    /// A value was found.
    Found {
        /// The flags that it was stored with, for the client's own use.
        flags: u32,
        /// The version of the item, for [`crate::Client::cas`].
        cas: u64,
    },
    /// The key is not stored.
    NotFound,
}

/// Returns the action that stores a value of `len` bytes.
pub(crate) fn storing(mode: Mode, len: usize, ttl: Ttl, flags: u32) -> Result<Action, Error> {
    if len > VALUE_BYTES_MAX {
        return Err(Error::Value(len));
    }
    let (ttl, flags) = match mode {
        // Some protocols carry them anyway, and a server may count them.
        Mode::Append | Mode::Prepend => (Ttl::NEVER, 0),
        _ => (ttl, flags),
    };
    Ok(Action::Store { mode, len, exptime: ttl.exptime(), flags })
}

/// Translates the answer to a store.
pub(crate) fn stored(answer: Answer) -> Result<Stored, Failure> {
    match answer {
        Answer::Done(_) => Ok(Stored::Stored),
        Answer::NotStored => Ok(Stored::NotStored),
        Answer::Exists => Ok(Stored::Exists),
        Answer::NotFound => Ok(Stored::NotFound),
        other => Err(Failure::unexpected(&other)),
    }
}

/// Returns the key if its length is valid.
pub(crate) fn checked(key: &[u8]) -> Result<&[u8], Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX { Err(Error::Key(key.len())) } else { Ok(key) }
}
