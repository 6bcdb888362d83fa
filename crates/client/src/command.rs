//! A request about one key.

/// A request about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// A valid key.
    pub key: &'a [u8],
    /// The operation.
    pub action: Action,
}

/// An operation on a key. Times are as in the protocols: 0 means never, and beyond thirty days they are Unix times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the item.
    Get {
        /// Also set the expiration.
        touch: Option<u64>,
    },
    /// Store a value, which is sent after the request.
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
        /// Subtract instead.
        decrement: bool,
        /// The delta.
        delta: u64,
        /// The number to store when the key is absent.
        initial: Option<Initial>,
    },
    /// Test whether the key is stored.
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

/// How a value is stored in relation to the existing item ([`crate::Client::store`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Replace the item, if any.
    Set,
    /// Store if the key is absent.
    Add,
    /// Store if the key exists.
    Replace,
    /// Append to the value.
    Append,
    /// Prepend to the value.
    Prepend,
    /// Replace the item if it still has this [`crate::Item::cas`].
    Compare(u64),
}
