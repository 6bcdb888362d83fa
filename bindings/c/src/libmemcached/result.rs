//! Results: a value with its key, in memory of the handle's allocator.

use std::cell::Cell;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use super::constants::*;
use super::ffi::arguments;
use super::types::*;
use crate::guarded;

/// All results say that they are; the upper bits are libmemcached's as well.
impl memcached_result_st {
    /// One that holds nothing.
    pub(crate) fn new(root: *const memcached_st, is_allocated: bool) -> memcached_result_st {
        memcached_result_st {
            item_flags: Cell::new(0),
            item_expiration: Cell::new(0),
            key_length: Cell::new(0),
            item_cas: Cell::new(0),
            root: Cell::new(root),
            value: memcached_string_st {
                end: Cell::new(null_mut()),
                string: Cell::new(null_mut()),
                current_size: Cell::new(0),
                root: Cell::new(root),
                options: Cell::new(IS_INITIALIZED),
            },
            numeric_value: Cell::new(0),
            count: Cell::new(0),
            item_key: [const { Cell::new(0) }; MEMCACHED_MAX_KEY],
            options: Cell::new(IS_INITIALIZED | if is_allocated { IS_ALLOCATED } else { 0 }),
        }
    }

    fn handle(&self) -> Option<&memcached_st> {
        // SAFETY: NULL, or the handle of the result, which by the manual must not be freed before the result.
        unsafe { self.root.get().as_ref() }
    }

    /// Bytes of the value.
    pub(crate) fn len(&self) -> usize {
        (self.value.end.get() as usize).saturating_sub(self.value.string.get() as usize)
    }

    /// The value.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let start = self.value.string.get();
        if start.is_null() {
            return &[];
        }
        // SAFETY: the bytes from `string` to `end` belong to the result and are initialized; a method that changes them
        // is not called while the slice lives.
        unsafe { std::slice::from_raw_parts(start.cast(), self.len()) }
    }

    /// Holds nothing any more, but keeps its memory.
    pub(crate) fn reset(&self) {
        self.key_length.set(0);
        self.value.end.set(self.value.string.get());
        self.item_flags.set(0);
        self.item_cas.set(0);
        self.item_expiration.set(0);
    }

    /// The key it is of.
    #[inline]
    pub(crate) fn set_key(&self, key: &[u8]) {
        let len = key.len().min(MEMCACHED_MAX_KEY - 1);
        for (to, from) in self.item_key.iter().zip(&key[..len]) {
            to.set(from.cast_signed());
        }
        self.item_key[len].set(0);
        self.key_length.set(len);
    }

    /// Takes a copy of a value. Whether there was memory for it.
    pub(crate) fn set_value(&self, value: &[u8]) -> bool {
        self.value.end.set(self.value.string.get());
        self.append(value)
    }

    /// Adds a copy to its value. Whether there was memory for it.
    fn append(&self, more: &[u8]) -> bool {
        let Some(memc) = self.handle() else { return false };
        let len = self.len();
        let size = len + more.len() + 1;
        if self.value.current_size.get() < size {
            let memory: *mut c_char = memc.allocate(size).cast();
            if memory.is_null() {
                return false;
            }
            // SAFETY: `len` is the length of the value, and the new memory is longer and separate.
            unsafe { std::ptr::copy_nonoverlapping(self.as_bytes().as_ptr().cast(), memory, len) };
            memc.release(self.value.string.replace(memory).cast());
            self.value.current_size.set(size);
        }
        // SAFETY: the memory has room for `len` bytes, `more` and a NUL, as ensured above, and does not overlap `more`.
        let end = unsafe {
            let from = self.value.string.get().add(len);
            std::ptr::copy_nonoverlapping(more.as_ptr().cast(), from, more.len());
            let end = from.add(more.len());
            end.write(0);
            end
        };
        self.value.end.set(end);
        true
    }

    /// Gives up its value, with a final NUL: to be freed as the handle's memory. NULL for an empty value.
    pub(crate) fn take_value(&self) -> *mut c_char {
        if self.len() == 0 {
            return null_mut();
        }
        self.value.end.set(null_mut());
        self.value.current_size.set(0);
        self.value.string.replace(null_mut())
    }

    /// Gives its memory back.
    pub(crate) fn clear(&self) {
        if let Some(memc) = self.handle() {
            let memory = self.value.string.replace(null_mut());
            if !memory.is_null() {
                memc.release(memory.cast());
            }
        }
        self.value.end.set(null_mut());
        self.value.current_size.set(0);
        self.reset();
        self.count.set(0);
    }
}

/// Returns whether a callback's code accepts the item: success, or buffered.
pub fn is_kept(code: memcached_return_t) -> bool {
    matches!(code, MEMCACHED_SUCCESS | MEMCACHED_BUFFERED)
}

/// Creates an empty result in the caller's memory, or in allocated memory if `ptr` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_result_create(
    memc: Option<&memcached_st>,
    ptr: *mut memcached_result_st,
) -> *mut memcached_result_st {
    guarded(null_mut(), || {
        let at =
            if ptr.is_null() { Box::into_raw(Box::<memcached_result_st>::new_uninit()).cast() } else { ptr };
        let root = memc.map_or(null(), std::ptr::from_ref);
        // SAFETY: the caller's memory for a result, or memory just allocated for one; it is written without reading it.
        unsafe { at.write(memcached_result_st::new(root, ptr.is_null())) };
        at
    })
}

/// Frees a result and its value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_result_free(ptr: *mut memcached_result_st) {
    guarded((), || {
        // SAFETY: NULL, or a result that `memcached_result_create` initialized.
        let Some(result) = (unsafe { ptr.as_ref() }) else { return };
        result.clear();
        if result.options.get() & IS_ALLOCATED == 0 {
            result.options.set(result.options.get() & !IS_INITIALIZED);
            return;
        }
        // SAFETY: `memcached_result_create` took it from a box and set IS_ALLOCATED; its value is freed above.
        drop(unsafe { Box::from_raw(ptr.cast::<MaybeUninit<memcached_result_st>>()) });
    });
}

/// Empties a result.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_reset(ptr: Option<&memcached_result_st>) {
    if let Some(result) = ptr {
        result.reset();
    }
}

/// Returns its key, with a final NUL.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_key_value(ptr: Option<&memcached_result_st>) -> *const c_char {
    match ptr {
        Some(result) if result.key_length.get() > 0 => result.item_key.as_ptr().cast(),
        _ => null(),
    }
}

/// Bytes of its key.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_key_length(ptr: Option<&memcached_result_st>) -> usize {
    ptr.map_or(0, |result| result.key_length.get())
}

/// Returns its value, valid as long as it holds one, with a final NUL.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_value(ptr: Option<&memcached_result_st>) -> *const c_char {
    ptr.map_or(null(), |result| result.value.string.get())
}

/// Its value, which is the caller's to free from now on.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_take_value(ptr: Option<&memcached_result_st>) -> *mut c_char {
    guarded(null_mut(), || ptr.map_or(null_mut(), memcached_result_st::take_value))
}

/// Bytes of its value.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_length(ptr: Option<&memcached_result_st>) -> usize {
    ptr.map_or(0, memcached_result_st::len)
}

/// Client flags it was stored with.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_flags(ptr: Option<&memcached_result_st>) -> u32 {
    ptr.map_or(0, |result| result.item_flags.get())
}

/// Returns its CAS, if CAS values are requested.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_cas(ptr: Option<&memcached_result_st>) -> u64 {
    ptr.map_or(0, |result| result.item_cas.get())
}

/// Appends a copy of a value to its value, as libmemcached does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_result_set_value(
    ptr: Option<&memcached_result_st>,
    value: *const c_char,
    length: usize,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(result) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        arguments!(|_| MEMCACHED_MEMORY_ALLOCATION_FAILURE; value: value(value, length));
        if result.append(value) { MEMCACHED_SUCCESS } else { MEMCACHED_MEMORY_ALLOCATION_FAILURE }
    })
}

/// Sets its client flags.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_set_flags(ptr: Option<&memcached_result_st>, flags: u32) {
    if let Some(result) = ptr {
        result.item_flags.set(flags);
    }
}

/// Sets when it expires.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_result_set_expiration(ptr: Option<&memcached_result_st>, expiration: i64) {
    if let Some(result) = ptr {
        result.item_expiration.set(expiration);
    }
}
