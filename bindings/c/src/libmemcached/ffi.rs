//! Conversion of C's arguments to Rust's.
//!
//! Handles, results and other structures arrive as `Option<&T>`: NULL or valid, with mutable fields in cells. Outputs
//! arrive as [`Out`]. [`arguments!`] converts pointers with a length, and strings; its `unsafe` block holds the proof for
//! all of them. What it returns borrows a [`Call`], so the compiler rejects a reference that would outlive the C function.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// An output parameter; `None` where C passed NULL. The memory may be uninitialized.
pub type Out<'a, T> = Option<&'a Cell<MaybeUninit<T>>>;

/// Stores a result, if the caller wants it.
#[inline]
pub fn put<T>(out: Out<'_, T>, value: T) {
    if let Some(out) = out {
        out.set(MaybeUninit::new(value));
    }
}

/// The most bytes that an object can have. Larger lengths, such as -1, are cut to this, which no key or value may have.
const LEN_MAX: usize = isize::MAX.cast_unsigned();

/// The execution of one C function. What its arguments point to is valid for as long as this is borrowed.
///
/// # Safety
/// For every method: the pointer is NULL, or points to as many valid elements as the length says, or to a string with a
/// final NUL. Nothing writes to them until the C function returns.
pub struct Call(());

#[allow(clippy::missing_safety_doc, reason = "the type states one contract for all methods")]
impl Call {
    #[inline]
    pub fn begin() -> Call {
        Call(())
    }

    /// Bytes of a key or a value; none if the pointer is NULL.
    #[inline]
    pub unsafe fn bytes(&self, bytes: *const c_char, len: usize) -> &[u8] {
        if bytes.is_null() {
            return &[];
        }
        // SAFETY: not NULL, and no longer than an object can be; by the type's contract so many bytes are valid, and
        // unchanged while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(bytes.cast(), len.min(LEN_MAX)) }
    }

    /// An array; none if the pointer is NULL.
    pub unsafe fn array<T>(&self, items: *const T, len: usize) -> &[T] {
        if items.is_null() {
            return &[];
        }
        // SAFETY: as in `bytes`, for elements of type T.
        unsafe { std::slice::from_raw_parts(items, len.min(LEN_MAX / size_of::<T>().max(1))) }
    }

    /// Many keys: `count` pointers and `count` lengths. `None` if there are fewer, for instance because an array is NULL.
    pub unsafe fn keys(
        &self,
        starts: *const *const c_char,
        lengths: *const usize,
        count: usize,
    ) -> Option<Vec<&[u8]>> {
        // SAFETY: both arrays have `count` elements, and each start and length is a key, by the type's contract.
        unsafe {
            let (starts, lengths) = (self.array(starts, count), self.array(lengths, count));
            let is_complete = starts.len() == count && lengths.len() == count;
            let keys = starts.iter().zip(lengths).map(|(start, len)| self.bytes(*start, *len));
            is_complete.then(|| keys.collect())
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

/// Converts arguments of the C function around it, as in `arguments!(key: bytes(key, key_length))`.
macro_rules! arguments {
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
