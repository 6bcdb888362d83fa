//! One datagram and its answer.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Framing;
use crate::contract::{Kind, Link, Peer, Received, StreamLink};

/// One datagram and its answer.
#[derive(Debug)]
pub struct UdpLink {
    socket: Arc<UdpSocket>,
    framing: Framing,
    peer: SocketAddr,
    id: u16,
    request: Vec<u8>,
    read: usize,
    answer: Vec<u8>,
}

impl UdpLink {
    pub(super) fn new(
        socket: &Arc<UdpSocket>,
        framing: Framing,
        peer: SocketAddr,
        id: u16,
        request: Vec<u8>,
    ) -> UdpLink {
        UdpLink { socket: Arc::clone(socket), framing, peer, id, request, read: 0, answer: Vec::new() }
    }
}

impl Link for UdpLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        let left = &self.request[self.read..];
        if left.is_empty() {
            return Ok(Received::End);
        }
        let len = left.len().min(into.len());
        into[..len].copy_from_slice(&left[..len]);
        self.read += len;
        Ok(Received::Bytes(len))
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let before = self.answer.len();
        for part in parts {
            self.answer.extend_from_slice(part);
        }
        Ok(self.answer.len() - before)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let answer = std::mem::take(&mut self.answer);
        if !answer.is_empty() {
            (self.framing.seal)(self.id, &answer, &mut |datagram| {
                // A datagram that cannot be sent is lost, as any may be.
                let _ = self.socket.send_to(datagram, self.peer);
            });
        }
        Ok(true)
    }

    fn has_unsent(&self) -> bool {
        !self.answer.is_empty()
    }

    fn has_unread(&self) -> bool {
        self.read < self.request.len()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn peer(&self) -> Peer {
        Peer::Socket(self.peer)
    }

    fn kind(&self) -> Kind {
        Kind::Udp
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }
}
