//! The driver thread of futures: in its own program, as the test counts the process's threads.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};

use common::{Running, client};
use fabcache_client::{Outcome, Request, Ttl};
use fabcache_testbed::wait::wait_until;

struct Count(AtomicUsize, Thread);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.unpark();
    }
}

/// Counts the driver threads of connections.
fn drivers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "fabcache-driver").count()
}

fn until_no_driver_is_left() {
    wait_until("no driver is left", || drivers() == 0);
}

#[test]
fn each_future_is_woken_once_and_the_driver_thread_exits() {
    let server = Running::tcp("");
    let cache = client(&server.address());
    let wakes = Arc::new(Count(AtomicUsize::new(0), thread::current()));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let mut polled_pending = 0;
    for _ in 0..5 {
        wakes.0.store(0, Ordering::SeqCst);
        let mut requested: Vec<Request> = (0..300).map(|i| cache.iget(format!("{i}"), Vec::new())).collect();
        let pending = requested.iter_mut().filter_map(|request| {
            let is_pending = pin!(request).poll(&mut context).is_pending();
            is_pending.then_some(drivers())
        });
        let pending: Vec<usize> = pending.collect();
        assert!(pending.iter().all(|drivers| *drivers <= 1), "at most one driver thread for the connection");
        while wakes.0.load(Ordering::SeqCst) < pending.len() {
            thread::park();
        }
        until_no_driver_is_left();
        assert_eq!(wakes.0.load(Ordering::SeqCst), pending.len());
        polled_pending += pending.len();
    }
    // The test needs a pending future: a large value takes time to arrive.
    cache.set(b"long", &vec![1; 1_000_000], Ttl::NEVER).expect("stored");
    let mut long: Vec<Request> = (0..50).map(|_| cache.iget("long", Vec::new())).collect();
    let last = long.last_mut().expect("there are 50");
    polled_pending += usize::from(pin!(last).poll(&mut context).is_pending());
    assert!(polled_pending > 0);
    // Dropped futures leave no driver thread either.
    drop(long);
    assert_eq!(cache.iget("k", Vec::new()).wait().result.expect("answered"), Outcome::NotFound);
    until_no_driver_is_left();
}
