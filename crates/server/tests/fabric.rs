//! Refusals of the fabric and their reasons; servers without a fabric.

mod common;

use std::io::{Read, Write};

use common::process::{fabcached, spawn, start_without_libfabric};
use common::{Client, Scratch, connect, connect_unix, packet, serve, try_serve};
use fabcache_fabric::channel::CHANNEL_VERSION;
use fabcache_layout::format::FORMAT_VERSION;

const HELLO: u8 = 0xa1;
const ATTACH: u8 = 0xa2;
const INVALID: u16 = 0x04;

/// Plausible words of a client's endpoint.
const END: &str = "AgAAAH8AAAEAAAAAAAAAAA== ff 8 0 1 65536 0 2 65536";

fn hello() -> String {
    format!("{CHANNEL_VERSION} {FORMAT_VERSION}")
}

/// Asserts that both commands are refused for the same reason, in lines and packets, and that the connection stays
/// usable.
#[track_caller]
fn refused<S: Read + Write>(c: &mut Client<S>, why: &str) {
    c.request(format!("fabric hello {}\r\n", hello()), format!("{why}\r\n"));
    c.request(format!("fabric attach {END}\r\n"), format!("{why}\r\n"));
    c.request("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn fabric_is_off_by_default() {
    let server = serve("");
    let mut c = server.connect();
    refused(&mut c, "CLIENT_ERROR the fabric is off; start the server with --fabric");
    let mut d = server.connect();
    for (opcode, words) in [(HELLO, hello()), (ATTACH, END.to_owned())] {
        d.say(packet(opcode, b"", b"", words.as_bytes(), 0));
        let answer = d.hear_packet();
        assert_eq!((answer.opcode, answer.status), (opcode, INVALID));
        assert_eq!(answer.value, b"the fabric is off; start the server with --fabric");
    }
    assert_eq!(c.count("fabcache", "fabric_refused"), 4);
    assert_eq!(c.count("fabcache", "fabric_attached"), 0);
    assert_eq!(
        (c.count("fabcache", "fabric_region_bytes"), c.count("fabcache", "fabric_buffer_bytes")),
        (0, 0)
    );
    assert_eq!(c.stat("settings", "fabric"), "no");
    c.request("fabric hello\r\n", "CLIENT_ERROR bad command line format\r\n");
    c.request("fabric\r\n", "ERROR\r\n");
}

#[test]
fn only_listed_networks_get_a_hello() {
    let server = start_without_libfabric("--fabric --fabric-peers 192.0.2.0/24,2001:db8::1");
    let mut c = connect(server.address());
    refused(&mut c, "CLIENT_ERROR the fabric is not for this address; see --fabric-peers");
    assert_eq!(c.stat("settings", "fabric"), "auto");
    assert_eq!(c.stat("settings", "fabric_peers"), "192.0.2.0/24,2001:db8::1/128");
    assert_eq!(c.stat("settings", "fabric_receives"), "1024");
}

#[test]
fn only_tcp_clients_may_switch_to_the_fabric() {
    let scratch = Scratch::new("fabric-ways");
    let path = scratch.path("socket");
    let server = start_without_libfabric(&format!("--fabric -s {}", path.display()));
    refused(&mut connect_unix(&path), "CLIENT_ERROR the fabric is for clients that come by TCP only");
    let error = format!("{:#}", try_serve(&format!("--fabric -s {}", path.display())).err().expect("no TCP"));
    assert!(error.contains("TCP address without TLS"), "{error}");
    drop(server);
}

#[test]
fn unauthenticated_client_gets_no_fabric() {
    let scratch = Scratch::new("fabric-users");
    let users = scratch.file("users", "ann:secret\n");
    let server = start_without_libfabric(&format!("--fabric -Y {0} -S --sasl-pwdb {0}", users.display()));
    let mut c = connect(server.address());
    for line in [format!("fabric hello {}\r\n", hello()), format!("fabric attach {END}\r\n")] {
        c.request(line, "CLIENT_ERROR unauthenticated\r\n");
    }
    c.request("set any 0 0 10\r\nann secret\r\n", "STORED\r\n");
    c.say(format!("fabric hello {}\r\n", hello()));
    let why = c.hear_until("\r\n");
    assert!(why.starts_with("SERVER_ERROR there is no fabric: "), "{why}");
    let mut d = connect(server.address());
    d.say(packet(HELLO, b"", b"", hello().as_bytes(), 0));
    assert_eq!(d.hear_packet().status, 0x20);
    d.hear_end();
}

#[test]
fn named_fabric_that_is_unavailable_ends_the_start() {
    // They are refused with libfabric and without it.
    for named in ["nobodys", "nobodys,none0", "auto,none0"] {
        let mut process = spawn(fabcached(&format!("-l 127.0.0.1 -p -1 --fabric {named}")));
        assert!(!process.wait().success(), "{named}");
        let log = process.log();
        for needle in [&format!("cannot start the fabric --fabric {named}"), "--fabric auto"] {
            assert!(log.contains(needle), "{log}");
        }
    }
}

#[test]
fn server_runs_without_libfabric() {
    let process = start_without_libfabric("--fabric");
    assert!(process.log().contains("cannot start the fabric listener (--fabric)"), "{}", process.log());
    assert!(process.log().contains("libfabric1"), "{}", process.log());
    let mut c = connect(process.address());
    c.say(format!("fabric hello {}\r\n", hello()));
    let why = c.hear_until("\r\n");
    assert!(why.starts_with("SERVER_ERROR there is no fabric: ") && why.contains("libfabric1"), "{why}");
    c.request("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn file_and_command_line_give_the_same_settings() {
    let scratch = Scratch::new("fabric-file");
    let file = scratch.file(
        "config.toml",
        "fabric = true\nfabric-peers = [\"local\", \"10.0.0.0/8\"]\nfabric-receives = 64\n",
    );
    let process = start_without_libfabric(&format!("--config {}", file.display()));
    let mut c = connect(process.address());
    for (name, value) in [("fabric", "auto"), ("fabric_peers", "local,10.0.0.0/8"), ("fabric_receives", "64")]
    {
        assert_eq!(c.stat("settings", name), value, "{name}");
    }
}
