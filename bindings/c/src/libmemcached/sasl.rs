//! Names and passwords, for servers that ask for them (SASL, PLAIN).
//!
//! The state is an array of `sasl_callback_t` (sasl.h), as programs pass and get it: this library's own if they gave
//! a name and a password, else theirs. The callbacks are called for each new connection.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::rc::{Rc, Weak};

use fabcache_client::Credentials;

use super::behavior::memcached_behavior_set;
use super::constants::*;
use super::ffi;
use super::types::memcached_st;
use crate::guarded;

/// `SASL_CB_USER`, `SASL_CB_AUTHNAME`, `SASL_CB_PASS`, `SASL_CB_LIST_END`.
const USER: c_ulong = 0x4001;
const AUTHNAME: c_ulong = 0x4002;
const PASS: c_ulong = 0x4004;
const LIST_END: c_ulong = 0;

/// `SASL_OK`, `SASL_BADPARAM`.
const OK: c_int = 0;
const BAD_PARAM: c_int = -7;

/// Callbacks of an array that are looked at, if it has no end.
const CALLBACKS_MAX: usize = 32;

/// `sasl_callback_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sasl_callback_t {
    id: c_ulong,
    /// As its `id` says: [`GetSimple`] or [`GetSecret`].
    proc: Option<unsafe extern "C" fn() -> c_int>,
    context: *mut c_void,
}

/// `sasl_secret_t`: so many bytes from `data` on.
#[repr(C)]
struct Secret {
    len: c_ulong,
    data: [u8; 1],
}

/// `sasl_getsimple_t`.
type GetSimple = unsafe extern "C" fn(*mut c_void, c_int, *mut *const c_char, *mut c_uint) -> c_int;
/// `sasl_getsecret_t`.
type GetSecret = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut *mut Secret) -> c_int;

/// A name and a password as an array of callbacks.
#[derive(Debug)]
pub struct Given {
    callbacks: [sasl_callback_t; 4],
    name: CString,
    /// A [`Secret`], in words of its alignment.
    secret: Vec<c_ulong>,
}

impl Given {
    fn new(name: &[u8], password: &[u8]) -> Option<Rc<Given>> {
        let mut secret = vec![0; 1 + password.len() / size_of::<c_ulong>() + 1];
        secret[0] = c_ulong::try_from(password.len()).ok()?;
        for (word, bytes) in secret[1..].iter_mut().zip(password.chunks(size_of::<c_ulong>())) {
            let mut padded = [0; size_of::<c_ulong>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = c_ulong::from_ne_bytes(padded);
        }
        let name = CString::new(name).ok()?;
        // SAFETY: only the form of a pointer changes; who calls it does so by its id, as what it is.
        let name_of = unsafe { std::mem::transmute::<GetSimple, unsafe extern "C" fn() -> c_int>(name_of) };
        // SAFETY: as above.
        let secret_of =
            unsafe { std::mem::transmute::<GetSecret, unsafe extern "C" fn() -> c_int>(secret_of) };
        // Not in a box: moving one ends the validity of pointers into it.
        Some(Rc::new_cyclic(|given: &Weak<Given>| {
            let context: *mut c_void = given.as_ptr().cast_mut().cast();
            let of = |id, proc| sasl_callback_t { id, proc, context };
            let callbacks = [
                of(USER, Some(name_of)),
                of(AUTHNAME, Some(name_of)),
                of(PASS, Some(secret_of)),
                sasl_callback_t { id: LIST_END, proc: None, context: ptr::null_mut() },
            ];
            Given { callbacks, name, secret }
        }))
    }
}

/// Our callback for a name.
unsafe extern "C" fn name_of(
    context: *mut c_void,
    id: c_int,
    result: *mut *const c_char,
    len: *mut c_uint,
) -> c_int {
    // SAFETY: the context of our callbacks, which lives as long as they do.
    let given = unsafe { context.cast::<Given>().as_ref() };
    let (Some(given), false) = (given, result.is_null()) else { return BAD_PARAM };
    if ![USER, AUTHNAME].contains(&(id as c_ulong)) {
        return BAD_PARAM;
    }
    // SAFETY: where the caller wants the name; it is not null.
    unsafe { result.write(given.name.as_ptr()) };
    if !len.is_null() {
        // SAFETY: where the caller wants its length; it is not null.
        unsafe { len.write(c_uint::try_from(given.name.as_bytes().len()).unwrap_or(c_uint::MAX)) };
    }
    OK
}

/// Our callback for a password.
unsafe extern "C" fn secret_of(
    _connection: *mut c_void,
    context: *mut c_void,
    id: c_int,
    secret: *mut *mut Secret,
) -> c_int {
    // SAFETY: the context of our callbacks, which lives as long as they do.
    let given = unsafe { context.cast::<Given>().as_ref() };
    let (Some(given), false) = (given, secret.is_null()) else { return BAD_PARAM };
    if id as c_ulong != PASS {
        return BAD_PARAM;
    }
    // SAFETY: where the caller wants it; it is not null. Callers read it only.
    unsafe { secret.write(given.secret.as_ptr().cast_mut().cast()) };
    OK
}

impl memcached_st {
    /// Returns the name and password from the callbacks, if any are set.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let first: *const sasl_callback_t = self.sasl.callbacks.get().cast();
        // libmemcached sends them by the binary protocol only.
        if first.is_null() || !self.is_binary() {
            return None;
        }
        let (mut name, mut password) = (None, None);
        for at in 0..CALLBACKS_MAX {
            // SAFETY: the array is of the caller's, or ours, and has an end that was not reached yet.
            let callback = unsafe { first.add(at) };
            // SAFETY: as above.
            let callback = unsafe { *callback };
            let Some(ask) = callback.proc.filter(|_| callback.id != LIST_END) else { break };
            match callback.id {
                // SAFETY: a callback with this id is this function.
                AUTHNAME => name = unsafe { ask_name(ask, callback) },
                // SAFETY: a callback with this id is this function.
                USER if name.is_none() => name = unsafe { ask_name(ask, callback) },
                // SAFETY: a callback with this id is this function.
                PASS => password = unsafe { ask_secret(ask, callback) },
                _ => {}
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        Some(Credentials { user: text(name?)?, password: text(password?)? })
    }

    /// Other names and passwords from now on: connections are made anew.
    fn set_callbacks(&self, callbacks: *mut c_void, given: Option<Rc<Given>>) {
        self.sasl.callbacks.set(callbacks);
        self.sasl.is_allocated.set(u8::from(given.is_some()));
        if let Some(inner) = self.inner() {
            inner.sasl.replace(given);
        }
        self.reconnect();
    }

    /// Copies another handle's callbacks.
    pub(crate) fn copy_sasl(&self, from: &memcached_st) -> memcached_return_t {
        let given = from.inner().and_then(|inner| {
            let given = inner.sasl.borrow();
            given.as_ref().map(|given| (given.name.clone(), password_of(given)))
        });
        match given {
            Some((name, password)) => self.give(name.as_bytes(), &password),
            None => {
                self.set_callbacks(from.sasl.callbacks.get(), None);
                MEMCACHED_SUCCESS
            }
        }
    }

    fn give(&self, name: &[u8], password: &[u8]) -> memcached_return_t {
        let Some(given) = Given::new(name, password) else { return self.fail(MEMCACHED_INVALID_ARGUMENTS) };
        let callbacks = given.callbacks.as_ptr().cast_mut().cast();
        self.set_callbacks(callbacks, Some(given));
        MEMCACHED_SUCCESS
    }
}

fn password_of(given: &Given) -> Vec<u8> {
    let bytes = given.secret[1..].iter().flat_map(|word| word.to_ne_bytes());
    bytes.take(given.secret[0] as usize).collect()
}

/// # Safety
/// `ask` is a `sasl_getsimple_t`.
unsafe fn ask_name(ask: unsafe extern "C" fn() -> c_int, callback: sasl_callback_t) -> Option<Vec<u8>> {
    // SAFETY: as our caller promises.
    let ask = unsafe { std::mem::transmute::<unsafe extern "C" fn() -> c_int, GetSimple>(ask) };
    let (mut name, mut len) = (ptr::null(), 0);
    // SAFETY: it is called as sasl.h says, with its own context.
    let rc = unsafe { ask(callback.context, callback.id as c_int, &mut name, &mut len) };
    // SAFETY: it says that a string lies there.
    (rc == OK).then(|| unsafe { ffi::text(name) }.map(<[u8]>::to_vec)).flatten()
}

/// # Safety
/// `ask` is a `sasl_getsecret_t`.
unsafe fn ask_secret(ask: unsafe extern "C" fn() -> c_int, callback: sasl_callback_t) -> Option<Vec<u8>> {
    // SAFETY: as our caller promises.
    let ask = unsafe { std::mem::transmute::<unsafe extern "C" fn() -> c_int, GetSecret>(ask) };
    let mut secret: *mut Secret = ptr::null_mut();
    // SAFETY: it is called as sasl.h says, with its own context; there is no connection of that library.
    let rc = unsafe { ask(ptr::null_mut(), callback.context, callback.id as c_int, &mut secret) };
    if rc != OK || secret.is_null() {
        return None;
    }
    // SAFETY: it says that a secret lies there.
    let len = unsafe { (*secret).len };
    // SAFETY: as above; no reference to its first byte alone is made.
    let data = unsafe { &raw const (*secret).data };
    // SAFETY: a secret has so many bytes.
    Some(unsafe { std::slice::from_raw_parts(data.cast(), usize::try_from(len).ok()?) }.to_vec())
}

/// A name and a password for all servers. From now on they are asked by the binary protocol, which libmemcached needs for
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_set_sasl_auth_data(
    ptr: Option<&memcached_st>,
    username: *const c_char,
    password: *const c_char,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        // SAFETY: as our caller promises.
        let name = unsafe { ffi::text(username) };
        // SAFETY: as our caller promises.
        let password = unsafe { ffi::text(password) };
        let (Some(memc), Some(name), Some(password)) = (ptr, name, password) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        // SAFETY: it is a handle.
        let rc = unsafe { memcached_behavior_set(Some(memc), MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1) };
        if rc == MEMCACHED_SUCCESS { memc.give(name, password) } else { rc }
    })
}

/// Forgets the name and the password that were given. Callbacks of the caller's stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_destroy_sasl_auth_data(ptr: Option<&memcached_st>) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        if memc.sasl.is_allocated.get() != 0 {
            memc.set_callbacks(ptr::null_mut(), None);
        }
        MEMCACHED_SUCCESS
    })
}

/// The caller's own callbacks for names and passwords; they stay the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_set_sasl_callbacks(
    ptr: Option<&memcached_st>,
    callbacks: *const sasl_callback_t,
) {
    guarded((), || {
        if let Some(memc) = ptr {
            memc.set_callbacks(callbacks.cast_mut().cast(), None);
        }
    });
}

/// The callbacks that are asked; null for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_get_sasl_callbacks(ptr: Option<&memcached_st>) -> *mut sasl_callback_t {
    ptr.map_or(ptr::null_mut(), |memc| memc.sasl.callbacks.get().cast())
}
