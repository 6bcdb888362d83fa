//! The servers that C programs are run against.

use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{Guarded, Interrupt, read};

/// Far longer than a server takes to start.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// A server that shares its memory, and one on TCP. They end with this.
pub struct Servers {
    _servers: [Guarded; 2],
    socket: PathBuf,
    port: u16,
}

impl Servers {
    /// Starts both, and waits until they answer.
    pub fn start(program: &Path, scratch: &Path, interrupt: &Interrupt) -> Result<Servers> {
        let socket = scratch.join("server.sock");
        // Free a moment ago; a server that finds it taken says so and ends.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let at_socket = ["-s".into(), socket.clone().into(), "--shm".into()];
        let on_tcp: [OsString; 4] = ["-l".into(), "127.0.0.1".into(), "-p".into(), port.to_string().into()];
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let local = start(program, &at_socket, &scratch.join("local.log"), interrupt, || {
            UnixStream::connect(&socket).is_ok()
        })?;
        let network = start(program, &on_tcp, &scratch.join("network.log"), interrupt, || {
            TcpStream::connect(address).is_ok()
        })?;
        Ok(Servers { _servers: [local, network], socket, port })
    }

    /// As the client library has them: by shared memory, and by TCP.
    pub fn addresses(&self) -> [String; 2] {
        [format!("unix://{}", self.socket.display()), format!("tcp://127.0.0.1:{}", self.port)]
    }
}

fn start(
    program: &Path,
    flags: &[OsString],
    log: &Path,
    interrupt: &Interrupt,
    answers: impl Fn() -> bool,
) -> Result<Guarded> {
    let mut command = Command::new(program);
    command.args(flags).args(["-m", "64"]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    let file = File::create(log)?;
    let mut server = Guarded::spawn(&mut command, file.try_clone()?, file)?;
    let deadline = Instant::now() + START_TIME_MAX;
    while !answers() {
        if server.status()?.is_some() || Instant::now() > deadline {
            bail!("{command:?} does not answer:\n{}", read(log));
        }
        interrupt.pause()?;
    }
    Ok(server)
}
