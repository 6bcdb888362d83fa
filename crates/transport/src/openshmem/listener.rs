//! Where the links of other PEs come in.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::event::EventfdFlags;

use super::pipe::PipeLink;
use crate::contract::{Kind, Link, Listener, Peer};

/// The listener for other PEs of the job.
#[derive(Debug)]
pub struct OpenShmemListener {
    pe: usize,
    waiting: Mutex<VecDeque<PipeLink>>,
    ready: OwnedFd,
}

impl OpenShmemListener {
    /// Returns the listener of this PE.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(pe: usize) -> io::Result<OpenShmemListener> {
        let ready = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(OpenShmemListener { pe, waiting: Mutex::default(), ready })
    }

    /// Adds a link that was opened.
    pub fn add(&self, link: PipeLink) {
        self.waiting.lock().expect("no thread panics while it holds the queue").push_back(link);
        // A full counter wakes the worker as well.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }
}

impl Listener for OpenShmemListener {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let mut waiting = self.waiting.lock().expect("no thread panics while it holds the queue");
        let link = waiting.pop_front();
        if waiting.is_empty() {
            // There may be nothing to read.
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
        Ok(link.map(|link| Box::new(link) as Box<dyn Link>))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn local(&self) -> Peer {
        Peer::Pe(self.pe)
    }

    fn kind(&self) -> Kind {
        Kind::OpenShmem
    }
}
