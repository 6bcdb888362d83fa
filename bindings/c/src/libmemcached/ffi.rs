//! What crosses the border between C and Rust, in safe hands as soon as it can be.
//!
//! Handles, results and other structures come as `Option<&T>`: null, or valid as the caller promises, with all that changes
//! in cells. Where a result goes is an [`Out`].

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// Where a result goes, if the caller wants it; what is there before is nothing yet.
pub type Out<'a, T> = Option<&'a Cell<MaybeUninit<T>>>;

/// Stores a result.
#[inline]
pub fn put<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.set(MaybeUninit::new(value));
    }
}

/// Nothing in memory is longer. A length of -1 and the like is cut to this, which is too much for a key and a value.
const LEN_MAX: usize = isize::MAX.cast_unsigned();

/// The caller's bytes; none if the pointer is null.
///
/// # Safety
/// `bytes` is null, or so many bytes can be read there, and nobody writes them while `'a` lasts.
#[inline]
pub unsafe fn bytes<'a>(bytes: *const c_char, len: usize) -> &'a [u8] {
    if bytes.is_null() {
        return &[];
    }
    // SAFETY: it is not null, and the caller promises the rest.
    unsafe { std::slice::from_raw_parts(bytes.cast(), len.min(LEN_MAX)) }
}

/// An array of the caller's; none if the pointer is null.
///
/// # Safety
/// `items` is null, or so many valid items lie there, and nobody writes them while `'a` lasts.
pub unsafe fn array<'a, T>(items: *const T, len: usize) -> &'a [T] {
    if items.is_null() {
        return &[];
    }
    // SAFETY: it is not null, and the caller promises the rest.
    unsafe { std::slice::from_raw_parts(items, len.min(LEN_MAX / size_of::<T>().max(1))) }
}

/// The caller's string without its end; none if the pointer is null.
///
/// # Safety
/// `text` is null or a string that ends with a zero, and nobody writes it while `'a` lasts.
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is not null, and the caller promises the rest.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}
