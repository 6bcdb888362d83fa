//! The two servers of a client: one on TCP and UDP, one on a Unix socket, both fresh.
//!
//! Two processes, because memcached serves no network beside a Unix socket. All flags mean the same
//! to memcached and to fabcached.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fabcache_testbed::server::ServerProcess;

use crate::process::{Interrupt, describe};
use crate::servers::{self, server_command};

/// The memcached release whose behaviour fabcached has.
const FABCACHED_BEHAVIOUR: &str = "1.6.45";

/// Enough memory that no client causes an eviction.
const MEMORY_MIB: &str = "256";

/// Time limit for a server's answer, and for its exit.
const SERVER_TIME_MAX: Duration = Duration::from_secs(10);

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
            program.canonicalize().with_context(|| format!("{} does not exist", program.display()))?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let (kind, behaviour) = if name.starts_with("fabcached") {
            ("fabcached", FABCACHED_BEHAVIOUR.to_owned())
        } else {
            ("memcached", release_of(&program)?)
        };
        Ok(Self { program, kind, behaviour })
    }

    fn command(&self) -> Command {
        let mut command = server_command(&self.program);
        command.args(["-m", MEMORY_MIB]);
        command
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (expected to behave like memcached {})", self.program.display(), self.behaviour)
    }
}

/// Returns the three numbers that `-V` prints.
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
    network: ServerProcess,
    address: SocketAddr,
    local: ServerProcess,
    socket: PathBuf,
}

impl<'a> Fixture<'a> {
    /// Starts both servers and waits until both answer.
    pub(super) fn start(subject: &'a Subject, scratch: &Path, interrupt: &Interrupt) -> Result<Self> {
        let on_port = |port: u16| {
            let mut command = subject.command();
            let port = port.to_string();
            command.args(["-l", "127.0.0.1", "-p", &port, "-U", &port]);
            command
        };
        let (network, address) = ServerProcess::start_on_free_port("the server on TCP", &on_port)?;
        version(connect(address)?)?;
        let socket = scratch.join("server.sock");
        let mut command = subject.command();
        command.arg("-s").arg(&socket);
        let is_up = || connect_local(&socket).is_ok_and(|stream| version(stream).is_ok());
        let local = servers::start("the server on a Unix socket", command, &is_up, interrupt)?;
        Ok(Self { subject, network, address, local, socket })
    }

    /// Passes the servers' addresses and the expected behaviour to a client.
    pub(super) fn describe_to(&self, command: &mut Command) {
        command
            .env("SERVER_HOST", Ipv4Addr::LOCALHOST.to_string())
            .env("SERVER_PORT", self.address.port().to_string())
            .env("SERVER_SOCKET", &self.socket)
            .env("SERVER_IS", self.subject.kind)
            .env("SERVER_BEHAVIOUR", &self.subject.behaviour);
    }

    /// Stops both servers; returns their faults: exited, not answering, or an unclean exit.
    pub(super) fn stop(&mut self) -> Vec<String> {
        let answers =
            [connect(self.address).and_then(version), connect_local(&self.socket).and_then(version)];
        let names = ["the server on TCP", "the server on a Unix socket"];
        let mut servers = [&mut self.network, &mut self.local];
        let mut died = [false; 2];
        let mut faults = Vec::new();
        for (n, server) in servers.iter_mut().enumerate() {
            if let Some(status) = server.wait(Duration::ZERO) {
                died[n] = true;
                faults.push(format!("{} died: {}", names[n], describe(status)));
            } else if let Err(error) = &answers[n] {
                faults.push(format!("{} no longer answers: {error:#}", names[n]));
            }
            // Stop both at once, because memcached takes a second.
            server.terminate();
        }
        for (n, server) in servers.iter_mut().enumerate() {
            match server.wait(SERVER_TIME_MAX) {
                Some(status) if died[n] || status.success() => {}
                Some(status) => faults.push(format!("{}, asked to stop: {}", names[n], describe(status))),
                None => faults.push(format!("{} does not stop within {SERVER_TIME_MAX:?}", names[n])),
            }
            // A thread may panic and leave the process running.
            if server.has_panicked() {
                faults.push(format!("{} panicked", names[n]));
            }
        }
        faults
    }

    /// Returns the end of both servers' output.
    pub(super) fn log(&self) -> String {
        let log = |name: &str, server: &ServerProcess| format!("{name}{}\n", server.output_tail());
        log("the server on TCP", &self.network) + &log("the server on a Unix socket", &self.local)
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SERVER_TIME_MAX)?;
    stream.set_read_timeout(Some(SERVER_TIME_MAX))?;
    Ok(stream)
}

fn connect_local(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SERVER_TIME_MAX))?;
    Ok(stream)
}

/// Returns the answer to `version`.
fn version(mut stream: impl Read + Write) -> Result<String> {
    stream.write_all(b"version\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    match line.strip_prefix("VERSION ") {
        Some(version) => Ok(version.trim_end().to_owned()),
        None => bail!("`version` is answered by {line:?}"),
    }
}
