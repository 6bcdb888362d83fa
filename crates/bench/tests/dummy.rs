//! The dummy behaves as a cache in each protocol and over each socket kind.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use fabcache_bench::dummy::{Dummy, Listen, Settings};
use fabcache_bench::fill::fill;
use fabcache_bench::items::Items;
use fabcache_bench::target::{Target, Url};
use fabcache_client::{Protocol, Ttl};

const PROTOCOLS: [Protocol; 4] = [Protocol::Auto, Protocol::Meta, Protocol::Text, Protocol::Binary];
const ITEMS: u64 = 40;

fn socket(name: &str) -> Listen {
    let file = format!("fabcache-dummy-{name}-{}", std::process::id());
    Listen::Unix(std::env::temp_dir().join(file))
}

fn dummy(name: &str) -> Dummy {
    let tcp = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let settings = Settings { threads: 2, ..Settings::new(vec![tcp, socket(name)]) };
    Dummy::start(&settings).expect("it listens")
}

/// Returns value sizes of every kind: empty, within one response, sent without a copy, more than a
/// socket accepts at once, longer than the pool.
fn value_bytes(number: u64) -> usize {
    [0, 1, 8, 100, 2_049, 5_000, 100_000, 3_000_000][number as usize % 8]
}

#[test]
fn the_dummy_behaves_as_a_cache() {
    let dummy = dummy("cache");
    let items = Items::new(20).expect("a length");
    for url in dummy.urls() {
        let url: Url = url.parse().expect("a URL");
        for protocol in PROTOCOLS {
            let target = Target::new("dummy", std::slice::from_ref(&url), protocol).expect("it answers");
            assert!(target.cpu_time().is_some(), "it reports its process");
            let client = target.client().expect("it answers");
            client.flush(0).expect("it forgets");
            let keys: Vec<Vec<u8>> = (0..ITEMS)
                .map(|number| {
                    let mut key = Vec::new();
                    items.key(number, &mut key);
                    key
                })
                .collect();
            assert_eq!(client.get(&keys[0]).expect("an answer"), None);
            fill(&client, &items, 0..ITEMS, value_bytes).expect("it stores");
            let many = client.get_many(&keys).expect("keys");
            assert!(many.failed.is_empty(), "{:?}", many.failed);
            for (number, found) in many.items.iter().enumerate() {
                let found = found.as_ref().expect("it was stored");
                assert!(items.is_value(number as u64, value_bytes(number as u64), &found.value), "{number}");
            }
            assert!(client.delete(&keys[1]).expect("an answer"));
            assert!(!client.delete(&keys[1]).expect("an answer"));
            assert!(
                !client.contains(&keys[1]).expect("an answer")
                    && client.contains(&keys[2]).expect("an answer")
            );
            client.set(b"any other key", b"12345", Ttl::NEVER).unwrap_or_else(|error| {
                assert_eq!(protocol, Protocol::Text, "{error}");
            });
        }
    }
}

#[test]
fn drop_removes_the_socket() {
    let place = socket("ends");
    let Listen::Unix(path) = &place else { unreachable!("it is one") };
    let dummy = Dummy::start(&Settings::new(vec![place.clone()])).expect("it listens");
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.write_all(b"mn\r\nversion\r\nbogus\r\nquit\r\n").expect("it accepts the requests");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("it answers and closes");
    assert_eq!(answers, "MN\r\nVERSION 1.6.0-dummy\r\nERROR\r\n");
    let mut open = UnixStream::connect(path).expect("it listens");
    drop(dummy);
    assert_eq!(open.read(&mut [0; 8]).expect("the end"), 0);
    assert!(!path.exists());
}

#[test]
fn a_failed_listener_is_reported() {
    for (text, culprit) in
        [("shm:///s", "tcp://"), ("unix://s", "absolute"), ("tcp://nowhere", "tcp://nowhere")]
    {
        let error = format!("{:#}", text.parse::<Listen>().expect_err(text));
        assert!(error.contains(culprit), "{error}");
    }
    let place: Listen = "unix:///nowhere/at/all".parse().expect("a place");
    let error = Dummy::start(&Settings::new(vec![place])).expect_err("no such folder");
    assert!(format!("{error:#}").contains("unix:///nowhere/at/all"), "{error:#}");
}
