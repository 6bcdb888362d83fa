//! Calls that do not wait, and the object that each is known by.
//!
//! Where the library needs a key or a value longer than the call lasts, it copies them into memory of the request object, which
//! is used again: keys of gets, and of a value to be stored what could not be sent at once. So nothing of the caller's is
//! touched by anyone but the thread that has the request object, and a request object may be freed at any time.

use std::ffi::{c_char, c_void};

use fabcache_client::{Completed, Outcome, Ttl};

use super::border;
use super::cache::Cache;
use super::code::{Code, Fault, answer};
use super::retrieval::Item;
use crate::guarded;

/// An operation that nobody need wait for: one at a time, and then the object can be used again. It belongs to one thread at a
/// time, which need not be the same always.
pub struct Request {
    request: fabcache_client::Request,
    stage: Stage,
    /// The last value that was found; its memory is for the next.
    value: Vec<u8>,
    /// What it is, if the last operation found one.
    found: Option<Item>,
}

/// Where a value is to be copied when it is there.
#[derive(Clone, Copy)]
struct Buffer {
    start: *mut c_void,
    size: usize,
}

enum Stage {
    Idle,
    InFlight(Option<Buffer>),
    Over(Result<Code, Fault>),
}

const _: () = {
    // C may hand a request object from thread to thread: what is in it but the caller's pointer can go along.
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<fabcache_client::Request>();
    may_be_sent::<Fault>();
};

/// A request object of a client, to be freed with fabcache_request_free(). NULL if cache is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_new(cache: *const Cache) -> *mut Request {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: `cache` is the caller's, as `native` says.
        let Ok(cache) = (unsafe { border::shared(cache, "cache") }) else { return std::ptr::null_mut() };
        let request = cache.client().request();
        let stage = Stage::Idle;
        Box::into_raw(Box::new(Request { request, stage, value: Vec::new(), found: None }))
    })
}

/// Frees a request object; NULL is none. An operation that is not over is left to itself: it is done or not, and nobody is told;
/// its buffers are the caller's again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_free(request: *mut Request) {
    guarded((), || {
        if !request.is_null() {
            // SAFETY: it is not NULL, so it is what `fabcache_request_new` got from Box::into_raw, and nobody uses it any more.
            drop(unsafe { Box::from_raw(request) });
        }
    });
}

/// Stores a value as fabcache_set() does, but returns once that is asked for. key and value belong to the operation until
/// fabcache_test() or fabcache_wait() says that it is over. FABCACHE_IN_PROGRESS is the usual answer, also where it is known
/// already what it came to: fabcache_test() and fabcache_wait() tell. FABCACHE_INVALID_ARGUMENT: nothing was asked for; also if
/// the operation before is not over.
///
/// It waits only where there is no connection to the server yet, or 1024 requests are in flight on it. So do the other three.
/// What can be sent at once is sent from where it lies; the rest is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iset(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(request, key, key_length, value, value_length, expiration, flags) }
}

/// As fabcache_iset(), but key and value are the caller's again when it returns; the operation itself may still be in flight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_bset(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
) -> Code {
    // SAFETY: all are the caller's, as `native` says.
    unsafe { store(request, key, key_length, value, value_length, expiration, flags) }
}

/// Asks for a value, and returns once that is done. key and buffer belong to the operation until fabcache_test() or
/// fabcache_wait() says that it is over; then the value is in the buffer, if there is one and it is large enough. buffer may be
/// NULL with a size of 0: the value is found with fabcache_request_value(), without a copy. Returns as fabcache_iset().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iget(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_void,
    buffer_size: usize,
) -> Code {
    // SAFETY: all are the caller's, as `native` says; the buffer also until the operation is over.
    unsafe { load(request, key, key_length, buffer, buffer_size) }
}

/// As fabcache_iget(), but the key is the caller's again when it returns; the buffer when the operation is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_bget(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_void,
    buffer_size: usize,
) -> Code {
    // SAFETY: all are the caller's, as `native` says; the buffer also until the operation is over.
    unsafe { load(request, key, key_length, buffer, buffer_size) }
}

/// FABCACHE_IN_PROGRESS, or what the operation came to, as often as it is asked. It makes progress with everything that is in
/// flight on the connection. FABCACHE_BUFFER_TOO_SMALL: the value was found, and fabcache_request_value() has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_test(request: *mut Request) -> Code {
    answer(|| {
        // SAFETY: `request` is the caller's, as `native` says.
        let request = unsafe { border::exclusive(request, "request") }?;
        if matches!(request.stage, Stage::InFlight(_)) && !request.request.test() {
            return Ok(Code::InProgress);
        }
        // SAFETY: the buffer is the operation's until it is over, which its caller learns when this returns.
        unsafe { request.end() }
    })
}

/// Waits until the operation is over, and returns what it came to, as often as it is asked. It is over at the latest when the
/// server has not answered for the time that fabcache_options_timeout_ms() set; then all that is in flight on the connection has
/// failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_wait(request: *mut Request) -> Code {
    answer(|| {
        // SAFETY: `request` is the caller's, as `native` says.
        let request = unsafe { border::exclusive(request, "request") }?;
        // SAFETY: the buffer is the operation's until it is over, which its caller learns when this returns.
        unsafe { request.end() }
    })
}

/// The value that a get found, in memory of the request object; what it is goes into *item, unless that is NULL. Valid until the
/// request object is used again or freed. NULL if no value was found, or the operation is not known to be over. It is not
/// NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_value(request: *const Request, item: *mut Item) -> *const c_void {
    guarded(std::ptr::null(), || {
        // SAFETY: `request` is the caller's, as `native` says.
        let Ok(request) = (unsafe { border::shared(request, "request") }) else { return std::ptr::null() };
        let Stage::Over(Ok(Code::Ok | Code::BufferTooSmall)) = request.stage else { return std::ptr::null() };
        let Some(found) = request.found else { return std::ptr::null() };
        // SAFETY: `item` is the caller's, as `native` says.
        unsafe { border::give(item, found) };
        request.value.as_ptr().cast()
    })
}

/// Stores a value.
///
/// # Safety
/// All arguments are as `native` says.
unsafe fn store(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    expiration: i64,
    flags: u32,
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let request = unsafe { border::exclusive(request, "request") }?;
        // SAFETY: as this function's.
        let key = unsafe { border::key(key, key_length) }?;
        // SAFETY: as this function's.
        let value = unsafe { border::value(value, value_length) }?;
        request.begin()?;
        request.request.bset_with_flags(key, value, Ttl::exact(expiration), flags);
        request.stage = Stage::InFlight(None);
        Ok(Code::InProgress)
    })
}

/// Asks for a value.
///
/// # Safety
/// All arguments are as `native` says; the buffer also until the operation is over.
unsafe fn load(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_void,
    buffer_size: usize,
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let request = unsafe { border::exclusive(request, "request") }?;
        // SAFETY: as this function's.
        let key = unsafe { border::key(key, key_length) }?;
        border::buffer(buffer, buffer_size)?;
        request.begin()?;
        let value = std::mem::take(&mut request.value);
        request.request.bget(key, value);
        let buffer = (!buffer.is_null()).then_some(Buffer { start: buffer, size: buffer_size });
        request.stage = Stage::InFlight(buffer);
        Ok(Code::InProgress)
    })
}

impl Request {
    /// Nothing is in flight, and nothing is known of the operation before.
    fn begin(&mut self) -> Result<(), Fault> {
        if let Stage::InFlight(_) = self.stage {
            let text = "the operation before is not over: ask fabcache_test() or fabcache_wait() first";
            return Err(Fault::new(Code::InvalidArgument, text));
        }
        (self.stage, self.found) = (Stage::Idle, None);
        Ok(())
    }

    /// What the operation came to; waits for its end.
    ///
    /// # Safety
    /// A buffer that it was given is still valid, and nobody else uses it.
    unsafe fn end(&mut self) -> Result<Code, Fault> {
        if let Stage::InFlight(buffer) = self.stage {
            let Completed { value, result, .. } = self.request.wait();
            // A store has none.
            if value.capacity() >= self.value.capacity() {
                self.value = value;
            }
            let over = match result {
                Ok(Outcome::Stored) => Ok(Code::Ok),
                Ok(Outcome::NotFound) => Ok(Code::NotFound),
                Ok(Outcome::Found { flags, cas }) => {
                    self.found = Some(Item { length: self.value.len(), cas, flags });
                    // SAFETY: as this function's.
                    let fits = |Buffer { start, size }| unsafe { border::fill(start, size, &self.value) };
                    Ok(if buffer.is_none_or(fits) { Code::Ok } else { Code::BufferTooSmall })
                }
                Err(error) => Err(Fault::from(error)),
            };
            self.stage = Stage::Over(over);
        }
        match &self.stage {
            Stage::Over(over) => over.clone(),
            Stage::Idle | Stage::InFlight(_) => Err(fabcache_client::Error::NothingAsked.into()),
        }
    }
}
