//! Errors.

/// Why OpenSHMEM cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library is missing or incomplete.
    #[error(
        "cannot open OpenSHMEM: {0}; install it (Debian: openmpi-bin), or name its library in FABCACHE_LIBOSHMEM"
    )]
    Library(String),
    /// The process was not started as part of a job.
    #[error("this process is not part of an OpenSHMEM job; start it by oshrun or srun")]
    NoJob,
    /// The implementation does not allow several threads.
    #[error(
        "this OpenSHMEM does not allow calls from several threads (SHMEM_THREAD_MULTIPLE); it offers level {0}"
    )]
    Threads(i32),
    /// The symmetric heap is too small.
    #[error(
        "the symmetric heap has no {wanted} bytes left; give each PE more by SHMEM_SYMMETRIC_HEAP_SIZE (now {given})"
    )]
    Heap {
        /// Bytes that were to be allocated.
        wanted: u64,
        /// The variable's value.
        given: String,
    },
    /// No more contexts.
    #[error("OpenSHMEM creates no further context for a thread (error {0})")]
    Context(i32),
}
