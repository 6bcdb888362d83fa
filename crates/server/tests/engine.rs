//! Serving by each engine: epoll and io_uring. The latter's parts run where this process may use io_uring.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;

use common::{Client, TestServer, check_pipelines, connect_unix, serve, try_serve, wait_until};
use fabcache_layout::channel::CHANNEL_VERSION;
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::io_uring;
use fabcache_testbed::local::socket_path;

/// The engines that this process may use. A server that may not use one names the reason.
fn engines() -> Vec<&'static str> {
    if let Err(refused) = fabcache_uring::probe() {
        let error = try_serve("--engine io_uring").err().expect("io_uring is refused");
        let error = format!("{error:#}");
        assert!(error.contains(&refused.to_string()) && error.contains("--engine epoll"), "{error}");
    }
    io_uring::engines()
}

fn with_each_engine(flags: &str, test: impl Fn(TestServer)) {
    for engine in engines() {
        let server = serve(&format!("--engine {engine} {flags}"));
        test(server);
    }
}

fn connections(server: &TestServer) -> u32 {
    server.server().shared().connections_now.load(Ordering::Relaxed)
}

/// Stores a value of this length and reads it.
#[track_caller]
fn round_trip<S: Read + Write>(client: &mut Client<S>, len: usize) {
    let value = pattern(len as u64, len);
    let stored = [format!("set k{len} 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat();
    client.request(stored, "STORED\r\n");
    let found = [format!("VALUE k{len} 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
    client.request(format!("get k{len}\r\n"), found);
}

#[test]
fn settings_name_the_engine() {
    assert_eq!(serve("").connect().stat("settings", "engine"), "epoll");
    assert_eq!(serve("--engine auto").connect().stat("settings", "engine"), "epoll");
    for engine in engines() {
        assert_eq!(serve(&format!("--engine {engine}")).connect().stat("settings", "engine"), engine);
    }
}

#[test]
fn values_of_every_size_round_trip() {
    with_each_engine("-m 64 -I 4m", |server| {
        let mut client = server.connect();
        for len in [0, 1, 4_000, 8_191, 8_192, 8_193, 16_384, 20_000, 65_536, 600_000, 1 << 20, 3 << 20] {
            round_trip(&mut client, len);
        }
    });
}

#[test]
fn requests_that_arrive_in_parts_are_answered() {
    with_each_engine("", |server| {
        let mut client = server.connect();
        for part in ["set a 0 ", "0 3\r", "\nab", "c\r\nget a\r\nget", " a\r\n"] {
            client.say(part);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        client.hear("STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\nVALUE a 0 3\r\nabc\r\nEND\r\n");
    });
}

#[test]
fn pipelines_are_answered_in_order() {
    with_each_engine("-t 1", |server| check_pipelines(&server));
}

#[test]
fn late_reader_is_not_received_from_meanwhile() {
    with_each_engine("-t 1", |server| {
        let mut client = server.connect();
        // Far more than the server and the sockets hold of requests.
        const REQUESTS: usize = 4_000_000;
        let mut writer = client.stream.try_clone().expect("a socket");
        let written = std::sync::atomic::AtomicUsize::new(0);
        let (requests, answers) = ("mg none\r\n".repeat(1_000), "EN\r\n".repeat(1_000));
        let many = requests.len();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..REQUESTS / 1_000 {
                    if writer.write_all(requests.as_bytes()).is_err() {
                        return;
                    }
                    written.fetch_add(many, Ordering::Relaxed);
                }
            });
            let mut before = usize::MAX;
            wait_until("the server takes no more requests", || {
                std::thread::sleep(std::time::Duration::from_millis(200));
                let now = written.load(Ordering::Relaxed);
                std::mem::replace(&mut before, now) == now
            });
            let stuck = written.load(Ordering::Relaxed);
            assert!(stuck < REQUESTS / 1_000 * many, "all was taken, though no answer was read");
            // Others are served, and the answers come once they are read.
            round_trip(&mut server.connect(), 1_000);
            for _ in 0..stuck / many {
                client.hear(&answers);
            }
            let _ = client.stream.shutdown(Shutdown::Both);
        });
        wait_until("the connections are closed", || connections(&server) == 0);
    });
}

#[test]
fn many_connections_at_once_come_and_go() {
    with_each_engine("-t 2 -c 1000 -m 64", |server| {
        for round in 0..5 {
            let mut clients: Vec<_> = (0..150).map(|_| server.connect()).collect();
            // More bytes than a worker's ring has buffers for.
            let value = pattern(round, 9_000);
            let request = [&b"set a 0 0 9000\r\n"[..], &value, b"\r\nmg none\r\n"].concat();
            for client in &mut clients {
                client.say(&request);
            }
            for (at, client) in clients.iter_mut().enumerate() {
                client.hear("STORED\r\nEN\r\n");
                match at % 3 {
                    0 => client.say("quit\r\n"),
                    1 => client.stream.shutdown(Shutdown::Write).expect("a socket"),
                    _ => continue,
                }
                client.hear_end();
            }
            drop(clients);
            wait_until("the connections are closed", || connections(&server) == 0);
        }
    });
}

#[test]
fn unix_sockets_are_served_and_switch_to_shared_memory() {
    let path = socket_path("engine");
    for engine in engines() {
        let _server = serve(&format!("--engine {engine} -t 1 -s {} --shm", path.display()));
        let mut client = connect_unix(&path);
        round_trip(&mut client, 100_000);
        client.say(format!("shm attach {} {FORMAT_VERSION}\r\n", CHANNEL_VERSION + 1));
        let refused = client.hear_until("\r\n");
        assert!(refused.contains("ERROR"), "{refused}");
        round_trip(&mut client, 1_000);
        let mut other = connect_unix(&path);
        client.say(format!("shm attach {CHANNEL_VERSION} {FORMAT_VERSION}\r\n"));
        client.hear_until("\r\n");
        assert_eq!(other.count("fabcache", "shm_attached"), 1);
        drop(client);
        wait_until("its end is noticed", || other.count("", "curr_connections") == 1);
    }
}

#[test]
fn stopping_server_ends_its_connections() {
    with_each_engine("-t 2", |server| {
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.request("mn\r\n", "MN\r\n");
        }
        server.stop();
        clients.iter_mut().for_each(Client::hear_end);
    });
}
