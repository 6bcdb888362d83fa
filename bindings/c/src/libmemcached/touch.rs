//! Expiry changed.

use std::ffi::c_char;

use super::constants::*;
use super::ffi::arguments;
use super::query::refused;
use super::report::ErrorContext;
use super::types::memcached_st;
use crate::guarded;

/// Sets an item's expiration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_touch(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, code); key: key(key, key_length));
        touch(ptr, None, key, expiration)
    })
}

/// Sets the expiration of an item on the server of the group's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_touch_by_key(
    ptr: Option<&memcached_st>,
    group_key: *const c_char,
    group_key_length: usize,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, code);
            group: key(group_key, group_key_length), key: key(key, key_length));
        touch(ptr, Some(group), key, expiration)
    })
}

fn touch(
    ptr: Option<&memcached_st>,
    group: Option<&[u8]>,
    key: &[u8],
    expiration: i64,
) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    try_touch(memc, group, key, expiration).map_or_else(|code| code, |()| MEMCACHED_SUCCESS)
}

fn try_touch(
    memc: &memcached_st,
    group: Option<&[u8]>,
    key: &[u8],
    expiration: i64,
) -> Result<(), memcached_return_t> {
    let inner = memc.begin()?;
    // libmemcached reports less here.
    memc.check_key(inner, key).map_err(|code| memc.fail(code))?;
    memc.check_line(inner, key)?;
    let server = memc.server_of(inner, group, key)?;
    let touched = inner
        .with_key(key, |key| server.call(memc, |client| client.touch(key, memc.ttl(expiration))))
        .map_err(|code| match code {
            MEMCACHED_CLIENT_ERROR | MEMCACHED_SERVER_ERROR | MEMCACHED_ERROR | MEMCACHED_E2BIG => code,
            MEMCACHED_UNKNOWN_READ_FAILURE => {
                let reported = ErrorContext {
                    message: "Error occcured while reading response",
                    ..ErrorContext::default()
                };
                memc.fail_of(&server, code, reported)
            }
            _ => {
                let message = "Error occcured while writing touch command to server";
                memc.fail_of(
                    &server,
                    MEMCACHED_WRITE_FAILURE,
                    ErrorContext { message, ..ErrorContext::default() },
                )
            }
        })?;
    if touched { Ok(()) } else { Err(MEMCACHED_NOTFOUND) }
}
