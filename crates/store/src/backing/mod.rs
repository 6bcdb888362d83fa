//! The region's memory.
//!
//! | backing | memory | descriptor for readers |
//! | --- | --- | --- |
//! | [`Memfd`] | an anonymous memory file, also on huge pages | sealed |
//! | [`RegionFile`] | a file with a name, on tmpfs, hugetlbfs, DAX or a disk; `sidecar.rs` has the files beside it | read-only |
//! | [`Given`] | memory that somebody else allocated | none |
//!
//! The files are shared mappings (`mapping.rs`), because readers receive the descriptor. Pages are allocated on first
//! touch.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::ptr::NonNull;

use rustix::mm::MlockFlags;

pub(crate) mod file;
mod file_system;
mod given;
pub(crate) mod mapping;
mod memfd;
mod sidecar;

pub use file::{Contents, FoundFile, RegionFile};
pub use given::Given;
pub use memfd::Memfd;
pub use sidecar::{Meta, Sidecar};

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The source of the memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BackingOptions {
    /// A file to map (on tmpfs, hugetlbfs, DAX or a disk); none for anonymous memory.
    pub file: Option<PathBuf>,
    /// Use huge pages of 2 MiB.
    pub huge_pages: bool,
    /// Start with an empty region in place of a file that cannot be used.
    pub discard: bool,
}

/// The protection of a region against processes that received its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The kernel lets no process but this one write the region, nor change its size.
    Sealed,
    /// The descriptor is read-only. A process that may open the file can write it.
    ReadOnly,
}

/// When pages are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// At once: all pages are touched.
    Now,
    /// When each is touched (MLOCK_ONFAULT).
    OnTouch,
}

impl Locking {
    /// Locks the pages of `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes are mapped.
    unsafe fn lock(self, base: NonNull<u8>, len: u64) -> io::Result<()> {
        let (base, len) = (base.as_ptr().cast(), len as usize);
        match self {
            // SAFETY: the caller guarantees that the range is mapped; no byte of it changes.
            Locking::Now => unsafe { rustix::mm::mlock(base, len) },
            // SAFETY: as above.
            Locking::OnTouch => unsafe { rustix::mm::mlock_with(base, len, MlockFlags::ONFAULT) },
        }
        .map_err(Into::into)
    }
}

/// Memory of a region.
///
/// # Safety
/// For as long as a value lives, its implementation guarantees:
/// - [`base`](Backing::base) and [`len`](Backing::len) return the same values at every call; the base is aligned to 64
///   bytes, and the `len` bytes from it are mapped, readable and writable;
/// - no reference into these bytes exists, and only writers that follow the region's format write them;
/// - no method changes a byte of them, except that [`release`](Backing::release) zeroes bytes of its range.
#[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
pub unsafe trait Backing: Send + Sync + Debug {
    /// Returns the start of the memory.
    fn base(&self) -> NonNull<u8>;

    /// Returns the bytes of the memory.
    fn len(&self) -> u64;

    /// Returns the bytes of a page: [`release`](Backing::release) and [`touch`](Backing::touch) work on whole pages.
    fn page_bytes(&self) -> u64;

    /// Returns the file for readers to map once [`share`](Backing::share) has made it; `None` if the memory has no file:
    /// local clients then use the channel only.
    fn for_readers(&self) -> Option<BorrowedFd<'_>>;

    /// Returns where the memory begins in the file for readers.
    fn offset_for_readers(&self) -> u64 {
        0
    }

    /// Makes the file for readers one that gives them no write access. Returns `None` if the memory has no file.
    ///
    /// # Errors
    /// `/proc` is not mounted, or the kernel does not enforce seals on huge pages (before 5.13).
    fn share(&self) -> io::Result<Option<Sharing>>;

    /// Gives the pages that lie wholly in the range back to the system; they read as zeros afterwards. True when the
    /// backing can do that.
    fn release(&self, offset: u64, len: u64) -> bool;

    /// Allocates and maps the pages of the range, and leaves their bytes as they are. Returns false if that fails.
    fn touch(&self, offset: u64, len: u64) -> bool;

    /// Maps those pages of the range that are in memory, so that no access to them faults. Huge pages of a file stay as
    /// they are, because the system does not tell which it has. Returns false if it fails.
    fn populate(&self, offset: u64, len: u64) -> bool;

    /// Releases no pages from now on.
    fn keep_pages(&self);

    /// Locks all pages in memory.
    ///
    /// # Errors
    /// The system's, most often that the limit of locked memory is too low.
    fn lock(&self, locking: Locking) -> io::Result<()>;

    /// Writes the memory to its device; without effect on memory that no device backs.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;

    /// Returns whether the memory's file, if it has a name, still has it, and no other server can use it.
    fn is_in_place(&self) -> bool {
        true
    }

    /// Returns the files beside the region's file; none if the region ends with the process.
    fn sidecar(&self) -> Option<&Sidecar>;
}
