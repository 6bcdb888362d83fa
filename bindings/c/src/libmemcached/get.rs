//! Reading values.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::handle::State;
use super::instance::{Attributes, RequestedKey, memcached_instance_st};
use super::query::refused;
use super::result::is_kept;
use super::types::*;
use crate::guarded;

/// Memory for values that is kept between two calls.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The outputs of a read.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    value_length: Out<'a, usize>,
    flags: Out<'a, u32>,
    error: Out<'a, memcached_return_t>,
}

/// The value of a key, which the caller frees; null for none, and for an empty one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_get(
    ptr: Option<&memcached_st>,
    key: *const c_char,
    key_length: usize,
    value_length: Out<'_, usize>,
    flags: Out<'_, u32>,
    error: Out<'_, memcached_return_t>,
) -> *mut c_char {
    guarded(null_mut(), || {
        let outputs = Outputs { value_length, flags, error };
        arguments!(|code| refused_get(ptr, outputs, code); key: key(key, key_length));
        get(ptr, None, key, outputs)
    })
}

/// The value of a key, on the server of the group's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_get_by_key(
    ptr: Option<&memcached_st>,
    group_key: *const c_char,
    group_key_length: usize,
    key: *const c_char,
    key_length: usize,
    value_length: Out<'_, usize>,
    flags: Out<'_, u32>,
    error: Out<'_, memcached_return_t>,
) -> *mut c_char {
    guarded(null_mut(), || {
        let outputs = Outputs { value_length, flags, error };
        arguments!(|code| refused_get(ptr, outputs, code);
            group: key(group_key, group_key_length), key: key(key, key_length));
        let group = Some(group).filter(|group| !group.is_empty());
        get(ptr, group, key, outputs)
    })
}

/// Reports an argument that is too long.
#[cold]
fn refused_get(ptr: Option<&memcached_st>, wanted: Outputs<'_>, code: memcached_return_t) -> *mut c_char {
    if ptr.is_some() {
        put(wanted.value_length, 0);
    }
    put(wanted.error, refused(ptr, code));
    null_mut()
}

fn get(ptr: Option<&memcached_st>, group: Option<&[u8]>, key: &[u8], wanted: Outputs<'_>) -> *mut c_char {
    let Some(memc) = ptr else {
        put(wanted.error, MEMCACHED_INVALID_ARGUMENTS);
        return null_mut();
    };
    match try_get(memc, group, key, wanted) {
        Ok(value) => {
            put(wanted.error, MEMCACHED_SUCCESS);
            value
        }
        Err(MEMCACHED_NOTFOUND) if memc.get_key_failure.get().is_some() => not_found(memc, key, wanted),
        Err(code) => {
            put(wanted.value_length, 0);
            if code == MEMCACHED_NOTFOUND {
                put(wanted.flags, 0);
            }
            put(wanted.error, code);
            null_mut()
        }
    }
}

fn try_get(
    memc: &memcached_st,
    group: Option<&[u8]>,
    key: &[u8],
    wanted: Outputs<'_>,
) -> Result<*mut c_char, memcached_return_t> {
    let inner = memc.begin_read()?;
    memc.check_key(inner, key)?;
    let server = memc.server_of(inner, group, key)?;
    if inner.is_asking.get() {
        memc.forget_asked(inner);
    }
    let mut value = inner.value.take();
    let found = inner.with_key(key, |key| server.get(memc, key, &mut value));
    let found = found.map_err(|code| server.told_again(memc, code));
    let found = match found {
        // The server does not have it, or does not answer. Of a group libmemcached believes a server's miss.
        Ok(None) if group.is_some() => Ok(None),
        Ok(None) | Err(_) if memc.is_replicated() => {
            let replicas = memc.replicas(inner, group, key);
            let of = |replica: &Rc<memcached_instance_st>| {
                inner.with_key(key, |key| replica.get(memc, key, &mut value)).ok().flatten()
            };
            replicas.iter().find_map(of).map_or(found, |copy| Ok(Some(copy)))
        }
        other => other,
    };
    let taken = match found {
        Ok(Some(found)) => take(memc, key, &value, found, wanted),
        Ok(None) => Err(MEMCACHED_NOTFOUND),
        Err(code) => Err(code),
    };
    if value.capacity() <= KEPT_BYTES_MAX {
        inner.value.replace(value);
    }
    taken
}

/// Returns the value found to the caller.
#[inline]
fn take(
    memc: &memcached_st,
    key: &[u8],
    value: &[u8],
    found: Attributes,
    wanted: Outputs<'_>,
) -> Result<*mut c_char, memcached_return_t> {
    let result = &memc.result;
    // Programs read the CAS of the last value here.
    result.set_key(key);
    result.count.set(1);
    result.item_flags.set(found.flags);
    result.item_cas.set(if memc.tells_cas() { found.cas } else { 0 });
    put(wanted.value_length, value.len());
    put(wanted.flags, found.flags);
    if value.is_empty() {
        return Ok(null_mut());
    }
    let copy = memc.copy_out(value);
    if copy.is_null() { Err(memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE)) } else { Ok(copy) }
}

/// Nothing was found: the caller's function may have a value, which is stored then.
fn not_found(memc: &memcached_st, key: &[u8], wanted: Outputs<'_>) -> *mut c_char {
    let miss = || {
        put(wanted.value_length, 0);
        put(wanted.flags, 0);
        put(wanted.error, MEMCACHED_NOTFOUND);
        null_mut()
    };
    let Some(failure) = memc.get_key_failure.get() else { return miss() };
    let made = memcached_result_st::new(memc, false);
    // SAFETY: the caller set a function of this type with `memcached_callback_set`. Handle and key are borrowed from the
    // caller of `memcached_get`, who keeps them valid until it returns; the result is this function's, with cells for all
    // that the function may change.
    let said = unsafe { failure(memc, key.as_ptr().cast(), key.len(), (&raw const made).cast_mut()) };
    if !is_kept(said) {
        made.clear();
        return miss();
    }
    let was_buffered = memc.has(flags::BUFFER_REQUESTS);
    memc.set_flag(flags::BUFFER_REQUESTS, said == MEMCACHED_BUFFERED);
    let value = made.as_bytes();
    // SAFETY: the pointers and lengths are those of slices that live until it returns.
    let stored = unsafe {
        super::storage::memcached_set(
            Some(memc),
            key.as_ptr().cast(),
            key.len(),
            value.as_ptr().cast(),
            value.len(),
            made.item_expiration.get(),
            made.item_flags.get(),
        )
    };
    memc.set_flag(flags::BUFFER_REQUESTS, was_buffered);
    if !is_kept(stored) {
        made.clear();
        return miss();
    }
    put(wanted.error, stored);
    put(wanted.value_length, made.len());
    put(wanted.flags, made.item_flags.get());
    let value = made.take_value();
    made.clear();
    value
}

// ---- many keys ----

/// Requests many keys; the results are fetched later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_mget(
    ptr: Option<&memcached_st>,
    keys: *const *const c_char,
    key_length: *const usize,
    number_of_keys: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, code); keys: keys(keys, key_length, number_of_keys));
        mget(ptr, None, keys)
    })
}

/// Asks the server of the group's key for many keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_mget_by_key(
    ptr: Option<&memcached_st>,
    group_key: *const c_char,
    group_key_length: usize,
    keys: *const *const c_char,
    key_length: *const usize,
    number_of_keys: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(|code| refused(ptr, code);
            group: key(group_key, group_key_length),
            keys: keys(keys, key_length, number_of_keys),
        );
        mget(ptr, Some(group).filter(|group| !group.is_empty()), keys)
    })
}

/// Requests many keys, for `memcached_fetch_execute` with the same functions. Only over the binary protocol, as in
/// libmemcached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_mget_execute(
    ptr: Option<&memcached_st>,
    keys: *const *const c_char,
    key_length: *const usize,
    number_of_keys: usize,
    _callback: *mut memcached_execute_fn,
    _context: *mut c_void,
    _number_of_callbacks: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        if let Err(code) = may_execute(ptr) {
            return code;
        }
        arguments!(|code| refused(ptr, code); keys: keys(keys, key_length, number_of_keys));
        mget(ptr, None, keys)
    })
}

/// As above, from the server of the group's key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_mget_execute_by_key(
    ptr: Option<&memcached_st>,
    group_key: *const c_char,
    group_key_length: usize,
    keys: *const *const c_char,
    key_length: *const usize,
    number_of_keys: usize,
    _callback: *mut memcached_execute_fn,
    _context: *mut c_void,
    _number_of_callbacks: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        if let Err(code) = may_execute(ptr) {
            return code;
        }
        arguments!(|code| refused(ptr, code);
            group: key(group_key, group_key_length),
            keys: keys(keys, key_length, number_of_keys),
        );
        mget(ptr, Some(group).filter(|group| !group.is_empty()), keys)
    })
}

/// Checks that keys can be requested for functions.
///
/// # Errors
/// They can not over the text protocol, or without servers.
fn may_execute(ptr: Option<&memcached_st>) -> Result<(), memcached_return_t> {
    let memc = ptr.ok_or(MEMCACHED_INVALID_ARGUMENTS)?;
    memc.begin_read()?;
    if memc.is_binary() {
        return Ok(());
    }
    // Also of the other: libmemcached's words.
    let message = "ASCII protocol is not supported for memcached_mget_execute_by_key()";
    Err(memc.fail_with(MEMCACHED_NOT_SUPPORTED, message))
}

fn mget(ptr: Option<&memcached_st>, group: Option<&[u8]>, keys: Option<Vec<&[u8]>>) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    try_mget(memc, group, keys.as_deref()).map_or_else(|code| code, |()| MEMCACHED_SUCCESS)
}

/// `keys` is `None` if pointers to keys or their lengths are missing.
fn try_mget(
    memc: &memcached_st,
    group: Option<&[u8]>,
    keys: Option<&[&[u8]]>,
) -> Result<(), memcached_return_t> {
    let inner = memc.begin_read()?;
    memc.result.reset();
    if keys.is_some_and(<[_]>::is_empty) {
        return Err(memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Numbers of keys provided was zero"));
    }
    let Some(keys) = keys else {
        let message = "Key was NULL or length of key was zero.";
        return Err(memc.fail_with(MEMCACHED_BAD_KEY_PROVIDED, message));
    };
    for key in keys {
        memc.check_key(inner, key)?;
    }
    memc.forget_asked(inner);
    let (mut requested, mut failed) = (0, None);
    for key in keys {
        let own = memc.server_of(inner, group, key)?;
        let copies = if memc.is_replicated() { memc.replicas(inner, group, key) } else { Vec::new() };
        // Use the first server that can be asked.
        let mut unasked = None;
        for server in [own].into_iter().chain(copies) {
            match inner.with_key(key, |full| server.ask_for(memc, full)) {
                Ok(request) => {
                    let (tells_cas, is_grouped) = (memc.tells_cas(), group.is_some());
                    server.requested.borrow_mut().push_back(RequestedKey { request, tells_cas, is_grouped });
                    requested += 1;
                    unasked = None;
                    break;
                }
                Err(code) => unasked = Some(server.told_again(memc, code)),
            }
        }
        failed = unasked.or(failed);
    }
    inner.is_asking.set(requested > 0);
    match failed {
        None => Ok(()),
        // As in libmemcached: over the text protocol one asked server is enough.
        Some(_) if requested > 0 && !memc.is_binary() => Ok(()),
        Some(code) => Err(code),
    }
}

impl memcached_st {
    /// Drops requests that were not fetched.
    pub(crate) fn forget_asked(&self, inner: &State) {
        inner.is_asking.set(false);
        for server in inner.instances.borrow().iter() {
            server.requested.borrow_mut().clear();
        }
    }
}
