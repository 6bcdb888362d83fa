//! Storing values.

use std::ffi::{c_char, c_void};

use fabcache_client::{Mode, Stored, Ttl};

use super::cache::Cache;
use super::code::{Code, Fault};
use super::ffi::answer_with;

/// Stores a value. expiration is as in memcached's protocols: 0 means never, a negative number means at once, up to thirty
/// days it counts seconds from now, and a larger number is a Unix time. flags are for the client's own use. value may be NULL
/// if its length is 0.
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
    answer_with!((cache: shared(cache), key: key(key, key_length), value: value(value, value_length)) =>
        store(cache, key, value, Storage { mode: Mode::Set, expiration, flags }))
}

/// Stores a value if the key is absent; otherwise returns FABCACHE_NOT_STORED.
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
    answer_with!((cache: shared(cache), key: key(key, key_length), value: value(value, value_length)) =>
        store(cache, key, value, Storage { mode: Mode::Add, expiration, flags }))
}

/// Stores a value if the key is present; otherwise returns FABCACHE_NOT_STORED.
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
    answer_with!((cache: shared(cache), key: key(key, key_length), value: value(value, value_length)) =>
        store(cache, key, value, Storage { mode: Mode::Replace, expiration, flags }))
}

/// Appends bytes to a value, which keeps its expiration and flags; FABCACHE_NOT_STORED if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_append(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length), value: value(value, value_length)) =>
        store(cache, key, value, Storage { mode: Mode::Append, expiration: 0, flags: 0 }))
}

/// Prepends bytes to a value, which keeps its expiration and flags; FABCACHE_NOT_STORED if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_prepend(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length), value: value(value, value_length)) =>
        store(cache, key, value, Storage { mode: Mode::Prepend, expiration: 0, flags: 0 }))
}

/// Stores a value if the item still has this cas; FABCACHE_EXISTS if another client changed it, FABCACHE_NOT_FOUND if the
/// key is absent.
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
    answer_with!((cache: shared(cache), key: key(key, key_length), value: value(value, value_length)) =>
        store(cache, key, value, Storage { mode: Mode::Compare(cas), expiration, flags }))
}

/// How a value is stored.
struct Storage {
    mode: Mode,
    expiration: i64,
    flags: u32,
}

fn store(cache: &Cache, key: &[u8], value: &[u8], storage: Storage) -> Result<Code, Fault> {
    let Storage { mode, expiration, flags } = storage;
    Ok(match cache.client().store(key, value, mode, Ttl::exact(expiration), flags)? {
        Stored::Stored => Code::Ok,
        Stored::NotStored => Code::NotStored,
        Stored::Exists => Code::Exists,
        Stored::NotFound => Code::NotFound,
    })
}
