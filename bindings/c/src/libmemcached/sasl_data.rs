//! A name and a password as the callbacks that programs pass and get (sasl.h).

use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::rc::{Rc, Weak};

/// `SASL_CB_USER`, `SASL_CB_AUTHNAME`, `SASL_CB_PASS`, `SASL_CB_LIST_END`.
pub(super) const USER: c_ulong = 0x4001;
pub(super) const AUTHNAME: c_ulong = 0x4002;
pub(super) const PASS: c_ulong = 0x4004;
pub(super) const LIST_END: c_ulong = 0;

/// `SASL_OK`, `SASL_BADPARAM`.
pub(super) const OK: c_int = 0;
pub(super) const BAD_PARAM: c_int = -7;

/// Callbacks of an array that are examined, if it has no end.
pub(super) const CALLBACKS_MAX: usize = 32;

/// `sasl_callback_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sasl_callback_t {
    pub(super) id: c_ulong,
    /// As its `id` says: [`GetSimple`] or [`GetSecret`].
    pub(super) proc: Option<unsafe extern "C" fn() -> c_int>,
    pub(super) context: *mut c_void,
}

/// `sasl_secret_t`: `len` bytes from `data` on.
#[repr(C)]
pub(super) struct Secret {
    pub(super) len: c_ulong,
    pub(super) data: [u8; 1],
}

/// `sasl_getsimple_t`.
pub(super) type GetSimple =
    unsafe extern "C" fn(*mut c_void, c_int, *mut *const c_char, *mut c_uint) -> c_int;
/// `sasl_getsecret_t`.
pub(super) type GetSecret = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut *mut Secret) -> c_int;

/// A name and a password as an array of callbacks.
#[derive(Debug)]
pub struct SaslData {
    pub(super) callbacks: [sasl_callback_t; 4],
    pub(super) name: CString,
    /// A [`Secret`], in words of its alignment.
    pub(super) secret: Vec<c_ulong>,
}

impl SaslData {
    pub(super) fn new(name: &[u8], password: &[u8]) -> Option<Rc<SaslData>> {
        let mut secret = vec![0; 1 + password.len() / size_of::<c_ulong>() + 1];
        secret[0] = c_ulong::try_from(password.len()).ok()?;
        for (word, bytes) in secret[1..].iter_mut().zip(password.chunks(size_of::<c_ulong>())) {
            let mut padded = [0; size_of::<c_ulong>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = c_ulong::from_ne_bytes(padded);
        }
        let name = CString::new(name).ok()?;
        // SAFETY: only the pointers' types change, to the one in sasl.h's table; callers cast a pointer back to the type that
        // the callback's id names before they call it.
        let (name_of, secret_of) = unsafe {
            (
                std::mem::transmute::<GetSimple, unsafe extern "C" fn() -> c_int>(name_of),
                std::mem::transmute::<GetSecret, unsafe extern "C" fn() -> c_int>(secret_of),
            )
        };
        // Not in a box: moving one ends the validity of pointers into it.
        Some(Rc::new_cyclic(|given: &Weak<SaslData>| {
            let context: *mut c_void = given.as_ptr().cast_mut().cast();
            let of = |id, proc| sasl_callback_t { id, proc, context };
            let callbacks = [
                of(USER, Some(name_of)),
                of(AUTHNAME, Some(name_of)),
                of(PASS, Some(secret_of)),
                sasl_callback_t { id: LIST_END, proc: None, context: ptr::null_mut() },
            ];
            SaslData { callbacks, name, secret }
        }))
    }
}

/// The callback for a name.
unsafe extern "C" fn name_of(
    context: *mut c_void,
    id: c_int,
    result: *mut *const c_char,
    len: *mut c_uint,
) -> c_int {
    // SAFETY: callers pass the context from the table of callbacks, which is in the same `SaslData`.
    let given = unsafe { context.cast::<SaslData>().as_ref() };
    let (Some(given), false) = (given, result.is_null()) else { return BAD_PARAM };
    if ![USER, AUTHNAME].contains(&(id as c_ulong)) {
        return BAD_PARAM;
    }
    // SAFETY: neither is NULL when written; by sasl.h they point to writable memory for the name's address and length.
    unsafe {
        result.write(given.name.as_ptr());
        if !len.is_null() {
            len.write(c_uint::try_from(given.name.as_bytes().len()).unwrap_or(c_uint::MAX));
        }
    }
    OK
}

/// The callback for a password.
unsafe extern "C" fn secret_of(
    _connection: *mut c_void,
    context: *mut c_void,
    id: c_int,
    secret: *mut *mut Secret,
) -> c_int {
    // SAFETY: callers pass the context from the table of callbacks, which is in the same `SaslData`.
    let given = unsafe { context.cast::<SaslData>().as_ref() };
    let (Some(given), false) = (given, secret.is_null()) else { return BAD_PARAM };
    if id as c_ulong != PASS {
        return BAD_PARAM;
    }
    // SAFETY: not NULL, and by sasl.h writable memory for the secret's address. Callers only read the secret.
    unsafe { secret.write(given.secret.as_ptr().cast_mut().cast()) };
    OK
}
