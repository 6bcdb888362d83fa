//! The client through shared memory, against servers in this process and in others.

mod common;

use fabcache_testbed::bytes::pattern;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use common::process::{self, Server, patient, stat, until_up};
use common::{Running, client, with_time_limit};
use fabcache_client::{
    Client, Credentials, Error, Failure, FastGet, Options, Outcome, Protocol, SharedMemory, Stored,
    Transport, Ttl,
};

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fabcache-shm-{name}-{}", std::process::id()))
}

fn sharing(name: &str, more: &str) -> (Running, String) {
    let path = socket_path(name);
    let server = Running::start(&format!("-s {} --shm {more}", path.display()));
    (server, format!("unix://{}", path.display()))
}

fn value(cache: &Client, key: &[u8]) -> Option<Vec<u8>> {
    cache.get(key).expect("the server answers").map(|item| item.value)
}

#[test]
fn items_are_read_without_the_server() {
    let (_server, address) = sharing("read", "");
    let cache = client(&address);
    assert_eq!(cache.transports(), [None]);
    for len in [0, 1, 64, 1000, 5000, 70_000, 700_000] {
        let key = format!("key{len}");
        cache.set_with_flags(key.as_bytes(), &pattern(len, len), Ttl::NEVER, 9).expect("stored");
        let item = cache.get(key.as_bytes()).expect("read").expect("there");
        assert!(item.value == pattern(len, len) && item.flags == 9 && item.cas > 0, "{len}");
    }
    assert_eq!(cache.transports(), [Some(Transport::SharedMemory)]);
    let before = stat(&cache, "", "cmd_get");
    for _ in 0..1000 {
        assert_eq!(value(&cache, b"key64"), Some(pattern(64, 64)));
        assert_eq!(value(&cache, b"nothing"), None);
    }
    assert_eq!(stat(&cache, "", "cmd_get"), before, "the server saw none of them");
    assert!(stat(&cache, "fabcache", "accesses_outside") > 0, "but received reports of some");
}

#[test]
fn fast_get_sends_no_request() {
    let (_server, address) = sharing("glance", "");
    let cache = client(&address);
    let mut found = b"of earlier".to_vec();
    assert_eq!(
        cache.try_fast(b"key", &mut found).expect("a key"),
        FastGet::Unknown,
        "there is no connection yet"
    );
    cache.set_with_flags(b"key", b"value", Ttl::NEVER, 9).expect("stored");
    assert!(matches!(cache.try_fast(b"", &mut found), Err(Error::Key(0))));
    let sent = || stat(&cache, "fabcache", "accesses_outside");
    let reported = sent();
    let mut unknown = 0;
    for _ in 0..100_000 {
        match cache.try_fast(b"key", &mut found).expect("a key") {
            FastGet::Found { flags, cas } => assert!(flags == 9 && cas > 0 && found == b"value"),
            FastGet::NotFound => panic!("the item exists"),
            FastGet::Unknown => unknown += 1,
        }
    }
    assert_eq!(sent(), reported, "no report was sent");
    assert_eq!(
        cache.try_fast(b"nothing", &mut found).expect("a key"),
        FastGet::Unknown,
        "a batch of reports is due"
    );
    assert!(unknown > 0);
    assert_eq!(value(&cache, b"key"), Some(b"value".to_vec()));
    assert!(sent() > reported, "a get sends the reports");
    assert_eq!(cache.try_fast(b"nothing", &mut found).expect("a key"), FastGet::NotFound);
}

#[test]
fn multiget_receives_long_replies_while_sending() {
    let (_server, address) = sharing("narrow", "--shm-slots 2 --shm-slot-size 64 --shm-staging 4k");
    let cache = client(&address);
    let keys: Vec<String> = (0..200).map(|i| format!("key{i:0>200}")).collect();
    let mut other = UnixStream::connect(address.strip_prefix("unix://").expect("its path")).expect("up");
    for (i, key) in keys.iter().enumerate() {
        cache.set(key.as_bytes(), &pattern(i, 20_000), Ttl::NEVER).expect("stored");
        // Stale items are requested from the server.
        writeln!(other, "md {key} I q\r").expect("taken");
    }
    writeln!(other, "mn\r").expect("taken");
    other.read_exact(&mut [0; 4]).expect("done");
    let many = cache.get_many(&keys).expect("keys");
    assert!(many.failed.is_empty(), "{:?}", many.failed);
    for (i, item) in many.items.iter().enumerate() {
        assert!(item.as_ref().is_some_and(|item| item.value == pattern(i, 20_000)), "{i}");
    }
}

/// The client connects while the server is stopped, so that the attachment takes longer than a clock may lag.
#[test]
fn slow_attachment_makes_no_items_expire_early() {
    const STOPPED: Duration = Duration::from_secs(5);
    let path = process::socket_path("slow");
    let server = Server::started(&path, "-m 32");
    let _leftover = process::Leftover(path.clone());
    server.stop_asleep();
    let cache = patient(&path);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| cache.set(b"up", b"", Ttl::NEVER));
        std::thread::sleep(STOPPED);
        server.resume();
        first.join().expect("no panic").expect("stored");
    });
    assert_eq!(cache.transports(), [Some(Transport::SharedMemory)]);
    let unix_time = || SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    process::wait_until("the server's clock continues", || stat(&cache, "", "time") + 1 >= unix_time());
    let stored = Instant::now();
    cache.set(b"key", b"value", Ttl::seconds(4)).expect("stored");
    let before = stat(&cache, "", "cmd_get");
    // An item expires up to a second before its time to live has passed, as in memcached.
    while stored.elapsed() < Duration::from_millis(2_500) {
        let is_there = value(&cache, b"key").is_some();
        let age = stored.elapsed();
        assert!(is_there || age > Duration::from_millis(2_900), "it expired after {age:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(stat(&cache, "", "cmd_get"), before, "the server was asked");
    process::wait_until("it expires", || value(&cache, b"key").is_none());
}

#[test]
fn reading_client_keeps_reporting_accesses() {
    let (_server, address) = sharing("idle", "-o idle_timeout=1");
    let cache = client(&address);
    for i in 0..2000 {
        cache.set(format!("key{i}").as_bytes(), b"value", Ttl::NEVER).expect("stored");
    }
    // All idle connections are dropped meanwhile.
    std::thread::sleep(Duration::from_millis(2500));
    for i in 0..2000 {
        assert_eq!(value(&cache, format!("key{i}").as_bytes()).as_deref(), Some(&b"value"[..]));
    }
    assert!(stat(&cache, "fabcache", "accesses_outside") >= 1500, "reports arrived on another connection");
    cache.set(b"key", b"value", Ttl::NEVER).expect("the server is not marked down");
}

#[test]
fn acknowledged_write_is_visible_to_the_next_get() {
    let (_server, address) = sharing("seen", "");
    let cache = client(&address);
    for number in 0..3000u32 {
        cache.set(b"key", &number.to_le_bytes(), Ttl::NEVER).expect("stored");
        assert_eq!(value(&cache, b"key"), Some(number.to_le_bytes().to_vec()));
        if number.is_multiple_of(7) {
            assert!(cache.delete(b"key").expect("answered"));
            assert_eq!(value(&cache, b"key"), None);
        }
    }
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
    cache.flush(0).expect("flushed");
    assert_eq!(value(&cache, b"key"), None);
    cache.set(b"key", b"short-lived", Ttl::seconds(1)).expect("stored");
    let end = Instant::now() + Duration::from_secs(60);
    while value(&cache, b"key").is_some() {
        assert!(Instant::now() < end, "it expires");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn requests_of_all_kinds_and_sizes_go_through_the_channel() {
    let (_server, address) =
        sharing("requests", "--shm-slots 4 --shm-slot-size 64 --shm-staging 4096 -I 16m -m 64");
    let cache = client(&address);
    for len in [0, 10, 56, 57, 1000, 5000, 300_000, 9_000_000] {
        let value_of = pattern(len, len);
        cache.set(b"key", &value_of, Ttl::NEVER).expect("stored");
        let item = cache.get_and_touch(b"key", Ttl::seconds(100)).expect("answered").expect("there");
        assert!(item.value == value_of, "{len}");
        assert!(cache.get(b"key").expect("read").expect("there").value == value_of, "{len}");
    }
    cache.set(b"n", b"41", Ttl::NEVER).expect("stored");
    assert_eq!(cache.incr(b"n", 1).expect("answered"), Some(42));
    assert_eq!(cache.append(b"n", b"!").expect("answered"), Stored::Stored);
    assert_eq!(value(&cache, b"n").as_deref(), Some(&b"42!"[..]));
    let many = cache.get_many(&[&b"n"[..], b"none", b"key"]).expect("asked");
    assert_eq!(many.items.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    let mut window: Vec<_> =
        (0..200).map(|i| cache.iset(format!("w{i}"), pattern(i, i * 40), Ttl::NEVER)).collect();
    for (i, request) in window.iter_mut().enumerate() {
        assert_eq!(request.wait().result.expect("stored"), Outcome::Stored, "{i}");
    }
    for i in 0..200 {
        let completed = cache.bget(format!("w{i}").as_bytes(), Vec::new()).wait();
        assert!(completed.item().expect("read").expect("there").value == pattern(i, i * 40));
    }
}

#[test]
fn threads_share_a_client() {
    let (_server, address) = sharing("threads", "-t 2");
    let cache = client(&address);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let cache = cache.clone();
            scope.spawn(move || {
                for i in 0..500 {
                    let key = format!("{thread}-{}", i % 20);
                    cache.set(key.as_bytes(), &pattern(i, i), Ttl::NEVER).expect("stored");
                    assert_eq!(value(&cache, key.as_bytes()), Some(pattern(i, i)));
                }
            });
        }
    });
}

#[test]
fn reason_for_no_shared_memory_is_reported() {
    let path = socket_path("refused");
    let _server = Running::start(&format!("-s {}", path.display()));
    let address = format!("unix://{}", path.display());
    let cache = client(&address);
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored over the socket");
    assert_eq!(value(&cache, b"key").as_deref(), Some(&b"value"[..]));
    let [Some(Transport::Unix { why: Some(why) })] = &cache.transports()[..] else { panic!("by the socket") };
    assert!(why.contains("--shm"), "{why}");
    let required = Options { shared_memory: SharedMemory::Required, ..Options::default() };
    let error = Client::new([&address], required).expect("an address").get(b"key").expect_err("not shared");
    assert!(
        matches!(&error, Error::Server { failure: Failure::Rejected(why), .. } if why.contains("--shm")),
        "{error}"
    );
    let never = Options { shared_memory: SharedMemory::Never, ..Options::default() };
    let cache = Client::new([&address], never).expect("an address");
    assert_eq!(value(&cache, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!(cache.transports(), [Some(Transport::Unix { why: None })]);
}

/// Returns the reason for which the client reads by requests through its channel.
fn channel_reason(cache: &Client) -> String {
    match &cache.transports()[..] {
        [Some(Transport::Channel { why })] => why.clone(),
        others => panic!("{others:?}"),
    }
}

/// From nothing to several times the staging memory of a channel.
const LENGTHS: [usize; 6] = [0, 1, 900, 5_000, 70_000, 3_000_000];

fn key(len: usize) -> Vec<u8> {
    format!("key{len}").into_bytes()
}

/// Stores and reads an item of each length.
fn store_and_read(cache: &Client) {
    for len in LENGTHS {
        cache.set_with_flags(&key(len), &pattern(len, len), Ttl::NEVER, 9).expect("stored");
        let item = cache.get(&key(len)).expect("read").expect("there");
        assert!(item.value == pattern(len, len) && item.flags == 9 && item.cas > 0, "{len}");
    }
}

#[test]
fn channel_alone_carries_reads_too() {
    for protocol in [Protocol::Auto, Protocol::Binary] {
        let flags = "--shm -m 64 -I 8m --shm-staging 256k";
        let (_server, address) = Running::over_unmappable_memory("channel-only", flags);
        let cache = Client::new([&address], Options { protocol, ..with_time_limit() }).expect("an address");
        store_and_read(&cache);
        assert!(channel_reason(&cache).contains("not a file"), "{protocol:?}");
        let mut found = Vec::new();
        assert_eq!(cache.try_fast(&key(1), &mut found).expect("a key"), FastGet::Unknown);
        let many = cache.get_many(&LENGTHS.map(key)).expect("keys");
        assert!(many.failed.is_empty(), "{:?}", many.failed);
        for (item, len) in many.items.iter().zip(LENGTHS) {
            assert!(item.as_ref().is_some_and(|item| item.value == pattern(len, len)), "{len}");
        }
        let stores = LENGTHS.map(|len| cache.iset(key(len), pattern(len + 1, len), Ttl::NEVER));
        let reads = LENGTHS.map(|len| cache.iget(key(len), Vec::new()));
        for mut store in stores {
            assert_eq!(store.wait().result.expect("answered"), Outcome::Stored);
        }
        for (mut read, len) in reads.into_iter().zip(LENGTHS) {
            let completed = read.wait();
            assert!(
                matches!(completed.result, Ok(Outcome::Found { flags: 0, .. })),
                "{:?}",
                completed.result
            );
            assert!(completed.value == pattern(len + 1, len), "a get sees the earlier set: {len}");
        }
        assert_eq!(stat(&cache, "", "cmd_get"), 3 * LENGTHS.len() as u64, "the server saw each read once");
        assert_eq!(stat(&cache, "fabcache", "accesses_outside"), 0);
        // One connection for the blocking calls, and that of the non-blocking ones.
        for counter in ["shm_attached", "shm_channel_only"] {
            assert_eq!(stat(&cache, "fabcache", counter), 2, "{counter}");
        }
        assert_eq!(stat(&cache, "fabcache", "shm_refused"), 0);
    }
}

#[test]
fn shard_is_read_and_other_keys_are_requested() {
    for protocol in [Protocol::Auto, Protocol::Binary] {
        let (_server, address) = Running::over_symmetric_memory("shard", "--shm -m 64 -I 8m");
        let options = Options { protocol, shared_memory: SharedMemory::Required, ..with_time_limit() };
        let cache = Client::new([&address], options).expect("an address");
        store_and_read(&cache);
        assert_eq!(cache.transports(), [Some(Transport::SharedMemory)]);
        let requests = || stat(&cache, "", "cmd_get");
        let mut found = Vec::new();
        assert!(matches!(cache.try_fast(&key(1), &mut found), Ok(FastGet::Found { flags: 9, .. })));
        // A batch of stores, then reads in flight.
        let reads = LENGTHS.map(|len| cache.iget(key(len), Vec::new()));
        for (mut read, len) in reads.into_iter().zip(LENGTHS) {
            assert!(
                read.wait().item().is_ok_and(|item| item.is_some_and(|item| item.value == pattern(len, len)))
            );
        }
        assert_eq!(requests(), 0, "{protocol:?}: the server saw none of them");
        // The memory does not say whether another server has the key.
        assert_eq!(cache.try_fast(b"none", &mut found).expect("a key"), FastGet::Unknown);
        assert_eq!(value(&cache, b"none"), None);
        let mut read = cache.iget(*b"none", Vec::new());
        assert_eq!(read.wait().result.expect("answered"), Outcome::NotFound);
        let many = cache.get_many(&[key(900), b"none".to_vec(), key(1)]).expect("keys");
        assert!(many.failed.is_empty() && many.items.iter().flatten().count() == 2, "{many:?}");
        assert_eq!(requests(), 3, "{protocol:?}: the server saw those of the missing key");
        assert!(cache.delete(&key(1)).expect("answered"));
        assert_eq!(value(&cache, &key(1)), None);
        assert_eq!(stat(&cache, "fabcache", "shm_channel_only"), 0);
    }
}

/// Keys that are not in the shard are requested as they are started, and not one after the other as they are waited for.
#[test]
fn requests_for_keys_of_other_servers_overlap() {
    let (_server, address) = Running::over_symmetric_memory("overlap", "--shm -m 8");
    let cache = client(&address);
    // The first connects, and the second finds nothing in the memory.
    for _ in 0..2 {
        assert_eq!(value(&cache, b"none"), None);
    }
    let before = stat(&cache, "", "cmd_get");
    let mut reads: Vec<_> = (0..64).map(|number| cache.iget(format!("none{number}"), Vec::new())).collect();
    reads[63].wait();
    assert_eq!(stat(&cache, "", "cmd_get") - before, 64);
}

#[test]
fn client_that_must_read_memory_reports_why_it_cannot() {
    for protocol in [Protocol::Auto, Protocol::Binary] {
        let (_server, address) = Running::over_unmappable_memory("unreadable", "--shm -m 8");
        let options = Options { protocol, shared_memory: SharedMemory::Required, ..with_time_limit() };
        let error =
            Client::new([&address], options).expect("an address").get(b"key").expect_err("unreadable");
        let Error::Server { failure: Failure::Rejected(why), .. } = &error else { panic!("{error}") };
        assert_eq!(why, "it shares no memory: the server's memory is not a file that clients could map");
    }
}

#[test]
fn client_follows_servers_with_and_without_readable_memory() {
    let name = "followed";
    let over_own_memory = |name: &str| Running::unix(name, "--shm -m 8");
    let over_unmappable_memory = |name: &str| Running::over_unmappable_memory(name, "--shm -m 8");
    let over_symmetric_memory = |name: &str| Running::over_symmetric_memory(name, "--shm -m 8");
    let (mut server, address) = over_own_memory(name);
    let cache = Client::new([&address], Options { failures_max: u32::MAX, ..with_time_limit() });
    let cache = cache.expect("an address");
    for round in 0..12 {
        drop(server);
        let is_readable = round % 3 != 1;
        (server, _) = match round % 5 {
            _ if !is_readable => over_unmappable_memory(name),
            0 | 1 => over_own_memory(name),
            _ => over_symmetric_memory(name),
        };
        assert!(value_after_restart(&cache, b"key").is_none(), "the new server is empty: {round}");
        let stored = pattern(round, 1_000);
        cache.set(b"key", &stored, Ttl::NEVER).expect("stored");
        let before = stat(&cache, "", "cmd_get");
        for _ in 0..10 {
            assert!(value(&cache, b"key").is_some_and(|value| value == stored), "{round}");
        }
        let requests = stat(&cache, "", "cmd_get") - before;
        assert_eq!(requests, if is_readable { 0 } else { 10 }, "{round}");
        let is_channel = matches!(&cache.transports()[..], [Some(Transport::Channel { .. })]);
        assert_eq!(is_channel, !is_readable, "{round}");
    }
}

/// Reads a key of a server that has taken the place of another: the first calls may still meet the end of that one.
fn value_after_restart(cache: &Client, key: &[u8]) -> Option<Vec<u8>> {
    for _ in 0..3 {
        if let Ok(item) = cache.get(key) {
            return item.map(|item| item.value);
        }
    }
    value(cache, key)
}

#[test]
fn required_shared_memory_refuses_other_addresses() {
    for address in ["tcp://127.0.0.1:1", "127.0.0.1:1", "fab://127.0.0.1:1"] {
        let options = Options { shared_memory: SharedMemory::Required, ..Options::default() };
        let error =
            Client::new(["unix:///run/fabcached.sock", address], options).expect_err("not by a socket");
        let reported = error.to_string();
        assert!(
            reported.contains("127.0.0.1:1") && reported.contains("shared memory is required"),
            "{reported}"
        );
    }
}

#[test]
fn memory_is_shared_with_listed_users_only() {
    let (_server, address) = sharing("users", "--shm-users 4242");
    let cache = client(&address);
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored over the socket");
    let [Some(Transport::Unix { why: Some(why) })] = &cache.transports()[..] else { panic!("by the socket") };
    assert!(why.contains("--shm-users"), "{why}");
}

#[test]
fn unauthenticated_client_gets_no_memory() {
    let users = socket_path("users-file");
    std::fs::write(&users, "ann:secret\n").expect("a file");
    let (_server, address) = sharing("auth", &format!("-Y {}", users.display()));
    let as_user = |credentials| {
        let options = Options { credentials, shared_memory: SharedMemory::Required, ..Options::default() };
        Client::new([&address], options).expect("an address")
    };
    let ann = |password: &str| Some(Credentials { user: "ann".into(), password: password.into() });
    for stranger in [None, ann("guess")] {
        let error = as_user(stranger).set(b"key", b"value", Ttl::NEVER).expect_err("unauthenticated");
        assert!(matches!(&error, Error::Server { failure: Failure::Rejected(_), .. }), "{error}");
    }
    let cache = as_user(ann("secret"));
    cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
    assert_eq!(value(&cache, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!(cache.transports(), [Some(Transport::SharedMemory)]);
    std::fs::remove_file(&users).expect("still there");
}

#[test]
fn channels_of_closed_clients_are_unmapped() {
    let (_server, address) = sharing("leave", "");
    let watcher = client(&address);
    watcher.set(b"key", b"value", Ttl::NEVER).expect("stored");
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("on Linux");
        maps.lines().filter(|line| line.contains("fabcache-channel")).count()
    };
    for _ in 0..300 {
        let cache = client(&address);
        cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
    }
    let end = Instant::now() + Duration::from_secs(60);
    // Concurrent tests have channels of their own.
    while mappings() > 100 {
        assert!(Instant::now() < end, "{} channels are still mapped", mappings());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The server of the tests below, in a process of its own.
#[test]
#[ignore = "it is a part of others"]
fn serve() {
    process::serve();
}

/// Stops the other threads when dropped, even on a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_get_returns_a_killed_servers_item_after_its_successor_replied() {
    let path = socket_path("killed").display().to_string();
    let mut server = Server::start(&path, "-m 32");
    let (reader, writer) = (patient(&path), patient(&path));
    // Every value is larger than those of earlier servers, and than earlier replies.
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let least = answered.load(Ordering::SeqCst);
                    if let Ok(Some(item)) = reader.get(b"key") {
                        let number = u64::from_le_bytes(item.value.try_into().expect("eight bytes"));
                        assert!(number >= least, "{number} was read after {least} was answered");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut number = 0u64;
        for round in 0..12 {
            until_up(|| {
                // Values of the last server ended with it.
                number += 1;
                writer.set(b"key", &number.to_le_bytes(), Ttl::NEVER).is_ok()
            });
            for _ in 0..500 {
                number += 1;
                if writer.set(b"key", &number.to_le_bytes(), Ttl::NEVER).is_ok() {
                    answered.store(number, Ordering::SeqCst);
                }
            }
            if round < 11 {
                server.0.kill();
                server = Server::start(&path, "-m 32");
            }
        }
    });
    assert!(reads.load(Ordering::Relaxed) > 1000, "there were reads");
    drop(server);
    let _ = std::fs::remove_file(&path);
}

#[test]
fn request_to_a_replaced_server_is_answered_by_its_successor() {
    let path = socket_path("replaced").display().to_string();
    let (first, cache) = (Running::start(&format!("-s {path} --shm")), patient(&path));
    cache.set(b"key", b"of the first", Ttl::NEVER).expect("stored");
    let mut window: Vec<_> = (0..40).map(|_| cache.iget("key", Vec::new())).collect();
    drop(first);
    let _second = Running::start(&format!("-s {path} --shm"));
    // By then the client reads the server's memory.
    until_up(|| cache.set(b"key", b"of the second", Ttl::NEVER).is_ok());
    assert_eq!(value(&cache, b"key").as_deref(), Some(&b"of the second"[..]));
    for request in &mut window {
        let item = request.wait().item().expect("answered").expect("there");
        assert_eq!(item.value, b"of the second");
    }
}
