//! Servers in this process.
use fabcache_testbed::local::{LocalServer, socket_path};

/// A server that stops when dropped.
pub struct Running {
    #[expect(dead_code, reason = "it stops when dropped")]
    server: LocalServer,
    pub address: String,
}

impl Running {
    /// Over TCP.
    pub fn tcp() -> Running {
        Running::tcp_with("")
    }

    /// Starts a server on TCP.
    pub fn tcp_with(flags: &str) -> Running {
        let server = LocalServer::tcp(flags);
        Running { address: server.url(), server }
    }

    /// Starts a server on a Unix socket, with shared memory.
    pub fn sharing(name: &str) -> Running {
        Running::at_socket(name, "--shm")
    }

    /// Starts a server on a Unix socket.
    pub fn at_socket(name: &str, flags: &str) -> Running {
        let (server, path) = LocalServer::unix(&format!("c-{name}"), flags);
        Running { address: format!("unix://{}", path.display()), server }
    }

    /// Starts a server on a Unix socket whose memory no client can map.
    pub fn channel_only(name: &str) -> Running {
        let path = socket_path(&format!("c-{name}"));
        let flags = format!("-t 1 -m 8 --shm -s {}", path.display());
        let server = LocalServer::over_unmappable_memory(&flags).expect("the server starts");
        Running { address: format!("unix://{}", path.display()), server }
    }
}
