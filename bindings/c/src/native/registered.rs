//! Registered buffers: memory for values that a fabric reads into, and sends from, without a copy.
//!
//! C's pointer is that of an `Arc`: an operation in flight holds the buffer too, so freeing it only drops the
//! caller's reference.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

use fabcache_client::{Outcome, Ttl};

use super::buffer::{Buffer, in_use};
use super::cache::Cache;
use super::code::Code;
use super::ffi::{answer_with, guarded_with, put};
use super::request::Request;
use super::retrieval::Item;
use crate::guarded;

/// The longest value that a server stores, in bytes.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// Returns a buffer for values of up to size bytes; free it with fabcache_buffer_free(). Over a fabric, values are read into it,
/// and values of 16384 bytes or more are sent from it, without a copy. If the provider requires registration, the buffer is
/// registered on first use and stays registered: at most 1024 buffers of a client, of 1 GiB together; the least recently used
/// are deregistered first. Values in an unregistered buffer are copied, as they are over other transports. NULL if cache is.
///
/// A server that was sent a value from a buffer can read the whole buffer, but not write it, as long as it stays registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_register(cache: *const Cache, size: usize) -> *mut Buffer {
    guarded_with!(null_mut(), (cache: shared(cache)) => {
        let buffer = Some(cache.client().register(size));
        Arc::into_raw(Arc::new(Buffer(Mutex::new(buffer)))).cast_mut()
    })
}

/// Frees a buffer; NULL is allowed. An operation that uses it continues with its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_buffer_free(buffer: *mut Buffer) {
    guarded((), || {
        if !buffer.is_null() {
            // SAFETY: not NULL, so it came from `Arc::into_raw` in `fabcache_register`; by the header the caller gives
            // up its reference here.
            drop(unsafe { Arc::from_raw(buffer.cast_const()) });
        }
    });
}

/// Returns the value that was last found, or stored in the buffer; its length goes into *length, unless that is NULL.
/// Valid until the buffer is used again or freed. An empty buffer gives a length of 0 and a pointer that is not NULL.
/// NULL while an operation has the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_buffer_value(buffer: *const Buffer, length: *mut usize) -> *const c_void {
    guarded_with!(null(), (buffer: counted(buffer), length: out(length)) => {
        let (start, found) = buffer.value();
        put(length, found);
        start
    })
}

/// Makes room for a value of length bytes and returns it for the caller to write; its content is unspecified. Valid until the
/// buffer is used again or freed. A value longer than the buffer is copied when it is sent. NULL while an operation has the
/// buffer, and for more than 1 GiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_buffer_resize(buffer: *mut Buffer, length: usize) -> *mut c_void {
    guarded_with!(null_mut(), (buffer: counted(buffer)) => {
        let mut buffer = buffer.lock();
        let buffer = buffer.as_mut().filter(|_| length <= VALUE_BYTES_MAX);
        buffer.map_or(null_mut(), |buffer| buffer.resize(length).as_mut_ptr().cast())
    })
}

/// Reads a key's value into a buffer; fabcache_buffer_value() returns it. Its metadata goes into *item, unless
/// that is NULL. After anything but FABCACHE_OK the buffer has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_registered(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    item: *mut Item,
) -> Code {
    answer_with!((
        cache: shared(cache), key: key(key, key_length), buffer: counted(buffer), item: out(item)
    ) => {
        let mut buffer = buffer.lock();
        let buffer = buffer.as_mut().ok_or_else(in_use)?;
        let Outcome::Found { flags, cas } = cache.client().get_registered(key, buffer)? else {
            return Ok(Code::NotFound);
        };
        put(item, Item { length: buffer.len(), cas, flags });
        Ok(Code::Ok)
    })
}

/// Stores a buffer's value as fabcache_set() does. The buffer keeps its value, also after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_set_registered(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    expiration: i64,
    flags: u32,
) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length), buffer: counted(buffer)) => {
        let mut buffer = buffer.lock();
        let buffer = buffer.as_mut().ok_or_else(in_use)?;
        cache.client().set_registered(key, buffer, Ttl::exact(expiration), flags)?;
        Ok(Code::Ok)
    })
}

/// As fabcache_iget(), into a buffer, which belongs to the operation until fabcache_test() or fabcache_wait() reports its end.
/// The key is the caller's again when it returns. fabcache_request_value() returns the value as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iget_registered(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
) -> Code {
    answer_with!((request: exclusive(request), key: key(key, key_length), buffer: counted(buffer)) => {
        request.begin_registered(buffer.take()?, &buffer, |request, buffer| {
            request.iget_registered(key, buffer);
        })
    })
}

/// As fabcache_iset(), for a buffer's value: the buffer belongs to the operation until fabcache_test() or fabcache_wait() reports
/// its end, and then has its value as before. The key is the caller's again when it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iset_registered(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut Buffer,
    expiration: i64,
    flags: u32,
) -> Code {
    answer_with!((request: exclusive(request), key: key(key, key_length), buffer: counted(buffer)) => {
        request.begin_registered(buffer.take()?, &buffer, |request, buffer| {
            request.iset_registered(key, buffer, Ttl::exact(expiration), flags);
        })
    })
}
