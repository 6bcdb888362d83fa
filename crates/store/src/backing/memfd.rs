//! An anonymous memory file: it ends with the last process that holds it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, Mode, SealFlags};

use super::mapping::Mapping;
use super::sidecar::Sidecar;
use super::{Backing, HUGE_PAGE_BYTES, Locking, Sharing};
use crate::error::CreateError;

/// An anonymous memory file.
#[derive(Debug)]
pub struct Memfd {
    mapping: Mapping,
    /// The file for readers, once it is sealed: not open for writing, so other users' programs cannot allocate its holes.
    for_readers: OnceLock<OwnedFd>,
}

impl Memfd {
    /// Maps `len` zeroed bytes, on huge pages of 2 MiB if asked for.
    ///
    /// # Errors
    /// The system has no memory or descriptors left, or too few huge pages are reserved.
    pub fn create(len: u64, huge_pages: bool) -> Result<Memfd, CreateError> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if huge_pages {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let fd = rustix::fs::memfd_create("fabcache", flags).map_err(|errno| CreateError::System {
            what: "cannot create a memory file".into(),
            source: errno.into(),
        })?;
        let page_bytes = if huge_pages { HUGE_PAGE_BYTES } else { rustix::param::page_size() as u64 };
        Ok(Memfd { mapping: Mapping::create(fd, len, page_bytes)?, for_readers: OnceLock::new() })
    }
}

// SAFETY: the mapping lives as long as this value, at one page-aligned address. Only holders of the descriptor can write
// its bytes: this process, and readers before `share`. Punching holes zeroes whole pages of the range that is released,
// and no other method changes a byte.
unsafe impl Backing for Memfd {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn page_bytes(&self) -> u64 {
        self.mapping.page_bytes()
    }

    fn for_readers(&self) -> Option<BorrowedFd<'_>> {
        Some(self.for_readers.get().map_or(self.mapping.as_fd(), AsFd::as_fd))
    }

    /// Seals the file: no other process can write it, change its size or add seals from now on. Other users cannot open it
    /// anew; a program of the same user can, and allocate its holes.
    fn share(&self) -> io::Result<Option<Sharing>> {
        rustix::fs::fchmod(&self.mapping, Mode::RUSR)?;
        let for_readers = self.mapping.open_for_readers()?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.mapping, seals)?;
        if self.mapping.can_be_mapped_for_writing() {
            let why =
                "this kernel lets others write sealed huge pages; leave out -L, or use Linux 5.13 or later";
            return Err(io::Error::other(why));
        }
        let _ = self.for_readers.set(for_readers);
        Ok(Some(Sharing::Sealed))
    }

    fn release(&self, offset: u64, len: u64) -> bool {
        self.mapping.release(offset, len)
    }

    fn touch(&self, offset: u64, len: u64) -> bool {
        self.mapping.touch(offset, len)
    }

    fn populate(&self, offset: u64, len: u64) -> bool {
        self.mapping.populate(offset, len)
    }

    fn keep_pages(&self) {
        self.mapping.keep_pages();
    }

    fn lock(&self, locking: Locking) -> io::Result<()> {
        self.mapping.lock(locking)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn sidecar(&self) -> Option<&Sidecar> {
        None
    }
}

#[cfg(test)]
mod tests {
    use fabcache_testbed::report::not_run;
    use rustix::fs::{FallocateFlags, OFlags};

    use super::*;

    const NO_POPULATING: &str = "this kernel cannot populate pages";

    #[test]
    fn sealed_file_is_shared_for_reading_only() {
        let backing = Memfd::create(8 << 12, false).expect("memory");
        assert_eq!(backing.share().expect("/proc"), Some(Sharing::Sealed));
        let file = backing.for_readers().expect("a file");
        let flags = rustix::fs::fcntl_getfl(file).expect("open");
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
        let allocated = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 8 << 12);
        assert_eq!(allocated, Err(rustix::io::Errno::BADF), "readers cannot fill the file's holes");
        assert_eq!(rustix::fs::fstat(file).expect("open").st_mode & 0o777, 0o400);
        let more = rustix::fs::fcntl_add_seals(&backing.mapping, SealFlags::WRITE);
        assert_eq!(more, Err(rustix::io::Errno::PERM), "no seal can be added");
        assert!(!backing.mapping.can_be_mapped_for_writing());
    }

    #[test]
    fn touching_allocates_pages_and_keeps_their_bytes() {
        let backing = Memfd::create(64 << 12, false).expect("memory");
        let allocated = || rustix::fs::fstat(&backing.mapping).expect("open").st_blocks as u64 * 512;
        assert_eq!(allocated(), 0);
        let at = backing.base().as_ptr().wrapping_add(9 << 12);
        // SAFETY: mapped, owned by this test, and not read concurrently.
        unsafe { at.write(7) };
        backing.share().expect("/proc");
        if !backing.touch(8 << 12, 16 << 12) {
            return not_run("touching_allocates_pages_and_keeps_their_bytes", &NO_POPULATING);
        }
        assert_eq!(allocated(), 16 << 12);
        // SAFETY: as above.
        assert_eq!(unsafe { at.read() }, 7);
        assert!(backing.populate(0, 64 << 12));
        assert_eq!(allocated(), 16 << 12, "holes stay holes");
    }

    #[test]
    fn populated_pages_are_those_that_the_file_has() {
        let backing = Memfd::create(64 << 12, false).expect("memory");
        for page in [3_u64, 4, 40] {
            rustix::io::pwrite(&backing.mapping, &[7], page << 12).expect("memory");
        }
        let at = backing.base().as_ptr();
        if !backing.populate(0, 64 << 12) {
            return not_run("populated_pages_are_those_that_the_file_has", &NO_POPULATING);
        }
        let is_mapped = |page: u64| {
            let entries = std::fs::File::open("/proc/self/pagemap").expect("/proc");
            let mut entry = [0; 8];
            let number = (at as u64 >> 12) + page;
            rustix::io::pread(&entries, &mut entry, number * 8).expect("a mapped page");
            u64::from_le_bytes(entry) >> 63 == 1
        };
        assert_eq!((0..64).filter(|page| is_mapped(*page)).collect::<Vec<_>>(), [3, 4, 40]);
    }

    #[test]
    fn kept_pages_are_not_released() {
        let backing = Memfd::create(8 << 12, false).expect("memory");
        let at = backing.base().as_ptr().wrapping_add(4 << 12);
        // SAFETY: mapped, owned by this test, and not written concurrently.
        let byte = || unsafe { at.read() };
        // SAFETY: as above.
        let write = || unsafe { at.write(7) };
        write();
        assert!(backing.release(0, 8 << 12));
        assert_eq!(byte(), 0);
        write();
        backing.keep_pages();
        assert!(!backing.release(0, 8 << 12));
        assert_eq!(byte(), 7);
    }
}
