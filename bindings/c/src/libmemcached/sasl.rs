//! Names and passwords, for servers that ask for them (SASL, PLAIN).
//!
//! The state is an array of `sasl_callback_t` (sasl.h), as programs pass and get it: this library's own if they gave
//! a name and a password, else theirs. The callbacks are called for each new connection.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::rc::Rc;

use fabcache_client::Credentials;

use super::behavior::memcached_behavior_set;
use super::constants::*;
use super::ffi::arguments;
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
            // SAFETY: an array of callbacks ends with LIST_END, by sasl.h for the caller's and by construction for
            // this library's; the loop has not reached it yet.
            let callback = unsafe { *first.add(at) };
            let Some(request) = callback.proc.filter(|_| callback.id != LIST_END) else { break };
            match callback.id {
                // SAFETY: by sasl.h, the id states the function's type.
                AUTHNAME => name = unsafe { ask_name(request, callback) },
                // SAFETY: by sasl.h, the id states the function's type.
                USER if name.is_none() => name = unsafe { ask_name(request, callback) },
                // SAFETY: by sasl.h, the id states the function's type.
                PASS => password = unsafe { ask_secret(request, callback) },
                _ => {}
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        Some(Credentials { user: text(name?)?, password: text(password?)? })
    }

    /// Sets the callbacks, and reconnects.
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
            Some((name, password)) => self.install_sasl(name.as_bytes(), &password),
            None => {
                self.set_callbacks(from.sasl.callbacks.get(), None);
                MEMCACHED_SUCCESS
            }
        }
    }

    /// Sets a name and password, and the binary protocol, which SASL needs.
    pub(crate) fn set_credentials(&self, name: &[u8], password: &[u8]) -> memcached_return_t {
        let rc = memcached_behavior_set(Some(self), MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1);
        if rc == MEMCACHED_SUCCESS { self.install_sasl(name, password) } else { rc }
    }

    /// Sets callbacks that return this name and password.
    fn install_sasl(&self, name: &[u8], password: &[u8]) -> memcached_return_t {
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

/// Asks a callback for a name.
///
/// # Safety
/// `ask` is a `sasl_getsimple_t`.
unsafe fn ask_name(request: unsafe extern "C" fn() -> c_int, callback: sasl_callback_t) -> Option<Vec<u8>> {
    let (mut name, mut len): (*const c_char, _) = (ptr::null(), 0);
    // SAFETY: the function has this type, by this function's contract, and gets its own context and id. If it returns
    // OK, `name` is NULL or a string with a final NUL, by sasl.h.
    unsafe {
        let request = std::mem::transmute::<unsafe extern "C" fn() -> c_int, GetSimple>(request);
        if request(callback.context, callback.id as c_int, &mut name, &mut len) != OK || name.is_null() {
            return None;
        }
        Some(CStr::from_ptr(name).to_bytes().to_vec())
    }
}

/// Asks a callback for a password.
///
/// # Safety
/// `ask` is a `sasl_getsecret_t`.
unsafe fn ask_secret(request: unsafe extern "C" fn() -> c_int, callback: sasl_callback_t) -> Option<Vec<u8>> {
    let mut secret: *mut Secret = ptr::null_mut();
    // SAFETY: the function has this type, by this function's contract, and gets its own context and id, and NULL for
    // the connection, as libmemcached passes. If it returns OK, `secret` is NULL or a secret with `len` bytes of data,
    // by sasl.h; the pointer to the data is derived from the whole secret, not from its first byte.
    unsafe {
        let request = std::mem::transmute::<unsafe extern "C" fn() -> c_int, GetSecret>(request);
        let rc = request(ptr::null_mut(), callback.context, callback.id as c_int, &mut secret);
        if rc != OK || secret.is_null() {
            return None;
        }
        let (len, data) = ((*secret).len, &raw const (*secret).data);
        Some(std::slice::from_raw_parts(data.cast(), usize::try_from(len).ok()?).to_vec())
    }
}

/// Sets a name and a password for all servers, and the binary protocol, which libmemcached needs for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_set_sasl_auth_data(
    ptr: Option<&memcached_st>,
    username: *const c_char,
    password: *const c_char,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        arguments!(name: text(username), password: text(password));
        let (Some(memc), Some(name), Some(password)) = (ptr, name, password) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        memc.set_credentials(name, password)
    })
}

/// Forgets the name and the password that were given. Callbacks of the caller's stay.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_destroy_sasl_auth_data(ptr: Option<&memcached_st>) -> memcached_return_t {
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

/// Returns the callbacks; NULL for none.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_get_sasl_callbacks(ptr: Option<&memcached_st>) -> *mut sasl_callback_t {
    ptr.map_or(ptr::null_mut(), |memc| memc.sasl.callbacks.get().cast())
}
