//! RDMA-Memcached's non-blocking calls.

use std::ffi::c_char;
use std::ptr;

use fabcache::libmemcached::requests::*;
use fabcache::libmemcached::*;

use crate::common::{Handle, Running, text};

/// A request that is freed on drop.
struct Request<'a> {
    handle: &'a Handle,
    request: *mut memcached_request_st,
}

impl<'a> Request<'a> {
    fn new(handle: &'a Handle, value: &[u8]) -> Request<'a> {
        Request::at(handle, value.as_ptr().cast_mut().cast(), value.len())
    }

    fn at(handle: &'a Handle, value: *mut c_char, length: usize) -> Request<'a> {
        // SAFETY: a handle; the value or buffer has the stated length.
        let request = unsafe { memcached_request_create(handle.some(), value, length, 0) };
        assert!(!request.is_null());
        Request { handle, request }
    }

    fn some(&self) -> Option<&memcached_request_st> {
        // SAFETY: the request lives as long as `self`.
        unsafe { self.request.as_ref() }
    }

    fn set(&self, key: &str, flags: u32, is_buffer_sent: bool) -> memcached_return_t {
        let set = if is_buffer_sent { memcached_bset } else { memcached_iset };
        // SAFETY: the key has the stated length; the value lives.
        unsafe { set(self.handle.some(), key.as_ptr().cast(), key.len(), self.some(), 0, flags) }
    }

    fn get(&self, key: &str, is_buffer_sent: bool) -> memcached_return_t {
        let get = if is_buffer_sent { memcached_bget } else { memcached_iget };
        // SAFETY: the key has the stated length; the buffer lives.
        unsafe { get(self.handle.some(), key.as_ptr().cast(), key.len(), self.some()) }
    }

    fn wait(&self) -> memcached_return_t {
        memcached_wait(self.handle.some(), self.some())
    }

    fn test(&self) -> memcached_return_t {
        memcached_test(self.handle.some(), self.some())
    }

    fn seen(&self) -> &memcached_request_st {
        self.some().expect("a request")
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        // SAFETY: the request is of this handle, and this owner drops it.
        unsafe { memcached_request_free(self.handle.some(), self.request) };
    }
}

fn over_each_transport(test: impl Fn(&Handle)) {
    let (_tcp, port) = Running::tcp();
    test(&Handle::new(&format!("--SERVER=127.0.0.1:{port} --NAMESPACE=\"ns:\"")));
    let name = format!("requests-{:?}", std::thread::current().id()).replace(['(', ')'], "");
    let (_shared, socket) = Running::shared(&name);
    test(&Handle::new(&socket));
}

#[test]
fn request_window_shares_a_value_and_is_reusable() {
    over_each_transport(|handle| {
        let value = b"shared by all";
        let window: Vec<_> = (0..32).map(|_| Request::new(handle, value)).collect();
        for round in 0..3 {
            for (i, request) in window.iter().enumerate() {
                assert_eq!(request.set(&format!("key{round}:{i}"), i as u32, i % 2 == 0), MEMCACHED_SUCCESS);
                assert_eq!(request.seen().response.get(), MEMCACHED_IN_PROGRESS);
            }
            for request in &window {
                assert_eq!(request.wait(), MEMCACHED_SUCCESS);
                assert_eq!(request.seen().response.get(), MEMCACHED_SUCCESS);
                // The result does not change.
                assert_eq!(request.test(), MEMCACHED_SUCCESS);
            }
        }
        let found: Vec<_> = (0..32).map(|_| Request::at(handle, ptr::null_mut(), 0)).collect();
        for round in 0..3 {
            for (i, request) in found.iter().enumerate() {
                assert_eq!(request.get(&format!("key{round}:{i}"), i % 2 == 0), MEMCACHED_SUCCESS);
            }
            for (i, request) in found.iter().enumerate() {
                let rc = loop {
                    match request.test() {
                        MEMCACHED_IN_PROGRESS => std::thread::yield_now(),
                        rc => break rc,
                    }
                };
                assert_eq!(rc, MEMCACHED_SUCCESS);
                let seen = request.seen();
                assert_eq!((seen.value_length.get(), seen.flags.get()), (value.len(), i as u32));
                assert_eq!(text(seen.value.get()).as_bytes(), value);
                // SAFETY: C's own allocator allocated it for the caller.
                unsafe { libc::free(seen.value.get().cast()) };
            }
        }
    });
}

#[test]
fn value_is_written_to_the_buffer_when_it_fits() {
    over_each_transport(|handle| {
        assert_eq!(handle.set("key", "0123456789"), MEMCACHED_SUCCESS);
        let mut room = [b'x'; 16];
        for (length, expected, left) in [
            // With a zero, if that fits too.
            (16, MEMCACHED_SUCCESS, &b"0123456789\0xxxxx"[..]),
            (10, MEMCACHED_SUCCESS, b"0123456789xxxxxx"),
            (9, MEMCACHED_E2BIG, b"xxxxxxxxxxxxxxxx"),
            // As RDMA-Memcached's programs do: a buffer of exactly the value's length.
            (0, MEMCACHED_SUCCESS, b"0123456789\0xxxxx"),
        ] {
            room.fill(b'x');
            let request = Request::at(handle, room.as_mut_ptr().cast(), length);
            assert_eq!(request.get("key", false), MEMCACHED_SUCCESS);
            assert_eq!(request.wait(), expected, "{length}");
            assert_eq!(request.seen().value_length.get(), 10);
            drop(request);
            assert_eq!(room, left, "{length}");
        }
        assert_eq!(handle.set("empty", ""), MEMCACHED_SUCCESS);
        let request = Request::at(handle, room.as_mut_ptr().cast(), 0);
        assert_eq!(request.get("empty", false), MEMCACHED_SUCCESS);
        assert_eq!((request.wait(), request.seen().value_length.get()), (MEMCACHED_SUCCESS, 0));
        drop(request);
        assert_eq!(room[0], 0);
        let request = Request::at(handle, ptr::null_mut(), 0);
        assert_eq!(request.get("nothing", true), MEMCACHED_SUCCESS);
        assert_eq!(request.wait(), MEMCACHED_NOTFOUND);
        assert_eq!(request.seen().response.get(), MEMCACHED_NOTFOUND);
        assert!(request.seen().value.get().is_null());
    });
}

#[test]
fn later_buffer_size_is_used() {
    over_each_transport(|handle| {
        assert_eq!(handle.set("key", "0123456789"), MEMCACHED_SUCCESS);
        assert_eq!(handle.set("short", "012"), MEMCACHED_SUCCESS);
        let get = |request: &Request<'_>, key| {
            assert_eq!(request.get(key, false), MEMCACHED_SUCCESS);
            request.wait()
        };
        let request = Request::at(handle, ptr::null_mut(), 0);
        assert_eq!(get(&request, "key"), MEMCACHED_SUCCESS);
        let allocated = request.seen().value.get();
        // A smaller buffer than the value, where there was none at first; the value is allocated as before.
        request.seen().value_length.set(4);
        assert_eq!(get(&request, "key"), MEMCACHED_E2BIG);
        assert_eq!(text(allocated), "0123456789");
        let mut room = [b'x'; 16];
        request.seen().value.set(room.as_mut_ptr().cast());
        request.seen().value_length.set(4);
        assert_eq!(get(&request, "key"), MEMCACHED_E2BIG);
        assert_eq!(get(&request, "nothing"), MEMCACHED_NOTFOUND);
        assert_eq!(get(&request, "short"), MEMCACHED_SUCCESS);
        // The last value's length does not shrink the buffer.
        request.seen().value_length.set(16);
        assert_eq!(get(&request, "short"), MEMCACHED_SUCCESS);
        assert_eq!(get(&request, "key"), MEMCACHED_SUCCESS);
        assert_eq!(request.seen().value_length.get(), 10);
        drop(request);
        assert_eq!(&room, b"0123456789\0xxxxx");
        // SAFETY: C's own allocator allocated it for the caller.
        unsafe { libc::free(allocated.cast()) };
    });
}

#[test]
fn invalid_requests_are_rejected() {
    let handle = Handle::new("--SERVER=127.0.0.1:1");
    let request = Request::new(&handle, b"value");
    // Nothing was requested yet.
    assert_eq!(request.wait(), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(request.test(), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(request.set("", 0, false), MEMCACHED_BAD_KEY_PROVIDED);
    assert_eq!(request.set(&"k".repeat(251), 0, false), MEMCACHED_BAD_KEY_PROVIDED);
    assert_eq!(request.seen().response.get(), MEMCACHED_BAD_KEY_PROVIDED);
    assert_eq!(request.set("key", 0, true), MEMCACHED_CONNECTION_FAILURE);
    assert_eq!(request.wait(), MEMCACHED_CONNECTION_FAILURE);
    let none = Handle::new("--NOREPLY");
    let homeless = Request::new(&none, b"value");
    assert_eq!(homeless.get("key", false), MEMCACHED_NO_SERVERS);

    // SAFETY: here and below, an argument is null.
    assert!(unsafe { memcached_request_create(None, ptr::null_mut(), 0, 0) }.is_null());
    assert_eq!(memcached_wait(handle.some(), None), MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(memcached_test(None, request.some()), MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: as above.
    let rc = unsafe { memcached_iget(handle.some(), c"key".as_ptr(), 3, None) };
    assert_eq!(rc, MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: as above.
    unsafe { memcached_request_free(handle.some(), ptr::null_mut()) };
}

#[test]
fn running_request_cannot_restart_and_can_be_freed() {
    over_each_transport(|handle| {
        let request = Request::new(handle, b"value");
        assert_eq!(request.set("key", 0, false), MEMCACHED_SUCCESS);
        assert_eq!(request.set("other", 0, false), MEMCACHED_IN_PROGRESS);
        drop(request);
        // The operation still runs.
        let found = Request::at(handle, ptr::null_mut(), 0);
        assert_eq!(found.get("key", false), MEMCACHED_SUCCESS);
        assert_eq!(found.wait(), MEMCACHED_SUCCESS);
        // SAFETY: C's own allocator allocated it for the caller.
        unsafe { libc::free(found.seen().value.get().cast()) };
    });
}
