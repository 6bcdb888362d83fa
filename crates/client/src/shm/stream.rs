//! The client's end of a channel, as a stream of bytes.
//!
//! A waiting thread spins according to its [`SpinPolicy`] before it sleeps.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crossbeam_utils::atomic::AtomicCell;
use fabcache_layout::channel::{Channel, ProtocolError, SpinPolicy};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::items::Items;
use crate::bounds::{LOOKS_BEFORE_CLOCK, POLLS_PER_CLOCK_READ, TRUSTED_IDLE};
use crate::message::Encoding;
use crate::region_clock::monotonic_ns;
use crate::socket::{self, Doorbell, wait_for_any};
use crate::stream::{Stream, Until, Waiter};

/// A channel to a server.
#[derive(Debug)]
pub struct ShmStream(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    channel: Mutex<Channel>,
    /// Carries notifications, and signals that the server is gone.
    socket: Arc<socket2::Socket>,
    /// The region, whose liveness word shows that the server is gone; none with the channel alone.
    items: Option<Arc<Items>>,
    /// The server has closed the socket.
    left: AtomicBool,
    /// When the socket was last checked.
    looked_ns: AtomicU64,
    /// The spin policy. Of two concurrent updates one is lost.
    spin: AtomicCell<SpinPolicy>,
}

const _: () = assert!(AtomicCell::<SpinPolicy>::is_lock_free());

impl ShmStream {
    /// Returns a stream over an unused channel.
    pub fn new(channel: Channel, socket: Arc<socket2::Socket>, items: Option<Arc<Items>>) -> ShmStream {
        ShmStream(Arc::new(Shared {
            channel: Mutex::new(channel),
            socket,
            items,
            left: AtomicBool::new(false),
            looked_ns: AtomicU64::new(monotonic_ns()),
            spin: AtomicCell::default(),
        }))
    }
}

impl Shared {
    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().expect("no thread panics while it holds a channel")
    }

    fn notify(&self) {
        socket::notify(&self.socket);
    }

    /// Consumes the server's notifications, or records that it is gone.
    fn drain_wakeups(&self) {
        self.looked_ns.store(monotonic_ns(), Ordering::Relaxed);
        let mut doorbells = [0; 64];
        match rustix::net::recv(&*self.socket, &mut doorbells[..], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.left.store(true, Ordering::Relaxed),
        }
    }

    /// Returns whether the server has left, as far as is known or cheap to find out.
    fn has_left(&self) -> bool {
        let unlooked_ns = monotonic_ns().saturating_sub(self.looked_ns.load(Ordering::Relaxed));
        if u128::from(unlooked_ns) > TRUSTED_IDLE.as_nanos() {
            self.drain_wakeups();
        }
        self.left.load(Ordering::Relaxed) || self.items.as_ref().is_some_and(|items| !items.is_alive())
    }

    fn is_ready(&self, channel: &mut Channel, until: Until) -> bool {
        let arrived = until.covers(Until::Arrived) && channel.has_incoming();
        // The next call reports what broke the channel.
        arrived || until.covers(Until::CanSend) && channel.outgoing().has_room().unwrap_or(true)
    }

    /// Polls for as long as the spin policy says.
    fn look(&self, spin: SpinPolicy, until: Until, deadline: Instant) -> bool {
        // At first without reading the clock, which takes as long as several polls.
        spin.spin_time().is_some_and(|time| {
            self.sees(until, LOOKS_BEFORE_CLOCK)
                || self.look_before(deadline.min(Instant::now() + time), until)
        })
    }

    fn look_before(&self, end: Instant, until: Until) -> bool {
        loop {
            if self.sees(until, POLLS_PER_CLOCK_READ) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    /// Polls this many times.
    fn sees(&self, until: Until, looks: u32) -> bool {
        (0..looks).any(|_| {
            let is_there =
                self.channel.try_lock().is_ok_and(|mut channel| self.is_ready(&mut channel, until));
            if !is_there {
                std::hint::spin_loop();
            }
            is_there
        })
    }

    /// Waits for the server's or the waiter's notification.
    fn wait(&self, until: Until, deadline: Instant, own: Option<&Doorbell>) -> io::Result<()> {
        let spin = self.spin.load();
        if self.look(spin, until, deadline) {
            self.spin.store(spin.after_success());
            return Ok(());
        }
        let began = Instant::now();
        let slept = self.sleep(until, deadline, own);
        self.spin.store(spin.after_sleep(began.elapsed()));
        slept
    }

    /// Sleeps until rung.
    fn sleep(&self, until: Until, deadline: Instant, own: Option<&Doorbell>) -> io::Result<()> {
        {
            let mut channel = self.channel();
            if until.covers(Until::Arrived) {
                channel.incoming().want_data();
            }
            if until.covers(Until::CanSend) {
                channel.outgoing().want_room();
            }
            if self.is_ready(&mut channel, until) {
                stop_wanting(&mut channel, until);
                return Ok(());
            }
        }
        let doorbell = PollFd::new(&*self.socket, PollFlags::IN);
        match own {
            None => wait_for_any(&mut [doorbell], deadline)?,
            Some(own) => {
                let mut either = [doorbell, PollFd::new(&own.0, PollFlags::IN)];
                wait_for_any(&mut either, deadline)?;
                if !either[1].revents().is_empty() {
                    own.answer();
                }
            }
        }
        // Withdraw the request for a doorbell that was not rung: it would cost the server a system call and wake the
        // next waiter for nothing.
        stop_wanting(&mut self.channel(), until);
        self.drain_wakeups();
        Ok(())
    }
}

fn stop_wanting(channel: &mut Channel, until: Until) {
    if until.covers(Until::Arrived) {
        channel.incoming().unwant_data();
    }
    if until.covers(Until::CanSend) {
        channel.outgoing().unwant_room();
    }
}

fn broken(broken: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, broken)
}

impl Stream for ShmStream {
    fn encoding(&self) -> Encoding {
        Encoding::Mixed
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let shared = &*self.0;
        if shared.left.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut channel = shared.channel();
        let sent = channel.outgoing().send(parts).map_err(broken)?;
        if sent > 0 && channel.outgoing().must_notify() {
            shared.notify();
        }
        Ok(sent)
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let shared = &*self.0;
        let most = into.capacity() - into.len();
        let mut has_left = false;
        loop {
            let mut channel = shared.channel();
            let len = channel.incoming().append_to(into, most).map_err(broken)?;
            if len > 0 {
                if channel.incoming().must_notify() {
                    shared.notify();
                }
                return Ok(Some(len));
            }
            if has_left {
                return Ok(None);
            }
            drop(channel);
            if !shared.has_left() {
                return Ok(Some(0));
            }
            // Polls a last time for what the server sent before it left.
            has_left = true;
        }
    }

    fn wait(&mut self, until: Until, deadline: Instant) -> io::Result<()> {
        self.0.wait(until, deadline, None)
    }

    fn waiter(&self) -> io::Result<Box<dyn Waiter>> {
        Ok(Box::new(ShmWaiter { shared: Arc::clone(&self.0), doorbell: Doorbell::new()? }))
    }
}

#[derive(Debug)]
struct ShmWaiter {
    shared: Arc<Shared>,
    doorbell: Doorbell,
}

impl Waiter for ShmWaiter {
    fn wait(&self, until: Until, deadline: Instant) -> io::Result<()> {
        self.shared.wait(until, deadline, Some(&self.doorbell))
    }

    fn wake(&self) {
        self.doorbell.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabcache_distribution::ServerEndpoint;
    use fabcache_layout::channel::Shape;
    use fabcache_testbed::local::LocalServer;
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn nobody_rings_for_who_has_stopped_waiting() {
        let (server, path) = LocalServer::unix("stream", "-m 8 --shm");
        let soon = Instant::now() + Duration::from_secs(20);
        let place = ServerEndpoint::Unix(path);
        let socket =
            crate::socket::Socket::connect(&place, Encoding::Meta, Duration::from_secs(20)).expect("up");
        let attached = super::super::attach(&socket, None, true, soon).expect("shared");

        // This link's server side is here.
        let shape = Shape { slots: 2, slot_bytes: 64, staging_bytes: 4096 };
        let (mut other, file) = Channel::create(&shape).expect("memory");
        let channel = Channel::open(std::os::fd::AsFd::as_fd(&file)).expect("just made");
        let (socket, _bells) = Socket::pair(Domain::UNIX, Type::STREAM, None).expect("sockets");
        let mut stream = ShmStream::new(channel, Arc::new(socket), attached.items.ok());
        for byte in [b"1", b"2"] {
            assert_eq!(stream.send(&[IoSlice::new(byte)]).expect("sound"), 1);
        }
        for until in [Until::Arrived, Until::CanSend, Until::Either] {
            stream.wait(until, Instant::now()).expect("a timeout");
        }
        other.outgoing().send(&[IoSlice::new(b"answer")]).expect("sound");
        assert!(!other.outgoing().must_notify(), "the client does not wait for an answer");
        other.incoming().receive(&mut [0; 8]).expect("sound");
        assert!(!other.incoming().must_notify(), "nor for room");
        server.stop().expect("no thread failed");
    }
}
