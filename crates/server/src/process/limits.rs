//! Limits of the system on the process.

use anyhow::{Context, Result};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Descriptors beyond those of connections: listeners, epoll instances, inboxes, files.
const DESCRIPTORS_BESIDE: u64 = 64;

/// What libfabric opens for a client of the fabric by providers that are made of sockets: its link, and its reads.
const DESCRIPTORS_OF_FABRIC: u64 = 2;

/// Those of libfabric for a worker's end.
const DESCRIPTORS_OF_PORT: u64 = 16;

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

/// The same, if all of them go on over a fabric: as far as the system allows, for not all of them need do so, nor do all
/// providers open anything. What to say if it is not that far.
///
/// # Errors
/// The limit cannot be asked for.
pub fn allow_fabric(connections: u32, threads: usize) -> Result<Option<String>> {
    let each = 1 + DESCRIPTORS_OF_FABRIC;
    let wanted = u64::from(connections) * each + DESCRIPTORS_OF_PORT * threads as u64 + DESCRIPTORS_BESIDE;
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("cannot ask for the limit of open files")?;
    if soft >= wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok() {
        return Ok(None);
    }
    let most = soft.max(hard);
    setrlimit(Resource::RLIMIT_NOFILE, most, hard).context("cannot raise the limit of open files")?;
    Ok(Some(format!(
        "clients of a fabric that is made of sockets (tcp) take up to {each} open files each: -c {connections} of them need \
         {wanted}, and the limit is {most}; raise it (ulimit -n) or lower -c"
    )))
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
