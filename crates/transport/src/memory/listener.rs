//! Where connections in memory arrive.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::event::EventfdFlags;

use super::link::{MemoryLink, MemoryPeer, pair};
use crate::contract::{Kind, Link, Listener, Peer};

/// A listener that this process connects to.
#[derive(Debug)]
pub struct MemoryListener {
    waiting: Mutex<VecDeque<MemoryLink>>,
    ready: OwnedFd,
}

impl MemoryListener {
    /// A listener.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<MemoryListener> {
        let ready = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(MemoryListener { waiting: Mutex::default(), ready })
    }

    /// Connects.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn connect(&self) -> io::Result<MemoryPeer> {
        let (link, peer) = pair()?;
        self.waiting.lock().expect("no thread panics while it holds the queue").push_back(link);
        rustix::io::write(&self.ready, &1u64.to_ne_bytes())?;
        Ok(peer)
    }
}

impl Listener for MemoryListener {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let mut waiting = self.waiting.lock().expect("no thread panics while it holds the queue");
        let link = waiting.pop_front();
        if waiting.is_empty() {
            // Clears it; there may be nothing to read.
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
        Ok(link.map(|link| Box::new(link) as Box<dyn Link>))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn local(&self) -> Peer {
        Peer::Memory
    }

    fn kind(&self) -> Kind {
        Kind::Memory
    }
}
