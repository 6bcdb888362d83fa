//! What stream sockets of all families share.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;

use socket2::Socket;

use crate::contract::Received;

/// Nothing now, or a signal came first: not an error.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Prepares a socket to bind `address`: with other listeners of this process if it is shared, which prefer packets that
/// the listener's CPU receives.
pub(crate) fn prepare_to_bind(
    socket: &Socket,
    address: &SocketAddr,
    share_address: bool,
    cpu: Option<usize>,
) -> io::Result<()> {
    if share_address {
        socket.set_reuse_port(true)?;
    }
    if let Some(cpu) = cpu {
        // A preference, which sandboxes and sockets in user space may not know.
        let _ = socket.set_cpu_affinity(cpu);
    }
    if address.is_ipv6() {
        // IPv4 has its own listener.
        socket.set_only_v6(true)?;
    }
    Ok(())
}

pub(crate) fn receive(mut socket: &Socket, into: &mut [u8]) -> io::Result<Received> {
    outcome(socket.read(into))
}

pub(crate) fn receive_in_two(
    mut socket: &Socket,
    first: &mut [u8],
    second: &mut [u8],
) -> io::Result<Received> {
    outcome(socket.read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)]))
}

fn outcome(received: io::Result<usize>) -> io::Result<Received> {
    match received {
        Ok(0) => Ok(Received::End),
        Ok(len) => Ok(Received::Bytes(len)),
        Err(error) if is_not_now(&error) => Ok(Received::Nothing),
        Err(error) => Err(error),
    }
}

pub(crate) fn send(mut socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let sent = if let [part] = parts { socket.write(part) } else { socket.write_vectored(parts) };
    match sent {
        Err(error) if is_not_now(&error) => Ok(0),
        sent => sent,
    }
}

/// A connection that ended before it was accepted is not an error.
pub(crate) fn accept(socket: &Socket) -> io::Result<Option<(Socket, socket2::SockAddr)>> {
    match socket.accept() {
        Ok((accepted, address)) => {
            accepted.set_nonblocking(true)?;
            Ok(Some((accepted, address)))
        }
        Err(error) if is_not_now(&error) || error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}
