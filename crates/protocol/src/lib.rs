//! The memcached protocols, sans-IO: bytes to commands, replies to bytes.
#![forbid(unsafe_code)]

pub mod command;
pub mod decoder;
pub mod form;
pub mod refusal;
pub mod reply;

pub use command::{Arithmetic, Command, Delete, Exptime, Get, Request, Store, StoreMode, Touch, Value};
pub use decoder::{Decoded, Decoder, Limits, Protocol};
pub use form::{BinaryForm, Form, MetaCommand, MetaForm, TextForm};
pub use refusal::Refusal;
pub use reply::{Item, Reply};
