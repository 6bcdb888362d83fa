//! Errors of a store, grouped by their cause.

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
        file: std::path::PathBuf,
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
