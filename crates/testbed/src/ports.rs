//! Free ports of 127.0.0.1.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// Ports that are tried: nearly every one is free.
const ATTEMPTS_MAX: u32 = 100;

/// Returns a port that was free for both TCP and UDP a moment ago. Another process may take it before it is used.
///
/// # Errors
/// No port is free, or the system refuses a socket.
pub fn free_port() -> io::Result<u16> {
    for _ in 0..ATTEMPTS_MAX {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = tcp.local_addr()?.port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no port of 127.0.0.1 is free for both TCP and UDP"))
}

/// Returns 127.0.0.1 with a free port.
///
/// # Errors
/// As [`free_port`].
pub fn free_address() -> io::Result<SocketAddr> {
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)))
}
