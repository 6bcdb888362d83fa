//! Non-blocking calls, and their request objects.
//!
//! The library copies what it needs longer than the call lasts into memory of the request object, which is used
//! again: keys, and values that could not be sent at once. Only long values of `fabcache_iset` stay where they are
//! (`Lent`), and are read by other threads than that of the request object; so freeing it in the middle of that
//! waits.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use fabcache_client::{CompletedRequest, Outcome, RegisteredBuffer, Ttl};

/// Bytes of a value that are rather copied than noted as the caller's: to copy as many takes about as long as an allocation
/// and the rest of that.
const COPIED_BYTES_MAX: usize = 4 << 10;

use super::buffer::Buffer;
use super::cache::Cache;
use super::code::{Code, Fault, answer};
use super::ffi;
use super::retrieval::Item;
use crate::guarded;

/// An operation that nobody need wait for: one at a time, and then the object can be used again. It belongs to one thread at a
/// time, which need not be the same always.
pub struct Request {
    request: fabcache_client::Request,
    stage: Stage,
    /// The last value that was found; its memory is for the next.
    value: Vec<u8>,
    /// The metadata of the item that the last operation found.
    found: Option<Item>,
    /// The buffer that the operation was given; where a value is that it found.
    registered: Option<Arc<Buffer>>,
}

/// What of the caller's belongs to the operation.
#[derive(Clone, Copy)]
enum Given {
    Nothing,
    /// Where a value is to be copied when it is there.
    Buffer {
        start: *mut c_void,
        size: usize,
    },
    /// The value to be stored, as [`Lent`].
    Value,
    /// What is in [`Request::registered`].
    Registered,
}

/// A value that lies in the caller's memory until the operation is over.
struct Lent {
    start: *const u8,
    length: usize,
}

// SAFETY: C's memory may be read by any thread, and whose it is does not depend on one.
unsafe impl Send for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `fabcache_iset` made it of a slice of so many bytes, which its caller leaves valid and unchanged until he is
        // told that the operation is over, or has freed the request object: the client library drops this before it tells,
        // and `Request` is not dropped before that.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Stage::InFlight(Given::Value | Given::Registered) = self.stage {
            // Borrowed memory is the caller's again once this is dropped.
            self.request.wait();
            self.give_back();
        }
    }
}

enum Stage {
    Idle,
    InFlight(Given),
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
        let Ok(cache) = (unsafe { ffi::shared(cache, "cache") }) else { return std::ptr::null_mut() };
        let request = cache.client().request();
        let stage = Stage::Idle;
        let (value, found, registered) = (Vec::new(), None, None);
        Box::into_raw(Box::new(Request { request, stage, value, found, registered }))
    })
}

/// Frees a request object; NULL is allowed. An unfinished operation is abandoned: it is carried out or not, and no
/// one is notified. Its buffers are the caller's again when this returns: for that it waits for a long value of
/// fabcache_iset() and for an operation on a fabcache_buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_free(request: *mut Request) {
    guarded((), || {
        if !request.is_null() {
            // SAFETY: not NULL, so it came from `Box::into_raw` in `fabcache_request_new`; by the header the caller
            // gives it up here.
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
/// A value is sent from where it lies; one of 4096 bytes or less that does not go at once is copied.
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
    // SAFETY: all are the caller's, as `native` says; the value also until the operation is over.
    unsafe { store(request, key, key_length, value, value_length, (expiration, flags), true) }
}

/// As fabcache_iset(), but key and value are the caller's again when it returns: a value that does not go at once is copied. The
/// operation itself may still be in flight.
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
    unsafe { store(request, key, key_length, value, value_length, (expiration, flags), false) }
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
        let request = unsafe { ffi::exclusive(request, "request") }?;
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
        let request = unsafe { ffi::exclusive(request, "request") }?;
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
        let Ok(request) = (unsafe { ffi::shared(request, "request") }) else { return std::ptr::null() };
        let Stage::Over(Ok(Code::Ok | Code::BufferTooSmall)) = request.stage else { return std::ptr::null() };
        let Some(found) = request.found else { return std::ptr::null() };
        // SAFETY: `item` is the caller's, as `native` says.
        unsafe { ffi::give(item, found) };
        match &request.registered {
            Some(buffer) => buffer.value().0,
            None => request.value.as_ptr().cast(),
        }
    })
}

/// Stores a value.
///
/// # Safety
/// All arguments are as `native` says; the value also until the operation is over, if it may be lent.
unsafe fn store(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    (expiration, flags): (i64, u32),
    may_lend: bool,
) -> Code {
    answer(|| {
        // SAFETY: as this function's.
        let request = unsafe { ffi::exclusive(request, "request") }?;
        // SAFETY: as this function's.
        let key = unsafe { ffi::key(key, key_length) }?;
        // SAFETY: as this function's.
        let value = unsafe { ffi::value(value, value_length) }?;
        request.begin()?;
        let lends = may_lend && value.len() > COPIED_BYTES_MAX;
        // From here on it counts as the operation's, whatever happens.
        request.stage = Stage::InFlight(if lends { Given::Value } else { Given::Nothing });
        let ttl = Ttl::exact(expiration);
        if lends {
            let lent = Lent { start: value.as_ptr(), length: value.len() };
            request.request.iset_from(key, lent, ttl, flags);
        } else {
            request.request.bset_with_flags(key, value, ttl, flags);
        }
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
        let request = unsafe { ffi::exclusive(request, "request") }?;
        // SAFETY: as this function's.
        let key = unsafe { ffi::key(key, key_length) }?;
        ffi::buffer(buffer, buffer_size)?;
        request.begin()?;
        let value = std::mem::take(&mut request.value);
        request.request.bget(key, value);
        let given = if buffer.is_null() {
            Given::Nothing
        } else {
            Given::Buffer { start: buffer, size: buffer_size }
        };
        request.stage = Stage::InFlight(given);
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
        (self.stage, self.found, self.registered) = (Stage::Idle, None, None);
        Ok(())
    }

    /// Asks for something with a buffer, which goes back to where it is from in any case.
    pub(super) fn begin_registered(
        &mut self,
        buffer: RegisteredBuffer,
        from: &Arc<Buffer>,
        ask: impl FnOnce(&mut fabcache_client::Request, RegisteredBuffer),
    ) -> Result<(), Fault> {
        if let Err(fault) = self.begin() {
            from.give_back(Some(buffer));
            return Err(fault);
        }
        self.registered = Some(Arc::clone(from));
        self.stage = Stage::InFlight(Given::Registered);
        ask(&mut self.request, buffer);
        Ok(())
    }

    /// The buffer of an operation that is over.
    fn give_back(&mut self) {
        if let Some(from) = &self.registered {
            from.give_back(self.request.take_buffer());
        }
    }

    /// What the operation came to; waits for its end.
    ///
    /// # Safety
    /// A buffer that it was given is still valid, and nobody else uses it.
    unsafe fn end(&mut self) -> Result<Code, Fault> {
        if let Stage::InFlight(given) = self.stage {
            let CompletedRequest { value, result, .. } = self.request.wait();
            self.give_back();
            // A store has none.
            if value.capacity() >= self.value.capacity() {
                self.value = value;
            }
            let over = match result {
                Ok(Outcome::Stored) => Ok(Code::Ok),
                Ok(Outcome::NotFound) => Ok(Code::NotFound),
                Ok(Outcome::Found { flags, cas }) => {
                    let length = self.registered.as_ref().map_or(self.value.len(), |buffer| buffer.value().1);
                    self.found = Some(Item { length, cas, flags });
                    let fits = match given {
                        Given::Nothing | Given::Value | Given::Registered => true,
                        // SAFETY: as this function's.
                        Given::Buffer { start, size } => unsafe { ffi::fill(start, size, &self.value) },
                    };
                    Ok(if fits { Code::Ok } else { Code::BufferTooSmall })
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
