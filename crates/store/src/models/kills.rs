//! Models of two starts in a row: a store is killed before each store to the region that its recovery makes, and the
//! recovery of the next one runs beside requests and readers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabcache_layout::item;
use fabcache_layout::kill_points::{KillPoint, Moment, observe};
use loom::thread;

use super::outside::{both_modes, by_key, open, value};
use super::recovery::recovering;
use super::{check, get, set, store_that};
use crate::{Change, Expiry, Handle, Store};

/// Ends the work of a killed server.
struct Killed;

/// Does `work`, unless a kill ends it before its store number `at` to the region. Returns whether a kill did.
fn is_killed_before(at: usize, work: impl FnOnce()) -> bool {
    let mut stores = 0;
    let observer = move |point: KillPoint| {
        if point.moment == Moment::Before {
            if stores == at {
                resume_unwind(Box::new(Killed));
            }
            stores += 1;
        }
    };
    match catch_unwind(AssertUnwindSafe(|| observe(observer, work))) {
        Ok(()) => false,
        Err(cause) if cause.is::<Killed>() => true,
        Err(cause) => resume_unwind(cause),
    }
}

/// A store whose recovery follows one that a kill ended.
struct Restarted {
    store: Arc<Store>,
    /// The version of `b` that a server answered last.
    b: u64,
    /// Whether the first recovery was killed, not finished.
    is_killed: bool,
}

/// Returns a store over the region of one that was killed before store number `at` of its recovery, if there are so many. At
/// the start of that one `a` was in an open segment, and the slot of `c` led to a dead item.
fn restarted_twice(at: usize) -> Restarted {
    let (first, _) = store_that(true);
    let handle = Handle::new(&first);
    for key in [b"b", b"c"] {
        set(&handle, key, &value(1), Expiry::NEVER);
    }
    first.segments.seal_open(|_| true);
    set(&handle, b"a", &value(1), Expiry::NEVER);
    let hash = first.hash(b"c");
    let found = first.index.lock(hash).find(hash, |slot| first.has_key(slot.offset(), b"c"));
    item::mark_dead(&first.memory, found.expect("the key exists").slot.offset());
    drop(handle);
    let second = recovering(first);
    let handle = Handle::new(&second);
    let (is_killed, b) = match at.checked_sub(1) {
        None => (is_killed_before(0, || assert!(second.check_all_groups(&mut || true))), 1),
        Some(at) => {
            // Before it the only group of the index is checked.
            set(&handle, b"b", &value(2), Expiry::NEVER);
            (is_killed_before(at, || assert!(handle.finish_restart(&mut || true))), 2)
        }
    };
    drop(handle);
    Restarted { store: recovering(second), b, is_killed }
}

/// Runs `beside`, which returns the version of `a` that it leaves, while the second recovery runs, and checks what is stored
/// then: for each store before which a kill ends the first recovery.
fn check_second_recovery(beside: impl Fn(&Arc<Store>) -> u64 + Copy + Send + Sync + 'static) {
    let is_killed = Arc::new(AtomicBool::new(true));
    for at in 0.. {
        let killed = Arc::clone(&is_killed);
        check(1, move || {
            let Restarted { store, b, is_killed } = restarted_twice(at);
            killed.store(is_killed, Ordering::Relaxed);
            let sweep = {
                let store = Arc::clone(&store);
                thread::spawn(move || assert!(Handle::new(&store).finish_restart(&mut || true)))
            };
            let version = beside(&store);
            sweep.join().expect("recovered");
            let main = Handle::new(&store);
            let values = [b"a", b"b", b"c"].map(|key| get(&main, key));
            let expected = [Some(value(version).into()), Some(value(b).into()), None];
            assert_eq!(values, expected, "killed before store {at}");
            assert_eq!((store.usage().items, store.index.items()), (2, 2), "killed before store {at}");
            for key in [b"a", b"b"] {
                main.mutate(key, |_| (Change::Remove, ())).expect("no memory is needed");
            }
            assert_eq!((store.usage().items, store.usage().item_bytes, store.index.items()), (0, 0, 0));
        });
        if !is_killed.load(Ordering::Relaxed) {
            assert!(at > 0, "a recovery without a store");
            return;
        }
    }
}

#[test]
fn key_is_read_beside_a_second_recovery() {
    check_second_recovery(|store| {
        assert_eq!(get(&Handle::new(store), b"a").as_deref(), Some(&value(1)[..]));
        1
    });
}

#[test]
fn key_is_replaced_beside_a_second_recovery() {
    check_second_recovery(|store| {
        let handle = Handle::new(store);
        set(&handle, b"a", &value(2), Expiry::NEVER);
        assert_eq!(get(&handle, b"a").as_deref(), Some(&value(2)[..]));
        2
    });
}

fn key_is_read_outside(mode: usize) {
    check_second_recovery(move |store| {
        let mut reader = open(store, both_modes(store)[mode].clone());
        assert!(by_key(&mut reader, store).is_none_or(|version| version == 1));
        1
    });
}

#[test]
fn key_is_read_on_the_same_host_beside_a_second_recovery() {
    key_is_read_outside(0);
}

#[test]
fn key_is_read_remotely_beside_a_second_recovery() {
    key_is_read_outside(1);
}
