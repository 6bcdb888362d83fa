//! A server process that is measured.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::leftovers::{self, PATIENCE};
use crate::process::{Cpus, Process};

/// Lines of a server's output that are kept.
const LINES_MAX: usize = 20;
/// Longer ones are cut.
const LINE_BYTES_MAX: u64 = 1_000;
/// How long the output of a server that ended is waited for.
const WORDS_PATIENCE: Duration = Duration::from_millis(200);

/// A server to measure: any program with memcached's flags.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name in tables.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Flags beside those of every candidate.
    pub flags: Vec<String>,
}

/// A running server. It is stopped when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    words: LastWords,
}

/// The last lines that a server wrote.
#[derive(Debug)]
struct LastWords {
    lines: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
}

impl Server {
    /// Starts a server on a free port of this host, which is returned, with `flags` beside its own.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(candidate: &Candidate, flags: &[&str]) -> Result<(Server, SocketAddr)> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
        let address = free.local_addr()?;
        drop(free);
        let port = address.port().to_string();
        let listening = ["-l", "127.0.0.1", "-p", &port];
        let server = Server::spawn(candidate, &listening, flags, &|| TcpStream::connect(address).is_ok())?;
        Ok((server, address))
    }

    /// Starts a server on a Unix socket only.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_unix(candidate: &Candidate, socket: &Path, flags: &[&str]) -> Result<Server> {
        let path = socket.to_str().with_context(|| format!("{} is not text", socket.display()))?;
        Server::spawn(candidate, &["-s", path], flags, &|| UnixStream::connect(socket).is_ok())
    }

    fn spawn(
        candidate: &Candidate,
        listening: &[&str],
        flags: &[&str],
        is_up: &dyn Fn() -> bool,
    ) -> Result<Server> {
        let mut command = Command::new(&candidate.program);
        command.args(["-u", "root"]).args(listening).args(flags).args(&candidate.flags);
        Server::launch(&candidate.name, command, is_up)
    }

    /// Starts whatever `command` is, and waits until it is up.
    ///
    /// # Errors
    /// It does not come up: how it ended, and its last words.
    pub fn launch(name: &str, mut command: Command, is_up: &dyn Fn() -> bool) -> Result<Server> {
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let words = LastWords::read(reader)?;
        if leftovers::are_cleared() {
            // What a terminal sends goes to the benchmark, which then stops its servers.
            command.process_group(0);
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = leftovers::start_server(&mut command)
            .with_context(|| format!("{name}: cannot start {program}"))?;
        // It holds the end that is written to, and so would the end never be seen.
        drop(command);
        let mut server = Server { child, words };
        let until = Instant::now() + PATIENCE;
        while !is_up() {
            if let Some(how) = server.ended(Duration::ZERO) {
                bail!("{name} did not come up: {how}");
            }
            if Instant::now() > until {
                bail!("{name} does not listen where it was told to{}", server.words.told());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Somebody else may listen there.
        match server.ended(Duration::ZERO) {
            Some(how) => bail!("{name} did not come up: {how}"),
            None => Ok(server),
        }
    }

    /// How it ended, and its last words, if it ends within this time.
    pub fn ended(&mut self, within: Duration) -> Option<String> {
        let until = Instant::now() + within;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.words.wait_for_all();
                return Some(format!("{status}{}", self.words.told()));
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it last wrote to its output.
    pub fn last_words(&self) -> String {
        self.words.told()
    }

    /// Its process.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Memory that it alone has, in bytes.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.process().resident_bytes()
    }

    /// Pins all its threads to CPUs.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin(&self, cpus: &Cpus) -> Result<()> {
        self.process().pin(cpus)
    }

    /// CPU time of all its threads so far.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process().cpu_time()
    }
}

impl LastWords {
    fn read(from: PipeReader) -> Result<LastWords> {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let keep = move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while matches!((&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line), Ok(1..)) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == LINES_MAX {
                    kept.pop_front();
                }
                kept.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
        };
        let thread = std::thread::Builder::new().name("last words".into());
        let reader = thread.spawn(keep).context("cannot start a thread")?;
        Ok(LastWords { lines, reader })
    }

    /// Its children may have its output still.
    fn wait_for_all(&self) {
        let until = Instant::now() + WORDS_PATIENCE;
        while !self.reader.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn told(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return "; it wrote nothing".into();
        }
        lines.iter().fold("; the last that it wrote:".into(), |text, line| text + "\n    " + line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = Pid::from_child(&self.child);
        if let Ok(None) = self.child.try_wait() {
            let _ = rustix::process::kill_process(id, Signal::TERM);
        }
        if self.ended(PATIENCE).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        leftovers::forget_server(id);
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
    fn one_that_ends_at_once_says_why() {
        let script = "for i in $(seq 100); do echo line $i; done; echo the port is taken >&2; exit 71";
        // Whoever listens at its place is another.
        for is_up in [false, true] {
            let up = move || {
                std::thread::sleep(Duration::from_millis(if is_up { 500 } else { 0 }));
                is_up
            };
            let error = Server::launch("a server", shell(script), &up).expect_err("it ended").to_string();
            assert!(error.contains("a server did not come up: exit status: 71"), "{error}");
            assert!(error.ends_with("the port is taken") && error.contains("line 100"), "{error}");
            assert!(!error.contains("line 5\n"), "only the last lines: {error}");
        }
        let error = Server::launch("x", Command::new("/no/such/program"), &|| true).expect_err("none there");
        assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
    }

    #[test]
    fn it_is_stopped_when_dropped() {
        let mut server =
            Server::launch("x", shell("echo ready; exec sleep 60"), &|| true).expect("a process");
        assert!(server.ended(Duration::from_millis(20)).is_none());
        let process = server.process();
        drop(server);
        assert!(process.cpu_time().is_err(), "it is gone");
    }
}
