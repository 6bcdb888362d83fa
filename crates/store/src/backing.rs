//! The region's memory: an anonymous memory file, or a file, either on huge pages.
//!
//! All are shared mappings of a file descriptor, because readers receive the descriptor. Pages are allocated on first
//! touch.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{OnceLock, RwLock};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::CreateError;

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The source of the memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BackingOptions {
    /// A file to map (on tmpfs, hugetlbfs or DAX); none for anonymous memory.
    pub file: Option<PathBuf>,
    /// Use huge pages of 2 MiB.
    pub huge_pages: bool,
}

/// A mapped region's memory. Unmapped when dropped.
#[derive(Debug)]
pub struct Backing {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: u64,
    page_bytes: u64,
    /// Nothing is released any more.
    kept: RwLock<bool>,
    /// The file for readers, once it is sealed: not open for writing, so other users' programs cannot allocate its holes.
    for_readers: OnceLock<OwnedFd>,
}

// SAFETY: the base is only given out as a raw pointer, whose user is responsible for its accesses.
unsafe impl Send for Backing {}
// SAFETY: as for Send.
unsafe impl Sync for Backing {}

impl Backing {
    /// Maps `len` zeroed bytes.
    pub fn create(options: &BackingOptions, len: u64) -> Result<Backing, CreateError> {
        let page_bytes = if options.huge_pages { HUGE_PAGE_BYTES } else { 4096 };
        let mapped = len.next_multiple_of(page_bytes);
        let failed =
            |what: String| move |errno: rustix::io::Errno| CreateError::System { what, source: errno.into() };
        let fd = match &options.file {
            Some(path) => {
                let cannot = |what| failed(format!("cannot {what} the memory file {}", path.display()));
                let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
                let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(cannot("open"))?;
                // Nothing in the file changes before the lock is held. The system releases it when this process
                // ends, however that happens: no other process receives the descriptor of a named file.
                match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                    Err(rustix::io::Errno::WOULDBLOCK) => {
                        return Err(CreateError::FileInUse { file: path.clone() });
                    }
                    locked => locked.map_err(cannot("lock"))?,
                }
                // Whatever an earlier server left.
                rustix::fs::ftruncate(&fd, 0).map_err(cannot("empty"))?;
                fd
            }
            None => {
                let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                if options.huge_pages {
                    flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                }
                rustix::fs::memfd_create("fabcache", flags)
                    .map_err(failed("cannot create a memory file".into()))?
            }
        };
        rustix::fs::ftruncate(&fd, mapped)
            .map_err(failed(format!("cannot size the region to {mapped} bytes")))?;
        let advice = if options.huge_pages {
            format!(
                "cannot map {mapped} bytes of huge pages; reserve {} of them in /proc/sys/vm/nr_hugepages, or leave out -L",
                mapped / HUGE_PAGE_BYTES
            )
        } else {
            format!("cannot map {mapped} bytes")
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(failed(advice))?;
        let base = NonNull::new(base.cast()).expect("a mapping is not at address 0");
        Ok(Backing {
            fd,
            base,
            len: mapped,
            page_bytes,
            kept: RwLock::new(false),
            for_readers: OnceLock::new(),
        })
    }

    /// Returns the start of the mapping.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives the pages that lie wholly in the range back to the system; they read as zeros afterwards. True when the
    /// backing can do that.
    pub fn release(&self, offset: u64, len: u64) -> bool {
        let kept = self.kept.read().expect("no thread panics while it releases pages");
        if *kept {
            return false;
        }
        let start = offset.next_multiple_of(self.page_bytes);
        let end = (offset + len) / self.page_bytes * self.page_bytes;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        start >= end || rustix::fs::fallocate(&self.fd, flags, start, end - start).is_ok()
    }

    /// Allocates and maps the pages of the range, and leaves their bytes as they are. Returns false if the kernel refuses.
    pub fn touch(&self, offset: u64, len: u64) -> bool {
        let start = offset / self.page_bytes * self.page_bytes;
        let end = (offset + len).next_multiple_of(self.page_bytes).min(self.len);
        // Allocating alone first is a sixth cheaper than a page fault for each page, and fails where a fault would kill.
        if rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, start, end - start).is_err() {
            return false;
        }
        let at = self.base.as_ptr().wrapping_add(start as usize).cast();
        // SAFETY: the range lies in our mapping, as `start < end <= self.len`; populating changes no byte of it.
        unsafe { rustix::mm::madvise(at, (end - start) as usize, Advice::LinuxPopulateWrite) }.is_ok()
    }

    /// Releases no pages from now on.
    pub fn keep(&self) {
        *self.kept.write().expect("no thread panics while it releases pages") = true;
    }

    /// Seals the file: no other process can write it, change its size or add seals from now on. Other users cannot open it
    /// anew; a program of the same user can, and allocate its holes.
    ///
    /// # Errors
    /// The file has a name, `/proc` is not mounted, or the kernel does not enforce the seal on huge pages (before 5.13).
    pub fn seal(&self) -> std::io::Result<()> {
        rustix::fs::fchmod(&self.fd, Mode::RUSR)?;
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let for_readers = rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.fd, seals)?;
        if self.can_be_mapped_for_writing() {
            let why =
                "this kernel lets others write sealed huge pages; leave out -L, or use Linux 5.13 or later";
            return Err(std::io::Error::other(why));
        }
        let _ = self.for_readers.set(for_readers);
        Ok(())
    }

    fn can_be_mapped_for_writing(&self) -> bool {
        let (anywhere, bytes) = (std::ptr::null_mut(), self.page_bytes as usize);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, which nothing accesses.
        let mapped = unsafe { rustix::mm::mmap(anywhere, bytes, access, MapFlags::SHARED, &self.fd, 0) };
        // SAFETY: the mapping was just made, and nothing refers to it.
        mapped.is_ok_and(|at| unsafe { rustix::mm::munmap(at, bytes) }.is_ok())
    }

    /// Touches and locks all pages.
    pub fn lock(&self) -> std::io::Result<()> {
        // SAFETY: the range is our mapping.
        unsafe { rustix::mm::mlock(self.base.as_ptr().cast(), self.len as usize) }.map_err(Into::into)
    }
}

impl AsFd for Backing {
    /// Returns the file for readers.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.for_readers.get().unwrap_or(&self.fd).as_fd()
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and the store that borrowed it is being dropped.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_file_is_shared_for_reading_only() {
        let backing = Backing::create(&BackingOptions::default(), 8 << 12).expect("memory");
        backing.seal().expect("/proc");
        let flags = rustix::fs::fcntl_getfl(&backing).expect("open");
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
        let allocated = rustix::fs::fallocate(&backing, FallocateFlags::empty(), 0, 8 << 12);
        assert_eq!(allocated, Err(rustix::io::Errno::BADF), "readers cannot fill the file's holes");
        assert_eq!(rustix::fs::fstat(&backing).expect("open").st_mode & 0o777, 0o400);
        let more = rustix::fs::fcntl_add_seals(&backing.fd, SealFlags::WRITE);
        assert_eq!(more, Err(rustix::io::Errno::PERM), "no seal can be added");
        assert!(!backing.can_be_mapped_for_writing());
    }

    #[test]
    fn touching_allocates_pages_and_keeps_their_bytes() {
        let backing = Backing::create(&BackingOptions::default(), 64 << 12).expect("memory");
        let allocated = || rustix::fs::fstat(&backing.fd).expect("open").st_blocks as u64 * 512;
        assert_eq!(allocated(), 0);
        let at = backing.base().as_ptr().wrapping_add(9 << 12);
        // SAFETY: mapped, owned by this test, and not read concurrently.
        unsafe { at.write(7) };
        backing.seal().expect("/proc");
        if !backing.touch(8 << 12, 16 << 12) {
            eprintln!("skipped: this kernel cannot populate pages");
            return;
        }
        assert_eq!(allocated(), 16 << 12);
        // SAFETY: as above.
        assert_eq!(unsafe { at.read() }, 7);
    }

    #[test]
    fn kept_pages_are_not_released() {
        let backing = Backing::create(&BackingOptions::default(), 8 << 12).expect("memory");
        let at = backing.base().as_ptr().wrapping_add(4 << 12);
        // SAFETY: mapped, owned by this test, and not written concurrently.
        let byte = || unsafe { at.read() };
        // SAFETY: as above.
        let write = || unsafe { at.write(7) };
        write();
        assert!(backing.release(0, 8 << 12));
        assert_eq!(byte(), 0);
        write();
        backing.keep();
        assert!(!backing.release(0, 8 << 12));
        assert_eq!(byte(), 7);
    }
}
