//! The servers for C programs.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fabcache_testbed::server::ServerProcess;

use crate::process::Interrupt;
use crate::servers::{self, server_command};

/// A server with shared memory, and one on TCP, both stopped on drop.
pub struct Servers {
    _servers: [ServerProcess; 2],
    socket: PathBuf,
    address: SocketAddr,
}

impl Servers {
    /// Starts both servers, and waits until they answer.
    pub fn start(program: &Path, scratch: &Path, interrupt: &Interrupt) -> Result<Servers> {
        let socket = scratch.join("server.sock");
        let mut at_socket = command(program);
        at_socket.arg("-s").arg(&socket).arg("--shm");
        let is_up = || UnixStream::connect(&socket).is_ok();
        let local = servers::start("the server that shares memory", at_socket, &is_up, interrupt)?;
        let on_tcp = |port: u16| {
            let mut command = command(program);
            command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
            command
        };
        let (network, address) = ServerProcess::start_on_free_port("the server on TCP", &on_tcp)?;
        Ok(Servers { _servers: [local, network], socket, address })
    }

    /// Returns the addresses for the client library: shared memory, then TCP.
    pub fn addresses(&self) -> [String; 2] {
        [format!("unix://{}", self.socket.display()), format!("tcp://{}", self.address)]
    }
}

fn command(program: &Path) -> Command {
    let mut command = server_command(program);
    command.args(["-m", "64"]);
    command
}
