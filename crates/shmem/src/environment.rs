//! Environment variables that OpenSHMEM and what is below it read when a job starts.

use std::ffi::OsString;

/// The length of the symmetric heap (OpenSHMEM specification, section 7).
pub const HEAP_VARIABLE: &str = "SHMEM_SYMMETRIC_HEAP_SIZE";
/// Its older name.
const HEAP_VARIABLE_BEFORE: &str = "SMA_SYMMETRIC_SIZE";

/// Bytes of the heap that the implementation needs for itself.
const RESERVED_BYTES: u64 = 16 << 20;

/// Settings that fit a server, unless the user has set them.
const USUAL: [(&str, &str); 5] = [
    // With the hooks, Open MPI 4.1 crashes when the job ends.
    ("OMPI_MCA_memory", "^patcher"),
    // There are more PEs than CPUs in small tests, and a waiting PE must let others run.
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
    // The heap is then a file of shared memory, whose descriptor this process has.
    ("UCX_ALLOC_PRIO", "md:posix,md:sysv,thp,md:*,mmap,heap"),
    // UCX's own handlers would replace the server's.
    ("UCX_HANDLE_ERRORS", "none"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
];

/// Sets the variables, for a heap from which `heap_bytes` are to be allocated.
///
/// # Safety
/// No other thread exists.
pub unsafe fn prepare(heap_bytes: u64) {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value: OsString| !value.is_empty());
    let megabytes = heap_bytes.saturating_add(RESERVED_BYTES).div_ceil(1 << 20);
    if !is_set(HEAP_VARIABLE) && !is_set(HEAP_VARIABLE_BEFORE) {
        // SAFETY: no other thread exists, by this function's own contract.
        unsafe { std::env::set_var(HEAP_VARIABLE, format!("{megabytes}m")) };
    }
    for (name, value) in USUAL {
        if !is_set(name) {
            // SAFETY: no other thread exists, by this function's own contract.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Returns the number of PEs of the job that this process is part of, and its own number; `None` if no launcher started it.
pub fn place_in_job() -> Option<(usize, usize)> {
    /// What Open MPI's launcher, Slurm and PMI launchers set.
    const VARIABLES: [(&str, &str); 3] = [
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("SLURM_NTASKS", "SLURM_PROCID"),
        ("PMI_SIZE", "PMI_RANK"),
    ];
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    VARIABLES.iter().find_map(|(size, rank)| Some((number(size)?, number(rank)?)))
}

/// Returns the heap's length as the variable says.
pub(crate) fn heap_size() -> String {
    let read = |name: &str| std::env::var(name).ok();
    read(HEAP_VARIABLE).or_else(|| read(HEAP_VARIABLE_BEFORE)).unwrap_or_else(|| "the default".into())
}
