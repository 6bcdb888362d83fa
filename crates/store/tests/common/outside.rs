//! A region as external readers map it: read-only.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use fabcache_layout::Memory;
use rustix::mm::{MapFlags, ProtFlags};

/// Maps `len` bytes of a file for reading, for the life of the process.
pub fn map(file: impl AsFd, len: u64) -> Memory {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len as usize, ProtFlags::READ, MapFlags::SHARED, file, 0)
    };
    let base = NonNull::new(base.expect("memory to map").cast()).expect("a mapping is not at address 0");
    // SAFETY: page-aligned, mapped for reading and never unmapped; no references point into it.
    unsafe { Memory::new(base, len) }
}

/// Maps all of a file for reading.
pub fn map_all(file: impl AsFd) -> Memory {
    let len = rustix::fs::fstat(&file).expect("an open file").st_size as u64;
    map(file, len)
}
