//! Each PE gives its Unix clients the items of all PEs, and its TCP clients those of its shard.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;

use fabcache_client::{Client, Distribution, Error, Failure, Options, Protocol, Ttl};
use fabcache_testbed::openshmem::Job;
use fabcache_testbed::wait::time_max;

use crate::jobs::{Owners, options, started_patient, through_all};

const REFUSAL: &str = "this key belongs to another server of the job";

fn set_all(client: &Client, count: usize) {
    for number in 0..count {
        let (key, value) = (format!("key{number}"), format!("value{number}"));
        client.set(key.as_bytes(), value.as_bytes(), Ttl::NEVER).expect("stored");
    }
}

/// Returns how many of the items of [`set_all`] are there.
fn count_all(client: &Client, count: usize) -> usize {
    let keys: Vec<String> = (0..count).map(|number| format!("key{number}")).collect();
    let many = client.get_many(&keys).expect("keys");
    assert!(many.failed.is_empty(), "{:?}", many.failed);
    for (number, item) in many.items.iter().enumerate() {
        let is_right = item.as_ref().is_none_or(|item| item.value == format!("value{number}").as_bytes());
        assert!(is_right, "{number}: {item:?}");
    }
    many.items.iter().flatten().count()
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn own_writes_are_read_through_any_pe() {
    let job = started_patient("-m 32");
    let clients = through_all(&job);
    for round in 0..60 {
        for (pe, client) in clients.iter().enumerate() {
            let key = format!("key{}", round % 20);
            let value = format!("{round} through {pe}");
            client.set(key.as_bytes(), value.as_bytes(), Ttl::NEVER).expect("stored");
            // By the same connection, and then by others.
            for reader in [client].into_iter().chain(&clients) {
                let item = reader.get(key.as_bytes()).expect("answered").expect("there");
                assert_eq!(String::from_utf8_lossy(&item.value), value, "{key}");
            }
        }
    }
}

/// Requests that wait for no answer are executed in order: a read finds what was written before it.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn pipelined_reads_find_the_writes_before_them() {
    const KEYS: usize = 20;
    const ROUNDS: usize = 100;
    let job = started_patient("-m 32");
    for pe in 0..job.pes() {
        let stream = UnixStream::connect(job.socket(pe)).expect("the PE listens");
        let (mut requests, mut expected) = (String::new(), String::new());
        for round in 0..ROUNDS {
            for number in 0..KEYS {
                let (key, value) = (format!("key{number}"), format!("{round:04} through {pe}"));
                let noreply = if number % 2 == 0 { " noreply" } else { "" };
                requests += &format!("set {key} 0 0 {}{noreply}\r\n{value}\r\nget {key}\r\n", value.len());
                let stored = if number % 2 == 0 { "" } else { "STORED\r\n" };
                expected += &format!("{stored}VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
            }
        }
        let mut sending = stream.try_clone().expect("a descriptor");
        let sender = thread::spawn(move || sending.write_all(requests.as_bytes()).expect("sent"));
        stream.set_read_timeout(Some(time_max())).expect("a time");
        let mut came = BufReader::new(stream).lines();
        for expected in expected.lines() {
            let came = came.next().expect("the connection goes on").expect("answered");
            assert_eq!(came, expected, "through PE {pe}");
        }
        sender.join().expect("no panic");
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn flush_all_covers_all_pes() {
    const COUNT: usize = 200;
    let job = started_patient("-m 32");
    let clients = through_all(&job);
    for protocol in [Protocol::Text, Protocol::Meta, Protocol::Binary] {
        for pe in 0..job.pes() {
            set_all(&clients[0], COUNT);
            assert_eq!(count_all(&clients[pe], COUNT), COUNT);
            let flushing = Client::new([crate::jobs::unix(&job, pe)], Options { protocol, ..options() });
            flushing.expect("an address").flush(0).expect("flushed");
            for client in &clients {
                assert_eq!(count_all(client, COUNT), 0, "{protocol:?} through PE {pe}");
            }
        }
    }
}

/// Returns the answer to a request of one line, or of a line and a value.
fn answer(job: &Job, pe: usize, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(job.address(pe)).expect("the PE listens");
    stream.write_all(request).expect("sent");
    // The connection goes on after a refusal.
    stream.write_all(b"version\r\n").expect("sent");
    let lines = BufReader::new(stream).lines().map(|line| line.expect("answered"));
    lines.take_while(|line| !line.starts_with("VERSION")).collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn tcp_clients_get_one_shard() {
    let job = started_patient("-m 32");
    let owners = Owners::of(&job);
    let clients = through_all(&job);
    for number in 0..40 {
        let key = format!("key{number}");
        clients[0].set(key.as_bytes(), b"5", Ttl::NEVER).expect("stored");
        let long = format!("set {key} 0 0 100000\r\n{}\r\n", "x".repeat(100_000));
        let requests = [
            (format!("get {key}\r\n"), format!("VALUE {key} 0 1\n5\nEND")),
            (format!("mg {key} v\r\n"), "VA 1\n5".into()),
            (format!("incr {key} 1\r\n"), "6".into()),
            (format!("touch {key} 100\r\n"), "TOUCHED".into()),
            (format!("set {key} 0 0 1\r\n8\r\n"), "STORED".into()),
            (format!("ms {key} 1\r\n9\r\n"), "HD".into()),
            (long, "STORED".into()),
            (format!("delete {key}\r\n"), "DELETED".into()),
        ];
        for (pe, client) in clients.iter().enumerate() {
            let is_owner = owners.owner(&key) == pe;
            for (request, expected) in &requests {
                let came = answer(&job, pe, request.as_bytes());
                let is_right = if is_owner {
                    came == *expected
                } else {
                    came.starts_with("SERVER_ERROR ") && came.contains(REFUSAL)
                };
                assert!(is_right, "{request:.60?} at PE {pe} of {}: {came:?}", owners.owner(&key));
            }
            let left = client.get(key.as_bytes()).expect("answered");
            assert_eq!(left.is_some(), pe < owners.owner(&key), "only its PE has deleted {key}");
        }
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn binary_tcp_clients_get_one_shard() {
    let job = started_patient("-m 32");
    let owners = Owners::of(&job);
    let binary = Options { protocol: Protocol::Binary, ..options() };
    for pe in 0..job.pes() {
        let client = Client::new([format!("tcp://{}", job.address(pe))], binary.clone()).expect("an address");
        for number in 0..40 {
            let key = format!("key{number}");
            for value in [&b"value"[..], &[7; 100_000]] {
                let stored = client.set(key.as_bytes(), value, Ttl::NEVER);
                if owners.owner(&key) == pe {
                    stored.expect("it is the key's PE");
                    assert_eq!(client.get(key.as_bytes()).expect("answered").expect("there").value, value);
                } else {
                    let is_refusal = matches!(
                        &stored,
                        Err(Error::Server { failure: Failure::Refused(why), .. }) if why.contains(REFUSAL)
                    );
                    assert!(is_refusal, "{key} at PE {pe}: {stored:?}");
                }
            }
        }
    }
}

/// Clients over TCP that map keys by the PEs' names see the same cache.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn clients_that_map_keys_alike_see_the_same_cache_over_tcp() {
    const COUNT: usize = 300;
    let job = started_patient("-m 32");
    let addresses: Vec<String> = (0..job.pes()).map(|pe| format!("tcp://{}", job.address(pe))).collect();
    let mapped = Options { distribution: Distribution::Ketama, ..options() };
    let over_tcp = Client::new(&addresses, mapped).expect("addresses");
    set_all(&over_tcp, COUNT);
    for client in through_all(&job) {
        assert_eq!(count_all(&client, COUNT), COUNT);
        client.flush(0).expect("flushed");
        assert_eq!(count_all(&over_tcp, COUNT), 0);
        set_all(&client, COUNT);
        assert_eq!(count_all(&over_tcp, COUNT), COUNT);
    }
}
