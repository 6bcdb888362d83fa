//! A region that a server handed over as a file.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, SealFlags};

use crate::header;
use crate::mapping::Mapping;
use crate::memory::Memory;

/// The protection of a region's file while clients map it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Seals: no process can shrink the file or write to it anew.
    Sealed,
    /// Its mode: processes of its owner can write and shrink it. Reading behind its end kills a process by SIGBUS.
    Kept,
}

/// A region mapped for reading, for any number of readers ([`super::Mapped::over`]).
#[derive(Debug)]
pub struct Region {
    // Declared before the mapping that it uses.
    memory: Memory,
    incarnation: u32,
    _mapping: Mapping,
}

impl Region {
    /// Maps the first `bytes` of a file.
    ///
    /// # Errors
    /// The file is shorter, or not sealed against shrinking, which would crash this process; or a kept one is open for
    /// writing; or the system fails.
    pub fn map(file: BorrowedFd<'_>, bytes: u64, protection: Protection) -> io::Result<Region> {
        Region::map_part(file, 0, bytes, protection)
    }

    /// Maps the `bytes` from `offset` of a file.
    ///
    /// # Errors
    /// As for [`Region::map`]; or the offset is not a multiple of the page size.
    pub fn map_part(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        protection: Protection,
    ) -> io::Result<Region> {
        let (is_protected, otherwise) = match protection {
            Protection::Sealed => {
                let seals = rustix::fs::fcntl_get_seals(file)?;
                (seals.contains(SealFlags::SHRINK), "the region's memory is not sealed")
            }
            // Files of some file systems have no seals.
            Protection::Kept => {
                let access = rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE;
                (access == OFlags::RDONLY, "the region's file is open for writing")
            }
        };
        if !is_protected {
            return Err(io::Error::new(io::ErrorKind::InvalidData, otherwise));
        }
        let mapping = Mapping::part_to_read(file, offset, bytes)?;
        // SAFETY: it is dropped with the mapping, below; readers keep the whole (`Mapped::over`), and nothing here
        // writes.
        let memory = unsafe { mapping.memory() };
        if bytes < crate::format::HEADER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory is too small for a region"));
        }
        let incarnation = header::incarnation(&memory);
        Ok(Region { memory, incarnation, _mapping: mapping })
    }

    /// Returns whether the server that maintained it when it was mapped still does.
    #[inline]
    pub fn is_alive(&self) -> bool {
        header::is_alive(&self.memory, self.incarnation)
    }

    /// Returns the mapped bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};

    use rustix::fs::{MemfdFlags, Mode};

    use super::*;

    #[test]
    fn only_protected_files_are_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("fabcache-region", flags).expect("memory");
        rustix::fs::ftruncate(&file, 4096).expect("memory");
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only =
            rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("/proc");
        let maps = |file: &OwnedFd, protection| Region::map(file.as_fd(), 4096, protection).is_ok();
        assert!(!maps(&file, Protection::Kept) && maps(&read_only, Protection::Kept));
        assert!(!maps(&file, Protection::Sealed) && !maps(&read_only, Protection::Sealed));
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("ours");
        assert!(maps(&read_only, Protection::Sealed));
    }
}
