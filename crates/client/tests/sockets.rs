//! The client over sockets, against servers in this process.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use common::{Running, client};
use fabcache_client::{Client, Distribution, Error, Failure, Mode, Options, Protocol, Stored, Ttl};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::ports::free_address;

fn value(cache: &Client, key: &[u8]) -> Option<Vec<u8>> {
    cache.get(key).expect("the server answers").map(|item| item.value)
}

fn every_call(cache: &Client) {
    let long = pattern(0, 700_000);
    for key in [&b"plain"[..], b"with space\n", &[0xff; 180]] {
        assert_eq!(cache.get(key).expect("answered"), None);
        assert!(!cache.contains(key).expect("answered"));
        cache.set_with_flags(key, b"one", Ttl::NEVER, 77).expect("stored");
        let item = cache.get(key).expect("answered").expect("stored");
        assert_eq!((&item.value[..], item.flags), (&b"one"[..], 77));
        assert!(cache.contains(key).expect("answered"));
        assert_eq!(cache.add(key, b"two", Ttl::NEVER).expect("answered"), Stored::NotStored);
        assert_eq!(cache.cas(key, b"two", Ttl::NEVER, item.cas + 1).expect("answered"), Stored::Exists);
        assert_eq!(cache.cas(key, b"two", Ttl::seconds(90), item.cas).expect("answered"), Stored::Stored);
        assert_eq!(cache.append(key, b" three").expect("answered"), Stored::Stored);
        assert_eq!(cache.prepend(key, b"one ").expect("answered"), Stored::Stored);
        assert_eq!(value(cache, key).as_deref(), Some(&b"one two three"[..]));
        cache.set(key, &long, Ttl::NEVER).expect("stored");
        assert!(value(cache, key).is_some_and(|value| value == long));
        let item = cache.get_and_touch(key, Ttl::seconds(3_000_000)).expect("answered").expect("stored");
        assert!(item.value == long, "a TTL beyond thirty days has not expired");
        assert!(cache.get(key).expect("answered").is_some());
        assert!(cache.touch(key, Ttl::seconds(100)).expect("answered"));
        cache.set(key, b"9", Ttl::NEVER).expect("stored");
        assert_eq!(cache.incr(key, 3).expect("answered"), Some(12));
        assert_eq!(cache.decr(key, 100).expect("answered"), Some(0));
        assert!(cache.delete(key).expect("answered") && !cache.delete(key).expect("answered"));
        assert_eq!(cache.incr(key, 1).expect("answered"), None);
        assert!(!cache.touch(key, Ttl::NEVER).expect("answered"));
        assert_eq!(cache.replace(key, b"x", Ttl::NEVER).expect("answered"), Stored::NotStored);
        assert_eq!(cache.cas(key, b"x", Ttl::NEVER, 1).expect("answered"), Stored::NotFound);
        assert_eq!(cache.incr_or_set(key, 3, 40, Ttl::NEVER).expect("answered"), 40);
        assert_eq!(cache.incr_or_set(key, 3, 40, Ttl::NEVER).expect("answered"), 43);
        assert_eq!(cache.decr_or_set(key, 1, 40, Ttl::NEVER).expect("answered"), 42);
        assert_eq!(cache.store(key, b"s", Mode::Replace, Ttl::EXPIRED, 5).expect("answered"), Stored::Stored);
        assert!(!cache.contains(key).expect("answered"));
        assert_eq!(cache.store(key, b"s", Mode::Add, Ttl::exact(100), 5).expect("answered"), Stored::Stored);
        assert_eq!(cache.get(key).expect("answered").map(|item| item.flags), Some(5));
        cache.store(key, b"t", Mode::Set, Ttl::exact(-1), 0).expect("answered");
        assert_eq!(cache.get(key).expect("answered"), None);
    }
}

#[test]
fn every_call_works_over_tcp_and_unix_sockets() {
    let server = Running::tcp("");
    every_call(&client(&server.address()));
    let path = std::env::temp_dir().join(format!("fabcache-client-{}", std::process::id()));
    let _server = Running::start(&format!("-s {}", path.display()));
    every_call(&client(&format!("unix://{}", path.display())));
}

#[test]
fn invalid_keys_and_values_are_rejected() {
    let server = Running::tcp("");
    let cache = client(&server.address());
    assert!(matches!(cache.get(b""), Err(Error::Key(0))));
    assert!(matches!(cache.set(&[b'k'; 251], b"", Ttl::NEVER), Err(Error::Key(251))));
    let error = cache.set(b"k", &vec![0; 2 << 20], Ttl::NEVER).expect_err("-I is 1m");
    assert!(error.to_string().contains("object too large for cache"), "{error}");
    cache.set(b"k", b"no number", Ttl::NEVER).expect("the connection goes on");
    let error = cache.incr(b"k", 1).expect_err("no number");
    assert!(matches!(&error, Error::Server { failure: Failure::Refused(_), .. }), "{error}");
    assert_eq!(value(&cache, b"k").as_deref(), Some(&b"no number"[..]));
}

#[test]
fn version_verbosity_and_stats_topics_work() {
    let server = Running::tcp("");
    let cache = client(&server.address());
    assert_eq!(cache.versions().remove(0).expect("answered"), fabcache_server::options::MEMCACHED_VERSION);
    cache.verbosity(1).remove(0).expect("it is set");
    let error = cache.stats("items\r\nflush_all").remove(0).expect_err("no topic");
    assert!(matches!(&error, Error::Topic(topic) if topic.contains("flush_all")), "{error}");
}

#[test]
fn multiget_spans_servers() {
    let servers = [Running::tcp(""), Running::tcp(""), Running::tcp("")];
    for distribution in [Distribution::Modula, Distribution::Ketama, Distribution::KetamaWeighted] {
        let options = Options { distribution: distribution.clone(), ..Options::default() };
        let cache = Client::new(servers.iter().map(Running::address), options).expect("addresses");
        let keys: Vec<String> = (0..1_000).map(|i| format!("{distribution:?}{i}")).collect();
        for key in keys.iter().step_by(3) {
            cache.set(key.as_bytes(), key.as_bytes(), Ttl::NEVER).expect("stored");
        }
        let many = cache.get_many(&keys).expect("keys");
        assert!(many.failed.is_empty(), "{:?}", many.failed);
        for (i, (key, item)) in keys.iter().zip(&many.items).enumerate() {
            let found = item.as_ref().map(|item| &item.value[..]);
            assert_eq!(found, (i % 3 == 0).then_some(key.as_bytes()), "{key}");
        }
        let counts = servers.iter().map(|server| {
            let stats = client(&server.address()).stats("").remove(0).expect("answered");
            let count = stats.iter().find(|(name, _)| name == "curr_items").expect("a count");
            count.1.parse::<u32>().expect("a number")
        });
        assert!(counts.into_iter().all(|count| count > 50), "every server holds a share");
        cache.flush(0).expect("flushed");
        assert!(cache.get_many(&keys).expect("keys").items.iter().all(Option::is_none));
    }
}

#[test]
fn server_that_is_down_fails_at_once_or_is_ejected() {
    let up = Running::tcp("");
    let down = format!("tcp://{}", free_address().expect("a free port"));
    let options = Options { retry_after: Duration::from_secs(600), ..Options::default() };
    let cache = Client::new([up.address(), down.clone()], options.clone()).expect("addresses");
    let key = (0..)
        .map(|i| format!("key{i}"))
        .find(|key| cache.address_of(key.as_bytes()).expect("servers").to_string() == down);
    let key = key.expect("half of the keys").into_bytes();
    let failure = |error| match error {
        Error::Server { server, failure } if server == down => failure,
        other => panic!("{other}"),
    };
    assert!(matches!(failure(cache.get(&key).expect_err("down")), Failure::Connect(_)));
    assert!(matches!(failure(cache.get(&key).expect_err("down")), Failure::Down));
    let many = cache.get_many(std::slice::from_ref(&key)).expect("keys");
    assert!(many.items[0].is_none() && many.failed.len() == 1);

    let cache =
        Client::new([up.address(), down], Options { auto_eject: true, ..options }).expect("addresses");
    assert!(cache.set(&key, b"v", Ttl::NEVER).is_err(), "the failure is not known yet");
    cache.set(&key, b"v", Ttl::NEVER).expect("the other server took over");
    assert_eq!(value(&cache, &key).as_deref(), Some(&b"v"[..]));
}

#[test]
fn restarted_server_is_used_again() {
    let path = std::env::temp_dir().join(format!("fabcache-again-{}", std::process::id()));
    let start = || Running::start(&format!("-s {}", path.display()));
    let cache = client(&format!("unix://{}", path.display()));
    let server = start();
    cache.set(b"k", b"v", Ttl::NEVER).expect("stored");
    drop(server);
    let _server = start();
    assert_eq!(value(&cache, b"k"), None, "a new connection to a new server");
}

#[test]
fn silent_or_invalid_server_fails_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    let answers: [&[u8]; 4] = [b"", b"NONSENSE\r\n", b"VA 5 O0\r\nab", b"VA 3 f0 c1\r\nabcde\r\n"];
    let count = answers.len();
    let server = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 64];
            let _ = stream.read(&mut request).expect("a request");
            stream.write_all(answer).expect("it listens");
            // Until the client times out.
            let _ = stream.read(&mut request);
        }
    });
    let options = Options {
        timeout: Duration::from_millis(300),
        failures_max: u32::MAX,
        protocol: Protocol::Meta,
        ..Options::default()
    };
    let cache = Client::new([address], options).expect("an address");
    for _ in 0..count {
        let error = cache.get(b"key").expect_err("no answer");
        assert!(
            matches!(&error, Error::Server { failure: Failure::Broken(_) | Failure::Protocol(_), .. }),
            "{error}"
        );
    }
    drop(cache);
    server.join().expect("it served");
}
