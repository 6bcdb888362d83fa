//! The memcached protocols, sans-IO: bytes to commands, replies to bytes.
//!
//! A [`Decoder`] turns the bytes of one connection into [`Request`]s: a [`Command`], the same type for every
//! protocol, and a [`Encoding`], which says how this client wants its answer. The server runs the command and hands a
//! [`Reply`] to the form, which appends the answer to a buffer. Values are never copied: small ones borrow from the
//! input, large ones pass through in parts, and a hit is a head, the server's own value bytes, and a tail.
//!
//! Nothing here does I/O, reads a clock or knows the store, and nothing allocates for a request but the caller's
//! output buffer.
#![forbid(unsafe_code)]

pub mod binary;
pub mod bounds;
pub mod command;
pub mod decoder;
pub mod encoding;
pub mod fabric;
mod fabric_attach;
mod meta;
pub mod number;
pub mod refusal;
pub mod reply;
mod text;
pub mod udp;

pub use command::{
    Arithmetic, Command, Delete, Exptime, Get, Request, Store, StoreMode, Touch, Value, Words,
};
pub use decoder::{Decoded, Decoder, Limits, PipelinedKeys, Protocol};
pub use encoding::{
    BinaryEncoding, Encoding, MetaCommand, MetaEncoding, SavedEncoding, TextCommand, TextEncoding,
};
pub use fabric_attach::{FabricAttach, FabricMemory};
pub use refusal::Refusal;
pub use reply::{Item, Reply};
