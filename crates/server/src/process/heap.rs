//! The heap: large buffers that are freed return to the system.

/// Allocations from this size on are mapped, and unmapped when freed. Above what is allocated often: chunks of values
/// that are being received.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: i32 = 256 << 10;

/// Free bytes at the end of a heap from which it shrinks.
#[cfg(target_env = "gnu")]
const TRIMMED_BYTES_MIN: i32 = 1 << 20;

/// Makes glibc return the memory of freed buffers to the system.
///
/// By default, each freed large buffer raises the size from which it maps others, up to 32 MiB, and what it does not map
/// it keeps. Sizes that are set stay. Other C libraries need no setting.
///
/// # Safety
/// No other thread exists.
pub unsafe fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in
        [(nix::libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (nix::libc::M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN)]
    {
        // SAFETY: mallopt(3) is unsafe only beside other threads, which the caller excludes. It takes two numbers, and
        // fails without effect if it does not know them.
        unsafe { nix::libc::mallopt(parameter, bytes) };
    }
}
