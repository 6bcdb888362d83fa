//! Where a worker finds what other threads have for it: new links, and a nudge.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use fabcache_transport::Link;
use rustix::event::EventfdFlags;

/// A link that a worker is to serve.
pub struct NewLink {
    /// The link.
    pub link: Box<dyn Link>,
    /// Which listener took it.
    pub listener: usize,
}

/// One worker's inbox.
pub struct Inbox {
    links: Mutex<Vec<NewLink>>,
    doorbell: OwnedFd,
    /// Connections of the worker, including those in the inbox.
    load: AtomicU32,
}

impl Inbox {
    /// An empty inbox.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> std::io::Result<Inbox> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { links: Mutex::default(), doorbell, load: AtomicU32::new(0) })
    }

    /// Hands a link over, and wakes the worker.
    pub fn put(&self, link: NewLink) {
        self.links.lock().expect("no thread panics while it holds an inbox").push(link);
        self.wake();
    }

    /// Takes the new links.
    pub fn take(&self) -> Vec<NewLink> {
        // Before the links are taken: a later doorbell then concerns later links.
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        std::mem::take(&mut self.links.lock().expect("no thread panics while it holds an inbox"))
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        // A full counter wakes the worker as well.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Readable when the worker was woken.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Connections of the worker.
    pub fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    /// Counts a connection in or out.
    pub fn count(&self, change: i32) {
        if change > 0 {
            self.load.fetch_add(1, Ordering::Relaxed);
        } else {
            self.load.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("load", &self.load()).finish_non_exhaustive()
    }
}
