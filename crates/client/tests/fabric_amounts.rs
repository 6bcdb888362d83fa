//! Many bytes over the fabric, and many clients. `FABCACHE_PROVIDER` names libfabric's provider; `FABCACHE_LONG=1` runs
//! all of it.

mod common;

use std::process::Child;
use std::time::{Duration, Instant};

use common::fabric::{options, over, served};
use common::process::{Process, Server, again, patient, stat, wait_until};
use fabcache_client::{Client, FabricMode, Options, Outcome, Request, Ttl};
use fabcache_testbed::report::not_run;

const MIB: usize = 1 << 20;

fn is_long() -> bool {
    std::env::var_os("FABCACHE_LONG").is_some()
}

#[test]
#[ignore = "a server, run by the others"]
fn serve() {
    if std::env::var_os("FABCACHE_TEST_SOCKET").is_some() {
        common::process::serve();
    }
}

// ---- many bytes ----

/// Returns the word at this offset of a value: unique to the offset and the value.
fn word(value: usize, at: usize) -> u64 {
    ((value as u64) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(value: usize, bytes: &mut [u8]) {
    for (at, chunk) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *chunk = word(value, at).to_le_bytes();
    }
}

fn is_value(value: usize, bytes: &[u8]) -> bool {
    bytes.as_chunks::<8>().0.iter().enumerate().all(|(at, chunk)| *chunk == word(value, at).to_le_bytes())
}

/// Pairs of values of this size that are written and read back.
struct Pairs {
    name: String,
    mode: FabricMode,
    count: usize,
    bytes: usize,
    /// The number in flight; with one, each is awaited.
    window: usize,
}

impl Pairs {
    fn move_over(&self, address: &str) {
        let Pairs { name, mode, count, bytes, window } = self;
        let cache = over(address, Options { timeout: Duration::from_secs(300), ..options(*mode) });
        let (mut wrote, mut read) = (Duration::ZERO, Duration::ZERO);
        let mut values = vec![vec![0; *bytes]; *window];
        for first in (0..*count).step_by(*window) {
            let numbers = first..(first + window).min(*count);
            let keys: Vec<String> = numbers.clone().map(|number| format!("{name}-{number}")).collect();
            numbers.clone().zip(&mut values).for_each(|(number, value)| fill(number, value));
            let began = Instant::now();
            if *window == 1 {
                cache.set(keys[0].as_bytes(), &values[0], Ttl::NEVER).expect("stored");
            } else {
                let given = keys.iter().zip(std::mem::take(&mut values));
                let mut requests: Vec<Request> =
                    given.map(|(key, value)| cache.iset(key.as_str(), value, Ttl::NEVER)).collect();
                for request in &mut requests {
                    let completed = request.wait();
                    assert_eq!(completed.result.expect("stored"), Outcome::Stored);
                    values.push(completed.value);
                }
            }
            wrote += began.elapsed();
            // Old contents must not pass for a value.
            values.iter_mut().for_each(|value| value.fill(0));
            let began = Instant::now();
            if *window == 1 {
                let item = cache.get(keys[0].as_bytes()).expect("answered").expect("there");
                values[0] = item.value;
            } else {
                let given = keys.iter().zip(std::mem::take(&mut values));
                let mut requests: Vec<Request> =
                    given.map(|(key, value)| cache.iget(key.as_str(), value)).collect();
                for request in &mut requests {
                    let completed = request.wait();
                    assert!(matches!(completed.result, Ok(Outcome::Found { .. })), "{:?}", completed.result);
                    values.push(completed.value);
                }
            }
            read += began.elapsed();
            for (number, value) in numbers.zip(&mut values) {
                assert!(value.len() == *bytes && is_value(number, value), "{name}: pair {number}");
            }
            for key in &keys {
                assert!(cache.delete(key.as_bytes()).expect("answered"));
            }
            values.resize_with(*window, || vec![0; *bytes]);
        }
        let rate = |time: Duration| (count * bytes) as f64 / MIB as f64 / time.as_secs_f64();
        println!(
            "{name}: {count} pairs of {} KiB, {window} at a time: written at {:.0}, read at {:.0} MiB/s",
            bytes >> 10,
            rate(wrote),
            rate(read)
        );
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn megabytes_are_written_and_read_back() {
    let (_server, address, _path) = served("fabric-megabytes", "-m 256 -I 4m");
    let (count, rounds) = if is_long() { (512, 5) } else { (24, 1) };
    for round in 0..rounds {
        for (mode, window) in [(FabricMode::Auto, 1), (FabricMode::OneSided, 8)] {
            let name = format!("round-{round}-{mode:?}");
            Pairs { name, mode, count, bytes: MIB, window }.move_over(&address);
        }
    }
}

/// Five gigabytes in all.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn pairs_of_512_megabytes_are_written_and_read_back() {
    if !is_long() {
        return not_run(
            "pairs_of_512_megabytes_are_written_and_read_back",
            &"only FABCACHE_LONG=1 moves 5 GB",
        );
    }
    let (_server, address, _path) = served("fabric-pairs", "-m 1536 -I 600m");
    for (mode, count, window) in [
        (FabricMode::Request, 3, 1),
        (FabricMode::OneSided, 3, 1),
        (FabricMode::Request, 2, 2),
        (FabricMode::OneSided, 2, 2),
    ] {
        let name = format!("{mode:?}-{window}");
        Pairs { name, mode, count, bytes: 512 * MIB, window }.move_over(&address);
    }
}

// ---- many clients ----

const ADDRESS: &str = "FABCACHE_TEST_ADDRESS";
const CLIENTS: &str = "FABCACHE_TEST_CLIENTS";
const PROCESSES: usize = 4;
/// Maximum memory that all clients together may add to a fresh server: the buffers of each worker, untouched before …
const BUFFERS_KB: u64 = 14 << 10;
/// … and for each client at most 152 KiB, its connection, and libfabric's record of a peer.
const CLIENT_KB: u64 = 152 + 40;
const WORKERS: u64 = 2;
/// Freed memory that the allocator keeps.
const KEPT_KB: u64 = 8 << 10;

#[test]
#[ignore = "clients, run by the others"]
fn clients_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let count: usize = std::env::var(CLIENTS).expect("run by another test").parse().expect("a number");
    let pid = std::process::id();
    let clients: Vec<Client> = (0..count).map(|_| over(&address, options(FabricMode::Request))).collect();
    let key = |number: usize| format!("{pid}-{number}");
    for (number, cache) in clients.iter().enumerate() {
        // Some values travel in messages, some through memory.
        cache.set(key(number).as_bytes(), &value(number), Ttl::NEVER).expect("stored");
    }
    clients[0].incr_or_set(b"here", count as u64, count as u64, Ttl::NEVER).expect("counted");
    // All clients are connected at once, and each is served.
    while clients[0].get(b"leave").expect("answered").is_none() {
        for (number, cache) in clients.iter().enumerate() {
            let item = cache.get(key(number).as_bytes()).expect("answered").expect("there");
            assert!(item.value == value(number), "{number}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn value(number: usize) -> Vec<u8> {
    let mut value = vec![0; if number.is_multiple_of(4) { 160_000 } else { 800 }];
    fill(number, &mut value);
    value
}

/// Returns a process's anonymous resident memory in kilobytes.
fn resident_kb(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.0.0.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("on Linux");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
}

fn start_clients(address: &str, count: usize) -> Vec<Process> {
    let start = |_| -> Child {
        let mut command = again("clients_process");
        command.env(ADDRESS, address).env(CLIENTS, (count / PROCESSES).to_string());
        // By default a client's endpoint takes megabytes; two hundred exceed a small machine.
        command.env("FI_OFI_RXM_MSG_TX_SIZE", "8").env("FI_OFI_RXM_MSG_RX_SIZE", "8");
        command.spawn().expect("it starts")
    };
    (0..PROCESSES).map(|number| Process(start(number))).collect()
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn two_hundred_clients_use_the_documented_memory_and_leak_nothing() {
    let clients = if is_long() { 200 } else { 40 };
    let (server, address, path) = served("fabric-many", &format!("-t {WORKERS} -m 64"));
    let control = patient(&path.0);
    let one = over(&address, options(FabricMode::Request));
    one.set(b"one", &value(0), Ttl::NEVER).expect("stored");
    let buffers = || stat(&control, "fabcache", "fabric_buffer_bytes") >> 10;
    let (before_kb, before_buffers_kb) = (resident_kb(&server), buffers());
    let mut peaks = Vec::new();
    for round in 0..2 {
        control.delete(b"leave").expect("answered");
        control.delete(b"here").expect("answered");
        let began = Instant::now();
        let mut processes = start_clients(&address, clients);
        until_patiently("all clients are connected", || {
            assert!(
                processes.iter_mut().all(|process| process.0.try_wait().expect("a child").is_none()),
                "a client failed"
            );
            let here = control.get(b"here").expect("answered");
            here.is_some_and(|item| String::from_utf8_lossy(&item.value).trim() == clients.to_string())
        });
        let attached = stat(&control, "", "curr_connections");
        assert!(attached >= clients as u64, "{attached} connections");
        let (peak_kb, buffers_kb) = (resident_kb(&server), buffers());
        control.set(b"leave", b"", Ttl::NEVER).expect("stored");
        for process in &mut processes {
            // Half of the clients exit, the others are killed.
            let leaves = round == 0;
            let status = if leaves { process.0.wait().expect("a child") } else { process.kill() };
            assert!(status.success() || !leaves, "{status}");
        }
        wait_until("all links are closed", || stat(&control, "", "curr_connections") <= 4);
        let granted_kb = buffers_kb.saturating_sub(before_buffers_kb);
        let allowed_kb = before_kb + WORKERS * BUFFERS_KB + clients as u64 * CLIENT_KB;
        let after_kb = resident_kb(&server);
        println!(
            "{clients} clients in {:.1?}: the server had {before_kb} kB, has {peak_kb} kB with them, and {after_kb} kB after; \
             registered {before_buffers_kb} and {buffers_kb} kB",
            began.elapsed()
        );
        assert!(peak_kb <= allowed_kb, "{peak_kb} kB with {clients} clients, not {allowed_kb}");
        peaks.push((peak_kb, buffers_kb));
        // Used buffers stay for later clients; nothing of the clients stays.
        let kept_kb = before_kb + granted_kb + WORKERS * BUFFERS_KB + KEPT_KB;
        assert!(after_kb <= kept_kb, "{after_kb} kB after they have left, not {kept_kb}");
    }
    let [(first_kb, first_buffers_kb), (second_kb, second_buffers_kb)] = peaks[..] else {
        panic!("two rounds")
    };
    assert!(second_kb <= first_kb + KEPT_KB, "memory grows with clients that come and go: {peaks:?} kB");
    // Clients spread over the workers unevenly.
    assert!(second_buffers_kb <= first_buffers_kb + (WORKERS << 10), "buffers are not reused: {peaks:?} kB");
    assert!(one.get(b"one").expect("answered").expect("there").value == value(0));
}

fn until_patiently(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(240);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
