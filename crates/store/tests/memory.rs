//! What holds when memory is short.
#![cfg(not(loom))]

mod common;

use common::{delete, get, pattern, plain, set, set_with, store};
use fabcache_store::{Change, Detail, Expiry, Get, Handle, NewValue, Payload, Write};

fn touch(handle: &Handle, key: &[u8], expiry: Expiry) {
    let write = Write { expiry, same_item: true, ..plain(NewValue::Same) };
    handle.mutate(key, |_| (Change::Write(write), ())).expect("a touch needs no more memory than there is");
}

#[test]
fn a_value_on_its_way_out_pins_only_what_is_left_of_it() {
    let handle = Handle::new(&store(64 << 20, true, 1).0);
    let value = pattern(1, 16 << 20);
    set(&handle, b"k", &value).expect("memory is free");
    let pin = || {
        let mut out = Vec::new();
        match handle.get(b"k", Detail::Basic, true, &mut out, |_, _| ()) {
            Get::Hit(_, Payload::Pinned(pinned)) => pinned,
            other => panic!("{other:?} instead of a pinned value"),
        }
    };
    let pinned_segments = || handle.store().usage().segments_pinned;
    let mut first = pin();
    let all = pinned_segments();
    assert!(all > 60, "{all}");
    let (mut sent, mut step) = (0, 1);
    while sent + step < value.len() {
        first.advance(step as u64);
        sent += step;
        step = step * 3 + 7;
        assert_eq!(first.len(), (value.len() - sent) as u64);
        assert!(first.slices().flatten().eq(&value[sent..]), "after {sent} bytes");
    }
    first.advance(first.len() - 1);
    assert_eq!(pinned_segments(), 1);
    let second = pin();
    assert!(pinned_segments() >= all);
    first.advance(1);
    assert!(first.is_empty() && first.slices().next().is_none());
    drop(first);
    assert_eq!(pinned_segments(), all);
    drop(second);
    assert_eq!(pinned_segments(), 0);
}

#[test]
fn what_memory_is_full_of_can_still_be_touched() {
    for value_len in [30, 3_000, 50_000] {
        let handle = Handle::new(&store(4 << 20, false, 1).0);
        let value = pattern(2, value_len);
        let mut keys = Vec::new();
        // With an expiry from the first: one that is added takes four bytes more.
        let expiring =
            |seconds| Expiry::from_client(seconds, handle.store().now(), handle.store().clock_origin());
        while set_with(&handle, format!("key{}", keys.len()).as_bytes(), &value, 0, expiring(9)).is_ok() {
            keys.push(format!("key{}", keys.len()));
        }
        for round in 0..3 {
            for (i, key) in keys.iter().enumerate() {
                let ttl = [9, 30, 300, 3_000, 300_000][(i + round) % 5];
                touch(&handle, key.as_bytes(), expiring(ttl));
            }
        }
        assert!(set(&handle, b"one more", &value).is_err(), "touches make no room");
        for key in &keys {
            assert_eq!(get(&handle, key.as_bytes()).expect("nothing is evicted").1, value);
        }
        // What is deleted here and there comes back though nothing was freed for long.
        for key in keys.iter().step_by(2) {
            assert!(delete(&handle, key.as_bytes()));
        }
        for i in 0..keys.len() / 4 {
            set(&handle, format!("again{i}").as_bytes(), &value).expect("half of memory is free");
        }
    }
}
