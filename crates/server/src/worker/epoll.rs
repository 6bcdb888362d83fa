//! Waiting: epoll, and what its tokens mean.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use fabcache_transport::Source;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::connection::Connection;
use super::token::{ConnectionToken, Interest};
use crate::bounds::EVENTS_PER_TURN_MAX;

/// Tokens of connections are below this: their slot.
const LISTENER_BIT: u64 = 1 << 63;
const DOORBELL: u64 = u64::MAX;
/// Tokens of sources are from here on.
const SOURCE: u64 = u64::MAX - 256;

/// A readiness event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyEvent {
    /// The worker was woken.
    Doorbell,
    /// A listener has peers to accept.
    Listener(usize),
    /// A source has events.
    Source(usize),
    /// A connection is readable or writable.
    Connection(ConnectionToken),
    /// A connection's peer is gone: epoll reports this again and again, whatever the connection waits for.
    Broken(ConnectionToken),
}

/// One worker's epoll instance.
pub struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Poll { epoll })
    }

    /// Waits for at most `timeout`, without limit if none.
    pub fn wait(&self, ready: &mut Vec<ReadyEvent>, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // Uninitialised: to clear it would take longer than a request.
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_PER_TURN_MAX];
        let events: &[Event] = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        ready.extend(events.iter().map(|event| match event.data.u64() {
            DOORBELL => ReadyEvent::Doorbell,
            token @ SOURCE.. => ReadyEvent::Source((token - SOURCE) as usize),
            token if token & LISTENER_BIT != 0 => ReadyEvent::Listener((token & !LISTENER_BIT) as usize),
            token if { event.flags }.intersects(EventFlags::ERR | EventFlags::HUP) => {
                ReadyEvent::Broken(ConnectionToken::of(token))
            }
            token => ReadyEvent::Connection(ConnectionToken::of(token)),
        }));
        Ok(())
    }

    pub fn add_doorbell(&self, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, doorbell, EventData::new_u64(DOORBELL), EventFlags::IN)?)
    }

    /// The kernel wakes one of several workers that wait for one listener.
    pub fn add_listener(&self, fd: BorrowedFd<'_>, index: usize) -> io::Result<()> {
        let token = EventData::new_u64(LISTENER_BIT | index as u64);
        Ok(epoll::add(&self.epoll, fd, token, EventFlags::IN | EventFlags::EXCLUSIVE)?)
    }

    pub fn remove_listener(&self, fd: BorrowedFd<'_>) {
        // It may have been removed before.
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub fn add_source(&self, source: &dyn Source, index: usize) -> io::Result<()> {
        let Some(fd) = source.wait_fd() else { return Ok(()) };
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(SOURCE + index as u64), EventFlags::IN)?)
    }

    pub fn remove_source(&self, source: &dyn Source) {
        if let Some(fd) = source.wait_fd() {
            // It is closed next.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    pub fn add_connection(&self, connection: &Connection) -> io::Result<()> {
        let Some(fd) = connection.descriptor() else { return Ok(()) };
        Ok(epoll::add(&self.epoll, fd, token(connection), flags(connection.interest()))?)
    }

    /// Configures epoll for the connection's interest, if that has changed.
    pub fn update(&self, connection: &mut Connection) -> io::Result<()> {
        let Some(interest) = connection.changed_interest() else { return Ok(()) };
        let Some(fd) = connection.descriptor() else { return Ok(()) };
        Ok(epoll::modify(&self.epoll, fd, token(connection), flags(interest))?)
    }

    pub fn remove(&self, connection: &Connection) {
        if let Some(fd) = connection.descriptor() {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }
}

fn token(connection: &Connection) -> EventData {
    EventData::new_u64(connection.place().token())
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    if interest.receive {
        flags |= EventFlags::IN | EventFlags::RDHUP;
    }
    if interest.send {
        flags |= EventFlags::OUT;
    }
    flags
}
