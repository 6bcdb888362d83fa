//! `fabcache_*`: the C functions over [`fabcache_client::Client`], declared in `include/fabcache.h`.
//!
//! `cargo xtask header` generates the header from this folder, doc comments included; they address C programmers.
//!
//! # Preconditions of every function
//!
//! The header states them for callers, and the one conversion of arguments (`ffi.rs`) relies on them. A pointer is NULL, or
//!
//! - points to what its type says (a handle: one from `fabcache_open` and the like that was not freed), or to as many
//!   bytes or elements as the argument beside it says;
//! - is valid and unchanged by others until the function returns; an output is not accessed by others meanwhile;
//! - a text ends with a NUL.
//!
//! A function checks for NULL first, and returns [`Code::InvalidArgument`] where it is not allowed.
//! Clients and options may be read by many threads at once; a request object or a buffer belongs to one thread at a time.
//!
//! Choices are passed as C's `int`, not as enumerations, because C accepts any number for an enumeration.
#![allow(clippy::missing_safety_doc, reason = "all functions have the preconditions above")]

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
