//! Helpers of the tests over sockets.

// Not every test uses all of them.
#![allow(dead_code)]

pub mod calls;
pub mod fabric;
pub mod process;
pub mod raw;
pub mod versions;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use fabcache_client::{Client, CompletedRequest, Options, Request};
use fabcache_testbed::local::LocalServer;

/// A server in this process that is stopped when the test ends.
pub struct Running(LocalServer);

impl Running {
    pub fn start(flags: &str) -> Running {
        let flags = format!("-t 1 {flags}");
        Running(LocalServer::start(&flags).expect("a server"))
    }

    pub fn tcp(flags: &str) -> Running {
        Running(LocalServer::tcp(flags))
    }

    /// Starts a server on a Unix socket, over memory that clients cannot map, and returns its address.
    pub fn over_unmappable_memory(name: &str, flags: &str) -> (Running, String) {
        Running::unix_by(name, flags, |flags| LocalServer::over_unmappable_memory(flags).expect("a server"))
    }

    /// Starts a server on a Unix socket, over memory of which clients map a part, and returns its address.
    pub fn over_symmetric_memory(name: &str, flags: &str) -> (Running, String) {
        Running::unix_by(name, flags, |flags| LocalServer::over_symmetric_memory(flags).expect("a server"))
    }

    fn unix_by(name: &str, flags: &str, start: fn(&str) -> LocalServer) -> (Running, String) {
        let path = std::env::temp_dir().join(format!("fabcache-{name}-{}", std::process::id()));
        let path = path.display();
        (Running(start(&format!("-t 1 -s {path} {flags}"))), format!("unix://{path}"))
    }

    /// Starts a server on a Unix socket, and returns its address.
    pub fn unix(name: &str, flags: &str) -> (Running, String) {
        let path = std::env::temp_dir().join(format!("fabcache-{name}-{}", std::process::id()));
        let path = path.display();
        (Running::start(&format!("-s {path} {flags}")), format!("unix://{path}"))
    }

    pub fn address(&self) -> String {
        self.0.url()
    }
}

/// Default options, with timeouts for a busy machine.
pub fn with_time_limit() -> Options {
    let long = Duration::from_secs(30);
    Options { timeout: long, connect_timeout: long, ..Options::default() }
}

pub fn client(address: &str) -> Client {
    Client::new([address], with_time_limit()).expect("an address")
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs one future to completion.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Records that it was woken, or panics.
struct RecordingWaker {
    panics: bool,
    is_told: AtomicBool,
}

impl Wake for RecordingWaker {
    fn wake(self: Arc<Self>) {
        assert!(!self.panics, "this waker panics, as intended");
        self.is_told.store(true, Ordering::SeqCst);
    }
}

/// Awaits requests whose every other waker panics; nothing is answered before `answer`. All other wakers are still
/// called. Returns the results.
pub fn awaited_beside_panics(requests: Vec<Request>, answer: impl FnOnce()) -> Vec<CompletedRequest> {
    // Over the fabric, a future polled early asks to be polled again.
    thread::sleep(Duration::from_millis(5));
    let mut awaited: Vec<(Request, Arc<RecordingWaker>)> = Vec::new();
    let mut over = Vec::new();
    for (number, mut request) in requests.into_iter().enumerate() {
        let reported =
            Arc::new(RecordingWaker { panics: number.is_multiple_of(2), is_told: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&reported));
        match Pin::new(&mut request).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(completed) => over.push(completed),
            Poll::Pending => awaited.push((request, reported)),
        }
    }
    answer();
    for (number, (_, reported)) in awaited.iter().enumerate() {
        let is_told = || reported.panics || reported.is_told.load(Ordering::SeqCst);
        process::wait_until(&format!("{number} is woken"), is_told);
    }
    over.extend(awaited.iter_mut().map(|(request, _)| request.wait()));
    over
}
