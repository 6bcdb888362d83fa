//! Pinning threads to CPUs.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that the process may use.
///
/// # Errors
/// The system does not report them.
pub fn usable() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask which CPUs may be used")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Pins the calling thread.
///
/// # Errors
/// The system refuses.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).context("the system refuses")
}
