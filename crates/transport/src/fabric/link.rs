//! One client's link: a slot in its worker's endpoint, and the socket beside it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;

use super::bounds::LINGER_TIME_MAX;
use super::link_state::LinkState;
use super::link_table::{LinkTable, lock};
use crate::contract::{Kind, Link, Peer, PolledLink, Received, StreamLink};

/// More doorbells than a client has reason to send: it sends one for each wait.
const BELLS_MAX: usize = 4 << 10;

/// One client's link.
#[derive(Debug)]
pub struct FabricLink {
    inner: Arc<Mutex<LinkTable>>,
    index: u32,
    socket: Arc<Socket>,
    peer: SocketAddr,
    /// This end polls; the socket need not signal.
    polled: bool,
    /// The client has closed the socket: bytes it sent before can still be received.
    left: bool,
    /// The client sent too many doorbells.
    is_flooded: bool,
}

impl FabricLink {
    pub(super) fn new(
        inner: Arc<Mutex<LinkTable>>,
        index: u32,
        socket: Arc<Socket>,
        peer: SocketAddr,
    ) -> FabricLink {
        FabricLink { inner, index, socket, peer, polled: false, left: false, is_flooded: false }
    }

    /// Sends the answer to the attach request over the socket, before the link is used.
    ///
    /// # Errors
    /// The client has disconnected, or accepts only a part: the link is unusable.
    pub fn answer(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = rustix::net::send(&*self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn check(&self, inner: &mut LinkTable) -> io::Result<()> {
        if self.is_flooded {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client rings without end"));
        }
        let link_state = inner.link_state(self.index).ok_or(io::ErrorKind::NotConnected)?;
        link_state.failure.as_ref().map_or(Ok(()), |failure| Err(failure.to_io()))
    }

    /// Answers the client's doorbells: at once, if it was sent messages that it may not have seen.
    fn take_notification(&self, inner: &mut LinkTable, rang: bool) {
        if let Some(link_state) = inner.link_state(self.index).filter(|_| rang) {
            link_state.doorbells.heard();
        }
        inner.note(self.index);
    }

    /// Reads the socket: the client's doorbells, or its end.
    fn hear(&mut self) -> bool {
        // Once: a client that sends doorbells faster than this end reads them must not keep it busy.
        let mut doorbells = [MaybeUninit::uninit(); BELLS_MAX];
        match rustix::net::recv(&*self.socket, &mut doorbells[..], RecvFlags::DONTWAIT) {
            Ok((_, BELLS_MAX..)) => self.is_flooded = true,
            Ok((_, 1..)) => return true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.left = true,
        }
        false
    }
}

impl Link for FabricLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        let shared = Arc::clone(&self.inner);
        let mut inner = lock(&shared);
        let mut has_looked = false;
        loop {
            self.check(&mut inner)?;
            let (link_state, shared) = inner.parts(self.index).ok_or(io::ErrorKind::NotConnected)?;
            // The caller has been told that everything was sent.
            link_state.is_flushing &= link_state.end.has_unsent();
            let len = link_state.receive(shared, into);
            if len > 0 {
                inner.note(self.index);
                inner.distribute_buffers();
                return Ok(Received::Bytes(len));
            }
            let (has_incoming, has_left) = (link_state.end.has_incoming(), link_state.end.has_peer_left());
            if has_left && !has_incoming {
                return Ok(Received::End);
            }
            if has_looked && self.left {
                // It waits for the end of the staged data, if it stays open.
                return if has_incoming {
                    Err(io::ErrorKind::ConnectionReset.into())
                } else {
                    Ok(Received::End)
                };
            }
            if has_looked {
                return Ok(Received::Nothing);
            }
            if !self.polled {
                let rang = self.hear();
                self.take_notification(&mut inner, rang);
            }
            has_looked = true;
            // What this fails with, the link fails with.
            let _ = inner.progress();
        }
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let shared = Arc::clone(&self.inner);
        let mut inner = lock(&shared);
        self.check(&mut inner)?;
        let (link_state, shared) = inner.parts(self.index).ok_or(io::ErrorKind::NotConnected)?;
        if self.left || link_state.end.has_peer_left() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut sent = link_state.send(shared, parts);
        inner.note(self.index);
        if sent == 0 {
            // Completed operations may make room.
            let _ = inner.progress();
            let (link_state, shared) = inner.parts(self.index).ok_or(io::ErrorKind::NotConnected)?;
            sent = link_state.send(shared, parts);
            inner.note(self.index);
        }
        self.check(&mut inner)?;
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let shared = Arc::clone(&self.inner);
        let mut inner = lock(&shared);
        let _ = inner.progress();
        self.check(&mut inner)?;
        let link_state = inner.link_state(self.index).ok_or(io::ErrorKind::NotConnected)?;
        link_state.is_flushing = link_state.end.has_unsent();
        if link_state.is_flushing && self.left {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(!link_state.is_flushing)
    }

    fn has_unsent(&self) -> bool {
        lock(&self.inner).link_state(self.index).is_some_and(|link_state| link_state.end.has_unsent())
    }

    fn has_unread(&self) -> bool {
        lock(&self.inner).link_state(self.index).is_some_and(|link_state| link_state.is_ready())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn peer(&self) -> Peer {
        Peer::Socket(self.peer)
    }

    fn kind(&self) -> Kind {
        Kind::Fabric
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn as_polled(&mut self) -> Option<&mut dyn PolledLink> {
        Some(self)
    }
}

impl PolledLink for FabricLink {
    fn drain_wakeup(&mut self) {
        let rang = self.hear();
        self.take_notification(&mut lock(&self.inner), rang);
    }

    fn start_polling(&mut self) {
        self.polled = true;
    }

    fn arm_wakeup(&mut self) -> bool {
        self.polled = false;
        let mut inner = lock(&self.inner);
        let _ = inner.progress();
        !inner.link_state(self.index).is_some_and(|link_state| link_state.is_ready())
    }
}

impl Drop for FabricLink {
    fn drop(&mut self) {
        // Where a thread has panicked nothing is of use any more.
        let Ok(mut inner) = self.inner.lock() else { return };
        // A client that has said goodbye keeps its memory until the socket is closed.
        let is_quiet =
            |link_state: &mut LinkState| link_state.end.has_peer_left() && !link_state.is_on_memory();
        let is_over = self.left
            || self.is_flooded
            || inner
                .link_state(self.index)
                .is_none_or(|link_state| link_state.failure.is_some() || is_quiet(link_state));
        if is_over {
            inner.end(self.index);
        } else {
            inner.linger(self.index, Instant::now() + LINGER_TIME_MAX);
        }
    }
}
