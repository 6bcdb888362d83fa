//! Reading values.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use fabcache_client::{Found, Ttl};

use super::cache::Cache;
use super::code::{Code, Fault};
use super::ffi::{CallerBuffer, Out, answer_with, put};
use super::servers::some_failed;
use crate::guarded;

/// Bytes of memory that a thread keeps from call to call for values: memcached's default for the largest value.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

/// The metadata of a found value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Bytes of the value.
    pub length: usize,
    /// The version of the item, for fabcache_cas().
    pub cas: u64,
    /// The flags that it was stored with, for the client's own use.
    pub flags: u32,
}

/// Called by fabcache_get_many() for each value found. context is the caller's, key the index of the key. value and item are
/// valid until it returns, and value is not NUL-terminated. It may call the library, but must not close the client that calls
/// it. It must return normally, not by longjmp() or a C++ exception.
pub type FoundCallback =
    Option<unsafe extern "C" fn(context: *mut c_void, key: usize, value: *const c_void, item: *const Item)>;

/// Reads a key's value into the caller's buffer. Its metadata goes into *item, unless that is NULL, also if the
/// buffer is too small: FABCACHE_BUFFER_TOO_SMALL, and item->length is the length needed. The value is not
/// NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut Item,
) -> Code {
    answer_with!((
        cache: shared(cache), key: key(key, key_length), buffer: buffer(buffer, buffer_size), item: out(item)
    ) => read(cache, key, None, |value, found| fill(buffer, item, value, found)))
}

/// As fabcache_get(), and sets the item's expiration (see fabcache_set()), also if the buffer is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_and_touch(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
    buffer: *mut c_void,
    buffer_size: usize,
    item: *mut Item,
) -> Code {
    answer_with!((
        cache: shared(cache), key: key(key, key_length), buffer: buffer(buffer, buffer_size), item: out(item)
    ) => read(cache, key, Some(Ttl::exact(expiration)), |value, found| fill(buffer, item, value, found)))
}

/// Reads a key's value into memory that the library allocates and puts into *value; free it with fabcache_free(). A NUL that
/// item->length does not count follows the value. After anything but FABCACHE_OK, *value is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_alloc(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *mut *mut c_char,
    item: *mut Item,
) -> Code {
    answer_with!((value: cleared_out(value), cache: shared(cache), key: key(key, key_length), item: out(item)) =>
        read(cache, key, None, |bytes, found| allocate(value, item, bytes, found)))
}

/// As fabcache_get_alloc(), and sets the item's expiration (see fabcache_set()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_and_touch_alloc(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
    value: *mut *mut c_char,
    item: *mut Item,
) -> Code {
    answer_with!((value: cleared_out(value), cache: shared(cache), key: key(key, key_length), item: out(item)) =>
        read(cache, key, Some(Ttl::exact(expiration)), |bytes, found| allocate(value, item, bytes, found)))
}

/// Frees a value of fabcache_get_alloc() or fabcache_get_and_touch_alloc(); NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_free(value: *mut c_void) {
    // SAFETY: `value` is NULL or came from malloc(3) in `allocate`; by the header the caller gives it up here.
    guarded((), || unsafe { libc::free(value) });
}

/// Reads many keys, asking all servers at once, and calls found for each key that exists, in any order. keys has count
/// pointers to keys, key_lengths their count lengths. Absent keys are not reported.
///
/// FABCACHE_PARTIAL: some of the servers failed, and their keys were not reported. If all failed, the code is that of
/// the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_many(
    cache: *const Cache,
    keys: *const *const c_char,
    key_lengths: *const usize,
    count: usize,
    found: FoundCallback,
    context: *mut c_void,
) -> Code {
    answer_with!((cache: shared(cache), found: callback(found), keys: keys(keys, key_lengths, count)) => {
        let failed = cache.client().get_each(&keys, |number, Found { value, flags, cas }| {
            let item = Item { length: value.len(), cas, flags };
            // SAFETY: the caller declares that `found` accepts its `context` and any index below `count`; value and
            // item are valid until it returns.
            unsafe { found(context, number, value.as_ptr().cast(), &raw const item) }
        })?;
        some_failed(failed, cache.names().len())
    })
}

/// Returns FABCACHE_OK if the key is present, else FABCACHE_NOT_FOUND. No value is transferred.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_exists(cache: *const Cache, key: *const c_char, key_length: usize) -> Code {
    answer_with!((cache: shared(cache), key: key(key, key_length)) =>
        Ok(if cache.client().contains(key)? { Code::Ok } else { Code::NotFound }))
}

/// Reads a value, and passes it to `hand_over` if the key is present.
fn read(
    cache: &Cache,
    key: &[u8],
    ttl: Option<Ttl>,
    hand_over: impl FnOnce(&mut Vec<u8>, Item) -> Code,
) -> Result<Code, Fault> {
    let mut value = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let code = match cache.client().get_into(key, ttl, &mut value)? {
        Some(Found { value, flags, cas }) => {
            let item = Item { length: value.len(), cas, flags };
            hand_over(value, item)
        }
        None => Code::NotFound,
    };
    if value.capacity() <= SCRATCH_BYTES_MAX {
        // A thread that is ending has no such memory any more.
        let _ = SCRATCH.try_with(|scratch| scratch.set(value));
    }
    if code == Code::OutOfMemory {
        return Err(Fault::new(code, "no memory for a copy of the value"));
    }
    Ok(code)
}

thread_local! {
    /// The memory into which values are read.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Copies a value into the caller's buffer.
fn fill(buffer: CallerBuffer, item: Out<'_, Item>, value: &[u8], found: Item) -> Code {
    put(item, found);
    if buffer.fill(value) { Code::Ok } else { Code::BufferTooSmall }
}

/// Copies a value, and a NUL behind it, into memory of malloc(3).
fn allocate(to: Out<'_, *mut c_char>, item: Out<'_, Item>, value: &mut Vec<u8>, found: Item) -> Code {
    // With the NUL it is one block to copy.
    value.push(0);
    // SAFETY: malloc accepts any size. The copy goes into a block that is not NULL, as long as the value, and known to
    // nobody else.
    let memory = unsafe {
        let memory = libc::malloc(value.len());
        if memory.is_null() {
            return Code::OutOfMemory;
        }
        std::ptr::copy_nonoverlapping(value.as_ptr(), memory.cast(), value.len());
        memory
    };
    put(item, found);
    put(to, memory.cast());
    Code::Ok
}

const _: () = assert!(size_of::<c_int>() == size_of::<Code>(), "C represents a code as an int");
