//! RDMA-Memcached's calls that do not wait (its user guide, 0.9.6), with its promise about buffers.
//!
//! Its additions to libmemcached are declared in `libmemcached/requests.h`. A request belongs to the thread of its
//! handle; it can be used again once its operation is over.
//!
//! Both `memcached_iset` and `memcached_bset` copy the value before they return, so a caller that touches key or
//! value too early breaks nothing.

use std::cell::{Cell, RefCell};
use std::ffi::c_char;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use fabcache_client::{Error, Outcome, Request, Ttl};

use super::constants::*;
use super::ffi::arguments;
use super::instance::memcached_instance_st;
use super::types::memcached_st;
use crate::guarded;

/// A request: what programs see of it, and ours.
#[repr(C)]
#[derive(Debug)]
pub struct memcached_request_st {
    /// The value: to be stored, or where one that is found goes. Null for memory of the handle's allocator.
    pub value: Cell<*mut c_char>,
    /// Its length: of the value to store; the space for the value found, and then its length. What the caller sets
    /// here or in `value` afterwards applies to the next operation.
    pub value_length: Cell<usize>,
    /// The item's flags.
    pub flags: Cell<u32>,
    /// The result; `MEMCACHED_IN_PROGRESS` before.
    pub response: Cell<memcached_return_t>,
    operation: RefCell<Option<Operation>>,
    /// The available space: the length that states it is overwritten.
    room: Cell<usize>,
    /// Value and length as the last get left them: a caller that changes either provides new space.
    left: Cell<Option<Left>>,
}

// As the header has them.
const _: () = {
    assert!(offset_of!(memcached_request_st, value) == 0);
    assert!(offset_of!(memcached_request_st, value_length) == 8);
    assert!(offset_of!(memcached_request_st, flags) == 16);
    assert!(offset_of!(memcached_request_st, response) == 20);
};

/// What a get left to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    value: *mut c_char,
    length: usize,
    /// Memory that was allocated for the value, which is the caller's since.
    was_allocated: bool,
}

/// The operation in flight.
#[derive(Debug)]
struct Operation {
    request: Request,
    server: Rc<memcached_instance_st>,
}

/// A new request: with a value to be stored, or room for one that is found. Without room memory is allocated for it, which
/// the caller frees. Room of no length is taken to be enough, as in RDMA-Memcached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_request_create(
    ptr: Option<&memcached_st>,
    value: *mut c_char,
    value_length: usize,
    flags: u32,
) -> *mut memcached_request_st {
    guarded(ptr::null_mut(), || {
        if ptr.is_none() {
            return ptr::null_mut();
        }
        Box::into_raw(Box::new(memcached_request_st {
            value: Cell::new(value),
            value_length: Cell::new(value_length),
            flags: Cell::new(flags),
            response: Cell::new(MEMCACHED_INVALID_ARGUMENTS),
            operation: RefCell::new(None),
            room: Cell::new(value_length),
            left: Cell::new(None),
        }))
    })
}

/// Frees a request. Its operation takes effect nevertheless; a value allocated for it stays the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_request_free(
    _ptr: Option<&memcached_st>,
    request: *mut memcached_request_st,
) {
    guarded((), || {
        if let Some(request) = NonNull::new(request) {
            // SAFETY: `memcached_request_create` took it from a box; the caller frees it once.
            drop(unsafe { Box::from_raw(request.as_ptr()) });
        }
    });
}

/// A handle's key on its way to its server.
struct RequestedKey<'a> {
    memc: &'a memcached_st,
    request: &'a memcached_request_st,
    server: Rc<memcached_instance_st>,
    key: Vec<u8>,
}

impl<'a> RequestedKey<'a> {
    fn new(
        memc: Option<&'a memcached_st>,
        request: Option<&'a memcached_request_st>,
        key: &[u8],
    ) -> Result<RequestedKey<'a>, memcached_return_t> {
        let (Some(memc), Some(request)) = (memc, request) else { return Err(MEMCACHED_INVALID_ARGUMENTS) };
        if request.operation.borrow().is_some() {
            return Err(memc.fail_with(MEMCACHED_IN_PROGRESS, "The request is not over yet."));
        }
        let start = || {
            let inner = memc.begin()?;
            memc.check_key(inner, key)?;
            let server = memc.server_of(inner, None, key)?;
            server.connect(memc)?;
            Ok((server, inner.with_key(key, <[u8]>::to_vec)))
        };
        match start() {
            Ok((server, key)) => Ok(RequestedKey { memc, request, server, key }),
            Err(rc) => {
                request.response.set(rc);
                Err(rc)
            }
        }
    }

    fn begin(self, begin: impl FnOnce(&fabcache_client::Client, Vec<u8>) -> Request) -> memcached_return_t {
        let RequestedKey { memc, request, server, key } = self;
        let begun = if server.has_buffered() { server.drain(memc) } else { Ok(()) };
        match begun.and_then(|()| server.with_client(memc, |client| begin(client, key))) {
            Ok(begun) => {
                request.response.set(MEMCACHED_IN_PROGRESS);
                *request.operation.borrow_mut() = Some(Operation { request: begun, server });
                MEMCACHED_SUCCESS
            }
            Err(rc) => {
                request.response.set(rc);
                rc
            }
        }
    }
}

/// Notes that an argument is too long; in the request too, unless it is in progress.
#[cold]
fn refused(
    memc: Option<&memcached_st>,
    request: Option<&memcached_request_st>,
    code: memcached_return_t,
) -> memcached_return_t {
    let (Some(_), Some(request)) = (memc, request) else { return MEMCACHED_INVALID_ARGUMENTS };
    let code = super::query::refused(memc, code);
    if request.operation.borrow().is_none() {
        request.response.set(code);
    }
    code
}

/// Starts to store a request's value.
fn set(
    memc: Option<&memcached_st>,
    key: &[u8],
    request: Option<&memcached_request_st>,
    expiration: libc::time_t,
    flags: u32,
) -> memcached_return_t {
    let requested = match RequestedKey::new(memc, request, key) {
        Ok(requested) => requested,
        Err(rc) => return rc,
    };
    let value = match requested.request.copy_value() {
        Ok(value) => value,
        Err(code) => return refused(memc, request, code),
    };
    requested.request.flags.set(flags);
    requested.begin(|client, key| client.iset_with_flags(key, value, Ttl::exact(expiration), flags))
}

/// Begins to store a request's value. Key and value must stay as they are until it is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_iset(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    request: Option<&memcached_request_st>,
    expiration: libc::time_t,
    flags: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, request, code); key: key(key, key_length));
        set(ptr, key, request, expiration, flags)
    })
}

/// Begins to store a request's value. Key and value are the caller's again when it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_bset(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    request: Option<&memcached_request_st>,
    expiration: libc::time_t,
    flags: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, request, code); key: key(key, key_length));
        set(ptr, key, request, expiration, flags)
    })
}

/// Starts to read a value.
fn get(
    memc: Option<&memcached_st>,
    key: &[u8],
    request: Option<&memcached_request_st>,
) -> memcached_return_t {
    let requested = match RequestedKey::new(memc, request, key) {
        Ok(requested) => requested,
        Err(rc) => return rc,
    };
    requested.request.take_room();
    requested.begin(|client, key| client.iget(key, Vec::new()))
}

impl memcached_request_st {
    /// Returns a copy of the value to be stored.
    ///
    /// # Errors
    /// It is too long.
    fn copy_value(&self) -> Result<Vec<u8>, memcached_return_t> {
        // The value is an argument of `memcached_iset` or `memcached_bset`, like the request that has it.
        arguments!(Err; value: value(self.value.get(), self.value_length.get()));
        Ok(value.to_vec())
    }

    /// Where the next value goes.
    fn take_room(&self) {
        let (value, length) = (self.value.get(), self.value_length.get());
        match self.left.get() {
            // The caller's since then, and possibly freed.
            Some(Left { was_allocated: true, value: last, length: of_last })
                if (value, length) == (last, of_last) =>
            {
                self.value.set(ptr::null_mut());
                self.left.set(None);
            }
            Some(Left { value: last, length: of_last, .. }) if (value, length) == (last, of_last) => {}
            _ => self.room.set(length),
        }
    }
}

/// Begins to ask for a value. The key and the room for the value must be left alone until it is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_iget(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    request: Option<&memcached_request_st>,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, request, code); key: key(key, key_length));
        get(ptr, key, request)
    })
}

/// Begins to ask for a value. The key is the caller's again when it returns; the room for the value when it is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_bget(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    request: Option<&memcached_request_st>,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, request, code); key: key(key, key_length));
        get(ptr, key, request)
    })
}

/// Returns the result of a request, or that it is in progress.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_test(
    ptr: Option<&memcached_st>,
    request: Option<&memcached_request_st>,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let (Some(memc), Some(request)) = (ptr, request) else { return MEMCACHED_INVALID_ARGUMENTS };
        let is_over =
            request.operation.borrow_mut().as_mut().is_none_or(|operation| operation.request.test());
        if is_over { finish(memc, request) } else { MEMCACHED_IN_PROGRESS }
    })
}

/// Waits until a request completes; returns its result.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_wait(
    ptr: Option<&memcached_st>,
    request: Option<&memcached_request_st>,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let (Some(memc), Some(request)) = (ptr, request) else { return MEMCACHED_INVALID_ARGUMENTS };
        finish(memc, request)
    })
}

/// Stores the result, if that was not done yet.
fn finish(memc: &memcached_st, request: &memcached_request_st) -> memcached_return_t {
    let Some(mut operation) = request.operation.take() else { return request.response.get() };
    let completed = operation.request.wait();
    let rc = match completed.result {
        Ok(Outcome::Found { flags, .. }) => {
            request.flags.set(flags);
            found(memc, request, &completed.value)
        }
        Ok(Outcome::NotFound) => MEMCACHED_NOTFOUND,
        Ok(Outcome::Stored) => MEMCACHED_SUCCESS,
        Err(Error::Value(_)) => MEMCACHED_E2BIG,
        Err(error) => operation.server.failed(memc, &error),
    };
    request.response.set(rc);
    rc
}

/// Copies a value to the caller's memory, with a NUL if there is space.
fn found(memc: &memcached_st, request: &memcached_request_st, value: &[u8]) -> memcached_return_t {
    let to = request.value.get();
    request.value_length.set(value.len());
    let left = Left { value: to, length: value.len(), was_allocated: false };
    request.left.set(Some(left));
    if to.is_null() {
        let copy = memc.copy_out(value);
        request.value.set(copy);
        request.left.set(Some(Left { value: copy, was_allocated: true, ..left }));
        let none = || memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE);
        return if copy.is_null() { none() } else { MEMCACHED_SUCCESS };
    }
    let room = request.room.get();
    if room > 0 && value.len() > room {
        return memc.fail_with(MEMCACHED_E2BIG, "The value is longer than the room that was given for it.");
    }
    // SAFETY: the value fits, as checked above, or the caller gave no length and thereby states that it fits with a NUL.
    // The caller leaves the memory to the request until it ends, and it is apart from the library's `value`.
    unsafe {
        ptr::copy_nonoverlapping(value.as_ptr().cast(), to, value.len());
        if room == 0 || room > value.len() {
            to.add(value.len()).write(0);
        }
    }
    MEMCACHED_SUCCESS
}
