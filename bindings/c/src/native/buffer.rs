//! Registered memory as C holds it.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabcache_client::RegisteredBuffer;

use super::code::{Code, Fault};

/// Memory for values, used again and again.
pub struct Buffer(pub(super) Mutex<Option<RegisteredBuffer>>);

impl Buffer {
    /// Locks the buffer; `None` while an operation has it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<RegisteredBuffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the memory for an operation, which gives it back.
    pub(super) fn take(&self) -> Result<RegisteredBuffer, Fault> {
        self.lock().take().ok_or_else(in_use)
    }

    /// Returns the memory after the operation.
    pub(super) fn give_back(&self, buffer: Option<RegisteredBuffer>) {
        *self.lock() = buffer;
    }

    /// Returns its value.
    pub(super) fn value(&self) -> (*const c_void, usize) {
        self.lock().as_ref().map_or((null(), 0), |buffer| (buffer.value().as_ptr().cast(), buffer.len()))
    }
}

pub(super) fn in_use() -> Fault {
    let text = "an operation has the buffer: ask fabcache_test() or fabcache_wait() first";
    Fault::new(Code::InvalidArgument, text)
}
