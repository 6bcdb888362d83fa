//! Memory that somebody else allocated, such as a symmetric heap.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::sidecar::Sidecar;
use super::{Backing, Locking, Sharing};

/// Memory that somebody else allocated. It is neither released nor unmapped here: the owner does that, when this
/// value is dropped or later.
#[derive(Debug)]
pub struct Given {
    base: NonNull<u8>,
    len: u64,
    /// The memory's file, open for reading only, and the offset of the memory in it.
    file: Option<(OwnedFd, u64)>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the base is only given out as a raw pointer, whose user is responsible for its accesses; the owner is Send.
unsafe impl Send for Given {}
// SAFETY: as for Send; the owner is Sync.
unsafe impl Sync for Given {}

impl Given {
    /// Uses the `len` bytes at `base`, which `owner` keeps allocated.
    ///
    /// # Safety
    /// While `owner` lives, the `len` bytes from `base` stay mapped, readable and writable, no reference into them
    /// exists, and nothing writes them but the store that gets this value. All of them are 0.
    ///
    /// # Panics
    /// The base is not aligned to 64 bytes.
    pub unsafe fn new(base: NonNull<u8>, len: u64, owner: Arc<dyn Any + Send + Sync>) -> Given {
        assert!(base.as_ptr().addr().is_multiple_of(64), "a region is aligned to cache lines");
        Given { base, len, file: None, _owner: owner }
    }

    /// Adds the file of the memory, open for reading only, for programs of this host to map. The memory begins at `offset`, a
    /// multiple of the page size.
    #[must_use]
    pub fn with_file(self, file: OwnedFd, offset: u64) -> Given {
        Given { file: Some((file, offset)), ..self }
    }
}

// SAFETY: `new` asserts the alignment. Its caller guarantees the rest for as long as the owner lives, and this value holds
// the owner. No method changes a byte.
unsafe impl Backing for Given {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn page_bytes(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    fn for_readers(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|(file, _)| file.as_fd())
    }

    fn offset_for_readers(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// The owner has opened the file so.
    fn share(&self) -> io::Result<Option<Sharing>> {
        Ok(self.file.as_ref().map(|_| Sharing::ReadOnly))
    }

    fn release(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    fn touch(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    fn populate(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    fn keep_pages(&self) {}

    fn lock(&self, locking: Locking) -> io::Result<()> {
        // SAFETY: the caller of `new` guarantees that the range is mapped.
        unsafe { locking.lock(self.base, self.len) }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn sidecar(&self) -> Option<&Sidecar> {
        None
    }
}
