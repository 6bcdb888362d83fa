//! The system's limits on the process.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// The unit in which stat(2) counts what a file takes.
const BLOCK_BYTES: u64 = 512;

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

/// Returns a warning if a memory file that grows to this size does not fit into its file system. File systems without a
/// size of their own, as tmpfs and hugetlbfs without a limit, have no answer.
pub fn memory_beyond_file_system(file: &Path, memory_bytes_max: u64) -> Option<String> {
    let (allocated_bytes, place) = match std::fs::metadata(file) {
        Ok(found) if found.is_file() => (found.blocks() * BLOCK_BYTES, file),
        // A device has all its memory.
        Ok(_) => return None,
        Err(_) => (0, file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))),
    };
    let system = rustix::fs::statvfs(place).ok().filter(|system| system.f_blocks > 0)?;
    let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
    let needed_bytes = memory_bytes_max.saturating_sub(allocated_bytes);
    (free_bytes < needed_bytes).then(|| {
        format!(
            "the file system of the memory file {} has {} MiB free, and the memory may need {} MiB more: when it is full, the \
             server is killed (SIGBUS); make room or give less memory (-m)",
            file.display(),
            free_bytes >> 20,
            needed_bytes.div_ceil(1 << 20)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_files_that_outgrow_their_file_system_warn() {
        let folder = std::env::temp_dir();
        let none = folder.join("no-server-has-this-file");
        let system = rustix::fs::statvfs(&folder).expect("it exists");
        assert_eq!(memory_beyond_file_system(&none, 0), None);
        let more = system.f_blocks * system.f_frsize + (64 << 20);
        let warning = memory_beyond_file_system(&none, more);
        assert_eq!(warning.is_some(), system.f_blocks > 0, "{warning:?}");
        // A file that is there needs only what it does not take yet.
        let own = std::env::current_exe().expect("it runs");
        let taken = std::fs::metadata(&own).expect("it runs").blocks() * BLOCK_BYTES;
        assert_eq!(memory_beyond_file_system(&own, taken), None);
        assert_eq!(memory_beyond_file_system(Path::new("/dev/zero"), u64::MAX), None);
        // /proc has no size.
        assert_eq!(memory_beyond_file_system(Path::new("/proc/none"), u64::MAX), None);
    }
}
