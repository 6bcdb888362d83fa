//! Stops server processes and removes folders when a signal ends this process.
//!
//! SIGKILL cannot be handled: then the kernel stops the servers (`PR_SET_PDEATHSIG`), and folders stay.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A server that has not stopped by then is killed.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// A shell reports a program that a signal ended with this plus the signal's number.
const SIGNAL_STATUS: i32 = 128;

/// Server processes and folders that must not outlive this process.
#[derive(Debug, Default)]
struct Registry {
    servers: Vec<(Pid, OwnedFd)>,
    folders: Vec<PathBuf>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { servers: Vec::new(), folders: Vec::new() });
static SIGNALS: OnceLock<()> = OnceLock::new();

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes SIGINT, SIGTERM and SIGHUP stop the servers before they end this process. Further calls change nothing.
///
/// # Errors
/// The system refuses a signal handler or a thread.
pub fn handle_signals() -> Result<()> {
    if SIGNALS.get().is_some() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // The lock is never released: a thread that finds its servers gone blocks in `forget_server` and reports nothing.
            let mut registry = registry();
            registry.clear();
            std::process::exit(SIGNAL_STATUS + signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    let _ = SIGNALS.set(());
    Ok(())
}

/// Returns whether [`handle_signals`] was called. Then servers lead process groups of their own, which a terminal's signals
/// do not reach.
pub fn handles_signals() -> bool {
    SIGNALS.get().is_some()
}

/// Starts a child process that ends with this process.
///
/// # Errors
/// The system does not start it.
pub fn start_server(command: &mut Command) -> Result<Child> {
    // Locked throughout: a signal finds either no child process or a registered one.
    let mut registry = registry();
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => registry.servers.push((pid, handle)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error).context("cannot open a pidfd of the server process");
        }
    }
    Ok(child)
}

/// Removes a process that has ended.
pub fn forget_server(pid: Pid) {
    registry().servers.retain(|(known, _)| *known != pid);
}

impl Registry {
    fn clear(&mut self) {
        for (_, server) in &self.servers {
            // Fails for a server that has ended, which needs no signal.
            let _ = pidfd_send_signal(server, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_TIME_MAX;
        for (_, server) in &self.servers {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let ended = poll(&mut [PollFd::new(server, PollFlags::IN)], left.as_ref());
            if !matches!(ended, Ok(1..)) {
                let _ = pidfd_send_signal(server, Signal::KILL);
            }
        }
        self.folders.iter().for_each(|folder| remove(folder));
    }
}

/// Removes a folder, after unmounting what is mounted there, even if a process uses it.
fn remove(folder: &Path) {
    // Fails where nothing is mounted.
    let _ = unmount(folder, UnmountFlags::DETACH);
    let _ = std::fs::remove_dir_all(folder);
}

/// A folder that only this user can enter, for sockets and logs. Dropped, it is unmounted and removed.
///
/// Its path is short: a Unix socket's path holds no more than 107 bytes.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder in the system's temporary folder, whose name begins with `name`.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new(name: &str) -> Result<Folder> {
        Folder::new_in(&std::env::temp_dir(), name)
    }

    /// Creates a folder in `parent`, whose name begins with `name`.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new_in(parent: &Path, name: &str) -> Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        use std::sync::atomic::{AtomicU32, Ordering};

        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", std::process::id()));
        let created = std::fs::DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("cannot create the folder {}", path.display()))?;
        registry().folders.push(path.clone());
        Ok(Folder(path))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.0);
        registry().folders.retain(|known| *known != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clearing_stops_servers_and_removes_folders() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
        let folder = Folder::new("fabcache-cleanup").expect("a folder");
        std::fs::write(folder.path().join("socket"), "").expect("a file in it");
        // Not the process's registry, which holds other tests' servers.
        let mut own = Registry { servers: vec![(pid, handle)], folders: vec![folder.path().to_owned()] };
        own.clear();
        assert!(!folder.path().exists());
        assert!(child.try_wait().expect("a child").is_some_and(|status| !status.success()));
    }
}
