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
pub struct Running(LocalServer);

impl Running {
    pub fn start(flags: &str) -> Running {
        let flags = format!("-t 1 {flags}");
        Running(LocalServer::start(&flags).expect("a server"))
    }

    /// Over TCP, and its port.
    pub fn tcp() -> (Running, u16) {
        let server = Running::start("-l 127.0.0.1 -p -1");
        let local = server.0.server().local();
        let port = local.iter().find_map(|place| place.to_string().rsplit_once(':')?.1.parse().ok());
        (server, port.expect("a port"))
    }

    /// Over a Unix socket and shared memory, and the words that name it.
    pub fn shared(name: &str) -> (Running, String) {
        let path = std::env::temp_dir().join(format!("fabcache-c-{name}-{}", std::process::id()));
        let server = Running::start(&format!("-s {} --shm", path.display()));
        (server, format!("--SOCKET=\"{}\"", path.display()))
    }
}

/// A handle that is freed when the test ends.
pub struct Handle(pub *mut memcached_st);

impl Handle {
    /// As a configuration string says.
    pub fn new(string: &str) -> Handle {
        // SAFETY: the string is as long as is said.
        let handle = unsafe { memcached(string.as_ptr().cast(), string.len()) };
        assert!(!handle.is_null(), "{string}");
        Handle(handle)
    }

    pub fn some(&self) -> Option<&memcached_st> {
        // SAFETY: it is a handle as long as `self` is there.
        unsafe { self.0.as_ref() }
    }

    pub fn set(&self, key: &str, value: &str) -> memcached_return_t {
        // SAFETY: key and value are as long as is said.
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
        // SAFETY: the key is as long as is said; nothing else is asked for.
        let value = unsafe { memcached_get(self.some(), key.as_ptr().cast(), key.len(), None, None, None) };
        let text = (!value.is_null()).then(|| text(value));
        // SAFETY: it was allocated by C's own, for us.
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
    // SAFETY: what it is called with ends with a zero, and lives until the handle is used again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A code, as functions want to return it.
pub struct Code(std::cell::Cell<std::mem::MaybeUninit<memcached_return_t>>);

impl Code {
    pub fn new() -> Code {
        Code(std::cell::Cell::new(std::mem::MaybeUninit::new(MEMCACHED_MAXIMUM_RETURN)))
    }

    pub fn out(&self) -> Out<'_, memcached_return_t> {
        Some(&self.0)
    }

    pub fn get(&self) -> memcached_return_t {
        // SAFETY: it was initialized, and functions write nothing but codes.
        unsafe { self.0.get().assume_init() }
    }
}
