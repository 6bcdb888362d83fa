//! Memory files mapped into this process.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use crate::memory::Memory;

/// A mapped memory file. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the base is only handed out within a `Memory`, whose contract says who may do what.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file to be read.
    ///
    /// # Errors
    /// The file is shorter, so that reading it could be fatal, or the system's.
    pub fn to_read(file: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::new(file, len, ProtFlags::READ)
    }

    /// Maps the first `len` bytes of a file to be read and written.
    ///
    /// # Errors
    /// As for [`Mapping::to_read`].
    pub fn to_write(file: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::new(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn new(file: BorrowedFd<'_>, len: u64, access: ProtFlags) -> io::Result<Mapping> {
        let there = rustix::fs::fstat(file)?.st_size;
        if len == 0 || u64::try_from(there).unwrap_or(0) < len {
            let text = format!("a memory file of {there} bytes cannot be mapped as {len}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len as usize, access, MapFlags::SHARED, file, 0)
        }?;
        Ok(Mapping { base: NonNull::new(base.cast()).expect("a mapping is not at address 0"), len })
    }

    /// Its bytes.
    ///
    /// # Safety
    /// Neither the memory nor a copy of it is used after the mapping is dropped, nor written if it was mapped to be read.
    pub unsafe fn memory(&self) -> Memory {
        // SAFETY: pages are aligned to more than 64 bytes, and mapped until then by this function's own contract;
        // nobody has references into them.
        unsafe { Memory::new(self.base, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no memory over it is used any more by the contract of `memory`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok());
    }
}
