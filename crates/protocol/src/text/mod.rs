//! The classic text protocol: a line, for storage commands a data block, an answer of lines.
//!
//! What 1.6.45 and its predecessors answer differently is decided in `decode.rs`, where the command is.

pub(crate) mod decode;
pub(crate) mod encode;
