//! memcached and fabcached for third-party programs: on TCP, on a Unix socket, and through shared
//! memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fabcache_testbed::server::ServerProcess;

use crate::process::{Interrupt, describe};

/// Time limit for an answer of a running server.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// A server, and the transport to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// memcached over TCP
    MemcachedTcp,
    /// memcached over a Unix socket
    MemcachedUnix,
    /// fabcached over TCP
    FabcachedTcp,
    /// fabcached over a Unix socket, through which clients attach to its shared memory
    SharedMemory,
}

impl Transport {
    pub(crate) const ALL: [Self; 4] =
        [Self::MemcachedTcp, Self::MemcachedUnix, Self::FabcachedTcp, Self::SharedMemory];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MemcachedTcp => "memcached, TCP",
            Self::MemcachedUnix => "memcached, Unix socket",
            Self::FabcachedTcp => "fabcached, TCP",
            Self::SharedMemory => "fabcached, shared memory",
        }
    }

    pub(crate) fn is_fabcached(self) -> bool {
        matches!(self, Self::FabcachedTcp | Self::SharedMemory)
    }

    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::MemcachedUnix | Self::SharedMemory)
    }
}

/// Debian's memcached.
pub(crate) const MEMCACHED: &str = "/usr/bin/memcached";

/// The two server programs.
#[derive(Clone)]
pub(crate) struct Programs {
    pub(crate) memcached: PathBuf,
    pub(crate) fabcached: PathBuf,
    /// The value of `-m`.
    pub(crate) memory_mib: u32,
}

/// A server, stopped on drop.
pub(crate) struct Server {
    process: ServerProcess,
    address: Address,
}

#[derive(Clone)]
enum Address {
    Network(SocketAddr),
    Local(PathBuf),
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Server {
    /// Starts a server; its socket is in this folder, with this number in its name.
    pub(crate) fn start(
        programs: &Programs,
        transport: Transport,
        folder: &Path,
        number: usize,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let name = transport.name();
        if transport.is_local() {
            let path = folder.join(format!("server{number}.sock"));
            let address = Address::Local(path.clone());
            let is_up = || UnixStream::connect(&path).is_ok();
            let process = start(name, command(programs, transport, &address), &is_up, interrupt)?;
            Ok(Self { process, address })
        } else {
            let command = |port| command(programs, transport, &Address::Network(local(port)));
            let (process, address) = ServerProcess::start_on_free_port(name, &command)?;
            Ok(Self { process, address: Address::Network(address) })
        }
    }

    /// Returns the address for libmemcached's programs: HOST:PORT, or a path.
    pub(crate) fn address(&self) -> String {
        match &self.address {
            Address::Network(address) => address.to_string(),
            Address::Local(path) => path.to_string_lossy().into_owned(),
        }
    }

    /// Pins all threads to one CPU.
    pub(crate) fn pin_to(&self, cpu: usize) -> Result<()> {
        let output = Command::new("taskset")
            .args(["--all-tasks", "--cpu-list", "--pid", &cpu.to_string(), &self.process.id().to_string()])
            .output()
            .context("taskset (Debian: util-linux) is needed")?;
        ensure!(output.status.success(), "taskset: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Returns a number from `stats` or `stats TOPIC`.
    pub(crate) fn counted(&self, topic: &str, name: &str) -> Result<u64> {
        let lines = self.request(format!("stats {topic}").trim_end(), |line| line == "END")?;
        let start = format!("STAT {name} ");
        let line = lines.iter().find_map(|line| line.strip_prefix(start.as_str()));
        let text = line.with_context(|| format!("stats {topic} of {} has no {name}", self.address()))?;
        text.parse().with_context(|| format!("{name} is {text}"))
    }

    /// Returns why the server is no longer usable: it ended, or a thread panicked.
    pub(crate) fn fault(&mut self) -> Option<String> {
        match self.process.wait(Duration::ZERO) {
            Some(status) => Some(format!("the server: {}", describe(status))),
            None if self.process.has_panicked() => Some("the server panicked".into()),
            None => None,
        }
    }

    fn request(&self, command: &str, is_last: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let mut stream = self.connect()?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut lines = Vec::new();
        for line in BufReader::new(stream).lines() {
            let line = line?;
            let done = is_last(&line);
            lines.push(line);
            if done {
                return Ok(lines);
            }
            ensure!(!lines[lines.len() - 1].contains("ERROR"), "{command} is answered by {:?}", lines.last());
        }
        bail!("{command} is not answered to its end")
    }

    fn connect(&self) -> Result<Box<dyn Stream>> {
        Ok(match &self.address {
            Address::Network(address) => {
                let stream = TcpStream::connect_timeout(address, ANSWER_TIME_MAX)?;
                stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
                Box::new(stream)
            }
            Address::Local(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
                Box::new(stream)
            }
        })
    }
}

/// Starts a server command, and waits until the server is up; an interrupt ends the wait.
pub(crate) fn start(
    name: &str,
    command: Command,
    is_up: &dyn Fn() -> bool,
    interrupt: &Interrupt,
) -> Result<ServerProcess> {
    let server = ServerProcess::start(name, command, &|| interrupt.is_set() || is_up())?;
    interrupt.check()?;
    Ok(server)
}

/// Returns the command of a memcached or fabcached, which may run as root.
pub(crate) fn server_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-u", "root"]);
    command
}

/// Returns the address of a local port.
pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Builds the command; the flags mean the same to both programs, except for shared memory.
fn command(programs: &Programs, transport: Transport, address: &Address) -> Command {
    let program = if transport.is_fabcached() { &programs.fabcached } else { &programs.memcached };
    let mut command = server_command(program);
    match address {
        Address::Network(address) => {
            let port = address.port().to_string();
            command.args(["-l", &address.ip().to_string(), "-p", &port, "-U", &port]);
        }
        Address::Local(path) => {
            command.arg("-s").arg(path);
        }
    }
    if transport == Transport::SharedMemory {
        command.arg("--shm");
    }
    // One thread, so that commands of several connections keep their order.
    command.args(["-m", &programs.memory_mib.to_string(), "-t", "1"]);
    command
}
