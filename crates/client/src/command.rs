//! A request about one key.

/// A request about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// The key, which a server takes.
    pub key: &'a [u8],
    /// The operation.
    pub action: Action,
}

/// An operation on a key. Times are as in the protocols: 0 means never, and beyond thirty days they are Unix times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the item.
    Get {
        /// From now on it expires then.
        touch: Option<u64>,
    },
    /// Store a value, which is sent behind the request.
    Store {
        /// What happens to the stored item.
        mode: Mode,
        /// Bytes of the value.
        len: usize,
        /// When it expires.
        exptime: u64,
        /// Client flags.
        flags: u32,
    },
    /// Set the item's expiration.
    Touch(u64),
    /// Delete the item.
    Delete,
    /// Add to a number, or subtract from it.
    Arithmetic {
        /// Subtract.
        decrement: bool,
        /// How much.
        delta: u64,
        /// The number to store when the key is absent.
        initial: Option<Initial>,
    },
    /// See whether anything is stored.
    Look,
}

/// A number to store when the key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    /// The number.
    pub number: u64,
    /// When it expires.
    pub exptime: u64,
}

/// How a value is stored in relation to the item that is there ([`crate::Client::store`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It takes its place.
    Set,
    /// It is stored if nothing is there.
    Add,
    /// It is stored if something is there.
    Replace,
    /// Append to the value.
    Append,
    /// It goes before it.
    Prepend,
    /// It takes its place if that still has this [`crate::Item::cas`].
    Compare(u64),
}
