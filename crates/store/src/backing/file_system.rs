//! The properties of a file system that a region depends on.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// Its files are memory, in pages of the system.
    Tmpfs,
    /// Its files are memory, in huge pages of so many bytes. They can be mapped and read, but write(2) refuses them.
    Hugetlbfs(u64),
    /// Its files are on a device, which gets them by fsync(2).
    Device,
}

impl FileSystem {
    /// Returns the kind of the file system that an open file is on.
    pub fn of(file: impl AsFd) -> Result<FileSystem, Errno> {
        let found = rustix::fs::fstatfs(file)?;
        Ok(match found.f_type {
            libc::TMPFS_MAGIC => FileSystem::Tmpfs,
            libc::HUGETLBFS_MAGIC => FileSystem::Hugetlbfs(found.f_bsize as u64),
            _ => FileSystem::Device,
        })
    }

    /// Returns the bytes of a page of its files.
    pub fn page_bytes(self) -> u64 {
        match self {
            FileSystem::Hugetlbfs(bytes) => bytes,
            FileSystem::Tmpfs | FileSystem::Device => rustix::param::page_size() as u64,
        }
    }

    /// Returns whether its files outlive the machine's memory.
    pub fn is_device(self) -> bool {
        self == FileSystem::Device
    }
}
