//! Storing.

use std::ffi::{c_char, c_void};

use fabcache_client::{Mode, Stored, Ttl};

use super::cache::Cache;
use super::code::{Code, answer};
use super::ffi;

/// Stores a value. expiration is as in memcached's protocols: 0 is for ever, below 0 it has expired at once, up to thirty days
/// it is seconds from now, and beyond that a Unix time. flags are for the client's own use. value may be NULL if its length is
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_set(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
) -> Code {
    let how = How { mode: Mode::Set, expiration, flags };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(cache, key, key_length, value, value_length, how) }
}

/// Stores a value if the key is not there; otherwise FABCACHE_NOT_STORED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_add(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
) -> Code {
    let how = How { mode: Mode::Add, expiration, flags };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(cache, key, key_length, value, value_length, how) }
}

/// Stores a value if the key is there; otherwise FABCACHE_NOT_STORED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_replace(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
) -> Code {
    let how = How { mode: Mode::Replace, expiration, flags };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(cache, key, key_length, value, value_length, how) }
}

/// Adds bytes behind a value, whose expiration and flags stay; FABCACHE_NOT_STORED if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_append(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> Code {
    let how = How { mode: Mode::Append, expiration: 0, flags: 0 };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(cache, key, key_length, value, value_length, how) }
}

/// Adds bytes before a value, whose expiration and flags stay; FABCACHE_NOT_STORED if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_prepend(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> Code {
    let how = How { mode: Mode::Prepend, expiration: 0, flags: 0 };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(cache, key, key_length, value, value_length, how) }
}

/// Stores a value if the item is still the one that was read with this cas; FABCACHE_EXISTS if another changed it,
/// FABCACHE_NOT_FOUND if it is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_cas(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
    cas: u64,
) -> Code {
    let how = How { mode: Mode::Compare(cas), expiration, flags };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(cache, key, key_length, value, value_length, how) }
}

struct How {
    mode: Mode,
    expiration: i64,
    flags: u32,
}

/// Stores a value in any way.
///
/// # Safety
/// All arguments are as `native` says.
unsafe fn store(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    how: How,
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: as this function's.
        let key = unsafe { ffi::key(key, key_length) }?;
        // SAFETY: as this function's.
        let value = unsafe { ffi::value(value, value_length) }?;
        let stored = cache.client().store(key, value, how.mode, Ttl::exact(how.expiration), how.flags)?;
        Ok(match stored {
            Stored::Stored => Code::Ok,
            Stored::NotStored => Code::NotStored,
            Stored::Exists => Code::Exists,
            Stored::NotFound => Code::NotFound,
        })
    })
}
