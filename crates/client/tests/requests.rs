//! Non-blocking calls over sockets, against servers in this process.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Running, awaited_beside_panics, block_on, client};
use fabcache_client::{Client, CompletedRequest, Error, Failure, Options, Outcome, Protocol, Request, Ttl};

/// Memory for what these tests store.
const LARGE: &str = "-m 256 -I 16m";

fn client_with(address: &str, timeout: Duration) -> Client {
    let options = Options { timeout, failures_max: u32::MAX, protocol: Protocol::Meta, ..Options::default() };
    Client::new([address], options).expect("an address")
}

/// Returns the `i`th value: all lengths from 0 to 5 MiB, long ones rarely.
fn value_of(i: usize) -> Vec<u8> {
    let len = match i % 250 {
        17 => 5 << 20,
        3 | 120 => 1 << 20,
        n if n % 5 == 0 => 4 << 10,
        n if n % 5 == 1 => 0,
        n => n,
    };
    let cycle: Vec<u8> = (0..251).map(|at| (at * 31 + i) as u8).collect();
    let mut value = cycle.repeat(len / cycle.len() + 1);
    value.truncate(len);
    value
}

fn failure(completed: CompletedRequest) -> Failure {
    match completed.result {
        Err(Error::Server { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

/// Makes `count` operations of each pair with `window` in flight, reusing the request objects.
fn windows(cache: &Client, window: usize, count: usize, polls: bool) {
    let mut requests: Vec<(Request, Option<usize>)> = (0..window).map(|_| (cache.request(), None)).collect();
    for pass in ["set", "get"] {
        for i in 0..count + window {
            let (request, before) = &mut requests[i % window];
            if let Some(requested) = before.take() {
                while polls && !request.test() {
                    thread::yield_now();
                }
                let completed = request.wait();
                let key = format!("key {requested}");
                let owned = requested % 2 == 0;
                assert_eq!(completed.key, if owned { key.as_bytes() } else { b"" });
                match completed.result.as_ref().expect("answered") {
                    Outcome::Stored if pass == "set" => {
                        assert!(completed.value == if owned { value_of(requested) } else { Vec::new() });
                    }
                    Outcome::Found { flags: 0, cas } if pass == "get" && *cas > 0 => {
                        assert!(completed.value == value_of(requested), "{requested}");
                    }
                    other => panic!("{pass} {requested}: {other:?}"),
                }
            }
            if i < count {
                let key = format!("key {i}");
                match (pass, i % 2) {
                    ("set", 0) => request.iset(key, value_of(i), Ttl::NEVER),
                    ("set", _) => request.bset(key.as_bytes(), &value_of(i), Ttl::NEVER),
                    (_, 0) => request.iget(key, vec![7; i % 9000]),
                    _ => request.bget(key.as_bytes(), Vec::new()),
                }
                *before = Some(i);
            }
        }
    }
}

#[test]
fn non_blocking_windows_complete_for_every_call() {
    let server = Running::tcp(LARGE);
    let (_unix, path) = Running::unix("windows", LARGE);
    for (turn, (window, count)) in [(1, 30), (8, 130), (32, 260), (1000, 1_500)].into_iter().enumerate() {
        windows(&client(&server.address()), window, count, turn % 2 == 0);
        windows(&client(&path), window, count, turn % 2 == 1);
    }
}

#[test]
fn requests_beyond_the_in_flight_limit_complete() {
    let server = Running::tcp(LARGE);
    let cache = client(&server.address());
    let requests: Vec<Request> =
        (0..3_000).map(|i| cache.iset(format!("{i}"), format!("v{i}"), Ttl::NEVER)).collect();
    for mut request in requests {
        assert_eq!(request.wait().result.expect("answered"), Outcome::Stored);
    }
    assert_eq!(cache.get(b"2999").expect("answered").expect("stored").value, b"v2999");
}

#[test]
fn misses_refusals_and_invalid_requests_are_reported() {
    let server = Running::tcp(LARGE);
    let cache = client(&server.address());
    let mut miss = cache.iget("nothing", b"old".to_vec());
    let mut huge = cache.iset("huge", vec![1; 20 << 20], Ttl::NEVER);
    let mut behind = cache.iset("behind", "it", Ttl::seconds(100));
    let completed = miss.wait();
    assert_eq!((completed.key.as_slice(), completed.value.as_slice()), (&b"nothing"[..], &b""[..]));
    assert_eq!(completed.result.expect("answered"), Outcome::NotFound);
    let completed = huge.wait();
    assert_eq!(completed.value.len(), 20 << 20, "the value is returned nevertheless");
    assert!(matches!(failure(completed), Failure::Refused(why) if why.contains("too large")));
    assert_eq!(behind.wait().result.expect("the connection goes on"), Outcome::Stored);

    behind.bset(b"with space\n", b"in base64", Ttl::NEVER);
    assert_eq!(behind.wait().result.expect("answered"), Outcome::Stored);
    behind.iget(b"with space\n", Vec::new());
    assert_eq!(behind.wait().item().expect("answered").expect("stored").value, b"in base64");

    assert!(matches!(behind.wait().result, Err(Error::NothingAsked)));
    let mut wrong = cache.iget(vec![b'k'; 251], Vec::with_capacity(99));
    assert!(wrong.test());
    let completed = wrong.wait();
    assert!(matches!(completed.result, Err(Error::Key(251))) && completed.key.len() == 251);
    assert!(completed.value.capacity() >= 99, "the buffer is returned");
    wrong.bget(b"behind", completed.value);
    assert_eq!(wrong.wait().item().expect("answered").expect("stored").value, b"it");
}

#[test]
fn get_buffer_is_reused() {
    let server = Running::tcp(LARGE);
    let cache = client(&server.address());
    cache.set(b"k", &value_of(3), Ttl::NEVER).expect("stored");
    let (mut key, mut buffer) = (b"k".to_vec(), Vec::with_capacity(2 << 20));
    let places = (key.as_ptr(), buffer.as_ptr());
    let mut request = cache.request();
    for _ in 0..5 {
        request.iget(key, buffer);
        let completed = request.wait();
        assert!(completed.value == value_of(3));
        (key, buffer) = (completed.key, completed.value);
        assert_eq!((key.as_ptr(), buffer.as_ptr()), places);
    }
    let place = buffer.as_ptr();
    request.iset("l", buffer, Ttl::NEVER);
    assert_eq!(request.wait().value.as_ptr(), place, "no copy");
    assert!(cache.get(b"l").expect("answered").expect("stored").value == value_of(3));
}

#[test]
fn values_of_any_owner_are_stored_without_a_copy() {
    let server = Running::tcp(LARGE);
    let cache = client(&server.address());
    let values: Vec<Arc<[u8]>> = (0..8).map(|i| value_of(i * 250 + 17).into()).collect();
    let mut requests: Vec<Request> = values.iter().map(|_| cache.request()).collect();
    for (i, (request, value)) in requests.iter_mut().zip(&values).enumerate() {
        request.iset_from(format!("key {i}").as_bytes(), Arc::clone(value), Ttl::NEVER, 3);
    }
    for (request, value) in requests.iter_mut().zip(&values) {
        let completed = request.wait();
        assert_eq!(completed.result.expect("stored"), Outcome::Stored);
        assert!(completed.key.is_empty() && completed.value.is_empty());
        assert_eq!(Arc::strong_count(value), 1, "the value is released on completion");
    }
    for (i, value) in values.iter().enumerate() {
        let item = cache.get(format!("key {i}").as_bytes()).expect("answered").expect("stored");
        assert!(item.value[..] == value[..] && item.flags == 3);
    }
    requests[0].iset_from(b"", Arc::clone(&values[0]), Ttl::NEVER, 0);
    assert!(matches!(requests[0].wait().result, Err(Error::Key(0))));
    assert_eq!(Arc::strong_count(&values[0]), 1);
}

#[test]
fn dropped_requests_leave_the_connection_usable() {
    let server = Running::tcp(LARGE);
    let cache = client(&server.address());
    for turn in 0..20 {
        for i in 0..10 {
            drop(cache.iset(format!("{turn} {i}"), value_of(turn * 10 + i), Ttl::NEVER));
            drop(cache.iget(format!("{turn} {i}"), Vec::new()));
        }
        // More than a socket's buffers hold: half sent when it is dropped.
        drop(cache.iset("half", value_of(17), Ttl::NEVER));
        let mut used_again = cache.iget("half", Vec::new());
        used_again.iget(format!("{turn} 9"), Vec::new());
        let item = used_again.wait().item().expect("answered").expect("stored");
        assert!(item.value == value_of(turn * 10 + 9));
    }
    assert!(cache.get(b"half").expect("answered").expect("stored").value == value_of(17));
}

/// Three hundred of every kind of call, followed by more than sockets hold.
fn many_requests(cache: &Client) -> Vec<Request> {
    let mixed = (0..300).map(|i| match i % 3 {
        0 => cache.iset(format!("{i}"), value_of(i), Ttl::NEVER),
        1 => cache.bset(format!("{i}").as_bytes(), &value_of(i), Ttl::NEVER),
        _ => cache.bget(format!("{}", i - 1).as_bytes(), Vec::new()),
    });
    mixed.chain((0..4).map(|i| cache.iset(format!("{i}"), vec![1; 15 << 20], Ttl::NEVER))).collect()
}

#[test]
fn stopping_the_server_fails_all_requests() {
    for waited_for in [0, 100] {
        let (server, path) = Running::unix("stopped", LARGE);
        let cache = client_with(&path, Duration::from_secs(20));
        let mut requests = many_requests(&cache);
        for request in &mut requests[..waited_for] {
            request.wait().result.expect("it runs");
        }
        let waiting = thread::spawn(move || {
            for request in &mut requests[waited_for..] {
                assert!(matches!(
                    request.wait().result,
                    Ok(_) | Err(Error::Server { failure: Failure::Broken(_), .. })
                ));
            }
        });
        drop(server);
        waiting.join().expect("nothing hangs");
        assert!(cache.iget("k", Vec::new()).wait().result.is_err(), "the server is stopped");
        let again = Running::unix("stopped", LARGE);
        let cache = client_with(&path, Duration::from_secs(20));
        assert_eq!(cache.iget("k", Vec::new()).wait().result.expect("another"), Outcome::NotFound);
        drop(again);
    }
}

/// A proxy that closes the connection after this many bytes of replies.
fn cut_off(server: &str, mut answers_len: usize) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    let server = server.strip_prefix("tcp://").expect("TCP").to_owned();
    let run = move || {
        let (mut client, _) = listener.accept().expect("a client");
        drop(listener);
        let mut server = TcpStream::connect(server).expect("it runs");
        let (mut from, mut to) = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
        let asking = thread::spawn(move || std::io::copy(&mut from, &mut to));
        let mut answers = vec![0; 64 << 10];
        while answers_len > 0 {
            let most = answers.len().min(answers_len);
            let len = server.read(&mut answers[..most]).expect("it answers");
            assert!(len > 0, "it answers more");
            client.write_all(&answers[..len]).expect("it listens");
            answers_len -= len;
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
        let _ = asking.join().expect("it copied");
    };
    (address, thread::spawn(run))
}

#[test]
fn cut_connection_fails_every_unanswered_request() {
    let server = Running::tcp(LARGE);
    // Cut in a line, in a value, after a reply, in a long value, and before everything.
    for (turn, answers_len) in [3, 800, "HD O0\r\n".len(), 1_000_000, 0].into_iter().enumerate() {
        client(&server.address()).flush(0).expect("flushed");
        let (address, relay) = cut_off(&server.address(), answers_len);
        let cache = client_with(&address, Duration::from_secs(20));
        let requests = many_requests(&cache);
        let wait = |mut request: Request| if turn % 2 == 0 { request.wait() } else { block_on(request) };
        let results: Vec<bool> = requests.into_iter().map(|request| wait(request).result.is_ok()).collect();
        let answered = results.iter().take_while(|is_ok| **is_ok).count();
        assert!(answered < results.len() && results[answered..].iter().all(|is_ok| !is_ok), "{results:?}");
        assert_eq!(answered > 0, answers_len > 3, "{answered} after {answers_len} bytes");
        relay.join().expect("it relayed");
    }
}

/// Accepts this many connections, reads their requests, and sends each the same reply.
fn sayer(says: &'static [u8], connections: usize) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    let run = move || {
        for _ in 0..connections {
            let (mut stream, _): (TcpStream, _) = listener.accept().expect("a client");
            let mut request = [0; 4096];
            while stream.read(&mut request).is_ok_and(|len| len > 0) {
                if stream.write_all(says).is_err() {
                    break;
                }
            }
        }
    };
    (address, thread::spawn(run))
}

#[test]
fn silent_or_invalid_server_fails_all_requests_in_time() {
    for says in [&b""[..], b"NONSENSE\r\n", b"HD O77\r\n", b"VA 99 O0\r\nab", b"VA 1 O0\r\nabcde"] {
        let (address, server) = sayer(says, 2);
        let cache = client_with(&address, Duration::from_millis(200));
        let begun = Instant::now();
        let requests: Vec<Request> = (0..50).map(|i| cache.iget(format!("{i}"), Vec::new())).collect();
        let mut requests = requests.into_iter();
        let last = requests.next_back().expect("there are 50");
        let error = failure(block_on(last));
        assert!(matches!(error, Failure::Broken(_) | Failure::Protocol(_)), "{error}");
        if says.is_empty() {
            assert!(begun.elapsed() >= Duration::from_millis(200), "not before the timeout");
            assert!(matches!(error, Failure::Broken(why) if why.kind() == std::io::ErrorKind::TimedOut));
        }
        for mut request in requests {
            assert!(request.test(), "all end with the connection");
            assert!(request.wait().result.is_err());
        }
        let mut next = cache.iset("k", "v", Ttl::NEVER);
        while !next.test() {
            thread::yield_now();
        }
        assert!(next.wait().result.is_err(), "the next connection gets the same reply");
        drop((cache, next));
        server.join().expect("it served");
    }
}

#[test]
fn threads_share_a_connection_and_hand_over_requests() {
    let server = Running::tcp(LARGE);
    let cache = client(&server.address());
    let (passed, received) = std::sync::mpsc::channel::<(usize, Request)>();
    thread::scope(|scope| {
        for id in 0..4 {
            let (cache, passed) = (cache.clone(), passed.clone());
            scope.spawn(move || {
                for i in (0..400).map(|i| id * 400 + i) {
                    let mut stored = cache.iset(format!("{i}"), value_of(i), Ttl::NEVER);
                    if i % 3 == 0 {
                        assert_eq!(stored.wait().result.expect("answered"), Outcome::Stored);
                    }
                    passed.send((i, cache.bget(format!("{i}").as_bytes(), Vec::new()))).expect("received");
                }
            });
        }
        drop(passed);
        for (i, mut request) in received {
            let item = request.wait().item().expect("answered").expect("read after the set");
            assert!(item.value == value_of(i), "{i}");
        }
    });
}

#[test]
fn futures_need_no_runtime() {
    let servers = [Running::tcp(LARGE), Running::tcp(LARGE)];
    let cache = Client::new(servers.iter().map(Running::address), Options::default()).expect("addresses");
    block_on(async {
        let mut request = cache.request();
        for i in 0..300 {
            request.iset(format!("{i}"), value_of(i), Ttl::NEVER);
            assert_eq!((&mut request).await.result.expect("answered"), Outcome::Stored);
            request.iget(format!("{i}"), Vec::new());
            if i % 10 == 0 {
                continue;
            }
            assert!((&mut request).await.item().expect("answered").expect("stored").value == value_of(i));
        }
    });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let requested: Vec<Request> =
                    (0..300).map(|i| cache.iget(format!("{i}"), Vec::new())).collect();
                for (i, request) in requested.into_iter().enumerate().rev() {
                    let item = block_on(request).item().expect("answered").expect("stored");
                    assert!(item.value == value_of(i), "{i}");
                }
            });
        }
    });
}

#[test]
fn clients_and_requests_are_send() {
    fn is_sync<T: Send + Sync>() {}
    is_sync::<Client>();
    is_sync::<Request>();
}

#[test]
fn panicking_waker_does_not_block_other_wakers() {
    const COUNT: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("it listens"));
    let cache = client_with(&address, Duration::from_secs(60));
    thread::scope(|scope| {
        let (answers, may_answer) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
            for _ in 0..2 {
                let (mut requested, mut lines) = ([0; 4096], 0);
                while lines < COUNT {
                    let len = socket.read(&mut requested).expect("it asks");
                    lines += requested[..len].iter().filter(|byte| **byte == b'\n').count();
                }
                may_answer.recv().expect("no panic");
                socket.write_all("EN\r\n".repeat(COUNT).as_bytes()).expect("it listens");
            }
        });
        for _ in 0..2 {
            let requests = (0..COUNT).map(|number| cache.iget(format!("key{number}"), Vec::new())).collect();
            let completed = awaited_beside_panics(requests, || answers.send(()).expect("no panic"));
            assert_eq!(completed.len(), COUNT);
            for completed in completed {
                assert_eq!(completed.result.expect("answered"), Outcome::NotFound);
            }
        }
    });
}
