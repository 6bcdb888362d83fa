//! Limits on what clients take from the server and from each other.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use common::process::{fabcached, start, start_command};
use common::{Client, Scratch, TestServer, check_pipelines, connect_unix, packet, serve, wait_until};

#[test]
fn connections_beyond_the_limit_are_refused() {
    let server = serve("-c 2 -t 2");
    let (mut a, mut b) = (server.connect(), server.connect());
    a.request("mn\r\n", "MN\r\n");
    b.request("mn\r\n", "MN\r\n");
    let mut c = server.connect();
    c.hear("ERROR Too many open connections\r\n");
    c.hear_end();
    assert_eq!((a.count("", "rejected_connections"), a.count("", "curr_connections")), (1, 2));
    drop(b);
    wait_until("there is room", || a.count("", "curr_connections") == 1);
    server.connect().request("mn\r\n", "MN\r\n");
}

#[test]
fn connections_beyond_the_limit_wait_if_configured() {
    let server = serve("-c 2 -t 4 -o no_maxconns_fast -U -1");
    let (mut a, mut b) = (server.connect(), server.connect());
    a.request("mn\r\n", "MN\r\n");
    b.request("mn\r\n", "MN\r\n");
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || common::connect(address).request("mn\r\n", "MN\r\n"));
        }
        wait_until("accepting pauses", || a.stat("", "accepting_conns") == "0");
        for _ in 0..100 {
            assert_eq!(a.count("", "curr_connections"), 2, "no worker accepts more");
        }
        common::UdpClient::new(server.addresses()[1]).request(1, "mn\r\n", "MN\r\n");
        drop(b);
    });
    wait_until("there is room", || a.stat("", "accepting_conns") == "1");
    assert_eq!(a.count("", "total_connections"), 10);
    assert_eq!(a.count("", "rejected_connections"), 0);
    assert!(a.count("", "listen_disabled_num") > 0);
    assert!(a.count("", "time_in_listen_disabled_us") > 0);
}

#[test]
fn idle_connections_are_dropped() {
    let server = serve("-o idle_timeout=1");
    let mut watcher = server.connect();
    watcher.request("watch connevents\r\n", "OK\r\n");
    let mut idle = server.connect();
    idle.request("mn\r\n", "MN\r\n");
    idle.hear_end();
    let lines = watcher.hear_until("idle_timeout");
    assert!(lines.contains("type=conn_close"), "{lines}");
    assert_eq!(server.connect().count("", "idle_kicks"), 1);
}

#[test]
fn connection_with_a_partial_request_is_dropped_eventually() {
    let server = serve("--stall-timeout 1");
    let mut whole = server.connect();
    whole.request("mn\r\n", "MN\r\n");
    let halves: [&[u8]; 5] = [
        b"get a",
        b"set a 0 0 10\r\nabc",
        b"set a 0 0 100000\r\nabc",
        &packet(0x00, &[], b"a", &[], 0)[..20],
        &packet(0x01, &[0; 8], b"a", &[b'x'; 100_000], 0)[..90_000],
    ];
    let clients = halves.map(|half| {
        let mut client = server.connect();
        client.say(half);
        client
    });
    for mut client in clients {
        client.hear_end();
    }
    assert_eq!(whole.count("fabcache", "stalled_kicks"), 5);
    assert_eq!(whole.count("fabcache", "segments_pinned"), 0);
}

/// Repeats a request, at least `least` bytes of it, until the server stops reading or closes the connection; returns
/// the number of bytes.
fn flood(stream: &mut TcpStream, request: &[u8], least: usize, most: usize) -> usize {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).expect("a socket");
    let many = request.repeat(1000);
    let mut taken = 0;
    while taken < most {
        match stream.write(&many) {
            Ok(len) => taken += len,
            Err(error) if taken < least && matches!(error.kind(), WouldBlock | TimedOut) => {}
            Err(_) => break,
        }
    }
    taken
}

/// Reads until the server closes the connection; returns the number of bytes.
fn drain(stream: &mut TcpStream) -> u64 {
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return total,
            Ok(len) => total += len as u64,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return total,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("the connection stays open: {error}"),
        }
    }
}

#[test]
fn stalled_reader_uses_little_memory_and_is_dropped() {
    std::thread::scope(|scope| {
        for value_len in [1_000, 15_000, 3 << 20] {
            scope.spawn(move || read_nothing(value_len));
        }
    });
}

fn read_nothing(value_len: u64) {
    let process = start("-m 16 -I 4m --stall-timeout 2 -t 1");
    let mut client = common::connect(process.address());
    client.say(format!("set v 0 0 {value_len}\r\n{}\r\n", "x".repeat(value_len as usize)));
    client.hear("STORED\r\n");
    client.request("get missing\r\n", "END\r\n");
    let before = process.resident_bytes();
    let mut slow = common::connect(process.address());
    let requested = flood(&mut slow.stream, b"get v\r\n", 200_000, 64 << 20) as u64 / 7;
    let grown = process.resident_bytes().saturating_sub(before);
    assert!(requested * value_len > 24 << 20, "{requested} replies were requested");
    assert!(grown < 12 << 20, "{requested} answers of {value_len} bytes cost {grown} bytes");
    wait_until("the reader is dropped", || client.count("fabcache", "stalled_kicks") == 1);
    assert!(drain(&mut slow.stream) < requested * value_len);
    assert_eq!(client.count("fabcache", "segments_pinned"), 0);
    assert_eq!(client.count("", "curr_connections"), 1);
}

#[test]
fn thousands_of_connections_come_and_go() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("reading a limit is allowed");
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard.min(10_000).max(soft), hard);
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("reading a limit is allowed");
    // Both sides of each connection are in this process, and other tests run concurrently.
    let at_once = (soft.saturating_sub(400) / 2).clamp(50, 2_500);
    let server = serve("-c 5000 -t 4 -b 4096");
    let mut left = 10_000;
    while left > 0 {
        let mut clients: Vec<_> = (0..at_once.min(left)).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.say("mn\r\n");
        }
        for client in &mut clients {
            client.hear("MN\r\n");
        }
        left -= clients.len() as u64;
        drop(clients);
        wait_until("the connections are closed", || connections(&server) == 0);
    }
    let mut last = server.connect();
    assert_eq!(last.count("", "total_connections"), 10_001);
    for worker in 0..4 {
        assert!(last.count("fabcache", &format!("worker:{worker}:connections")) <= 1);
    }
}

fn connections(server: &TestServer) -> u32 {
    server.server().shared().connections_now.load(Ordering::Relaxed)
}

#[test]
fn half_closed_client_still_receives_its_replies() {
    let server = serve("-I 8m -m 64");
    let mut c = server.connect();
    c.say(format!("set v 0 0 8000000\r\n{}\r\n", "x".repeat(8_000_000)));
    c.hear("STORED\r\n");
    for (request, count, answer) in [
        ("get missing\r\n", 5_000, "END\r\n".len()),
        ("get v\r\n", 4, "VALUE v 0 8000000\r\n\r\nEND\r\n".len() + 8_000_000),
    ] {
        let mut half = server.connect();
        half.say(request.repeat(count));
        half.stream.shutdown(Shutdown::Write).expect("a socket");
        assert_eq!(drain(&mut half.stream), (count * answer) as u64);
    }
    wait_until("the connections are closed", || connections(&server) == 1);
    // A partial request gets no reply.
    let mut half = server.connect();
    half.say("mn\r\nget v");
    half.stream.shutdown(Shutdown::Write).expect("a socket");
    half.hear("MN\r\n");
    half.hear_end();
}

#[test]
fn http_requests_are_rejected() {
    let server = serve("");
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\nset a 0 0 1\r\nx\r\n",
        "POST /x HTTP/1.0\r\nContent-Length: 20\r\n\r\nset a 0 0 1\r\nx\r\n",
        "OPTIONS * HTTP/2\r\n\r\n",
    ] {
        let mut c = server.connect();
        c.say(request);
        c.hear_end();
    }
    server.connect().request("get a\r\n", "END\r\n");
}

#[test]
fn odd_bytes_and_lengths_are_harmless() {
    let server = serve("");
    for (sent, answer) in [
        (&b"\0\0\0\r\n"[..], "ERROR\r\n"),
        (b"\xff\xfe\xfd\r\n", "ERROR\r\n"),
        (b"get\0a\r\n", "ERROR\r\n"),
        (b"\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"      \r\n", "ERROR\r\n"),
        (b"set a 0 0 99999999999999999999\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"set a 0 0 -99999999999999999999\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"set a 0 0 2147483646\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"ms a -1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"ms a 4294967296\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"ms a 18446744073709551616\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"set a 0 99999999999999999999 1\r\nx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"set a 0 0 3\r\n\0\r\n\r\n", "STORED\r\n"),
        (b"get a\r\n", "VALUE a 0 3\r\n\0\r\n\r\nEND\r\n"),
    ] {
        let mut c = server.connect();
        c.request(sent, answer);
        c.request("mn\r\n", "MN\r\n");
    }
    // A value that will be rejected is still consumed.
    let mut c = server.connect();
    c.say("set a 0 0 2147483645\r\n");
    c.hear("SERVER_ERROR object too large for cache\r\n");
    c.say(vec![b'x'; 1 << 20]);
    server.connect().request("get a\r\n", "END\r\n");
}

#[test]
fn endless_lines_close_the_connection() {
    let server = serve("");
    let closed = |request: Vec<u8>| {
        let mut c = server.connect();
        // The server may close the connection before all is sent.
        let _ = c.stream.write_all(&request);
        c.hear_end();
    };
    closed(vec![b'x'; 2_049]);
    closed([&b"set "[..], &vec![b'k'; 5_000]].concat());
    closed([&b"get "[..], &b"key ".repeat(3 << 20)].concat());
    closed([vec![b' '; 101], b"get ".to_vec(), b"key ".repeat(1_000)].concat());
    let mut c = server.connect();
    c.say("get ".to_owned() + &"key ".repeat(100_000));
    c.request("\r\n", "END\r\n");
}

#[test]
fn pipelines_are_answered_in_order() {
    check_pipelines(&serve(""));
}

#[test]
fn busy_connection_yields_to_others() {
    for flags in ["-t 1", "-t 1 -R 5"] {
        serves_others_beside_hogs(flags);
    }
}

fn serves_others_beside_hogs(flags: &str) {
    let server = serve(flags);
    let done = AtomicBool::new(false);
    // An endless pipeline, and an endless value.
    let hogs = [("", "get a\r\n".repeat(10_000)), ("set a 0 0 2147000000\r\n", "x".repeat(1 << 20))];
    std::thread::scope(|scope| {
        for (first, rest) in &hogs {
            let mut hog = server.connect();
            hog.say(first);
            let mut reader = hog.stream.try_clone().expect("a socket");
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) && hog.stream.write_all(rest.as_bytes()).is_ok() {}
                let _ = hog.stream.shutdown(Shutdown::Both);
            });
            scope.spawn(move || while reader.read(&mut [0; 65_536]).is_ok_and(|len| len > 0) {});
        }
        let _end = SetWhenDropped(&done);
        let mut other = server.connect();
        for _ in 0..50 {
            other.request("mn\r\n", "MN\r\n");
        }
        // The hogs may not have started yet.
        wait_until("a connection yields", || other.count("", "conn_yields") > 0);
    });
}

#[test]
fn connection_without_requests_yields_as_well() {
    // A watcher's input, and an endless line.
    for (first, rest) in [("watch fetchers\r\n", "x"), ("get ", " ")] {
        let server = serve("-t 1 -R 1");
        let mut other = server.connect();
        wait_until("the connection yields", || {
            let mut hog = server.connect();
            hog.say(first);
            if rest == "x" {
                hog.hear("OK\r\n");
            }
            hog.say(rest.repeat(4 << 20));
            other.count("", "conn_yields") > 0
        });
    }
}

#[test]
fn connections_get_equal_turns() {
    // The socket stays readable while the connection waits for its turn.
    let server = serve("-t 1 -R 2");
    let hog = server.connect();
    let mut writer = hog.stream.try_clone().expect("a socket");
    let mut reader = Client::new(hog.stream);
    let count = 50_000;
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all("mn\r\n".repeat(count).as_bytes()).expect("the server listens"));
        reader.hear("MN\r\n".repeat(count));
    });
    let mut other = server.connect();
    let (yields, turns) = (other.count("", "conn_yields"), other.count("fabcache", "worker_turns"));
    assert!(yields >= 20_000, "{yields}");
    assert!(yields <= turns, "{yields} turns were given in {turns} turns of the worker");
}

#[test]
fn dump_yields_after_each_chunk() {
    let server = serve("-t 1");
    let mut c = server.connect();
    for i in 0..10_000 {
        c.say(format!("set {i:0>100} 0 0 0 noreply\r\n\r\n"));
    }
    c.request("mn\r\n", "MN\r\n");
    c.request("stats reset\r\n", "RESET\r\n");
    c.say("lru_crawler metadump all\r\n");
    let dump = c.hear_until("END\r\n");
    assert!(dump.len() > 1_500_000, "{}", dump.len());
    // As many chunks as one connection may have unsent if its client is slow; otherwise all.
    assert!(c.count("", "conn_yields") >= 6);
    // The same for a dump that visits many items and lists none.
    c.request("flush_all\r\nstats reset\r\n", "OK\r\nRESET\r\n");
    c.request("lru_crawler mgdump all\r\n", "OK\r\nEN\r\n");
    assert!(c.count("", "conn_yields") >= 1);
}

#[test]
fn partial_requests_use_little_memory() {
    let process = start("-c 1000 -t 1");
    let mut c = common::connect(process.address());
    c.request("mn\r\n", "MN\r\n");
    let mut halves: Vec<_> = (0..400).map(|_| common::connect(process.address())).collect();
    let say = |halves: &mut Vec<Client<TcpStream>>, c: &mut Client<TcpStream>, part: &str| {
        let before = c.count("", "bytes_read");
        halves.iter_mut().for_each(|half| half.say(part));
        let least = before + (part.len() * halves.len()) as u64;
        wait_until("all bytes are received", || c.count("", "bytes_read") >= least);
    };
    say(&mut halves, &mut c, "get a");
    let before = process.resident_bytes();
    say(&mut halves, &mut c, "bcd");
    // Nor does the rest of a long pipeline cost more.
    say(&mut halves, &mut c, &format!("\r\n{}get a", "mg none q\r\n".repeat(300)));
    say(&mut halves, &mut c, "bcd");
    let grown = process.resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "400 parts of requests cost {grown} bytes");
    for half in &mut halves {
        half.request("\r\n", "END\r\nEND\r\n");
    }
}

#[test]
fn long_multiget_lines_leave_no_memory_behind() {
    let process = start("-m 16 -t 2 --stall-timeout 0");
    let mut c = common::connect(process.address());
    c.request("mn\r\n", "MN\r\n");
    let before = process.resident_bytes();
    let line = "get".to_owned() + &format!(" {}", "k".repeat(250)).repeat(31_000);
    // glibc's own limits change with the first large buffer that is freed.
    for _ in 0..3 {
        let mut clients: Vec<_> = (0..10).map(|_| common::connect(process.address())).collect();
        let least = c.count("", "bytes_read") + 10 * line.len() as u64;
        clients.iter_mut().for_each(|client| client.say(&line));
        wait_until("all lines are received", || c.count("", "bytes_read") >= least);
        assert!(process.resident_bytes() > before + (60 << 20));
        clients.iter_mut().for_each(|client| client.request("\r\n", "END\r\n"));
    }
    wait_until("the memory is returned", || process.resident_bytes() < before + (8 << 20));
}

#[test]
fn long_values_are_read_while_others_pin_them() {
    let scratch = Scratch::new("busy");
    let socket = scratch.path("socket");
    let server = serve(&format!("-m 64 -I 16m -t 1 --stall-timeout 0 -s {}", socket.display()));
    let shared = server.server().shared();
    let mut c = connect_unix(&socket);
    let value = |key: &str| key.repeat(10_000_000);
    for key in ["v", "w"] {
        c.say(format!("set {key} 0 0 10000000\r\n{}\r\n", value(key)));
        c.hear("STORED\r\n");
    }
    c.request("set a 0 0 1\r\na\r\nset b 0 0 1\r\nb\r\n", "STORED\r\nSTORED\r\n");
    // One value may be pinned by more slow clients than are dropped below, then another, then none.
    let mut slow = Vec::new();
    for (key, clients) in [("v", 9), ("w", 1)] {
        for _ in 0..clients {
            let mut client = connect_unix(&socket);
            client.say(format!("get {key}\r\n"));
            slow.push(client);
        }
        wait_until("the value is pinned", || shared.store.sums().pins == slow.len() as u64);
    }
    let pinned = shared.store.usage().segments_pinned;
    let line = |key: &str| format!("VALUE {key} 0 10000000\r\n{}\r\n", value(key));
    let small = |key: &str| format!("VALUE {key} 0 1\r\n{key}\r\n");
    c.request("get a v b w\r\n", [small("a"), line("v"), small("b"), line("w"), "END\r\n".into()].concat());
    assert_eq!(c.count("fabcache", "values_pin_refused"), 2);
    c.request("mg v v\r\n", format!("VA 10000000\r\n{}\r\n", value("v")));
    let mut binary = connect_unix(&socket);
    binary.say(packet(0x00, &[], b"w", &[], 0));
    let answer = binary.hear_packet();
    assert!(answer.status == 0 && answer.value == value("w").as_bytes());
    // A client that pauses pins no more, and its answer is whole.
    let mut late = connect_unix(&socket);
    late.say("get v\r\n");
    wait_until("the value is read", || shared.store.sums().pins_refused == 5);
    wait_until("it pins no more", || shared.store.usage().segments_pinned <= pinned);
    late.hear(line("v") + "END\r\n");
    assert_eq!(c.count("", "get_misses"), 0);
    drop(slow);
    wait_until("nothing is pinned", || shared.store.usage().segments_pinned == 0);
    c.request("get v\r\n", line("v") + "END\r\n");
    assert_eq!(c.count("fabcache", "values_pin_refused"), 5);
}

/// Long values: how many, and their length.
const LONG_VALUES: usize = 40;
const LONG_VALUE_LEN: usize = 900_000;

#[test]
fn stalled_readers_of_long_values_cause_no_misses() {
    const LEN: usize = LONG_VALUE_LEN;
    const VALUES: usize = LONG_VALUES;
    const STALLED: usize = 200;
    // A Unix socket takes little of a value; TCP may take megabytes.
    let scratch = Scratch::new("stalled");
    let socket = scratch.path("socket");
    let flags = format!("-m 64 -t 2 --stall-timeout 0 -s {}", socket.display());
    let process = start_command(fabcached(&flags));
    let mut c = connect_unix(&socket);
    let value = |i: usize| -> String { char::from(b'A' + i as u8).to_string().repeat(LEN) };
    let set = |c: &mut Client<_>, i: usize, value: &str| {
        c.say(format!("set v{i} 0 0 {LEN}\r\n{value}\r\n"));
        c.hear("STORED\r\n");
    };
    (0..VALUES).for_each(|i| set(&mut c, i, &value(i)));
    let before = process.resident_bytes();
    let stalled: Vec<_> = (0..STALLED)
        .map(|i| {
            let mut client = connect_unix(&socket);
            let keys: String = (0..4).map(|k| format!(" v{}", (i + k * 7) % VALUES)).collect();
            client.say(format!("get{keys}\r\n"));
            client
        })
        .collect();
    let mut binary = connect_unix(&socket);
    for round in 0..3 {
        for i in 0..VALUES {
            match round {
                0 => c.request(
                    format!("get v{i}\r\n"),
                    format!("VALUE v{i} 0 {LEN}\r\n{}\r\nEND\r\n", value(i)),
                ),
                1 => c.request(format!("mg v{i} v\r\n"), format!("VA {LEN}\r\n{}\r\n", value(i))),
                _ => {
                    binary.say(packet(0x00, &[], format!("v{i}").as_bytes(), &[], 0));
                    let answer = binary.hear_packet();
                    assert!(answer.status == 0 && answer.value == value(i).as_bytes());
                }
            }
        }
    }
    assert!(c.count("fabcache", "values_pin_refused") > 0, "the stalled readers pin their part");
    assert_eq!(c.count("", "get_misses"), 0);
    let grown = process.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{STALLED} readers that stall cost {grown} bytes");
    // Once others need the memory, what is left of an answer may be lost, but is never wrong.
    for _ in 0..4 {
        (0..VALUES).for_each(|i| set(&mut c, i, &value((i + 1) % VALUES)));
    }
    let whole = stalled.into_iter().enumerate().take(40).filter_map(|(i, client)| {
        let mut got = Vec::new();
        let mut stream = client.stream;
        // Both fail where the server has disconnected the client.
        let _ = stream.write_all(b"quit\r\n");
        let _ = stream.read_to_end(&mut got);
        is_whole(&got, (0..4).map(|k| (i + k * 7) % VALUES)).then_some(i)
    });
    let whole = whole.count();
    assert!(whole < 40, "no answer was lost");
    assert!(c.count("fabcache", "pinning_kicks") >= 40 - whole as u64);
}

/// Checks the answer for these keys as far as it was received, each with its first or its second value; returns whether
/// all of it was.
fn is_whole(mut rest: &[u8], keys: impl Iterator<Item = usize>) -> bool {
    for key in keys {
        let head = format!("VALUE v{key} 0 {LONG_VALUE_LEN}\r\n");
        let (found, after) = rest.split_at(head.len().min(rest.len()));
        assert!(head.as_bytes().starts_with(found));
        let (value, after) = after.split_at(LONG_VALUE_LEN.min(after.len()));
        let letters = [key, key + 1].map(|letter| b'A' + (letter % LONG_VALUES) as u8);
        let first = value.first().copied().unwrap_or(letters[0]);
        assert!(letters.contains(&first) && value.iter().all(|byte| *byte == first), "value of v{key}");
        rest = after.strip_prefix(b"\r\n").unwrap_or_default();
    }
    rest == b"END\r\n"
}

#[test]
fn unread_statistics_use_little_memory() {
    const PREFIXES: usize = 65_536;
    let scratch = Scratch::new("unread");
    let socket = scratch.path("socket");
    let process = start_command(fabcached(&format!("-t 2 --stall-timeout 0 -s {}", socket.display())));
    let mut c = connect_unix(&socket);
    c.request("stats detail on\r\n", "OK\r\n");
    let all: Vec<usize> = (0..PREFIXES).collect();
    for some in all.chunks(1024) {
        let requests: String = some.iter().map(|i| format!("mg {i:0>220}:k q\r\n")).collect();
        c.request(requests + "mn\r\n", "MN\r\n");
    }
    let before = process.resident_bytes();
    let requests =
        ["stats detail dump\r\n".to_owned(), "stats conns\r\n".repeat(2_000), "stats\r\n".repeat(2_000)];
    let mut slow: Vec<_> = requests
        .iter()
        .cycle()
        .take(60)
        .map(|request| {
            let mut client = connect_unix(&socket);
            client.say(request);
            client
        })
        .collect();
    wait_until("all answers wait", || {
        c.stats("conns").iter().filter(|(_, value)| value == "conn_mwrite").count() >= slow.len()
    });
    let grown = process.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "60 unread answers cost {grown} bytes");
    // An answer that is read late is whole.
    for some in all.chunks(1024) {
        let lines = some.iter().map(|i| format!("PREFIX {i:0>220} get 1 hit 0 set 0 del 0\r\n"));
        slow[0].hear(lines.collect::<String>());
    }
    slow[0].request("mn\r\n", "END\r\nMN\r\n");
}

#[test]
fn untouchable_item_is_a_miss_in_text() {
    let server = serve("-m 2 -M -t 1");
    let mut c = server.connect();
    let mut keys = 0;
    // Seven items fill a segment; with an expiry time only six fit.
    let value = "x".repeat(1_150);
    loop {
        c.say(format!("set k{keys} 0 0 1150\r\n{value}\r\n"));
        if c.hear_until("\r\n") != "STORED\r\n" {
            break;
        }
        keys += 1;
    }
    let all: String = (0..keys).map(|key| format!(" k{key}")).collect();
    c.say(format!("gat 1000{all}\r\n"));
    let answer = c.hear_until("END\r\n");
    let found = answer.lines().filter(|line| line.starts_with("VALUE ")).count();
    assert!(found < keys && !answer.contains("ERROR"), "{found} of {keys}");
    assert_eq!(c.count("", "touch_misses"), (keys - found) as u64);
    c.say("mg k0 T2000\r\n");
    c.hear("SERVER_ERROR out of memory\r\n");
}

/// Stops threads even when the test fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
