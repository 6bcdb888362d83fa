//! Protocol errors, in memcached's words.

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
    /// A binary status code (see [`status`](crate::binary::status)), with its standard text.
    Status(u16),
}

pub(crate) const BAD_FORMAT: Refusal = Refusal::Client("bad command line format");
pub(crate) const BAD_DATA: Refusal = Refusal::Client("bad data chunk");
pub(crate) const BAD_EXPTIME: Refusal = Refusal::Client("invalid exptime argument");
