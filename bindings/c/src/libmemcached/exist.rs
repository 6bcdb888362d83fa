//! Whether a key is there.

use std::ffi::c_char;

use super::constants::*;
use super::ffi::arguments;
use super::report::ErrorContext;
use super::types::memcached_st;
use crate::guarded;

/// A stand-in for a key whose length exceeds memory: it is refused as every key that is too long.
const TOO_LONG: &[u8] = &[0; MEMCACHED_MAX_KEY];

/// Whether a key is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_exist(
    memc: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|_| exist(memc, None, TOO_LONG); key: key(key, key_length));
        exist(memc, None, key)
    })
}

/// Whether a key is on the server of the group's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_exist_by_key(
    memc: Option<&memcached_st>,
    group_key: *const c_char,
    group_key_length: usize,
    key: *const c_char,
    key_length: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|_| exist(memc, None, TOO_LONG);
            group: key(group_key, group_key_length), key: key(key, key_length));
        exist(memc, Some(group), key)
    })
}

fn exist(ptr: Option<&memcached_st>, group: Option<&[u8]>, key: &[u8]) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    try_exist(memc, group, key).map_or_else(|code| code, |()| MEMCACHED_SUCCESS)
}

fn try_exist(memc: &memcached_st, group: Option<&[u8]>, key: &[u8]) -> Result<(), memcached_return_t> {
    let inner = memc.begin_read()?;
    // libmemcached leaves the check of invalid keys to the server.
    match key.len() {
        0 if memc.is_binary() => {
            let server = memc.server_of(inner, group, key)?;
            return Err(memc.fail_of(&server, MEMCACHED_UNKNOWN_READ_FAILURE, ErrorContext::default()));
        }
        0 => return Err(MEMCACHED_ERROR),
        MEMCACHED_MAX_KEY.. => return Err(memc.bad_line(inner, key)),
        _ => memc.check_line(inner, key)?,
    }
    let server = memc.server_of(inner, group, key)?;
    let is_there = inner.with_key(key, |key| server.call(memc, |client| client.contains(key)))?;
    if is_there { Ok(()) } else { Err(MEMCACHED_NOTFOUND) }
}
