//! A server that is reached over the fabric: which path a GET takes, and the one-sided GETs.
//!
//! [`RemoteReader`] decides between one-sided reads and requests, opens an endpoint for reads when one is needed, and
//! replaces it after a failure. The GETs themselves are in [`SharedGets`].

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crossbeam_utils::atomic::AtomicCell;
use fabcache_layout::KeyHash;
use fabcache_layout::reader::next_random;

use super::fork_guard::ForkGuard;
use super::get_slot::GetCompletion;
use super::shared_gets::{GetHandle, SharedGets};
use super::target::Target;
use crate::bounds::{READ_TIMEOUT, READS_AGAIN_AFTER, READS_AT_ONCE};
use crate::fabric::region::Region;
use crate::options::{Fabric, FabricMode};
use crate::path_selector::{Batch, LatencySample, ReadPath, ServerPaths};
use crate::read_result::{ReadResult, ServerFallback};
use crate::region_clock::monotonic_ns;

/// The one-sided reads of a server on the fabric.
#[derive(Debug)]
pub struct RemoteReader {
    /// The caller's options.
    pub options: Fabric,
    /// The time limit of one-sided reads; a request then has the rest of the call's timeout.
    read_timeout: Duration,
    region: Mutex<Option<Arc<ForkGuard<Region>>>>,
    shared: Mutex<Option<Arc<SharedGets>>>,
    /// Held while `shared` is replaced.
    making: Mutex<()>,
    /// Latencies of one-sided reads and requests.
    paths: Mutex<ServerPaths>,
    random: AtomicCell<u32>,
    /// After failed reads: the earliest next attempt.
    retry_at: AtomicCell<Option<Instant>>,
    /// The negotiated endpoint was unreachable: why, and until when to assume so.
    unreached: Mutex<Option<(String, Instant)>>,
}

impl RemoteReader {
    /// Returns the reader of a server that was not contacted yet. One-sided reads get half of a call's timeout at most.
    pub fn new(options: Fabric, timeout: Duration) -> RemoteReader {
        RemoteReader {
            options,
            read_timeout: READ_TIMEOUT.min(timeout / 2),
            region: Mutex::default(),
            shared: Mutex::default(),
            making: Mutex::default(),
            paths: Mutex::default(),
            random: AtomicCell::new(monotonic_ns() as u32 | 1),
            retry_at: AtomicCell::new(None),
            unreached: Mutex::default(),
        }
    }

    /// Returns whether items are read one-sided, given whether the provider reads without the server's CPU.
    pub fn reads(&self, is_one_sided: bool) -> bool {
        match self.options.mode {
            FabricMode::Auto => is_one_sided,
            FabricMode::OneSided => true,
            FabricMode::Request => false,
        }
    }

    /// Stores the server's region.
    pub fn set_region(&self, region: Region) {
        let mut known = lock(&self.region);
        // Every connection announces the same region.
        if let Some(known) = known.as_ref().filter(|known| known.is_current() && known.is(&region)) {
            return known.sockets.add(&region.sockets);
        }
        *known = Some(Arc::new(ForkGuard::new(region)));
        *lock(&self.paths) = ServerPaths::default();
        self.retry_at.store(None);
    }

    /// Drops the region of a server that is gone, and fails the GETs in flight.
    pub fn forget(&self) {
        *lock(&self.region) = None;
        let shared = lock(&self.shared).take();
        if let Some(shared) = shared {
            shared.give_up();
        }
    }

    /// Records that no message reaches the server, and for how long to assume so.
    pub fn note_unreached(&self, why: String, time: Duration) {
        self.forget();
        *lock(&self.unreached) = Some((why, Instant::now() + time));
    }

    /// Returns why no message got through, if that was recent.
    pub fn unreached(&self) -> Option<String> {
        let unreached = lock(&self.unreached);
        unreached.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(why, _)| why.clone())
    }

    /// Starts a GET, which takes the target's memory.
    ///
    /// # Errors
    /// The server must be asked.
    pub fn begin(&self, key: &[u8], batch: Batch, target: &mut Target) -> Result<GetHandle, ServerFallback> {
        let began = Instant::now();
        let unsampled = ServerFallback { sample: None };
        let shared = self.shared(began + self.read_timeout).ok_or(unsampled)?;
        let mut gets = shared.gets();
        let mut sample = None;
        if self.options.mode == FabricMode::Auto && batch != Batch::Decided {
            let (path, counts) = lock(&self.paths).choose(batch, gets.has_location(key), self.draw());
            sample = counts.then_some(LatencySample { path, batch, began });
            if path == ReadPath::Request {
                return Err(ServerFallback { sample });
            }
        }
        let mut slot = None;
        shared.update(gets, |gets| {
            let has_made_room = !gets.has_room() && gets.poll();
            if !gets.has_room() && gets.is_late(began) {
                // Abandoned GETs would otherwise occupy the slots until the fabric completes them.
                gets.give_up();
            }
            let (started, any_completed) = gets.begin(key, (began, self.read_timeout), target);
            slot = started;
            has_made_room || any_completed || gets.is_broken()
        });
        let Some(slot) = slot else {
            if shared.gets().is_broken() {
                // Leave no GET whose completion would drop it.
                self.after_get(&shared, false);
            }
            return Err(unsampled);
        };
        Ok(GetHandle { slot, shared, sample, began })
    }

    /// Chooses the path for `count` keys that are read in one call; `None` if there is no choice.
    pub fn choose_many<'k>(&self, count: usize, key: impl Fn(usize) -> &'k [u8]) -> Option<LatencySample> {
        if self.options.mode != FabricMode::Auto || count == 0 {
            return None;
        }
        let began = Instant::now();
        let shared = self.shared(began + self.read_timeout)?;
        let mut gets = shared.gets();
        // The first keys stand for all.
        let checked = count.min(READS_AT_ONCE);
        let located = (0..checked).filter(|number| gets.has_location(key(*number))).count();
        drop(gets);
        let batch = Batch::Multiget(count);
        let (path, _) = lock(&self.paths).choose(batch, 2 * located >= checked, self.draw());
        Some(LatencySample { path, batch, began })
    }

    fn draw(&self) -> u32 {
        let mut random = self.random.load();
        let drawn = next_random(&mut random);
        self.random.store(random);
        drawn
    }

    /// Records a latency; `value_bytes` is the length of the value, or of one of the values, if there is any.
    pub fn note_time(&self, sample: LatencySample, ended: Instant, value_bytes: Option<usize>) {
        lock(&self.paths).note(sample, ended, value_bytes);
    }

    /// Waits for a GET and returns its result.
    pub fn complete(&self, GetHandle { slot, shared, sample, .. }: GetHandle) -> GetCompletion {
        if !shared.is_current() {
            // It was started by the parent before a fork.
            return GetCompletion::fallback(Vec::new());
        }
        if !slot.is_complete() && !shared.wait(&slot, slot.deadline_from(Instant::now())) {
            shared.give_up();
        }
        let completion = slot.take().unwrap_or_else(|| GetCompletion::fallback(Vec::new()));
        if let Some(sample) = sample {
            self.note_time(sample, completion.at, completion.value_bytes());
        }
        let is_gone = matches!(completion.read, ReadResult::Gone) || shared.has_server_left();
        let accesses = self.after_get(&shared, is_gone);
        GetCompletion { accesses, ..completion }
    }

    /// Drops GETs that failed or whose server is gone; else returns the reads to report to the server, if there are enough.
    fn after_get(&self, shared: &Arc<SharedGets>, is_gone: bool) -> Option<Vec<(KeyHash, u8)>> {
        let mut gets = shared.gets();
        if !is_gone && !gets.is_broken() {
            return gets.take_accesses();
        }
        drop(gets);
        let mut current = lock(&self.shared);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, shared)) {
            *current = None;
            self.retry_at.store(Some(Instant::now() + READS_AGAIN_AFTER));
        }
        drop(current);
        if is_gone {
            let mut region = lock(&self.region);
            region.take_if(|region| Arc::ptr_eq(region, shared.region()));
        }
        None
    }

    /// Returns the GETs in flight, opening an endpoint if there is none; `None` if reads are not possible now.
    fn shared(&self, deadline: Instant) -> Option<Arc<SharedGets>> {
        if let Some(shared) = self.current() {
            return Some(shared);
        }
        // A second thread asks the server meanwhile instead of opening a second endpoint.
        let _making = self.making.try_lock().ok()?;
        if let Some(shared) = self.current() {
            return Some(shared);
        }
        let region = lock(&self.region).clone().filter(|region| region.is_current())?;
        if self.retry_at.load().is_some_and(|at| Instant::now() < at) {
            return None;
        }
        // An endpoint whose worker can be woken: a worker without connections may sleep.
        let end = region.sockets.newest_end()?;
        let Some(shared) = SharedGets::new(region, end, deadline) else {
            self.retry_at.store(Some(Instant::now() + READS_AGAIN_AFTER));
            return None;
        };
        self.retry_at.store(None);
        Some(Arc::clone(lock(&self.shared).insert(Arc::new(shared))))
    }

    fn current(&self) -> Option<Arc<SharedGets>> {
        let mut current = lock(&self.shared);
        // A forked child does not use its parent's.
        current.take_if(|shared| !shared.is_current());
        current.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the state of remote reads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_reads_leave_time_for_a_request() {
        for (timeout, read_timeout) in [(200, 100), (0, 0), (60_000, READ_TIMEOUT.as_millis())] {
            let remote = RemoteReader::new(Fabric::default(), Duration::from_millis(timeout));
            assert_eq!(remote.read_timeout.as_millis(), read_timeout, "{timeout} ms");
        }
    }
}
