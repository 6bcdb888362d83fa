//! From C's arguments to Rust's, and back.

use std::ffi::{CStr, c_char, c_void};

use super::code::{Code, Fault};

/// A handle, or anything else that is only read.
///
/// # Safety
/// As [`super`] says of arguments; the reference is not kept beyond the call.
pub unsafe fn shared<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller's: it is NULL, or points to a T that is valid and unchanged until the C function returns.
    unsafe { pointer.as_ref() }.ok_or_else(|| Fault::null(what))
}

/// A handle that only one thread uses.
///
/// # Safety
/// As [`super`] says of arguments; the reference is not kept beyond the call, and there is no other.
pub unsafe fn exclusive<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: the caller's: it is NULL, or points to a T that is valid, and that nobody else uses until the C function
    // returns.
    unsafe { pointer.as_mut() }.ok_or_else(|| Fault::null(what))
}

/// Elements of which the caller says how many there are; none need be where their number is 0.
///
/// # Safety
/// As [`super`] says of arguments; the slice is not kept beyond the call.
pub unsafe fn slice<'a, T>(pointer: *const T, length: usize, what: &str) -> Result<&'a [T], Fault> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Fault::null(what));
    }
    if length > isize::MAX as usize / size_of::<T>() {
        return Err(Fault::new(
            Code::InvalidArgument,
            format!("{what} has a length beyond all memory: {length}"),
        ));
    }
    // SAFETY: it is not NULL, and no more bytes than an object may have; the rest is the caller's: it points to as many
    // elements, valid and unchanged until the C function returns. C's pointers to T are aligned for T.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// A key. Whether servers take it is looked at later.
///
/// # Safety
/// As [`slice`].
pub unsafe fn key<'a>(key: *const c_char, length: usize) -> Result<&'a [u8], Fault> {
    // SAFETY: as this function's.
    unsafe { slice(key.cast(), length, "key") }
}

/// A value.
///
/// # Safety
/// As [`slice`].
pub unsafe fn value<'a>(value: *const c_void, length: usize) -> Result<&'a [u8], Fault> {
    // SAFETY: as this function's.
    unsafe { slice(value.cast(), length, "value") }
}

/// A text in UTF-8.
///
/// # Safety
/// As [`super`] says of arguments; the text is not kept beyond the call.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(Fault::null(what));
    }
    // SAFETY: it is not NULL; the rest is the caller's: it ends with a NUL, and is valid and unchanged until the C function
    // returns.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Fault::new(Code::InvalidArgument, format!("{what} is no UTF-8: {text:?}")))
}

/// Gives the caller a result, if he wants it.
///
/// # Safety
/// As [`super`] says of arguments.
pub unsafe fn give<T>(to: *mut T, result: T) {
    if !to.is_null() {
        // SAFETY: it is not NULL; the rest is the caller's: it points to memory for a T that may be written.
        unsafe { to.write(result) }
    }
}

/// Where the caller has a result, which he must want.
pub fn wanted<T>(to: *mut T, what: &str) -> Result<*mut T, Fault> {
    if to.is_null() { Err(Fault::null(what)) } else { Ok(to) }
}

/// Copies bytes into the caller's buffer, which may be NULL if its size is 0. Whether there is room for all of them;
/// otherwise nothing is written.
///
/// # Safety
/// As [`super`] says of arguments.
pub unsafe fn fill(buffer: *mut c_void, size: usize, bytes: &[u8]) -> bool {
    if bytes.len() > size {
        return false;
    }
    if !bytes.is_empty() {
        // SAFETY: the bytes are ours and the buffer, which is not NULL since its size is not 0 ([`buffer`]), is the
        // caller's, so they do not overlap; it has at least as many bytes, as just seen, which may be written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) }
    }
    true
}

/// A buffer for [`fill`]: there, or without any byte.
pub fn buffer(buffer: *mut c_void, size: usize) -> Result<(), Fault> {
    if buffer.is_null() && size > 0 { Err(Fault::null("buffer")) } else { Ok(()) }
}
