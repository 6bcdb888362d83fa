//! Waiting threads sleep, futures are woken, and idle connections use no CPU.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fabcache_client::{CompletedRequest, FabricMode, Options, Request, Ttl};

use super::common::fabric::{options, over, served};
use super::common::process::{patient, until_up, wait_until};
use super::common::{awaited_beside_panics, block_on};
use super::{MODES, pattern, while_stopped};

/// Awaits a request, and counts its polls.
fn block_on_counting(mut request: Request) -> (CompletedRequest, u64) {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    for looks in 1.. {
        if let Poll::Ready(completed) = Pin::new(&mut request).poll(&mut context) {
            return (completed, looks);
        }
        thread::park();
    }
    unreachable!("the request is polled until it completes")
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn awaiting_a_read_sleeps_until_it_completes() {
    let (server, address, _path) = served("fabric-awaited", "");
    let cache = over(&address, options(FabricMode::OneSided));
    for number in 0..40 {
        cache.set(format!("key{number}").as_bytes(), &pattern(number, 300), Ttl::NEVER).expect("stored");
    }
    assert!(cache.get(b"key1").expect("answered").is_some());
    let (completed, looks) = while_stopped(
        &server,
        || block_on_counting(cache.iget("key2", Vec::new())),
        |_| thread::sleep(Duration::from_millis(500)),
    );
    assert!(completed.value == pattern(2, 300), "{completed:?}");
    assert!(looks < 10_000, "it was polled {looks} times");
    // Many awaited requests at once, alongside a blocking one.
    thread::scope(|scope| {
        for reader in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for number in 0..200 {
                    let number = (reader * 7 + number) % 40;
                    let key = format!("key{number}");
                    let value = match reader {
                        0 => cache.get(key.as_bytes()).expect("answered").expect("there").value,
                        _ => block_on(&mut cache.iget(key, Vec::new())).value,
                    };
                    assert!(value == pattern(number, 300), "{number}");
                }
            });
        }
    });
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn panicking_waker_does_not_block_other_wakers() {
    let (server, address, _path) = served("fabric-panics", "");
    let cache = over(&address, options(FabricMode::OneSided));
    cache.set(b"key", &pattern(3, 300), Ttl::NEVER).expect("stored");
    assert!(cache.get(b"key").expect("answered").is_some());
    for _ in 0..2 {
        server.stop_asleep();
        let requests = (0..8).map(|_| cache.iget("key", Vec::new())).collect();
        let completed = awaited_beside_panics(requests, || {
            server.resume();
        });
        assert!(completed.iter().all(|completed| completed.value == pattern(3, 300)), "{completed:?}");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn idle_connection_uses_no_cpu_and_stays_usable() {
    let (server, address, _path) = served("fabric-idle", "-m 64 -t 1");
    let cache = over(&address, options(FabricMode::Request));
    for (round, bytes) in [10, 5_000, 100_000, 600_000, 10].into_iter().enumerate() {
        cache.set(b"key", &pattern(round, bytes), Ttl::NEVER).expect("stored");
        assert!(cache.get(b"key").expect("answered").expect("there").value == pattern(round, bytes));
        // However long the server polls before it sleeps; a server that never sleeps uses every half second in full.
        wait_until("the server sleeps", || {
            let before = server.cpu_time();
            thread::sleep(Duration::from_millis(500));
            server.cpu_time() - before < Duration::from_millis(50)
        });
        assert!(cache.get(b"key").expect("answered").expect("there").value == pattern(round, bytes));
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn testing_alone_completes_a_request() {
    let (_server, address, _path) = served("fabric-tests", "-m 64");
    for mode in MODES {
        let cache = over(&address, options(mode));
        let value = pattern(1, 100_000);
        let mut request = cache.request();
        for round in 0..6 {
            // The server sleeps by now, and no thread here polls.
            thread::sleep(Duration::from_millis(20));
            match round % 2 {
                0 => request.iset("key", value.clone(), Ttl::NEVER),
                _ => request.iget("key", Vec::new()),
            };
            wait_until("the request completes", || request.test());
            let completed = request.wait();
            assert!(
                completed.result.is_ok() && (round % 2 == 0 || completed.value == value),
                "{mode:?}: {round}"
            );
        }
    }
}

/// Returns this thread's CPU time.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn waiting_for_room_sleeps() {
    let (server, address, path) = served("fabric-room", "-m 64 -I 32m");
    let timeout = Duration::from_secs(2);
    let cache = over(&address, Options { timeout, failures_max: u32::MAX, ..options(FabricMode::Request) });
    // The endpoints are connected by then.
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
    server.stop_asleep();
    let (began, before) = (Instant::now(), own_time());
    // More than fits the memory that the server reads, by an odd number of bytes.
    let value = pattern(5, (16 << 20) + 12_345);
    let made = own_time() - before;
    cache.set(b"key", &value, Ttl::NEVER).expect_err("the server is stopped");
    let (worked, waited) = (own_time() - before - made, began.elapsed());
    server.resume();
    assert!(waited >= timeout && worked < timeout / 8, "{worked:?} of {waited:?} were spent polling");
    let later = patient(&path.0);
    until_up(|| later.set(b"up", b"", Ttl::NEVER).is_ok());
}
