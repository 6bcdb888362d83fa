//! One TCP connection.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::Socket;

use crate::contract::{Kind, Link, Peer, Received, SocketLink};
use crate::socket;

/// One TCP connection.
#[derive(Debug)]
pub struct TcpLink {
    pub(crate) socket: Socket,
    pub(crate) peer: SocketAddr,
}

impl TcpLink {
    /// Takes over a connected, non-blocking socket. Answers leave at once.
    pub fn new(socket: Socket, peer: SocketAddr) -> io::Result<TcpLink> {
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        Ok(TcpLink { socket, peer })
    }
}

impl Link for TcpLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        socket::receive(&self.socket, into)
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::send(&self.socket, parts)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn has_unread(&self) -> bool {
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn peer(&self) -> Peer {
        Peer::Socket(self.peer)
    }

    fn kind(&self) -> Kind {
        Kind::Tcp
    }

    fn into_socket(self: Box<Self>) -> Result<SocketLink, Box<dyn Link>> {
        Ok(SocketLink::Tcp(*self))
    }
}
