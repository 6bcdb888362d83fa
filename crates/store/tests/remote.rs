//! Many GETs at a time over reads that take their time: what they come to is what the server would have answered at some
//! moment while they were under way.
#![cfg(not(loom))]

mod common;

use common::fabric::Fabric;
use common::outside::map_all;
use common::{SetClock, delete, pattern, set, set_with, store};
use fabcache_layout::header;
use fabcache_layout::reader::remote::{Done, Found, RemoteOptions};
use fabcache_layout::reader::{Location, Miss, Reason, Rejection, Remote, Value};
use fabcache_store::life::Life;
use fabcache_store::{Expiry, Handle};

/// One of a store, with a fabric to it.
fn remote(handle: &Handle, options: RemoteOptions) -> (Remote<Vec<u8>>, Fabric) {
    let memory = map_all(handle.store().region());
    let life = Life::keep(handle.store()).expect("a thread, and robust futexes");
    let birth = header::read(&memory).expect("a region");
    let remote = Remote::new(&birth, handle.store().secret().clone(), options).expect("a sound one");
    (remote, Fabric::new(memory, options.in_order).keeping(Box::new(life)))
}

fn both_orders() -> [RemoteOptions; 2] {
    [false, true].map(|in_order| RemoteOptions { in_order, ..RemoteOptions::default() })
}

/// The value of a hit.
fn value(done: &Done<Vec<u8>>, fabric: &mut Fabric) -> Option<Vec<u8>> {
    match &done.found {
        Found::Hit(hit, bytes) => Some(match (hit.value, bytes) {
            (Value::Fetched { at, len }, Some(bytes)) => bytes[at..at + len].to_vec(),
            (Value::Placed, None) => fabric.take_value(done.token),
            other => panic!("{other:?}"),
        }),
        _ => None,
    }
}

fn now(handle: &Handle) -> u32 {
    handle.store().now()
}

#[test]
fn what_is_there_is_found_with_two_fetches_and_where_it_was_with_one() {
    for options in both_orders() {
        let handle = Handle::new(&store(16 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        let key = |i: u64| format!("key{i}").into_bytes();
        let content = |i: u64| pattern(i, [0, 1, 20, 200, 900, 1_500][i as usize % 6]);
        let count = 3_200;
        for i in 0..count {
            set_with(&handle, &key(i), &content(i), i as u32 % 3, Expiry::NEVER).expect("memory is free");
        }
        let mut fetches = Vec::new();
        for round in 0..3 {
            let before = fabric.posted;
            for from in (0..count).step_by(32) {
                (from..from + 32).for_each(|i| match round {
                    0 | 1 => remote.get_by_key(&key(i), i),
                    _ => remote.get(&key(i), i),
                });
                fabric.run(&mut remote, now(&handle));
                let mut seen = 0;
                while let Some(done) = remote.next_done() {
                    assert_eq!(value(&done, &mut fabric), Some(content(done.token)), "key {}", done.token);
                    let Found::Hit(hit, _) = done.found else { unreachable!("it has a value") };
                    assert_eq!((hit.flags, done.was_kept), (done.token as u32 % 3, round == 2));
                    assert_eq!(hit.frequency.is_none(), done.was_kept);
                    seen += 1;
                }
                assert_eq!((seen, remote.gets_under_way(), remote.fetches_under_way()), (32, 0, 0));
            }
            let (all, lines) = (fabric.posted.0 - before.0, fabric.posted.1 - before.1);
            assert_eq!(lines, count / 32, "one for each window");
            fetches.push((all - lines) as f64 / count as f64);
        }
        assert!(fetches[1] < 2.2, "{fetches:?} a GET by key");
        assert!(fetches[2] < 1.05, "{fetches:?} a GET at a kept location");
        for i in 0..64 {
            remote.get(&key(count + i), i);
        }
        fabric.run(&mut remote, now(&handle));
        while let Some(done) = remote.next_done() {
            assert!(matches!(done.found, Found::Miss(Miss::Absent)), "{:?}", done.found);
        }
    }
}

#[test]
fn a_lone_get_at_a_kept_location_asks_for_its_line_when_that_is_of_use() {
    for (options, at_once) in both_orders().into_iter().zip([1, 2]) {
        let handle = Handle::new(&store(4 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"key", b"value").expect("memory is free");
        // The second learns the generation when the count is known, the first the location.
        for _ in 0..3 {
            remote.get(b"key", 0);
            fabric.run(&mut remote, now(&handle));
            assert_eq!(value(&remote.next_done().expect("over"), &mut fabric), Some(b"value".to_vec()));
        }
        let before = fabric.posted.0;
        remote.get(b"key", 0);
        fabric.post(&mut remote, &mut |_| 0);
        assert_eq!(fabric.posted.0 - before, at_once, "{options:?}");
        fabric.run(&mut remote, now(&handle));
        assert_eq!(fabric.posted.0 - before, 2, "item and line");
        assert!(matches!(remote.next_done().expect("over").found, Found::Hit(..)));
    }
}

#[test]
fn long_values_are_put_together_from_pieces() {
    for options in both_orders() {
        let handle = Handle::new(&store(64 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        for len in [40_000, 300_000, 5_000_000, 20_000_000] {
            let content = pattern(len as u64, len);
            set(&handle, b"long", &content).expect("memory is free");
            for kept in [false, true] {
                remote.get(b"long", 9);
                fabric.run(&mut remote, now(&handle));
                let done = remote.next_done().expect("over");
                assert!(value(&done, &mut fabric).as_ref() == Some(&content), "{len}: {:?}", done.found);
                assert_eq!(done.was_kept, kept);
            }
        }
    }
}

/// What happens to an item whose location is kept.
fn a_kept_location(expires: bool, happens: impl Fn(&Handle, &SetClock), expected: Option<&[u8]>) {
    for options in both_orders() {
        let (store, clock) = store(4 << 20, true, 1);
        let handle = Handle::new(&store);
        let (mut remote, mut fabric) = remote(&handle, options);
        let expiry = Expiry::from_client(5, store.now(), store.clock_origin());
        let expiry = if expires { expiry } else { Expiry::NEVER };
        set_with(&handle, b"key", b"value", 0, expiry).expect("memory is free");
        for _ in 0..3 {
            remote.get(b"key", 0);
            fabric.run(&mut remote, now(&handle));
            assert!(matches!(remote.next_done().expect("over").found, Found::Hit(..)));
        }
        happens(&handle, &clock);
        remote.get(b"key", 1);
        fabric.run(&mut remote, now(&handle));
        let done = remote.next_done().expect("over");
        assert_eq!(value(&done, &mut fabric).as_deref(), expected, "{:?}", done.found);
        assert!(!done.was_kept && matches!(done.found, Found::Hit(..) | Found::Miss(_)), "{:?}", done.found);
        assert!(remote.is_kept(b"key") == expected.is_some(), "a stale location is dropped");
    }
}

#[test]
fn kept_locations_of_what_changed_are_not_answers() {
    let replace = |handle: &Handle, _: &SetClock| {
        set(handle, b"key", b"another").expect("memory is free");
    };
    a_kept_location(false, replace, Some(b"another"));
    a_kept_location(false, |handle, _| assert!(delete(handle, b"key")), None);
    a_kept_location(false, |handle, _| handle.flush(Expiry::AT_ONCE), None);
    let wait = |handle: &Handle, clock: &SetClock| {
        clock.advance(5);
        handle.store().tick();
    };
    a_kept_location(true, wait, None);
    let recycled = |handle: &Handle, _: &SetClock| {
        assert!(delete(handle, b"key"));
        recycle(handle);
    };
    a_kept_location(false, recycled, None);
}

/// Uses all memory again.
fn recycle(handle: &Handle) {
    for i in 0..40_000 {
        set(handle, format!("key{i}").as_bytes(), &[b'v'; 200]).expect("something is evicted");
    }
}

/// A GET at a kept location whose item was read before that was deleted and its segment used again, but for its state: which
/// was read after, and looks like that of an item that lives. `before` comes between the item's being asked for and that.
fn written_over(options: RemoteOptions, before: impl Fn(&mut Remote<Vec<u8>>, &mut Fabric, &Handle)) {
    let handle = Handle::new(&store(4 << 20, true, 1).0);
    let (mut remote, mut fabric) = remote(&handle, options);
    set(&handle, b"key", b"value").expect("memory is free");
    let mut location = None;
    for _ in 0..3 {
        remote.get(b"key", 0);
        fabric.run(&mut remote, now(&handle));
        let Some(Done { found: Found::Hit(hit, _), .. }) = remote.next_done() else { panic!("it is there") };
        location = Some(hit.location);
    }
    let Location { offset, .. } = location.expect("it was found");
    let mut item = vec![0; 64];
    map_all(handle.store().region()).copy_out(offset, &mut item);
    remote.get(b"key", 1);
    let fetch = remote.next_fetch().expect("the item");
    assert_eq!(fetch.offset, offset);
    fabric.post_one(fetch, &mut |_| 0);
    before(&mut remote, &mut fabric, &handle);
    assert!(delete(&handle, b"key"));
    recycle(&handle);
    assert!(fabric.replace(offset, &item));
    fabric.run(&mut remote, now(&handle));
    while let Some(done) = remote.next_done() {
        assert!(done.token != 1 || matches!(done.found, Found::Miss(_)), "{:?}", done.found);
        assert!(done.token != 1 || done.rejections.of(Rejection::Recycled) == 1);
    }
}

#[test]
fn a_state_that_was_written_over_is_not_the_items() {
    for options in both_orders() {
        written_over(options, |_, _, _| {});
    }
}

#[test]
fn a_line_from_before_the_item_came_does_not_settle_it() {
    let line_first = |remote: &mut Remote<Vec<u8>>, fabric: &mut Fabric, handle: &Handle| {
        // Another GET wants a line, which is there before the item is.
        remote.get_by_key(b"another", 2);
        let fetches: Vec<_> = std::iter::from_fn(|| remote.next_fetch()).collect();
        let line = fetches.iter().find(|fetch| fetch.offset < 4096).expect("a line is wanted");
        let mut bytes = vec![0; line.len];
        map_all(handle.store().region()).copy_out(line.offset, &mut bytes);
        remote.take(line.id, fabcache_layout::reader::remote::Arrival::Buffer(bytes), now(handle));
        fetches.iter().filter(|fetch| fetch.offset >= 4096).for_each(|fetch| {
            fabric.post_one(*fetch, &mut |_| 0);
        });
    };
    written_over(RemoteOptions::default(), line_first);
}

#[test]
fn a_get_whose_fetch_fails_is_for_the_server() {
    for options in both_orders() {
        let handle = Handle::new(&store(64 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"short", b"value").expect("memory is free");
        set(&handle, b"long", &pattern(1, 5_000_000)).expect("memory is free");
        let mut first = |_| 0;
        for failing in 0..60 {
            let key: &[u8] = if failing % 2 == 0 { b"short" } else { b"long" };
            remote.get(key, failing);
            let mut fetched = 0;
            while remote.gets_under_way() > 0 {
                fabric.post(&mut remote, &mut first);
                fabric.go_on(usize::MAX, &mut first);
                if fabric.hand_in(&mut remote, now(&handle), fetched == failing / 2, &mut first) {
                    fetched += 1;
                }
            }
            let done = remote.next_done().expect("over");
            let is_hit = value(&done, &mut fabric).is_some();
            let has_failed = fetched > failing / 2;
            let is_asking = matches!(done.found, Found::AskServer(Reason::NotFetched));
            assert!(if has_failed { is_asking || is_hit } else { is_hit }, "{failing}: {:?}", done.found);
            fabric.run(&mut remote, now(&handle));
            assert_eq!(remote.fetches_under_way(), 0);
        }
        remote.get(b"long", 0);
        fabric.post(&mut remote, &mut first);
        remote.abandon();
        assert!(matches!(remote.next_done().expect("over").found, Found::AskServer(Reason::NotFetched)));
        assert_eq!((remote.gets_under_way(), remote.fetches_under_way()), (0, 0));
    }
}

#[test]
fn nothing_counts_of_a_region_that_nobody_keeps() {
    for options in both_orders() {
        let handle = Handle::new(&store(64 << 20, true, 1).0);
        let (mut remote, mut fabric) = remote(&handle, options);
        set(&handle, b"key", b"value").expect("memory is free");
        let long = pattern(1, 10_000_000);
        set(&handle, b"long", &long).expect("memory is free");
        let mut first = |_| 0;
        remote.get(b"long", 0);
        // Until its pieces are on their way.
        while !fabric.has_values() {
            fabric.post(&mut remote, &mut first);
            if !fabric.has_values() {
                fabric.go_on(usize::MAX, &mut first);
                fabric.hand_in(&mut remote, now(&handle), false, &mut first);
            }
        }
        let memory = map_all(handle.store().region());
        remote.get(b"key", 1);
        let line = loop {
            let fetch = remote.next_fetch().expect("a line is wanted");
            if fetch.offset < 4096 {
                break fetch;
            }
            fabric.post_one(fetch, &mut first);
        };
        let mut bytes = vec![0; line.len];
        memory.copy_out(line.offset, &mut bytes);
        bytes[16..24].fill(0);
        remote.take(line.id, fabcache_layout::reader::remote::Arrival::Buffer(bytes), now(&handle));
        assert!(remote.is_gone() && matches!(remote.next_done().expect("over").found, Found::Gone));
        assert!(remote.next_done().is_none(), "the value of the other is still being written to");
        fabric.run(&mut remote, now(&handle));
        let done = remote.next_done().expect("over");
        assert!(done.token == 0 && matches!(done.found, Found::Gone), "{:?}", done.found);
        remote.get(b"key", 2);
        assert!(matches!(remote.next_done().expect("at once").found, Found::Gone));
        assert_eq!((remote.gets_under_way(), remote.fetches_under_way()), (0, 0));
    }
}
