//! Two ends of a connection in memory.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::EventfdFlags;

use crate::contract::{Kind, Link, Peer, Received, StreamLink};

/// Bytes that one direction holds before `send` accepts no more.
const PIPE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    ended: bool,
}

type Shared = Arc<Mutex<Pipe>>;

fn lock(pipe: &Shared) -> std::sync::MutexGuard<'_, Pipe> {
    pipe.lock().expect("no thread panics while it holds a pipe")
}

/// The server's end.
#[derive(Debug)]
pub struct MemoryLink {
    inbound: Shared,
    outbound: Shared,
    /// Always readable and writable, so that a waiting thread polls again.
    ready: Option<OwnedFd>,
}

/// The client's end.
#[derive(Debug)]
pub struct MemoryPeer {
    inbound: Shared,
    outbound: Shared,
}

/// A connection.
///
/// # Errors
/// The system has no descriptor left.
pub fn pair() -> io::Result<(MemoryLink, MemoryPeer)> {
    let (to_server, to_client) = (Shared::default(), Shared::default());
    let ready = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (inbound, outbound) = (Arc::clone(&to_server), Arc::clone(&to_client));
    let link = MemoryLink { inbound, outbound, ready: Some(ready) };
    Ok((link, MemoryPeer { inbound: to_client, outbound: to_server }))
}

/// The server's end of a closed connection. It uses no system resources.
pub fn ended() -> MemoryLink {
    let over = || Arc::new(Mutex::new(Pipe { ended: true, ..Pipe::default() }));
    MemoryLink { inbound: over(), outbound: over(), ready: None }
}

fn receive(pipe: &Shared, into: &mut [u8]) -> Received {
    let mut pipe = lock(pipe);
    if pipe.bytes.is_empty() {
        return if pipe.ended { Received::End } else { Received::Nothing };
    }
    let len = pipe.bytes.len().min(into.len());
    for (to, from) in into.iter_mut().zip(pipe.bytes.drain(..len)) {
        *to = from;
    }
    Received::Bytes(len)
}

fn send(pipe: &Shared, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut pipe = lock(pipe);
    if pipe.ended {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let before = pipe.bytes.len();
    for part in parts {
        let room = PIPE_BYTES_MAX - pipe.bytes.len();
        pipe.bytes.extend(&part[..part.len().min(room)]);
    }
    Ok(pipe.bytes.len() - before)
}

impl MemoryPeer {
    /// Receives what the server sent.
    pub fn receive(&self, into: &mut [u8]) -> Received {
        receive(&self.inbound, into)
    }

    /// Sends to the server.
    ///
    /// # Errors
    /// The server's end is closed.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        send(&self.outbound, &[IoSlice::new(bytes)])
    }
}

impl Drop for MemoryPeer {
    fn drop(&mut self) {
        lock(&self.inbound).ended = true;
        lock(&self.outbound).ended = true;
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        lock(&self.inbound).ended = true;
        lock(&self.outbound).ended = true;
    }
}

impl Link for MemoryLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        Ok(receive(&self.inbound, into))
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send(&self.outbound, parts)
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
        self.ready.as_ref().map(AsFd::as_fd)
    }

    fn peer(&self) -> Peer {
        Peer::Memory
    }

    fn kind(&self) -> Kind {
        Kind::Memory
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }
}
