//! libfabric's objects: closed when dropped, called through their tables.

use std::fmt;
use std::ptr::NonNull;

use crate::sys::{self, Fid};

/// Reads an operation from a table, or `None` if the provider lacks it.
macro_rules! operation {
    ($table:expr, $Table:ident :: $name:ident) => {{
        let table: *const $crate::sys::$Table = $table;
        if table.is_null() {
            None
        } else {
            // SAFETY: every user passes the table of an object that it holds open, or null, which is excluded above. A table
            // of libfabric lives as long as its object, and begins with its size.
            let size = unsafe { (*table).size };
            if size > std::mem::offset_of!($crate::sys::$Table, $name) {
                // SAFETY: the table's size includes this field.
                unsafe { (*table).$name }
            } else {
                None
            }
        }
    }};
}
pub(crate) use operation;

/// A structure that begins with [`Fid`].
///
/// # Safety
/// The type is `repr(C)`, and its first field is a [`Fid`].
pub unsafe trait BeginsWithFid {}

// SAFETY: `sys::FidFabric` is `repr(C)` and its first field is a `Fid`.
unsafe impl BeginsWithFid for sys::FidFabric {}
// SAFETY: `sys::FidDomain` is `repr(C)` and its first field is a `Fid`.
unsafe impl BeginsWithFid for sys::FidDomain {}
// SAFETY: `sys::FidMr` is `repr(C)` and its first field is a `Fid`.
unsafe impl BeginsWithFid for sys::FidMr {}
// SAFETY: `sys::FidAv` is `repr(C)` and its first field is a `Fid`.
unsafe impl BeginsWithFid for sys::FidAv {}
// SAFETY: `sys::FidCq` is `repr(C)` and its first field is a `Fid`.
unsafe impl BeginsWithFid for sys::FidCq {}
// SAFETY: `sys::FidEp` is `repr(C)` and its first field is a `Fid`.
unsafe impl BeginsWithFid for sys::FidEp {}

/// An object of libfabric, exclusively owned.
pub struct Object<T: BeginsWithFid>(NonNull<T>);

// SAFETY: `Library::hints` asks for FI_THREAD_SAFE, with which any thread may call, and close, any object.
unsafe impl<T: BeginsWithFid> Send for Object<T> {}
// SAFETY: with FI_THREAD_SAFE, for which `Library::hints` asks, threads may call the same object at the same time.
unsafe impl<T: BeginsWithFid> Sync for Object<T> {}

impl<T: BeginsWithFid> Object<T> {
    /// Takes ownership of an object that a libfabric call returned; `None` if it is null.
    ///
    /// # Safety
    /// `made` is null, or points to an open object that nothing else closes.
    pub unsafe fn new(made: *mut T) -> Option<Object<T>> {
        NonNull::new(made).map(Object)
    }

    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Returns the common header of all objects.
    pub fn fid(&self) -> *mut Fid {
        self.0.as_ptr().cast()
    }

    fn table(&self) -> *const sys::FiOps {
        // SAFETY: the object is open, and begins with this structure.
        unsafe { (*self.fid()).ops }
    }

    /// Binds another object to it; returns libfabric's result.
    ///
    /// # Safety
    /// The other is of the same domain and outlives this one.
    pub unsafe fn bind(&self, other: *mut Fid, flags: u64) -> i32 {
        match operation!(self.table(), FiOps::bind) {
            // SAFETY: `self` is open until it is dropped; the caller guarantees that the other is open, of the same domain and
            // outlives this one.
            Some(bind) => unsafe { bind(self.fid(), other, flags) },
            None => -sys::FI_ENOSYS,
        }
    }

    /// Calls `fi_control`; returns libfabric's result.
    ///
    /// # Safety
    /// `argument` is what the command takes.
    pub unsafe fn control(&self, command: i32, argument: *mut std::ffi::c_void) -> i32 {
        match operation!(self.table(), FiOps::control) {
            // SAFETY: `self` is open until it is dropped; the caller guarantees that the argument is what the command takes.
            Some(control) => unsafe { control(self.fid(), command, argument) },
            None => -sys::FI_ENOSYS,
        }
    }

    /// Closes it; returns whether libfabric has released it.
    pub fn close(self) -> bool {
        let closed = self.close_by_pointer();
        std::mem::forget(self);
        closed
    }

    fn close_by_pointer(&self) -> bool {
        match operation!(self.table(), FiOps::close) {
            // SAFETY: the object is open, and this call consumes the only handle to it, so nothing uses it
            // afterwards.
            Some(close) => unsafe { close(self.fid()) == 0 },
            None => false,
        }
    }
}

impl<T: BeginsWithFid> Drop for Object<T> {
    fn drop(&mut self) {
        // If closing fails, the object stays with the library.
        self.close_by_pointer();
    }
}

impl<T: BeginsWithFid> fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({:p})", self.0)
    }
}
