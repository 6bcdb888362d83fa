//! Conversion of C's arguments to Rust's.
//!
//! [`answer_with!`] and [`guarded_with!`] convert every argument of a C function before its body runs. They check for
//! NULL and for impossible lengths, and their one `unsafe` block holds the proof for all of them. References to C's
//! memory borrow the [`Call`], so the compiler rejects one that would outlive the C function.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::code::{Code, Fault};

/// An output parameter; `None` where C passed NULL.
pub type Out<'call, T> = Option<&'call Cell<MaybeUninit<T>>>;

/// Stores a result, if the caller wants it.
pub fn put<T>(out: Out<'_, T>, result: T) {
    if let Some(out) = out {
        out.set(MaybeUninit::new(result));
    }
}

/// The execution of one C function. What its arguments point to is valid for as long as this is borrowed.
///
/// Each method converts one argument. `name` is the argument's name for error messages.
///
/// # Safety
/// For every method: the pointer is NULL or, until the C function returns, points to a valid value of its type, or to
/// as many as the length beside it says, aligned for the type. Nothing else writes to them meanwhile, and nothing else
/// accesses what is passed to [`exclusive`](Call::exclusive), [`out`](Call::out) or [`buffer`](Call::buffer).
pub struct Call(());

#[allow(clippy::missing_safety_doc, reason = "the type states one contract for all methods")]
impl Call {
    pub fn begin() -> Call {
        Call(())
    }

    /// A handle that several threads may use.
    pub unsafe fn shared<'call, T>(&'call self, name: &str, pointer: *const T) -> Result<&'call T, Fault> {
        // SAFETY: NULL or a valid T that nobody writes while `self` is borrowed, by the type's contract.
        unsafe { pointer.as_ref() }.ok_or_else(|| Fault::null(name))
    }

    /// A handle that may be NULL.
    pub unsafe fn optional<'call, T>(
        &'call self,
        _name: &str,
        pointer: *const T,
    ) -> Result<Option<&'call T>, Fault> {
        // SAFETY: as in `shared`.
        Ok(unsafe { pointer.as_ref() })
    }

    /// A handle that one thread at a time uses.
    #[allow(clippy::mut_from_ref, reason = "it points to C's memory, not into the Call")]
    pub unsafe fn exclusive<'call, T>(
        &'call self,
        name: &str,
        pointer: *mut T,
    ) -> Result<&'call mut T, Fault> {
        // SAFETY: NULL or a valid T that nothing else accesses while `self` is borrowed, by the type's contract.
        unsafe { pointer.as_mut() }.ok_or_else(|| Fault::null(name))
    }

    /// A reference-counted handle, kept beyond the call. It came from [`Arc::into_raw`] and is not freed.
    pub unsafe fn counted<T>(&self, name: &str, pointer: *const T) -> Result<Arc<T>, Fault> {
        if pointer.is_null() {
            return Err(Fault::null(name));
        }
        // SAFETY: not NULL, so it came from `Arc::into_raw` and C still owns the reference behind it; the count is
        // raised before the second `Arc` of the same value is made.
        unsafe {
            Arc::increment_strong_count(pointer);
            Ok(Arc::from_raw(pointer))
        }
    }

    /// A handle that C gives up; `None` for NULL. It came from [`Box::into_raw`].
    pub unsafe fn given_up<T>(&self, _name: &str, pointer: *mut T) -> Result<Option<Box<T>>, Fault> {
        // SAFETY: not NULL, so it came from `Box::into_raw`, and C frees a handle once.
        Ok((!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) }))
    }

    /// `length` elements. The pointer may be NULL if there are none.
    pub unsafe fn slice<'call, T>(
        &'call self,
        name: &str,
        pointer: *const T,
        length: usize,
    ) -> Result<&'call [T], Fault> {
        if length == 0 {
            return Ok(&[]);
        }
        if pointer.is_null() {
            return Err(Fault::null(name));
        }
        if length > isize::MAX as usize / size_of::<T>() {
            let text = format!("{name} has {length} elements, more than fit in memory");
            return Err(Fault::new(Code::InvalidArgument, text));
        }
        // SAFETY: not NULL, and no longer than an object can be; by the type's contract it points to as many elements,
        // which nobody writes while `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    /// The bytes of a key. The client library checks its length.
    pub unsafe fn key<'call>(
        &'call self,
        name: &str,
        pointer: *const c_char,
        length: usize,
    ) -> Result<&'call [u8], Fault> {
        // SAFETY: as in `slice`; a char is a byte.
        unsafe { self.slice(name, pointer.cast(), length) }
    }

    /// The bytes of a value.
    pub unsafe fn value<'call>(
        &'call self,
        name: &str,
        pointer: *const c_void,
        length: usize,
    ) -> Result<&'call [u8], Fault> {
        // SAFETY: as in `slice`; a void pointer with a length points to bytes.
        unsafe { self.slice(name, pointer.cast(), length) }
    }

    /// Many keys: `count` pointers and `count` lengths.
    pub unsafe fn keys<'call>(
        &'call self,
        name: &str,
        pointers: *const *const c_char,
        lengths: *const usize,
        count: usize,
    ) -> Result<Vec<&'call [u8]>, Fault> {
        // SAFETY: both arrays have `count` elements, and each pointer and length is a key, by the type's contract.
        unsafe {
            let pointers = self.slice(name, pointers, count)?;
            let lengths = self.slice("key_lengths", lengths, count)?;
            pointers.iter().zip(lengths).map(|(key, length)| self.key("key", *key, *length)).collect()
        }
    }

    /// A NUL-terminated text in UTF-8.
    pub unsafe fn text<'call>(&'call self, name: &str, pointer: *const c_char) -> Result<&'call str, Fault> {
        if pointer.is_null() {
            return Err(Fault::null(name));
        }
        // SAFETY: not NULL, so it ends with a NUL and nobody writes it while `self` is borrowed, by the type's contract.
        let text = unsafe { CStr::from_ptr(pointer) };
        let not_utf8 = |_| Fault::new(Code::InvalidArgument, format!("{name} is not UTF-8: {text:?}"));
        text.to_str().map_err(not_utf8)
    }

    /// A text that may be NULL.
    pub unsafe fn optional_text<'call>(
        &'call self,
        name: &str,
        pointer: *const c_char,
    ) -> Result<Option<&'call str>, Fault> {
        // SAFETY: as in `text`.
        if pointer.is_null() { Ok(None) } else { unsafe { self.text(name, pointer) }.map(Some) }
    }

    /// The texts of `count` server addresses.
    pub unsafe fn addresses<'call>(
        &'call self,
        name: &str,
        pointers: *const *const c_char,
        count: usize,
    ) -> Result<Vec<&'call str>, Fault> {
        // SAFETY: there are `count` pointers, each to a text, by the type's contract.
        unsafe {
            let pointers = self.slice(name, pointers, count)?;
            pointers.iter().map(|address| self.text("an address", *address)).collect()
        }
    }

    /// An output that the caller may not want.
    pub unsafe fn out<'call, T>(&'call self, _name: &str, pointer: *mut T) -> Result<Out<'call, T>, Fault> {
        // SAFETY: NULL or memory for a T that nothing else accesses, by the type's contract; the memory may be
        // uninitialized, and several outputs may be the same, which `Cell<MaybeUninit<T>>` both allows.
        Ok(unsafe { pointer.cast::<Cell<MaybeUninit<T>>>().as_ref() })
    }

    /// An output that must not be NULL.
    pub unsafe fn required_out<'call, T>(
        &'call self,
        name: &str,
        pointer: *mut T,
    ) -> Result<Out<'call, T>, Fault> {
        // SAFETY: as in `out`.
        let out = unsafe { self.out(name, pointer) }?;
        if out.is_some() { Ok(out) } else { Err(Fault::null(name)) }
    }

    /// An output pointer that must not be NULL, set to NULL until there is a result.
    pub unsafe fn cleared_out<'call, T>(
        &'call self,
        name: &str,
        pointer: *mut *mut T,
    ) -> Result<Out<'call, *mut T>, Fault> {
        // SAFETY: as in `out`.
        let out = unsafe { self.required_out(name, pointer) }?;
        put(out, std::ptr::null_mut());
        Ok(out)
    }

    /// The caller's buffer, which may be NULL if its size is 0.
    pub unsafe fn buffer(&self, name: &str, start: *mut c_void, size: usize) -> Result<CallerBuffer, Fault> {
        if start.is_null() && size > 0 { Err(Fault::null(name)) } else { Ok(CallerBuffer { start, size }) }
    }

    /// A callback, which must not be NULL.
    pub unsafe fn callback<F>(&self, name: &str, function: Option<F>) -> Result<F, Fault> {
        function.ok_or_else(|| Fault::null(name))
    }
}

/// A buffer of the caller's for a value. The caller leaves it valid, and to the operation alone, until the operation
/// that has it completes: a call when it returns, a request when `fabcache_test` or `fabcache_wait` reports its end.
#[derive(Clone, Copy, Debug)]
pub struct CallerBuffer {
    start: *mut c_void,
    size: usize,
}

impl CallerBuffer {
    /// Returns whether the caller passed no buffer.
    pub fn is_null(&self) -> bool {
        self.start.is_null()
    }

    /// Copies a value into the buffer. Returns false, and writes nothing, if the value is longer.
    pub fn fill(&self, value: &[u8]) -> bool {
        if value.len() > self.size {
            return false;
        }
        if !value.is_empty() {
            // SAFETY: the size is not 0, so `Call::buffer` saw a pointer that is not NULL, to at least as many bytes;
            // they are valid by the type's promise, and apart from the value, which is the library's.
            unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), self.start.cast(), value.len()) }
        }
        true
    }
}

/// Converts the arguments of the C function around it. `$otherwise` handles a [`Fault`].
macro_rules! convert_arguments {
    ($otherwise:expr, ($($name:ident: $kind:ident($($argument:ident),+)),+ $(,)?) => $body:expr) => {{
        let call = $crate::native::ffi::Call::begin();
        $(
            // SAFETY: the macro is used in C functions only, on their own arguments. Their caller keeps to the
            // preconditions that `fabcache.h` states, which are those of `Call`. `call` is dropped, and every
            // borrow of it ends, before the C function returns.
            let $name = match unsafe { call.$kind(stringify!($name), $($argument),+) } {
                Ok(converted) => converted,
                Err(fault) => return $otherwise(fault),
            };
        )+
        $body
    }};
}

/// Runs a C function that returns a [`Code`]: converts its arguments, then runs the body, which returns a
/// `Result<Code, Fault>`.
macro_rules! answer_with {
    ($arguments:tt => $body:expr) => {
        $crate::native::code::answer(|| $crate::native::ffi::convert_arguments!(Err, $arguments => $body))
    };
}

/// Runs a C function that returns something else than a [`Code`]: `$otherwise` for an invalid argument.
macro_rules! guarded_with {
    ($otherwise:expr, $arguments:tt => $body:expr) => {
        $crate::guarded($otherwise, || {
            $crate::native::ffi::convert_arguments!((|_| $otherwise), $arguments => $body)
        })
    };
}

pub(super) use {answer_with, convert_arguments, guarded_with};
