//! Housekeeping: one thread that runs timed work, and crawls and flushes on request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use fabcache_protocol::Reply;
use fabcache_store::dump::Cursor;
use fabcache_store::{Expiry, Handle};

use crate::worker::inbox::{Answer, Ticket};

/// Pause between parts of the work, so that a worker on the same CPU is not delayed for long.
const PAUSE: Duration = Duration::from_micros(200);

/// Requests to the housekeeping thread, and its progress.
#[derive(Debug, Default)]
pub struct Housekeeping {
    wanted: Mutex<PendingWork>,
    doorbell: Condvar,
    crawls: AtomicU64,
    crawled: AtomicU64,
    crawled_expired: AtomicU64,
}

/// A flush that a client requested.
#[derive(Debug)]
pub struct FlushRequest {
    /// Completed when the flush is done, or scheduled.
    pub ticket: Ticket,
    /// When to flush.
    pub expiry: Expiry,
}

#[derive(Debug, Default)]
struct PendingWork {
    /// The position of the crawl in progress.
    crawl: Option<Cursor>,
    /// Free segments are to be touched.
    touch: bool,
    /// In the order of their requests; no more than there are tickets.
    flushes: Vec<FlushRequest>,
    stop: bool,
}

impl Housekeeping {
    /// Requests a scan of all items; false if one is in progress.
    pub fn start_crawl(&self) -> bool {
        let mut wanted = self.wanted();
        if wanted.crawl.is_some() {
            return false;
        }
        wanted.crawl = Some(Cursor::START);
        self.crawls.fetch_add(1, Ordering::Relaxed);
        self.doorbell.notify_one();
        true
    }

    /// Returns whether a crawl is in progress.
    pub fn is_crawling(&self) -> bool {
        self.wanted().crawl.is_some()
    }

    /// Returns the number of requested crawls.
    pub fn crawls(&self) -> u64 {
        self.crawls.load(Ordering::Relaxed)
    }

    /// Returns the number of items they scanned.
    pub fn crawled(&self) -> u64 {
        self.crawled.load(Ordering::Relaxed)
    }

    /// Items they found expired.
    pub fn crawled_expired(&self) -> u64 {
        self.crawled_expired.load(Ordering::Relaxed)
    }

    /// Asks the housekeeper to touch the free segments that writers take next.
    pub fn touch_ahead(&self) {
        self.wanted().touch = true;
        self.doorbell.notify_one();
    }

    /// Asks the housekeeper to flush.
    pub fn flush(&self, request: FlushRequest) {
        self.wanted().flushes.push(request);
        self.doorbell.notify_one();
    }

    /// Takes the requested flushes: for a test that completes them itself, after it stopped the housekeeper.
    pub fn take_flushes(&self) -> Vec<FlushRequest> {
        std::mem::take(&mut self.wanted().flushes)
    }

    /// Executes the requested flushes, unless the housekeeper is to end.
    fn execute_flushes(&self, handle: &Handle) {
        let flushes = {
            let mut wanted = self.wanted();
            if wanted.stop { Vec::new() } else { std::mem::take(&mut wanted.flushes) }
        };
        for FlushRequest { ticket, expiry } in flushes {
            handle.flush(expiry);
            ticket.complete(Answer::Reply(Reply::Ok));
        }
    }

    /// Asks the housekeeper to end.
    pub fn stop(&self) {
        self.wanted().stop = true;
        self.doorbell.notify_one();
    }

    /// Keeps house until [`Housekeeping::stop`].
    pub fn run(&self, handle: &Handle) {
        let mut next_second = Instant::now();
        loop {
            if Instant::now() >= next_second {
                handle.maintain_with(|| {
                    self.execute_flushes(handle);
                    thread::sleep(PAUSE);
                });
                next_second = Instant::now() + handle.store().until_next_second();
            }
            self.execute_flushes(handle);
            if std::mem::take(&mut self.wanted().touch) {
                handle.touch_ahead();
            }
            self.crawl_on(handle);
            if !self.wait(next_second) {
                return;
            }
        }
    }

    /// Crawls a short part, so that neither the clock nor a stop waits for the rest.
    fn crawl_on(&self, handle: &Handle) {
        let Some(cursor) = self.wanted().crawl else { return };
        let (next, checked, expired) = handle.crawl_on(cursor);
        self.crawled.fetch_add(checked, Ordering::Relaxed);
        self.crawled_expired.fetch_add(expired, Ordering::Relaxed);
        self.wanted().crawl = Some(next).filter(|next| !next.is_done());
    }

    /// Waits for something to do, at most until `next_second`; false when it is to end.
    fn wait(&self, next_second: Instant) -> bool {
        let left = next_second.saturating_duration_since(Instant::now());
        let is_idle = |wanted: &mut PendingWork| {
            wanted.crawl.is_none() && !wanted.touch && wanted.flushes.is_empty() && !wanted.stop
        };
        let waited = self.doorbell.wait_timeout_while(self.wanted(), left, is_idle);
        !waited.expect("no thread panics while it holds the housekeeper's orders").0.stop
    }

    fn wanted(&self) -> MutexGuard<'_, PendingWork> {
        self.wanted.lock().expect("no thread panics while it holds the housekeeper's orders")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use fabcache_store::{Store, StoreOptions};
    use fabcache_testbed::wait::wait_until;

    use super::*;

    #[test]
    fn memory_is_touched_on_request() {
        let store = Arc::new(Store::create(StoreOptions::default()).expect("memory for a test"));
        let region = std::fs::File::from(store.region().try_clone_to_owned().expect("a descriptor"));
        let allocated = || region.metadata().expect("open").blocks() * 512;
        let (before, handle, housekeeping) = (allocated(), Handle::new(&store), Housekeeping::default());
        thread::scope(|scope| {
            let housekeeping = &housekeeping;
            scope.spawn(move || housekeeping.run(&handle));
            housekeeping.touch_ahead();
            wait_until("the next segments are touched", || allocated() > before + (4 << 20));
            housekeeping.stop();
        });
    }
}
