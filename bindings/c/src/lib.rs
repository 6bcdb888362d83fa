//! `libfabcache.so`: the client library for C.
//!
//! It has two interfaces over [`fabcache_client`], which share only this file:
//!
//! - `native`: our own, `fabcache_*`, declared in `fabcache.h`;
//! - `libmemcached`: that of libmemcached 1.1, so that its programs use shared memory unchanged.
//!
//! Neither panics nor Rust types cross the FFI boundary: `guarded` catches panics, and `ffi.rs` of either interface
//! converts C's arguments.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one proof covers what one call does with C's memory"
)]

pub mod libmemcached;
pub mod native;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a C function; returns `otherwise` if it panics.
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}
