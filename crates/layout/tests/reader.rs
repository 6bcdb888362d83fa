//! Readers of regions that hold anything.
#![cfg(not(loom))]

mod common;

use fabcache_layout::reader::{Outcome, Value};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_bytes_end_and_pass_for_no_item(input in prop::collection::vec(any::<u8>(), 0..1_500)) {
        common::run(&input);
    }
}

#[test]
fn inputs_reach_every_end() {
    let mut x = 1u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    let mut ends = [0; 5];
    for _ in 0..5_000 {
        let input: Vec<u8> = (0..600).map(|_| random()).collect();
        for outcome in common::run(&input) {
            let end = match outcome {
                Outcome::Hit(hit) if matches!(hit.value, Value::Fetched { .. }) => 0,
                Outcome::Hit(_) => 1,
                Outcome::Miss(_) => 2,
                Outcome::Stale(_) => 3,
                Outcome::AskServer(_) => 4,
            };
            ends[end] += 1;
        }
    }
    println!("values, long values, misses, stale, ask the server: {ends:?}");
    assert!(ends.iter().all(|end| *end > 0), "{ends:?}");
}
