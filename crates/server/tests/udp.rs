//! All protocols over UDP.

mod common;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use clap::Parser;
use common::{Scratch, TestServer, UdpClient, packet, serve};
use fabcache_server::options::CommandLine;
use fabcache_server::{Server, Settings};

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
    udp.request(5, "flush_all\r\nget a\r\nmn\r\n", "OK\r\nEND\r\nMN\r\n");
}

/// What servers send as the first bytes of an answer, and other text that is no command.
const NO_REQUESTS: [&[u8]; 16] = [
    b"nonsense\r\n",
    b"ERROR\r\n",
    b"CLIENT_ERROR bad data chunk\r\n",
    b"SERVER_ERROR out of memory\r\n",
    b"VALUE a 0 14\r\nget a\r\nversion\r\nEND\r\n",
    b"STORED\r\n",
    b"END\r\n",
    b"VERSION 1.6.45\r\nversion\r\n",
    b"STAT pid 1\r\nEND\r\n",
    b"OK\r\n",
    b"HD\r\nmn\r\n",
    b"MN\r\n",
    b"EN\r\n",
    b"5\r\n",
    b"\r\n",
    b"\x81\x0b\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\n",
];

#[test]
fn text_that_is_no_command_gets_no_answer() {
    // One worker keeps datagrams in order, so the first answer is to the last datagram.
    for flags in ["-t 1", "-t 1 -B ascii"] {
        let (_server, _tcp, udp) = both(flags);
        for (id, datagram) in (1..).zip(NO_REQUESTS) {
            udp.say(id, datagram);
        }
        udp.request(100, "version\r\n", "VERSION 1.6.45\r\n");
        // A known command with wrong arguments is a request, and so is an unknown binary opcode.
        udp.request(101, "get\r\n", "CLIENT_ERROR bad command line format\r\n");
        udp.request(102, "set a b\r\n", "CLIENT_ERROR bad command line format\r\n");
        udp.request(103, "mn\r\nnonsense\r\nmn\r\n", "MN\r\n");
    }
    let (_server, _tcp, udp) = both("-t 1");
    udp.say(1, packet(0x7f, &[], &[], &[], 0));
    assert_eq!(udp.hear(1)[..2], [0x81, 0x7f]);
}

/// Starts a server of one worker on TCP and UDP. Returns its UDP socket too, to send as the server does.
fn serve_with_socket(address: &str) -> (TestServer, UdpSocket) {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0"), UdpSocket::bind(address));
    let (tcp, udp) = (tcp.expect("loopback"), udp.expect("loopback"));
    let line = CommandLine::try_parse_from(["fabcached", "-t", "1"]).expect("valid");
    let settings = Settings::new(&line.options, &|_| None).expect("valid");
    let copy = udp.try_clone().expect("a descriptor");
    let server = Server::start(settings, vec![tcp.into(), copy.into()]).expect("the server starts");
    (TestServer::of(server), udp)
}

fn udp_address(server: &TestServer) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, server.addresses()[1].port()).into()
}

/// Waits until the server has served all earlier datagrams; returns the bytes of those so far.
fn bytes_read(server: &TestServer) -> u64 {
    let udp = UdpClient::new(udp_address(server));
    udp.request(1, "mn\r\n", "MN\r\n");
    server.server().shared().counters.iter().map(|counters| counters.bytes_read.read()).sum()
}

#[test]
fn forged_sources_start_no_loop() {
    let ((one, one_socket), (other, _)) =
        (serve_with_socket("127.0.0.1:0"), serve_with_socket("127.0.0.1:0"));
    let ping = bytes_read(&one);
    assert_eq!(bytes_read(&other), ping);
    let framed = |request: &[u8]| [b"\0\x01\0\0\0\x01\0\0", request].concat();
    // From the first server's port to the second: it answers the request alone, and the first drops that answer.
    for request in [&b"version\r\n"[..], b"nonsense\r\n", b"VALUE a 0 4\r\nmn\r\n\r\nEND\r\n"] {
        let (one_before, other_before) = (bytes_read(&one), bytes_read(&other));
        one_socket.send_to(&framed(request), udp_address(&other)).expect("loopback");
        let answer = if request == b"version\r\n" { "VERSION 1.6.45\r\n".len() as u64 } else { 0 };
        for turn in 1..4 {
            let read = (bytes_read(&other) - other_before, bytes_read(&one) - one_before);
            let expected = (request.len() as u64 + turn * ping, answer + turn * ping);
            assert_eq!(read, expected, "{}", request.escape_ascii());
        }
    }
}

#[test]
fn datagrams_from_own_ports_are_dropped() {
    // The port of a wildcard address is the server's at every address of the host.
    for address in ["127.0.0.1:0", "0.0.0.0:0"] {
        let (server, socket) = serve_with_socket(address);
        let before = bytes_read(&server);
        for request in ["version", "nonsense"] {
            let datagram = format!("\0\x01\0\0\0\x01\0\0{request}\r\n");
            socket.send_to(datagram.as_bytes(), udp_address(&server)).expect("loopback");
        }
        assert_eq!(bytes_read(&server), 2 * before, "{address}: only the second ping is read");
    }
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

/// The value whose set fills the longest datagram over IPv4.
const LONGEST_VALUE: usize = 65_507 - 8 - "set k0-07 0 0 65476\r\n\r\n".len();

#[test]
fn each_datagram_of_a_burst_gets_its_own_answer() {
    let (server, mut tcp, first) = both("-t 1");
    let clients: Vec<UdpClient> =
        std::iter::once(first).chain((0..4).map(|_| UdpClient::new(udp_address(&server)))).collect();
    // A receive buffer of Linux's default size holds one such datagram and the others.
    let len_of = |at, id| if (at, id) == (0, 7) { LONGEST_VALUE } else { 100 };
    for (at, client) in clients.iter().enumerate() {
        for id in 0..20u16 {
            // Among the requests: empty datagrams, and a request that fills its datagram.
            client.0.send(b"").expect("loopback");
            let len = len_of(at, id);
            client.say(id, format!("set k{at}-{id:02} 0 0 {len}\r\n{:len$}\r\n", format!("{at} {id}")));
        }
    }
    for client in &clients {
        let mut answers: Vec<(u16, Vec<u8>)> = (0..20).map(|_| client.hear_next()).collect();
        answers.sort();
        assert_eq!(answers, (0..20).map(|id| (id, b"STORED\r\n".to_vec())).collect::<Vec<_>>());
    }
    for at in 0..clients.len() {
        for id in 0..20u16 {
            let len = len_of(at, id);
            let value = format!("{:len$}", format!("{at} {id}"));
            tcp.request(
                format!("get k{at}-{id:02}\r\n"),
                format!("VALUE k{at}-{id:02} 0 {len}\r\n{value}\r\nEND\r\n"),
            );
        }
    }
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

#[test]
fn each_worker_may_have_its_own_socket() {
    let (server, _tcp, udp) = both("-t 3 --accept local");
    udp.request(1, "set a 0 0 1\r\nx\r\n", "STORED\r\n");
    // Those with this port that are connected to nothing: the client's is connected.
    let port = format!(":{:04X} 00000000:0000", server.addresses()[1].port());
    let sockets = std::fs::read_to_string("/proc/net/udp").expect("Linux has it");
    assert_eq!(sockets.lines().filter(|line| line.contains(&port)).count(), 3, "{sockets}");
    for id in 0..60 {
        UdpClient::new(udp_address(&server)).request(id, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    let workers = server.server().shared().counters.iter().filter(|worker| worker.cmd_get.read() > 0).count();
    assert!(workers > 1, "the system distributes clients");
}
