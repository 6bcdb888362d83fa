//! Errors of the fabric.

use crate::sys;

/// The usual reason why memory cannot be registered.
pub(crate) const MAY_BE_LIMIT: &str =
    ". The limit of locked memory may be too low (`ulimit -l`, LimitMEMLOCK= of systemd)";

/// An error of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No usable libfabric is installed.
    #[error("libfabric cannot be used: {0}; install version 1.17 or later (Debian: libfabric1)")]
    Library(String),
    /// No provider meets the requirements.
    #[error("no usable fabric {requirements}: {why}; `fabcache fabric` lists this machine's providers")]
    NoProvider {
        /// The requirements, such as `from provider x`.
        requirements: String,
        /// The available alternatives.
        why: String,
    },
    /// A call of libfabric failed.
    #[error("cannot {what} ({provider}): {text}")]
    Call {
        /// The attempted action, such as `open an endpoint`.
        what: &'static str,
        /// The provider.
        provider: String,
        /// libfabric's error number, positive.
        code: i32,
        /// libfabric's error text.
        text: String,
    },
    /// Memory cannot be registered.
    #[error("cannot register {bytes} bytes of memory ({provider}): {text}")]
    Register {
        /// The size of the memory.
        bytes: usize,
        /// The provider.
        provider: String,
        /// libfabric's error number, positive.
        code: i32,
        /// libfabric's error text.
        text: String,
    },
    /// The provider lacks a required feature.
    #[error("the provider {provider} {why}")]
    Unfit {
        /// The provider.
        provider: String,
        /// The missing feature.
        why: &'static str,
    },
    /// As many operations as the endpoint allows are in flight.
    #[error("too many operations are in flight")]
    Full,
    /// The peer is not connected, or was disconnected.
    #[error("the peer is not connected")]
    NoPeer,
    /// Too many bytes, or too long a name.
    #[error("{0}")]
    Size(&'static str),
    /// The system cannot provide memory or random numbers.
    #[error("{0}")]
    System(String),
}

impl Error {
    /// Returns whether memory could not be allocated or registered.
    pub fn is_memory(&self) -> bool {
        match self {
            Error::Register { .. } => true,
            Error::Call { code, .. } => *code == sys::FI_ENOMEM,
            _ => false,
        }
    }

    /// Returns whether the operation may succeed after polling for completions.
    pub fn is_again(&self) -> bool {
        match self {
            Error::Full => true,
            Error::Call { code, .. } => *code == sys::FI_EAGAIN,
            _ => false,
        }
    }
}
