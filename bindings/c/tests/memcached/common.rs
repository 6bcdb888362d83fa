//! Handles and servers for the tests.

use fabcache::libmemcached::instance::memcached_instance_st;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::null_mut;

use fabcache::libmemcached::behavior::memcached_behavior_set;
use fabcache::libmemcached::create::{memcached_create, memcached_free};
use fabcache::libmemcached::error::{memcached_last_error, memcached_last_error_message};
use fabcache::libmemcached::fetch::memcached_fetch_result;
use fabcache::libmemcached::get::{memcached_get, memcached_mget};
use fabcache::libmemcached::result::*;
use fabcache::libmemcached::server::{
    memcached_server_add, memcached_server_add_unix_socket, memcached_server_instance_by_position,
};
use fabcache::libmemcached::storage::memcached_set;
use fabcache::libmemcached::*;
use fabcache_testbed::local::LocalServer;

/// Calls one of libmemcached's functions.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe, reason = "functions whose arguments are all typed are safe")]
        // SAFETY: the tests pass NULL or pointers that are valid until the call returns, with their lengths, and use
        // each handle on the thread that created it.
        unsafe {
            $name($($argument),*)
        }
    }};
}
pub(crate) use call;

/// A server in this process, on TCP and on a Unix socket through which it shares memory.
pub struct Running {
    #[expect(dead_code, reason = "it stops when dropped")]
    server: LocalServer,
    pub socket: CString,
    pub port: u16,
}

impl Running {
    pub fn start() -> Running {
        let (server, path) = LocalServer::unix("c", "-l 127.0.0.1 -p -1 --shm");
        let socket = CString::new(path.to_str().expect("text")).expect("text");
        let port = server.address().port();
        Running { server, socket, port }
    }

    /// Returns a handle for each transport.
    pub fn handles(&self) -> [Handle; 2] {
        let (by_memory, by_tcp) = (Handle::new(), Handle::new());
        by_memory.add_socket(&self.socket);
        by_tcp.add(c"127.0.0.1", self.port);
        [by_memory, by_tcp]
    }
}

/// A handle that is freed on drop.
pub struct Handle(*mut memcached_st);

impl Deref for Handle {
    type Target = memcached_st;

    fn deref(&self) -> &memcached_st {
        // SAFETY: the handle was created in `new`, and is freed only on drop.
        unsafe { &*self.0 }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        call!(memcached_free(self.0));
    }
}

impl Handle {
    pub fn new() -> Handle {
        Handle(call!(memcached_create(null_mut())))
    }

    /// Takes over a handle that was created otherwise.
    pub fn of(handle: *mut memcached_st) -> Handle {
        assert!(!handle.is_null());
        Handle(handle)
    }

    pub fn get_ref(&self) -> Option<&memcached_st> {
        Some(self)
    }

    pub fn add(&self, host: &CStr, port: u16) {
        assert_eq!(call!(memcached_server_add(Some(self), host.as_ptr(), port)), MEMCACHED_SUCCESS);
    }

    pub fn add_socket(&self, path: &CStr) {
        let added = call!(memcached_server_add_unix_socket(Some(self), path.as_ptr()));
        assert_eq!(added, MEMCACHED_SUCCESS);
    }

    pub fn behave(&self, flag: memcached_behavior_t, to: u64) {
        assert_eq!(call!(memcached_behavior_set(Some(self), flag, to)), MEMCACHED_SUCCESS, "{flag}");
    }

    pub fn set(&self, key: &str, value: &str) -> memcached_return_t {
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        call!(memcached_set(Some(self), k, key.len(), v, value.len(), 0, 7))
    }

    /// Returns the stored value, or the code of the failure.
    pub fn get(&self, key: &str) -> Result<String, memcached_return_t> {
        let (len, flags, code) = (out(), out(), out());
        let k = key.as_ptr().cast();
        let value = call!(memcached_get(Some(self), k, key.len(), Some(&len), Some(&flags), Some(&code)));
        let (len, code) = (taken(&len), taken(&code));
        if code != MEMCACHED_SUCCESS {
            assert!(value.is_null());
            assert_eq!(len, 0);
            return Err(code);
        }
        Ok(text_and_free(value, len))
    }

    pub fn mget(&self, keys: &[&str]) -> memcached_return_t {
        let starts: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
        let lengths: Vec<usize> = keys.iter().map(|key| key.len()).collect();
        call!(memcached_mget(Some(self), starts.as_ptr(), lengths.as_ptr(), keys.len()))
    }

    /// Fetches all results; returns them and the final code.
    pub fn fetch_all(&self) -> (Vec<(String, String)>, memcached_return_t) {
        let mut found = Vec::new();
        loop {
            let code = out();
            let result = call!(memcached_fetch_result(Some(self), null_mut(), Some(&code)));
            // SAFETY: null, or a result that is freed below.
            let Some(fetched) = (unsafe { result.as_ref() }) else { return (found, taken(&code)) };
            assert_eq!(taken(&code), MEMCACHED_SUCCESS);
            let key = lossy(
                call!(memcached_result_key_value(Some(fetched))),
                call!(memcached_result_key_length(Some(fetched))),
            );
            let value = lossy(
                call!(memcached_result_value(Some(fetched))),
                call!(memcached_result_length(Some(fetched))),
            );
            found.push((key, value));
            call!(memcached_result_free(result));
        }
    }

    pub fn last_error(&self) -> (memcached_return_t, String) {
        let text = call!(memcached_last_error_message(Some(self)));
        (call!(memcached_last_error(Some(self))), c_text(text))
    }

    pub fn server(&self, at: u32) -> &memcached_instance_st {
        let server = call!(memcached_server_instance_by_position(Some(self), at));
        // SAFETY: the handle keeps its servers.
        unsafe { server.as_ref() }.expect("a server")
    }
}

pub fn out<T>() -> Cell<MaybeUninit<T>> {
    Cell::new(MaybeUninit::uninit())
}

/// Returns the value that the call wrote.
pub fn taken<T: Copy>(out: &Cell<MaybeUninit<T>>) -> T {
    // SAFETY: the call that received the pointer has written a value.
    unsafe { out.get().assume_init() }
}

pub fn lossy(start: *const c_char, len: usize) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: the library returned this many bytes.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(start.cast(), len) }).into_owned()
}

pub fn c_text(start: *const c_char) -> String {
    assert!(!start.is_null());
    // SAFETY: a string of the library's.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}

/// Returns a value that the caller frees, checking the zero after it.
pub fn text_and_free(value: *mut c_char, len: usize) -> String {
    if value.is_null() {
        assert_eq!(len, 0, "only empty values have no memory");
        return String::new();
    }
    assert_eq!(c_text(value).len(), len);
    let text = lossy(value, len);
    // SAFETY: malloc allocated it, and the caller frees it.
    unsafe { libc::free(value.cast()) };
    text
}
