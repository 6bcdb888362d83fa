//! Waiting: epoll, and what its tokens mean; a ring beside it (`ring.rs`), if the worker has one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use fabcache_transport::Source;
use fabcache_uring::Completion;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::connection::Connection;
use super::ring::{ReceiveRing, ReceiveState};
use super::token::{ConnectionToken, Interest};
use crate::bounds::EVENTS_PER_TURN_MAX;
use crate::settings::Engine;

/// Tokens of connections are below this: their slot.
const LISTENER_BIT: u64 = 1 << 63;
const DOORBELL: u64 = u64::MAX;
/// Tokens of sources are from here on.
const SOURCE: u64 = u64::MAX - 256;
const FLASH: u64 = u64::MAX - 1;

/// The interest of a connection that uses the ring and needs nothing of epoll.
const ONLY_RING: Interest = Interest { receive: true, send: false };

/// A readiness event.
#[derive(Debug)]
pub enum ReadyEvent {
    /// The worker was woken.
    Doorbell,
    /// A listener has peers to accept.
    Listener(usize),
    /// A source has events.
    Source(usize),
    /// Reads of flash have ended.
    Flash,
    /// A connection is readable or writable.
    Connection(ConnectionToken),
    /// A connection's peer is gone: epoll reports this again and again, whatever the connection waits for.
    Broken(ConnectionToken),
    /// The ring reports a completion of a connection's receive.
    Completion(Completion),
}

/// One worker's epoll instance, and its ring.
pub struct Poll {
    epoll: OwnedFd,
    pub(super) ring: Option<ReceiveRing>,
}

impl Poll {
    pub fn new(engine: Engine) -> io::Result<Poll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let ring = (engine == Engine::IoUring).then(ReceiveRing::new).transpose()?;
        Ok(Poll { epoll, ring })
    }

    /// Prepares for waiting by the calling thread.
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.as_mut().map_or(Ok(()), ReceiveRing::enable)
    }

    /// Waits for at most `timeout`, without limit if none.
    pub fn wait(&mut self, ready: &mut Vec<ReadyEvent>, timeout: Option<Duration>) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return self.wait_for_epoll(ready, timeout) };
        if ring.wait(self.epoll.as_fd(), ready, timeout)? {
            self.wait_for_epoll(ready, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    fn wait_for_epoll(&self, ready: &mut Vec<ReadyEvent>, timeout: Option<Duration>) -> io::Result<()> {
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
            FLASH => ReadyEvent::Flash,
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

    /// Waits for reads of flash.
    pub fn add_flash(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(FLASH), EventFlags::IN)?)
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

    /// Waits for what the connection's interest says. With a ring, the first [`Poll::update`] does so.
    pub fn add_connection(&self, connection: &mut Connection) -> io::Result<()> {
        if self.ring.is_some() && connection.can_use_ring() {
            if connection.receive_state == ReceiveState::ByEpoll {
                connection.receive_state = ReceiveState::Idle;
                connection.waited_for = ONLY_RING;
            }
            return Ok(());
        }
        self.add_to_epoll(connection)
    }

    fn add_to_epoll(&self, connection: &Connection) -> io::Result<()> {
        let Some(fd) = connection.descriptor() else { return Ok(()) };
        Ok(epoll::add(&self.epoll, fd, token(connection), flags(connection.interest()))?)
    }

    /// Configures epoll for the connection's interest, if that has changed.
    pub fn update(&mut self, connection: &mut Connection) -> io::Result<()> {
        if connection.receive_state != ReceiveState::ByEpoll {
            return self.update_with_ring(connection);
        }
        let Some(interest) = connection.changed_interest() else { return Ok(()) };
        let Some(fd) = connection.descriptor() else { return Ok(()) };
        Ok(epoll::modify(&self.epoll, fd, token(connection), flags(interest))?)
    }

    /// Configures the ring for the connection's input, and epoll for room to send and, without input, for its end.
    fn update_with_ring(&mut self, connection: &mut Connection) -> io::Result<()> {
        let can_use_ring = connection.can_use_ring();
        let wanted = if can_use_ring { connection.ring_interest() } else { ONLY_RING };
        let before = std::mem::replace(&mut connection.waited_for, wanted);
        if let Some(fd) = connection.descriptor()
            && before != wanted
        {
            let (token, flags) = (token(connection), flags(Interest { receive: false, ..wanted }));
            match (is_in_epoll(before), is_in_epoll(wanted)) {
                (false, true) => epoll::add(&self.epoll, fd, token, flags)?,
                (true, true) => epoll::modify(&self.epoll, fd, token, flags)?,
                (true, false) => epoll::delete(&self.epoll, fd)?,
                (false, false) => {}
            }
        }
        if !can_use_ring {
            // It has switched to another transport, which it did while the ring had no request of it.
            connection.receive_state = ReceiveState::ByEpoll;
            return self.add_to_epoll(connection);
        }
        self.ring.as_mut().map_or(Ok(()), |ring| ring.update(connection, wanted.receive))
    }

    pub fn remove(&mut self, connection: &mut Connection) {
        if let Some(ring) = &mut self.ring
            && let Err(error) = ring.remove(connection)
        {
            tracing::warn!("cannot cancel a receive, so its connection stays open: {error}");
        }
        if connection.receive_state != ReceiveState::ByEpoll
            && !is_in_epoll(std::mem::replace(&mut connection.waited_for, ONLY_RING))
        {
            return;
        }
        if let Some(fd) = connection.descriptor() {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }
}

/// Returns whether a connection that uses the ring lies in epoll too.
fn is_in_epoll(interest: Interest) -> bool {
    interest != ONLY_RING
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
