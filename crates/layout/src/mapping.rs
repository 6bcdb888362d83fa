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
    /// Length rounded up to whole pages of the file, as [munmap(2)] requires for huge pages.
    ///
    /// [munmap(2)]: https://man7.org/linux/man-pages/man2/mmap.2.html
    mapped: usize,
}

// SAFETY: the base is only used within a `Memory`, whose contract covers access from all threads.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file for reading.
    ///
    /// # Errors
    /// The file is shorter, so reading it could be fatal, or the system fails.
    pub fn to_read(file: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::part_to_read(file, 0, len)
    }

    /// Maps the `len` bytes from `offset` of a file for reading.
    ///
    /// # Errors
    /// As for [`Mapping::to_read`]; or the offset is not a multiple of the page size.
    pub fn part_to_read(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Mapping> {
        Mapping::new(file, offset, len, ProtFlags::READ)
    }

    /// Maps the first `len` bytes of a file for reading and writing.
    ///
    /// # Errors
    /// As for [`Mapping::to_read`].
    pub fn to_write(file: BorrowedFd<'_>, len: u64) -> io::Result<Mapping> {
        Mapping::new(file, 0, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn new(file: BorrowedFd<'_>, offset: u64, len: u64, access: ProtFlags) -> io::Result<Mapping> {
        let stat = rustix::fs::fstat(file)?;
        let there = stat.st_size;
        let end = offset.saturating_add(len);
        if len == 0 || u64::try_from(there).unwrap_or(0) < end {
            let text = format!("a memory file of {there} bytes has no {len} bytes at {offset} to map");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let page = usize::try_from(stat.st_blksize).unwrap_or(0).max(1);
        let mapped = (len as usize).next_multiple_of(page);
        let (anywhere, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(anywhere, mapped, access, shared, file, offset) }?;
        Ok(Mapping { base: NonNull::new(base.cast()).expect("a mapping is not at address 0"), len, mapped })
    }

    /// Returns its bytes.
    ///
    /// # Safety
    /// Neither the memory nor a copy of it is used after the mapping is dropped, nor written if it was mapped for
    /// reading.
    pub unsafe fn memory(&self) -> Memory {
        // SAFETY: `Memory::new` asks for 64-byte alignment, a mapping that outlives the memory, and no references
        // into it. Pages are aligned to more than 64 bytes; the mapping lives as long as this function's own contract
        // says; only `Memory` accesses it.
        unsafe { Memory::new(self.base, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no memory over it is used any more by the contract of `memory`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use fabcache_testbed::report::not_run;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn is_mapped(name: &str) -> bool {
        std::fs::read_to_string("/proc/self/maps").expect("Linux has it").contains(name)
    }

    /// Maps part of a file and drops the mapping.
    fn comes_and_goes(name: &str, flags: MemfdFlags, bytes: u64, len: u64) -> io::Result<()> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | flags)?;
        ftruncate(&file, bytes)?;
        let mapping = Mapping::to_read(file.as_fd(), len)?;
        assert!(is_mapped(name));
        drop(mapping);
        assert!(!is_mapped(name), "{name} is still mapped");
        Ok(())
    }

    #[test]
    fn dropped_mapping_is_unmapped() {
        comes_and_goes("fabcache-small-pages", MemfdFlags::empty(), 8192, 5000).expect("memory");
        let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        if let Err(error) = comes_and_goes("fabcache-huge-pages", huge, 2 << 20, 5000) {
            not_run("dropped_mapping_is_unmapped with huge pages, as none are reserved", &error);
        }
    }

    #[test]
    fn short_file_is_not_mapped() {
        let file = memfd_create("fabcache-short", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, 4096).expect("memory");
        assert!(Mapping::to_read(file.as_fd(), 4096).is_ok());
        assert!(Mapping::to_read(file.as_fd(), 4097).is_err());
        assert!(Mapping::to_read(file.as_fd(), 0).is_err());
    }

    #[test]
    fn part_is_mapped_where_it_is() {
        let file = memfd_create("fabcache-part", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, 3 << 14).expect("memory");
        rustix::io::pwrite(&file, &7_u64.to_ne_bytes(), 1 << 14).expect("memory");
        let mapping = Mapping::part_to_read(file.as_fd(), 1 << 14, 1 << 14).expect("in the file");
        // SAFETY: it is used before the mapping is dropped, and not written.
        let memory = unsafe { mapping.memory() };
        assert_eq!((memory.len(), memory.load(0, crate::sync::Ordering::Relaxed)), (1 << 14, 7));
        for (offset, len) in [(1 << 14, (2 << 14) + 1), (3 << 14, 1), (u64::MAX, 2), (8, 8)] {
            assert!(Mapping::part_to_read(file.as_fd(), offset, len).is_err(), "{offset} {len}");
        }
    }
}
