//! A memory cgroup for a server, so that the page cache cannot hold the items that the server wrote to its device.
//!
//! Version 1 and 2 are supported. A group is created below the hierarchy's root, which only root may do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Begins the name of every group; the process's ID and the group's number follow.
const PREFIX: &str = "fabcache-bench";
/// Where version 1's memory controller, and version 2, are mounted.
const ROOTS: [(&str, Version); 2] =
    [("/sys/fs/cgroup/memory", Version::One), ("/sys/fs/cgroup", Version::Two)];
/// A limit below the use fails while dirty pages are written.
const LIMIT_TIME_MAX: Duration = Duration::from_secs(10);
/// A group can be removed once the kernel has released its last process.
const REMOVE_TIME_MAX: Duration = Duration::from_secs(2);
const RETRY_PERIOD: Duration = Duration::from_millis(10);
/// Enters a group, then becomes the server: `sh -c ENTER GROUP.PROCS PROGRAM FLAG…`.
const ENTER: &str = "echo $$ >\"$0\" && exec \"$@\"";

/// A memory cgroup. It is removed when dropped, after its processes have ended.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The memory of a group in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Pages of files on devices.
    pub page_cache: u64,
    /// All other memory: of processes, shared, of the kernel.
    pub other: u64,
}

impl Version {
    /// Returns the files with the limit, the use, and the statistics' name of the pages of files.
    fn names(self) -> [&'static str; 3] {
        match self {
            Version::One => ["memory.limit_in_bytes", "memory.usage_in_bytes", "cache"],
            Version::Two => ["memory.max", "memory.current", "file"],
        }
    }
}

impl MemoryGroup {
    /// Creates a group with a limit in bytes. Its processes do not swap.
    ///
    /// # Errors
    /// The system has no memory cgroups, or this user may not create them.
    pub fn new(limit: u64) -> Result<MemoryGroup> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);

        let (root, version) = root()?;
        remove_stale(root);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{PREFIX}-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let group = MemoryGroup { path, version };
        group.set_limit(limit)?;
        match version {
            Version::One => group.write("memory.swappiness", "0")?,
            // Missing if the kernel cannot swap.
            Version::Two if group.path.join("memory.swap.max").exists() => {
                group.write("memory.swap.max", "0")?;
            }
            Version::Two => {}
        }
        Ok(group)
    }

    /// Returns a command that runs `command` in the group.
    pub fn command(&self, command: &Command) -> Command {
        let mut entering = Command::new("/bin/sh");
        entering.args(["-c", ENTER]).arg(self.path.join("cgroup.procs"));
        entering.arg(command.get_program()).args(command.get_args());
        entering
    }

    /// Sets the limit in bytes. The kernel drops pages of files until it holds.
    ///
    /// # Errors
    /// The processes use more.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let [limit, ..] = self.version.names();
        let until = Instant::now() + LIMIT_TIME_MAX;
        loop {
            match self.write(limit, &bytes.to_string()) {
                Err(_) if Instant::now() < until => std::thread::sleep(RETRY_PERIOD),
                done => return done,
            }
        }
    }

    /// Returns the memory in use.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn memory_use(&self) -> Result<MemoryUse> {
        let [_, current, file] = self.version.names();
        let current = self.read(current)?;
        let current: u64 = current.trim().parse().with_context(|| format!("a use of {current:?} bytes"))?;
        let text = self.read("memory.stat")?;
        let number = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value
                .and_then(|value| value.parse::<u64>().ok())
                .with_context(|| format!("memory.stat has no {name}"))
        };
        // Shared memory counts as pages of files.
        let page_cache = number(file)?.saturating_sub(number("shmem")?);
        Ok(MemoryUse { page_cache, other: current.saturating_sub(page_cache) })
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.path.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let until = Instant::now() + REMOVE_TIME_MAX;
        while std::fs::remove_dir(&self.path).is_err() && Instant::now() < until {
            std::thread::sleep(RETRY_PERIOD);
        }
    }
}

/// Returns where groups with a memory controller can be created.
fn root() -> Result<(&'static Path, Version)> {
    for (root, version) in ROOTS {
        let has_memory = match version {
            Version::One => Path::new(root).join("memory.limit_in_bytes").exists(),
            Version::Two => {
                let enabled = std::fs::read_to_string(Path::new(root).join("cgroup.subtree_control"));
                enabled.is_ok_and(|enabled| enabled.split_whitespace().any(|name| name == "memory"))
            }
        };
        if has_memory {
            return Ok((Path::new(root), version));
        }
    }
    bail!("the system has no memory cgroups below /sys/fs/cgroup")
}

/// Removes the groups that killed benchmarks left.
fn remove_stale(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').nth(1));
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            // Fails while a server is in it.
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use fabcache_testbed::report::available;

    use super::*;

    #[test]
    fn a_group_limits_its_processes_and_is_removed() {
        let tests = "a_group_limits_its_processes_and_is_removed";
        let Some(group) = available(tests, MemoryGroup::new(64 << 20)) else { return };
        let held = group.memory_use().expect("a new group");
        assert!(held.page_cache == 0 && held.other < 1 << 20, "{held:?}");
        let run = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script, "name"]);
            group.command(&command).output().expect("a shell")
        };
        let membership = run("cat /proc/self/cgroup");
        let name = group.path.file_name().and_then(|name| name.to_str()).expect("text");
        let membership = String::from_utf8_lossy(&membership.stdout).into_owned();
        assert!(membership.contains(name), "{membership}");
        // Four times the limit.
        let killed = run("exec dd if=/dev/zero of=/dev/null bs=256M count=1").status;
        assert_eq!(killed.signal(), Some(9), "{killed:?}");
        group.set_limit(128 << 20).expect("more than is used");
        let path = group.path.clone();
        drop(group);
        assert!(!path.exists());
    }
}
