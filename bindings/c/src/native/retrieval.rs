//! Reading.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use fabcache_client::{Found, Ttl};

use super::cache::Cache;
use super::code::{Code, Fault, answer};
use super::ffi;
use super::servers::some_failed;
use crate::guarded;

/// Bytes of memory for values that a thread keeps from call to call: those of memcached's largest value if nobody says
/// otherwise.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

/// The metadata of a found value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Bytes of the value.
    pub length: usize,
    /// Tells this version of it from others, for fabcache_cas().
    pub cas: u64,
    /// The flags that it was stored with, for the client's own use.
    pub flags: u32,
}

/// Told of each value that fabcache_get_many() finds: context is the caller's, key the number of the key. value and item are
/// valid until it returns, and value is not NUL-terminated. It may call the library, but must not close the client that calls
/// it, and must return: by longjmp() or a C++ exception it must not leave.
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
    answer(|| {
        ffi::buffer(buffer, buffer_size)?;
        // SAFETY: `buffer` and `item` are the caller's, as `native` says.
        let hand_over = |value: &mut Vec<u8>, found| unsafe { fill(buffer, buffer_size, item, value, found) };
        // SAFETY: `cache` and `key` are the caller's, as `native` says.
        unsafe { read(cache, key, key_length, None, hand_over) }
    })
}

/// As fabcache_get(), and from now on the item expires as expiration says (see fabcache_set()), also if the buffer is too small.
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
    answer(|| {
        ffi::buffer(buffer, buffer_size)?;
        // SAFETY: `buffer` and `item` are the caller's, as `native` says.
        let hand_over = |value: &mut Vec<u8>, found| unsafe { fill(buffer, buffer_size, item, value, found) };
        // SAFETY: `cache` and `key` are the caller's, as `native` says.
        unsafe { read(cache, key, key_length, Some(Ttl::exact(expiration)), hand_over) }
    })
}

/// Reads a key's value into memory of its own, which is put into *value and to be freed with fabcache_free(). A NUL that
/// item->length does not count follows the value. After anything but FABCACHE_OK, *value is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_alloc(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    value: *mut *mut c_char,
    item: *mut Item,
) -> Code {
    answer(|| {
        let value = ffi::wanted(value, "value")?;
        // SAFETY: `value` is the caller's, as `native` says.
        unsafe { ffi::give(value, null_mut()) };
        // SAFETY: `value` and `item` are the caller's, as `native` says.
        let hand_over = |bytes: &mut Vec<u8>, found| unsafe { allocate(value, item, bytes, found) };
        // SAFETY: `cache` and `key` are the caller's, as `native` says.
        unsafe { read(cache, key, key_length, None, hand_over) }
    })
}

/// As fabcache_get_alloc(), and from now on the item expires as expiration says (see fabcache_set()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_get_and_touch_alloc(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    expiration: i64,
    value: *mut *mut c_char,
    item: *mut Item,
) -> Code {
    answer(|| {
        let value = ffi::wanted(value, "value")?;
        // SAFETY: `value` is the caller's, as `native` says.
        unsafe { ffi::give(value, null_mut()) };
        // SAFETY: `value` and `item` are the caller's, as `native` says.
        let hand_over = |bytes: &mut Vec<u8>, found| unsafe { allocate(value, item, bytes, found) };
        // SAFETY: `cache` and `key` are the caller's, as `native` says.
        unsafe { read(cache, key, key_length, Some(Ttl::exact(expiration)), hand_over) }
    })
}

/// Frees what fabcache_get_alloc() or fabcache_get_and_touch_alloc() gave; NULL is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_free(value: *mut c_void) {
    // SAFETY: `value` is NULL or came from malloc(3) in `allocate`; by the header the caller gives it up here.
    guarded((), || unsafe { libc::free(value) });
}

/// Reads many keys, asking all servers at once, and calls found for each key that exists, in any order. The keys are
/// those at keys, their lengths at key_lengths; both have count elements. Absent keys are not reported.
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
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        let found = found.ok_or_else(|| Fault::null("found"))?;
        // SAFETY: `keys` is the caller's, as `native` says.
        let keys = unsafe { ffi::slice(keys, count, "keys") }?;
        // SAFETY: `key_lengths` is the caller's, as `native` says.
        let lengths = unsafe { ffi::slice(key_lengths, count, "key_lengths") }?;
        let key = |(key, length): (&*const c_char, &usize)| {
            // SAFETY: so is each key among them.
            unsafe { ffi::key(*key, *length) }
        };
        let keys: Vec<&[u8]> = keys.iter().zip(lengths).map(key).collect::<Result<_, _>>()?;
        let failed = cache.client().get_each(&keys, |number, Found { value, flags, cas }| {
            let item = Item { length: value.len(), cas, flags };
            // SAFETY: `found` is the caller's function of this type, and may be called with any number of one of his keys,
            // and with what is valid until it returns; `context` he has for it.
            unsafe { found(context, number, value.as_ptr().cast(), &raw const item) }
        })?;
        some_failed(failed, cache.names().len())
    })
}

/// Whether there is anything for a key: FABCACHE_OK or FABCACHE_NOT_FOUND. Over a socket no value comes for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fabcache_exists(cache: *const Cache, key: *const c_char, key_length: usize) -> Code {
    answer(|| {
        // SAFETY: `cache` is the caller's, as `native` says.
        let cache = unsafe { ffi::shared(cache, "cache") }?;
        // SAFETY: `key` is the caller's, as `native` says.
        let key = unsafe { ffi::key(key, key_length) }?;
        Ok(if cache.client().contains(key)? { Code::Ok } else { Code::NotFound })
    })
}

/// Reads a value, and hands it over where there is one.
///
/// # Safety
/// `cache` and `key` are as `native` says of arguments.
unsafe fn read(
    cache: *const Cache,
    key: *const c_char,
    key_length: usize,
    ttl: Option<Ttl>,
    hand_over: impl FnOnce(&mut Vec<u8>, Item) -> Code,
) -> Result<Code, Fault> {
    // SAFETY: as this function's.
    let cache = unsafe { ffi::shared(cache, "cache") }?;
    // SAFETY: as this function's.
    let key = unsafe { ffi::key(key, key_length) }?;
    let mut value = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let code = match cache.client().get_into(key, ttl, &mut value)? {
        Some(Found { value, flags, cas }) => {
            let item = Item { length: value.len(), cas, flags };
            hand_over(value, item)
        }
        None => Code::NotFound,
    };
    if value.capacity() <= SCRATCH_BYTES_MAX {
        // A thread that is about to end needs none.
        let _ = SCRATCH.try_with(|scratch| scratch.set(value));
    }
    if code == Code::OutOfMemory {
        return Err(Fault::new(code, "no memory for a copy of the value"));
    }
    Ok(code)
}

thread_local! {
    /// Memory into which values are read.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Into the caller's buffer.
///
/// # Safety
/// `buffer` and `item` are as `native` says of arguments.
unsafe fn fill(buffer: *mut c_void, size: usize, item: *mut Item, value: &[u8], found: Item) -> Code {
    // SAFETY: as this function's.
    unsafe { ffi::give(item, found) };
    // SAFETY: as this function's.
    if unsafe { ffi::fill(buffer, size, value) } { Code::Ok } else { Code::BufferTooSmall }
}

/// Into memory of malloc(3), with a NUL behind it.
///
/// # Safety
/// `to` and `item` are as `native` says of arguments.
unsafe fn allocate(to: *mut *mut c_char, item: *mut Item, value: &mut Vec<u8>, found: Item) -> Code {
    // With the NUL it is one block to copy.
    value.push(0);
    // SAFETY: malloc takes any number.
    let memory = unsafe { libc::malloc(value.len()) };
    if memory.is_null() {
        return Code::OutOfMemory;
    }
    // SAFETY: the memory is not NULL and has as many bytes, which nobody else knows of.
    unsafe { ffi::fill(memory, value.len(), value) };
    // SAFETY: as this function's.
    unsafe { ffi::give(item, found) };
    // SAFETY: as this function's.
    unsafe { ffi::give(to, memory.cast()) };
    Code::Ok
}

const _: () = assert!(size_of::<c_int>() == size_of::<Code>(), "a code is what C takes for an enumeration");
