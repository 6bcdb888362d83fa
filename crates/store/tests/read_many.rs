//! Reading in batches and plain sets against the general operations.
#![cfg(not(loom))]

mod common;

use common::{delete, get, set_with, store};
use fabcache_store::{Change, Detail, Expiry, Handle, Located, NewValue, Probe, Put, Value, Write};
use fabcache_testbed::bytes::pattern;
use proptest::prelude::*;

/// What happens to a store between the passes of a batch and its reads.
#[derive(Clone, Debug)]
enum Op {
    Set { key: u8, len: usize, flags: u32, seconds: i64 },
    Delete { key: u8 },
    Advance { seconds: u64 },
    Flush,
    Maintain,
}

fn op() -> impl Strategy<Value = Op> {
    // Copied, in one piece and chained; pinned.
    let len = prop_oneof![6 => 0usize..200, 1 => 4_000usize..16_384, 1 => 16_385usize..40_000];
    let seconds = prop_oneof![3 => Just(0i64), 2 => 1i64..20, 1 => Just(-1i64)];
    prop_oneof![
        12 => (any::<u8>(), len, prop_oneof![Just(0u32), any::<u32>()], seconds)
            .prop_map(|(key, len, flags, seconds)| Op::Set { key, len, flags, seconds }),
        3 => any::<u8>().prop_map(|key| Op::Delete { key }),
        1 => (1u64..12).prop_map(|seconds| Op::Advance { seconds }),
        1 => Just(Op::Flush),
        1 => Just(Op::Maintain),
    ]
}

fn name(key: u8) -> Vec<u8> {
    // Few keys, so that batches have equal ones; of two lengths.
    format!("key{}", key % 48).into_bytes()
}

fn apply(handle: &Handle, clock: &common::SetClock, op: &Op, number: usize, puts: bool) {
    match op {
        Op::Set { key, len, flags, seconds } => {
            let expiry = Expiry::from_client(*seconds, handle.store().now(), handle.store().clock_origin());
            let value = pattern(number as u64, *len);
            let key = name(*key);
            let stored = if puts {
                let probe = handle.probe_for_write(&key);
                let put = Put { key: &key, value: &value, flags: *flags, expiry };
                handle.put(&put, &probe).map(|stored| stored.cas)
            } else {
                set_with(handle, &key, &value, *flags, expiry)
            };
            assert_eq!(stored.expect("memory is not full"), number as u64, "the next CAS value");
        }
        Op::Delete { key } => _ = delete(handle, &name(*key)),
        Op::Advance { seconds } => {
            clock.advance(*seconds);
            handle.store().tick();
        }
        Op::Flush => handle.flush(Expiry::AT_ONCE),
        Op::Maintain => handle.maintain(),
    }
}

/// Reads a key by a probe, as the general read does: flags and value.
fn read(handle: &Handle, key: &[u8], probe: &Probe) -> Option<(u32, Vec<u8>)> {
    let mut out = b"before".to_vec();
    match handle.locate(key, probe) {
        Located::Item(item) => {
            assert!(handle.append_value(&item, &mut out), "nobody writes meanwhile");
            assert_eq!((&out[..6], out.len()), (&b"before"[..], 6 + item.value_len() as usize));
            Some((item.flags(), out.split_off(6)))
        }
        Located::Miss(_) | Located::OnFlash => None,
        Located::Unsettled => get(handle, key).map(|(info, value)| (info.flags, value)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn batches_do_what_general_operations_do(
        rounds in prop::collection::vec(
            (prop::collection::vec(op(), 0..60), prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(op(), 0..4)),
            1..12,
        ),
    ) {
        // Two stores with the same history, one of which takes the fast paths: counts and evictions must be alike.
        let (batched, batched_clock) = store(16 << 20, true, 1);
        let (single, single_clock) = store(16 << 20, true, 1);
        let (batched, single) = (Handle::new(&batched), Handle::new(&single));
        let mut number = 0;
        let mut apply_to_both = |ops: &[Op]| {
            for op in ops {
                number += usize::from(matches!(op, Op::Set { .. }));
                apply(&batched, &batched_clock, op, number, true);
                apply(&single, &single_clock, op, number, false);
            }
        };
        for (before, keys, between) in &rounds {
            apply_to_both(before);
            let keys: Vec<Vec<u8>> = keys.iter().map(|key| name(*key)).collect();
            let mut probes = [Probe::NONE; 32];
            let taken = batched.probe_many(keys.iter().map(Vec::as_slice), &mut probes);
            prop_assert_eq!(taken, keys.len().min(probes.len()));
            // The passes' findings grow old.
            apply_to_both(between);
            for (key, probe) in keys.iter().zip(&probes[..taken]) {
                let expected = get(&single, key).map(|(info, value)| (info.flags, value));
                prop_assert_eq!(read(&batched, key, probe), expected);
                let of_one = batched.probe(key);
                prop_assert_eq!(read(&batched, key, &of_one), get(&single, key).map(|(info, value)| (info.flags, value)));
            }
            let described = |handle: &Handle| -> Vec<_> {
                keys.iter().map(|key| handle.describe(key, fabcache_store::Detail::Full, false)).collect()
            };
            prop_assert_eq!(described(&batched), described(&single));
        }
        let (mut batched, mut single) = (batched.store().sums(), single.store().sums());
        // How it was read may differ, but not what came of it. Which keys are counted by queue follows from hashes.
        for sums in [&mut batched, &mut single] {
            (sums.overflow_reads, sums.small_queue_hits, sums.main_queue_hits) = (0, 0, 0);
        }
        prop_assert_eq!(batched, single);
    }
}

#[test]
fn cas_values_of_a_run_rise_beyond_an_item_that_is_written_alone() {
    let (store, _) = store(16 << 20, true, 1);
    let handle = Handle::new(&store);
    let long = pattern(7, 100_000);
    let keys = [b"first", b"chain", b"third", b"final"];
    let values = [&b"1"[..], &long, b"3", b"4"];
    let puts = std::array::from_fn::<_, 4, _>(|i| Put { key: keys[i], value: values[i], ..Put::default() });
    let mut probes = [Probe::NONE; 4];
    handle.probe_many(puts.iter().map(|put| put.key), &mut probes);
    handle.put_many(&puts, &probes, |_, _| ()).expect("memory is free");
    let cas = keys.map(|key| handle.describe(key, Detail::Full, false).expect("it was stored").cas);
    assert!(cas.is_sorted(), "{cas:?}");
}

#[test]
fn cas_values_of_a_run_are_the_next_ones_whatever_a_client_made_up() {
    let (store, _) = store(16 << 20, true, 1);
    let handle = Handle::new(&store);
    let made_up = Write { cas: Some(2), ..Write::plain(NewValue::Is(Value::Bytes(b"old"))) };
    handle.mutate(b"k", |_| (Change::Write(made_up), ())).expect("memory is free");
    let puts = [Put { key: b"k", value: b"new", ..Put::default() }; 3];
    let mut probes = [Probe::NONE; 3];
    handle.probe_many(puts.iter().map(|put| put.key), &mut probes);
    let mut told = Vec::new();
    handle.put_many(&puts, &probes, |_, item| told.push(item.cas)).expect("memory is free");
    assert_eq!(told, [1, 2, 3]);
}
