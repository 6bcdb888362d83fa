//! A source in memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::EventfdFlags;

use crate::contract::Kind;
use crate::source::{Source, WaitMode};

/// Events reported by one call of `progress`.
const EVENTS_PER_TURN_MAX: usize = 64;

#[derive(Debug, Default)]
struct Events {
    /// Tags of links with unreported events.
    tags: VecDeque<u64>,
    links: usize,
    is_armed: bool,
    is_closed: bool,
    has_failed: bool,
}

#[derive(Debug)]
struct Shared {
    events: Mutex<Events>,
    doorbell: OwnedFd,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().expect("no thread panics while it holds the events")
    }

    /// Changes the events, and rings the doorbell if the worker sleeps.
    fn change(&self, change: impl FnOnce(&mut Events)) {
        let mut events = self.lock();
        change(&mut events);
        if std::mem::take(&mut events.is_armed) {
            // It fails only if the counter is full, and then the descriptor is readable.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

/// A source whose events other threads of this process make. They ring its doorbell only while it is armed.
#[derive(Debug)]
pub struct MemorySource(Arc<Shared>);

/// A link of a [`MemorySource`]: makes events.
#[derive(Debug)]
pub struct MemorySourceLink {
    shared: Arc<Shared>,
    tag: u64,
}

impl MemorySource {
    /// A source without links.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<MemorySource> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(MemorySource(Arc::new(Shared { events: Mutex::default(), doorbell })))
    }

    /// Adds a link, which `progress` reports as `tag`. `None` if the source is closed.
    pub fn link(&self, tag: u64) -> Option<MemorySourceLink> {
        let mut events = self.0.lock();
        events.links += usize::from(!events.is_closed);
        (!events.is_closed).then(|| MemorySourceLink { shared: Arc::clone(&self.0), tag })
    }
}

impl MemorySourceLink {
    /// Makes an event of this link.
    pub fn notify(&self) {
        self.shared.change(|events| events.tags.push_back(self.tag));
    }

    /// Makes the source fail.
    pub fn fail(&self) {
        self.shared.change(|events| events.has_failed = true);
    }
}

impl Drop for MemorySourceLink {
    fn drop(&mut self) {
        self.shared.lock().links -= 1;
    }
}

impl Source for MemorySource {
    fn progress(&mut self, ready: &mut Vec<u64>) -> io::Result<()> {
        let mut events = self.0.lock();
        let count = events.tags.len().min(EVENTS_PER_TURN_MAX);
        ready.extend(events.tags.drain(..count));
        if events.has_failed { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    fn arm(&mut self) -> WaitMode {
        let mut events = self.0.lock();
        // Clears earlier signals; there may be none.
        let _ = rustix::io::read(&self.0.doorbell, &mut [0; 8]);
        events.is_armed = events.tags.is_empty() && !events.has_failed;
        if events.is_armed { WaitMode::Sleep } else { WaitMode::Spin }
    }

    fn disarm(&mut self) {
        self.0.lock().is_armed = false;
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.doorbell.as_fd())
    }

    fn has_events(&self) -> bool {
        let events = self.0.lock();
        !events.tags.is_empty() || events.has_failed
    }

    fn links(&self) -> usize {
        self.0.lock().links
    }

    fn kind(&self) -> Kind {
        Kind::Memory
    }

    fn close(&mut self) {
        self.0.lock().is_closed = true;
    }
}
