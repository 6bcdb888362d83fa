//! libmemcached's names, so that its programs use shared memory unmodified: relinked, or with
//! `LD_PRELOAD=libfabcache.so`.
//!
//! Behaviour and preconditions are those of the manual of libmemcached 1.1: pointers are null or valid, a length is
//! that of the memory beside it, and one thread at a time uses a handle. That is the safety contract of every
//! function here. Where libmemcached dereferences an absent argument and crashes, these functions return
//! `MEMCACHED_INVALID_ARGUMENTS`.
//!
//! A handle ([`types::memcached_st`]) is the caller's memory and has libmemcached's public fields; one pointer in it
//! leads to the private part ([`handle::State`]). Each server has a [`fabcache_client::Client`] of its own
//! ([`instance`]). Key distribution, failure detection and retries are decided here, as libmemcached does.
//!
//! Files are named after libmemcached's headers.

#![allow(non_camel_case_types)] // The types of programs written for libmemcached.
#![allow(clippy::missing_safety_doc)] // It is the same for all, and told above.
#![allow(clippy::too_many_arguments)]

pub mod allocators;
pub mod analyze;
pub mod auto;
pub mod behavior;
pub mod callback;
pub mod callback_types;
mod clock;
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
mod report;
pub mod requests;
pub mod result;
mod routing;
pub mod sasl;
mod sasl_data;
pub mod server;
pub mod server_list;
pub mod stats;
pub mod storage;
pub mod strerror;
mod temporary_handle;
pub mod touch;
pub mod types;
pub mod util;

pub use constants::*;
pub use ffi::Out;
pub use types::*;
