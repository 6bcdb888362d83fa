//! Protection of this process's memory against other processes of its user.

use anyhow::{Context, Result};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Refuses this process's memory and descriptors to other processes without CAP_SYS_PTRACE: by ptrace(2), /proc/PID/mem
/// and process_vm_writev(2), and as core dumps. The kernel undoes it when the process changes its user. Threads of this
/// process still reach their own descriptors and maps in /proc/self.
///
/// # Errors
/// The system refuses.
pub fn forbid_access_by_own_user() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("cannot keep other processes of this user from the memory (PR_SET_DUMPABLE, for --shm)")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn process_reaches_its_own_descriptors_and_maps() {
        forbid_access_by_own_user().expect("Linux has it");
        let file = std::fs::File::open("/dev/null").expect("it is everywhere");
        let again = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert!(again.is_ok() && std::fs::read_to_string("/proc/self/maps").is_ok());
        set_dumpable_behavior(DumpableBehavior::Dumpable).expect("Linux has it");
    }
}
