//! A link over the fabric, as a stream of bytes.
//!
//! A waiting thread spins according to its [`SpinPolicy`], then sleeps: on the provider's descriptor if there is one,
//! else in short naps. The end of the TCP connection wakes it as well.
//!
//! ```text
//! spin ──(unsuccessful)──> notify, if the server may not know ──> sleep: descriptor or nap, socket, own doorbell ──>
//! spin
//! ```

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;
use fabcache_fabric::Error;
use fabcache_fabric::channel::Terms;
use fabcache_layout::channel::SpinPolicy;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::fork_guard::ForkGuard;
use super::lent_buffer::LentBuffer;
use super::lingering_links;
use super::link::{End, Link};
use crate::bounds::{
    LEAVE_MAX, NAP_MAX, NAP_MIN, NAPS_A_BELL, POLLS_PER_CLOCK_READ, SLEEP_ON_DESCRIPTOR_MAX, TRUSTED_IDLE,
};
use crate::message::Encoding;
use crate::region_clock::monotonic_ns;
use crate::socket::{self, Doorbell, wait_for_any};
use crate::stream::{Lending, Stream, Until, Waiter};

/// A link to a server.
#[derive(Debug)]
pub struct FabricStream(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    link: Mutex<ForkGuard<Link>>,
    /// Signals that something has arrived.
    descriptor: Option<OwnedFd>,
    /// Carries doorbells, and signals that the server is gone.
    socket: Arc<socket2::Socket>,
    /// The server has closed the socket.
    left: AtomicBool,
    /// When the socket was last checked.
    looked_ns: AtomicU64,
    /// The spin policy. Of two concurrent updates one is lost.
    spin: AtomicCell<SpinPolicy>,
    /// Wakes a thread that waits while others send.
    doorbell: OnceLock<Arc<Doorbell>>,
}

impl FabricStream {
    /// Creates a stream over an endpoint that the server knows.
    ///
    /// # Errors
    /// The server's name is invalid.
    pub fn new(
        end: End,
        name: &[u8],
        terms: Terms,
        socket: Arc<socket2::Socket>,
    ) -> Result<FabricStream, Error> {
        let link = Link::new(end, name, terms)?;
        let descriptor = link.descriptor().map_err(|error| Error::System(error.to_string()))?;
        Ok(FabricStream(Arc::new(Shared {
            link: Mutex::new(ForkGuard::new(link)),
            descriptor,
            socket,
            left: AtomicBool::new(false),
            looked_ns: AtomicU64::new(monotonic_ns()),
            spin: AtomicCell::default(),
            doorbell: OnceLock::new(),
        })))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.link.get_mut().is_ok_and(|link| link.is_current()) {
            return;
        }
        // Nothing is sent to a server that is gone: if it was in this process, as in tests, providers would write to
        // its former memory.
        self.drain_wakeups();
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        if self.link().leave() {
            self.wait_until_taken();
        }
        let Ok(link) = self.link.get_mut() else { return };
        if link.may_be_written_late() && !self.left.load(Ordering::Relaxed) {
            lingering_links::keep(link.take(), Arc::clone(&self.socket));
        }
    }
}

impl Shared {
    /// Waits briefly until the server has received everything and closes the socket.
    fn wait_until_taken(&self) {
        let end = Instant::now() + LEAVE_MAX;
        self.notify();
        while !self.left.load(Ordering::Relaxed) && Instant::now() < end {
            let mut socket = [PollFd::new(&*self.socket, PollFlags::IN)];
            if wait_for_any(&mut socket, Instant::now() + NAP_MIN).is_err() || self.link().progress().is_err()
            {
                return;
            }
            self.drain_wakeups();
        }
    }

    fn link(&self) -> MutexGuard<'_, ForkGuard<Link>> {
        self.link.lock().expect("no thread panics while it holds a link")
    }

    fn notify(&self) {
        socket::notify(&self.socket);
    }

    /// Called after a send or a failed send.
    fn has_sent(&self, link: &mut Link, nothing: bool) {
        if nothing && link.must_notify_awake() {
            self.notify();
        }
        // A sleeping thread would not be notified of bytes received here.
        if link.is_asleep
            && link.has_come()
            && let Some(doorbell) = self.doorbell.get()
        {
            doorbell.notify();
        }
    }

    /// Consumes the server's doorbells, or notes that it is gone. If true, the caller must check for what it waits
    /// for.
    fn drain_wakeups(&self) -> bool {
        self.looked_ns.store(monotonic_ns(), Ordering::Relaxed);
        let mut doorbells = [0; 64];
        match rustix::net::recv(&*self.socket, &mut doorbells[..], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => self.link().doorbells.heard(),
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Ok((_, 0)) | Err(_) => self.left.store(true, Ordering::Relaxed),
        }
        true
    }

    /// Returns whether the server has notified this end or left, if that is cheap to find out.
    fn was_notified_or_left(&self) -> bool {
        let unlooked_ns = monotonic_ns().saturating_sub(self.looked_ns.load(Ordering::Relaxed));
        let is_new = u128::from(unlooked_ns) > TRUSTED_IDLE.as_nanos() && self.drain_wakeups();
        is_new || self.left.load(Ordering::Relaxed)
    }

    /// Polls for as long as the spin policy says.
    fn look(&self, spin: SpinPolicy, until: Until, deadline: Instant) -> bool {
        let Some(time) = spin.spin_time() else { return false };
        let end = deadline.min(Instant::now() + time);
        loop {
            if (0..POLLS_PER_CLOCK_READ).any(|_| self.sees(until)) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    fn sees(&self, until: Until) -> bool {
        let is_there = self.link.try_lock().is_ok_and(|mut link| link.is_ready(until));
        if !is_there {
            std::hint::spin_loop();
        }
        is_there
    }

    /// Waits for the stream, and for the waiter's doorbell if it has one.
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

    fn sleep(&self, until: Until, deadline: Instant, own: Option<&Doorbell>) -> io::Result<()> {
        let Some(time) = self.prepare_sleep(until) else { return Ok(()) };
        let deadline = deadline.min(Instant::now() + time);
        let mut what = [const { None }; 3];
        what[0] = Some(PollFd::new(&*self.socket, PollFlags::IN));
        what[1] = own.map(|own| PollFd::new(&own.0, PollFlags::IN));
        what[2] = self.descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
        // Existing entries first.
        what.sort_by_key(Option::is_none);
        let mut what: Vec<PollFd<'_>> = what.into_iter().flatten().collect();
        let waited = wait_for_any(&mut what, deadline);
        let is_rung = !what[0].revents().is_empty();
        self.link().is_asleep = false;
        if let Some(own) = own {
            own.answer();
        }
        if is_rung {
            self.drain_wakeups();
        }
        waited
    }

    /// Returns how long to sleep at most; `None` if no sleep is needed. Notifies the server if it may not know what
    /// was sent.
    fn prepare_sleep(&self, until: Until) -> Option<Duration> {
        let mut link = self.link();
        if link.is_ready(until) || self.descriptor.is_some() && !link.may_wait() {
            return None;
        }
        let refused = link.refused_for();
        let time = match (&self.descriptor, refused) {
            // Finds what the descriptor misses, if late.
            (Some(_), None) => SLEEP_ON_DESCRIPTOR_MAX,
            (Some(_), Some(refused)) => refused,
            (None, _) => (NAP_MIN * (1 << link.naps.min(10))).min(NAP_MAX),
        };
        link.naps = link.naps.saturating_add(1);
        link.is_asleep = true;
        let must_notify = match &self.descriptor {
            // The server's endpoint has one too, but may sleep before the first message.
            Some(_) => refused.is_some() && link.doorbells.must_notify_before_sleep(),
            // No doorbell is lost, but some providers make progress only while both ends poll.
            None => link.doorbells.must_notify_before_sleep() || link.naps.is_multiple_of(NAPS_A_BELL),
        };
        drop(link);
        if must_notify {
            self.notify();
        }
        Some(time)
    }
}

impl Stream for FabricStream {
    fn encoding(&self) -> Encoding {
        Encoding::Mixed
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let shared = &*self.0;
        if shared.left.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut link = shared.link();
        let sent = link.send(parts)?;
        shared.has_sent(&mut link, sent == 0);
        Ok(sent)
    }

    fn lend(&mut self, before: &[u8], value: &mut LentBuffer) -> io::Result<Lending> {
        let shared = &*self.0;
        if shared.left.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut link = shared.link();
        let lending = link.lend(before, value)?;
        if lending != Lending::Never {
            shared.has_sent(&mut link, lending == Lending::Later);
        }
        Ok(lending)
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let shared = &*self.0;
        let mut is_again = false;
        loop {
            let mut link = shared.link();
            // A waiting thread has received it.
            let mut received = link.receive(into)?;
            if received == 0 {
                let done = link.progress();
                received = link.receive(into)?;
                if received == 0 {
                    done?;
                }
            }
            if received > 0 {
                return Ok(Some(received));
            }
            let has_left = link.has_peer_left() || is_again && shared.left.load(Ordering::Relaxed);
            if has_left {
                return Ok(None);
            }
            let must_notify = link.must_notify_awake();
            drop(link);
            if must_notify {
                shared.notify();
            }
            if is_again || !shared.was_notified_or_left() {
                return Ok(Some(0));
            }
            // Polls a last time for what the server sent before it notified or left.
            is_again = true;
        }
    }

    fn wait(&mut self, until: Until, deadline: Instant) -> io::Result<()> {
        self.0.wait(until, deadline, None)
    }

    fn gathers(&self) -> bool {
        true
    }

    fn waiter(&self) -> io::Result<Box<dyn Waiter>> {
        let doorbell = match self.0.doorbell.get() {
            Some(doorbell) => Arc::clone(doorbell),
            None => {
                let doorbell = Arc::new(Doorbell::new()?);
                Arc::clone(self.0.doorbell.get_or_init(|| doorbell))
            }
        };
        Ok(Box::new(FabricWaiter { shared: Arc::clone(&self.0), doorbell }))
    }
}

#[derive(Debug)]
struct FabricWaiter {
    shared: Arc<Shared>,
    doorbell: Arc<Doorbell>,
}

impl Waiter for FabricWaiter {
    fn wait(&self, until: Until, deadline: Instant) -> io::Result<()> {
        self.shared.wait(until, deadline, Some(&self.doorbell))
    }

    fn wake(&self) {
        self.doorbell.notify();
    }
}
