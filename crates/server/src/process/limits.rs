//! Limits of the system on the process.

use anyhow::{Context, Result};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Descriptors beyond those of connections: listeners, epoll instances, inboxes, files.
const DESCRIPTORS_BESIDE: u64 = 64;

/// Sees to it that there can be `connections` connections.
///
/// # Errors
/// The hard limit is lower and may not be raised.
pub fn allow_connections(connections: u32, threads: usize) -> Result<()> {
    let wanted = u64::from(connections) + 3 * threads as u64 + DESCRIPTORS_BESIDE;
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("cannot ask for the limit of open files")?;
    if soft >= wanted {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).with_context(|| {
        format!("-c {connections} needs {wanted} open files, and the limit is {hard}; raise it (ulimit -n) or lower -c")
    })
}

/// Allows core dumps of any size.
///
/// # Errors
/// The system refuses.
pub fn allow_core_dumps() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE).context("cannot ask for the limit of core dumps")?;
    let raised = setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY);
    raised.or_else(|_| setrlimit(Resource::RLIMIT_CORE, hard, hard)).context("cannot allow core dumps (-r)")
}
