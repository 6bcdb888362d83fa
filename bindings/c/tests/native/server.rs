//! Servers in this process.

use clap::Parser;
use fabcache_server::options::CommandLine;
use fabcache_server::{Server, Settings};

/// A server that is stopped when the test ends.
pub struct Running {
    server: Option<Server>,
    pub address: String,
}

impl Running {
    fn start(flags: &str) -> Server {
        let line = format!("fabcached -t 1 {flags}");
        let parsed = CommandLine::try_parse_from(line.split_whitespace()).expect("flags");
        let settings = Settings::new(&parsed.options, &|_| None).expect("settings");
        Server::start(settings, Vec::new()).expect("a server")
    }

    /// Over TCP.
    pub fn tcp() -> Running {
        Running::tcp_with("")
    }

    /// Over TCP.
    pub fn tcp_with(flags: &str) -> Running {
        let server = Running::start(&format!("-l 127.0.0.1 -p -1 {flags}"));
        let local = server.local().iter().map(ToString::to_string).find(|place| !place.starts_with('/'));
        Running { address: format!("tcp://{}", local.expect("a port")), server: Some(server) }
    }

    /// At a Unix socket, sharing its memory.
    pub fn sharing(name: &str) -> Running {
        Running::at_socket(name, "--shm")
    }

    /// At a Unix socket.
    pub fn at_socket(name: &str, flags: &str) -> Running {
        let path = std::env::temp_dir().join(format!("fabcache-c-{name}-{}", std::process::id()));
        let server = Running::start(&format!("-s {} {flags}", path.display()));
        Running { address: format!("unix://{}", path.display()), server: Some(server) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().expect("no thread failed");
        }
    }
}
