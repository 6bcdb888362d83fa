//! A value in memory of its own, lent by Python's buffer protocol.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The bytes of a value. They never change, so a memoryview of them needs no copy.
#[pyclass(frozen, module = "fabcache._fabcache")]
pub struct Value(Vec<u8>);

impl Value {
    /// These bytes.
    pub fn new(bytes: Vec<u8>) -> Value {
        Value(bytes)
    }
}

#[pymethods]
impl Value {
    // SAFETY: called by Python with a buffer to be filled, as its protocol has it.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0;
        let len =
            ffi::Py_ssize_t::try_from(bytes.len()).map_err(|_| PyBufferError::new_err("it is too long"))?;
        let start = bytes.as_ptr().cast_mut().cast();
        let read_only = 1;
        // SAFETY: `view` is the caller's to be filled. `start` is of `len` bytes that stay where they are while the object lives,
        // which the view has a reference to (PyBuffer_FillInfo takes one); they are frozen, and the view is read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, read_only, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}
