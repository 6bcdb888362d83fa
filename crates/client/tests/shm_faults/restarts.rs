//! Readers of a memory file go on while its server is killed and its successors take the file over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fabcache_client::Transport;
use fabcache_testbed::random::SplitMix64;

use crate::common::process::{Leftover, Server, patient, socket_path, until_up};
use crate::common::versions::{Floors, floors, read, write};
use crate::other_users::MemoryFile;

const KILLS: usize = 20;
const READERS: u64 = 3;

/// Reads keys; returns the hits and how many of them while memory was shared.
fn read_shared(path: &str, seed: u64, floors: &Floors, ended: &AtomicBool) -> (u64, u64) {
    let (cache, mut hits, mut shared) = (patient(path), 0, 0);
    read(&cache, seed, floors, ended, || {
        hits += 1;
        shared += u64::from(cache.transports()[0] == Some(Transport::SharedMemory));
    });
    (hits, shared)
}

#[test]
fn readers_go_on_while_servers_are_killed_and_take_over() {
    let file = MemoryFile::new("restarts", rustix::process::geteuid().as_raw());
    let socket = Leftover(socket_path("restarts"));
    let path = &socket.0;
    let flags = format!("-m 16 --shm-same-user -e {}", file.path().display());
    let (floors, ended) = (floors("key"), AtomicBool::new(false));
    let (floors, ended): (&Floors, _) = (&floors, &ended);
    let mut server = Server::started(path, &flags);
    let read = thread::scope(|scope| {
        let readers: Vec<_> =
            (0..READERS).map(|seed| scope.spawn(move || read_shared(path, seed, floors, ended))).collect();
        let writer = scope.spawn(move || write(&patient(path), floors, ended));
        let mut random = SplitMix64::new(u64::from(std::process::id()));
        for _ in 0..KILLS {
            thread::sleep(Duration::from_millis(random.between(5, 120) as u64));
            server.0.kill();
            server = Server::started(path, &flags);
        }
        let probe = patient(path);
        until_up(|| probe.get(b"up").is_ok());
        ended.store(true, Ordering::Relaxed);
        writer.join().expect("it wrote");
        readers.into_iter().map(|reader| reader.join().expect("it read")).collect::<Vec<_>>()
    });
    for (hits, shared) in read {
        assert!(shared > 100 && hits >= shared, "{hits} hits, {shared} of them from shared memory");
    }
}
