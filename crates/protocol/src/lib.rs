//! The memcached protocols, sans-IO: bytes to commands, replies to bytes.
//!
//! A [`Decoder`] turns the bytes of one connection into [`Request`]s: a [`Command`], the same type for every
//! protocol, and an [`Encoding`], which determines the format of the answer. The server executes the command and
//! passes a [`Reply`] to the encoding, which appends the answer to a buffer. Values are never copied: small ones
//! borrow from the input, large ones pass through in parts, and a hit is a head, the server's own value bytes, and a
//! tail.
//!
//! Nothing here does I/O, reads a clock or depends on the store, and nothing is allocated for a request except in the
//! caller's output buffer.
#![forbid(unsafe_code)]

pub mod binary;
pub mod bounds;
pub mod command;
pub mod decoder;
pub mod encoding;
pub mod fabric;
mod fabric_attach;
mod line;
mod meta;
pub mod number;
pub mod plain;
pub mod refusal;
pub mod reply;
mod text;
pub mod udp;

pub use command::{
    Accesses, Arithmetic, Command, Delete, Exptime, Get, Request, Store, StoreMode, Touch, Value, Words,
};
pub use decoder::{Decoded, Decoder, Limits, PipelinedKeys, Protocol};
pub use encoding::{
    BinaryEncoding, Encoding, MetaCommand, MetaEncoding, SavedEncoding, TextCommand, TextEncoding,
};
pub use fabric_attach::{FabricAttach, FabricMemory};
pub use plain::{PlainGet, PlainGets, PlainRun, PlainSet, PlainSets};
pub use refusal::Refusal;
pub use reply::{Item, Reply};
