//! Readers of regions with arbitrary contents.
#![cfg(not(loom))]

mod common;

use fabcache_layout::checksum::{SECRET_BYTES, Secret};
use fabcache_layout::format::HEADER_BYTES;
use fabcache_layout::geometry::Geometry;
use fabcache_layout::header::Birth;
use fabcache_layout::reader::remote::RemoteOptions;
use fabcache_layout::reader::{ReadOutcome, Remote, Value};
use fabcache_testbed::random::SplitMix64;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_bytes_end_the_search_without_a_false_hit(input in prop::collection::vec(any::<u8>(), 0..1_500)) {
        common::run(&input);
    }
}

#[test]
fn inputs_reach_every_outcome() {
    let mut numbers = SplitMix64::new(1);
    let mut random = || numbers.next_u64() as u8;
    let mut ends = [0; 5];
    for _ in 0..5_000 {
        let input: Vec<u8> = (0..600).map(|_| random()).collect();
        for outcome in common::run(&input) {
            let end = match outcome {
                ReadOutcome::Hit(hit) if matches!(hit.value, Value::Fetched { .. }) => 0,
                ReadOutcome::Hit(_) => 1,
                ReadOutcome::Miss(_) => 2,
                ReadOutcome::Stale(_) => 3,
                ReadOutcome::Fallback(_) => 4,
                ReadOutcome::Gone => unreachable!("only Remote returns it"),
            };
            ends[end] += 1;
        }
    }
    println!("values, long values, misses, stale, ask the server: {ends:?}");
    assert!(ends.iter().all(|end| *end > 0), "{ends:?}");
}

/// A remote reader keeps some bytes per segment, and has only the server's word for their number.
#[test]
fn too_many_segments_are_not_read_remotely() {
    let refuses = |segments: u32| {
        let geometry = Geometry {
            region_bytes: 1 << 42,
            partition_bits: 3,
            block_shift: 0,
            segment_shift: 12,
            segments,
            directory: HEADER_BYTES,
            segment_table: 1 << 20,
            first_segment: 1 << 38,
        };
        assert!(geometry.is_sound());
        let birth = Birth { geometry, hash_seed: 0, clock_origin: 0, region_id: 0, incarnation: 0 };
        let secret = Secret([0; SECRET_BYTES]);
        Remote::<Vec<u8>, ()>::new(&birth, secret, RemoteOptions::default()).is_err()
    };
    assert!(refuses(1 << 29) && refuses((1 << 22) + 1));
    assert!(!refuses(1 << 22));
}
