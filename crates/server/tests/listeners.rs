//! Several listeners with their own options.

mod common;

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use common::{Scratch, TestServer, connect, packet, serve, try_serve};
use fabcache_server::options::Options;
use fabcache_server::{Server, Settings};

#[test]
fn one_server_listens_at_many_addresses() {
    let server = serve("-p -1 -l 127.0.0.1,127.0.0.2 -l [::1]:0,127.0.0.3:0");
    let addresses = server.addresses();
    assert_eq!(addresses.len(), 4);
    assert!(addresses[2].is_ipv6());
    connect(addresses[0]).request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    for address in addresses {
        connect(address).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
}

#[test]
fn server_may_listen_nowhere() {
    let server = serve("-p 0");
    assert!(server.addresses().is_empty());
    server.stop();
    assert_eq!(serve("-U -1 -p -1").addresses().len(), 2);
}

#[test]
fn workers_may_have_their_own_listeners() {
    let server = serve("--accept local -t 3");
    assert_eq!(server.addresses().len(), 1, "three listeners share one address");
    let listening =
        server.connect().stats("conns").into_iter().filter(|(_, state)| state == "conn_listening");
    assert_eq!(listening.count(), 3);
    for _ in 0..30 {
        server.connect().request("mn\r\n", "MN\r\n");
    }
}

#[test]
fn new_connections_go_to_the_least_loaded_worker() {
    let server = serve("-t 4");
    let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.request("mn\r\n", "MN\r\n");
    }
    for worker in 0..4 {
        let load = clients[0].count("fabcache", &format!("worker:{worker}:connections"));
        assert!((8..=12).contains(&load), "{load}");
    }
}

#[test]
fn listeners_have_their_own_protocol_and_authentication() {
    let scratch = Scratch::new("listeners");
    let users = scratch.file("users", "ann:secret\n");
    let flags = format!(
        "-p -1 -Y {} -l 127.0.0.1,noauth:127.0.0.2,noauth:proto[ascii]:tag[text]:127.0.0.3,noauth:proto[binary]:127.0.0.4",
        users.display()
    );
    let server = serve(&flags);
    let at = server.addresses();
    connect(at[0]).request("mn\r\n", "CLIENT_ERROR unauthenticated\r\n");
    connect(at[1]).request("mn\r\n", "MN\r\n");
    connect(at[2]).request("mn\r\n", "MN\r\n");
    let version = packet(0x0b, &[], &[], &[], 0);
    for address in [at[1], at[3]] {
        let mut c = connect(address);
        c.say(&version);
        assert_eq!(c.hear_packet().status, 0);
    }
    let mut c = connect(at[3]);
    c.say("mn\r\n");
    c.hear_end();
    let mut c = connect(at[2]);
    c.say([&version[..], b"\r\n"].concat());
    c.hear("ERROR\r\n");
}

#[test]
fn configuration_file_describes_listeners() {
    let scratch = Scratch::new("tables");
    let path = scratch.path("socket");
    let file = scratch.file(
        "config.toml",
        &format!(
            "[[listener]]\naddress = \"tcp://127.0.0.1:0\"\nprotocol = \"ascii\"\n\
             [[listener]]\naddress = \"udp://127.0.0.1:0\"\n\
             [[listener]]\naddress = \"unix://{}\"\nmask = \"770\"\n",
            path.display()
        ),
    );
    let options = Options::from_file(&file).expect("a valid file");
    let settings = Settings::new(&options, &|_| None).expect("valid settings");
    let server = TestServer::of(Server::start(settings, Vec::new()).expect("the server starts"));
    let addresses: Vec<SocketAddr> = server.addresses();
    connect(addresses[0]).request("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    common::UdpClient::new(addresses[1]).request(1, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    common::connect_unix(&path).request("get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn first_answer_comes_after_a_killed_servers_lease() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("a bound socket");
    let mut settings = Settings::new(&Options::default(), &|_| None).expect("valid settings");
    // Longer than a start without the wait takes.
    settings.lease = Duration::from_secs(2);
    let lease = settings.lease;
    let began = Instant::now();
    let client = thread::spawn(move || {
        connect(address).request("mn\r\n", "MN\r\n");
        began.elapsed()
    });
    let server = TestServer::of(Server::start(settings, vec![listener.into()]).expect("the server starts"));
    let answered = client.join().expect("answered");
    assert!(answered >= lease, "answered {answered:?} after the start, within a lease of {lease:?}");
    drop(server);
}

#[test]
fn port_in_use_error_suggests_a_remedy() {
    let server = serve("");
    let address = server.address();
    let error = format!("{:#}", try_serve(&format!("-l {address}")).err().expect("the port is in use"));
    assert!(
        error.contains(&address.to_string()) && error.contains("another server listens there"),
        "{error}"
    );
    assert!(error.contains("-p"), "{error}");
    // An address of another host.
    let error = format!("{:#}", try_serve("-l 192.0.2.1:0").err().expect("the address is not local"));
    assert!(error.contains("192.0.2.1"), "{error}");
}
