//! A file with a name: its region outlives the process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use fabcache_layout::Geometry;
use fabcache_layout::format::HEADER_BYTES;
use fabcache_layout::header::{self, Birth, HeaderError};
use rustix::fs::OFlags;

use super::mapping::Mapping;
use super::sidecar::{Meta, Sidecar, WRITABLE_BY_OTHERS};
use super::{Backing, Locking, Sharing};
use crate::error::{CreateError, Unusable};

/// The contents of PATH, as found at the start.
#[derive(Debug)]
pub enum Contents {
    /// PATH is missing or empty.
    Nothing,
    /// The server that created it ended before it served it.
    Unfinished,
    /// A region of this format, and its PATH.meta.
    Region(Birth, Box<Meta>),
    /// Something else; only found if it may be discarded.
    Unusable(Unusable),
}

/// PATH, locked and checked. Nothing was written.
#[derive(Debug)]
pub struct FoundFile {
    sidecar: Sidecar,
    lock: FileLock,
    /// PATH, if it exists.
    file: Option<OwnedFd>,
    /// Its contents.
    pub contents: Contents,
}

impl FoundFile {
    /// Locks and checks PATH. Writes nothing, but may create PATH.lock.
    ///
    /// # Errors
    /// Another server uses PATH, others may write it, the system cannot open it, or, without `discard`, it holds
    /// anything but a region of this format.
    pub fn find(path: &Path, discard: bool) -> Result<FoundFile, CreateError> {
        let sidecar = Sidecar::lock(path)?;
        let file = sidecar.open("", OFlags::RDWR, WRITABLE_BY_OTHERS)?;
        let lock = file.as_ref().map_or(FileLock::None, lock);
        if lock == FileLock::OfAnotherServer {
            return Err(CreateError::FileInUse { file: path.into() });
        }
        let contents = match sidecar.read() {
            Err(CreateError::Unusable { why, .. }) => Contents::Unusable(why),
            meta => contents(path, file.as_ref(), meta?)?,
        };
        if let Contents::Unusable(why) = &contents
            && !discard
        {
            return Err(CreateError::Unusable { file: path.into(), why: *why });
        }
        Ok(FoundFile { sidecar, lock, file, contents })
    }

    /// Returns PATH.
    pub fn path(&self) -> &Path {
        self.sidecar.path()
    }

    /// Maps the region of PATH; makes the file longer first if `grows`, else it is as long. The pages of the region's
    /// tables are allocated.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn map(&self, geometry: &Geometry, grows: bool) -> Result<Mapping, CreateError> {
        let len = geometry.region_bytes;
        let failed = |source| CreateError::System {
            what: format!("cannot map the memory file {}", self.path().display()),
            source,
        };
        let missing = || failed(io::ErrorKind::NotFound.into());
        let file = self.file.as_ref().ok_or_else(missing)?.try_clone().map_err(failed)?;
        let page_bytes = self.sidecar.file_system().page_bytes();
        let mapping = if grows {
            Mapping::create(file, len, page_bytes)?
        } else {
            Mapping::open(file, len, page_bytes)?
        };
        self.sidecar.allocate_tables(&mapping, geometry)?;
        Ok(mapping)
    }

    /// Removes the saved state from PATH.meta, where a power failure may bring back a header that still names it: a state is
    /// used once.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn end_saved_state(&self, meta: &Meta) -> Result<(), CreateError> {
        if meta.state.is_empty() || !self.sidecar.file_system().is_device() {
            return Ok(());
        }
        self.sidecar.write(&Meta { state: Vec::new(), ..meta.clone() })
    }

    /// Returns the file with what [`FoundFile::map`] returned.
    pub(crate) fn with(self, mapping: Mapping) -> RegionFile {
        RegionFile { mapping, for_readers: OnceLock::new(), lock: self.lock, sidecar: self.sidecar }
    }

    /// Removes PATH, creates PATH.meta anew, and then PATH with a region of zeroed bytes. The caller ends the creation by
    /// [`Sidecar::write`] with [`Meta::is_creating`] cleared.
    ///
    /// # Errors
    /// The system's. PATH.meta then tells the next server that the region is unfinished.
    pub fn create(self, meta: &Meta, geometry: &Geometry) -> Result<RegionFile, CreateError> {
        debug_assert!(meta.is_creating && meta.state.is_empty());
        // An operator may have created an empty file, which stays.
        let empty = self.file.filter(|_| matches!(self.contents, Contents::Nothing));
        // First the step that may fail: after a refused start PATH is there.
        let prepared = self.sidecar.prepare(meta)?;
        if empty.is_none() {
            self.sidecar.remove()?;
        }
        prepared.put_in_place()?;
        let file = empty.map_or_else(|| self.sidecar.create(), Ok)?;
        let lock = lock(&file);
        let page_bytes = self.sidecar.file_system().page_bytes();
        let mapping = Mapping::create(file, geometry.region_bytes, page_bytes)?;
        self.sidecar.allocate_tables(&mapping, geometry)?;
        Ok(RegionFile { mapping, for_readers: OnceLock::new(), lock, sidecar: self.sidecar })
    }
}

/// Who holds the lock on PATH itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileLock {
    /// This server, for as long as the file is open.
    Ours,
    /// A server that opened it under another name: PATH.lock is another file then.
    OfAnotherServer,
    /// No server. The descriptor of a client allows a read lock, which keeps this server from locking.
    None,
}

/// Locks PATH itself, if no other process has locked it.
fn lock(file: &OwnedFd) -> FileLock {
    // SAFETY: an all-zero `flock` is one of the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, and the call reads the structure, which outlives it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return FileLock::Ours;
    }
    // SAFETY: as above; the call also writes the structure.
    let is_told = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    let is_for_writing = lock.l_type == libc::F_WRLCK as libc::c_short;
    if is_told && is_for_writing { FileLock::OfAnotherServer } else { FileLock::None }
}

/// Returns the contents of the file, whose PATH.meta is `meta`.
fn contents(path: &Path, file: Option<&OwnedFd>, meta: Option<Meta>) -> Result<Contents, CreateError> {
    let cannot = |errno: rustix::io::Errno| CreateError::System {
        what: format!("cannot read the memory file {}", path.display()),
        source: errno.into(),
    };
    let Some(file) = file else { return Ok(Contents::Nothing) };
    let file_bytes = rustix::fs::fstat(file).map_err(cannot)?.st_size as u64;
    if file_bytes == 0 {
        return Ok(Contents::Nothing);
    }
    let mut bytes = [0; HEADER_BYTES as usize];
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(file, &mut bytes[read..], read as u64) {
            Ok(0) => return Ok(Contents::Unusable(Unusable::Foreign)),
            Ok(more) => read += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(cannot(error)),
        }
    }
    let header = header::from_bytes(&bytes, file_bytes);
    // The magic is written last: another file that was put there meanwhile is not ours to remove.
    let is_ours = |meta: &Meta| match &header {
        Ok(birth) => birth.region_id == meta.region_id,
        Err(_) => bytes.starts_with(&[0; 8]),
    };
    let is_unfinished = meta.as_ref().is_some_and(|meta| meta.is_creating && is_ours(meta));
    Ok(match (header, meta) {
        _ if is_unfinished => Contents::Unfinished,
        (Err(HeaderError::NotARegion), _) => Contents::Unusable(Unusable::Foreign),
        (Err(HeaderError::Version(version)), _) => Contents::Unusable(Unusable::Version(version)),
        (Err(HeaderError::Geometry), _) => Contents::Unusable(Unusable::Damaged),
        (Ok(_), None) => Contents::Unusable(Unusable::NoMeta),
        (Ok(birth), Some(meta)) if meta.region_id != birth.region_id => {
            Contents::Unusable(Unusable::OtherRegion)
        }
        (Ok(birth), Some(meta)) => Contents::Region(birth, Box::new(meta)),
    })
}

/// A mapped file with a name, and the files beside it.
#[derive(Debug)]
pub struct RegionFile {
    mapping: Mapping,
    for_readers: OnceLock<OwnedFd>,
    lock: FileLock,
    /// The last field: the lock is held until the memory is unmapped.
    sidecar: Sidecar,
}

// SAFETY: the mapping lives as long as this value, at one page-aligned address. Only processes of this user can open the
// file for writing, and no other server does, which would need the lock. Punching holes zeroes whole pages of the range
// that is released, and no other method changes a byte.
unsafe impl Backing for RegionFile {
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
        self.for_readers.get().map(AsFd::as_fd)
    }

    /// Opens the file for reading only. It cannot be sealed; its mode lets nobody but this user open it.
    fn share(&self) -> io::Result<Option<Sharing>> {
        let _ = self.for_readers.set(self.mapping.open_for_readers()?);
        Ok(Some(Sharing::ReadOnly))
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
        if self.sidecar.file_system().is_device() {
            rustix::fs::fsync(&self.mapping)?;
        }
        Ok(())
    }

    fn is_in_place(&self) -> bool {
        // While PATH itself is locked, no server uses it under another lock file.
        self.sidecar.has_region(&self.mapping) && (self.lock == FileLock::Ours || self.sidecar.has_lock())
    }

    fn sidecar(&self) -> Option<&Sidecar> {
        Some(&self.sidecar)
    }
}
