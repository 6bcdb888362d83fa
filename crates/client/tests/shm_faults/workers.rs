//! Clients that must work undisturbed while others fail.

pub use fabcache_testbed::bytes::pattern;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fabcache_client::{Client, Options, SharedMemory, Ttl};

use crate::common::process::at;
use crate::common::with_time_limit;

/// The longest value of a worker: some exceed the staging area.
const VALUE_BYTES_MAX: usize = 40_000;

/// Workers, which stop when this is dropped, even on a panic.
#[derive(Default)]
pub struct Workers {
    stop: AtomicBool,
    rounds: [AtomicU64; 3],
}

pub struct Stop<'a>(&'a Workers);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Workers {
    pub fn stop_when_dropped(&self) -> Stop<'_> {
        Stop(self)
    }

    /// Works in three threads, one of them over the socket.
    pub fn start<'scope>(&'scope self, scope: &'scope std::thread::Scope<'scope, '_>, path: &str) {
        for (number, rounds) in self.rounds.iter().enumerate() {
            let never = Options { shared_memory: SharedMemory::Never, ..with_time_limit() };
            let by_socket = || Client::new([format!("unix://{path}")], never).expect("an address");
            let cache = if number == 2 { by_socket() } else { at(path) };
            scope.spawn(move || {
                let mut round = 0;
                while !self.stop.load(Ordering::Relaxed) {
                    round += 1;
                    work(&cache, number, round);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }

    /// Asserts that each worker made progress since the last call.
    pub fn assert_worked(&self) {
        let rounds = self.rounds.each_ref().map(|rounds| rounds.swap(0, Ordering::Relaxed));
        assert!(rounds.iter().all(|rounds| *rounds > 0), "rounds of the workers: {rounds:?}");
    }
}

/// Asserts that each call is answered correctly.
fn work(cache: &Client, number: usize, round: usize) {
    let key = format!("worker{number}-{}", round % 16);
    let key = key.as_bytes();
    let value = pattern(round, round * 37 % if round.is_multiple_of(8) { VALUE_BYTES_MAX } else { 700 });
    cache.set(key, &value, Ttl::NEVER).expect("stored");
    assert!(cache.get(key).expect("read").expect("it is there").value == value, "what was just stored");
    let item = cache.get_and_touch(key, Ttl::seconds(1000)).expect("answered").expect("it is there");
    assert!(item.value == value, "by the server's answer");
    let counter = format!("counter{number}");
    cache.set(counter.as_bytes(), b"41", Ttl::NEVER).expect("stored");
    assert_eq!(cache.incr(counter.as_bytes(), 1).expect("answered"), Some(42));
    if round.is_multiple_of(4) {
        assert!(cache.delete(key).expect("answered"));
        assert!(cache.get(key).expect("read").is_none());
    }
}
