//! Errors, grouped by their cause.

use std::io;

use fabcache_distribution::AddressError;

use crate::answer::Answer;
use crate::bounds::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's fault: an invalid address.
    #[error("invalid server address {address:?}: {why}")]
    Address {
        /// The given text.
        address: String,
        /// Why it is invalid.
        why: &'static str,
    },
    /// The caller's fault: no server was passed.
    #[error("no servers; pass at least one address")]
    NoServers,
    /// The caller's fault: a bucket names a missing server ([`crate::distribution::Placement::Buckets`]).
    #[error("a bucket names server {server}, but there are {servers}, numbered from 0")]
    Bucket {
        /// The server's number.
        server: u32,
        /// The number of servers.
        servers: usize,
    },
    /// The caller's fault: a key that no server accepts.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {0}")]
    Key(usize),
    /// The caller's fault: a value that no server accepts.
    #[error("a value has at most {VALUE_BYTES_MAX} bytes, not {0}")]
    Value(usize),
    /// The caller's fault: a statistics topic that a request cannot carry.
    #[error("invalid topic of statistics {0:?}: a topic consists of words of printable ASCII")]
    Topic(String),
    /// One server failed.
    #[error("{server}: {failure}")]
    Server {
        /// Its address.
        server: String,
        /// The failure.
        #[source]
        failure: Failure,
    },
    /// The caller's fault: no operation was started with the request object.
    #[error("no operation was started with this request object since its last result")]
    NothingAsked,
    /// All servers are down.
    #[error("all servers are down after recent failures")]
    AllDown,
}

impl From<AddressError> for Error {
    fn from(AddressError { address, why }: AddressError) -> Error {
        Error::Address { address, why }
    }
}

/// A server's failure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server cannot be reached.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The server rejects the connection as this client requires it: the password is wrong or missing, or memory is
    /// not shared although that is required.
    #[error("cannot connect: {0}")]
    Rejected(String),
    /// The connection broke, or no answer arrived in time. The change may or may not have been made.
    #[error("no answer: {0}")]
    Broken(io::Error),
    /// The server's answer violates the protocol. The change may or may not have been made.
    #[error("invalid answer: {0:?}")]
    Protocol(String),
    /// The server failed recently, and is not asked until [`crate::Options::retry_after`] has passed.
    #[error("the server is down after recent failures; it is retried later")]
    Down,
    /// The caller's fault: the text protocol of this server cannot carry the key.
    #[error("the text protocol cannot carry a key with spaces or control characters")]
    Key,
    /// The server refused: its memory is full, the value is too large or not a number, or another reason.
    #[error("refused: {0}")]
    Refused(String),
}

impl Failure {
    /// The failure for bytes that are not a valid answer.
    pub(crate) fn protocol(answer: &[u8]) -> Failure {
        Failure::Protocol(String::from_utf8_lossy(answer).into_owned())
    }

    /// The failure for an answer to another request.
    pub(crate) fn unexpected(answer: &Answer) -> Failure {
        Failure::protocol(format!("{answer:?}").as_bytes())
    }

    /// Returns whether the connection is unusable.
    pub(crate) fn breaks(&self) -> bool {
        !matches!(self, Failure::Refused(_) | Failure::Rejected(_) | Failure::Key)
    }

    /// The server closed the connection.
    pub(crate) fn is_hang_up(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Failure::Broken(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe))
    }

    /// Returns the same failure for another operation that it ends.
    pub(crate) fn copy(&self) -> Failure {
        let same = |error: &io::Error| match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        match self {
            Failure::Connect(error) => Failure::Connect(same(error)),
            Failure::Rejected(why) => Failure::Rejected(why.clone()),
            Failure::Broken(error) => Failure::Broken(same(error)),
            Failure::Protocol(said) => Failure::Protocol(said.clone()),
            Failure::Down => Failure::Down,
            Failure::Key => Failure::Key,
            Failure::Refused(why) => Failure::Refused(why.clone()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Broken(error)
    }
}

/// The reason that a connection does not change to shared memory or the fabric.
#[derive(Debug)]
pub(crate) enum AttachError {
    /// The server refuses, or this machine lacks the means. The socket can be used as before.
    Refused(String),
    /// The socket broke, or the answer is invalid.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for AttachError {
    fn from(failure: E) -> AttachError {
        AttachError::Failed(failure.into())
    }
}
