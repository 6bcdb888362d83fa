//! Windows of non-blocking calls, and large values in blocks, against a server in this process.

mod common;

use common::{TestServer, run};
use fabcache_bench::blocks::{self, Blocks};
use fabcache_bench::dummy::{Dummy, Listen, Settings};
use fabcache_bench::items::Items;
use fabcache_bench::nonblocking::calls::{Api, CallKind, Calls, Drain, ItemToCall};
use fabcache_bench::nonblocking::{self, Keys, NonBlocking};
use fabcache_bench::target::{Target, Url};
use fabcache_client::{Protocol, Ttl};

fn small() -> NonBlocking {
    NonBlocking {
        sizes: vec![1, 3_000, 100_000],
        iterations: 16,
        windows: vec![1, 8],
        drains: vec![Drain::Wait, Drain::Test],
        keys: vec![Keys::Random, Keys::Zipf],
        ..NonBlocking::standard(true, true, 20).expect("a length of keys")
    }
}

#[test]
fn windows_work_over_sockets_and_shared_memory() {
    let server = TestServer::start("windows", "");
    let transports = [("unix", Protocol::Meta), ("unix", Protocol::Binary), ("shm", Protocol::Auto)];
    for (transport, protocol) in transports {
        let target = server.target(transport, protocol);
        let results = run(&small(), &[&target]).expect("all answers are right");
        assert_eq!(results.samples.len(), 4 * 3 * 2 * 2 * 2 * 2, "every choice, twice");
        for sample in &results.samples {
            let name = sample.case.name();
            assert_eq!((sample.operations, sample.misses), (16, 0), "{name}");
            let gets = sample.case.operation.ends_with("get");
            assert_eq!(sample.verified, if gets { 32 } else { 0 }, "{name}");
            let counts =
                [&sample.latency, &sample.base_latency].map(|times| times.as_ref().map(|t| t.count()));
            assert_eq!(counts, [Some(16); 2], "{name}");
            assert!(sample.figures[nonblocking::BLOCKING_NS_EACH] > 0.0, "{name}");
        }
        let table = nonblocking::table(&results);
        assert!(table.contains("BGET: window 8, drained by test, zipf keys"), "{table}");
        assert!(table.contains("    100000 byte:") && !table.contains("evicts"), "{table}");
    }
}

#[test]
fn a_wrong_value_ends_the_run() {
    let server = TestServer::start("wrong", "");
    let target = server.target("unix", Protocol::Auto);
    let client = target.client().expect("it is up");
    let items = Items::new(20).expect("a length of keys");
    let (mut key, mut value) = (Vec::new(), Vec::new());
    items.key(7, &mut key);
    items.value(7, 100, &mut value);
    value[99] ^= 1;
    client.set(&key, &value, Ttl::NEVER).expect("stored");
    let wanted = [ItemToCall { number: 7, value_bytes: 100 }];
    for api in [Api::Issued, Api::Buffered] {
        let how = CallKind { sets: false, api, drain: Drain::Wait };
        let mut calls = Calls::new(client.clone(), &items, true, 4);
        for wrong in [calls.windows(how, &wanted), calls.blocking(false, &wanted)] {
            let error = wrong.expect_err("the last byte is another").to_string();
            assert!(error.contains("bench-00000000000007"), "{error}");
        }
        let mut careless = Calls::new(client.clone(), &items, false, 4);
        assert_eq!(careless.windows(how, &wanted).expect("length and number are right").operations, 1);
    }
    let absent = [ItemToCall { number: 8, value_bytes: 100 }];
    let how = CallKind { sets: false, api: Api::Issued, drain: Drain::Test };
    let pass = Calls::new(client, &items, true, 4).windows(how, &absent).expect("a miss is no error");
    assert_eq!((pass.misses, pass.bytes, pass.verified), (1, 0, 0));
}

#[test]
fn blocks_are_written_and_read_back() {
    let server = TestServer::start("blocks", "-m 64");
    let of = |block_bytes| Blocks {
        pair_bytes: 3_000_000,
        block_bytes,
        total_bytes: 10_000_000,
        window: 5,
        ..Blocks::standard(true, true, 20).expect("a length of keys")
    };
    for transport in ["unix", "shm"] {
        let target = server.target(transport, Protocol::Auto);
        // Three pairs, in blocks as large as the server accepts (3 each) or of 400 kB (8 each).
        for (block_bytes, blocks) in [(None, 9), (Some(400_000), 24)] {
            let results = run(&of(block_bytes), &[&target]).expect("all answers are right");
            assert_eq!(results.samples.len(), 4);
            for sample in &results.samples {
                assert_eq!((sample.operations, sample.misses), (blocks, 0), "{}", sample.case.name());
                let reads = sample.case.operation == "iget";
                assert_eq!(sample.verified, if reads { 2 * blocks } else { 0 });
                assert!(sample.figures["bytes_per_s"] > 0.0 && sample.figures["blocking_bytes_per_s"] > 0.0);
            }
            let table = blocks::table(&results);
            assert!(table.contains(" written ") && table.contains("    read "), "{table}");
        }
        let cut = of(None).for_target(&target).expect("it fits");
        assert!(cut.block_bytes.is_some_and(|bytes| (1_000_000..1 << 20).contains(&bytes)), "{cut:?}");
        let error = run(&of(Some(1)), &[&target]).expect_err("nine million blocks");
        assert!(format!("{error:#}").contains("--block-bytes 1 makes 9000000"), "{error:#}");
        let error = run(&of(Some(2 << 20)), &[&target]).expect_err("items have 1 MB");
        assert!(format!("{error:#}").contains("-I"), "{error:#}");
        let error = run(&Blocks { total_bytes: 100 << 20, ..of(None) }, &[&target]).expect_err("64 MB");
        assert!(format!("{error:#}").contains("-m 113"), "{error:#}");
    }
}

#[test]
fn the_dummy_serves_windows_and_blocks() {
    let file = format!("fabcache-bench-nothing-{}", std::process::id());
    let socket = Listen::Unix(std::env::temp_dir().join(file));
    let dummy = Dummy::start(&Settings::new(vec![socket])).expect("it listens");
    let url: Url = dummy.urls()[0].parse().expect("a URL");
    let target = Target::new("dummy", &[url], Protocol::Auto).expect("it answers");
    let blocks = Blocks {
        block_bytes: Some(1_000_000),
        total_bytes: 8 << 20,
        ..Blocks::standard(true, true, 20).expect("a length of keys")
    };
    for sample in run(&blocks, &[&target]).expect("all answers are right").samples {
        assert_eq!((sample.operations, sample.misses), (9, 0));
    }
    let windows = NonBlocking { drains: vec![Drain::Test], keys: vec![Keys::Zipf], ..small() };
    assert!(run(&windows, &[&target]).expect("all answers are right").samples.iter().all(|s| s.misses == 0));
}
