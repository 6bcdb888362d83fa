//! SASL credentials, as in sasl.h.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;

use fabcache::libmemcached::behavior::memcached_behavior_get;
use fabcache::libmemcached::create::memcached_clone;
use fabcache::libmemcached::sasl::*;
use fabcache::libmemcached::*;

use crate::common::{Handle, text};

const AUTHNAME: c_ulong = 0x4002;
const PASS: c_ulong = 0x4004;

/// `sasl_callback_t`, as programs declare it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Callback {
    id: c_ulong,
    proc: *const c_void,
    context: *mut c_void,
}

/// Returns the name and password that a handle's callbacks return.
fn reported(handle: &Handle) -> Option<(String, String)> {
    let first: *const Callback = memcached_get_sasl_callbacks(handle.some()).cast();
    if first.is_null() {
        return None;
    }
    let mut reported = (String::new(), String::new());
    for at in 0.. {
        // SAFETY: the array ends with an id of 0, not reached yet.
        let callback = unsafe { first.add(at) };
        // SAFETY: as above.
        let callback = unsafe { *callback };
        match callback.id {
            0 => break,
            AUTHNAME => {
                type NameCallback =
                    unsafe extern "C" fn(*mut c_void, c_int, *mut *const c_char, *mut c_uint) -> c_int;
                // SAFETY: a callback with this id is such a function.
                let get_name: NameCallback = unsafe { std::mem::transmute(callback.proc) };
                let (mut name, mut length) = (ptr::null(), 0);
                // SAFETY: called with its own context.
                let rc = unsafe { get_name(callback.context, AUTHNAME as c_int, &mut name, &mut length) };
                assert_eq!(rc, 0);
                reported.0 = text(name);
                assert_eq!(reported.0.len(), length as usize);
                // SAFETY: as above; with a null result.
                let rc = unsafe {
                    get_name(callback.context, AUTHNAME as c_int, ptr::null_mut(), ptr::null_mut())
                };
                assert!(rc < 0);
                // SAFETY: as above; with an unknown id.
                assert!(unsafe { get_name(callback.context, PASS as c_int, &mut name, &mut length) } < 0);
            }
            PASS => {
                type PasswordCallback =
                    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut *mut c_ulong) -> c_int;
                // SAFETY: a callback with this id is such a function.
                let get_password: PasswordCallback = unsafe { std::mem::transmute(callback.proc) };
                let (connection, mut secret) = (ptr::null_mut(), ptr::null_mut());
                // SAFETY: called with its own context.
                let rc = unsafe { get_password(connection, callback.context, PASS as c_int, &mut secret) };
                assert_eq!(rc, 0);
                // SAFETY: a secret begins with its length.
                let length = unsafe { secret.read() } as usize;
                // SAFETY: its bytes follow the length.
                let bytes = unsafe { secret.add(1) }.cast::<u8>();
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
                reported.1 = String::from_utf8_lossy(bytes).into_owned();
            }
            _ => {}
        }
    }
    Some(reported)
}

#[test]
fn sasl_callbacks_return_credentials_and_are_cloned() {
    let handle = Handle::new("--SERVER=localhost");
    assert_eq!(reported(&handle), None);
    for password in ["", "short", "eight888", "a longer one, of more than one word"] {
        let words = std::ffi::CString::new(password).unwrap();
        // SAFETY: both end with a zero.
        let rc = unsafe { memcached_set_sasl_auth_data(handle.some(), c"somebody".as_ptr(), words.as_ptr()) };
        assert_eq!(rc, MEMCACHED_SUCCESS);
        assert_eq!(reported(&handle), Some(("somebody".into(), password.into())));
    }
    assert_eq!(memcached_behavior_get(handle.some(), MEMCACHED_BEHAVIOR_BINARY_PROTOCOL), 1);
    // SAFETY: null, so the library allocates the copy.
    let copy = Handle(unsafe { memcached_clone(ptr::null_mut(), handle.some()) });
    assert_eq!(memcached_destroy_sasl_auth_data(handle.some()), MEMCACHED_SUCCESS);
    assert_eq!(reported(&handle), None);
    assert_eq!(reported(&copy).expect("the copy's callbacks").0, "somebody");
    // SAFETY: here and below, an argument is null.
    let rc = unsafe { memcached_set_sasl_auth_data(None, c"a".as_ptr(), c"b".as_ptr()) };
    assert_eq!(rc, MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: as above.
    let rc = unsafe { memcached_set_sasl_auth_data(handle.some(), ptr::null(), c"b".as_ptr()) };
    assert_eq!(rc, MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(memcached_destroy_sasl_auth_data(None), MEMCACHED_INVALID_ARGUMENTS);
}

#[test]
fn caller_sasl_callbacks_stay_with_the_caller() {
    let (first, second) = (Handle::new("--SERVER=localhost"), Handle::new("--SERVER=localhost"));
    // SAFETY: both end with a zero.
    let rc = unsafe { memcached_set_sasl_auth_data(first.some(), c"somebody".as_ptr(), c"secret".as_ptr()) };
    assert_eq!(rc, MEMCACHED_SUCCESS);
    let callbacks = memcached_get_sasl_callbacks(first.some());
    // SAFETY: the array lives as long as the first handle.
    unsafe { memcached_set_sasl_callbacks(second.some(), callbacks) };
    assert_eq!(reported(&second), Some(("somebody".into(), "secret".into())));
    assert_eq!(memcached_destroy_sasl_auth_data(second.some()), MEMCACHED_SUCCESS);
    assert_eq!(memcached_get_sasl_callbacks(second.some()), callbacks);
    drop(second);
    assert_eq!(reported(&first), Some(("somebody".into(), "secret".into())));
}
