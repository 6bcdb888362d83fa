//! Child processes that never outlive this one.
//!
//! Each child leads a process group, which is killed as a whole, and asks the kernel for a signal when
//! this process dies. Ctrl-C reaches only this process: a waiting function checks the [`Interrupt`] and
//! returns an error, and the owners on the stack kill their children.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// Poll interval of waits: far below the seconds that anything here takes.
const POLL_PERIOD: Duration = Duration::from_millis(5);

/// Set by signals that stop this process.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn register() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("signals cannot be handled")?;
        }
        Ok(Self(flag))
    }

    /// Sleeps for a poll interval; fails after a signal to stop.
    pub fn pause(&self) -> Result<()> {
        self.check()?;
        sleep(POLL_PERIOD);
        Ok(())
    }

    /// Fails after a signal to stop.
    pub fn check(&self) -> Result<()> {
        if self.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A child process, killed on drop with its process group.
pub struct Guarded {
    child: Child,
    status: Option<ExitStatus>,
}

impl Guarded {
    pub fn spawn(command: &mut Command, stdout: File, stderr: File) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are
        // allowed: it makes one system call (prctl) and touches no memory of its own.
        unsafe {
            command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        Ok(Self { child, status: None })
    }

    /// Returns the exit status, if the child has exited.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().context("a child cannot be waited for")?;
        }
        Ok(self.status)
    }

    /// Waits for the exit; `None` if the time limit passes first.
    pub fn wait(&mut self, time_max: Duration, interrupt: &Interrupt) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + time_max;
        while self.status()?.is_none() && Instant::now() < deadline {
            interrupt.pause()?;
        }
        Ok(self.status)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // The group may outlive its leader: a client that failed may have left a child of its own.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The result of a child that ran to its end, or to its time limit.
pub struct Run {
    /// Why the run counts as failed.
    pub failure: Option<String>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a child to its end. An error means that it could not run, or an interrupt.
pub fn run(command: &mut Command, scratch: &Path, time_max: Duration, interrupt: &Interrupt) -> Result<Run> {
    let (stdout, stderr) = (scratch.join("stdout"), scratch.join("stderr"));
    let mut child = Guarded::spawn(command, File::create(&stdout)?, File::create(&stderr)?)?;
    let status = child.wait(time_max, interrupt)?;
    drop(child);
    let failure = match status {
        Some(status) if status.success() => None,
        Some(status) => Some(describe(status)),
        None => Some(format!("it did not end within {time_max:?}")),
    };
    Ok(Run { failure, stdout: read(&stdout), stderr: read(&stderr) })
}

/// Returns a file's text, with invalid UTF-8 replaced.
pub fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

pub fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("it was ended by signal {signal}"),
        None => format!("it ended with status {}", status.code().unwrap_or_default()),
    }
}

/// A new folder, removed with its contents on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates the folder. Its path is short: a Unix socket's path has at most 107 bytes.
    pub fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("xtask-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("{} cannot be created", path.display()))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
