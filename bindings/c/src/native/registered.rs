//! Memory that is registered with a fabric once, for values that are read into it and sent from it without a copy.
//!
//! C's pointer is that of an `Arc`: an operation in flight holds the buffer too, so freeing it only drops the
//! caller's reference.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

use fabcache_client::{Outcome, RegisteredBuffer, Ttl};

use super::buffer::{Buffer, in_use};
use super::cache::Cache;
use super::code::{Code, Fault, answer};
use super::ffi;
use super::request::Request;
use super::retrieval::Item;
use crate::guarded;

/// Bytes of a value, at most: no server stores longer ones.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// The buffer of C's pointer, held beside C.
///
/// # Safety
/// As [`super`] says of arguments.
unsafe fn held(buffer: *const Buffer) -> Result<Arc<Buffer>, Fault> {
    if buffer.is_null() {
        return Err(Fault::null("buffer"));
    }
    // SAFETY: not NULL, so it came from `Arc::into_raw` in `fabcache_register` and has not been freed.
    unsafe { Arc::increment_strong_count(buffer) };
    // SAFETY: as above; this one was just counted.
    Ok(unsafe { Arc::from_raw(buffer) })
}

/// Memory for values of up to size bytes, to be freed with fabcache_buffer_free(). Over a fabric values are read into it, and those
/// of 16384 bytes or more sent from it, without a copy. Where a provider needs that, it is registered when it is first used and
/// stays so: at most 1024 buffers of a client, of 1 GiB together, of which those used longest ago give way. In one that is not
/// registered values are copied; so they are where servers are reached otherwise. NULL if cache is.
///
/// A server that was sent a value out of a buffer can read all of the buffer, and write none of it, as long as it stays registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_register(cache: *const Cache, size: usize) -> *mut Buffer {
    guarded(null_mut(), || {
        // SAFETY: `cache` is the caller's, as `native` says.
        let Ok(cache) = (unsafe { ffi::shared(cache, "cache") }) else { return null_mut() };
        let buffer = Some(cache.client().register(size));
        Arc::into_raw(Arc::new(Buffer(Mutex::new(buffer)))).cast_mut()
    })
}

/// Frees a buffer; NULL is allowed. An operation that has it continues with its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_buffer_free(buffer: *mut Buffer) {
    guarded((), || {
        if !buffer.is_null() {
            // SAFETY: it is not NULL, so it is what `fabcache_register` got from Arc::into_raw, and C does not use it any more.
            drop(unsafe { Arc::from_raw(buffer.cast_const()) });
        }
    });
}

/// Returns the value that was last found, or stored in the buffer; its length goes into *length, unless that is NULL.
/// Valid until the buffer is used again or freed. An empty buffer gives a length of 0 and a pointer that is not NULL.
/// NULL while an operation has the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_buffer_value(buffer: *const Buffer, length: *mut usize) -> *const c_void {
    guarded(null(), || {
        // SAFETY: `buffer` is the caller's, as `native` says.
        let Ok(buffer) = (unsafe { held(buffer) }) else { return null() };
        let (start, found) = buffer.value();
        // SAFETY: `length` is the caller's, as `native` says.
        unsafe { ffi::give(length, found) };
        start
    })
}

/// Makes the buffer's value one of length bytes, which are to be written: what is in them is not said. Valid until the buffer is
/// used again or freed. A value longer than the buffer is copied when it is sent. NULL while an operation has the buffer, and for
/// more than 1 GiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_buffer_resize(buffer: *mut Buffer, length: usize) -> *mut c_void {
    guarded(null_mut(), || {
        // SAFETY: `buffer` is the caller's, as `native` says.
        let Ok(buffer) = (unsafe { held(buffer) }) else { return null_mut() };
        let mut buffer = buffer.lock();
        let buffer = buffer.as_mut().filter(|_| length <= VALUE_BYTES_MAX);
        buffer.map_or(null_mut(), |buffer| buffer.resize(length).as_mut_ptr().cast())
    })
}

/// Reads a key's value into a buffer, where fabcache_buffer_value() finds it. Its metadata goes into *item, unless
/// that is NULL. After anything but FABCACHE_OK the buffer has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_registered(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    item: *mut Item,
) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: `key` is the caller's, as `native` says.
        let key = unsafe { ffi::key(key, key_length) }?;
        // SAFETY: `buffer` is the caller's, as `native` says.
        let buffer = unsafe { held(buffer) }?;
        let mut buffer = buffer.lock();
        let buffer = buffer.as_mut().ok_or_else(in_use)?;
        let Outcome::Found { flags, cas } = cache.client().get_registered(key, buffer)? else {
            return Ok(Code::NotFound);
        };
        // SAFETY: `item` is the caller's, as `native` says.
        unsafe { ffi::give(item, Item { length: buffer.len(), cas, flags }) };
        Ok(Code::Ok)
    })
}

/// Stores a buffer's value as fabcache_set() does. The buffer has it afterwards as before, whatever came of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_set_registered(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    expiration: i64,
    flags: u32,
) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: `key` is the caller's, as `native` says.
        let key = unsafe { ffi::key(key, key_length) }?;
        // SAFETY: `buffer` is the caller's, as `native` says.
        let buffer = unsafe { held(buffer) }?;
        let mut buffer = buffer.lock();
        let buffer = buffer.as_mut().ok_or_else(in_use)?;
        cache.client().set_registered(key, buffer, Ttl::exact(expiration), flags)?;
        Ok(Code::Ok)
    })
}

/// As fabcache_iget(), into a buffer, which belongs to the operation until fabcache_test() or fabcache_wait() says that it is
/// over. The key is the caller's again when it returns. fabcache_request_value() finds the value as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iget_registered(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe {
        begin(request, key, key_length, buffer, |request, key, buffer| {
            request.iget_registered(key, buffer);
        })
    }
}

/// As fabcache_iset(), a buffer's value: the buffer belongs to the operation until fabcache_test() or fabcache_wait() says that it
/// is over, and has its value then as before. The key is the caller's again when it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iset_registered(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    expiration: i64,
    flags: u32,
) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe {
        begin(request, key, key_length, buffer, |request, key, buffer| {
            request.iset_registered(key, buffer, Ttl::exact(expiration), flags);
        })
    }
}

/// Asks for something with a buffer.
///
/// # Safety
/// All arguments are as `native` says.
unsafe fn begin(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    ask: impl FnOnce(&mut fabcache_client::Request, &[u8], RegisteredBuffer),
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let request = unsafe { ffi::exclusive(request, "request") }?;
        // SAFETY: as this function's.
        let key = unsafe { ffi::key(key, key_length) }?;
        // SAFETY: as this function's.
        let buffer = unsafe { held(buffer) }?;
        request.begin_registered(buffer.take()?, &buffer, |request, buffer| ask(request, key, buffer))?;
        Ok(Code::InProgress)
    })
}
