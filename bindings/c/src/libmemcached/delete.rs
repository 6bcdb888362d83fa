//! Keys removed.

use std::ffi::c_char;

use super::constants::*;
use super::ffi::arguments;
use super::query::refused;
use super::types::{flags, memcached_st};
use crate::guarded;

/// Deletes a key, at once: servers no longer support a delay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_delete(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, code); key: key(key, key_length));
        delete(ptr, None, key, expiration)
    })
}

/// Removes a key from the server of the group's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_delete_by_key(
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
        delete(ptr, Some(group), key, expiration)
    })
}

fn delete(
    ptr: Option<&memcached_st>,
    group: Option<&[u8]>,
    key: &[u8],
    expiration: i64,
) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    let done = try_delete(memc, group, key, expiration).map_or_else(|code| code, |()| MEMCACHED_SUCCESS);
    if let Some(trigger) = memc.delete_trigger.get().filter(|_| done == MEMCACHED_SUCCESS) {
        // SAFETY: the caller set a function of this type with `memcached_callback_set`. Handle and key are borrowed from
        // the caller of `memcached_delete`, who keeps them valid until it returns.
        unsafe { trigger(memc, key.as_ptr().cast(), key.len()) };
    }
    done
}

fn try_delete(
    memc: &memcached_st,
    group: Option<&[u8]>,
    key: &[u8],
    expiration: i64,
) -> Result<(), memcached_return_t> {
    let inner = memc.begin()?;
    memc.check_key(inner, key)?;
    if expiration != 0 {
        return Err(memc.fail_with(
            MEMCACHED_INVALID_ARGUMENTS,
            "Memcached server version does not allow expiration of deleted items",
        ));
    }
    if memc.ends_a_word(key) {
        let message = "bad command line format.  Usage: delete <key> [noreply]";
        return Err(memc.bad_line_with(inner, key, message));
    }
    let server = memc.server_of(inner, group, key)?;
    let was_there = inner.with_key(key, |key| server.call(memc, |client| client.delete(key)))?;
    if memc.is_replicated() {
        for replica in memc.replicas(inner, group, key) {
            inner.with_key(key, |key| {
                // The answers of replicas are ignored.
                let _ = replica.call(memc, |client| client.delete(key));
            });
        }
    }
    if memc.has(flags::BUFFER_REQUESTS) {
        return Err(MEMCACHED_BUFFERED);
    }
    if was_there || !memc.is_replying() { Ok(()) } else { Err(MEMCACHED_NOTFOUND) }
}
