//! The GETs in flight to one server, shared by all threads of the client.
//!
//! The first waiter polls completions for every thread; it spins, then sleeps until a completion arrives, and the others
//! wait for it. A driver thread does the same for GETs that tasks await. Sleeping threads are also woken when the server
//! closes its TCP connections.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use crossbeam_utils::atomic::AtomicCell;
use fabcache_layout::channel::SpinPolicy;
use rustix::event::{PollFd, PollFlags};

use super::fork_guard::ForkGuard;
use super::get_slot::GetSlot;
use super::gets::RemoteGets;
use super::region::Region;
use super::sockets::{HAS_ENDED, ServerEnd};
use crate::bounds::{
    AWAITED_SPIN, DRIVER_LINGER, NAP_MAX, NAP_MIN, POLLS_PER_CLOCK_READ, SLEEP_ON_DESCRIPTOR_MAX,
    TRUSTED_IDLE,
};
use crate::path_selector::LatencySample;
use crate::region_clock::monotonic_ns;
use crate::socket::{Doorbell, wait_for_any};
use crate::waking::wake;

/// The GETs in flight to one server.
#[derive(Debug)]
pub struct SharedGets {
    gets: Mutex<ForkGuard<RemoteGets>>,
    /// Notified when the polling thread has stopped sleeping, and when a GET has completed.
    progress: Condvar,
    region: Arc<ForkGuard<Region>>,
    /// The name of the server's endpoint that is read from.
    end: Arc<[u8]>,
    /// Signals completions, if the provider has such a descriptor.
    descriptor: Option<OwnedFd>,
    doorbell: Doorbell,
    /// The waiting threads; changed under the lock of `gets`.
    waiting: AtomicCell<Waiting>,
    spin: AtomicCell<SpinPolicy>,
    /// A driver thread runs; changed under the lock of `gets`.
    has_driver: AtomicBool,
    /// When the server's connections were last checked.
    checked_ns: AtomicU64,
    has_server_left: AtomicBool,
}

/// The threads that wait for GETs.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    /// One sleeps for completions.
    has_leader: bool,
    /// The others wait for it.
    followers: u32,
}

/// A GET that was started.
#[derive(Debug)]
pub struct GetHandle {
    pub(super) slot: Arc<GetSlot>,
    pub(super) shared: Arc<SharedGets>,
    pub(super) sample: Option<LatencySample>,
    pub(super) began: Instant,
}

impl GetHandle {
    /// Polls all GETs in flight without waiting; returns whether this one is complete.
    pub fn test(&self) -> bool {
        if self.slot.is_complete() || !self.shared.is_current() || self.shared.poll(&self.slot) {
            return true;
        }
        if self.slot.is_late(Instant::now()) || self.shared.misses_server() {
            self.shared.give_up();
        }
        self.slot.is_complete()
    }

    /// As [`GetHandle::test`]; if it is not complete, the waker is woken when it is.
    pub fn watch(&self, waker: &Waker) -> bool {
        if self.test() {
            return true;
        }
        if self.began.elapsed() < AWAITED_SPIN {
            // Polling again takes as long as waking another thread.
            waker.wake_by_ref();
            return false;
        }
        self.shared.watch(&self.slot, waker)
    }
}

impl SharedGets {
    /// Connects to the server's endpoint; `None` if that fails.
    pub fn new(region: Arc<ForkGuard<Region>>, end: ServerEnd, deadline: Instant) -> Option<SharedGets> {
        let mut gets = RemoteGets::new(&region, &end, deadline).ok()?;
        let descriptor =
            gets.endpoint().wait_fd().map(|descriptor| descriptor.try_clone_to_owned()).transpose();
        Some(SharedGets {
            gets: Mutex::new(ForkGuard::new(gets)),
            progress: Condvar::new(),
            region,
            end: end.name,
            descriptor: descriptor.ok()?,
            doorbell: Doorbell::new().ok()?,
            waiting: AtomicCell::default(),
            spin: AtomicCell::default(),
            has_driver: AtomicBool::new(false),
            checked_ns: AtomicU64::new(monotonic_ns()),
            has_server_left: AtomicBool::new(false),
        })
    }

    /// Returns whether this process made it: a forked child does not use its parent's.
    pub fn is_current(&self) -> bool {
        self.region.is_current()
    }

    /// Returns the region that is read.
    pub fn region(&self) -> &Arc<ForkGuard<Region>> {
        &self.region
    }

    /// Returns whether the server has closed all its connections.
    pub fn has_server_left(&self) -> bool {
        self.has_server_left.load(Ordering::Relaxed)
    }

    /// Locks the GETs.
    pub fn gets(&self) -> MutexGuard<'_, ForkGuard<RemoteGets>> {
        lock(&self.gets)
    }

    /// Fails all GETs in flight.
    pub fn give_up(&self) {
        if self.is_current() {
            self.update(self.gets(), |gets| {
                gets.give_up();
                true
            });
        }
    }

    /// Runs `change`, which returns whether a GET may have completed; then wakes the threads and tasks that wait for
    /// completions or have something new to wait for.
    pub fn update(
        &self,
        mut gets: MutexGuard<'_, ForkGuard<RemoteGets>>,
        change: impl FnOnce(&mut RemoteGets) -> bool,
    ) {
        if change(&mut gets) || gets.is_refused() {
            let Waiting { has_leader, followers } = self.waiting.load();
            if has_leader {
                self.doorbell.notify();
            }
            if followers > 0 {
                self.progress.notify_all();
            }
        }
        let wakers = gets.take_wakers();
        drop(gets);
        wakers.into_iter().for_each(wake);
    }

    /// Waits until a GET is complete. False if its deadline passes first.
    pub fn wait(&self, slot: &GetSlot, deadline: Instant) -> bool {
        loop {
            let spin = self.spin.load();
            if self.spin(slot, spin, deadline) {
                self.spin.store(spin.after_success());
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            if self.sleep(|_| slot.is_complete(), deadline) {
                self.spin.store(spin.after_sleep(now.elapsed()));
                return true;
            }
        }
    }

    /// Checks now and then whether the server has closed its connections or cannot be woken.
    fn misses_server(&self) -> bool {
        let unchecked_ns = monotonic_ns().saturating_sub(self.checked_ns.load(Ordering::Relaxed));
        if u128::from(unchecked_ns) <= TRUSTED_IDLE.as_nanos() {
            return false;
        }
        let can_wake = self.wake_server();
        self.has_lost_server() || !can_wake
    }

    /// Wakes the server where that may be needed: if this endpoint has no descriptor, the server's has none either, and
    /// it must be awake to serve reads. False if it cannot be woken any more.
    fn wake_server(&self) -> bool {
        self.descriptor.is_some() || self.region.sockets.notify(&self.end)
    }

    fn has_lost_server(&self) -> bool {
        self.checked_ns.store(monotonic_ns(), Ordering::Relaxed);
        if self.region.sockets.have_ended() {
            self.has_server_left.store(true, Ordering::Relaxed);
        }
        self.has_server_left()
    }

    fn poll(&self, slot: &GetSlot) -> bool {
        self.update(self.gets(), RemoteGets::poll);
        slot.is_complete()
    }

    /// Returns whether the GET is complete; if not, the waker is woken when it is.
    fn watch(self: &Arc<Self>, slot: &GetSlot, waker: &Waker) -> bool {
        // The waker is cloned before, and a replaced one dropped after, the lock is held: both may run the caller's code.
        let waker = waker.clone();
        let gets = self.gets();
        let replaced = slot.watch(waker);
        let is_driven = slot.is_complete() || self.has_driver.swap(true, Ordering::Relaxed);
        // The driver may be about to end.
        self.progress.notify_all();
        drop(gets);
        drop(replaced);
        if !is_driven {
            let shared = Arc::clone(self);
            let driver = std::thread::Builder::new().name("fabcache-reader".into());
            if driver.spawn(move || shared.drive_while_awaited()).is_err() {
                self.has_driver.store(false, Ordering::Relaxed);
                self.give_up();
            }
        }
        slot.is_complete()
    }

    /// The driver thread's loop.
    fn drive_while_awaited(&self) {
        loop {
            self.update(self.gets(), RemoteGets::poll);
            // The next await often follows the completion just delivered.
            let is_idle = |gets: &mut ForkGuard<RemoteGets>| gets.awaited_until().is_none();
            let (gets, _) =
                self.progress.wait_timeout_while(self.gets(), DRIVER_LINGER, is_idle).expect(NO_PANIC);
            let Some(deadline) = gets.awaited_until() else {
                self.has_driver.store(false, Ordering::Relaxed);
                return;
            };
            drop(gets);
            if Instant::now() >= deadline {
                self.give_up();
            }
            self.sleep(|gets| gets.awaited_until() != Some(deadline), deadline);
        }
    }

    /// Polls for as long as the spin policy says. Returns whether the GET is complete.
    fn spin(&self, slot: &GetSlot, spin: SpinPolicy, deadline: Instant) -> bool {
        let Some(time) = spin.spin_time() else { return self.poll(slot) };
        let mut end = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.poll(slot) {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= *end.get_or_insert(deadline.min(now + time)) {
                return false;
            }
        }
    }

    /// Sleeps until a completion arrives, or until the thread that sleeps for completions notifies this one. Returns
    /// whether `is_done` holds then; if not, the caller spins again or gives up.
    fn sleep(&self, is_done: impl Fn(&RemoteGets) -> bool, deadline: Instant) -> bool {
        let mut gets = self.gets();
        if is_done(&gets) {
            return true;
        }
        let waiting = self.waiting.load();
        if waiting.has_leader {
            self.waiting.store(Waiting { followers: waiting.followers + 1, ..waiting });
            let left = deadline.saturating_duration_since(Instant::now());
            let (gets, _) = self.progress.wait_timeout(gets, left).expect(NO_PANIC);
            let waiting = self.waiting.load();
            self.waiting.store(Waiting { followers: waiting.followers - 1, ..waiting });
            return is_done(&gets);
        }
        self.waiting.store(Waiting { has_leader: true, ..waiting });
        let mut naps = 0;
        while !is_done(&gets)
            && Instant::now() < deadline
            && (self.descriptor.is_none() || gets.endpoint().may_wait())
        {
            // A completion that the descriptor does not signal costs at most twice the time; the descriptor does not
            // signal room for refused operations.
            let is_signalled = self.descriptor.is_some() && !gets.is_refused();
            let (first, longest) =
                if is_signalled { (NAP_MAX, SLEEP_ON_DESCRIPTOR_MAX) } else { (NAP_MIN, NAP_MAX) };
            drop(gets);
            let must_notify = naps == 0 || naps == NAPS_GROWING;
            let can_wake = !must_notify || self.wake_server();
            let until = Instant::now() + (first * (1 << naps)).min(longest);
            let has_slept = can_wake && self.nap(deadline.min(until));
            gets = self.gets();
            let any_failed = !has_slept && gets.give_up();
            if gets.poll() || any_failed {
                break;
            }
            naps = NAPS_GROWING.min(naps + 1);
        }
        self.waiting.store(Waiting { has_leader: false, ..self.waiting.load() });
        let is_done = is_done(&gets);
        // A follower becomes the leader.
        self.update(gets, |_| true);
        is_done
    }

    /// Sleeps once. False if waiting is pointless: the server has left, or poll(2) fails.
    fn nap(&self, until: Instant) -> bool {
        let socket = self.region.sockets.newest();
        let mut events = vec![PollFd::new(&self.doorbell.0, PollFlags::IN)];
        events.extend(self.descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)));
        events.extend(socket.as_ref().map(|socket| PollFd::new(&**socket, HAS_ENDED)));
        let slept = wait_for_any(&mut events, until);
        let may_have_ended = socket.is_some() && events.last().is_some_and(|last| !last.revents().is_empty());
        self.doorbell.answer();
        slept.is_ok() && !(may_have_ended && self.has_lost_server())
    }
}

/// The number of naps over which their length doubles: the last is some hundred times as long as the first.
const NAPS_GROWING: u32 = 8;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(NO_PANIC)
}

const NO_PANIC: &str = "no thread panics while it reads remotely";
