//! What can go wrong with the fabric.

use crate::sys;

/// Why memory is often refused.
pub(crate) const MAY_BE_LIMIT: &str =
    ". The limit of locked memory may be too low (`ulimit -l`, LimitMEMLOCK= of systemd)";

/// Why something on the fabric cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no libfabric that can be used.
    #[error("libfabric cannot be used: {0}. Debian's package is libfabric1; versions from 1.17 on will do")]
    Library(String),
    /// No provider is what was wished for.
    #[error("no fabric {requirements}: {why}. `fabcache fabric` tells what this machine has")]
    NoProvider {
        /// What was wished for, as `from provider x`.
        requirements: String,
        /// The available alternatives.
        why: String,
    },
    /// A call of libfabric failed.
    #[error("cannot {what} ({provider}): {text}")]
    Call {
        /// What was to be done, as `open an endpoint`.
        what: &'static str,
        /// By which provider.
        provider: String,
        /// libfabric's number, positive.
        code: i32,
        /// libfabric's text.
        text: String,
    },
    /// Memory cannot be registered.
    #[error("cannot register {bytes} bytes of memory ({provider}): {text}")]
    Register {
        /// How much.
        bytes: usize,
        /// By which provider.
        provider: String,
        /// libfabric's number, positive.
        code: i32,
        /// libfabric's text.
        text: String,
    },
    /// The provider lacks something without which it is of no use here.
    #[error("the provider {provider} {why}")]
    Unfit {
        /// Which.
        provider: String,
        /// What it lacks.
        why: &'static str,
    },
    /// As many operations as the port allows are under way.
    #[error("as many operations as allowed are under way")]
    Full,
    /// The peer is not connected, or was disconnected.
    #[error("there is no such peer any more")]
    NoPeer,
    /// More bytes, or a longer name, than can be.
    #[error("{0}")]
    Size(&'static str),
    /// The system has no memory or no randomness to give.
    #[error("{0}")]
    System(String),
}

impl Error {
    /// Memory was refused, to this process or to the provider in it.
    pub fn is_memory(&self) -> bool {
        match self {
            Error::Register { .. } => true,
            Error::Call { code, .. } => *code == sys::FI_ENOMEM,
            _ => false,
        }
    }

    /// The same may succeed once completions were polled for.
    pub fn is_again(&self) -> bool {
        match self {
            Error::Full => true,
            Error::Call { code, .. } => *code == sys::FI_EAGAIN,
            _ => false,
        }
    }
}
