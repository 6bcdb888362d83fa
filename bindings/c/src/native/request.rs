//! Non-blocking calls and their request objects.
//!
//! The library copies keys, and values that could not be sent at once, into memory of the request object, which is
//! reused. Only long values of `fabcache_iset` stay in the caller's memory (`LentValue`). Other threads than that of the
//! request object read them, so freeing the object during such an operation waits.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use fabcache_client::{CompletedRequest, Outcome, RegisteredBuffer, Ttl};

/// Values up to this many bytes are copied instead of lent: the copy takes about as long as lending does, which
/// allocates.
const COPIED_BYTES_MAX: usize = 4 << 10;

use super::buffer::Buffer;
use super::cache::Cache;
use super::code::{Code, Fault};
use super::ffi::{CallerBuffer, answer_with, guarded_with, put};
use super::retrieval::Item;

/// A non-blocking operation: one at a time; the object can be reused. It belongs to one thread at a time, not always the
/// same.
pub struct Request {
    request: fabcache_client::Request,
    stage: Stage,
    /// The value found last. Its memory is reused.
    value: Vec<u8>,
    /// The metadata of the item that the last operation found.
    found: Option<Item>,
    /// The registered buffer of the operation, which also holds the value found.
    registered: Option<Arc<Buffer>>,
}

/// Memory of the caller that belongs to the operation.
#[derive(Clone, Copy)]
enum LentMemory {
    Nothing,
    /// The buffer to which the value found is copied.
    Buffer(CallerBuffer),
    /// The value to be stored, as [`LentValue`].
    Value,
    /// The buffer in [`Request::registered`].
    Registered,
}

/// A value that stays in the caller's memory until the operation completes.
struct LentValue {
    start: *const u8,
    length: usize,
}

// SAFETY: the memory is only read, and its validity does not depend on a thread.
unsafe impl Send for LentValue {}

impl AsRef<[u8]> for LentValue {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `store` made this of a slice, which the caller of `fabcache_iset` leaves valid and unchanged until
        // the library reports the end of the operation or has freed the request object. The client library drops this
        // value before it reports the end, and `Request::drop` waits for that.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Stage::InFlight(LentMemory::Value | LentMemory::Registered) = self.stage {
            // The caller may reuse its memory as soon as this is dropped.
            self.request.wait();
            self.give_back();
        }
    }
}

enum Stage {
    Idle,
    InFlight(LentMemory),
    Over(Result<Code, Fault>),
}

const _: () = {
    // C may pass a request object to another thread, so all its parts but the caller's pointer must be Send.
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<fabcache_client::Request>();
    may_be_sent::<Fault>();
};

/// Returns a request object of a client; free it with fabcache_request_free(). NULL if cache is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_new(cache: *const Cache) -> *mut Request {
    guarded_with!(std::ptr::null_mut(), (cache: shared(cache)) => {
        let request = cache.client().request();
        let stage = Stage::Idle;
        let (value, found, registered) = (Vec::new(), None, None);
        Box::into_raw(Box::new(Request { request, stage, value, found, registered }))
    })
}

/// Frees a request object; NULL is allowed. An unfinished operation is abandoned: it may or may not take effect.
/// Its buffers are the caller's again when this returns: for that it waits for a long value of
/// fabcache_iset() and for an operation on a fabcache_buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_free(request: *mut Request) {
    guarded_with!((), (request: given_up(request)) => drop(request));
}

/// Stores a value as fabcache_set() does, without waiting for the answer. key and value belong to the operation until
/// fabcache_test() or fabcache_wait() reports its end. It usually returns FABCACHE_IN_PROGRESS, even if the result is known
/// already: fabcache_test() and fabcache_wait() return it. FABCACHE_INVALID_ARGUMENT: no operation was started, for instance
/// because the previous one has not ended.
///
/// It waits only to connect to the server, or while 1024 requests are in flight on the connection; so do the other three.
/// A value is sent from the caller's memory; one of 4096 bytes or less that cannot be sent at once is copied.
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
    answer_with!((request: exclusive(request), key: key(key, key_length), value: value(value, value_length)) =>
        store(request, key, value, Ttl::exact(expiration), flags, value.len() > COPIED_BYTES_MAX))
}

/// As fabcache_iset(), but key and value are the caller's again when it returns: a value that cannot be sent at once is copied.
/// The operation itself may still be in flight.
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
    answer_with!((request: exclusive(request), key: key(key, key_length), value: value(value, value_length)) =>
        store(request, key, value, Ttl::exact(expiration), flags, false))
}

/// Requests a value without waiting for it. key and buffer belong to the operation until fabcache_test() or
/// fabcache_wait() reports its end; then the value is in the buffer, if it is found and fits. buffer may be
/// NULL with a size of 0: fabcache_request_value() returns the value without a copy. Returns as fabcache_iset() does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_iget(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_void,
    buffer_size: usize,
) -> Code {
    answer_with!((request: exclusive(request), key: key(key, key_length), buffer: buffer(buffer, buffer_size)) =>
        load(request, key, buffer))
}

/// As fabcache_iget(), but the key is the caller's again when it returns; the buffer when the operation ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_bget(
    request: *mut Request,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_void,
    buffer_size: usize,
) -> Code {
    answer_with!((request: exclusive(request), key: key(key, key_length), buffer: buffer(buffer, buffer_size)) =>
        load(request, key, buffer))
}

/// Returns FABCACHE_IN_PROGRESS or the operation's result; further calls return the same. Drives everything that is in
/// flight on the connection. FABCACHE_BUFFER_TOO_SMALL: the value was found; fabcache_request_value() returns it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_test(request: *mut Request) -> Code {
    answer_with!((request: exclusive(request)) => {
        if matches!(request.stage, Stage::InFlight(_)) && !request.request.test() {
            return Ok(Code::InProgress);
        }
        request.finish()
    })
}

/// Waits until the operation ends, and returns its result; further calls return the same. It ends at the latest when the
/// server has not answered within the time of fabcache_options_timeout_ms(); then all operations in flight on the connection
/// fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_wait(request: *mut Request) -> Code {
    answer_with!((request: exclusive(request)) => request.finish())
}

/// Returns the value that a get found, in memory of the request object; its metadata goes into *item, unless that is NULL. Valid
/// until the request object is used again or freed. NULL if no value was found, or the operation is not known to have ended. The
/// value is not NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_request_value(request: *const Request, item: *mut Item) -> *const c_void {
    guarded_with!(std::ptr::null(), (request: shared(request), item: out(item)) => {
        let Stage::Over(Ok(Code::Ok | Code::BufferTooSmall)) = request.stage else { return std::ptr::null() };
        let Some(found) = request.found else { return std::ptr::null() };
        put(item, found);
        match &request.registered {
            Some(buffer) => buffer.value().0,
            None => request.value.as_ptr().cast(),
        }
    })
}

/// Starts to store a value. With `lends`, the value stays the operation's until that ends.
fn store(
    request: &mut Request,
    key: &[u8],
    value: &[u8],
    ttl: Ttl,
    flags: u32,
    lends: bool,
) -> Result<Code, Fault> {
    request.begin()?;
    // Set before the operation starts, so that a panic in between leaves the memory to it.
    request.stage = Stage::InFlight(if lends { LentMemory::Value } else { LentMemory::Nothing });
    if lends {
        let lent = LentValue { start: value.as_ptr(), length: value.len() };
        request.request.iset_from(key, lent, ttl, flags);
    } else {
        request.request.bset_with_flags(key, value, ttl, flags);
    }
    Ok(Code::InProgress)
}

/// Starts to read a value. The buffer stays the operation's until that ends.
fn load(request: &mut Request, key: &[u8], buffer: CallerBuffer) -> Result<Code, Fault> {
    request.begin()?;
    let value = std::mem::take(&mut request.value);
    request.request.bget(key, value);
    request.stage =
        Stage::InFlight(if buffer.is_null() { LentMemory::Nothing } else { LentMemory::Buffer(buffer) });
    Ok(Code::InProgress)
}

impl Request {
    /// Prepares for a new operation; an error if one is in flight.
    fn begin(&mut self) -> Result<(), Fault> {
        if let Stage::InFlight(_) = self.stage {
            let text = "the previous operation has not ended: call fabcache_test() or fabcache_wait() first";
            return Err(Fault::new(Code::InvalidArgument, text));
        }
        (self.stage, self.found, self.registered) = (Stage::Idle, None, None);
        Ok(())
    }

    /// Starts an operation on a registered buffer's memory, which returns to `from` in any case.
    pub(super) fn begin_registered(
        &mut self,
        buffer: RegisteredBuffer,
        from: &Arc<Buffer>,
        start: impl FnOnce(&mut fabcache_client::Request, RegisteredBuffer),
    ) -> Result<Code, Fault> {
        if let Err(fault) = self.begin() {
            from.give_back(Some(buffer));
            return Err(fault);
        }
        self.registered = Some(Arc::clone(from));
        self.stage = Stage::InFlight(LentMemory::Registered);
        start(&mut self.request, buffer);
        Ok(Code::InProgress)
    }

    /// Returns the memory of an operation that ended to its buffer.
    fn give_back(&mut self) {
        if let Some(from) = &self.registered {
            from.give_back(self.request.take_buffer());
        }
    }

    /// Waits for the operation's end and returns its result.
    fn finish(&mut self) -> Result<Code, Fault> {
        if let Stage::InFlight(lent) = self.stage {
            let CompletedRequest { value, result, .. } = self.request.wait();
            self.give_back();
            // A store returns no memory.
            if value.capacity() >= self.value.capacity() {
                self.value = value;
            }
            let result = match result {
                Ok(Outcome::Stored) => Ok(Code::Ok),
                Ok(Outcome::NotFound) => Ok(Code::NotFound),
                Ok(Outcome::Found { flags, cas }) => {
                    let length = self.registered.as_ref().map_or(self.value.len(), |buffer| buffer.value().1);
                    self.found = Some(Item { length, cas, flags });
                    let fits = match lent {
                        LentMemory::Nothing | LentMemory::Value | LentMemory::Registered => true,
                        LentMemory::Buffer(buffer) => buffer.fill(&self.value),
                    };
                    Ok(if fits { Code::Ok } else { Code::BufferTooSmall })
                }
                Err(error) => Err(Fault::from(error)),
            };
            self.stage = Stage::Over(result);
        }
        match &self.stage {
            Stage::Over(result) => result.clone(),
            Stage::Idle | Stage::InFlight(_) => Err(fabcache_client::Error::NothingAsked.into()),
        }
    }
}
