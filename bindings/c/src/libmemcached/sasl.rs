//! Names and passwords, for servers that ask for them (SASL, PLAIN).
//!
//! The state is an array of `sasl_callback_t` (sasl.h), as programs pass and get it: this library's own if they gave
//! a name and a password, else theirs. The callbacks are called for each new connection.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::rc::Rc;

use fabcache_client::Credentials;

use super::behavior::memcached_behavior_set;
use super::constants::*;
use super::ffi;
use super::sasl_data::*;
use super::types::memcached_st;
use crate::guarded;

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
    fn set_callbacks(&self, callbacks: *mut c_void, given: Option<Rc<SaslData>>) {
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
        let Some(given) = SaslData::new(name, password) else {
            return self.fail(MEMCACHED_INVALID_ARGUMENTS);
        };
        let callbacks = given.callbacks.as_ptr().cast_mut().cast();
        self.set_callbacks(callbacks, Some(given));
        MEMCACHED_SUCCESS
    }
}

fn password_of(given: &SaslData) -> Vec<u8> {
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
