//! A handle of one server for the time of a call.

use std::ffi::c_char;
use std::ptr;

use super::constants::*;
use super::create::{memcached_create, memcached_free};
use super::error::memcached_last_error;
use super::sasl::memcached_set_sasl_auth_data;
use super::server::memcached_server_add;
use super::types::memcached_st;

/// A handle of one server for the time of a call.
pub(crate) struct TemporaryHandle(*mut memcached_st);

impl TemporaryHandle {
    /// A handle of this server, with a name and a password if both are given.
    ///
    /// # Safety
    /// The strings are null, or end with a zero.
    pub(crate) unsafe fn new(
        hostname: *const c_char,
        port: u16,
        user: Option<(*const c_char, *const c_char)>,
    ) -> Result<TemporaryHandle, memcached_return_t> {
        // SAFETY: null, so that it has memory of its own.
        let handle = TemporaryHandle(unsafe { memcached_create(ptr::null_mut()) });
        // SAFETY: the caller promises that of the string.
        let rc = unsafe { memcached_server_add(handle.handle(), hostname, port) };
        if rc != MEMCACHED_SUCCESS {
            return Err(rc);
        }
        if let Some((name, password)) = user.filter(|user| !user.0.is_null() && !user.1.is_null()) {
            // SAFETY: the caller promises that of the strings.
            let rc = unsafe { memcached_set_sasl_auth_data(handle.handle(), name, password) };
            if rc != MEMCACHED_SUCCESS {
                return Err(rc);
            }
        }
        Ok(handle)
    }

    /// None if there was no memory for it.
    pub(crate) fn handle(&self) -> Option<&memcached_st> {
        // SAFETY: null, or a handle that goes with `self`.
        unsafe { self.0.as_ref() }
    }

    /// What was wrong with the server, if it is only known that something was.
    pub(crate) fn cause(&self, rc: memcached_return_t) -> memcached_return_t {
        // SAFETY: null or a handle.
        let known = unsafe { memcached_last_error(self.handle()) };
        if rc == MEMCACHED_SOME_ERRORS && known != MEMCACHED_SUCCESS { known } else { rc }
    }
}

impl Drop for TemporaryHandle {
    fn drop(&mut self) {
        // SAFETY: `memcached_free` takes a handle from `memcached_create`; this is the owner's only call, on drop.
        unsafe { memcached_free(self.0) };
    }
}
