//! GETs over a fabric that delivers words of the index in two halves, between which the server changes them.
#![cfg(not(loom))]

mod common;

use common::fabric::Fabric;
use common::outside::map_all;
use common::{set, store};
use fabcache_layout::header;
use fabcache_layout::reader::remote::{Now, RemoteOptions};
use fabcache_layout::reader::{ReadOutcome, Remote};
use fabcache_store::Handle;
use fabcache_store::liveness::Liveness;
use fabcache_testbed::random::SplitMix64;

const MEMORY_BYTES: u64 = 8 << 20;
/// A table of each of the eight partitions has some ten groups in the end.
const KEYS: u64 = 20_000;

fn store_next(handle: &Handle, stored: &mut u64) {
    *stored += 1;
    set(handle, format!("key{stored}").as_bytes(), &[b'v'; 40]).expect("memory is free");
}

#[test]
fn slot_half_old_and_half_moved_is_no_miss() {
    let handle = Handle::new(&store(MEMORY_BYTES, true, 1).0);
    let store = handle.store();
    let memory = map_all(store.region());
    let birth = header::read(&memory).expect("a region");
    let _life = Liveness::keep(store).expect("a thread, and robust futexes");
    let options = RemoteOptions::default();
    let remote = Remote::new(&birth, store.secret().clone(), options);
    let mut remote: Remote<Vec<u8>, u64> = remote.expect("a sound region");
    let mut fabric = Fabric::new(memory, options.in_order).halving();
    let mut random = SplitMix64::new(1);
    let mut stored = 0;
    let mut moves = 0;
    while stored < KEYS {
        store_next(&handle, &mut stored);
        if !store.usage().index_growing {
            continue;
        }
        // The next write moves a group.
        let now = Now { second: store.now(), ns: 0 };
        for _ in 0..16 {
            let key = 1 + random.next_u64() % (stored - 1);
            remote.get_by_key(format!("key{key}").as_bytes(), key, now);
        }
        let mut is_moved = false;
        loop {
            fabric.post(&mut remote, &mut |_| 0);
            if fabric.in_flight() == 0 {
                break;
            }
            if fabric.has_buckets() && !is_moved {
                fabric.go_halfway();
                store_next(&handle, &mut stored);
                (is_moved, moves) = (true, moves + 1);
            }
            fabric.finish(&mut remote, now.second);
        }
        while let Some(done) = remote.next_completed() {
            assert!(matches!(done.outcome, ReadOutcome::Hit(_)), "key{}: {:?}", done.token, done.outcome);
        }
    }
    assert!(moves > 300, "{moves} groups moved between two halves");
}
