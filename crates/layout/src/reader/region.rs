//! A region that a server handed over as a file.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::SealFlags;

use crate::header;
use crate::mapping::Mapping;
use crate::memory::Memory;

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
    /// The file is shorter, or not sealed against shrinking, which would crash this process; or the system fails.
    pub fn map(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Region> {
        if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the region's memory is not sealed"));
        }
        let mapping = Mapping::to_read(file, bytes)?;
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
