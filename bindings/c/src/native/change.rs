//! Arithmetic, touch and delete.

use std::ffi::c_char;

use fabcache_client::{Client, Error, Ttl};

use super::cache::Cache;
use super::code::{Code, Fault};
use super::ffi::{Out, answer_with, put};

/// Adds to a stored decimal number, which wraps at 64 bits. The new number is put into *number, unless that is NULL.
/// FABCACHE_REFUSED if the stored value is not a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_incr(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    delta: u64,
    number: *mut u64,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length), number: out(number)) =>
        arithmetic(cache.client().incr(key, delta), number))
}

/// As fabcache_incr(), but subtracts; the result is not below 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_decr(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    delta: u64,
    number: *mut u64,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length), number: out(number)) =>
        arithmetic(cache.client().decr(key, delta), number))
}

/// As fabcache_incr(); if the key is absent, initial is stored and put into *number, and expires as expiration says (see
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
    answer_with!((cache: shared(cache), key: key(key, key_length), number: out(number)) => {
        let ttl = Ttl::exact(expiration);
        arithmetic(cache.client().incr_or_set(key, delta, initial, ttl).map(Some), number)
    })
}

/// As fabcache_decr(); if the key is absent, initial is stored and put into *number, and expires as expiration says (see
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
    answer_with!((cache: shared(cache), key: key(key, key_length), number: out(number)) => {
        let ttl = Ttl::exact(expiration);
        arithmetic(cache.client().decr_or_set(key, delta, initial, ttl).map(Some), number)
    })
}

/// Sets an item's expiration (see fabcache_set()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_touch(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length)) =>
        found(cache.client().touch(key, Ttl::exact(expiration))))
}

/// Deletes a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_delete(cache: *const Cache, key: *const c_char, key_length: usize) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length)) => found(Client::delete(cache.client(), key)))
}

fn found(is_found: Result<bool, Error>) -> Result<Code, Fault> {
    Ok(if is_found? { Code::Ok } else { Code::NotFound })
}

fn arithmetic(result: Result<Option<u64>, Error>, number: Out<'_, u64>) -> Result<Code, Fault> {
    let Some(new) = result? else { return Ok(Code::NotFound) };
    put(number, new);
    Ok(Code::Ok)
}
