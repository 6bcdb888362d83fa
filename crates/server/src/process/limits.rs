//! The system's limits on the process.

use anyhow::{Context, Result};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Descriptors beyond those of connections: listeners, epoll instances, inboxes, files.
const DESCRIPTORS_BESIDE: u64 = 64;

/// Descriptors of each worker, with a ring.
const DESCRIPTORS_OF_WORKER: u64 = 4;

/// What libfabric opens for a client of the fabric by providers that are made of sockets: its link, and its reads.
const DESCRIPTORS_OF_FABRIC: u64 = 2;

/// Descriptors of libfabric for a worker's endpoint.
const DESCRIPTORS_OF_PORT: u64 = 16;

/// Raises the limit of open files for `connections` connections. With a fabric, all of them may move there and need
/// more, as far as the system allows. Returns a warning if the limit is lower than that.
///
/// # Errors
/// The hard limit is lower than the connections need, and may not be raised.
pub fn allow_connections(connections: u32, threads: usize, has_fabric: bool) -> Result<Option<String>> {
    let (connections, threads) = (u64::from(connections), threads as u64);
    let needed = connections + DESCRIPTORS_OF_WORKER * threads + DESCRIPTORS_BESIDE;
    let each = 1 + DESCRIPTORS_OF_FABRIC;
    let on_fabric = connections * each + DESCRIPTORS_OF_PORT * threads + DESCRIPTORS_BESIDE;
    let wanted = if has_fabric { on_fabric } else { needed };
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("cannot ask for the limit of open files")?;
    if soft >= wanted {
        return Ok(None);
    }
    let most = soft.max(hard);
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)) {
        Ok(()) => return Ok(None),
        Err(_) if has_fabric && most >= needed => {}
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "-c {connections} needs {needed} open files, and the limit is {hard}; raise it (ulimit -n) or lower -c"
                )
            });
        }
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, hard).context("cannot raise the limit of open files")?;
    Ok(Some(format!(
        "clients of a fabric that is made of sockets (tcp) take up to {each} open files each: -c {connections} of them need \
         {wanted}, and the limit is {most}; raise it (ulimit -n) or lower -c"
    )))
}

/// Returns a warning if the machine has less memory than this.
pub fn memory_beyond_machine(memory_bytes: u64) -> Option<String> {
    let system = rustix::system::sysinfo();
    let machine_bytes = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    (memory_bytes > machine_bytes).then(|| {
        format!(
            "-m allows {memory_bytes} bytes, and this machine has {machine_bytes}: when the cache fills, the system may kill \
             this process; give less"
        )
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
