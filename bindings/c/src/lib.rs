//! `libfabcache.so`: the client library for C.
//!
//! Two sets of names lie over [`fabcache_client`], and share nothing but what is in this file:
//!
//! - `native`: ours, `fabcache_*`, declared in `fabcache.h`;
//! - `libmemcached`: those of libmemcached 1.1, so that its programs run over shared memory as they are.
//!
//! No panic and no Rust type crosses the border: every function of either goes through `guarded`.

pub mod libmemcached;
pub mod native;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what a C function does; `otherwise` is its result if that panics.
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}
