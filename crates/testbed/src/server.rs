//! Starts, watches and stops a server process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::cleanup::{self, STOP_TIME_MAX};
use crate::ports;
use crate::report::pass_on;

/// A server that does not answer by then has failed to start.
pub const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Another process may take a free port before the server binds it.
pub const START_ATTEMPTS_MAX: u32 = 5;
/// Between two checks of whether a server answers or has ended.
const POLL_PERIOD: Duration = Duration::from_millis(5);
/// The last lines of a server's output that are kept.
const LINES_MAX: usize = 40;
/// Longer lines are cut.
const LINE_BYTES_MAX: u64 = 1_000;
/// The output of a server that ended is awaited for so long: a child process of it may hold the pipe open.
const OUTPUT_TIME_MAX: Duration = Duration::from_millis(200);

/// A running server. Dropping it stops the server: SIGTERM, and SIGKILL if that is not enough.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    output: OutputTail,
}

impl ServerProcess {
    /// Starts the command and waits until `is_up` returns true. `name` is for errors.
    ///
    /// # Errors
    /// The command cannot be started, ends, or is not up within [`START_TIME_MAX`]: how it ended, and the end of its output.
    pub fn start(name: &str, mut command: Command, is_up: &dyn Fn() -> bool) -> Result<Self> {
        let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let output = OutputTail::read(reader)?;
        if cleanup::handles_signals() {
            command.process_group(0);
        }
        // SAFETY: `pre_exec` asks for a closure that is sound between fork and exec, where only async-signal-safe calls are
        // allowed: this one makes a single system call (prctl), and neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = cleanup::start_server(&mut command)
            .with_context(|| format!("{name}: cannot start {program}; is it installed?"))?;
        // The command holds the pipe's writing end, which would keep the reader from seeing the end.
        drop(command);
        let mut server = Self { child, output };
        let deadline = Instant::now() + START_TIME_MAX;
        while !is_up() {
            if let Some(end) = server.ended(Duration::ZERO) {
                bail!("{name} did not come up: {end}");
            }
            if Instant::now() > deadline {
                bail!("{name} does not answer within {START_TIME_MAX:?}{}", server.output.tail());
            }
            std::thread::sleep(POLL_PERIOD);
        }
        // Another process may have answered in its place.
        match server.ended(Duration::ZERO) {
            Some(end) => bail!("{name} did not come up: {end}"),
            None => Ok(server),
        }
    }

    /// Starts a server on a free port of 127.0.0.1, and waits until it accepts connections there. Takes another port if a
    /// process took the first one meanwhile.
    ///
    /// # Errors
    /// As [`ServerProcess::start`].
    pub fn start_on_free_port(name: &str, command: &dyn Fn(u16) -> Command) -> Result<(Self, SocketAddr)> {
        let mut attempt = 1;
        loop {
            let address = ports::free_address().context("no free port")?;
            let is_up = || TcpStream::connect(address).is_ok();
            match Self::start(name, command(address.port()), &is_up) {
                Ok(server) => return Ok((server, address)),
                Err(error) if attempt < START_ATTEMPTS_MAX && is_port_taken(&error) => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how the server ended and the end of its output, if it ends within this time.
    pub fn ended(&mut self, within: Duration) -> Option<String> {
        let status = self.wait_for_output(within)?;
        Some(format!("{status}{}", self.output.tail()))
    }

    /// Returns how the server ended, if it ends within this time. It returns as soon as the server ends.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if sleep_until_exit(Pid::from_child(&self.child), left).is_err() {
                std::thread::sleep(POLL_PERIOD.min(left));
            }
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // Fails if the server has ended, which `wait` reports.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Returns how the server ended, if it ends within this time and once its output is complete.
    pub fn wait_for_output(&mut self, within: Duration) -> Option<ExitStatus> {
        let status = self.wait(within)?;
        self.output.wait_for_end();
        Some(status)
    }

    /// Returns the last lines of its standard output and error, as the end of a sentence.
    pub fn output_tail(&self) -> String {
        self.output.tail()
    }

    /// Returns whether a thread of the server has panicked, which need not end the server.
    pub fn has_panicked(&self) -> bool {
        self.output.has_panicked.load(Ordering::Relaxed)
    }

    /// Returns the number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.terminate();
        }
        if self.wait(STOP_TIME_MAX).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        cleanup::forget_server(Pid::from_child(&self.child));
    }
}

/// Sleeps until a child process has ended, at most for this time.
fn sleep_until_exit(pid: Pid, time_max: Duration) -> Result<(), Errno> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let time_max = Timespec::try_from(time_max).map_err(|_| Errno::INVAL)?;
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time_max)).map(drop)
}

/// Returns whether a server failed to start because a process took its port meanwhile: it may succeed on another one.
pub fn is_port_taken(error: &anyhow::Error) -> bool {
    let why = format!("{error:#}").to_lowercase();
    // Memcached's words, and ours.
    why.contains("in use") || why.contains("another server listens there already")
}

/// The last lines that a server wrote. A thread reads them.
#[derive(Debug)]
struct OutputTail {
    lines: Arc<Mutex<VecDeque<String>>>,
    has_panicked: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl OutputTail {
    fn read(from: PipeReader) -> Result<Self> {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let has_panicked = Arc::new(AtomicBool::new(false));
        let (lines_of_reader, panic_of_reader) = (Arc::clone(&lines), Arc::clone(&has_panicked));
        let read_all = move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while matches!((&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if text.contains("panicked at") {
                    panic_of_reader.store(true, Ordering::Relaxed);
                }
                pass_on(&text);
                let mut lines = lines_of_reader.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == LINES_MAX {
                    lines.pop_front();
                }
                lines.push_back(text);
                line.clear();
            }
        };
        let thread = std::thread::Builder::new().name("server output".into());
        let reader = thread.spawn(read_all).context("cannot start a thread")?;
        Ok(Self { lines, has_panicked, reader })
    }

    fn wait_for_end(&self) {
        let deadline = Instant::now() + OUTPUT_TIME_MAX;
        while !self.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn tail(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return "; it wrote nothing".into();
        }
        lines.iter().fold("; the end of its output:".into(), |text, line| text + "\n    " + line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_server_that_ends_at_once_is_reported_with_its_output() {
        let script = "for i in $(seq 100); do echo line $i; done; echo the port is taken >&2; exit 71";
        // The second time another process answers in its place.
        for is_up in [false, true] {
            let up = move || {
                std::thread::sleep(Duration::from_millis(if is_up { 500 } else { 0 }));
                is_up
            };
            let error =
                ServerProcess::start("a server", shell(script), &up).expect_err("it ended").to_string();
            assert!(error.contains("a server did not come up: exit status: 71"), "{error}");
            assert!(error.ends_with("the port is taken") && error.contains("line 100"), "{error}");
            assert!(!error.contains("line 5\n"), "only the last lines: {error}");
        }
        let error =
            ServerProcess::start("x", Command::new("/no/such/program"), &|| true).expect_err("no program");
        assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
    }

    #[test]
    fn dropping_a_server_stops_it() {
        let mut server =
            ServerProcess::start("x", shell("echo ready; exec sleep 60"), &|| true).expect("a process");
        assert!(server.ended(Duration::from_millis(20)).is_none());
        let process = format!("/proc/{}", server.id());
        assert!(std::fs::exists(&process).expect("proc is mounted"));
        drop(server);
        assert!(!std::fs::exists(&process).expect("proc is mounted"));
    }

    #[test]
    fn a_panic_in_the_output_is_noticed() {
        let script = "echo \"thread 'worker' panicked at src/x.rs\"; echo ready; exec sleep 60";
        let server = ServerProcess::start("x", shell(script), &|| true).expect("a process");
        crate::wait::wait_until("the panic is read", || server.has_panicked());
    }

    #[test]
    fn another_port_is_tried_when_one_is_taken() {
        let attempts = std::cell::Cell::new(0);
        let error = ServerProcess::start_on_free_port("a server", &|_| {
            attempts.set(attempts.get() + 1);
            shell("echo bind: Address already in use; exit 71")
        });
        assert!(error.expect_err("no port works").to_string().contains("already in use"));
        assert_eq!(attempts.get(), START_ATTEMPTS_MAX);
    }
}
