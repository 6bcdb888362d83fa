//! Commands to all servers: flush, verbosity, version.

use std::ffi::c_char;
use std::rc::Rc;

use super::constants::*;
use super::instance::memcached_instance_st;
use super::types::memcached_st;
use crate::guarded;

/// Asks each server, and passes on each answer. Some may fail.
fn each<T>(
    ptr: Option<&memcached_st>,
    request: impl Fn(&memcached_instance_st, &memcached_st) -> Result<T, memcached_return_t>,
    take: impl Fn(&memcached_instance_st, T),
    failed: impl Fn(&memcached_instance_st, &memcached_st, memcached_return_t),
) -> memcached_return_t {
    let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
    let inner = match memc.begin() {
        Ok(inner) => inner,
        Err(code) => return code,
    };
    let servers: Vec<Rc<memcached_instance_st>> = inner.instances.borrow().clone();
    let mut done = MEMCACHED_SUCCESS;
    for server in servers {
        match request(&server, memc) {
            Ok(answer) => take(&server, answer),
            Err(code) => {
                failed(&server, memc, code);
                done = MEMCACHED_SOME_ERRORS;
            }
        }
    }
    done
}

/// Invalidates all items on all servers after so many seconds.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_flush(ptr: Option<&memcached_st>, expiration: i64) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let delay = u32::try_from(expiration.max(0)).unwrap_or(u32::MAX);
        let flush = |server: &memcached_instance_st, memc: &memcached_st| {
            server.call(memc, |client| client.flush(delay))
        };
        each(ptr, flush, |_, ()| {}, |_, _, _| {})
    })
}

/// Sets how much all servers log.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_verbosity(ptr: Option<&memcached_st>, verbosity: u32) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let set = |server: &memcached_instance_st, memc: &memcached_st| {
            server.call_by_text(memc, |client| client.verbosity(verbosity).remove(0))
        };
        let done = each(ptr, set, |_, ()| {}, |_, _, _| {});
        if let Some(inner) = ptr.and_then(memcached_st::inner).filter(|_| done == MEMCACHED_SOME_ERRORS) {
            // libmemcached keeps to itself which.
            inner.errors.take();
        }
        done
    })
}

/// Asks all servers for their versions.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_version(ptr: Option<&memcached_st>) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        if let Some(Err(code)) = ptr.map(memcached_st::begin_read) {
            return code;
        }
        let learn = |server: &memcached_instance_st, version: String| server.learn_version(&version);
        let request = |server: &memcached_instance_st, memc: &memcached_st| {
            server.call(memc, |client| client.versions().remove(0))
        };
        let again = |server: &memcached_instance_st, memc: &memcached_st, code| {
            server.told_again(memc, code);
        };
        each(ptr, request, learn, again)
    })
}

/// Returns the version of libmemcached that this library replaces.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_lib_version() -> *const c_char {
    c"1.1.4".as_ptr()
}

/// Waits for all that was stored without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_flush_buffers(ptr: Option<&memcached_st>) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some((memc, inner)) = ptr.and_then(|memc| Some((memc, memc.inner()?))) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        let servers: Vec<Rc<memcached_instance_st>> = inner.instances.borrow().clone();
        let mut done = MEMCACHED_SUCCESS;
        for server in servers.iter().filter(|server| server.has_buffered()) {
            if server.drain(memc).is_err() {
                done = MEMCACHED_SOME_ERRORS;
            }
        }
        done
    })
}

/// Returns an error, because values are not encrypted here and must not be readable unexpectedly.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_set_encoding_key(
    ptr: Option<&memcached_st>,
    _key: *const c_char,
    _len: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        ptr.map_or(MEMCACHED_INVALID_ARGUMENTS, |memc| {
            memc.fail_with(MEMCACHED_NOT_SUPPORTED, "values are not encrypted by this library")
        })
    })
}
