//! A server that is reached over the fabric: the path to use, where its items lie, and the endpoints that read them.
//!
//! All threads share the GETs in flight to a server. The first waiter polls completions for every thread; it spins,
//! then sleeps until something arrives, and the others wait for it. A driver thread does the same for awaited GETs.
//! Sleeping threads are also woken when the server ends its TCP connections.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;
use fabcache_layout::KeyHash;
use fabcache_layout::channel::SpinPolicy;
use rustix::event::{PollFd, PollFlags};

use super::fork_guard::ForkGuard;
use super::gets::{GetCompletion, GetSlot, RemoteGets};
use super::sockets::{HAS_ENDED, ServerEnd};
use super::target::Target;
use crate::bounds::{
    AWAITED_LOOK, DRIVER_LINGER, LOOKS_BETWEEN_CLOCKS, NAP_MAX, NAP_MIN, READ_TIMEOUT, READS_AGAIN_AFTER,
    READS_AT_ONCE, SLEEP_ON_DESCRIPTOR_MAX, TRUSTED_IDLE,
};
use crate::fabric::region::Region;
use crate::options::{Fabric, FabricMode};
use crate::path_selector::{ReadPath, ServerPaths};
use crate::shm::{ReadResult, monotonic_ns, next_random};
use crate::socket::{Doorbell, wait_for_any};
use crate::waking::wake;

/// A server on the fabric.
#[derive(Debug)]
pub struct RemoteReader {
    /// How it is to be used.
    pub wanted: Fabric,
    /// How long reads may take before the server is asked, which may then take a call's time.
    read_timeout: Duration,
    region: Mutex<Option<Arc<ForkGuard<Region>>>>,
    reading: Mutex<Option<Arc<GetsInFlight>>>,
    /// Held while one is made.
    making: Mutex<()>,
    /// Which way was faster lately.
    paths: Mutex<ServerPaths>,
    random: AtomicCell<u32>,
    /// Reads failed; they are not tried before this.
    again_at: AtomicCell<Option<Instant>>,
    /// It was agreed on, but nothing got through: why, and when that may have changed.
    unreached: Mutex<Option<(String, Instant)>>,
}

/// The GETs under way.
#[derive(Debug)]
struct GetsInFlight {
    gets: Mutex<ForkGuard<RemoteGets>>,
    /// The one who slept for what comes has come back, or somebody's GET is over.
    progress: Condvar,
    region: Arc<ForkGuard<Region>>,
    /// The end of the server that it reads from.
    end: Arc<[u8]>,
    descriptor: Option<OwnedFd>,
    doorbell: Doorbell,
    /// Who waits, under the lock of the GETs.
    waiting: AtomicCell<Waiting>,
    spin: AtomicCell<SpinPolicy>,
    /// A thread drives for those who are to be told. Changes under the lock of the GETs.
    has_driver: AtomicBool,
    /// When it was last looked whether the server is there.
    looked_ns: AtomicU64,
    has_server_left: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    leads: bool,
    followers: u32,
}

impl RemoteReader {
    /// One that was not asked yet. A call is to take so long at most: half of it is for reads.
    pub fn new(wanted: Fabric, timeout: Duration) -> RemoteReader {
        RemoteReader {
            wanted,
            read_timeout: READ_TIMEOUT.min(timeout / 2),
            region: Mutex::default(),
            reading: Mutex::default(),
            making: Mutex::default(),
            paths: Mutex::default(),
            random: AtomicCell::new(monotonic_ns() as u32 | 1),
            again_at: AtomicCell::new(None),
            unreached: Mutex::default(),
        }
    }

    /// Whether its items are read, where that needs nothing of the server, or does.
    pub fn reads(&self, is_one_sided: bool) -> bool {
        match self.wanted.mode {
            FabricMode::Auto => is_one_sided,
            FabricMode::OneSided => true,
            FabricMode::Request => false,
        }
    }

    /// Notes where its items are.
    pub fn know(&self, region: Region) {
        let mut known = lock(&self.region);
        // Of many connections one after the other tells the same.
        if let Some(known) = known.as_ref().filter(|known| known.is_current() && known.is(&region)) {
            return known.sockets.add(&region.sockets);
        }
        *known = Some(Arc::new(ForkGuard::new(region)));
        *lock(&self.paths) = ServerPaths::default();
        self.again_at.store(None);
    }

    /// The server is gone, as far as is known.
    pub fn forget(&self) {
        *lock(&self.region) = None;
        let reading = lock(&self.reading).take();
        if let Some(reading) = reading {
            reading.give_up();
        }
    }

    /// Notes that nothing gets through, as will be thought for a time.
    pub fn note_unreached(&self, why: String, time: Duration) {
        self.forget();
        *lock(&self.unreached) = Some((why, Instant::now() + time));
    }

    /// Why nothing gets through, if that was so lately.
    pub fn unreached(&self) -> Option<String> {
        let unreached = lock(&self.unreached);
        unreached.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(why, _)| why.clone())
    }

    /// Begins a GET. It takes what it may put the value into.
    ///
    /// # Errors
    /// The server is to be asked.
    pub fn begin(&self, key: &[u8], batch: Batch, target: &mut Target) -> Result<GetHandle, ServerFallback> {
        let began = Instant::now();
        let asked = ServerFallback { timed: None };
        let reading = self.reading(began + self.read_timeout).ok_or(asked)?;
        let mut gets = reading.gets();
        let mut timed = None;
        if self.wanted.mode == FabricMode::Auto && batch != Batch::Chosen {
            let (way, counts) = self.choose(gets.is_kept(key), batch);
            timed = counts.then_some(LatencySample { way, batch, began });
            if way == ReadPath::Request {
                return Err(ServerFallback { timed });
            }
        }
        let mut slot = None;
        reading.turn(gets, |gets| {
            let makes_room = !gets.has_room() && gets.drive();
            if !gets.has_room() && gets.is_late(began) {
                // Those whose requests were dropped would take the room for as long as they like.
                gets.give_up();
            }
            let begun = gets.begin(key, (began, self.read_timeout), target);
            let any_over =
                makes_room || gets.is_over() || begun.as_ref().is_some_and(|(_, any_over)| *any_over);
            slot = begun.map(|(slot, _)| slot);
            any_over
        });
        let Some(slot) = slot else {
            if reading.gets().is_over() {
                // Nobody may be left who ends one of its GETs, and lets it go.
                self.note(&reading, false);
            }
            return Err(asked);
        };
        Ok(GetHandle { slot, reading, timed, began })
    }

    fn choose(&self, is_kept: bool, batch: Batch) -> (ReadPath, bool) {
        let random = self.draw();
        let mut paths = lock(&self.paths);
        match batch {
            Batch::Window => paths.window.choose(is_kept, random),
            Batch::MultigetOutcome(count) => (paths.many(count).choose(is_kept, None, random), true),
            Batch::None | Batch::Chosen => (paths.alone.choose(is_kept, None, random), true),
        }
    }

    /// Chooses the way for so many keys that are read in one call; none if there is no choice.
    pub fn choose_many<'k>(&self, count: usize, key: impl Fn(usize) -> &'k [u8]) -> Option<LatencySample> {
        if self.wanted.mode != FabricMode::Auto || count == 0 {
            return None;
        }
        let began = Instant::now();
        let reading = self.reading(began + self.read_timeout)?;
        let mut gets = reading.gets();
        // Some of them stand for all.
        let looked = count.min(READS_AT_ONCE);
        let kept = (0..looked).filter(|number| gets.is_kept(key(*number))).count();
        drop(gets);
        let batch = Batch::MultigetOutcome(count);
        let (way, _) = self.choose(2 * kept >= looked, batch);
        Some(LatencySample { way, batch, began })
    }

    fn draw(&self) -> u32 {
        let mut random = self.random.load();
        let drawn = next_random(&mut random);
        self.random.store(random);
        drawn
    }

    /// Notes how long that took; the value, or one of the values, has so many bytes if there is one.
    pub fn note_time(
        &self,
        LatencySample { way, batch, began }: LatencySample,
        ended: Instant,
        value_bytes: Option<usize>,
    ) {
        let ns = ended.saturating_duration_since(began).as_nanos() as u64;
        let mut paths = lock(&self.paths);
        match batch {
            Batch::Window => paths.window.note(way, value_bytes, ns),
            Batch::MultigetOutcome(count) => {
                paths.many(count).note(way, value_bytes, ns / count.max(1) as u64)
            }
            Batch::None | Batch::Chosen => paths.alone.note(way, value_bytes, ns),
        }
    }

    /// What a GET came to; waits for it.
    pub fn end(&self, GetHandle { slot, reading, timed, .. }: GetHandle) -> GetResult {
        if !reading.is_current() {
            // A parent's.
            return GetResult { read: ReadResult::Ask, value: Vec::new(), within: None, accesses: None };
        }
        if !slot.is_over() && !reading.wait(&slot, slot.awaited_from(Instant::now())) {
            reading.give_up();
        }
        let over = slot.take().unwrap_or_else(|| {
            let at = Instant::now();
            GetCompletion { read: ReadResult::Ask, value: Vec::new(), within: None, at }
        });
        let GetCompletion { read, value, within, at } = over;
        if let Some(timed) = timed {
            let is_hit = matches!(read, ReadResult::Hit { .. });
            let bytes = within.as_ref().map_or(value.len(), |within| within.len());
            self.note_time(timed, at, is_hit.then_some(bytes));
        }
        let is_gone = matches!(read, ReadResult::Gone) || reading.has_server_left.load(Ordering::Relaxed);
        let accesses = self.note(&reading, is_gone);
        GetResult { read, value, within, accesses }
    }

    /// Drops an endpoint that is no longer of use. Returns the reads to report to the server, if there are enough.
    fn note(&self, reading: &Arc<GetsInFlight>, is_gone: bool) -> Option<Vec<(KeyHash, u8)>> {
        let mut gets = reading.gets();
        if !is_gone && !gets.is_over() {
            return gets.take_accesses();
        }
        drop(gets);
        let mut current = lock(&self.reading);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, reading)) {
            *current = None;
            self.again_at.store(Some(Instant::now() + READS_AGAIN_AFTER));
        }
        drop(current);
        if is_gone {
            let mut region = lock(&self.region);
            region.take_if(|region| Arc::ptr_eq(region, &reading.region));
        }
        None
    }

    fn reading(&self, deadline: Instant) -> Option<Arc<GetsInFlight>> {
        if let Some(reading) = self.current() {
            return Some(reading);
        }
        // A thread that reads meanwhile asks the server: it would only open a second endpoint.
        let _making = self.making.try_lock().ok()?;
        if let Some(reading) = self.current() {
            return Some(reading);
        }
        let region = lock(&self.region).clone().filter(|region| region.is_current())?;
        if self.again_at.load().is_some_and(|at| Instant::now() < at) {
            return None;
        }
        // One that can be woken: others may rest, and their workers may have no client any more.
        let end = region.sockets.newest_end()?;
        let Some(reading) = GetsInFlight::new(region, end, deadline) else {
            self.again_at.store(Some(Instant::now() + READS_AGAIN_AFTER));
            return None;
        };
        self.again_at.store(None);
        Some(Arc::clone(lock(&self.reading).insert(Arc::new(reading))))
    }

    fn current(&self) -> Option<Arc<GetsInFlight>> {
        let mut current = lock(&self.reading);
        // Not a parent's.
        current.take_if(|reading| !reading.is_current());
        current.clone()
    }
}

/// What a GET is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// It is alone.
    None,
    /// Others are under way meanwhile, perhaps.
    Window,
    /// It is one of so many in a call.
    MultigetOutcome(usize),
    /// One of those whose way was chosen, which is one-sided.
    Chosen,
}

/// A way whose time is to be noted.
#[derive(Clone, Copy, Debug)]
pub struct LatencySample {
    /// Which.
    pub way: ReadPath,
    batch: Batch,
    began: Instant,
}

/// The server is to be asked.
#[derive(Clone, Copy, Debug)]
pub struct ServerFallback {
    /// Because that was chosen, and is to be noted.
    pub timed: Option<LatencySample>,
}

/// A GET that was begun.
#[derive(Debug)]
pub struct GetHandle {
    slot: Arc<GetSlot>,
    reading: Arc<GetsInFlight>,
    timed: Option<LatencySample>,
    began: Instant,
}

/// A GET that is over.
#[derive(Debug)]
pub struct GetResult {
    /// What it came to …
    pub read: ReadResult,
    /// … with the value, or memory that was given for it …
    pub value: Vec<u8>,
    /// … which lies in registered memory of the caller's if this says where.
    pub within: Option<Range<usize>>,
    /// Reads of which the server is to be told now.
    pub accesses: Option<Vec<(KeyHash, u8)>>,
}

impl GetHandle {
    /// Gets on with all that is under way, without waiting; whether this one is over.
    pub fn test(&self) -> bool {
        if self.slot.is_over() || !self.reading.is_current() || self.reading.drive(&self.slot) {
            return true;
        }
        if self.slot.is_late(Instant::now()) || self.reading.misses_server() {
            self.reading.give_up();
        }
        self.slot.is_over()
    }

    /// The same; if it is not over, the waker is told when it is.
    pub fn watch(&self, waker: &Waker) -> bool {
        if self.test() {
            return true;
        }
        if self.began.elapsed() < AWAITED_LOOK {
            // It takes as long as to wake another thread.
            waker.wake_by_ref();
            return false;
        }
        self.reading.watch(&self.slot, waker)
    }
}

impl GetsInFlight {
    fn new(region: Arc<ForkGuard<Region>>, end: ServerEnd, deadline: Instant) -> Option<GetsInFlight> {
        let mut gets = RemoteGets::new(&region, &end, deadline).ok()?;
        let descriptor = gets.port().wait_fd().map(|descriptor| descriptor.try_clone_to_owned()).transpose();
        Some(GetsInFlight {
            gets: Mutex::new(ForkGuard::new(gets)),
            progress: Condvar::new(),
            region,
            end: end.name,
            descriptor: descriptor.ok()?,
            doorbell: Doorbell::new().ok()?,
            waiting: AtomicCell::default(),
            spin: AtomicCell::default(),
            has_driver: AtomicBool::new(false),
            looked_ns: AtomicU64::new(monotonic_ns()),
            has_server_left: AtomicBool::new(false),
        })
    }

    fn is_current(&self) -> bool {
        self.region.is_current()
    }

    fn gets(&self) -> MutexGuard<'_, ForkGuard<RemoteGets>> {
        lock(&self.gets)
    }

    fn give_up(&self) {
        if self.is_current() {
            self.turn(self.gets(), |gets| {
                gets.give_up();
                true
            });
        }
    }

    /// The server has ended its connections, or cannot be woken; looked at now and then.
    fn misses_server(&self) -> bool {
        let unlooked_ns = monotonic_ns().saturating_sub(self.looked_ns.load(Ordering::Relaxed));
        if u128::from(unlooked_ns) <= TRUSTED_IDLE.as_nanos() {
            return false;
        }
        let can_wake = self.wake_server();
        self.has_lost_server() || !can_wake
    }

    /// Where this end has no descriptor, the server's has none either: it may have to be woken to serve reads.
    /// False if that is no longer possible.
    fn wake_server(&self) -> bool {
        self.descriptor.is_some() || self.region.sockets.notify(&self.end)
    }

    fn has_lost_server(&self) -> bool {
        self.looked_ns.store(monotonic_ns(), Ordering::Relaxed);
        if self.region.sockets.have_ended() {
            self.has_server_left.store(true, Ordering::Relaxed);
        }
        self.has_server_left.load(Ordering::Relaxed)
    }

    /// Does something after which GETs may be over, and tells those that wait if so, or if there is something new to wait for.
    fn turn(
        &self,
        mut gets: MutexGuard<'_, ForkGuard<RemoteGets>>,
        what: impl FnOnce(&mut RemoteGets) -> bool,
    ) {
        if what(&mut gets) || gets.is_refused() {
            let Waiting { leads, followers } = self.waiting.load();
            if leads {
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

    fn drive(&self, slot: &GetSlot) -> bool {
        self.turn(self.gets(), RemoteGets::drive);
        slot.is_over()
    }

    /// Whether the GET is over; if not, the waker is told when it is.
    fn watch(self: &Arc<Self>, slot: &GetSlot, waker: &Waker) -> bool {
        // Cloned before anything is locked, and what it replaces is dropped behind that: both may be anybody's code.
        let waker = waker.clone();
        let gets = self.gets();
        let replaced = slot.watch(waker);
        let is_driven = slot.is_over() || self.has_driver.swap(true, Ordering::Relaxed);
        // The driver may be about to end.
        self.progress.notify_all();
        drop(gets);
        drop(replaced);
        if !is_driven {
            let reading = Arc::clone(self);
            let driver = std::thread::Builder::new().name("fabcache-reader".into());
            if driver.spawn(move || reading.drive_while_awaited()).is_err() {
                self.has_driver.store(false, Ordering::Relaxed);
                self.give_up();
            }
        }
        slot.is_over()
    }

    /// The driver thread's loop.
    fn drive_while_awaited(&self) {
        loop {
            self.turn(self.gets(), RemoteGets::drive);
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

    /// Waits until a GET is over. False if that takes too long.
    fn wait(&self, slot: &GetSlot, deadline: Instant) -> bool {
        loop {
            let spin = self.spin.load();
            if self.look(slot, spin, deadline) {
                self.spin.store(spin.after_success());
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            if self.sleep(|_| slot.is_over(), deadline) {
                self.spin.store(spin.after_sleep(now.elapsed()));
                return true;
            }
        }
    }

    fn look(&self, slot: &GetSlot, spin: SpinPolicy, deadline: Instant) -> bool {
        let Some(time) = spin.spin_time() else { return self.drive(slot) };
        let mut end = None;
        loop {
            for _ in 0..LOOKS_BETWEEN_CLOCKS {
                if self.drive(slot) {
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

    /// Sleeps for what comes, or for who does so. Whether it is done then; if not, it is time for something else.
    fn sleep(&self, is_done: impl Fn(&RemoteGets) -> bool, deadline: Instant) -> bool {
        let mut gets = self.gets();
        if is_done(&gets) {
            return true;
        }
        let waiting = self.waiting.load();
        if waiting.leads {
            self.waiting.store(Waiting { followers: waiting.followers + 1, ..waiting });
            let left = deadline.saturating_duration_since(Instant::now());
            let (gets, _) = self.progress.wait_timeout(gets, left).expect(NO_PANIC);
            let waiting = self.waiting.load();
            self.waiting.store(Waiting { followers: waiting.followers - 1, ..waiting });
            return is_done(&gets);
        }
        self.waiting.store(Waiting { leads: true, ..waiting });
        let mut naps = 0;
        while !is_done(&gets)
            && Instant::now() < deadline
            && (self.descriptor.is_none() || gets.port().may_wait())
        {
            // A notification that the descriptor misses takes at most twice as long; the descriptor does not report
            // room for refused operations.
            let tells = self.descriptor.is_some() && !gets.is_refused();
            let (first, longest) =
                if tells { (NAP_MAX, SLEEP_ON_DESCRIPTOR_MAX) } else { (NAP_MIN, NAP_MAX) };
            drop(gets);
            let must_notify = naps == 0 || naps == NAPS_GROWING;
            let can_wake = !must_notify || self.wake_server();
            let until = Instant::now() + (first * (1 << naps)).min(longest);
            let has_slept = can_wake && self.nap(deadline.min(until));
            gets = self.gets();
            if !has_slept {
                gets.give_up();
            }
            if gets.drive() {
                break;
            }
            naps = NAPS_GROWING.min(naps + 1);
        }
        self.waiting.store(Waiting { leads: false, ..self.waiting.load() });
        let is_done = is_done(&gets);
        // Another is to lead.
        self.turn(gets, |_| true);
        is_done
    }

    /// Sleeps once. False if there is nothing to be waited for.
    fn nap(&self, until: Instant) -> bool {
        let socket = self.region.sockets.newest();
        let mut what = vec![PollFd::new(&self.doorbell.0, PollFlags::IN)];
        what.extend(self.descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)));
        what.extend(socket.as_ref().map(|socket| PollFd::new(&**socket, HAS_ENDED)));
        let slept = wait_for_any(&mut what, until);
        let may_have_ended = socket.is_some() && what.last().is_some_and(|last| !last.revents().is_empty());
        self.doorbell.answer();
        slept.is_ok() && !(may_have_ended && self.has_lost_server())
    }
}

/// Naps after which they get no longer: the longest are some hundred of the first.
const NAPS_GROWING: u32 = 8;

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect(NO_PANIC)
}

const NO_PANIC: &str = "no thread panics while it reads from afar";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_do_not_end_leave_time_to_ask() {
        for (timeout, spin) in [(200, 100), (0, 0), (60_000, READ_TIMEOUT.as_millis())] {
            let remote = RemoteReader::new(Fabric::default(), Duration::from_millis(timeout));
            assert_eq!(remote.read_timeout.as_millis(), spin, "{timeout} ms");
        }
    }
}
