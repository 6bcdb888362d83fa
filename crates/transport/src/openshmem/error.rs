//! Violations of a link's rules.

use fabcache_fabric::channel::{ProtocolError, token_of};
use fabcache_shmem::slots::SlotError;

use super::plan::TOKEN;

/// Why a link is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A slot's flag.
    #[error("{0}")]
    Slot(#[from] SlotError),
    /// A message.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// A message that begins otherwise than all.
    #[error("a message of {0} bytes came that does not begin with the link's token")]
    Token(usize),
    /// A message to a closed link.
    #[error("a message of {0} bytes came before the link was opened or after it had ended")]
    Closed(usize),
    /// An empty message.
    #[error("an empty message came, which opens or ends a link, while this link did neither")]
    Empty,
    /// OpenSHMEM did not read what was staged.
    #[error("{0} bytes that the other end has staged could not be read")]
    Unread(usize),
    /// This end gave the link up.
    #[error("the link was given up")]
    GivenUp,
}

/// Checks that a message, which is not empty, is one of the link. The ends would drop others without a limit.
pub fn check_token(message: &[u8]) -> Result<(), LinkError> {
    if token_of(message) == Some(TOKEN) { Ok(()) } else { Err(LinkError::Token(message.len())) }
}
