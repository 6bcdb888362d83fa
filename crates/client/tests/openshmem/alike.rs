//! A job answers what one server answers, through any PE and in each protocol.

use fabcache_client::{Options, Protocol, Ttl};
use fabcache_testbed::bytes::pattern;
use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::common::Running;
use crate::common::calls::{ITEM_BYTES_MAX, Side, call, in_common, is_by_chance, ttl};
use crate::jobs::{amount, options, started_patient, through_all, unix};

const PROTOCOLS: [Protocol; 4] = [Protocol::Auto, Protocol::Meta, Protocol::Binary, Protocol::Text];

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn calls_of_a_job_and_of_one_server_return_the_same() {
    let flags = format!("-m 32 -I {ITEM_BYTES_MAX}");
    let job = started_patient(&flags);
    let (_server, address) = Running::unix("openshmem-alike", &flags);
    let cases = amount(12, 200) as u32;
    for protocol in PROTOCOLS {
        let new = if protocol == Protocol::Text { Side::with_words } else { Side::new };
        let side = |address: &str| new(address, Options { protocol, ..options() });
        // A case that fails leaves items behind: another would fail as well.
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
        let alike = TestRunner::new(config).run(&vec(call(ttl()), 1..60), |calls| {
            let mut plain = side(&address);
            let mut through: Vec<Side> = (0..job.pes()).map(|pe| side(&unix(&job, pe))).collect();
            plain.flush();
            through[0].flush();
            for (at, call) in calls.iter().filter(|call| !is_by_chance(call)).enumerate() {
                let expected = in_common(call, plain.call(call));
                let mut caller = through.remove(0);
                let came = in_common(call, caller.call(call));
                if came != expected {
                    let (came, expected) = (format!("{came:?}"), format!("{expected:?}"));
                    let why = format!("call {at} {call:?}: {protocol:?}\n{came:.1000}\n{expected:.1000}");
                    return Err(TestCaseError::fail(why));
                }
                // The next call goes through the next PE, which compares with what was seen through this one.
                if let Some(next) = through.first_mut() {
                    next.learn(&mut caller);
                }
                through.push(caller);
            }
            Ok(())
        });
        alike.unwrap_or_else(|failed| panic!("{failed}"));
    }
}

#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn values_of_all_lengths_are_read_whole() {
    let job = started_patient("-m 64");
    let mut lengths = vec![0, 1, 63, 64, 100, 1000, 3900, 4000, 4096, 8159, 8160, 8161];
    lengths.extend([16 << 10, (16 << 10) + 1, 20_000, 65 << 10, 100_000, 300_000, 524_288, 1_000_000]);
    for protocol in PROTOCOLS {
        let clients: Vec<_> = (0..job.pes())
            .map(|pe| fabcache_client::Client::new([unix(&job, pe)], Options { protocol, ..options() }))
            .collect::<Result<_, _>>()
            .expect("an address");
        for (number, len) in lengths.iter().copied().enumerate() {
            let (key, value) = (format!("{protocol:?}{len}"), pattern(number, len));
            let stored =
                clients[number % clients.len()].set_with_flags(key.as_bytes(), &value, Ttl::NEVER, 7);
            stored.unwrap_or_else(|error| panic!("{protocol:?}: {len} bytes: {error}"));
            for client in &clients {
                let item = client.get(key.as_bytes()).expect("answered").expect("there");
                assert!(item.value == value && item.flags == 7, "{protocol:?}: {len} bytes");
            }
        }
    }
}

/// Longer values than a PE stores are refused, and the client reads nothing older afterwards.
#[test]
#[ignore = "needs OpenSHMEM: cargo xtask openshmem"]
fn too_long_values_are_refused_and_replace_the_old_ones() {
    let job = started_patient("-m 32");
    let clients = through_all(&job);
    for number in 0..8 {
        let key = format!("key{number}");
        let client = &clients[number % clients.len()];
        client.set(key.as_bytes(), b"old", Ttl::NEVER).expect("stored");
        let refused = client.set(key.as_bytes(), &vec![b'x'; 1_100_000], Ttl::NEVER);
        let refused = refused.expect_err("too long").to_string();
        assert!(refused.contains("too large"), "{refused}");
        for client in &clients {
            assert_eq!(client.get(key.as_bytes()).expect("answered"), None, "{key}");
        }
    }
}
