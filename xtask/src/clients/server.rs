//! The servers that a client gets: one on TCP and UDP, one on a Unix socket, both fresh.
//!
//! Two processes, because memcached serves no network beside a Unix socket. All flags mean the same
//! to memcached and to fabcached.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{Guarded, Interrupt, describe, read};

/// The memcached release that fabcached behaves like.
const FABCACHED_BEHAVIOUR: &str = "1.6.45";

/// Enough for every client without an eviction.
const MEMORY_MIB: &str = "256";

/// For a server to answer after its start, and to end after it was asked to.
const SERVER_TIME_MAX: Duration = Duration::from_secs(10);

/// A free port may be taken by somebody else before the server binds it.
const START_ATTEMPTS_MAX: u32 = 5;

/// The server binary under test.
pub(super) struct Subject {
    program: PathBuf,
    /// `fabcached` or `memcached`.
    kind: &'static str,
    /// The memcached release whose answers are expected.
    behaviour: String,
}

impl Subject {
    pub(super) fn at(program: &Path) -> Result<Self> {
        let program =
            program.canonicalize().with_context(|| format!("{} is not there", program.display()))?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let (kind, behaviour) = if name.starts_with("fabcached") {
            ("fabcached", FABCACHED_BEHAVIOUR.to_owned())
        } else {
            ("memcached", release_of(&program)?)
        };
        Ok(Self { program, kind, behaviour })
    }

    fn spawn(&self, flags: &[OsString], log: &Path) -> Result<Guarded> {
        let mut command = Command::new(&self.program);
        command.args(flags).args(["-m", MEMORY_MIB]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let log = File::create(log)?;
        Guarded::spawn(&mut command, log.try_clone()?, log)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (expected to behave like memcached {})", self.program.display(), self.behaviour)
    }
}

/// The three numbers in what `-V` prints.
fn release_of(program: &Path) -> Result<String> {
    let output =
        Command::new(program).arg("-V").output().with_context(|| format!("{} -V", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace()
        .find(|word| word.split('.').count() == 3 && word.split('.').all(|part| part.parse::<u32>().is_ok()))
        .map(str::to_owned)
        .with_context(|| format!("{} -V names no release: {text}", program.display()))
}

/// The servers of one client.
pub(super) struct Fixture<'a> {
    subject: &'a Subject,
    network: Guarded,
    port: u16,
    local: Guarded,
    socket: PathBuf,
    logs: [PathBuf; 2],
}

impl<'a> Fixture<'a> {
    /// Starts both servers and waits until both answer.
    pub(super) fn start(subject: &'a Subject, scratch: &Path, interrupt: &Interrupt) -> Result<Self> {
        let logs = [scratch.join("server-network"), scratch.join("server-local")];
        let (network, port) = start_network(subject, &logs[0], interrupt)?;
        let socket = scratch.join("server.sock");
        let mut local = subject.spawn(&["-s".into(), socket.clone().into()], &logs[1])?;
        let answers = || connect_local(&socket).is_ok_and(|stream| version(stream).is_ok());
        if !wait_until(answers, &mut local, interrupt)? {
            bail!("the server on a Unix socket {}", why_silent(&mut local, &logs[1])?);
        }
        Ok(Self { subject, network, port, local, socket, logs })
    }

    /// Tells a client where the servers are and what to expect of them.
    pub(super) fn describe_to(&self, command: &mut Command) {
        command
            .env("SERVER_HOST", Ipv4Addr::LOCALHOST.to_string())
            .env("SERVER_PORT", self.port.to_string())
            .env("SERVER_SOCKET", &self.socket)
            .env("SERVER_IS", self.subject.kind)
            .env("SERVER_BEHAVIOUR", &self.subject.behaviour);
    }

    /// Stops both servers, and says what was wrong with them: dead, deaf, or not ending well.
    pub(super) fn stop(&mut self, interrupt: &Interrupt) -> Result<Vec<String>> {
        let answers = [connect(self.port).and_then(version), connect_local(&self.socket).and_then(version)];
        let names = ["the server on TCP", "the server on a Unix socket"];
        let mut servers = [&mut self.network, &mut self.local];
        let mut died = [false; 2];
        let mut faults = Vec::new();
        for (n, server) in servers.iter_mut().enumerate() {
            if let Some(status) = server.status()? {
                died[n] = true;
                faults.push(format!("{} died: {}", names[n], describe(status)));
            } else if let Err(error) = &answers[n] {
                faults.push(format!("{} no longer answers: {error:#}", names[n]));
            }
            // Both at once: memcached takes a second to stop.
            server.terminate();
        }
        for (n, server) in servers.iter_mut().enumerate() {
            match server.wait(SERVER_TIME_MAX, interrupt)? {
                Some(status) if died[n] || status.success() => {}
                Some(status) => faults.push(format!("{}, asked to stop: {}", names[n], describe(status))),
                None => faults.push(format!("{} does not stop within {SERVER_TIME_MAX:?}", names[n])),
            }
            // A thread may panic and leave the process running.
            if read(&self.logs[n]).contains("panicked at") {
                faults.push(format!("{} panicked", names[n]));
            }
        }
        Ok(faults)
    }

    /// What both servers wrote.
    pub(super) fn log(&self) -> String {
        self.logs.iter().map(|log| read(log)).collect()
    }
}

fn start_network(subject: &Subject, log: &Path, interrupt: &Interrupt) -> Result<(Guarded, u16)> {
    for _ in 0..START_ATTEMPTS_MAX {
        let port = free_port()?;
        let number = OsString::from(port.to_string());
        let flags = ["-l".into(), "127.0.0.1".into(), "-p".into(), number.clone(), "-U".into(), number];
        let mut server = subject.spawn(&flags, log)?;
        let answers = || connect(port).is_ok_and(|stream| version(stream).is_ok());
        if wait_until(answers, &mut server, interrupt)? {
            return Ok((server, port));
        }
        // Anything but a port that was taken meanwhile will not go away.
        if !read(log).to_lowercase().contains("in use") {
            bail!("the server on TCP {}", why_silent(&mut server, log)?);
        }
    }
    bail!("no free port was found in {START_ATTEMPTS_MAX} attempts");
}

/// A port that was free for TCP and for UDP a moment ago.
fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = tcp.local_addr()?.port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free for both TCP and UDP");
}

/// Whether the condition came to hold while the server lived.
fn wait_until(condition: impl Fn() -> bool, server: &mut Guarded, interrupt: &Interrupt) -> Result<bool> {
    let deadline = Instant::now() + SERVER_TIME_MAX;
    while Instant::now() < deadline && server.status()?.is_none() {
        if condition() {
            return Ok(true);
        }
        interrupt.pause()?;
    }
    Ok(false)
}

fn why_silent(server: &mut Guarded, log: &Path) -> Result<String> {
    let text = read(log);
    Ok(match server.status()? {
        Some(status) => format!("did not start: {}\n{text}", describe(status)),
        None => format!("does not answer\n{text}"),
    })
}

fn connect(port: u16) -> Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, SERVER_TIME_MAX)?;
    stream.set_read_timeout(Some(SERVER_TIME_MAX))?;
    Ok(stream)
}

fn connect_local(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SERVER_TIME_MAX))?;
    Ok(stream)
}

/// The answer to `version`.
fn version(mut stream: impl Read + Write) -> Result<String> {
    stream.write_all(b"version\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    match line.strip_prefix("VERSION ") {
        Some(version) => Ok(version.trim_end().to_owned()),
        None => bail!("`version` is answered by {line:?}"),
    }
}
