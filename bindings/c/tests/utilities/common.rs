//! A server in this process, and handles of it.

use std::ffi::{CStr, c_char};
use std::ops::Deref;

use fabcache::libmemcached::configuration::memcached;
use fabcache::libmemcached::create::memcached_free;
use fabcache::libmemcached::get::memcached_get;
use fabcache::libmemcached::storage::memcached_set;
use fabcache::libmemcached::*;
use fabcache_testbed::local::LocalServer;

/// A server that is stopped when the test ends.
pub struct Running(#[expect(dead_code, reason = "it stops when dropped")] LocalServer);

impl Running {
    /// Over TCP, and its port.
    pub fn tcp() -> (Running, u16) {
        let server = LocalServer::tcp("");
        let port = server.address().port();
        (Running(server), port)
    }

    /// Starts a server on a Unix socket with shared memory; returns the configuration that names it.
    pub fn shared(name: &str) -> (Running, String) {
        let (server, path) = LocalServer::unix(&format!("c-{name}"), "--shm");
        (Running(server), format!("--SOCKET=\"{}\"", path.display()))
    }
}

/// A handle that is freed on drop.
pub struct Handle(pub *mut memcached_st);

impl Handle {
    /// Creates a handle from a configuration string.
    pub fn new(string: &str) -> Handle {
        // SAFETY: the string has the stated length.
        let handle = unsafe { memcached(string.as_ptr().cast(), string.len()) };
        assert!(!handle.is_null(), "{string}");
        Handle(handle)
    }

    pub fn some(&self) -> Option<&memcached_st> {
        // SAFETY: the handle lives as long as `self`.
        unsafe { self.0.as_ref() }
    }

    pub fn set(&self, key: &str, value: &str) -> memcached_return_t {
        // SAFETY: key and value have the stated lengths.
        unsafe {
            memcached_set(
                self.some(),
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                0,
                0,
            )
        }
    }

    pub fn get(&self, key: &str) -> Option<String> {
        // SAFETY: the key has the stated length; other results are not requested.
        let value = unsafe { memcached_get(self.some(), key.as_ptr().cast(), key.len(), None, None, None) };
        let text = (!value.is_null()).then(|| text(value));
        // SAFETY: C's own allocator allocated it for the caller.
        unsafe { libc::free(value.cast()) };
        text
    }
}

impl Deref for Handle {
    type Target = memcached_st;

    fn deref(&self) -> &memcached_st {
        self.some().expect("a handle")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is from `memcached_create`, and this owner drops it.
        unsafe { memcached_free(self.0) };
    }
}

pub fn text(text: *const c_char) -> String {
    // SAFETY: the argument ends with a zero, and lives until the handle is used again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A code that functions write.
pub struct Code(std::cell::Cell<std::mem::MaybeUninit<memcached_return_t>>);

impl Code {
    pub fn new() -> Code {
        Code(std::cell::Cell::new(std::mem::MaybeUninit::new(MEMCACHED_MAXIMUM_RETURN)))
    }

    pub fn out(&self) -> Out<'_, memcached_return_t> {
        Some(&self.0)
    }

    pub fn get(&self) -> memcached_return_t {
        // SAFETY: it was initialized, and functions write only codes.
        unsafe { self.0.get().assume_init() }
    }
}
