//! libmemcached's own names, so that its programs run over shared memory as they are: relinked, or with
//! `LD_PRELOAD=libfabcache.so`.
//!
//! What a function does, and what it asks of its caller, is what the manual of libmemcached 1.1 says: pointers are null or
//! valid, a length is that of the memory beside it, and a handle belongs to one thread at a time. That is the safety
//! contract of every function here. Where libmemcached takes null for granted to be absent and crashes, these functions
//! return `MEMCACHED_INVALID_ARGUMENTS`.
//!
//! A handle ([`types::memcached_st`]) is the caller's memory and has libmemcached's public fields; what is ours hangs on one
//! pointer in it ([`handle::State`]). Each server has a [`fabcache_client::Client`] of its own ([`instance`]); which server a
//! key belongs to, which of them failed and when they are asked again is decided here, as libmemcached does.
//!
//! Files are called as libmemcached's headers.

#![allow(non_camel_case_types)] // The types of programs written for libmemcached.
#![allow(clippy::missing_safety_doc)] // It is the same for all, and told above.
#![allow(clippy::too_many_arguments)]

pub mod allocators;
pub mod analyze;
pub mod auto;
pub mod behavior;
pub mod callback;
pub mod configuration;
pub mod constants;
pub mod create;
pub mod delete;
pub mod dump;
pub mod error;
pub mod exist;
pub mod fetch;
mod ffi;
pub mod flush;
pub mod get;
pub mod handle;
pub mod hash;
pub mod hashkit;
pub mod instance;
pub mod names;
pub mod pool;
mod query;
pub mod requests;
pub mod result;
mod routing;
pub mod sasl;
pub mod server;
pub mod server_list;
pub mod stats;
pub mod storage;
pub mod strerror;
pub mod touch;
pub mod types;
pub mod util;

pub use constants::*;
pub use ffi::Out;
pub use types::*;
