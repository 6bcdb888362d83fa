//! Errors of the wire: what a client did wrong, in the words that memcached uses.

/// Why a request was refused before it reached the store. The texts are those of memcached 1.6.45.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `ERROR`: no such command.
    UnknownCommand,
    /// `CLIENT_ERROR <text>`
    Client(&'static str),
    /// `SERVER_ERROR <text>`
    Server(&'static str),
    /// `ERROR <text>`
    Error(&'static str),
    /// A binary status code (see `binary/`), with its standard text.
    Status(u16),
}
