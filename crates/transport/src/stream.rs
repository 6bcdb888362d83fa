//! Links over stream sockets: TCP and Unix.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use socket2::Socket;

use crate::contract::{Credentials, Kind, Link, Peer, Received, StreamLink};
use crate::socket;

impl StreamLink {
    /// Takes over a connected, non-blocking TCP socket, without Nagle's delay.
    ///
    /// # Errors
    /// A socket option cannot be set.
    pub fn tcp(socket: Socket, peer: SocketAddr) -> io::Result<StreamLink> {
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        Ok(StreamLink { socket, peer: Peer::Socket(peer) })
    }

    /// Takes over a connected, non-blocking Unix socket; `path` is the listener's.
    pub fn unix(socket: Socket, path: PathBuf) -> StreamLink {
        StreamLink { socket, peer: Peer::Local(path) }
    }
}

impl Link for StreamLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        socket::receive(&self.socket, into)
    }

    fn receive_in_two(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<Received> {
        socket::receive_in_two(&self.socket, first, second)
    }

    fn available(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.socket).unwrap_or(0)
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
        self.peer.clone()
    }

    fn kind(&self) -> Kind {
        if matches!(self.peer, Peer::Local(_)) { Kind::Unix } else { Kind::Tcp }
    }

    fn credentials(&self) -> Option<Credentials> {
        if self.kind() != Kind::Unix {
            return None;
        }
        let peer = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        Some(Credentials { user: peer.uid.as_raw(), group: peer.gid.as_raw() })
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Ok(*self)
    }
}
