//! Nothing is left behind: servers and folders that a measurement made go with it, though a signal ends it.
//!
//! A process killed outright cannot see to that.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long a server may take to stop before it is killed.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What a shell adds to a signal's number when it tells that a program ended by one.
const ENDED_BY_SIGNAL: i32 = 128;

/// What must not outlive this process.
#[derive(Debug, Default)]
struct Leftovers {
    servers: Vec<(Pid, OwnedFd)>,
    folders: Vec<PathBuf>,
}

static LEFTOVERS: Mutex<Leftovers> = Mutex::new(Leftovers { servers: Vec::new(), folders: Vec::new() });
static SIGNALS: OnceLock<()> = OnceLock::new();

fn leftovers() -> MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on a signal that ends this process ends its servers first. Once is enough.
///
/// # Errors
/// The system refuses.
pub fn clear_when_told_to_end() -> Result<()> {
    if SIGNALS.get().is_some() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot take signals")?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // Never given back: whoever finds its servers gone waits here to forget them, and says nothing.
            let mut leftovers = leftovers();
            leftovers.clear();
            std::process::exit(ENDED_BY_SIGNAL + signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    let _ = SIGNALS.set(());
    Ok(())
}

/// Whether signals are seen to. Then servers do not get those that a terminal sends to all of a program.
pub fn are_cleared() -> bool {
    SIGNALS.get().is_some()
}

/// Starts a child that is to end with this process.
///
/// # Errors
/// The system does not start it.
pub fn start_server(command: &mut Command) -> Result<Child> {
    // Held all the while: a signal finds either no child, or one that it knows.
    let mut leftovers = leftovers();
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => leftovers.servers.push((pid, handle)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error).context("cannot hold on to the server's process");
        }
    }
    Ok(child)
}

/// It has ended.
pub fn forget_server(pid: Pid) {
    leftovers().servers.retain(|(known, _)| *known != pid);
}

impl Leftovers {
    fn clear(&mut self) {
        for (_, server) in &self.servers {
            // One that is gone needs no signal.
            let _ = pidfd_send_signal(server, Signal::TERM);
        }
        let until = Instant::now() + PATIENCE;
        for (_, server) in &self.servers {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let ended = poll(&mut [PollFd::new(server, PollFlags::IN)], left.as_ref());
            if !matches!(ended, Ok(1..)) {
                let _ = pidfd_send_signal(server, Signal::KILL);
            }
        }
        for folder in &self.folders {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A folder for sockets, of this user alone. It goes when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new one, whose name begins so.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(name: &str) -> Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        use std::sync::atomic::{AtomicU32, Ordering};

        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{name}-{}-{number}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        leftovers().folders.push(path.clone());
        Ok(Folder(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        leftovers().folders.retain(|known| *known != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_cleared() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
        let folder = Folder::new("fabcache-leftovers").expect("a folder");
        std::fs::write(folder.path().join("socket"), "").expect("a file in it");
        // Of its own, so that other tests keep theirs.
        let mut own = Leftovers { servers: vec![(pid, handle)], folders: vec![folder.path().to_owned()] };
        own.clear();
        assert!(!folder.path().exists());
        assert!(child.try_wait().expect("a child").is_some_and(|status| !status.success()));
    }
}
