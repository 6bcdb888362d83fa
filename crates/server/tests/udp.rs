//! All protocols over UDP.

mod common;

use std::net::SocketAddr;

use common::{Scratch, TestServer, UdpClient, packet, serve};

/// Starts a server on TCP and UDP, with a client of each.
fn both(flags: &str) -> (TestServer, common::Client<std::net::TcpStream>, UdpClient) {
    let server = serve(&format!("-U -1 {flags}"));
    let addresses = server.addresses();
    let (tcp, udp) = (common::connect(addresses[0]), UdpClient::new(addresses[1]));
    (server, tcp, udp)
}

#[test]
fn text_meta_and_binary_are_answered() {
    let (_server, _tcp, udp) = both("");
    udp.request(1, "set a 5 0 5\r\nhello\r\n", "STORED\r\n");
    udp.request(2, "get a missing\r\n", "VALUE a 5 5\r\nhello\r\nEND\r\n");
    udp.request(
        0xffff,
        "get a\r\nincr n 1\r\nversion\r\n",
        "VALUE a 5 5\r\nhello\r\nEND\r\nNOT_FOUND\r\nVERSION 1.6.45\r\n",
    );
    udp.request(0, "mg a v s O7\r\nmg missing v q\r\nmn\r\n", "VA 5 s5 O7\r\nhello\r\nMN\r\n");
    udp.request(3, "ms b 2 c\r\nhi\r\n", "HD c2\r\n");
    udp.say(4, packet(0x00, &[], b"a", &[], 0));
    let answer = udp.hear(4);
    assert_eq!((answer[0], &answer[6..8], &answer[28..]), (0x81, &[0, 0][..], &b"hello"[..]));
    udp.request(5, "nonsense\r\n", "ERROR\r\n");
}

#[test]
fn long_reply_spans_numbered_datagrams() {
    let (_server, mut tcp, udp) = both("");
    let value: String = (0..30_000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    tcp.say(format!("set long 0 0 {}\r\n{value}\r\n", value.len()));
    tcp.hear("STORED\r\n");
    udp.say(77, "get long\r\n");
    let datagrams = udp.hear_datagrams(77);
    let expected = format!("VALUE long 0 30000\r\n{value}\r\nEND\r\n");
    assert_eq!(datagrams.len(), expected.len().div_ceil(1392));
    let (last, full) = datagrams.split_last().expect("some datagrams");
    assert!(full.iter().all(|datagram| datagram.len() == 1392) && last.len() <= 1392);
    assert_eq!(datagrams.concat(), expected.as_bytes());
}

#[test]
fn invalid_datagrams_are_dropped() {
    // One worker keeps datagrams in order.
    let (_server, _tcp, udp) = both("-t 1");
    let dropped: &[&[u8]] = &[
        b"",
        b"\0",
        b"\0\x01\0\0\0\x01\0",
        b"\0\x01\0\0\0\x01\0\0",
        b"\0\x01\0\0\0\0\0\0version\r\n",
        b"\0\x01\0\0\0\x02\0\0version\r\n",
        b"\0\x01\0\x01\0\x02\0\0version\r\n",
        b"version\r\n",
    ];
    for datagram in dropped {
        udp.0.send(datagram).expect("loopback");
    }
    // Incomplete requests, and requests without a reply.
    for (id, request) in
        [(2, "get a"), (3, "set a 0 0 5\r\nhel"), (4, "set a 0 0 5 noreply\r\nhello\r\n"), (5, "quit\r\n")]
    {
        udp.say(id, request);
    }
    // The first reply is to the last request.
    udp.request(9, "get a\r\n", "VALUE a 0 5\r\nhello\r\nEND\r\n");
}

#[test]
fn request_must_fill_one_datagram() {
    let (_server, mut tcp, udp) = both("");
    let value = vec![b'v'; 60_000];
    udp.request(1, [b"set big 0 0 60000\r\n", &value[..], b"\r\n"].concat(), "STORED\r\n");
    tcp.say("get big\r\n");
    tcp.hear([b"VALUE big 0 60000\r\n", &value[..], b"\r\nEND\r\n"].concat());
    let keys = "k ".repeat(30_000);
    udp.request(2, format!("get {keys}\r\n"), "END\r\n");
}

#[test]
fn reply_too_long_for_datagrams_is_harmless() {
    let (_server, mut tcp, udp) = both("-t 1 -I 2m");
    let value = "x".repeat(1 << 20);
    tcp.say(format!("set a 0 0 {}\r\n{value}\r\n", value.len()));
    tcp.hear("STORED\r\n");
    // Some megabytes: more than a connection may queue. Most of it is lost, as the client does not read.
    udp.say(1, "get a a a\r\n");
    // More than a reply may have.
    udp.say(2, format!("get {}\r\n", "a ".repeat(20_000)));
    tcp.request("mn\r\n", "MN\r\n");
    UdpClient::new(udp.0.peer_addr().expect("connected")).request(3, "mn\r\n", "MN\r\n");
    assert_eq!(tcp.stat("fabcache", "segments_pinned"), "0");
}

#[test]
fn connection_commands_are_rejected() {
    let (_server, mut tcp, udp) = both("");
    for id in 0..30 {
        udp.request(id, "watch fetchers\r\n", "CLIENT_ERROR a watcher needs a connection\r\n");
    }
    udp.request(40, "lru_crawler metadump all\r\n", "CLIENT_ERROR a dump needs a connection\r\n");
    assert_eq!(tcp.stat("", "log_watchers"), "0");
    assert_eq!(tcp.stat("", "curr_connections"), "1");
}

#[test]
fn many_clients_of_both_families_are_served() {
    let server = serve("-p 0 -U -1 -l 127.0.0.1,::1 -t 4");
    let addresses: Vec<SocketAddr> = server.addresses();
    assert_eq!((addresses.len(), addresses[1].is_ipv6()), (2, true));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let address = addresses[client % 2];
            scope.spawn(move || {
                let udp = UdpClient::new(address);
                for id in 0..200 {
                    udp.request(id, format!("set k{client} 0 0 3\r\n{id:03}\r\n"), "STORED\r\n");
                    udp.request(
                        id,
                        format!("get k{client}\r\n"),
                        format!("VALUE k{client} 0 3\r\n{id:03}\r\nEND\r\n"),
                    );
                }
            });
        }
    });
}

#[test]
fn udp_requires_no_authentication() {
    let scratch = Scratch::new("udp");
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!("-p 0 -U -1 -Y {} -l noauth:127.0.0.1", users.display()));
    UdpClient::new(server.address()).request(1, "mn\r\n", "MN\r\n");
}
