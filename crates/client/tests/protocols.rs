//! Protocols over sockets: detection, limits of each protocol, and authentication.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::Running;
use fabcache_client::{
    Client, Credentials, Error, Failure, Options, Protocol, SharedMemory, Stored, Transport, Ttl,
};

fn client(address: &str, protocol: Protocol) -> Client {
    client_with(address, Options { protocol, ..Options::default() })
}

fn client_with(address: &str, options: Options) -> Client {
    // A failed server is retried at once.
    Client::new([address], Options { retry_after: Duration::ZERO, ..options }).expect("an address")
}

fn is_key<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Server { failure: Failure::Key, .. }))
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Server { failure: Failure::Refused(why), .. }) => why,
        other => panic!("{other:?}"),
    }
}

/// Returns why a server refuses the connection, rather than one request.
fn rejected<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Server { failure: Failure::Rejected(why), .. }) => why,
        other => panic!("{other:?}"),
    }
}

/// Returns whether the text protocol is used: no line carries this key.
fn is_text(cache: &Client) -> bool {
    match cache.get(b"a b") {
        Err(Error::Server { failure: Failure::Key, .. }) => true,
        Ok(_) => false,
        Err(error) => panic!("{error}"),
    }
}

/// How a proxy treats the unknown meta protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ignorant {
    /// It returns an error.
    Says,
    /// It closes the connection.
    HangsUp,
    /// It closes the connection once.
    HungUp,
}

struct Gate {
    address: SocketAddr,
    /// Counts of connections, and of meta probes.
    came: Arc<AtomicUsize>,
    requested: Arc<AtomicUsize>,
}

impl Gate {
    /// Runs for the whole test.
    fn before(server: &Running, ignorant: Ignorant) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let behind = server.address().trim_start_matches("tcp://").to_owned();
        let gate = Gate { address, came: Arc::default(), requested: Arc::default() };
        let (came, requested) = (Arc::clone(&gate.came), Arc::clone(&gate.requested));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (requested, behind) = (Arc::clone(&requested), behind.clone());
                came.fetch_add(1, Ordering::SeqCst);
                // The client reports a broken connection.
                thread::spawn(move || pass(stream?, &TcpStream::connect(behind)?, ignorant, &requested));
            }
        });
        gate
    }

    fn address(&self) -> String {
        format!("tcp://{}", self.address)
    }

    fn requested(&self) -> usize {
        self.requested.load(Ordering::SeqCst)
    }
}

fn pass(
    mut client: TcpStream,
    mut server: &TcpStream,
    ignorant: Ignorant,
    requested: &AtomicUsize,
) -> std::io::Result<()> {
    let mut first = [0; 4096];
    let mut len = client.read(&mut first)?;
    if &first[..len] == b"mn\r\n" {
        let before = requested.fetch_add(1, Ordering::SeqCst);
        match ignorant {
            Ignorant::HangsUp => return Ok(()),
            Ignorant::HungUp if before == 0 => return Ok(()),
            Ignorant::HungUp => {}
            Ignorant::Says => {
                client.write_all(b"ERROR\r\n")?;
                len = client.read(&mut first)?;
            }
        }
    }
    server.write_all(&first[..len])?;
    let (mut back, mut answers) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || std::io::copy(&mut answers, &mut back));
    std::io::copy(&mut client, &mut server).map(|_| ())
}

#[test]
fn server_without_the_meta_protocol_gets_text() {
    let server = Running::tcp("");
    for (ignorant, questions) in [(Ignorant::Says, 1), (Ignorant::HangsUp, 2)] {
        let gate = Gate::before(&server, ignorant);
        let cache = client(&gate.address(), Protocol::Auto);
        cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
        assert!(is_text(&cache), "{ignorant:?}");
        let came = gate.came.load(Ordering::SeqCst);
        // Concurrent calls have their own connections, which are not probed.
        let request = cache.iget("key", Vec::new()).wait();
        assert_eq!(request.value, b"value");
        assert_eq!(
            (gate.requested(), gate.came.load(Ordering::SeqCst)),
            (questions, came + 1),
            "{ignorant:?}"
        );
    }
    // The connection was only about to close.
    let gate = Gate::before(&server, Ignorant::HungUp);
    let cache = client(&gate.address(), Protocol::Auto);
    assert!(!is_text(&cache));
    assert_eq!(gate.requested(), 2);
    // A configured protocol is not probed.
    for protocol in [Protocol::Meta, Protocol::Text, Protocol::Binary] {
        let gate = Gate::before(&server, Ignorant::Says);
        let cache = client(&gate.address(), protocol);
        assert!(cache.get(b"key").expect("answered").is_some());
        assert_eq!(is_text(&cache), protocol == Protocol::Text);
        assert_eq!(gate.requested(), 0, "{protocol:?}");
    }
}

#[test]
fn replaced_server_is_probed_again() {
    let first = Running::tcp("");
    let address = first.address();
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    let cache = client(&address, Protocol::Auto);
    assert!(!is_text(&cache));
    let request = cache.iset("key", "value", Ttl::NEVER).wait();
    request.result.expect("stored");
    drop(first);
    // Long enough that the next call checks its connection.
    thread::sleep(Duration::from_millis(20));
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).expect("its port");
    let old = thread::spawn(move || {
        // One connection of blocking calls, one of non-blocking ones; both stay open.
        [(); 2].map(|()| {
            let (mut stream, _) = listener.accept().expect("a client");
            for (question, answer) in [(&b"mn\r\n"[..], &b"ERROR\r\n"[..]), (b"gets key\r\n", b"END\r\n")] {
                let mut line = [0; 64];
                let len = stream.read(&mut line).expect("a question");
                assert_eq!(&line[..len], question);
                stream.write_all(answer).expect("it listens");
            }
            stream
        })
    });
    assert_eq!(cache.get(b"key").expect("answered"), None);
    // This connection was closed as well.
    assert_eq!(cache.iget("key", Vec::new()).wait().item().expect("answered"), None);
    let _streams = old.join().expect("the expected requests");
    assert!(is_text(&cache));
}

#[test]
fn text_rejects_unsendable_keys_and_sends_the_others() {
    let server = Running::tcp("");
    let cache = client(&server.address(), Protocol::Text);
    for key in [&b"a b"[..], b"\0", b"a\r\nflush_all", b"\t", b"\x7f"] {
        assert!(is_key(cache.get(key)) && is_key(cache.contains(key)) && is_key(cache.delete(key)));
        assert!(is_key(cache.get_and_touch(key, Ttl::NEVER)) && is_key(cache.touch(key, Ttl::NEVER)));
        assert!(is_key(cache.set(key, b"", Ttl::NEVER)) && is_key(cache.cas(key, b"", Ttl::NEVER, 1)));
        assert!(is_key(cache.append(key, b"")) && is_key(cache.incr(key, 1)));
        assert!(is_key(cache.incr_or_set(key, 1, 1, Ttl::NEVER)));
        assert!(is_key(cache.iget(key, Vec::new()).wait().result));
        let completed = cache.iset(key, "value", Ttl::NEVER).wait();
        assert_eq!((&completed.key[..], &completed.value[..]), (key, &b"value"[..]));
        assert!(is_key(completed.result));
        let stored = ["one", "schl\u{fc}ssel"].map(|stored| {
            cache.set(stored.as_bytes(), stored.as_bytes(), Ttl::NEVER).expect("stored");
            Some(stored.as_bytes().to_vec())
        });
        let many = cache.get_many(&[b"one", key, "schl\u{fc}ssel".as_bytes(), b"none"]).expect("keys");
        let values: Vec<_> = many.items.into_iter().map(|item| item.map(|item| item.value)).collect();
        assert_eq!(values, [stored[0].clone(), None, stored[1].clone(), None]);
        assert!(many.failed.len() == 1 && many.failed.into_iter().all(|failure| is_key::<()>(Err(failure))));
        let many = cache.get_many(&[key]).expect("keys");
        assert_eq!((many.items, many.failed.len()), (vec![None], 1));
    }
}

#[test]
fn multiget_returns_repeated_keys() {
    let server = Running::tcp("");
    for protocol in [Protocol::Meta, Protocol::Binary, Protocol::Text] {
        let cache = client(&server.address(), protocol);
        let keys: Vec<String> = (0..300).map(|i| format!("{}{}", "k".repeat(i % 200), i % 250)).collect();
        for key in keys.iter().step_by(3) {
            cache.set(key.as_bytes(), format!("value of {key}").as_bytes(), Ttl::NEVER).expect("stored");
        }
        let many = cache.get_many(&keys).expect("keys");
        assert!(many.failed.is_empty(), "{:?}", many.failed);
        for (key, item) in keys.iter().zip(many.items) {
            let stored = cache.get(key.as_bytes()).expect("answered");
            assert_eq!(item, stored, "{key} {protocol:?}");
        }
        cache.flush(0).expect("flushed");
    }
}

#[test]
fn initial_numbers_are_stored_once() {
    let server = Running::tcp("-t 2");
    for protocol in [Protocol::Meta, Protocol::Binary, Protocol::Text] {
        let cache = client(&server.address(), protocol);
        for round in 0..20 {
            let key = format!("{protocol:?}{round}");
            let numbers = thread::scope(|scope| {
                let count = || cache.incr_or_set(key.as_bytes(), 1, 1, Ttl::NEVER).expect("counted");
                let threads = [(); 4].map(|()| scope.spawn(count));
                let mut numbers = threads.map(|thread| thread.join().expect("it counts"));
                numbers.sort_unstable();
                numbers
            });
            assert_eq!(numbers, [1, 2, 3, 4], "{protocol:?}");
        }
    }
}

#[test]
fn out_of_range_ttls_stay_far_in_the_future() {
    let server = Running::tcp("");
    for protocol in [Protocol::Meta, Protocol::Binary, Protocol::Text] {
        let cache = client(&server.address(), protocol);
        for ttl in [Ttl::seconds(u32::MAX), Ttl::exact(i64::MAX), Ttl::exact(i64::from(u32::MAX))] {
            cache.set(b"key", b"1", ttl).expect("stored");
            assert!(cache.get_and_touch(b"key", ttl).expect("answered").is_some(), "{protocol:?} {ttl:?}");
            assert!(cache.touch(b"key", ttl).expect("answered") && cache.delete(b"key").expect("answered"));
            assert_eq!(cache.incr_or_set(b"key", 1, 7, ttl).expect("counted"), 7);
            assert_eq!(cache.incr(b"key", 1).expect("counted"), Some(8));
        }
        cache.set(b"key", b"1", Ttl::NEVER).expect("stored");
        cache.flush(u32::MAX).expect("flushed later");
        assert_eq!(cache.cas(b"key", b"2", Ttl::NEVER, 0).expect("answered"), Stored::Exists, "no item's");
    }
}

struct Users(PathBuf);

impl Users {
    fn new(name: &str) -> Users {
        let path = std::env::temp_dir().join(format!("fabcache-users-{name}-{}", std::process::id()));
        std::fs::write(&path, "ann:secret word\n").expect("a file");
        Users(path)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn user(user: &str, password: &str) -> Option<Credentials> {
    Some(Credentials { user: user.into(), password: password.into() })
}

#[test]
fn sasl_admits_known_users_only() {
    let users = Users::new("sasl");
    let flags = format!("-S --sasl-pwdb {}", users.0.display());
    let server = Running::tcp(&flags);
    let as_user = |credentials| {
        client_with(
            &server.address(),
            Options { protocol: Protocol::Binary, credentials, ..Options::default() },
        )
    };
    let ann = as_user(user("ann", "secret word"));
    ann.set(b"key", b"value", Ttl::NEVER).expect("stored");
    assert_eq!(ann.iget("key", Vec::new()).wait().value, b"value");
    assert_eq!(ann.versions().remove(0).expect("answered"), "1.6.45");
    for other in [user("ann", "secret"), user("bob", "secret word"), user("", "")] {
        assert_eq!(rejected(as_user(other).get(b"key")), "Auth failure.");
    }
    assert_eq!(refused(as_user(None).get(b"key")), "Auth failure.");
    let open = Running::tcp("");
    let options = Options { protocol: Protocol::Binary, credentials: user("ann", "x"), ..Options::default() };
    assert_eq!(rejected(client_with(&open.address(), options).get(b"key")), "Unknown command");
}

#[test]
fn text_authentication_admits_known_users() {
    let users = Users::new("text");
    let server = Running::tcp(&format!("-Y {}", users.0.display()));
    for protocol in [Protocol::Auto, Protocol::Meta, Protocol::Text] {
        let as_user = |credentials| {
            client_with(&server.address(), Options { protocol, credentials, ..Options::default() })
        };
        as_user(user("ann", "secret word")).set(b"key", b"value", Ttl::NEVER).expect("stored");
        assert_eq!(rejected(as_user(user("ann", "secret")).get(b"key")), "authentication failure");
        let unknown = as_user(None).get(b"key");
        // A new connection is probed.
        let why = if protocol == Protocol::Auto { rejected(unknown) } else { refused(unknown) };
        assert_eq!(why, "unauthenticated");
    }
}

#[test]
fn memory_is_shared_with_every_socket_protocol() {
    let users = Users::new("shm");
    let sasl = format!("-S --sasl-pwdb {}", users.0.display());
    for (protocol, flags, credentials) in [
        (Protocol::Auto, "", None),
        (Protocol::Meta, "", None),
        (Protocol::Text, "", None),
        (Protocol::Binary, "", None),
        (Protocol::Binary, &sasl[..], user("ann", "secret word")),
    ] {
        let (_server, address) = Running::unix("protocols", &format!("--shm {flags}"));
        let options = Options { protocol, credentials, ..Options::default() };
        let cache = client_with(&address, options.clone());
        cache.set(b"a b", b"value", Ttl::NEVER).expect("stored: memory carries any key");
        assert_eq!(cache.incr_or_set(b"n", 1, 5, Ttl::NEVER).expect("counted"), 5);
        assert_eq!(cache.get(b"a b").expect("read").map(|item| item.value), Some(b"value".to_vec()));
        assert!(!cache.stats("").remove(0).expect("answered").is_empty());
        assert_eq!(cache.transports(), [Some(Transport::SharedMemory)], "{protocol:?}");
        let never = client_with(&address, Options { shared_memory: SharedMemory::Never, ..options });
        never.get(b"n").expect("answered").expect("stored");
        assert_eq!(never.transports(), [Some(Transport::Unix { why: None })]);
    }
    for protocol in [Protocol::Auto, Protocol::Meta, Protocol::Text, Protocol::Binary] {
        let (_server, address) = Running::unix("protocols", "");
        let cache = client(&address, protocol);
        cache.set(b"key", b"value", Ttl::NEVER).expect("stored");
        assert_eq!(cache.get(b"key").expect("answered").map(|item| item.value), Some(b"value".to_vec()));
        assert!(
            matches!(&cache.transports()[..], [Some(Transport::Unix { why: Some(_) })]),
            "{:?}",
            cache.transports()
        );
        let shared_memory = SharedMemory::Required;
        let required = client_with(&address, Options { protocol, shared_memory, ..Options::default() });
        assert!(rejected(required.get(b"key")).starts_with("it shares no memory"), "{protocol:?}");
    }
}
