//! Servers reached over the fabric. `FABCACHE_PROVIDER` names libfabric's provider.

mod common;
#[path = "fabric/failing_port.rs"]
mod failing_port;
#[path = "fabric/flash.rs"]
mod flash;
#[path = "fabric/link.rs"]
mod link;
#[path = "fabric/restarts.rs"]
mod restarts;
#[path = "fabric/sleeping.rs"]
mod sleeping;

use fabcache_testbed::bytes::pattern;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::calls::{ITEM_BYTES_MAX, Side, call, ttl};
use common::fabric::{beside, flags, is_one_sided, options, over, provider, served};
use common::process::{Process, Server, again, at, patient, stat, until_up, wait_until};
use common::{Running, block_on};
use fabcache_client::{
    Client, Error, Fabric, FabricMode, Failure, Options, Outcome, Request, Transport, Ttl,
};
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_testbed::report::not_run;
use fabcache_testbed::wait::amount;
use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rustix::process::{Resource, Rlimit, prlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const MODES: [FabricMode; 3] = [FabricMode::Auto, FabricMode::OneSided, FabricMode::Request];

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn fabric_and_tcp_calls_return_the_same() {
    let cases = amount(8, 2) as u32;
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let flags_alike = format!("-m 64 -I {ITEM_BYTES_MAX}");
    let calls = vec(call(ttl()), 1..40);
    let alike = runner.run(&calls, |calls| {
        let tcp = served("fabric-alike-tcp", &flags_alike);
        let mut plain = Side::new(&tcp.1, Options::default());
        let mut fabrics: Vec<_> = MODES
            .into_iter()
            .map(|mode| {
                let server = served(&format!("fabric-alike-{mode:?}"), &flags_alike);
                let address = server.1.replace("tcp://", "fab://");
                (Side::new(&address, options(mode)), mode, server)
            })
            .collect();
        for (at, call) in calls.iter().enumerate() {
            let expected = plain.call(call);
            for (side, mode, _) in &mut fabrics {
                let came = side.call(call);
                if came != expected {
                    let (came, expected) = (format!("{came:?}"), format!("{expected:?}"));
                    let why = format!("call {at} {call:?}: {mode:?}\n{came:.1000}\n{expected:.1000}");
                    return Err(TestCaseError::fail(why));
                }
            }
        }
        Ok(())
    });
    if let Err(why) = alike {
        panic!("{why}");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn values_of_all_lengths_are_read_whole() {
    let (_server, address, _path) = served("fabric-lengths", "-m 1024 -I 512m");
    let mut lengths: Vec<usize> =
        vec![0, 1, 63, 64, 100, 4000, 4096, 8159, 8160, 8161, 16 << 10, (16 << 10) + 1];
    lengths.extend([65 << 10, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20, 64 << 20]);
    lengths.truncate(amount(lengths.len(), lengths.len() - 2));
    for mode in MODES {
        let cache = over(&address, options(mode));
        for (number, len) in lengths.iter().copied().enumerate() {
            let (key, value) = (format!("{mode:?}{len}"), pattern(number, len));
            let stored = cache.set_with_flags(key.as_bytes(), &value, Ttl::NEVER, 7);
            stored.unwrap_or_else(|error| panic!("{mode:?}: {len} bytes: {error}"));
            // By key, then at its cached location.
            for _ in 0..3 {
                let item = cache.get(key.as_bytes()).expect("answered").expect("there");
                assert!(item.value == value && item.flags == 7, "{mode:?}: {len} bytes");
            }
        }
        assert_eq!(cache.get(b"none").expect("answered"), None);
        assert!(is_one_sided(&cache) || mode != FabricMode::OneSided);
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn longest_value_is_read_whole() {
    if std::env::var_os("FABCACHE_LONG").is_none() {
        return not_run("longest_value_is_read_whole", &"only FABCACHE_LONG=1 moves a value of 1 GiB");
    }
    let (_server, address, _path) = served("fabric-long", "-m 3072 -I 1024m");
    let value = pattern(3, (1 << 30) - 4096);
    for mode in [FabricMode::OneSided, FabricMode::Request] {
        let cache = over(&address, Options { timeout: Duration::from_secs(120), ..options(mode) });
        cache.set(b"long", &value, Ttl::NEVER).expect("stored");
        assert!(cache.get(b"long").expect("answered").expect("there").value == value, "{mode:?}");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn non_blocking_windows_complete() {
    let (_server, address, _path) = served("fabric-windows", "-m 64");
    let count = amount(400, 150);
    for mode in MODES {
        let cache = over(&address, options(mode));
        let key = |number: usize| format!("{mode:?} {number}");
        let value = |number: usize| pattern(number, number * 37 % 20_000);
        let mut window: Vec<Request> = (0..32).map(|_| cache.request()).collect();
        for number in 0..count {
            let request = &mut window[number % 32];
            if number >= 32 {
                assert_eq!(request.wait().result.expect("stored"), Outcome::Stored);
            }
            request.iset(key(number), value(number), Ttl::NEVER);
        }
        window.iter_mut().for_each(|request| assert!(request.wait().result.is_ok()));
        // More requests than are read at once; some are awaited, some dropped.
        let mut window: Vec<Request> = (0..100).map(|number| cache.iget(key(number), Vec::new())).collect();
        for number in 0..count {
            let completed = match number % 3 {
                0 => block_on(&mut window[number % 100]),
                1 => {
                    wait_until("the request completes", || window[number % 100].test());
                    window[number % 100].wait()
                }
                _ => window[number % 100].wait(),
            };
            assert!(matches!(completed.result, Ok(Outcome::Found { .. })), "{mode:?}: {completed:?}");
            assert!(completed.value == value(number), "{mode:?}: {number}");
            if number + 100 < count {
                window[number % 100].iget(key(number + 100), completed.value);
                if number % 7 == 0 {
                    window[number % 100].iget(key(number + 100), Vec::new());
                }
            }
        }
        let keys: Vec<String> = (0..count).map(key).collect();
        let many = cache.get_many(&keys).expect("keys");
        assert!(many.failed.is_empty(), "{:?}", many.failed);
        for (number, item) in many.items.into_iter().enumerate() {
            assert!(item.expect("there").value == value(number), "{mode:?}: {number}");
        }
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn readers_and_writers_run_concurrently() {
    const KEYS: usize = 20;
    let (_server, address, _path) = served("fabric-threads", "-t 2 -m 64");
    for mode in MODES {
        let cache = over(&address, options(mode));
        let writes = over(&address, options(FabricMode::Request));
        // All bytes of a value are equal, and determine its length.
        let write = |key: usize, turn: usize| {
            let byte = (turn % 251) as u8;
            let value = vec![byte; 1 + usize::from(byte) * 40];
            writes.set(format!("{mode:?}{key}").as_bytes(), &value, Ttl::NEVER).expect("stored");
        };
        (0..KEYS).for_each(|key| write(key, key));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers: Vec<_> = (0..amount(4, 2))
                .map(|reader| {
                    let (cache, is_over) = (&cache, &is_over);
                    scope.spawn(move || {
                        let mut count = reader;
                        while !is_over.load(Ordering::Relaxed) {
                            let key = format!("{mode:?}{}", count % KEYS);
                            let item = cache.get(key.as_bytes()).expect("answered").expect("there");
                            let byte = item.value[0];
                            assert_eq!(item.value.len(), 1 + usize::from(byte) * 40, "{mode:?}");
                            assert!(item.value.iter().all(|other| *other == byte), "{mode:?}: torn");
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            for turn in 0..amount(1500, 200) {
                write(turn % KEYS, turn);
                // A new client sees the values stored before.
                if turn % 10 == 0 {
                    let item = cache.get(format!("{mode:?}{}", turn % KEYS).as_bytes());
                    assert_eq!(item.expect("answered").expect("there").value[0], (turn % 251) as u8);
                }
            }
            is_over.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(reader.join().expect("only correct values") > 4, "the reader read values");
            }
        });
    }
}

/// Over shm each read queues at one worker, which may sleep; the client also has connections to the others.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn threads_starting_together_share_endpoints() {
    const THREADS: usize = 32;
    let (_server, address, path) = served("fabric-begin", "");
    let control = beside(&path.0);
    let cache = over(&address, options(FabricMode::Request));
    let begin = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (cache, begin) = (&cache, &begin);
            scope.spawn(move || {
                begin.wait();
                let key = format!("key{number}");
                cache.set(key.as_bytes(), &pattern(number, 100), Ttl::NEVER).expect("stored");
                assert!(
                    cache.get(key.as_bytes()).expect("answered").expect("there").value
                        == pattern(number, 100)
                );
            });
        }
    });
    let opened = stat(&control, "fabcache", "fabric_attached");
    assert!((1..THREADS as u64 / 2).contains(&opened), "{opened} ends");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_work_with_connections_on_any_worker() {
    const READS: u64 = 1500;
    let (_server, address, path) = served("fabric-workers", "-t 4 -m 64");
    let control = at(&path.0);
    for round in 0..6 {
        let cache = over(&address, options(FabricMode::OneSided));
        let value = pattern(round, 100);
        cache.set(b"key", &value, Ttl::NEVER).expect("stored");
        assert!(cache.get(b"key").expect("answered").expect("there").value == value);
        // Non-blocking calls use their own connection.
        let mut request = cache.iset("key", value.clone(), Ttl::NEVER);
        assert_eq!(request.wait().result.expect("stored"), Outcome::Stored);
        let before = stat(&control, "", "cmd_get");
        for _ in 0..READS {
            assert!(cache.get(b"key").expect("answered").expect("there").value == value);
        }
        let requested = stat(&control, "", "cmd_get") - before;
        // Reads that time out become requests, as do those shortly after them.
        assert!(requested < READS / 20, "round {round}: {requested} of {READS} reads became requests");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn refused_client_fails_or_falls_back_to_tcp() {
    let without = Running::tcp("");
    let cache = over(&without.address(), options(FabricMode::Auto));
    let error = cache.set(b"key", b"v", Ttl::NEVER).expect_err("the server has no fabric");
    assert!(matches!(&error, Error::Server { failure: Failure::Rejected(_), .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("fab://") && text.contains("not over the fabric") && text.contains("--fabric"),
        "{text}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("it has one"));
    let foreign = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        let mut lines = BufReader::new(socket.try_clone().expect("a descriptor")).lines();
        while let Some(Ok(line)) = lines.next() {
            let answer: &[u8] = if line == "mn" { b"MN\r\n" } else { b"ERROR\r\n" };
            socket.write_all(answer).expect("it reads");
        }
    });
    let cache = over(&address, options(FabricMode::Auto));
    let text = cache.get(b"key").expect_err("the server does not know the command").to_string();
    assert!(text.contains("the server has no fabric; it answers \"ERROR\""), "{text}");
    drop(cache);
    foreign.join().expect("it is gone");
    let or_tcp = Options { fabric: Fabric { or_tcp: true, ..Fabric::default() }, ..Options::default() };
    let cache = over(&without.address(), or_tcp);
    cache.set(b"key", b"v", Ttl::NEVER).expect("by TCP");
    let [Some(Transport::InsteadOfFabric { why })] = &cache.transports()[..] else { panic!("by TCP") };
    assert!(why.contains("--fabric"), "{why}");

    let server = Running::tcp(&flags(""));
    let fabric = Fabric { provider: Some("nobodys".into()), ..Fabric::default() };
    let cache = over(&server.address(), Options { fabric, ..Options::default() });
    let text = cache.set(b"key", b"v", Ttl::NEVER).expect_err("another provider").to_string();
    assert!(text.contains("\"nobodys\""), "{text}");
    let elsewhere = Running::tcp(&flags("--fabric-peers 192.0.2.0/24"));
    let cache = over(&elsewhere.address(), options(FabricMode::Auto));
    let text = cache.get(b"key").expect_err("this host is not allowed").to_string();
    assert!(text.contains("--fabric-peers"), "{text}");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_of_another_address_family_is_served() {
    // The fabric endpoint of this host has an IPv4 address.
    let server = Running::start(&format!("-l [::1] -p -1 {}", flags("")));
    let cache = over(&server.address(), options(FabricMode::OneSided));
    cache.set(b"key", b"by IPv6", Ttl::NEVER).expect("it is stored");
    assert_eq!(cache.get(b"key").expect("it is got").map(|item| item.value), Some(b"by IPv6".to_vec()));
    assert!(is_one_sided(&cache));
}

/// Plays a server that offers the fabric with a nonexistent endpoint; counts the attempts.
fn answer_no_end(socket: TcpStream, hello: &str, attached: &AtomicUsize) {
    let mut socket = BufReader::new(socket);
    let mut line = String::new();
    while socket.read_line(&mut line).is_ok_and(|len| len > 0) {
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["fabric", "hello", ..] => hello.to_owned(),
            ["fabric", "attach", ..] => {
                attached.fetch_add(1, Ordering::Relaxed);
                // 127.0.0.1, port 1; and a secret.
                let (name, secret) = ("AgAAAX8AAAEAAAAAAAAAAA==", "A".repeat(256));
                format!("FABRIC {name} ff 8 4096 5 4096 7 {secret} 0\r\n")
            }
            ["mn"] => "MN\r\n".to_owned(),
            _ => "EN\r\n".to_owned(),
        };
        if socket.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn unreachable_endpoint_fails_or_falls_back_to_tcp() {
    let real = Running::tcp(&flags(""));
    let mut requested =
        BufReader::new(TcpStream::connect(real.address().replace("tcp://", "")).expect("it listens"));
    let versions = format!("{} {}", fabcache_fabric::channel::CHANNEL_VERSION, FORMAT_VERSION);
    requested.get_mut().write_all(format!("fabric hello {versions}\r\n").as_bytes()).expect("it takes it");
    let mut hello = String::new();
    requested.read_line(&mut hello).expect("it answers");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("fab://{}", listener.local_addr().expect("it has one"));
    let (attached, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (hello, attached, listener, is_over) = (&hello, &attached, &listener, &is_over);
        scope.spawn(move || {
            for socket in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let socket = socket.expect("a connection");
                scope.spawn(move || answer_no_end(socket, hello, attached));
            }
        });
        let (timeout, retry_after) = (Duration::from_secs(1), Duration::from_secs(3600));
        for or_tcp in [false, true] {
            let fabric = Fabric { or_tcp, ..options(FabricMode::Auto).fabric };
            let cache = over(&address, Options { fabric, timeout, retry_after, ..options(FabricMode::Auto) });
            let began = Instant::now();
            let got = cache.get(b"key");
            assert!(began.elapsed() < Duration::from_secs(30), "{got:?} took too long");
            if !or_tcp {
                let text = got.expect_err("the endpoint does not exist").to_string();
                assert!(text.contains("cannot connect: the fabric was agreed on, but not reached"), "{text}");
                continue;
            }
            assert_eq!(got.expect("by TCP"), None);
            let [Some(Transport::InsteadOfFabric { why })] = &cache.transports()[..] else {
                panic!("by TCP")
            };
            assert!(why.contains("not reached"), "{why}");
            // The client remembers the failure for a while.
            let before = attached.load(Ordering::Relaxed);
            assert!(cache.iget("key", Vec::new()).wait().result.is_ok());
            assert_eq!(attached.load(Ordering::Relaxed), before);
        }
        is_over.store(true, Ordering::Relaxed);
        TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
    });
}

#[test]
#[ignore = "a server, run by the others"]
fn serve() {
    if std::env::var_os("FABCACHE_TEST_SOCKET").is_some() {
        common::process::serve();
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn killed_server_fails_calls_and_its_successor_is_found() {
    for mode in MODES {
        let name = format!("fabric-killed-{mode:?}");
        let (mut server, address, leftover) = served(&name, "");
        let retry_after = Duration::from_millis(1);
        let cache = over(&address, Options { retry_after, timeout: Duration::from_secs(5), ..options(mode) });
        cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
        assert!(cache.get(b"key").expect("answered").is_some());
        server.stop_asleep();
        server.0.kill();
        let began = Instant::now();
        let error = cache.get(b"key").expect_err("the server was killed");
        assert!(began.elapsed() < Duration::from_secs(15), "{error} took too long");
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        assert!(cache.set(b"key", b"value", Ttl::NEVER).is_err());
        let port = address.rsplit(':').next().expect("a port");
        let _next = Server::started(&leftover.0, &flags(&format!("-l 127.0.0.1 -p {port}")));
        until_up(|| cache.set(b"next", b"other", Ttl::NEVER).is_ok());
        assert_eq!(cache.get(b"key").expect("answered"), None, "{mode:?}: the successor is empty");
        assert_eq!(cache.get(b"next").expect("answered").expect("there").value, b"other");
        is_one_sided(&cache);
    }
}

const ADDRESS: &str = "FABCACHE_TEST_ADDRESS";

#[test]
#[ignore = "a client, run by the others"]
fn client_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let cache = over(&address, options(FabricMode::OneSided));
    let value = vec![1; 300_000];
    for number in 0.. {
        cache.set(format!("{}", number % 10).as_bytes(), &value, Ttl::NEVER).expect("stored");
        cache.get(format!("{}", number % 7).as_bytes()).expect("answered");
    }
}

#[test]
#[ignore = "a client, run by the others"]
fn client_process_without_memlock() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    // Root may lock any amount of memory, by a capability.
    let mut sets = capabilities(None).expect("reading own capabilities is allowed");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("dropping capabilities is allowed");
    let limit = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
    prlimit(None, Resource::Memlock, limit).expect("lowering a limit is allowed");
    let error = over(&address, options(FabricMode::Auto)).set(b"key", b"v", Ttl::NEVER);
    let text = error.expect_err("the fabric is required").to_string();
    assert!(text.contains("not over the fabric") && text.contains("ulimit -l"), "{text}");
    let mut or_tcp = options(FabricMode::Auto);
    or_tcp.fabric.or_tcp = true;
    let cache = over(&address, or_tcp);
    cache.set(b"key", b"value", Ttl::NEVER).expect("by TCP");
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
    let [Some(Transport::InsteadOfFabric { why })] = &cache.transports()[..] else { panic!("by TCP") };
    assert!(why.contains("ulimit -l"), "{why}");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn client_without_memlock_fails_or_falls_back_to_tcp() {
    if !provider().starts_with("verbs") {
        return not_run(
            "client_without_memlock_fails_or_falls_back_to_tcp",
            &format!("{} pins no memory", provider()),
        );
    }
    let (_server, address, _path) = served("fabric-pin", "-m 64");
    let status = again("client_process_without_memlock").env(ADDRESS, &address).status();
    assert!(status.expect("it starts").success(), "the client process reports why");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn killed_clients_leak_nothing() {
    let (_server, address, path) = served("fabric-clients", "-m 64");
    let control = beside(&path.0);
    let mut buffers = None;
    for _ in 0..amount(4, 2) {
        let mut client = Process(again("client_process").env(ADDRESS, &address).spawn().expect("it starts"));
        wait_until("the client stores", || stat(&control, "", "cmd_set") > 20);
        control.stats("reset").remove(0).expect("answered");
        client.kill();
        wait_until("the link is closed", || on_fabric(&control) == 0);
        // The next client reuses its memory.
        let now = stat(&control, "fabcache", "fabric_buffer_bytes");
        assert_eq!(*buffers.get_or_insert(now), now);
    }
    let cache = over(&address, options(FabricMode::Auto));
    cache.set(b"after", b"all", Ttl::NEVER).expect("stored");
    assert_eq!(cache.get(b"after").expect("answered").expect("there").value, b"all");
}

/// Returns the number of clients on the fabric.
fn on_fabric(control: &Client) -> usize {
    let conns = control.stats("conns").remove(0).expect("the server answers");
    conns.iter().filter(|(name, value)| name.ends_with(":addr") && value.starts_with("fab:")).count()
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn stopped_server_is_readable_with_one_sided_reads() {
    let (server, address, path) = served("fabric-stopped", "");
    let timeout = Duration::from_secs(6);
    let cache = over(&address, Options { timeout, failures_max: u32::MAX, ..options(FabricMode::OneSided) });
    for number in 0..100 {
        cache
            .set(format!("key{number}").as_bytes(), &pattern(number, number * 100), Ttl::NEVER)
            .expect("stored");
    }
    // The endpoints are connected by now.
    assert!(cache.get(b"key1").expect("answered").is_some());
    let auto = over(&address, options(FabricMode::Auto));
    auto.get(b"key1").expect("answered");
    let is_one_sided = is_one_sided(&auto);
    server.stop_asleep();
    thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    if is_one_sided {
        for number in 0..100 {
            let item = cache.get(format!("key{number}").as_bytes()).expect("read").expect("there");
            assert!(item.value == pattern(number, number * 100), "{number}");
        }
        assert_eq!(cache.get(b"none").expect("read"), None);
    } else {
        let got = cache.get(b"key2");
        if provider() == "shm" {
            // The kernel copies from the server's memory, stopped or not.
            assert!(got.expect("read").expect("there").value == pattern(2, 200));
        } else {
            let error = got.expect_err("the server is stopped");
            let is_timeout = matches!(
                &error,
                Error::Server { failure: Failure::Broken(error), .. }
                    if error.kind() == std::io::ErrorKind::TimedOut
            );
            assert!(is_timeout, "{error:?}");
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    server.resume();
    let later = patient(&path.0);
    until_up(|| later.set(b"up", b"", Ttl::NEVER).is_ok());
    until_up(|| cache.set(b"key", b"value", Ttl::NEVER).is_ok());
    assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
}

/// Over shm, libfabric 1.17 crashes a server that finds a connect request of an endpoint that has since closed.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn resumed_server_survives_readers_that_left_meanwhile() {
    let (mut server, address, path) = served("fabric-left", "");
    let (timeout, later) = (Duration::from_millis(500), patient(&path.0));
    for round in 0..3 {
        let cache =
            over(&address, Options { timeout, failures_max: u32::MAX, ..options(FabricMode::OneSided) });
        until_up(|| cache.set(b"key", b"value", Ttl::NEVER).is_ok());
        server.stop_asleep();
        let got = cache.get(b"key");
        // An earlier reader may be connected by now, and the kernel serves reads of a stopped server's memory.
        assert!(
            got.is_err() || round > 0,
            "{got:?}: the endpoints are not connected, and the server is stopped"
        );
        drop(cache);
        server.resume();
        until_up(|| later.set(b"up", b"", Ttl::NEVER).is_ok());
        assert_eq!(server.0.0.try_wait().expect("a child"), None, "round {round}: the server exited");
    }
    let cache = over(&address, options(FabricMode::OneSided));
    for _ in 0..10 {
        assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
    }
}

/// A TCP proxy in front of a server, which can be cut.
struct Passage {
    address: String,
    is_cut: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Passage {
    /// Forwards to the server at this TCP address.
    fn to(address: &str) -> Passage {
        let to = address.trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("tcp://{}", listener.local_addr().expect("it listens"));
        let (is_cut, sockets) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let passage = Passage { address, is_cut: Arc::clone(&is_cut), sockets: Arc::clone(&sockets) };
        thread::spawn(move || {
            for client in listener.incoming().flatten().filter(|_| !is_cut.load(Ordering::Relaxed)) {
                let Ok(server) = TcpStream::connect(&to) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let mut from = from.try_clone().expect("a descriptor");
                    let mut to = to.try_clone().expect("a descriptor");
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                sockets.lock().expect("no panic").push(client);
            }
        });
        passage
    }

    /// Closes the clients' connections, and rejects new ones.
    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        for socket in self.sockets.lock().expect("no panic").drain(..) {
            // The connection may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Runs a call against a stopped server, and resumes the server when `meanwhile` returns; `meanwhile` can ask whether
/// the call has returned.
fn while_stopped<R: Send>(
    server: &Server,
    call: impl FnOnce() -> R + Send,
    meanwhile: impl FnOnce(&dyn Fn() -> bool),
) -> R {
    server.stop_asleep();
    thread::scope(|scope| {
        let called = scope.spawn(call);
        thread::sleep(Duration::from_millis(100));
        meanwhile(&|| called.is_finished());
        server.resume();
        called.join().expect("no panic")
    })
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn reads_fail_when_the_servers_connections_close() {
    let (server, address, _path) = served("fabric-cut", "");
    let passage = Passage::to(&address);
    let retry_after = Duration::from_millis(1);
    let cache = over(&passage.address, Options { retry_after, ..options(FabricMode::OneSided) });
    for asks_again in [true, false] {
        passage.is_cut.store(false, Ordering::Relaxed);
        until_up(|| cache.set(b"key", b"value", Ttl::NEVER).is_ok());
        assert_eq!(cache.get(b"key").expect("answered").expect("there").value, b"value");
        let get = || {
            let began = Instant::now();
            let mut request = cache.iget("key", Vec::new());
            while asks_again && !request.test() {
                thread::sleep(Duration::from_millis(1));
            }
            (request.wait().result, began.elapsed())
        };
        let (result, took) = while_stopped(&server, get, |is_over| {
            passage.cut();
            wait_until("the read fails", is_over);
        });
        // A successful read happened before the stop. Reads alone would be waited for up to two seconds.
        assert!(result.is_err() || took < Duration::from_secs(1), "{result:?} after {took:?}");
        assert!(took < Duration::from_millis(1800), "{took:?}");
    }
    passage.is_cut.store(false, Ordering::Relaxed);
    until_up(|| cache.get(b"key").is_ok_and(|item| item.is_some_and(|item| item.value == b"value")));
}

/// Counts this process's endpoints of the provider shm: each is a file named after it.
fn own_ends() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("on Linux");
    let name = format!("/dev/shm/{}:", std::process::id());
    maps.lines().filter(|line| line.contains(&name)).count()
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn memory_of_a_closed_link_is_not_written() {
    const BYTES: usize = 1 << 20;
    const TIMEOUT: Duration = Duration::from_millis(500);
    let (server, address, path) = served("fabric-late", "-m 256 -I 128m");
    let address_of_socket = format!("unix://{}", path.0);
    let slow = Options { timeout: Duration::from_secs(30), ..Options::default() };
    let control = fabcache_client::Client::new([address_of_socket], slow).expect("an address");
    // No byte of the value is 0.
    let value = vec![0xee; 64 << 20];
    control.set(b"long", &value, Ttl::NEVER).expect("stored");
    let others = stat(&control, "", "curr_connections");
    let new_client = || {
        let options = Options { timeout: TIMEOUT, connect_timeout: TIMEOUT, ..options(FabricMode::Request) };
        let cache = over(&address, Options { retry_after: Duration::from_millis(1), ..options });
        until_up(|| cache.set(b"key", b"value", Ttl::NEVER).is_ok());
        cache
    };
    for round in 0..4 {
        let cache = new_client();
        server.stop_asleep();
        // On a busy machine the read may have timed out by then.
        let is_there = own_ends() > 0;
        let got = cache.get(b"long").map(drop);
        drop(cache);
        let is_kept = own_ends() > 0;
        assert!(
            is_kept || !is_there,
            "{round}: released while the server may still write to it; get: {got:?}"
        );
        // Reuse the freed memory, as programs do.
        let memory: Vec<Vec<u8>> = (0..32).map(|_| vec![0; BYTES]).collect();
        memory.iter().for_each(|block| assert!(block[0] == 0));
        server.resume();
        wait_until("the link is closed", || stat(&control, "", "curr_connections") <= others);
        let is_written = memory.iter().any(|block| block.iter().any(|byte| *byte != 0));
        assert!(!is_written, "{round}: the server wrote to released memory; get: {got:?}");
    }
    let is_given_back = || {
        let _cache = new_client();
        own_ends() == 1
    };
    if provider() == "shm" {
        wait_until("the memory of ended reads is released", is_given_back);
    }
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
