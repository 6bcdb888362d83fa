//! Callbacks and the namespace: settings of a handle that are pointers.

use std::ffi::{CString, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use super::constants::*;
use super::ffi::{Out, arguments, put};
use super::types::{
    memcached_cleanup_fn, memcached_clone_fn, memcached_st, memcached_trigger_delete_key_fn,
    memcached_trigger_key_fn,
};
use crate::guarded;

/// Sets one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_callback_set(
    ptr: Option<&memcached_st>,
    flag: memcached_callback_t,
    data: *const c_void,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        match flag {
            MEMCACHED_CALLBACK_NAMESPACE => {
                arguments!(namespace: text(data.cast()));
                return set_namespace(memc, namespace);
            }
            MEMCACHED_CALLBACK_USER_DATA => memc.user_data.set(data.cast_mut()),
            MEMCACHED_CALLBACK_CLEANUP_FUNCTION => {
                // SAFETY: for this flag the manual requires NULL or a function of this type. `Option` of a function
                // pointer has the size of a data pointer, and NULL is its `None`.
                let function = unsafe { transmute::<*const c_void, memcached_cleanup_fn>(data) };
                memc.on_cleanup.set(function);
            }
            MEMCACHED_CALLBACK_CLONE_FUNCTION => {
                // SAFETY: for this flag the manual requires NULL or a function of this type. `Option` of a function
                // pointer has the size of a data pointer, and NULL is its `None`.
                let function = unsafe { transmute::<*const c_void, memcached_clone_fn>(data) };
                memc.on_clone.set(function);
            }
            MEMCACHED_CALLBACK_GET_FAILURE => {
                // SAFETY: for this flag the manual requires NULL or a function of this type. `Option` of a function
                // pointer has the size of a data pointer, and NULL is its `None`.
                let function = unsafe { transmute::<*const c_void, memcached_trigger_key_fn>(data) };
                memc.get_key_failure.set(function);
            }
            MEMCACHED_CALLBACK_DELETE_TRIGGER => return set_delete_trigger(memc, data),
            MEMCACHED_CALLBACK_MAX => {
                return memc.fail_with(MEMCACHED_INVALID_ARGUMENTS, "Invalid callback supplied");
            }
            _ => {}
        }
        MEMCACHED_SUCCESS
    })
}

fn set_delete_trigger(memc: &memcached_st, data: *const c_void) -> memcached_return_t {
    use super::types::flags;
    if !data.is_null() {
        if memc.has(flags::BUFFER_REQUESTS) {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "Delete triggers cannot be used if buffering is enabled",
            );
        }
        if !memc.is_replying() {
            return memc.fail_with(
                MEMCACHED_INVALID_ARGUMENTS,
                "Delete triggers cannot be used if MEMCACHED_BEHAVIOR_NOREPLY is set",
            );
        }
    }
    // SAFETY: for MEMCACHED_CALLBACK_DELETE_TRIGGER the manual requires NULL or a function of this type; `Option` of a
    // function pointer has the size of a data pointer, and NULL is its `None`.
    memc.delete_trigger.set(unsafe { transmute::<*const c_void, memcached_trigger_delete_key_fn>(data) });
    MEMCACHED_SUCCESS
}

fn set_namespace(memc: &memcached_st, namespace: Option<&[u8]>) -> memcached_return_t {
    let Some(inner) = memc.inner() else { return MEMCACHED_INVALID_ARGUMENTS };
    let Some(namespace) = namespace else {
        inner.namespace.take();
        return MEMCACHED_SUCCESS;
    };
    if namespace.is_empty() {
        return memc.fail_with(
            MEMCACHED_INVALID_ARGUMENTS,
            "Invalid namespace, namespace string had value but length was 0",
        );
    }
    if namespace.len() >= MEMCACHED_MAX_NAMESPACE {
        return memc.fail(MEMCACHED_KEY_TOO_BIG);
    }
    if !memc.is_binary() && !namespace.iter().all(u8::is_ascii_graphic) {
        return memc.fail_with(MEMCACHED_BAD_KEY_PROVIDED, "Key provided had invalid character.");
    }
    match CString::new(namespace) {
        Ok(namespace) => {
            inner.namespace.replace(namespace);
            MEMCACHED_SUCCESS
        }
        Err(_) => memc.fail(MEMCACHED_BAD_KEY_PROVIDED),
    }
}

/// Returns the value of a callback.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_callback_get(
    ptr: Option<&memcached_st>,
    flag: memcached_callback_t,
    error: Out<'_, memcached_return_t>,
) -> *mut c_void {
    guarded(null_mut(), || {
        let Some((memc, inner)) = ptr.and_then(|memc| Some((memc, memc.inner()?))) else {
            put(error, MEMCACHED_INVALID_ARGUMENTS);
            return null_mut();
        };
        let found: *mut c_void = match flag {
            MEMCACHED_CALLBACK_NAMESPACE => {
                put(error, MEMCACHED_SUCCESS);
                let namespace = inner.namespace.borrow();
                let is_set = !namespace.as_bytes().is_empty();
                return if is_set { namespace.as_ptr().cast_mut().cast() } else { null_mut() };
            }
            MEMCACHED_CALLBACK_USER_DATA => memc.user_data.get(),
            MEMCACHED_CALLBACK_CLEANUP_FUNCTION => {
                memc.on_cleanup.get().map_or(null_mut(), |function| function as *mut c_void)
            }
            MEMCACHED_CALLBACK_CLONE_FUNCTION => {
                memc.on_clone.get().map_or(null_mut(), |function| function as *mut c_void)
            }
            MEMCACHED_CALLBACK_GET_FAILURE => {
                memc.get_key_failure.get().map_or(null_mut(), |function| function as *mut c_void)
            }
            MEMCACHED_CALLBACK_DELETE_TRIGGER => {
                memc.delete_trigger.get().map_or(null_mut(), |function| function as *mut c_void)
            }
            _ => null_mut(),
        };
        put(error, if found.is_null() { MEMCACHED_FAILURE } else { MEMCACHED_SUCCESS });
        found
    })
}
