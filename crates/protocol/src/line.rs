//! The result of decoding a line of text, classic or meta.

use crate::command::{Command, Exptime, Request, Store};
use crate::encoding::Encoding;
use crate::refusal::Refusal;

/// A decoded line.
pub(crate) enum Line<'a> {
    /// A complete request.
    Request(Request<'a>),
    /// A request followed by a data block of `len` bytes, for `store.value`.
    Store { store: Store<'a>, encoding: Encoding<'a>, len: u64 },
    /// The keys of a multiget start at `keys` on the line; there is at least one, and each is valid.
    Keys { keys: usize, multiget: Multiget },
    /// Like `Refused`, but a data block of `len` bytes follows and is discarded.
    Swallow { refusal: Refusal, encoding: Encoding<'a>, len: u64 },
    /// A `user password` block of `len` bytes follows.
    Token { len: u64 },
    /// Close the connection.
    Close,
}

impl Line<'_> {
    /// Returns whether it is no command.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Line::Request(Request { command: Command::Refused(Refusal::UnknownCommand), .. }))
    }
}

/// The properties shared by the keys of one multiget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Multiget {
    pub cas: bool,
    pub touch: Option<Exptime>,
}
