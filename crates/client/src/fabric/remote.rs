//! What is known of a server that is reached over the fabric: how it is to be used, where its items lie, and who reads them.
//!
//! All threads share the GETs under way to a server. Whoever waits for one drives for all, looking for a while; then the first
//! of those that wait sleeps for what comes, and the others for it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;
use fabcache_fabric::{Domain, RemoteMemory};
use fabcache_layout::KeyHash;
use fabcache_layout::channel::Patience;
use fabcache_layout::checksum::Secret;
use rustix::event::{PollFd, PollFlags};
use rustix::net::SendFlags;

use super::gets::{Gets, Slot};
use super::own::Own;
use crate::bounds::{LOOKS_BETWEEN_CLOCKS, NAP_MAX, READ_PATIENCE, READS_AGAIN_AFTER};
use crate::client::{Fabric, FabricMode};
use crate::shm::{Read, monotonic_ns, next_random};
use crate::socket::{Bell, wait_for_any};
use crate::ways::{Way, Ways};

/// A server's region, as it is read from afar.
#[derive(Debug)]
pub struct Region {
    /// What is read with.
    pub domain: Arc<Domain>,
    /// The name of the server's end.
    pub name: Vec<u8>,
    /// Where the region lies.
    pub memory: RemoteMemory,
    /// Tells its items from other bytes.
    pub secret: Secret,
    /// The monotonic clock at second 0 of the region's, in nanoseconds: early rather than late.
    pub zero_ns: i64,
    /// For so long nothing is written over what was freed.
    pub grace_ns: u64,
    /// Of the connection on which it was told, as long as that is there.
    pub socket: Weak<socket2::Socket>,
}

impl Region {
    /// The same region.
    fn is(&self, other: &Region) -> bool {
        self.memory == other.memory
            && self.secret.0 == other.secret.0
            && Arc::ptr_eq(&self.domain, &other.domain)
    }

    /// Rings for the server.
    pub fn ring(&self) {
        if let Some(socket) = self.socket.upgrade() {
            // A socket full of bells rings as well.
            let _ = rustix::net::send(&*socket, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Rings for the server now and then, with naps between.
    pub fn nudge(&self, tries: u32) {
        if tries % 64 == 63 {
            self.ring();
        }
        if tries > 64 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A server on the fabric.
#[derive(Debug)]
pub struct Remote {
    /// How it is to be used.
    pub wanted: Fabric,
    /// How long reads may take before the server is asked, which may then take a call's time.
    read_patience: Duration,
    region: Mutex<Option<Arc<Own<Region>>>>,
    reading: Mutex<Option<Arc<Reading>>>,
    /// Which way was faster lately.
    ways: Mutex<Ways>,
    random: AtomicCell<u32>,
    /// Reads failed; they are not tried before this.
    again_at: AtomicCell<Option<Instant>>,
}

/// The GETs under way.
#[derive(Debug)]
struct Reading {
    gets: Mutex<Own<Gets>>,
    /// The one who slept for what comes has come back, or somebody's GET is over.
    turned: Condvar,
    region: Arc<Own<Region>>,
    descriptor: Option<OwnedFd>,
    bell: Bell,
    /// Who waits, under the lock of the GETs.
    waiting: AtomicCell<Waiting>,
    patience: AtomicCell<Patience>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    leads: bool,
    followers: u32,
}

impl Remote {
    /// One that was not asked yet. A call is to take so long at most: half of it is for reads.
    pub fn new(wanted: Fabric, timeout: Duration) -> Remote {
        Remote {
            wanted,
            read_patience: READ_PATIENCE.min(timeout / 2),
            region: Mutex::default(),
            reading: Mutex::default(),
            ways: Mutex::default(),
            random: AtomicCell::new(monotonic_ns() as u32 | 1),
            again_at: AtomicCell::new(None),
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
        let is_known = known
            .as_ref()
            .is_some_and(|known| known.is_current() && known.is(&region) && known.socket.strong_count() > 0);
        if !is_known {
            *known = Some(Arc::new(Own::new(region)));
            lock(&self.ways).forget();
            self.again_at.store(None);
        }
    }

    /// The server is gone, as far as is known.
    pub fn forget(&self) {
        *lock(&self.region) = None;
        let reading = lock(&self.reading).take();
        if let Some(reading) = reading {
            reading.give_up();
        }
    }

    /// Begins a GET; none if the server is to be asked.
    pub fn begin(&self, key: &[u8]) -> Option<Begun> {
        self.begin_by(key, false)
    }

    /// The same for who waits for it at once: the server is also to be asked where that is faster.
    pub fn begin_alone(&self, key: &[u8]) -> Option<Begun> {
        self.begin_by(key, self.wanted.mode == FabricMode::Auto)
    }

    fn begin_by(&self, key: &[u8], chooses: bool) -> Option<Begun> {
        let reading = self.reading()?;
        let mut gets = reading.gets();
        let way = if chooses { Some(self.choose(gets.is_kept(key))) } else { None };
        if way == Some(Way::Request) {
            return None;
        }
        let began = Instant::now();
        let slot = gets.begin(key)?;
        if gets.drive() {
            reading.wake();
        }
        drop(gets);
        Some(Begun { slot, reading, way, began, patience: self.read_patience })
    }

    fn choose(&self, is_kept: bool) -> Way {
        let mut random = self.random.load();
        let drawn = next_random(&mut random);
        self.random.store(random);
        lock(&self.ways).choose(is_kept, None, drawn)
    }

    /// When a request begins whose time is to be noted; none if nobody asks for that.
    pub fn watch(&self) -> Option<Instant> {
        let learns = self.wanted.mode == FabricMode::Auto && lock(&self.region).is_some();
        learns.then(Instant::now)
    }

    /// The server was asked for a value since then, which has so many bytes if there is one.
    pub fn note_asked(&self, began: Instant, value_bytes: Option<usize>) {
        self.note_way(Way::Request, began, value_bytes);
    }

    fn note_way(&self, way: Way, began: Instant, value_bytes: Option<usize>) {
        lock(&self.ways).note(way, value_bytes, began.elapsed().as_nanos() as u64);
    }

    /// What a GET came to; waits for it.
    pub fn end(&self, Begun { slot, reading, way, began, .. }: Begun) -> Ended {
        if !reading.is_current() {
            // A parent's.
            return Ended { read: Read::Ask, value: Vec::new(), accesses: None };
        }
        if !slot.is_over() && !reading.wait(&slot, began + self.read_patience) {
            reading.give_up();
        }
        let (read, value) = slot.take().unwrap_or((Read::Ask, Vec::new()));
        if let Some(way) = way {
            let is_hit = matches!(read, Read::Hit { .. });
            self.note_way(way, began, is_hit.then_some(value.len()));
        }
        let accesses = self.note(&reading, matches!(read, Read::Gone));
        Ended { read, value, accesses }
    }

    /// What reads is let go when it is of no use any more. Reads of which the server is to be told, if there are enough.
    fn note(&self, reading: &Arc<Reading>, is_gone: bool) -> Option<Vec<(KeyHash, u8)>> {
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

    fn reading(&self) -> Option<Arc<Reading>> {
        let mut current = lock(&self.reading);
        if let Some(reading) = current.as_ref() {
            if reading.is_current() {
                return Some(Arc::clone(reading));
            }
            // A parent's.
            *current = None;
        }
        let region = lock(&self.region).clone().filter(|region| region.is_current())?;
        if self.again_at.load().is_some_and(|at| Instant::now() < at) {
            return None;
        }
        // Held meanwhile: who reads as well would only make another.
        match Reading::new(region, self.read_patience) {
            Some(reading) => {
                self.again_at.store(None);
                Some(Arc::clone(current.insert(Arc::new(reading))))
            }
            None => {
                self.again_at.store(Some(Instant::now() + READS_AGAIN_AFTER));
                None
            }
        }
    }
}

/// A GET that was begun.
#[derive(Debug)]
pub struct Begun {
    slot: Arc<Slot>,
    reading: Arc<Reading>,
    /// Chosen for its time, which is to be noted.
    way: Option<Way>,
    began: Instant,
    /// It may take so long.
    patience: Duration,
}

/// A GET that is over.
#[derive(Debug)]
pub struct Ended {
    /// What it came to …
    pub read: Read,
    /// … with the value.
    pub value: Vec<u8>,
    /// Reads of which the server is to be told now.
    pub accesses: Option<Vec<(KeyHash, u8)>>,
}

impl Begun {
    /// Gets on with all that is under way, without waiting; whether this one is over.
    pub fn test(&self) -> bool {
        if self.slot.is_over() || !self.reading.is_current() || self.reading.drive(&self.slot) {
            return true;
        }
        if self.began.elapsed() >= self.patience {
            self.reading.give_up();
        }
        self.slot.is_over()
    }
}

impl Reading {
    fn new(region: Arc<Own<Region>>, patience: Duration) -> Option<Reading> {
        let mut gets = Gets::new(&region, Instant::now() + patience).ok()?;
        let descriptor = gets.port().wait_fd().map(|descriptor| descriptor.try_clone_to_owned()).transpose();
        Some(Reading {
            gets: Mutex::new(Own::new(gets)),
            turned: Condvar::new(),
            region,
            descriptor: descriptor.ok()?,
            bell: Bell::new().ok()?,
            waiting: AtomicCell::default(),
            patience: AtomicCell::default(),
        })
    }

    fn is_current(&self) -> bool {
        self.region.is_current()
    }

    fn gets(&self) -> MutexGuard<'_, Own<Gets>> {
        lock(&self.gets)
    }

    fn give_up(&self) {
        if self.is_current() {
            self.gets().give_up();
            self.wake();
        }
    }

    /// Some GETs are over, perhaps those of others. Under the lock of the GETs.
    fn wake(&self) {
        let Waiting { leads, followers } = self.waiting.load();
        if leads {
            self.bell.ring();
        }
        if followers > 0 {
            self.turned.notify_all();
        }
    }

    fn drive(&self, slot: &Slot) -> bool {
        let mut gets = self.gets();
        if gets.drive() {
            self.wake();
        }
        slot.is_over()
    }

    /// Waits until a GET is over. False if that takes too long.
    fn wait(&self, slot: &Slot, deadline: Instant) -> bool {
        loop {
            let patience = self.patience.load();
            if self.look(slot, patience, deadline) {
                self.patience.store(patience.after_success());
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            if self.sleep(slot, deadline) {
                self.patience.store(patience.after_sleep(now.elapsed()));
                return true;
            }
        }
    }

    fn look(&self, slot: &Slot, patience: Patience, deadline: Instant) -> bool {
        let Some(time) = patience.look() else { return self.drive(slot) };
        let end = deadline.min(Instant::now() + time);
        loop {
            for _ in 0..LOOKS_BETWEEN_CLOCKS {
                if self.drive(slot) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    /// Sleeps once, for what comes or for who does. Whether the GET is over then.
    fn sleep(&self, slot: &Slot, deadline: Instant) -> bool {
        let mut gets = self.gets();
        if slot.is_over() {
            return true;
        }
        let waiting = self.waiting.load();
        if waiting.leads {
            self.waiting.store(Waiting { followers: waiting.followers + 1, ..waiting });
            let left = deadline.saturating_duration_since(Instant::now());
            let (gets, _) = self.turned.wait_timeout(gets, left).expect(NO_PANIC);
            let waiting = self.waiting.load();
            self.waiting.store(Waiting { followers: waiting.followers - 1, ..waiting });
            drop(gets);
            return slot.is_over();
        }
        if self.descriptor.is_some() && !gets.port().may_wait() {
            return false;
        }
        self.waiting.store(Waiting { leads: true, ..waiting });
        drop(gets);
        let mut what = vec![PollFd::new(&self.bell.0, PollFlags::IN)];
        what.extend(self.descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)));
        // What a descriptor forgets to tell of costs no more than that.
        let slept = wait_for_any(&mut what, deadline.min(Instant::now() + NAP_MAX));
        self.bell.answer();
        let mut gets = self.gets();
        self.waiting.store(Waiting { leads: false, ..self.waiting.load() });
        gets.drive();
        if self.waiting.load().followers > 0 {
            self.turned.notify_all();
        }
        if slept.is_err() {
            gets.give_up();
        }
        slot.is_over()
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect(NO_PANIC)
}

const NO_PANIC: &str = "no thread panics while it reads from afar";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_do_not_end_leave_time_to_ask() {
        for (timeout, patience) in [(200, 100), (0, 0), (60_000, READ_PATIENCE.as_millis())] {
            let remote = Remote::new(Fabric::default(), Duration::from_millis(timeout));
            assert_eq!(remote.read_patience.as_millis(), patience, "{timeout} ms");
        }
    }
}
