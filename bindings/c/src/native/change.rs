//! Changing what is stored: numbers, times to live, and whether it is there at all.

use std::ffi::c_char;

use fabcache_client::{Client, Error, Ttl};

use super::cache::Cache;
use super::code::{Code, answer};
use super::ffi;

/// Adds to a number that is stored in decimal digits; beyond 64 bits it begins again at 0. The new one is put into *number,
/// unless that is NULL. FABCACHE_REFUSED if what is stored is no number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_incr(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    delta: u64,
    number: *mut u64,
) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe { arithmetic(cache, key, key_length, number, |client, key| client.incr(key, delta)) }
}

/// As fabcache_incr(), but subtracts, and does not go below 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_decr(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    delta: u64,
    number: *mut u64,
) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe { arithmetic(cache, key, key_length, number, |client, key| client.decr(key, delta)) }
}

/// As fabcache_incr(); where there is no such key, initial is stored and put into *number, and expires as expiration says (see
/// fabcache_set()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_incr_or_set(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    delta: u64,
    initial: u64,
    expiration: i64,
    number: *mut u64,
) -> Code {
    let ask = |client: &Client, key: &[u8]| {
        client.incr_or_set(key, delta, initial, Ttl::exact(expiration)).map(Some)
    };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { arithmetic(cache, key, key_length, number, ask) }
}

/// As fabcache_decr(); where there is no such key, initial is stored and put into *number, and expires as expiration says (see
/// fabcache_set()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_decr_or_set(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    delta: u64,
    initial: u64,
    expiration: i64,
    number: *mut u64,
) -> Code {
    let ask = |client: &Client, key: &[u8]| {
        client.decr_or_set(key, delta, initial, Ttl::exact(expiration)).map(Some)
    };
    // SAFETY: all are the caller's, as `native` says.
    unsafe { arithmetic(cache, key, key_length, number, ask) }
}

/// From now on the item expires as expiration says (see fabcache_set()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_touch(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
) -> Code {
    let touch = |client: &Client, key: &[u8]| client.touch(key, Ttl::exact(expiration));
    // SAFETY: all are the caller's, as `native` says.
    unsafe { change(cache, key, key_length, touch) }
}

/// Removes a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_delete(cache: *const Cache, key: *const c_char, key_length: usize) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe { change(cache, key, key_length, Client::delete) }
}

/// Changes an item, if it is there.
///
/// # Safety
/// All arguments are as `native` says.
unsafe fn change(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    ask: impl FnOnce(&Client, &[u8]) -> Result<bool, Error>,
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: as this function's.
        let key = unsafe { ffi::key(key, key_length) }?;
        Ok(if ask(cache.client(), key)? { Code::Ok } else { Code::NotFound })
    })
}

/// Changes a number, if there is one.
///
/// # Safety
/// All arguments are as `native` says.
unsafe fn arithmetic(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    number: *mut u64,
    ask: impl FnOnce(&Client, &[u8]) -> Result<Option<u64>, Error>,
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: as this function's.
        let key = unsafe { ffi::key(key, key_length) }?;
        let Some(new) = ask(cache.client(), key)? else { return Ok(Code::NotFound) };
        // SAFETY: as this function's.
        unsafe { ffi::give(number, new) };
        Ok(Code::Ok)
    })
}
