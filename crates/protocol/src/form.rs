//! How a request wants to be answered.
//!
//! The form is decided by the decoder and carried beside the command; [`Form::reply`](crate::form::Form) and its
//! siblings in `reply.rs` turn the server's [`Reply`](crate::reply::Reply) into bytes.

/// How the answer to one request is written.
#[derive(Debug, Clone, PartialEq)]
pub enum Form<'a> {
    /// Classic text.
    Text(TextForm),
    /// Meta text.
    Meta(MetaForm<'a>),
    /// Binary.
    Binary(BinaryForm),
}

/// Classic text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextForm {
    /// The client asked for no answer; errors are hidden too, as memcached hides them.
    pub noreply: bool,
    /// `VALUE` lines carry the CAS value (`gets`, `gats`).
    pub cas: bool,
}

/// Which meta command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaCommand {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `mn`
    Noop,
    /// `me`
    Inspect,
}

/// Meta text: the flags as the client sent them, answered in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct MetaForm<'a> {
    /// Which command.
    pub command: MetaCommand,
    /// The key as it stood on the line (base64 text when `binary_key`), for the `k` flag.
    pub key: &'a [u8],
    /// The words after the key (after the key and the length for `ms`), unparsed.
    pub flags: &'a [u8],
    /// `q`: the expected answer is not sent.
    pub quiet: bool,
    /// `b`: the key is base64; the answer says so too.
    pub binary_key: bool,
}

/// Binary protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct BinaryForm {
    /// The opcode as the client sent it.
    pub opcode: u8,
    /// Sent back unchanged.
    pub opaque: u32,
}
