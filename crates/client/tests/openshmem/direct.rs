//! Clients of `--shm` read the keys of their PE from the heap, and request those of other PEs.

use std::time::{Duration, Instant};

use fabcache_client::{Client, FastGet, Options, Protocol, Request, SharedMemory, Transport, Ttl};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::openshmem::{Job, JobOptions};
use rustix::process::Signal;

use crate::common::process::{stat, wait_until};
use crate::jobs::{Owners, amount, options, pes, read_under_load, start, started_patient, through_all, unix};

const KEYS: usize = 20;
const LENGTHS: [usize; 6] = [0, 1, 100, 5_000, 100_000, 700_000];

/// Returns a client of a PE's socket that must read the memory.
fn reader(job: &Job, pe: usize) -> Client {
    let must_read = Options { shared_memory: SharedMemory::Required, ..options() };
    Client::new([unix(job, pe)], must_read).expect("an address")
}

/// Returns a value of the server's statistics that is no number.
fn word(client: &Client, name: &str) -> String {
    let stats = client.stats("fabcache").remove(0).expect("answered");
    stats.into_iter().find(|(stat, _)| stat == name).expect("reported").1
}

fn value(client: &Client, key: &str) -> Option<Vec<u8>> {
    client.get(key.as_bytes()).expect("answered").map(|item| item.value)
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn own_keys_are_read_without_requests() {
    let job = started_patient("-m 32 --shm");
    let owners = Owners::of(&job);
    for pe in 0..job.pes() {
        let client = reader(&job, pe);
        let own = owners.keys(pe, "own", LENGTHS.len());
        for (key, len) in own.iter().zip(LENGTHS) {
            client.set_with_flags(key.as_bytes(), &pattern(len, len), Ttl::NEVER, 9).expect("stored");
        }
        assert_eq!(client.transports(), [Some(Transport::SharedMemory)]);
        assert_eq!(word(&client, "region"), "symmetric");
        let before = stat(&client, "", "cmd_get");
        let mut found = Vec::new();
        for _ in 0..50 {
            for (key, len) in own.iter().zip(LENGTHS) {
                let item = client.get(key.as_bytes()).expect("read").expect("there");
                assert!(item.value == pattern(len, len) && item.flags == 9 && item.cas > 0, "{len}");
            }
            let many = client.get_many(&own).expect("keys");
            assert!(
                many.items
                    .iter()
                    .zip(LENGTHS)
                    .all(|(item, len)| { item.as_ref().is_some_and(|item| item.value == pattern(len, len)) })
            );
        }
        assert_eq!(stat(&client, "", "cmd_get"), before, "the server saw none of them");
        assert!(stat(&client, "fabcache", "accesses_outside") > 0, "but received reports of some");
        // Whether the PE has a key of another one, its memory does not say.
        for key in owners.keys((pe + 1) % job.pes(), "other", 3) {
            client.set(key.as_bytes(), b"theirs", Ttl::NEVER).expect("stored");
            assert_eq!(client.try_fast(key.as_bytes(), &mut found).expect("a key"), FastGet::Unknown);
            assert_eq!(value(&client, &key).as_deref(), Some(&b"theirs"[..]), "{key}");
        }
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn changes_through_other_pes_are_read_at_once() {
    let job = started_patient("-m 32 --shm");
    let owners = Owners::of(&job);
    let clients: Vec<Client> = (0..job.pes()).map(|pe| reader(&job, pe)).collect();
    for owner in 0..job.pes() {
        for (number, key) in owners.keys(owner, "key", KEYS).iter().enumerate() {
            let writer = &clients[number % clients.len()];
            for len in [10, 20_000, 3] {
                writer.set(key.as_bytes(), &pattern(number, len), Ttl::NEVER).expect("stored");
                for client in &clients {
                    assert!(value(client, key) == Some(pattern(number, len)), "{key}: {len} bytes");
                    let many = client.get_many(&[key.as_str(), "none"]).expect("keys");
                    assert!(many.items[0].as_ref().is_some_and(|item| item.value == pattern(number, len)));
                    assert!(many.items[1].is_none() && many.failed.is_empty());
                }
            }
            assert!(writer.delete(key.as_bytes()).expect("answered"), "{key}");
            clients.iter().for_each(|client| assert_eq!(value(client, key), None, "{key}"));
            writer.set(key.as_bytes(), b"again", Ttl::NEVER).expect("stored");
        }
    }
    clients[0].flush(0).expect("flushed");
    for (owner, client) in clients.iter().enumerate() {
        for key in owners.keys(owner, "key", KEYS) {
            assert_eq!(value(client, &key), None, "{key} was flushed");
        }
    }
}

/// Requests in flight: the keys of all PEs, and reads behind the writes before them.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn requests_in_flight_find_the_writes_before_them() {
    let job = started_patient("-m 32 --shm");
    let client = reader(&job, 0);
    let keys: Vec<String> = (0..60).map(|number| format!("key{number}")).collect();
    for round in 0..amount(30, 1000) {
        let written = format!("{round}");
        let sets: Vec<Request> =
            keys.iter().map(|key| client.iset(key.as_bytes(), written.as_bytes(), Ttl::NEVER)).collect();
        let gets: Vec<Request> = keys.iter().map(|key| client.iget(key.as_bytes(), Vec::new())).collect();
        sets.into_iter().for_each(|mut set| drop(set.wait().item().expect("stored")));
        for (key, mut get) in keys.iter().zip(gets) {
            let item = get.wait().item().expect("answered");
            assert!(item.is_some_and(|item| item.value == written.as_bytes()), "{key} in round {round}");
        }
        let gets: Vec<Request> = keys.iter().map(|key| client.iget(key.as_bytes(), Vec::new())).collect();
        for (key, mut get) in keys.iter().zip(gets) {
            let item = get.wait().item().expect("answered");
            assert!(item.is_some_and(|item| item.value == written.as_bytes()), "{key} in round {round}");
        }
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn direct_reads_are_right_under_load() {
    let job = started_patient("-m 16 --shm");
    read_under_load(&job, |pe| reader(&job, pe), |pe| vec![(pe + 1) % job.pes()]);
}

/// The memory stays mapped, but nobody maintains it.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn killed_pe_is_not_read() {
    let mut job = start(&JobOptions::new(pes()).launcher("--enable-recovery").server("-m 32 --shm"));
    let killed = job.pes() - 1;
    let key = Owners::of(&job).keys(killed, "key", 1).remove(0);
    let client = reader(&job, killed);
    client.set(key.as_bytes(), b"value", Ttl::NEVER).expect("stored");
    assert_eq!(value(&client, &key).as_deref(), Some(&b"value"[..]));
    job.signal(killed, Signal::KILL);
    wait_until("its client notices", || client.get(key.as_bytes()).is_err());
    let began = Instant::now();
    let mut found = Vec::new();
    while began.elapsed() < Duration::from_millis(200) {
        assert!(client.get(key.as_bytes()).is_err(), "an item of a server that is gone");
        assert_eq!(client.try_fast(key.as_bytes(), &mut found).expect("a key"), FastGet::Unknown);
    }
    for pe in 0..killed {
        job.signal(pe, Signal::TERM);
    }
    assert!(job.wait(Duration::from_secs(30)).is_some(), "the others do not stop{}", job.output_tail());
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn clients_get_a_channel_where_the_heap_cannot_be_mapped() {
    let system_v = JobOptions::new(pes()).environment("UCX_ALLOC_PRIO", "md:sysv,thp,md:*,mmap,heap");
    let job = start(&system_v.server("-m 32 --shm"));
    for (pe, client) in through_all(&job).iter().enumerate() {
        let key = format!("key{pe}");
        client.set(key.as_bytes(), b"value", Ttl::NEVER).expect("stored");
        assert_eq!(value(client, &key).as_deref(), Some(&b"value"[..]));
        assert_eq!(word(client, "region"), "unshared");
        assert!(
            matches!(&client.transports()[..], [Some(Transport::Channel { why })] if why.contains("not a file"))
        );
    }
    assert!(job.output_tail().contains("clients cannot map the symmetric heap"), "{}", job.output_tail());
}

/// Clients of every protocol share the memory.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn clients_of_all_protocols_read_it() {
    let job = started_patient("-m 32 --shm");
    for protocol in [Protocol::Auto, Protocol::Meta, Protocol::Binary, Protocol::Text] {
        let options = Options { protocol, shared_memory: SharedMemory::Required, ..options() };
        let client = Client::new([unix(&job, 0)], options).expect("an address");
        for key in ["a", "b", "c", "d"] {
            client.set(key.as_bytes(), key.as_bytes(), Ttl::NEVER).expect("stored");
            assert_eq!(value(&client, key).as_deref(), Some(key.as_bytes()), "{protocol:?}");
        }
        assert_eq!(client.transports(), [Some(Transport::SharedMemory)], "{protocol:?}");
    }
}
