//! Clients on the fabric, and items that are on the server's flash.

use std::path::Path;

use fabcache_client::{Client, FabricMode, Outcome, Request, Stored, Ttl};
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::io_uring::is_there_for_files;

use super::common::client;
use super::common::fabric::{is_one_sided, options, over, served};
use super::common::process::{Leftover, Server, stat};
use super::{MODES, pattern};

const ITEMS: usize = 400;
/// Requests in flight.
const WINDOW: usize = 32;
/// Items that sets of other keys replaced unread, at most: one in a thousand is expected to be.
const FALSE_MATCHES_MAX: usize = 4;

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// A value of one page up to some, of the given round.
fn value(n: usize, round: usize) -> Vec<u8> {
    pattern(n * 3 + round, 300 + n % 9 * 3000)
}

/// A server with 8 MB of memory and flash.
struct FlashServer {
    // The device is removed after its server has ended.
    _server: Server,
    _socket: Leftover,
    address: String,
    _folder: Folder,
    /// A client over TCP.
    plain: Client,
}

impl FlashServer {
    /// Starts a server; none where io_uring is refused.
    fn start(name: &str) -> Option<FlashServer> {
        if !is_there_for_files() {
            return None;
        }
        let folder =
            Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "fabric-flash").expect("a folder");
        let device = folder.path().join("device");
        let (server, address, socket) = served(name, &format!("-m 8 -t 2 --flash {}:257m", device.display()));
        let plain = client(&address);
        Some(FlashServer { _server: server, _socket: socket, address, _folder: folder, plain })
    }

    /// Pushes all items out of memory.
    fn fill(&self, prefix: &str) {
        for n in 0..5000 {
            self.plain
                .set(format!("{prefix}-{n}").as_bytes(), &pattern(n, 4000), Ttl::NEVER)
                .expect("stored");
        }
    }

    /// Returns how many items the server evicted.
    fn losses(&self) -> usize {
        let stats = [("", "evictions"), ("fabcache", "flash_items_evicted")];
        stats.map(|(topic, name)| stat(&self.plain, topic, name) as usize).iter().sum()
    }

    fn reads(&self) -> u64 {
        stat(&self.plain, "fabcache", "flash_items_read")
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn items_on_flash_are_requested_over_the_fabric() {
    for mode in MODES {
        let Some(server) = FlashServer::start("fabric-flash") else { return };
        let cache = over(&server.address, options(mode));
        for n in 0..ITEMS {
            cache.set(&key(n), &value(n, 0), Ttl::NEVER).expect("stored");
            // The client knows their places in memory.
            assert!(cache.get(&key(n)).expect("answered").expect("there").value == value(n, 0), "{n}");
        }
        assert!(is_one_sided(&cache) || mode != FabricMode::OneSided);
        server.fill("fill");
        let before = server.reads();
        let mut missing = 0;
        for n in 0..ITEMS {
            match cache.get(&key(n)).expect("answered") {
                Some(item) => assert!(item.value == value(n, 0), "{mode:?}: {n}"),
                None => missing += 1,
            }
        }
        assert!(missing <= server.losses() + FALSE_MATCHES_MAX, "{mode:?}: {missing} are missing");
        let reads = server.reads() - before;
        assert!(reads > ITEMS as u64 / 2, "{mode:?}: {reads} reads of flash");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn changes_of_items_on_flash_are_seen_over_the_fabric() {
    let Some(server) = FlashServer::start("fabric-flash-changes") else { return };
    let caches = MODES.map(|mode| (mode, over(&server.address, options(mode))));
    for n in 0..ITEMS {
        server.plain.set(&key(n), &value(n, 0), Ttl::NEVER).expect("stored");
        caches.iter().for_each(|(_, cache)| assert!(cache.get(&key(n)).expect("answered").is_some()));
    }
    server.fill("fill");
    for n in 0..ITEMS {
        let is_there = server.plain.get(&key(n)).expect("answered").is_some();
        let (_, cache) = &caches[n % caches.len()];
        let expected = match n % 4 {
            0 => {
                let stored = cache.append(&key(n), b"!").expect("answered");
                assert_eq!(stored == Stored::Stored, is_there, "{n}");
                is_there.then(|| [value(n, 0), b"!".to_vec()].concat())
            }
            1 => {
                assert_eq!(cache.delete(&key(n)).expect("answered"), is_there, "{n}");
                None
            }
            2 => {
                cache.set(&key(n), &value(n, 1), Ttl::NEVER).expect("stored");
                Some(value(n, 1))
            }
            _ => {
                assert_eq!(cache.touch(&key(n), Ttl::NEVER).expect("answered"), is_there, "{n}");
                is_there.then(|| value(n, 0))
            }
        };
        for (mode, cache) in &caches {
            let found = cache.get(&key(n)).expect("answered").map(|item| item.value);
            assert!(found == expected, "{mode:?}: {n}");
        }
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn windows_mix_flash_and_memory_over_the_fabric() {
    let Some(server) = FlashServer::start("fabric-flash-windows") else { return };
    for n in 0..ITEMS {
        server.plain.set(&key(n), &value(n, 0), Ttl::NEVER).expect("stored");
    }
    server.fill("fill");
    for n in ITEMS..2 * ITEMS {
        server.plain.set(&key(n), &value(n, 0), Ttl::NEVER).expect("stored");
    }
    for mode in MODES {
        let cache = over(&server.address, options(mode));
        let mut missing = 0;
        // One from flash, one from memory.
        let numbers: Vec<usize> = (0..ITEMS).flat_map(|n| [n, ITEMS + n]).collect();
        for some in numbers.chunks(WINDOW) {
            let mut window: Vec<Request> = some.iter().map(|n| cache.iget(key(*n), Vec::new())).collect();
            for (n, request) in some.iter().zip(&mut window) {
                let completed = request.wait();
                match completed.result.expect("answered") {
                    Outcome::Found { .. } => assert!(completed.value == value(*n, 0), "{mode:?}: {n}"),
                    _ => missing += 1,
                }
            }
        }
        assert!(missing <= server.losses() + FALSE_MATCHES_MAX, "{mode:?}: {missing} are missing");
    }
}
