//! One connection over a Unix socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use socket2::Socket;

use crate::contract::{Credentials, Kind, Link, Peer, Received, SocketLink};
use crate::socket;

/// One connection over a Unix socket.
#[derive(Debug)]
pub struct UnixLink {
    pub(crate) socket: Socket,
    pub(crate) path: PathBuf,
}

impl UnixLink {
    /// Takes over a connected, non-blocking socket; `path` is the listener's.
    pub fn new(socket: Socket, path: PathBuf) -> UnixLink {
        UnixLink { socket, path }
    }
}

impl Link for UnixLink {
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
        Peer::Local(self.path.clone())
    }

    fn kind(&self) -> Kind {
        Kind::Unix
    }

    fn credentials(&self) -> Option<Credentials> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        Some(Credentials { user: peer.uid.as_raw(), group: peer.gid.as_raw() })
    }

    fn into_socket(self: Box<Self>) -> Result<SocketLink, Box<dyn Link>> {
        Ok(SocketLink::Unix(*self))
    }
}
