//! Values read over the fabric into registered memory. `FABCACHE_PROVIDER` names libfabric's provider.

mod common;

use fabcache_testbed::bytes::pattern;
use std::thread;
use std::time::Duration;

use common::fabric::{beside, options, over, provider, served};
use common::process::{patient, until_up, wait_until};
use common::{Running, block_on};
use fabcache_client::{
    Client, CompletedRequest, FabricMode, Mode, Options, Outcome, RegisteredBuffer, Request, Stored, Ttl,
};
use fabcache_testbed::wait::amount;

const MODES: [FabricMode; 3] = [FabricMode::Auto, FabricMode::OneSided, FabricMode::Request];

fn get(cache: &Client, key: &str, buffer: &mut RegisteredBuffer) -> Option<u32> {
    match cache.get_registered(key.as_bytes(), buffer).expect("answered") {
        Outcome::Found { flags, .. } => Some(flags),
        Outcome::NotFound => {
            assert!(buffer.is_empty(), "a miss empties the buffer");
            None
        }
        Outcome::Stored => panic!("nothing was stored"),
    }
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
fn values_of_all_lengths_are_read_whole() {
    let (_server, address, _path) = served("registered-lengths", "-m 256 -I 64m");
    let mut lengths =
        vec![0, 1, 64, 1000, 4096, 16 << 10, 65 << 10, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20];
    lengths.extend([3, 100_000, 20 << 20]);
    lengths.truncate(amount(lengths.len(), 9));
    // Values longer than the buffer are read as well.
    const ROOM: usize = 6 << 20;
    for mode in MODES {
        let cache = over(&address, options(mode));
        let mut buffer = cache.register(ROOM);
        assert!(buffer.is_empty() && buffer.room() == ROOM);
        for (number, len) in lengths.iter().copied().enumerate() {
            let (key, value) = (format!("{mode:?}{len}"), pattern(number, len));
            cache.set_with_flags(key.as_bytes(), &value, Ttl::NEVER, 7).expect("stored");
            // By key, then at its cached location.
            for turn in 0..3 {
                assert_eq!(get(&cache, &key, &mut buffer), Some(7), "{mode:?}: {len} bytes");
                assert!(buffer.value() == value, "{mode:?}: {len} bytes");
                let must_be = mode == FabricMode::OneSided && (2048..=ROOM).contains(&len);
                assert!(!must_be || buffer.is_in_place(), "{len} bytes, turn {turn}: {buffer:?}");
            }
        }
        assert_eq!(get(&cache, "none", &mut buffer), None);
        // Too small for most values, and for all.
        for room in [1 << 10, 0] {
            let mut small = cache.register(room);
            for (number, len) in lengths.iter().copied().enumerate() {
                assert!(get(&cache, &format!("{mode:?}{len}"), &mut small).is_some());
                assert!(small.value() == pattern(number, len), "{mode:?}: {len} bytes into {room}");
            }
        }
        let error = cache.get_registered(b"", &mut buffer).expect_err("no key");
        assert!(buffer.is_empty(), "{error}");
    }
}

/// Short and long ones.
fn value(number: usize) -> Vec<u8> {
    pattern(number, if number.is_multiple_of(9) { 700_000 } else { number * 397 % 90_000 })
}

/// Completes a request in one of three ways.
fn completed(request: &mut Request, number: usize) -> CompletedRequest {
    match number % 3 {
        0 => block_on(&mut *request),
        1 => {
            wait_until("the request completes", || request.test());
            assert!(request.take_buffer().is_none(), "the request was not awaited");
            request.wait()
        }
        _ => request.wait(),
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn non_blocking_windows_complete() {
    let (_server, address, _path) = served("registered-windows", "-m 128");
    let count = amount(400, 100);
    for mode in MODES {
        let cache = over(&address, options(mode));
        let key = |number: usize| format!("{mode:?} {}", number % 50);
        for number in 0..50 {
            cache.set(key(number).as_bytes(), &value(number), Ttl::NEVER).expect("stored");
        }
        let mut window: Vec<Request> = (0..20).map(|_| cache.request()).collect();
        let mut buffers: Vec<RegisteredBuffer> = (0..20).map(|_| cache.register(100_000)).collect();
        for number in 0..count + 20 {
            let request = &mut window[number % 20];
            if number >= 20 {
                let completed = completed(request, number);
                assert!(matches!(completed.result, Ok(Outcome::Found { .. })), "{mode:?}: {completed:?}");
                assert!(completed.value.is_empty());
                let buffer = request.take_buffer().expect("it was given one");
                assert!(request.take_buffer().is_none(), "the buffer is returned once");
                assert!(buffer.value() == value((number - 20) % 50), "{mode:?}: {}", number - 20);
                buffers.push(buffer);
            }
            if number < count {
                if number % 7 == 0 {
                    // The request runs unattended.
                    request.iget_registered(key(number + 1), cache.register(100_000));
                }
                request.iget_registered(key(number), buffers.pop().expect("as many as there are requests"));
            }
        }
        let mut request = cache.request();
        request.iget_registered("none", buffers.pop().expect("the buffer was returned"));
        assert_eq!(request.wait().result.expect("answered"), Outcome::NotFound);
        assert!(request.take_buffer().expect("given back").is_empty());
        request.iget_registered("", cache.register(1));
        assert!(request.wait().result.is_err() && request.take_buffer().is_some());
        request.iget("none", Vec::new());
        request.wait().result.expect("answered");
        assert!(request.take_buffer().is_none(), "none was given");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn abandoned_reads_do_not_write_to_released_memory() {
    const LEN: usize = 200_000;
    let (server, address, path) = served("registered-late", "-m 64");
    let (timeout, connect_timeout) = (Duration::from_secs(2), Duration::from_secs(2));
    let spin = Options { timeout, connect_timeout, failures_max: u32::MAX, ..options(FabricMode::OneSided) };
    let cache = over(&address, spin);
    for key in ["one", "other"] {
        cache.set(key.as_bytes(), key.repeat(LEN / key.len()).as_bytes(), Ttl::NEVER).expect("stored");
    }
    let mut buffers: Vec<RegisteredBuffer> = (0..2).map(|_| cache.register(LEN)).collect();
    for buffer in &mut buffers {
        assert_eq!(get(&cache, "one", buffer), Some(0));
        assert!(buffer.is_in_place());
    }
    server.stop_asleep();
    let began: Vec<Request> = buffers
        .drain(..)
        .map(|buffer| {
            let mut request = cache.request();
            request.iget_registered("one", buffer);
            request
        })
        .collect();
    for mut request in began {
        let result = request.wait().result;
        let buffer = request.take_buffer().expect("the buffer is returned whatever the result");
        match result {
            // Some providers read a stopped server.
            Ok(_) => assert!(buffer.value() == "one".repeat(LEN / 3).as_bytes(), "{}", provider()),
            Err(_) => assert!(buffer.is_empty()),
        }
        buffers.push(buffer);
    }
    server.resume();
    let later = patient(&path.0);
    until_up(|| later.set(b"up", b"", Ttl::NEVER).is_ok());
    until_up(|| cache.set(b"up", b"", Ttl::NEVER).is_ok());
    // The first request may complete now.
    for _ in 0..20 {
        for buffer in &mut buffers {
            assert_eq!(get(&cache, "other", buffer), Some(0));
        }
        thread::sleep(Duration::from_millis(10));
        for buffer in &buffers {
            assert!(
                buffer.value() == "other".repeat(LEN / 5).as_bytes(),
                "the buffer was written after its return"
            );
        }
    }
    wait_until("reads are retried", || {
        get(&cache, "other", &mut buffers[0]);
        buffers[0].is_in_place()
    });
}

fn put(buffer: &mut RegisteredBuffer, value: &[u8]) {
    buffer.resize(value.len()).copy_from_slice(value);
    assert!(buffer.value() == value);
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn values_of_all_lengths_are_stored_whole() {
    let (_server, address, path) = served("registered-sets", "-m 256 -I 64m");
    let mut lengths =
        vec![0, 1, 1000, 8000, 16 << 10, (16 << 10) - 1, 65 << 10, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20];
    lengths.extend([3, 100_000, 20 << 20]);
    lengths.truncate(amount(lengths.len(), 9));
    const ROOM: usize = 6 << 20;
    let beside = beside(&path.0);
    let cache = over(&address, options(FabricMode::Auto));
    let mut buffer = cache.register(ROOM);
    // "a key" is encoded on the request line, and its value ends with a newline.
    for key in ["key", "a key"] {
        for (number, len) in lengths.iter().copied().enumerate() {
            let value = pattern(number, len);
            put(&mut buffer, &value);
            cache.set_registered(key.as_bytes(), &mut buffer, Ttl::NEVER, 7).expect("stored");
            assert!(buffer.value() == value, "the buffer keeps its value");
            assert_eq!(
                buffer.is_readable_by_servers(),
                (16 << 10..=ROOM).contains(&len),
                "{len} bytes: {buffer:?}"
            );
            let item = beside.get(key.as_bytes()).expect("answered").expect("stored");
            assert!(item.value == value && item.flags == 7, "{len} bytes");
            // A found value can be changed and stored again.
            assert_eq!(get(&cache, key, &mut buffer), Some(7));
            buffer.value_mut().reverse();
            let stored = cache.store_registered(key.as_bytes(), &mut buffer, Mode::Replace, Ttl::NEVER, 8);
            assert_eq!(stored.expect("answered"), Stored::Stored);
            let item = beside.get(key.as_bytes()).expect("answered").expect("stored");
            assert!(item.value.iter().eq(value.iter().rev()) && item.flags == 8, "{len} bytes");
        }
    }
    let stored = cache.store_registered(b"none", &mut buffer, Mode::Replace, Ttl::NEVER, 0);
    assert_eq!(stored.expect("answered"), Stored::NotStored);
    assert!(cache.set_registered(b"", &mut buffer, Ttl::NEVER, 0).is_err());
    // A value that the server rejects early is still sent to its end.
    let long = pattern(5, 65 << 20);
    let mut large = cache.register(long.len());
    put(&mut large, &long);
    for _ in 0..3 {
        let error = cache.set_registered(b"key", &mut large, Ttl::NEVER, 0).expect_err("too long");
        assert!(error.to_string().contains("oo large"), "{error}");
        large.value_mut().fill(1);
        put(&mut buffer, b"short");
        cache.set_registered(b"key", &mut buffer, Ttl::NEVER, 0).expect("stored");
        assert_eq!(get(&cache, "key", &mut buffer), Some(0));
        assert_eq!(buffer.value(), b"short");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn non_blocking_set_windows_complete() {
    let (_server, address, path) = served("registered-set-windows", "-m 128");
    let count = amount(300, 100);
    let cache = over(&address, options(FabricMode::Auto));
    let beside = beside(&path.0);
    let key = |number: usize| format!("key {}", number % 50);
    let mut window: Vec<Request> = (0..20).map(|_| cache.request()).collect();
    let mut buffers: Vec<RegisteredBuffer> = (0..20).map(|_| cache.register(100_000)).collect();
    for number in 0..count + 20 {
        let request = &mut window[number % 20];
        if number >= 20 {
            let completed = completed(request, number);
            assert!(matches!(completed.result, Ok(Outcome::Stored)), "{completed:?}");
            assert_eq!(completed.key, key(number - 20).as_bytes());
            let buffer = request.take_buffer().expect("it was given one");
            assert!(buffer.value() == value(number - 20), "the buffer is returned unchanged");
            buffers.push(buffer);
        }
        if number < count {
            let mut buffer = buffers.pop().expect("as many as there are requests");
            if number % 7 == 0 {
                // The request runs unattended, and the next one overwrites the value.
                let mut left = cache.register(100_000);
                put(&mut left, &value(number + 1));
                request.iset_registered(key(number), left, Ttl::NEVER, 0);
            }
            put(&mut buffer, &value(number));
            request.iset_registered(key(number), buffer, Ttl::NEVER, 0);
        }
        if number >= 20 && number % 5 == 0 {
            let item = beside.get(key(number - 20).as_bytes()).expect("answered").expect("stored");
            let possible = [number - 20, number + 30, number - 19, number + 31];
            assert!(possible.into_iter().any(|number| item.value == value(number)), "{number}");
        }
    }
    let mut request = cache.request();
    request.iset_registered("", buffers.pop().expect("the buffer was returned"), Ttl::NEVER, 0);
    assert!(request.wait().result.is_err());
    assert!(!request.take_buffer().expect("given back").is_empty());
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn abandoned_sets_store_whole_values_or_nothing() {
    const LEN: usize = 1 << 20;
    let (server, address, path) = served("registered-torn", "-m 128 -I 2m");
    let (timeout, connect_timeout) = (Duration::from_secs(1), Duration::from_secs(2));
    let spin = Options { timeout, connect_timeout, failures_max: u32::MAX, ..options(FabricMode::Request) };
    let is_all = |value: &[u8], byte: u8| value.len() == LEN && value.iter().all(|is| *is == byte);
    let cache = over(&address, spin);
    let later = patient(&path.0);
    for turn in 0..amount(6, 2) as u8 {
        // Separate keys, as an abandoned set may still take effect.
        let key = |number: usize| format!("{turn} {number}");
        let mut buffers: Vec<RegisteredBuffer> = (0..6).map(|_| cache.register(LEN)).collect();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            put(buffer, &vec![turn; LEN]);
            let key = key(number);
            until_up(|| cache.set_registered(key.as_bytes(), buffer, Ttl::NEVER, 0).is_ok());
            buffer.value_mut().fill(0x80 | turn);
        }
        until_up(|| cache.iset("up", "", Ttl::NEVER).wait().result.is_ok());
        // Over shm the server is not stopped while it reads: see `stop_asleep`.
        let is_stopped_first = turn % 2 == 0 || provider() == "shm";
        if is_stopped_first {
            server.stop_asleep();
        }
        let mut one = buffers.remove(0);
        let mut began: Vec<Request> = buffers
            .into_iter()
            .enumerate()
            .map(|(number, buffer)| {
                let mut request = cache.request();
                request.iset_registered(key(number + 1), buffer, Ttl::NEVER, 0);
                request
            })
            .collect();
        if !is_stopped_first {
            // Before the server has read all of them, at varying moments.
            thread::sleep(Duration::from_micros(300 * u64::from(turn)));
            server.stop();
        }
        let _ = cache.set_registered(key(0).as_bytes(), &mut one, Ttl::NEVER, 0);
        let mut all = vec![one];
        for request in &mut began {
            let _ = request.wait();
            all.push(request.take_buffer().expect("the buffer is returned whatever the result"));
        }
        // The caller owns the buffer again, and writes to it.
        for buffer in &mut all {
            assert!(is_all(buffer, 0x80 | turn), "the buffer still has its value");
            buffer.value_mut().fill(0x55);
            assert!(is_all(buffer, 0x55));
        }
        server.resume();
        until_up(|| later.set(b"up", b"", Ttl::NEVER).is_ok());
        for _ in 0..5 {
            for number in 0..all.len() {
                let value = later.get(key(number).as_bytes()).expect("answered").expect("there").value;
                assert!(is_all(&value, turn) || is_all(&value, 0x80 | turn), "{turn} {number}: torn");
            }
            thread::sleep(Duration::from_millis(10));
        }
        for buffer in &mut all {
            until_up(|| cache.set_registered(b"last", buffer, Ttl::NEVER, 0).is_ok());
            assert!(buffer.is_readable_by_servers());
        }
        assert!(is_all(&later.get(b"last").expect("answered").expect("stored").value, 0x55));
    }
}

#[test]
fn registered_buffers_are_reusable_over_other_transports() {
    let running = Running::tcp("-m 64");
    let (_other, unix) = Running::unix("registered-unix", "-m 64");
    let (_shared, shm) = Running::unix("registered-shm", "-m 64 --shm");
    for address in [running.address(), unix, shm] {
        upgrade(&address);
    }
}

fn upgrade(address: &str) {
    let cache = Client::new([address], Options::default()).expect("an address");
    let value = pattern(1, 100_000);
    cache.set_with_flags(b"key", &value, Ttl::NEVER, 3).expect("stored");
    let mut buffer = cache.register(10);
    for _ in 0..2 {
        assert_eq!(get(&cache, "key", &mut buffer), Some(3));
        assert!(buffer.value() == value);
    }
    assert_eq!(get(&cache, "none", &mut buffer), None);
    for len in [0, 10, 11, 100_000] {
        put(&mut buffer, &value[..len]);
        cache.set_registered(b"key", &mut buffer, Ttl::NEVER, 4).expect("stored");
        assert!(buffer.value() == &value[..len] && !buffer.is_readable_by_servers());
        let mut request = cache.request();
        request.iset_registered("other", buffer, Ttl::NEVER, 4);
        assert!(matches!(request.wait().result, Ok(Outcome::Stored)));
        buffer = request.take_buffer().expect("given back");
        assert!(buffer.value() == &value[..len]);
        for key in [&b"key"[..], b"other"] {
            let item = cache.get(key).expect("answered").expect("stored");
            assert!(item.value == value[..len] && item.flags == 4);
        }
    }
    let mut request = cache.request();
    for (key, found) in [("key", &value[..]), ("none", b"")] {
        request.iget_registered(key, buffer);
        request.wait().result.expect("answered");
        buffer = request.take_buffer().expect("given back");
        assert!(buffer.value() == found, "{key}");
    }
}

#[test]
fn fabric_tests_run_where_libfabric_is_installed() {
    fabcache_testbed::fabric::run_ignored_tests(fabcache_fabric::Library::open().map(|_| ()));
}
