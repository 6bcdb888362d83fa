//! Readers over the fabric go on while the server of a memory file (`-e`) ends, cleanly or killed, and its successors take
//! the file over.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fabcache_client::{Client, FabricMode, Options, Ttl};
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::random::SplitMix64;
use fabcache_testbed::report::not_run;
use fabcache_testbed::wait::amount;

use crate::common::fabric::{flags, free_port, is_one_sided, options, over, provider};
use crate::common::process::{Leftover, Server, patient, socket_path, stat, until_up, wait_until};
use crate::common::versions::{StopWhenDropped, floors, read, write};

/// Hits of each reader after a restart.
const HITS: u64 = 50;

fn client(address: &str, mode: FabricMode) -> Client {
    let (retry_after, timeout) = (Duration::from_millis(1), Duration::from_secs(5));
    over(address, Options { retry_after, timeout, ..options(mode) })
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn readers_go_on_one_sided_through_restarts() {
    let folder = Folder::new_in(Path::new("/dev/shm"), "fabcache-fabric-restarts").expect("shared memory");
    let socket = Leftover(socket_path("fabric-restarts"));
    let port = free_port().expect("a free port");
    let file = folder.path().join("region");
    let flags = flags(&format!("-m 16 --shm-same-user -l 127.0.0.1 -p {port} -e {}", file.display()));
    let start = || Server::started_stoppable(&socket.0, &flags);
    let address = format!("tcp://127.0.0.1:{port}");
    let modes = [FabricMode::OneSided, FabricMode::Auto, FabricMode::Request];
    let hits = [const { AtomicU64::new(0) }; 3];
    let (floors, ended) = (&floors("key"), &AtomicBool::new(false));
    let kills = provider() != "shm";
    if !kills {
        let why =
            "a server killed at work may hold a lock of libfabric 1.17 that its clients wait for without end";
        not_run("readers_go_on_one_sided_through_restarts after a kill", &why);
    }
    let mut server = start();
    server = thread::scope(|scope| {
        scope.spawn(|| write(&patient(&socket.0), floors, ended));
        for (mode, hits) in modes.into_iter().zip(&hits) {
            let address = &address;
            scope.spawn(move || {
                let cache = client(address, mode);
                read(&cache, mode as u64, floors, ended, || {
                    hits.fetch_add(1, Ordering::Relaxed);
                });
                assert!(is_one_sided(&cache) || mode != FabricMode::OneSided);
            });
        }
        let stop = StopWhenDropped(ended);
        let mut random = SplitMix64::new(u64::from(std::process::id()));
        for number in 0..amount(12, 4) {
            // Each kind of end meets readers that are one-sided again, half a second after a failure, and others.
            let least = if number % 4 < 2 { 600 } else { 5 };
            thread::sleep(Duration::from_millis(random.between(least, least + 200) as u64));
            match number % 2 {
                0 if kills => drop(server),
                _ => server.stop_cleanly(),
            }
            let before = hits.each_ref().map(|hits| hits.load(Ordering::Relaxed));
            server = start();
            let is_read = |(hits, before): (&AtomicU64, u64)| hits.load(Ordering::Relaxed) >= before + HITS;
            wait_until("all readers go on", || hits.iter().zip(before).all(is_read));
        }
        drop(stop);
        server
    });
    assert!(server.is_running());
    assert_eq!(stat(&patient(&socket.0), "fabcache", "region_incarnation"), amount(12, 4) as u64 + 1);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn kept_items_are_read_one_sided_after_a_restart() {
    let folder = Folder::new_in(Path::new("/dev/shm"), "fabcache-fabric-kept").expect("shared memory");
    let socket = Leftover(socket_path("fabric-kept"));
    let port = free_port().expect("a free port");
    let file = folder.path().join("region");
    let flags = flags(&format!("-m 16 --shm-same-user -l 127.0.0.1 -p {port} -e {}", file.display()));
    let start = || Server::started_stoppable(&socket.0, &flags);
    let mut server = start();
    let cache = client(&format!("tcp://127.0.0.1:{port}"), FabricMode::OneSided);
    for is_killed in [false, true, false] {
        for number in 0..100 {
            cache
                .set(format!("{number}").as_bytes(), format!("{is_killed} {number}").as_bytes(), Ttl::NEVER)
                .expect("stored");
        }
        if is_killed {
            drop(server)
        } else {
            server.stop_cleanly()
        }
        server = start();
        until_up(|| cache.get(b"0").is_ok());
        let control = patient(&socket.0);
        let requested = || stat(&control, "", "cmd_get");
        // After a failure the client asks the server for a while.
        wait_until("items are read without the server", || {
            let before = requested();
            for number in 0..100 {
                let found = cache.get(format!("{number}").as_bytes()).expect("answered").expect("kept");
                assert_eq!(found.value, format!("{is_killed} {number}").as_bytes());
            }
            requested() < before + 10
        });
        assert!(is_one_sided(&cache));
    }
}
