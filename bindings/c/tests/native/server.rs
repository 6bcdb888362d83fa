//! Servers in this process.
use fabcache_testbed::local::LocalServer;

/// A server that stops when dropped.
pub struct Running {
    #[expect(dead_code, reason = "it stops when dropped")]
    server: LocalServer,
    pub address: String,
}

impl Running {
    fn start(flags: &str) -> LocalServer {
        let flags = format!("-t 1 {flags}");
        LocalServer::start(&flags).expect("a server")
    }

    /// Starts a server on TCP.
    pub fn tcp() -> Running {
        Running::tcp_with("")
    }

    /// Starts a server on TCP.
    pub fn tcp_with(flags: &str) -> Running {
        let server = Running::start(&format!("-l 127.0.0.1 -p -1 {flags}"));
        let local =
            server.server().local().iter().map(ToString::to_string).find(|place| !place.starts_with('/'));
        Running { address: format!("tcp://{}", local.expect("a port")), server }
    }

    /// Starts a server on a Unix socket, with shared memory.
    pub fn sharing(name: &str) -> Running {
        Running::at_socket(name, "--shm")
    }

    /// Starts a server on a Unix socket.
    pub fn at_socket(name: &str, flags: &str) -> Running {
        let path = std::env::temp_dir().join(format!("fabcache-c-{name}-{}", std::process::id()));
        let server = Running::start(&format!("-s {} {flags}", path.display()));
        Running { address: format!("unix://{}", path.display()), server }
    }
}
