//! A handle of one server that lives for one call.

use std::ptr;

use super::constants::*;
use super::create::{memcached_create, memcached_free};
use super::error::memcached_last_error;
use super::types::memcached_st;

/// A handle of one server that lives for one call.
pub(crate) struct TemporaryHandle(*mut memcached_st);

impl TemporaryHandle {
    /// Returns a handle of this server. `user` is a name and a password.
    pub(crate) fn new(
        host: Option<&[u8]>,
        port: u16,
        user: Option<(&[u8], &[u8])>,
    ) -> Result<TemporaryHandle, memcached_return_t> {
        // SAFETY: NULL, so the handle gets memory of its own.
        let handle = TemporaryHandle(unsafe { memcached_create(ptr::null_mut()) });
        let memc = handle.handle().ok_or(MEMCACHED_MEMORY_ALLOCATION_FAILURE)?;
        let mut rc = memc.add_host(host, port, 1);
        if let Some((name, password)) = user.filter(|_| rc == MEMCACHED_SUCCESS) {
            rc = memc.set_credentials(name, password);
        }
        if rc == MEMCACHED_SUCCESS { Ok(handle) } else { Err(rc) }
    }

    /// Returns the handle; `None` if it could not be allocated.
    pub(crate) fn handle(&self) -> Option<&memcached_st> {
        // SAFETY: NULL, or the handle that `self` owns.
        unsafe { self.0.as_ref() }
    }

    /// Returns the server's error where `rc` only says that some error occurred.
    pub(crate) fn cause(&self, rc: memcached_return_t) -> memcached_return_t {
        let known = memcached_last_error(self.handle());
        if rc == MEMCACHED_SOME_ERRORS && known != MEMCACHED_SUCCESS { known } else { rc }
    }
}

impl Drop for TemporaryHandle {
    fn drop(&mut self) {
        // SAFETY: `memcached_free` takes a handle from `memcached_create`; this is the owner's only call, on drop.
        unsafe { memcached_free(self.0) };
    }
}
