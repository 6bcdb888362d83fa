//! Errors, grouped by their cause.

use std::io;

use crate::answer::Answer;
use crate::bounds::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's: an invalid address.
    #[error("invalid server address {address:?}: {why}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The caller's: no server was named.
    #[error("no server is named; give at least one address")]
    NoServers,
    /// The caller's: a bucket of a server that was not named ([`crate::distribution::Placement::Buckets`]).
    #[error("a bucket is given to server {server} of {servers}, the first of which is 0")]
    Bucket {
        /// The server's number.
        server: u32,
        /// How many there are.
        servers: usize,
    },
    /// The caller's: a key that no server takes.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {0}")]
    Key(usize),
    /// The caller's: a value that no server takes.
    #[error("a value has at most {VALUE_BYTES_MAX} bytes, not {0}")]
    Value(usize),
    /// The caller's: a topic of statistics that a request cannot name.
    #[error("{0:?} is no topic of statistics: those are words of printable ASCII")]
    Topic(String),
    /// One server's.
    #[error("{server}: {failure}")]
    Server {
        /// Its address.
        server: String,
        /// What it came to.
        #[source]
        failure: Failure,
    },
    /// The caller's: a request object with which nothing was asked for.
    #[error("nothing was asked for with this request object since it was last waited for")]
    NothingAsked,
    /// All servers are down.
    #[error("no server is left: all have failed of late")]
    AllDown,
}

/// A server's failure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It cannot be reached.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// It refuses the connection as this client wants it: a password is wrong or missing, or no memory is shared where it must be.
    #[error("cannot connect: {0}")]
    Rejected(String),
    /// The connection broke, or no answer came in time. Whether a change was made is not known.
    #[error("no answer: {0}")]
    Broken(io::Error),
    /// It answered what the protocol does not know. Whether a change was made is not known.
    #[error("invalid answer: {0:?}")]
    Protocol(String),
    /// It has failed of late, and is not asked again until [`crate::Options::retry_after`] is over.
    #[error("it has failed of late and is not asked again yet")]
    Down,
    /// The caller's: a key that the text protocol, which is spoken with this server, cannot carry.
    #[error("its protocol is the text one, which takes no key with spaces or control characters")]
    Key,
    /// The server refused: its memory is full, the value is too large, the value is not a number, or as it says.
    #[error("it refuses: {0}")]
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

    /// The connection cannot be used any more.
    pub(crate) fn breaks(&self) -> bool {
        !matches!(self, Failure::Refused(_) | Failure::Rejected(_) | Failure::Key)
    }

    /// The server closed the connection.
    pub(crate) fn is_hang_up(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Failure::Broken(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe))
    }

    /// The same, for another operation that it ends.
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
