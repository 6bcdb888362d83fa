//! Free ports of 127.0.0.1.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports that Linux gives to no socket by itself, unless its range was changed (net.ipv4.ip_local_port_range).
const FIXED: Range<u16> = 20_000..32_000;

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

/// Returns a port that was free for TCP a moment ago, another each time. Unlike [`free_port`]'s, no socket gets it by chance.
///
/// # Errors
/// No port is free.
pub fn free_fixed_port() -> io::Result<u16> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..FIXED.len() {
        // Other processes begin elsewhere.
        let number = std::process::id().wrapping_mul(97).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        let port = FIXED.start + (number % FIXED.len() as u32) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no fixed port of 127.0.0.1 is free"))
}

/// Returns 127.0.0.1 with a free port.
///
/// # Errors
/// As [`free_port`].
pub fn free_address() -> io::Result<SocketAddr> {
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)))
}
