//! A file that is mapped for reading and writing: the common part of all backings on files.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::RwLock;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::Locking;
use crate::error::CreateError;

/// A file mapped whole, shared with other processes. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: u64,
    page_bytes: u64,
    /// No page is released any more.
    keeps_pages: RwLock<bool>,
}

// SAFETY: the base is only given out as a raw pointer, whose user is responsible for its accesses.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Sizes a file to `len` bytes, at least as many as it has, rounded up to whole pages of `page_bytes`, and maps it. The
    /// file is as it was after an error.
    pub fn create(fd: OwnedFd, len: u64, page_bytes: u64) -> Result<Mapping, CreateError> {
        // First the mapping, which may fail for want of huge pages or of address space.
        let mapping = Mapping::open(fd, len, page_bytes)?;
        rustix::fs::ftruncate(&mapping, mapping.len).map_err(|errno| CreateError::System {
            what: format!("cannot size the region to {} bytes", mapping.len),
            source: errno.into(),
        })?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes of a file, rounded up to whole pages of `page_bytes`. The caller makes the file as long
    /// before it accesses them.
    pub fn open(fd: OwnedFd, len: u64, page_bytes: u64) -> Result<Mapping, CreateError> {
        let mapped = len.next_multiple_of(page_bytes);
        let failed = |what: String| move |errno: Errno| CreateError::System { what, source: errno.into() };
        let advice = if page_bytes > small_page_bytes() {
            format!(
                "cannot map {mapped} bytes of huge pages; reserve {} of them in /proc/sys/vm/nr_hugepages, or use small \
                 pages",
                mapped / page_bytes
            )
        } else {
            format!("cannot map {mapped} bytes")
        };
        let base = map(&fd, mapped).map_err(failed(advice))?;
        Ok(Mapping { fd, base, len: mapped, page_bytes, keeps_pages: RwLock::new(false) })
    }

    /// Allocates the pages of the first `len` bytes: writing to them does not need room in the file system any more.
    ///
    /// # Errors
    /// The system's, for example that there is no room. A file system that cannot allocate ahead gives none.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        let (start, end) = self.pages(0, len);
        loop {
            match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, start, end - start) {
                // A signal.
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => return Ok(()),
                allocated => return Ok(allocated?),
            }
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// See [`Backing::release`](super::Backing::release).
    pub fn release(&self, offset: u64, len: u64) -> bool {
        let keeps = self.keeps_pages.read().expect("no thread panics while it releases pages");
        if *keeps {
            return false;
        }
        let start = offset.next_multiple_of(self.page_bytes);
        let end = (offset + len) / self.page_bytes * self.page_bytes;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        start >= end || rustix::fs::fallocate(&self.fd, flags, start, end - start).is_ok()
    }

    /// See [`Backing::touch`](super::Backing::touch).
    pub fn touch(&self, offset: u64, len: u64) -> bool {
        let (start, end) = self.pages(offset, len);
        // Allocating alone first is a sixth cheaper than a page fault for each page, and fails where a fault would kill.
        if rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, start, end - start).is_err() {
            return false;
        }
        self.advise(start, end, Advice::LinuxPopulateWrite)
    }

    /// See [`Backing::populate`](super::Backing::populate).
    pub fn populate(&self, offset: u64, len: u64) -> bool {
        let (start, end) = self.pages(offset, len);
        let Ok(resident) = self.resident(start, end) else { return false };
        let mut at = start;
        // Reading a hole of a shared mapping would allocate its pages.
        for run in resident.chunk_by(|one, next| one == next) {
            let run_end = at + run.len() as u64 * small_page_bytes();
            if run[0] && !self.advise(at, run_end, Advice::LinuxPopulateRead) {
                return false;
            }
            at = run_end;
        }
        true
    }

    /// Returns of each small page from `start` to `end` whether it is in memory. Takes as long as there are pages, whatever the
    /// file's length; a search for the next hole would not.
    fn resident(&self, start: u64, end: u64) -> io::Result<Vec<bool>> {
        let mut pages = vec![0_u8; ((end - start) / small_page_bytes()) as usize];
        let at = self.base.as_ptr().wrapping_add(start as usize).cast();
        // SAFETY: the range lies in our mapping and starts at a page, and the vector has a byte for each of its pages.
        if unsafe { libc::mincore(at, (end - start) as usize, pages.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.into_iter().map(|page| page & 1 == 1).collect())
    }

    /// Returns the start and end of the pages that the range touches.
    fn pages(&self, offset: u64, len: u64) -> (u64, u64) {
        let start = offset / self.page_bytes * self.page_bytes;
        let end = (offset + len).next_multiple_of(self.page_bytes).min(self.len);
        assert!(start < end, "a range of the region");
        (start, end)
    }

    /// Populates the pages from `start` to `end`.
    fn advise(&self, start: u64, end: u64, populate: Advice) -> bool {
        debug_assert!(start < end && end <= self.len);
        let at = self.base.as_ptr().wrapping_add(start as usize).cast();
        // SAFETY: the range lies in our mapping, as `start < end <= self.len`; populating changes no byte of it.
        unsafe { rustix::mm::madvise(at, (end - start) as usize, populate) }.is_ok()
    }

    pub fn keep_pages(&self) {
        *self.keeps_pages.write().expect("no thread panics while it releases pages") = true;
    }

    /// See [`Backing::lock`](super::Backing::lock).
    pub fn lock(&self, locking: Locking) -> io::Result<()> {
        // SAFETY: the range is our mapping.
        unsafe { locking.lock(self.base, self.len) }
    }

    /// Opens the same file anew, for reading only.
    pub fn open_for_readers(&self) -> io::Result<OwnedFd> {
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Returns whether the kernel still maps the file for writing.
    pub fn can_be_mapped_for_writing(&self) -> bool {
        let Ok(at) = map(&self.fd, self.page_bytes) else { return false };
        // SAFETY: the mapping was just made, and nothing refers to it.
        unsafe { rustix::mm::munmap(at.as_ptr().cast(), self.page_bytes as usize) }.is_ok()
    }
}

/// Returns the bytes of a page that is not huge.
fn small_page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Maps the first `len` bytes of a file for reading and writing.
fn map(fd: &OwnedFd, len: u64) -> Result<NonNull<u8>, Errno> {
    let (anywhere, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe { rustix::mm::mmap(anywhere, len as usize, access, MapFlags::SHARED, fd, 0) }?;
    Ok(NonNull::new(base.cast()).expect("a mapping is not at address 0"))
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and the store that borrowed it is being dropped.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok());
    }
}
