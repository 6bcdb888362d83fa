//! Behaviour when memory is short.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{SetClock, delete, get, plain, set, set_with, store};
use fabcache_store::{
    Change, Detail, Expiry, Get, Handle, ItemInfo, NewValue, Observer, Payload, PinnedValue, Store,
    StoreOptions, Upload, Value, Write,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

const MEMORY_BYTES: u64 = 8 << 20;

fn touch(handle: &Handle, key: &[u8], expiry: Expiry) {
    let write = Write { expiry, same_item: true, ..plain(NewValue::Same) };
    handle.mutate(key, |_| (Change::Write(write), ())).expect("a touch needs no more memory than there is");
}

#[test]
fn value_being_sent_pins_only_its_unsent_chunks() {
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
fn value_that_is_unpinned_meanwhile_is_whole_or_lost() {
    const LEN: usize = 1 << 20;
    let handle = Handle::new(&store(16 << 20, true, 1).0);
    let pin = |key: &[u8]| match handle.get(key, Detail::Basic, true, &mut Vec::new(), |_, _| ()) {
        Get::Hit(_, Payload::Pinned(pinned)) => pinned,
        other => panic!("{other:?} instead of a pinned value"),
    };
    for (i, key) in [b"a", b"b", b"c", b"d", b"e", b"f"].into_iter().enumerate() {
        set(&handle, key, &pattern(i as u64, LEN)).expect("memory is free");
    }
    // The first pin their part of memory, and the next value is in excess.
    let first: Vec<PinnedValue> = [b"b", b"c", b"d", b"e", b"f"].into_iter().map(|key| pin(key)).collect();
    let all = handle.store().usage().segments_pinned;
    let mut value = pin(b"a");
    assert!(value.is_excess() && value.is_pinned());
    let half = pattern(0, LEN).split_off(LEN / 2);
    value.advance(LEN as u64 / 2);
    value.unpin();
    assert!(handle.store().usage().segments_pinned <= all && !value.is_pinned());
    // Neither the index nor this value needs the item any more, but its memory was not used again.
    delete(&handle, b"a");
    assert!(value.pin() && value.is_excess() && value.slices().flatten().eq(&half));
    value.unpin();
    drop(first);
    assert!(value.pin() && !value.is_excess() && value.slices().flatten().eq(&half));
    value.unpin();
    for i in 0..64 {
        set(&handle, format!("new{i}").as_bytes(), &pattern(i, LEN)).expect("there is enough to evict");
    }
    assert!(!value.pin() && !value.is_pinned());
    assert_eq!(handle.store().usage().segments_pinned, 0);
}

#[test]
fn short_chunked_value_is_copied_and_a_long_one_pinned() {
    let handle = Handle::new(&store(2 << 20, true, 1).0);
    for (len, copied) in [(1_000, true), (5_000, true), (16_384, true), (16_385, false)] {
        let value = pattern(len as u64, len);
        set(&handle, b"k", &value).expect("memory is free");
        let mut out = Vec::new();
        match handle.get(b"k", Detail::Basic, true, &mut out, |_, _| ()) {
            Get::Hit(_, Payload::Copied) => assert!(copied && out == value, "{len} bytes"),
            Get::Hit(_, Payload::Pinned(pinned)) => {
                assert!(!copied && pinned.slices().flatten().eq(&value), "{len} bytes");
            }
            other => panic!("{other:?} instead of {len} bytes"),
        }
    }
}

#[test]
fn items_filling_memory_can_be_touched() {
    for value_len in [30, 3_000, 50_000] {
        let handle = Handle::new(&store(4 << 20, false, 1).0);
        let value = pattern(2, value_len);
        let mut keys = Vec::new();
        // With an expiry from the start: adding one takes four bytes more.
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
        assert!(set(&handle, b"one more", &value).is_err(), "touches free no memory");
        for key in &keys {
            assert_eq!(get(&handle, key.as_bytes()).expect("nothing is evicted").1, value);
        }
        // Memory of scattered deletes is reclaimed although no segment stays empty for long.
        for key in keys.iter().step_by(2) {
            assert!(delete(&handle, key.as_bytes()));
        }
        for i in 0..keys.len() / 4 {
            set(&handle, format!("again{i}").as_bytes(), &value).expect("half of memory is free");
        }
    }
}

#[test]
fn items_filling_memory_can_be_incremented_but_not_grow() {
    let handle = Handle::new(&store(4 << 20, false, 1).0);
    set(&handle, b"counter", b"9").expect("memory is free");
    let mut long = pattern(3, 300_000);
    set(&handle, b"long", &long).expect("memory is free");
    let mut keys = 0;
    while set(&handle, format!("key{keys}").as_bytes(), &[b'v'; 500]).is_ok() {
        keys += 1;
    }
    for number in 10..20_000_u64 {
        let write = |info: &ItemInfo| {
            plain(NewValue::Number { number: number * number * number, width: info.len as usize })
        };
        let done = handle.mutate(b"counter", |existing| {
            (Change::Write(write(existing.info.as_ref().expect("it is never evicted"))), ())
        });
        done.expect("a number growing by a digit uses the reserve");
    }
    let counted = get(&handle, b"counter").expect("it is never evicted").1;
    assert_eq!(counted, 19_999_u64.pow(3).to_string().as_bytes());
    // A refused write keeps the stored item, and each attempt ends, chunked or not.
    let refused = (0..400).any(|i| {
        let part = pattern(4, [1_000, 9_000, 90_000][i % 3]);
        let value = NewValue::Appended(Value::Bytes(&part));
        let done = handle.mutate(b"long", |_| (Change::Write(Write { same_item: true, ..plain(value) }), ()));
        if done.is_ok() {
            long.extend_from_slice(&part);
        }
        done.is_err()
    });
    assert!(refused, "memory is full");
    assert_eq!(get(&handle, b"long").expect("it is never evicted").1, long);
    touch(&handle, b"long", Expiry::NEVER);
    touch(&handle, b"key0", Expiry::NEVER);
}

#[test]
fn items_filling_memory_can_be_overwritten_or_stay() {
    for value_len in [30, 3_000, 50_000] {
        let handle = Handle::new(&store(4 << 20, false, 1).0);
        let mut values: Vec<Vec<u8>> = Vec::new();
        loop {
            let value = pattern(values.len() as u64, value_len);
            if set(&handle, format!("key{}", values.len()).as_bytes(), &value).is_err() {
                break;
            }
            values.push(value);
        }
        let mut refused = 0;
        for round in 1..4 {
            for (i, stored) in values.iter_mut().enumerate() {
                let value = pattern((round << 32) + i as u64, value_len);
                match set(&handle, format!("key{i}").as_bytes(), &value) {
                    Ok(_) => *stored = value,
                    Err(_) => refused += 1,
                }
            }
        }
        // Chunks of long values are written before what they replace is known.
        assert!(refused == 0 || value_len == 50_000, "{refused} of {value_len} bytes");
        for (i, stored) in values.iter().enumerate() {
            let (_, value) = get(&handle, format!("key{i}").as_bytes()).expect("nothing is evicted");
            assert_eq!(value, *stored, "key{i}");
        }
        assert!(set(&handle, b"one more", &pattern(1, value_len)).is_err(), "overwriting frees no memory");
        assert_eq!(handle.store().sums().evictions, 0);
    }
}

#[test]
fn concurrent_flushes_keep_items_flushed() {
    let (store, clock) = store(8 << 20, true, 9);
    let handle = Handle::new(&store);
    for i in 0..20_000 {
        set(&handle, format!("key{i}").as_bytes(), b"old").expect("memory is free");
    }
    // A flush differs from the previous one only if something was stored since.
    let flush = |handle: &Handle, i: u32| {
        set(handle, format!("between{i}").as_bytes(), &pattern(i, 2_000)).expect("memory is free");
        handle.flush(Expiry::AT_ONCE);
        assert!(get(handle, format!("between{i}").as_bytes()).is_none());
    };
    (0..250).for_each(|i| flush(&handle, i));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let handle = Handle::new(store);
                (0..40).for_each(|i| flush(&handle, 1_000 * thread + i));
            });
        }
    });
    for i in 0..20_000 {
        assert!(get(&handle, format!("key{i}").as_bytes()).is_none(), "key{i}");
    }
    for i in (0..250).chain((0..8).flat_map(|thread| 1_000 * thread..1_000 * thread + 40)) {
        assert!(get(&handle, format!("between{i}").as_bytes()).is_none(), "between{i}");
    }
    // A flush that removes nothing leaves the pending flush and later items alone.
    handle.flush(Expiry::AT_ONCE);
    handle.flush(Expiry::from_client(5, store.now(), store.clock_origin()));
    handle.flush(Expiry::from_client(9, store.now(), store.clock_origin()));
    set(&handle, b"k", b"v").expect("memory is free");
    clock.advance(6);
    handle.maintain();
    assert!(get(&handle, b"k").is_some(), "a later flush replaced the earlier one");
    clock.advance(4);
    handle.maintain();
    assert!(get(&handle, b"k").is_none());
}

#[test]
fn value_with_too_many_chunks_is_rejected() {
    let handle = Handle::new(&store(7_990 << 10, true, 1).0);
    let segment = handle.store().usage().segment_bytes as usize;
    assert_eq!(segment, 16 << 10);
    // Small items leave a remainder in each segment that splits a chunk in two.
    let (part, tail) = ([b'h'; 8_192], 4_100);
    let mut left = segment;
    let mut small = 0;
    let mut fill = || {
        while left > tail {
            let bytes = if left - tail > 1_900 { 1_000 } else { left - tail };
            small += 1;
            let lengths = if bytes < 284 { 1 } else { 2 };
            let value = vec![b's'; bytes - 12 - lengths - 6];
            set(&handle, format!("s{:05}", small % 10_000).as_bytes(), &value).expect("something is evicted");
            left -= bytes;
        }
        left = segment - (16 + 2 + part.len() - (tail - 18)).next_multiple_of(4);
    };
    let mut upload = Upload::begin(handle.store(), b"huge", Expiry::NEVER, 3_720_192);
    while upload.missing() > 0 {
        fill();
        upload
            .write(&handle, &part[..part.len().min(upload.missing() as usize)])
            .expect("something is evicted");
    }
    let stored = upload.finish(&handle).and_then(|uploaded| {
        let write = plain(NewValue::Is(Value::CompletedUpload(&uploaded)));
        handle.mutate(b"huge", |_| (Change::Write(write), ()))
    });
    assert!(stored.is_err(), "its chunk table exceeds a segment");
    assert!(get(&handle, b"huge").is_none());
    set(&handle, b"another", b"value").expect("the store stays usable");
}

#[test]
fn without_eviction_a_lower_limit_reclaims_dead_items() {
    let handle = Handle::new(&store(16 << 20, false, 1).0);
    let mut keys = 0;
    while set(&handle, format!("key{keys}").as_bytes(), &[b'v'; 900]).is_ok() {
        keys += 1;
    }
    for i in (0..keys).filter(|i| i % 4 != 0) {
        assert!(delete(&handle, format!("key{i}").as_bytes()));
    }
    handle.set_memory_limit(8 << 20).expect("three quarters are dead");
    assert!(handle.set_memory_limit(4 << 20).is_err(), "live items exceed the limit");
    for i in 0..keys {
        assert_eq!(get(&handle, format!("key{i}").as_bytes()).is_some(), i % 4 == 0);
    }
    set(&handle, b"one more", &[b'v'; 900]).expect("there is room at 8 MB");
}

#[test]
fn values_expired_on_arrival_leave_memory_to_others() {
    for flushes in [false, true] {
        let (store, clock) = store(4 << 20, true, 1);
        let handle = Handle::new(&store);
        let soon = Expiry::from_client(1, store.now(), store.clock_origin());
        let expiry = if flushes { Expiry::NEVER } else { soon };
        let mut uploads = Vec::new();
        for i in 0..5 {
            let mut upload = Upload::begin(&store, format!("slow{i}").as_bytes(), expiry, 1_000_001);
            upload.write(&handle, &pattern(i, 1_000_000)).expect("late items are evicted");
            uploads.push(upload);
        }
        if flushes {
            handle.flush(Expiry::AT_ONCE);
        }
        clock.advance(4);
        handle.maintain();
        set(&handle, b"long", &pattern(9, 400_000)).expect("an abandoned upload may be evicted");
        for i in 0..500 {
            set(&handle, format!("key{i}").as_bytes(), &[b'v'; 1_000])
                .expect("an abandoned upload may be evicted");
        }
        let left = (0..500).filter(|i| get(&handle, format!("key{i}").as_bytes()).is_some()).count();
        assert_eq!(left, 500, "the items take an eighth of memory");
    }
}

#[test]
fn remaining_memory_may_be_open_segments() {
    let (store, _) = store(64 << 20, true, 4);
    let handle = Handle::new(&store);
    let store_some = |count: u64| {
        for i in 0..count {
            let seconds = [0, 100, 300, 900, 5_000, 20_000, 60_000, 2_000_000][i as usize % 8];
            let expiry = Expiry::from_client(seconds, store.now(), store.clock_origin());
            let key = format!("key{}", i % 10_000);
            set_with(&handle, key.as_bytes(), &[b'v'; 8_000], 0, expiry).expect("something can be evicted");
            get(&handle, format!("key{}", i.saturating_sub(100) % 10_000).as_bytes());
        }
    };
    store_some(20_000);
    let usage = store.usage();
    let least = (store.usage().memory_limit - u64::from(usage.segments) * usage.segment_bytes)
        + (u64::from(usage.segments_index) + 8) * usage.segment_bytes;
    handle.set_memory_limit(least).expect("all can be evicted");
    store_some(5_000);
}

#[test]
fn best_victim_is_found_beyond_one_batch_of_segments() {
    // 32 KiB segments, reserved for 2 GiB.
    let options = StoreOptions {
        memory_bytes: 16 << 20,
        memory_bytes_max: 2 << 30,
        time: Box::new(SetClock::default()),
        ..StoreOptions::default()
    };
    let store = Arc::new(Store::open(options).expect("memory for a test"));
    let handle = Handle::new(&store);
    let read = |i: u32| get(&handle, format!("read{i}").as_bytes());
    for i in 0..1_000 {
        set(&handle, format!("read{i}").as_bytes(), &pattern(i, 1_000)).expect("memory is free");
        read(i);
    }
    for i in 0..60_000_u32 {
        set(&handle, format!("once{i}").as_bytes(), &[b'v'; 1_000]).expect("something can be evicted");
        read(i % 1_000);
    }
    assert!(store.sums().evictions > 40_000, "sixteen thousand items fit");
    let left =
        (0..1_000).filter(|i| read(*i).is_some_and(|it| it.1 == pattern(u64::from(*i), 1_000))).count();
    assert!(left > 990, "{left} of the constantly read items are left");
}

fn revived_by(value: fn() -> NewValue<'static>) {
    let (store, _) = store(8 << 20, true, 4);
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
            scope.spawn(move || {
                let handle = Handle::new(&store);
                while !stop.load(Ordering::Relaxed) {
                    let write = Write { same_item: true, ..plain(value()) };
                    let done = handle.mutate(b"k", |existing| match existing.info {
                        Ok(info) if info.len < 1_000 => (Change::Write(write), ()),
                        _ => (Change::Keep, ()),
                    });
                    done.expect("something can be evicted");
                }
            });
        }
        let handle = Handle::new(&store);
        let mut revived = 0;
        for i in 0..5_000 {
            set(&handle, b"k", b"stored before the flush").expect("something can be evicted");
            if i % 3 == 0 {
                std::thread::yield_now();
            }
            handle.flush(Expiry::AT_ONCE);
            revived += u32::from(get(&handle, b"k").is_some());
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(revived, 0, "items stored before a flush and found after its reply");
    });
}

#[test]
fn touch_does_not_revive_a_flushed_item() {
    revived_by(|| NewValue::Same);
}

#[test]
fn append_does_not_revive_a_flushed_item() {
    revived_by(|| NewValue::Appended(Value::Bytes(b"+")));
}

#[test]
fn items_filling_memory_can_be_touched_with_any_ttl() {
    let mut failed = Vec::new();
    for (memory, len) in [(1 << 20, 30), (4 << 20, 300), (4 << 20, 1_500)] {
        let handle = Handle::new(&store(memory, false, 4).0);
        let value = pattern(2, len);
        let expiring =
            |seconds| Expiry::from_client(seconds, handle.store().now(), handle.store().clock_origin());
        let mut keys = 0_u64;
        while set_with(&handle, format!("key{keys:06}").as_bytes(), &value, 0, expiring(9)).is_ok() {
            keys += 1;
        }
        let mut refused = 0;
        let mut random = SplitMix64::new(1);
        for _ in 0..2 * keys {
            let x = random.next_u64();
            let key = format!("key{:06}", (x >> 20) % keys);
            let expiry = expiring(1 << (3 + (x >> 50) % 20));
            let write = Write { expiry, same_item: true, ..plain(NewValue::Same) };
            refused += u32::from(handle.mutate(key.as_bytes(), |_| (Change::Write(write), ())).is_err());
        }
        if refused > 0 {
            failed.push((memory >> 20, len, keys, refused, handle.store().usage()));
        }
    }
    assert!(failed.is_empty(), "megabytes, bytes of a value, keys, touches refused: {failed:?}");
}

#[test]
fn smallest_accepted_memory_stores_an_item() {
    let mut failed = Vec::new();
    for max in [256 << 10, 1 << 20] {
        for evict in [true, false] {
            let mut accepted = 0;
            let mut memory: u64 = 16 << 10;
            while memory < max && accepted < 6 {
                memory += 4 << 10;
                let options = StoreOptions {
                    memory_bytes: memory,
                    memory_bytes_max: max,
                    evict,
                    threads: 1,
                    ..StoreOptions::default()
                };
                let Ok(store) = Store::open(options) else { continue };
                accepted += 1;
                let store = Arc::new(store);
                let handle = Handle::new(&store);
                let mut refused = 0;
                for i in 0..300 {
                    let done = set(&handle, format!("key{i}").as_bytes(), &pattern(i, 100));
                    refused += u32::from(done.is_err() && (evict || i == 0));
                }
                if refused > 0 {
                    failed.push((
                        max,
                        memory,
                        evict,
                        refused,
                        store.usage().segments,
                        store.usage().segments_index,
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "limit reserved, memory, evicts, refused, segments, of the index: {failed:?}");
}

/// Chunks of old values that are moved among those of new ones leave holes when they go, and all is moved again.
#[test]
fn long_values_are_not_moved_for_each_one_stored() {
    for (len, ttl) in [(100_000, 0), (300_000, 0), (300_000, 1_000)] {
        let (store, _) = store(MEMORY_BYTES, true, 1);
        let handle = Handle::new(&store);
        let value = pattern(1, len);
        let expiry = Expiry::from_client(ttl, store.now(), store.clock_origin());
        let fill = |sets: std::ops::Range<usize>| {
            for i in sets {
                let key = format!("long{i}");
                set_with(&handle, key.as_bytes(), &value, 0, expiry).expect("something can be evicted");
            }
            store.sums()
        };
        let sets = 4 * MEMORY_BYTES as usize / len;
        let (before, after) = (fill(0..sets), fill(sets..5 * sets));
        let compacted = (after.segments_compacted - before.segments_compacted) as f64 / (4 * sets) as f64;
        let moved = (after.bytes_moved - before.bytes_moved) as f64 / (4 * sets * len) as f64;
        let live = store.usage().item_bytes as f64 / MEMORY_BYTES as f64;
        println!("{len}, {ttl}: compacted {compacted:.2}, moved {moved:.3}, live {live:.3}");
        assert!(compacted < 2.5, "{len}: {compacted} segments were compacted for one value");
        assert!(moved < 0.1, "{len}: {moved} bytes moved for each written");
        assert!(live > 0.93, "{len}: {live} of memory is used");
    }
}

#[derive(Debug, Default)]
struct UntouchedMemory(AtomicBool);

impl Observer for &'static UntouchedMemory {
    fn is_listening(&self) -> bool {
        false
    }

    fn evicted(&self, _key: &[u8], _info: &ItemInfo) {}

    fn memory_is_untouched(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a handle to a store of 64 MiB, up to 128, and what its observer was told.
fn observed() -> (Handle, &'static UntouchedMemory) {
    let options =
        StoreOptions { memory_bytes: 64 << 20, memory_bytes_max: 128 << 20, ..StoreOptions::default() };
    let store = Arc::new(Store::open(options).expect("memory for a test"));
    let untouched: &'static UntouchedMemory = Box::leak(Box::default());
    store.observe(Box::new(untouched));
    (Handle::new(&store), untouched)
}

#[test]
fn writers_ask_no_more_for_touching_that_the_kernel_refuses() {
    let (handle, untouched) = observed();
    let store = handle.store();
    let is_wanted = || untouched.0.swap(false, Ordering::Relaxed);
    let write = |i: u64| set(&handle, &i.to_le_bytes(), &pattern(i, 100_000)).map(|_| ());
    write(0).expect("memory is free");
    assert!(is_wanted());
    handle.touch_ahead();
    let mut written = 1;
    while !is_wanted() {
        write(written).expect("memory is free");
        written += 1;
    }
    // The kernel touches no pages beyond the end of the file. None of them is in use yet.
    rustix::fs::ftruncate(store.region().expect("a memory file"), 10 << 20).expect("not sealed");
    handle.touch_ahead();
    rustix::fs::ftruncate(store.region().expect("a memory file"), store.region_bytes()).expect("not sealed");
    for i in written..written + 300 {
        write(i).expect("memory is free");
        assert!(!is_wanted(), "{i}");
        handle.touch_ahead();
    }
}

#[test]
fn free_segments_are_touched_before_writers_take_them() {
    let (handle, untouched) = observed();
    let store = handle.store();
    let is_wanted = || untouched.0.swap(false, Ordering::Relaxed);
    let allocated =
        || rustix::fs::fstat(store.region().expect("a memory file")).expect("open").st_blocks as u64 * 512;
    let write = |i: u64| set(&handle, &i.to_le_bytes(), &pattern(i, 100_000)).map(|_| ());

    write(0).expect("memory is free");
    assert!(is_wanted());
    let before = allocated();
    handle.touch_ahead();
    let touched = allocated() - before;
    assert_eq!(touched >> 20, 7, "an eighth of 64 MiB, less what else the region holds: {touched}");
    handle.touch_ahead();
    assert_eq!(allocated() - before, touched);

    let mut written = 1;
    while !is_wanted() {
        write(written).expect("memory is free");
        written += 1;
    }
    assert!((30..60).contains(&written), "half of what was touched is taken after {written} values");
    let more = allocated() - before - touched;
    assert!(more < 64 << 10, "those writes touched {more} bytes beside a few of the index");
    for i in written..2_000 {
        write(i).expect("items are evicted");
        handle.touch_ahead();
    }
    assert!(allocated() <= 64 << 20, "never beyond the limit");
    is_wanted();
    write(2_000).expect("items are evicted");
    assert!(!is_wanted(), "all is touched");
    handle.set_memory_limit(16 << 20).expect("items are evicted");
    handle.touch_ahead();
    assert!(allocated() <= 16 << 20, "retired segments stay untouched");
}

#[test]
fn overwritten_values_leave_memory_that_is_used_before_untouched_memory() {
    let (handle, untouched) = observed();
    for i in 0..3_000u64 {
        set(&handle, &(i % 20).to_le_bytes(), &pattern(i, 100_000)).expect("memory is free");
        if untouched.0.swap(false, Ordering::Relaxed) {
            handle.touch_ahead();
        }
    }
    let allocated =
        rustix::fs::fstat(handle.store().region().expect("a memory file")).expect("open").st_blocks as u64
            * 512;
    assert!(allocated < 20 << 20, "2 MB of live values, and {allocated} bytes were touched");
}
