//! A worker's fabric endpoint that fails while the server runs.
//!
//! Failures cannot be injected, so the server gets work that it cannot survive: reads of the memory of stopped clients.
//! libfabric does not end these reads when the clients are cut off, unless the environment says so. Servers set that
//! variable, but not this server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use fabcache_client::{FabricMode, Options, Ttl};
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_testbed::report::not_run;

use super::common::client;
use super::common::fabric::{is_one_sided, options, over, provider, served_with};
use super::common::process::{Process, again, patient, stat, until_up, wait_until};
use super::{ADDRESS, Passage, on_fabric};

/// The environment variable that servers set for libfabric.
const CLEANUP: &str = "FI_AV_REMOVE_CLEANUP";
/// Two reads per sender exceed thrice the tolerated number; some may not have started yet, or have ended.
const SENDERS: usize = 14;

/// Sends the start of a value, as much as fits the memory that the server reads, and then stops polling its endpoint,
/// which would serve the reads.
#[test]
#[ignore = "a client, run by the others"]
fn sender_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let cache = over(&address, options(FabricMode::Request));
    cache.set(b"short", b"", Ttl::NEVER).expect("stored");
    let _request = cache.iset("long", vec![7; 32 << 20], Ttl::NEVER);
    let key = std::process::id().to_string();
    client(&address).set(key.as_bytes(), b"", Ttl::NEVER).expect("stored");
    loop {
        std::thread::park();
    }
}

/// Requests the fabric over a connection.
fn hello(socket: &mut BufReader<TcpStream>) -> String {
    let line = format!("fabric hello {} {FORMAT_VERSION}\r\n", fabcache_fabric::channel::CHANNEL_VERSION);
    socket.get_mut().write_all(line.as_bytes()).expect("it takes it");
    let mut answer = String::new();
    socket.read_line(&mut answer).expect("it answers");
    answer
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn failed_endpoint_is_reopened_and_its_clients_reconnect() {
    if !provider().starts_with("tcp") {
        return not_run(
            "failed_endpoint_is_reopened_and_its_clients_reconnect",
            &format!("{} reads memory of stopped processes, or ends such reads", provider()),
        );
    }
    let (server, address, path) = served_with("fabric-failing", "-t 1 -m 512 -I 64m", |command| {
        command.env_remove(CLEANUP);
    });
    let control = patient(&path.0);
    let mut requested =
        BufReader::new(TcpStream::connect(address.trim_start_matches("tcp://")).expect("it listens"));
    assert!(hello(&mut requested).starts_with("FABRIC "));
    let soon = Options { retry_after: Duration::from_millis(1), ..options(FabricMode::Request) };
    let cache = over(
        &address,
        Options { timeout: Duration::from_secs(5), connect_timeout: Duration::from_secs(5), ..soon },
    );
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
    let passage = Passage::to(&address);
    let sender = |_| again("failing_port::sender_process").env(ADDRESS, &passage.address).spawn();
    let senders: Vec<Process> =
        (0..SENDERS).map(|number| Process(sender(number).expect("it starts"))).collect();
    for sender in &senders {
        let key = sender.0.id().to_string();
        wait_until("the value is being read", || control.get(key.as_bytes()).expect("answered").is_some());
    }
    // Each sender's long value is still to be read: its read starts after the short value is stored.
    std::thread::sleep(Duration::from_secs(1));
    // Exhaust the descriptors, so that the endpoint cannot be reopened yet.
    server.allow_descriptors(3);
    let ports = || stat(&control, "fabcache", "fabric_ports");
    assert_eq!((ports(), stat(&control, "fabcache", "fabric_failures")), (1, 0));
    passage.cut();
    wait_until("the endpoint fails", || stat(&control, "fabcache", "fabric_failures") == 1);
    assert_eq!((ports(), on_fabric(&control)), (0, 0), "all its clients are cut off");
    let between = "SERVER_ERROR the fabric has failed and is being opened again; try in a while, or on another \
                   connection\r\n";
    assert_eq!(hello(&mut requested), between);
    let error = cache.get(b"key").expect_err("no connection can be opened");
    println!("meanwhile: {error}");
    assert_eq!(ports(), 0, "the endpoint cannot be reopened");
    server.allow_descriptors(1000);
    wait_until("the endpoint is reopened", || ports() == 1);
    assert!(hello(&mut requested).starts_with("FABRIC "));
    until_up(|| cache.set(b"next", b"other", Ttl::NEVER).is_ok());
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
    is_one_sided(&cache);
    assert_eq!(on_fabric(&control), 1, "the client uses the fabric");
    drop(senders);
    assert_eq!(stat(&control, "fabcache", "fabric_failures"), 1);
}
