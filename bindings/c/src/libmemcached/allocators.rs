//! Memory that callers free, or that their allocators give.

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use super::constants::{MEMCACHED_INVALID_ARGUMENTS, MEMCACHED_SUCCESS, memcached_return_t};
use super::ffi::{Out, put};
use super::types::{
    memcached_allocator_t, memcached_calloc_fn, memcached_free_fn, memcached_malloc_fn, memcached_realloc_fn,
    memcached_st,
};
use crate::guarded;

impl memcached_st {
    /// Allocates with the handle's allocator; null if it fails.
    #[inline]
    pub(crate) fn allocate(&self, len: usize) -> *mut c_void {
        match self.allocators.malloc.get() {
            // SAFETY: the caller's function for this handle, or `default_malloc`, with the context set with it.
            Some(malloc) => unsafe { malloc(self, len, self.allocators.context.get()) },
            None => std::ptr::null_mut(),
        }
    }

    /// Gives back what [`memcached_st::allocate`] gave; nothing if it is null.
    pub(crate) fn release(&self, memory: *mut c_void) {
        if let Some(free) = self.allocators.free.get() {
            // SAFETY: the caller's function for this handle, or `default_free`, with the context set with it. The memory
            // is NULL or `allocate` gave it, and this crate's callers do not use it afterwards. A program that sets other
            // allocators meanwhile sees to it that they free this memory too, as with libmemcached.
            unsafe { free(self, memory, self.allocators.context.get()) }
        }
    }

    /// Copies bytes, with a final NUL, to memory of the handle's allocator; NULL if that fails.
    #[inline]
    pub(crate) fn copy_out(&self, bytes: &[u8]) -> *mut c_char {
        let copy: *mut c_char = self.allocate(bytes.len() + 1).cast();
        if copy.is_null() {
            return copy;
        }
        // SAFETY: not NULL, and just allocated with room for the bytes and a NUL, so it does not overlap them.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), copy, bytes.len());
            copy.add(bytes.len()).write(0);
        }
        copy
    }
}

/// The allocators of a new handle.
pub fn defaults() -> memcached_allocator_t {
    memcached_allocator_t {
        calloc: Cell::new(Some(default_calloc)),
        free: Cell::new(Some(default_free)),
        malloc: Cell::new(Some(default_malloc)),
        realloc: Cell::new(Some(default_realloc)),
        context: Cell::new(std::ptr::null_mut()),
    }
}

unsafe extern "C" fn default_malloc(_: *const memcached_st, len: usize, _: *mut c_void) -> *mut c_void {
    // SAFETY: malloc(3) has no preconditions.
    unsafe { libc::malloc(len) }
}

unsafe extern "C" fn default_free(_: *const memcached_st, memory: *mut c_void, _: *mut c_void) {
    // SAFETY: whoever calls a handle's allocators passes NULL, or memory of `default_malloc`, `default_realloc` or
    // `default_calloc`, which are malloc(3)'s, and does not use it afterwards.
    unsafe { libc::free(memory) }
}

unsafe extern "C" fn default_realloc(
    _: *const memcached_st,
    memory: *mut c_void,
    len: usize,
    _: *mut c_void,
) -> *mut c_void {
    // SAFETY: whoever calls a handle's allocators passes NULL, or memory of `default_malloc`, `default_realloc` or
    // `default_calloc`, which are malloc(3)'s, and does not use it afterwards unless this fails.
    unsafe { libc::realloc(memory, len) }
}

unsafe extern "C" fn default_calloc(
    _: *const memcached_st,
    count: usize,
    len: usize,
    _: *mut c_void,
) -> *mut c_void {
    // SAFETY: calloc(3) has no preconditions.
    unsafe { libc::calloc(count, len) }
}

/// From now on memory is the caller's functions'; the C library's if none is given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_set_memory_allocators(
    ptr: Option<&memcached_st>,
    mem_malloc: memcached_malloc_fn,
    mem_free: memcached_free_fn,
    mem_realloc: memcached_realloc_fn,
    mem_calloc: memcached_calloc_fn,
    context: *mut c_void,
) -> memcached_return_t {
    guarded(MEMCACHED_INVALID_ARGUMENTS, || {
        let Some(memc) = ptr else { return MEMCACHED_INVALID_ARGUMENTS };
        let to = &memc.allocators;
        match (mem_malloc, mem_free, mem_realloc, mem_calloc) {
            (None, None, None, None) => {
                let from = defaults();
                to.malloc.set(from.malloc.get());
                to.free.set(from.free.get());
                to.realloc.set(from.realloc.get());
                to.calloc.set(from.calloc.get());
                to.context.set(from.context.get());
            }
            (Some(_), Some(_), Some(_), Some(_)) => {
                to.malloc.set(mem_malloc);
                to.free.set(mem_free);
                to.realloc.set(mem_realloc);
                to.calloc.set(mem_calloc);
                to.context.set(context);
            }
            _ => {
                return memc.fail_with(
                    MEMCACHED_INVALID_ARGUMENTS,
                    "NULL parameter provided for one or more allocators",
                );
            }
        }
        MEMCACHED_SUCCESS
    })
}

/// Whose functions give memory.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_get_memory_allocators(
    ptr: Option<&memcached_st>,
    mem_malloc: Out<'_, memcached_malloc_fn>,
    mem_free: Out<'_, memcached_free_fn>,
    mem_realloc: Out<'_, memcached_realloc_fn>,
    mem_calloc: Out<'_, memcached_calloc_fn>,
) {
    guarded((), || {
        let Some(memc) = ptr else { return };
        put(mem_malloc, memc.allocators.malloc.get());
        put(mem_free, memc.allocators.free.get());
        put(mem_realloc, memc.allocators.realloc.get());
        put(mem_calloc, memc.allocators.calloc.get());
    });
}

/// Returns the context that allocators get.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_get_memory_allocators_context(ptr: Option<&memcached_st>) -> *mut c_void {
    ptr.map_or(std::ptr::null_mut(), |memc| memc.allocators.context.get())
}
