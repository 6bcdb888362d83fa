//! `fabcache_*`: the C functions over [`fabcache_client::Client`], declared in `include/fabcache.h`.
//!
//! The header is made from this folder by `cargo xtask header`, and what is documented here is documented there: for C
//! readers, in C's words.
//!
//! # Preconditions of every function
//!
//! The header says so to its callers, and each SAFETY comment here leans on it. An argument that points is NULL, or
//!
//! - points to what its type says (a handle: one from `fabcache_open` and the like that was not freed), or to as many
//!   bytes or elements as the argument beside it says;
//! - is valid and unchanged by others until the function returns; an output is not accessed by others meanwhile;
//! - a text ends with a NUL.
//!
//! NULL is looked for before anything else, and is an error where there must be something ([`Code::InvalidArgument`]).
//! Clients and options may be read by many threads at once; a request object or a buffer belongs to one thread at a time.
//!
//! Numbers that choose one of a few come as C's `int`, not as enumerations: C lets any number pass for one.
#![allow(clippy::missing_safety_doc, reason = "what is asked for is the same of all, and told above")]

mod buffer;
pub mod cache;
pub mod change;
pub mod code;
mod ffi;
pub mod options;
pub mod registered;
pub mod request;
pub mod retrieval;
pub mod servers;
pub mod storage;

pub use buffer::Buffer;
pub use cache::Cache;
pub use code::Code;
pub use options::Options;
pub use request::Request;
pub use retrieval::{FoundCallback, Item};
