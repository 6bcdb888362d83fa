//! Fetching the results of `memcached_mget`.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use fabcache_client::{CompletedRequest, Item, Outcome};

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::handle::State;
use super::instance::{Attributes, RequestedKey, memcached_instance_st};
use super::result::memcached_result_create;
use super::types::*;
use crate::guarded;

/// The next value that was found, which the caller frees, and its key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_fetch(
    ptr: Option<&memcached_st>,
    key: *mut c_char,
    key_length: Out<'_, usize>,
    value_length: Out<'_, usize>,
    flags: Out<'_, u32>,
    error: Out<'_, memcached_return_t>,
) -> *mut c_char {
    guarded(null_mut(), || {
        let Some(memc) = ptr else {
            put(error, MEMCACHED_INVALID_ARGUMENTS);
            return null_mut();
        };
        let code = fetch_into(memc, &memc.result);
        put(error, code);
        if code != MEMCACHED_SUCCESS {
            put(key_length, 0);
            put(value_length, 0);
            put(flags, 0);
            return null_mut();
        }
        let result = &memc.result;
        let len = result.key_length.get();
        if !key.is_null() {
            // SAFETY: libmemcached requires MEMCACHED_MAX_KEY writable bytes at `key`; a key is no longer, and the NUL
            // is written only if it fits.
            unsafe {
                std::ptr::copy_nonoverlapping(result.item_key.as_ptr().cast(), key, len);
                if len < MEMCACHED_MAX_KEY {
                    key.add(len).write(0);
                }
            }
        }
        put(key_length, len);
        put(value_length, result.len());
        put(flags, result.item_flags.get());
        result.take_value()
    })
}

/// The next result that was found: in the caller's, or in a new one that the caller frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_fetch_result(
    ptr: Option<&memcached_st>,
    result: *mut memcached_result_st,
    error: Out<'_, memcached_return_t>,
) -> *mut memcached_result_st {
    guarded(null_mut(), || {
        let Some(memc) = ptr else {
            put(error, MEMCACHED_INVALID_ARGUMENTS);
            return null_mut();
        };
        let at = if result.is_null() {
            // SAFETY: NULL, so the result gets memory of its own.
            unsafe { memcached_result_create(Some(memc), null_mut()) }
        } else {
            result
        };
        // SAFETY: it was just created, or is the caller's initialized result.
        let Some(into) = (unsafe { at.as_ref() }) else {
            put(error, MEMCACHED_MEMORY_ALLOCATION_FAILURE);
            return null_mut();
        };
        let code = fetch_into(memc, into);
        put(error, code);
        if code == MEMCACHED_SUCCESS {
            return at;
        }
        if into.options.get() & IS_ALLOCATED != 0 {
            // libmemcached frees it as well, also a caller's.
            // SAFETY: IS_ALLOCATED says that `memcached_result_create` took it from a box. Either that was above, and
            // nobody else has it; or it is the caller's, valid until now, and libmemcached's callers do not use it after
            // a fetch that returns NULL. Nothing here uses it afterwards.
            unsafe { super::result::memcached_result_free(at) };
        }
        null_mut()
    })
}

/// Calls each function with each result found.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_fetch_execute(
    ptr: Option<&memcached_st>,
    callback: *mut memcached_execute_fn,
    context: *mut c_void,
    number_of_callbacks: u32,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(callbacks: array(callback.cast_const(), number_of_callbacks as usize));
        let (mut any, mut failed) = (false, false);
        loop {
            match fetch_into(memc, &memc.result) {
                MEMCACHED_SUCCESS => any = true,
                MEMCACHED_END | MEMCACHED_NOTFOUND if failed => return MEMCACHED_SOME_ERRORS,
                MEMCACHED_END | MEMCACHED_NOTFOUND if any => return MEMCACHED_SUCCESS,
                code => return code,
            }
            for callback in callbacks.iter().flatten() {
                // SAFETY: the caller passed the function for this call, with its `context`; handle and result outlive it.
                let said = unsafe { callback(memc, (&raw const memc.result).cast_mut(), context) };
                if !super::result::is_kept(said) {
                    memc.fail(said);
                    failed = true;
                    break;
                }
            }
        }
    })
}

/// Takes the next that was found.
fn fetch_into(memc: &memcached_st, result: &memcached_result_st) -> memcached_return_t {
    let Some(inner) = memc.inner() else { return MEMCACHED_INVALID_ARGUMENTS };
    if memc.has(flags::USE_UDP) {
        return MEMCACHED_NOT_SUPPORTED;
    }
    let mut is_lost = false;
    while let Some((server, RequestedKey { mut request, tells_cas, is_grouped })) = next(inner) {
        let CompletedRequest { key, value, result: outcome } = request.wait();
        let found = match outcome {
            Ok(Outcome::Found { flags, cas }) => Some(Item { value, flags, cas }),
            // As for one key.
            Ok(_) if is_grouped => None,
            Ok(_) => of_replica(memc, inner, &key),
            Err(error) => {
                let code = server.failed(memc, &error);
                is_lost |= code != MEMCACHED_UNKNOWN_READ_FAILURE;
                None
            }
        };
        let Some(Item { value, flags, cas }) = found else { continue };
        let prefix = inner.namespace.borrow().as_bytes().len();
        result.set_key(key.get(prefix..).unwrap_or_default());
        result.item_flags.set(flags);
        result.item_cas.set(if tells_cas { cas } else { 0 });
        // By the binary protocol libmemcached makes no memory for an empty one.
        let is_kept = if value.is_empty() && memc.is_binary() {
            result.value.end.set(result.value.string.get());
            true
        } else {
            result.set_value(&value)
        };
        if !is_kept {
            return memc.fail(MEMCACHED_MEMORY_ALLOCATION_FAILURE);
        }
        result.count.set(result.count.get() + 1);
        return MEMCACHED_SUCCESS;
    }
    inner.is_asking.set(false);
    let code = match result.count.replace(0) {
        _ if is_lost => MEMCACHED_CONNECTION_FAILURE,
        0 => MEMCACHED_NOTFOUND,
        _ => MEMCACHED_END,
    };
    result.reset();
    code
}

/// Returns the next available result of any server; else the next of one of them.
fn next(inner: &State) -> Option<(Rc<memcached_instance_st>, RequestedKey)> {
    let servers = inner.instances.borrow();
    let mut waiting = servers.iter().filter(|server| !server.requested.borrow().is_empty());
    let first = waiting.next()?;
    let is_there = |server: &memcached_instance_st| {
        server.requested.borrow_mut().front_mut().is_some_and(|a| a.request.test())
    };
    let chosen = if waiting.clone().next().is_none() || is_there(first) {
        first
    } else {
        waiting.find(|server| is_there(server)).unwrap_or(first)
    };
    let requested = chosen.requested.borrow_mut().pop_front()?;
    Some((Rc::clone(chosen), requested))
}

/// With replicas, a key that its server lacks may be found on another.
fn of_replica(memc: &memcached_st, inner: &State, full: &[u8]) -> Option<Item> {
    if !memc.is_replicated() {
        return None;
    }
    let key = full.get(inner.namespace.borrow().as_bytes().len()..)?;
    let mut value = Vec::new();
    for replica in memc.replicas(inner, None, key) {
        // The remaining keys are still to be fetched.
        let requested = replica.requested.take();
        let found = replica.get(memc, full, &mut value);
        replica.requested.replace(requested);
        if let Ok(Some(Attributes { flags, cas })) = found {
            return Some(Item { value, flags, cas });
        }
    }
    None
}
