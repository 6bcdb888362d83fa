//! Housekeeping: one thread that runs timed work, crawls on request, and executes the tasks of requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use fabcache_protocol::Reply;
use fabcache_store::Handle;
use fabcache_store::dump::Cursor;

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

/// The work of a request that would keep a worker from its connections.
pub struct Task {
    ticket: Ticket,
    work: Work,
}

/// The work of a task.
pub enum Work {
    /// Short work, which is also executed between the parts of long work.
    Short(Box<dyn FnOnce(&Handle) -> Reply<'static> + Send>),
    /// It calls the function between short parts, in which short tasks are executed.
    Long(Box<LongWork>),
}

type LongWork = dyn FnOnce(&Handle, &mut dyn FnMut()) -> Reply<'static> + Send;

impl Task {
    /// Creates a task whose reply completes the ticket.
    pub fn new(ticket: Ticket, work: Work) -> Task {
        Task { ticket, work }
    }

    /// The ticket, without doing the work.
    pub fn into_ticket(self) -> Ticket {
        self.ticket
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct PendingWork {
    /// The position of the crawl in progress.
    crawl: Option<Cursor>,
    /// Free segments are to be touched.
    touch: bool,
    /// In the order of their requests; no more than there are tickets.
    tasks: Vec<Task>,
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

    /// Asks the housekeeper to execute a task, after earlier ones.
    pub fn execute(&self, task: Task) {
        self.wanted().tasks.push(task);
        self.doorbell.notify_one();
    }

    /// Takes the tasks: for a test that completes them itself, after it stopped the housekeeper.
    pub fn take_tasks(&self) -> Vec<Task> {
        std::mem::take(&mut self.wanted().tasks)
    }

    /// Executes tasks, or only short ones, until a time, unless the housekeeper is to end. The rest waits, as other
    /// work is due.
    fn execute_tasks(&self, handle: &Handle, only_short: bool, until: Instant) {
        while let Some(Task { ticket, work }) = self.next_task(only_short) {
            let reply = match work {
                Work::Short(work) => work(handle),
                Work::Long(work) => {
                    work(handle, &mut || self.execute_tasks(handle, true, Instant::now() + PAUSE))
                }
            };
            ticket.complete(Answer::Reply(reply));
            if Instant::now() >= until {
                return;
            }
        }
    }

    fn next_task(&self, only_short: bool) -> Option<Task> {
        let mut wanted = self.wanted();
        if wanted.stop {
            return None;
        }
        let is_next = |task: &Task| !only_short || matches!(task.work, Work::Short(_));
        let at = wanted.tasks.iter().position(is_next)?;
        Some(wanted.tasks.remove(at))
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
                    self.execute_tasks(handle, true, Instant::now() + PAUSE);
                    thread::sleep(PAUSE);
                });
                next_second = Instant::now() + handle.store().until_next_second();
            }
            self.execute_tasks(handle, false, next_second);
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
            wanted.crawl.is_none() && !wanted.touch && wanted.tasks.is_empty() && !wanted.stop
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
    use crate::worker::inbox::Inbox;
    use crate::worker::token::TicketId;

    #[test]
    fn short_tasks_do_not_wait_for_a_long_one() {
        let store = Arc::new(Store::open(StoreOptions::default()).expect("memory for a test"));
        let (handle, housekeeping) = (Handle::new(&store), Housekeeping::default());
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let ticket = |index| Ticket::new(TicketId { index, generation: 0 }, &inbox);
        let long = |_: &Handle, pause: &mut dyn FnMut()| {
            pause();
            Reply::Noop
        };
        housekeeping.execute(Task::new(ticket(0), Work::Long(Box::new(long))));
        housekeeping.execute(Task::new(ticket(1), Work::Long(Box::new(long))));
        housekeeping.execute(Task::new(ticket(2), Work::Short(Box::new(|_| Reply::Ok))));
        housekeeping.execute_tasks(&handle, false, Instant::now() + Duration::from_secs(60));
        let done = inbox.take_completions();
        assert_eq!(done.iter().map(|completion| completion.id.index).collect::<Vec<_>>(), [2, 0, 1]);
        assert!(matches!(done[0].answer, Some(Answer::Reply(Reply::Ok))));
    }

    #[test]
    fn memory_is_touched_on_request() {
        let store = Arc::new(Store::open(StoreOptions::default()).expect("memory for a test"));
        let region = std::fs::File::from(
            store.region().expect("a memory file").try_clone_to_owned().expect("a descriptor"),
        );
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
