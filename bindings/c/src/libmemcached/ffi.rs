//! Conversion of C's arguments to Rust's.
//!
//! Handles, results and other structures arrive as `Option<&T>`: NULL or valid, with mutable fields in cells. Outputs
//! arrive as [`Out`]. [`arguments!`] converts pointers with a length, and strings; its `unsafe` block holds the proof for
//! all of them. What it returns borrows a [`Call`], so the compiler rejects a reference that would outlive the C function.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use super::constants::*;

/// An output parameter; `None` where C passed NULL. The memory may be uninitialized.
pub type Out<'a, T> = Option<&'a Cell<MaybeUninit<T>>>;

/// Stores a result, if the caller wants it.
#[inline]
pub fn put<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.set(MaybeUninit::new(value));
    }
}

/// The execution of one C function. What its arguments point to is valid for as long as this is borrowed.
///
/// # Safety
/// For every method: the pointer is NULL, or points to as many valid, aligned elements as the length says, or to a string
/// with a final NUL. Nothing writes to them until the C function returns.
pub struct Call(());

#[allow(clippy::missing_safety_doc, reason = "the type states one contract for all methods")]
impl Call {
    #[inline]
    pub fn begin() -> Call {
        Call(())
    }

    /// The bytes of a key; none if the pointer is NULL.
    ///
    /// # Errors
    /// No object has so many bytes. Servers' limits are checked later.
    #[inline]
    pub unsafe fn key(&self, key: *const c_char, len: usize) -> Result<&[u8], memcached_return_t> {
        // SAFETY: NULL or `len` bytes, by the type's contract.
        unsafe { self.slice(key.cast(), len) }.ok_or(MEMCACHED_BAD_KEY_PROVIDED)
    }

    /// The bytes of a value, likewise.
    #[inline]
    pub unsafe fn value(&self, value: *const c_char, len: usize) -> Result<&[u8], memcached_return_t> {
        // SAFETY: NULL or `len` bytes, by the type's contract.
        unsafe { self.slice(value.cast(), len) }.ok_or(MEMCACHED_E2BIG)
    }

    /// The bytes of a configuration string, likewise.
    pub unsafe fn options(&self, options: *const c_char, len: usize) -> Result<&[u8], memcached_return_t> {
        // SAFETY: NULL or `len` bytes, by the type's contract.
        unsafe { self.slice(options.cast(), len) }.ok_or(MEMCACHED_INVALID_ARGUMENTS)
    }

    /// An array; none if the pointer is NULL, or the array is longer than memory.
    pub unsafe fn array<T>(&self, items: *const T, len: usize) -> &[T] {
        // SAFETY: NULL or `len` elements, by the type's contract.
        unsafe { self.slice(items, len) }.unwrap_or_default()
    }

    /// `len` elements; none if the pointer is NULL. `None` if they would be more than an object can have, as with -1.
    #[inline]
    unsafe fn slice<T>(&self, items: *const T, len: usize) -> Option<&[T]> {
        if items.is_null() {
            return Some(&[]);
        }
        if len > isize::MAX.cast_unsigned() / size_of::<T>().max(1) {
            return None;
        }
        // SAFETY: not NULL, and no longer than an object can be; by the type's contract `len` elements are valid, aligned
        // and unchanged while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts(items, len) })
    }

    /// Many keys: `count` pointers and `count` lengths. `None` if there are fewer, for instance because an array is NULL.
    ///
    /// # Errors
    /// As for one [`Call::key`].
    pub unsafe fn keys(
        &self,
        starts: *const *const c_char,
        lengths: *const usize,
        count: usize,
    ) -> Result<Option<Vec<&[u8]>>, memcached_return_t> {
        // SAFETY: both arrays have `count` elements, and each start and length is a key, by the type's contract.
        unsafe {
            let (starts, lengths) = (self.array(starts, count), self.array(lengths, count));
            if starts.len() != count || lengths.len() != count {
                return Ok(None);
            }
            let keys = starts.iter().zip(lengths).map(|(start, len)| self.key(*start, *len));
            keys.collect::<Result<_, _>>().map(Some)
        }
    }

    /// A string without its final NUL; `None` if the pointer is NULL.
    pub unsafe fn text(&self, text: *const c_char) -> Option<&[u8]> {
        if text.is_null() {
            return None;
        }
        // SAFETY: not NULL, so it ends with a NUL and is unchanged while `self` is borrowed, by the type's contract.
        Some(unsafe { CStr::from_ptr(text) }.to_bytes())
    }
}

/// Converts arguments of the C function around it, as in `arguments!(host: text(hostname))`.
///
/// Keys, values and configuration strings may be refused: `arguments!(|code| code; key: key(key, key_length))` returns from
/// the function what the closure makes of the code. Without a closure they stay a `Result`.
macro_rules! arguments {
    ($refuse:expr; $($name:ident: $kind:ident($($argument:expr),+)),+ $(,)?) => {
        $crate::libmemcached::ffi::arguments!($($name: $kind($($argument),+)),+);
        $(
            let $name = match $name {
                Ok(converted) => converted,
                Err(code) => return ($refuse)(code),
            };
        )+
    };
    ($($name:ident: $kind:ident($($argument:expr),+)),+ $(,)?) => {
        let call = $crate::libmemcached::ffi::Call::begin();
        $(
            // SAFETY: the macro is used in C functions only, on their own arguments. libmemcached's manual obliges the
            // caller to the contract of `Call`. `call`, and every borrow of it, ends before the C function returns.
            let $name = unsafe { call.$kind($($argument),+) };
        )+
    };
}

pub(in crate::libmemcached) use arguments;
