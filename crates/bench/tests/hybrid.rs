//! Stores more than a server in this process can hold; reads pay a penalty for each miss.

mod common;

use std::time::Duration;

use common::{TestServer, run};
use fabcache_bench::hybrid::{Hybrid, Scan, table};
use fabcache_client::Protocol;

/// Returns the experiment without real sleeps.
fn hybrid(spill_factor: f64) -> Hybrid {
    Hybrid {
        spill_factor,
        value_bytes: 1_000,
        sleeps: false,
        reads: 2_000,
        ..Hybrid::standard(true, true, 20).expect("keys")
    }
}

#[test]
fn misses_cost_the_penalty() {
    let server = TestServer::start("hybrid", "-m 8");
    for (transport, protocol) in [("shm", Protocol::Auto), ("unix", Protocol::Binary)] {
        let target = server.target(transport, protocol);
        let half = run(&Hybrid { flushes: true, ..hybrid(0.5) }, &[&target]).expect("right answers");
        assert_eq!(half.samples.len(), 4, "two scans, two rounds");
        for sample in &half.samples {
            assert_eq!((sample.misses, sample.verified, sample.operations), (0, 2_000, 2_000));
            assert_eq!((sample.figures["success_rate"], sample.figures["keys"]), (1.0, 4_194.0));
        }

        let penalty = Duration::from_secs(1);
        let more = run(&Hybrid { flushes: true, penalty, ..hybrid(2.0) }, &[&target]).expect("right answers");
        for sample in &more.samples {
            assert!(sample.misses > 200 && sample.verified > 200, "{sample:?}");
            assert_eq!(sample.misses + sample.verified, sample.operations);
            let found = sample.verified as f64 / 2_000.0;
            assert!((sample.figures["success_rate"] - found).abs() < 1e-9);
            // Nothing sleeps, so each miss adds exactly one second to the time of the get.
            assert!(sample.elapsed_ns >= sample.misses * 1_000_000_000);
        }
        let text = table(&more);
        assert!(text.contains("uniform") && text.contains("normal"), "{text}");
    }
}

#[test]
fn values_over_the_item_limit_are_rejected() {
    let server = TestServer::start("hybrid-large", "-m 8");
    let target = server.target("unix", Protocol::Auto);
    let error = run(&Hybrid { value_bytes: 2 << 20, ..hybrid(1.0) }, &[&target]).expect_err("-I is 1 MB");
    let error = format!("{error:#}");
    assert!(error.contains("no value of 2097152 bytes") && error.contains("-I"), "{error}");
}

#[test]
fn missed_keys_are_filled() {
    let server = TestServer::start("hybrid-again", "-m 8");
    let target = server.target("unix", Protocol::Meta);
    // The hot keys are few and fit: a key missed once is there afterwards.
    let again = Hybrid {
        scans: vec![Scan::Normal],
        hot_percent: 10.0,
        stores_again: true,
        memory_bytes: Some(16 << 20),
        penalty: Duration::ZERO,
        flushes: true,
        ..hybrid(1.33)
    };
    let with = run(&again, &[&target]).expect("right answers");
    let without = run(&Hybrid { stores_again: false, ..again }, &[&target]).expect("right answers");
    let misses = |results: &fabcache_bench::results::Results| results.samples[1].misses;
    assert!(misses(&with) < misses(&without), "{} and {}", misses(&with), misses(&without));
    assert_eq!(with.samples[0].figures["memory_bytes"], f64::from(16 << 20));
}
