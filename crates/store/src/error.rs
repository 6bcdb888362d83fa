//! Errors of a store, grouped by their cause.

use std::path::{Path, PathBuf};

use fabcache_layout::format::FORMAT_VERSION;

/// A region could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The caller's: too little memory.
    #[error("{bytes} bytes of memory are too few for {}", region_and_advice(*bytes, *region_bytes))]
    TooSmall {
        /// The requested bytes.
        bytes: u64,
        /// The limit that it may be raised to.
        region_bytes: u64,
    },
    /// The caller's: more memory than locations can address.
    #[error("{bytes} bytes of memory are more than a region can have ({max})")]
    TooLarge {
        /// The requested bytes.
        bytes: u64,
        /// The largest possible value.
        max: u64,
    },
    /// Another server uses the memory file.
    #[error(
        "cannot use the memory file {}: another server uses it; stop that one, or give this one a file of its own (-e)",
        file.display()
    )]
    FileInUse {
        /// The file.
        file: PathBuf,
    },
    /// A file beside which, or in which, others could interfere. It was not opened for use.
    #[error("cannot use {}: {why}", file.display())]
    Untrusted {
        /// The file: the memory file, or one beside it.
        file: PathBuf,
        /// The reason.
        why: UntrustedFile,
    },
    /// The memory file holds something else than a region that this server can use. Nothing was changed.
    #[error(
        "cannot use the memory file {}: {why}; {}give --discard to start with an empty region in its place, or another \
         file (-e)",
        file.display(),
        restoring(file, *why)
    )]
    Unusable {
        /// The memory file.
        file: PathBuf,
        /// The reason.
        why: Unusable,
    },
    /// The flash tier needs more segments.
    #[error("the flash tier needs at least {} MiB; give larger devices (--flash)", needed >> 20)]
    FlashTooSmall {
        /// Bytes of the least number of segments.
        needed: u64,
    },
    /// The index cannot name so many pages.
    #[error("the flash tier has more than {} GiB; give smaller devices (--flash)", max >> 30)]
    FlashTooLarge {
        /// The most bytes.
        max: u64,
    },
    /// The caller's: the memory that it allocated is too short.
    #[error("the region takes {needed} bytes, and the memory for it has {bytes}")]
    GivenTooShort {
        /// The bytes of the memory.
        bytes: u64,
        /// The bytes of the region.
        needed: u64,
    },
    /// The system could not provide memory.
    #[error("{what}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Advice. Either of FILE and FILE.meta is useless without the other.
const REMOVE_ALL: &str = "remove the memory file, its .lock and its .meta together while no server runs";

/// Why a file is not used, whatever it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UntrustedFile {
    /// The link could be changed, and the file it leads to has another lock file.
    #[error("it is a symbolic link; give the path of the file itself")]
    SymbolicLink,
    /// A directory, device, pipe or socket.
    #[error("it is not a regular file; give the path of one, or of one that does not exist yet")]
    NotRegular,
    /// Each name of a file has another lock file.
    #[error("it has {0} names (hard links), and must have one; remove the others, or give another file")]
    Names(libc::nlink_t),
    /// Another user could write it.
    #[error(
        "it belongs to user {owner}, and this server runs as user {user}; change its owner if you trust its contents, \
         or {REMOVE_ALL}"
    )]
    Owner {
        /// The user that owns the file.
        owner: u32,
        /// The user that the server runs as.
        user: u32,
    },
    /// Other users could open or write it.
    #[error(
        "its mode {mode:04o} lets other users {} it; run chmod 600 on it if you trust its contents, or {REMOVE_ALL}",
        if mode & 0o022 == 0 { "open" } else { "write" }
    )]
    Mode {
        /// The permission bits.
        mode: u32,
    },
}

/// Why a memory file holds no region that this server can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Its first bytes are not those of a region.
    #[error("it holds something else than a region")]
    Foreign,
    /// A region of another version of the format.
    #[error("it holds a region of format {0}, and this server uses format {FORMAT_VERSION}")]
    Version(u64),
    /// The header describes a region that does not fit into the file.
    #[error("its region is damaged, or the file was cut")]
    Damaged,
    /// PATH.meta is missing.
    #[error("the .meta file with its secret is missing")]
    NoMeta,
    /// PATH.meta is of another region.
    #[error("the .meta file with its secret is of another region")]
    OtherRegion,
    /// PATH.meta is not valid.
    #[error("the .meta file with its secret {0}")]
    Meta(#[from] MetaError),
    /// The region cannot grow to the requested memory.
    #[error(
        "its region can grow to {} MiB, and -m or --memory-max asks for {}; ask for less",
        bytes >> 20,
        wanted.div_ceil(1 << 20)
    )]
    NoRoom {
        /// Bytes that the region can grow to.
        bytes: u64,
        /// The requested bytes.
        wanted: u64,
    },
    /// The index and the least number of segments take more than the requested memory. A segment's size is that of the
    /// file's creation.
    #[error(
        "its index and its least number of segments take more than -m asks for; ask for at least {} MiB",
        needed.div_ceil(1 << 20)
    )]
    IndexTooLarge {
        /// The least memory.
        needed: u64,
    },
}

/// Why the contents of a PATH.meta are not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// It has no bytes.
    #[error("is empty")]
    Empty,
    /// It does not start as one.
    #[error("is not one of this server's")]
    Foreign,
    /// Another version.
    #[error("has version {0}, which this server does not know")]
    Version(u64),
    /// Bytes are missing, or were changed.
    #[error("is damaged")]
    Damaged,
}

/// Returns the advice to restore the .meta file, if that is the reason.
fn restoring(file: &Path, why: Unusable) -> String {
    match why {
        Unusable::NoMeta | Unusable::OtherRegion | Unusable::Meta(_) => {
            format!("restore {}.meta, or ", file.display())
        }
        _ => String::new(),
    }
}

fn region_and_advice(bytes: u64, region_bytes: u64) -> String {
    if region_bytes > bytes {
        format!(
            "a region that may grow to {region_bytes}; give more (-m), or let it grow less (--memory-max)"
        )
    } else {
        "a region; give at least 1 MB (-m 1)".into()
    }
}

/// A write found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfMemory {
    /// Nothing may be evicted, and nothing is free.
    #[error("out of memory")]
    Full,
    /// Nothing may be evicted, and the index has no place for the key: too many keys have similar hashes.
    #[error("out of memory: too many keys have similar hashes")]
    GroupFull,
    /// The existing item is on flash: [`Handle::read_flash`](crate::Handle::read_flash), then try again with what was read.
    #[error("the item has to be read from flash first")]
    OnFlash,
    /// Writes to flash are about to free memory, or the search for memory goes on after other work: try again then. Only a handle
    /// that waits for flash fails so ([`Handle::wait_for_flash`](crate::Handle::wait_for_flash)).
    #[error("memory is free when writes to flash have ended")]
    FlashBusy,
}

/// The memory limit could not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryLimitError {
    /// Address space was reserved for less.
    #[error("the region was reserved for at most {max} bytes; start with a higher --memory-max")]
    BeyondReserved {
        /// The reserved address space.
        max: u64,
    },
    /// The index and a few segments would not fit.
    #[error("less than {min} bytes would not hold the index")]
    TooSmall {
        /// The required bytes.
        min: u64,
    },
    /// Nothing more may be evicted.
    #[error("memory in use cannot be evicted")]
    Full,
}
