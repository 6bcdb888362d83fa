//! GETs over a fabric that delivers words of the index in two halves, between which the server changes them.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;

use common::fabric::Fabric;
use common::outside::map_all;
use common::{get, set, store};
use fabcache_layout::header;
use fabcache_layout::reader::remote::{Now, RemoteOptions};
use fabcache_layout::reader::{ReadOutcome, Remote};
use fabcache_store::liveness::Liveness;
use fabcache_store::{Handle, Store};
use fabcache_testbed::random::SplitMix64;

const MEMORY_BYTES: u64 = 8 << 20;
/// A table of each of the eight partitions has some ten groups in the end.
const KEYS: u64 = 20_000;

fn store_next(handle: &Handle, stored: &mut u64) {
    *stored += 1;
    set(handle, format!("key{stored}").as_bytes(), &[b'v'; 40]).expect("memory is free");
}

/// A client's GETs of stored keys.
struct Gets {
    remote: Remote<Vec<u8>, u64>,
    fabric: Fabric,
    random: SplitMix64,
    _life: Liveness,
}

impl Gets {
    fn new(store: &Arc<Store>) -> Gets {
        let memory = map_all(store.region().expect("a memory file"));
        let birth = header::read(&memory).expect("a region");
        let options = RemoteOptions::default();
        let remote = Remote::new(&birth, store.secret().clone(), options).expect("a sound region");
        let fabric = Fabric::new(memory, options.in_order).halving();
        let life = Liveness::keep(store).expect("a thread, and robust futexes");
        Gets { remote, fabric, random: SplitMix64::new(1), _life: life }
    }

    /// Gets 16 of the first `count` keys; between two halves of the first reads that are at issue, `change` is made.
    /// Returns whether it was.
    fn get(
        &mut self,
        server: &Handle,
        count: u64,
        key: impl Fn(u64) -> String,
        is_at_issue: impl Fn(&Fabric) -> bool,
        go_halfway: impl Fn(&mut Fabric),
        change: impl FnOnce(),
    ) -> bool {
        let now = Now { second: server.store().now(), ns: 0 };
        for _ in 0..16 {
            let number = self.random.next_u64() % count;
            self.remote.get_by_key(key(number).as_bytes(), number, now);
        }
        let mut change = Some(change);
        loop {
            self.fabric.post(&mut self.remote, &mut |_| 0);
            if self.fabric.in_flight() == 0 {
                break;
            }
            if is_at_issue(&self.fabric)
                && let Some(change) = change.take()
            {
                go_halfway(&mut self.fabric);
                change();
            }
            self.fabric.finish(&mut self.remote, now.second);
        }
        while let Some(done) = self.remote.next_completed() {
            let key = key(done.token);
            // The change may have evicted it.
            let is_right =
                matches!(done.outcome, ReadOutcome::Hit(_)) || get(server, key.as_bytes()).is_none();
            assert!(is_right, "{key}: {:?}", done.outcome);
        }
        change.is_none()
    }
}

#[test]
fn slot_half_old_and_half_moved_is_no_miss() {
    let handle = Handle::new(&store(MEMORY_BYTES, true, 1).0);
    let store = handle.store();
    let mut gets = Gets::new(store);
    let (mut stored, mut moves) = (0, 0);
    while stored < KEYS {
        store_next(&handle, &mut stored);
        if !store.usage().index_growing {
            continue;
        }
        // The next write moves a group.
        let count = stored;
        let key = |number| format!("key{}", number + 1);
        let change = || store_next(&handle, &mut stored);
        moves += u64::from(gets.get(&handle, count, key, Fabric::has_buckets, Fabric::go_halfway, change));
    }
    assert!(moves > 300, "{moves} groups moved between two halves");
}

/// The leading bits of some keys' hashes: those of a partition, and seven more, which no border of a group divides in
/// tables of up to 13 groups. The group is not the first one, which moves as soon as a table starts to grow.
const COMMON: u64 = 0x5a5;
const COMMON_BITS: u32 = 12;
const PARTITION_BITS: u32 = 5;
/// Keys of any partition.
const FILLED: u64 = 30_000;
/// More than the buckets of a group hold without a chain.
const CHAINED: u64 = 400;

/// Over a region of several times four megabytes, the bits of a location that the lower half of a slot has.
#[test]
fn slot_half_link_and_half_moved_is_no_miss() {
    let handle = Handle::new(&store(64 << 20, true, 1).0);
    let store = handle.store();
    // A link that lost its upper half leads to the first of these, where nothing looks like a special slot. The others
    // make the index take memory behind them.
    for (numbers, bytes) in [(0..1_000, 8_000), (1_000..FILLED, 1)] {
        for number in numbers {
            set(&handle, number.to_string().as_bytes(), &vec![b' '; bytes]).expect("memory is free");
        }
    }
    let keys = |bits: u32| {
        let is_common =
            move |key: &String| store.hash(key.as_bytes()).0 >> (64 - bits) == COMMON >> (COMMON_BITS - bits);
        (FILLED..).map(|number| number.to_string()).filter(is_common)
    };
    let chained: Vec<String> = keys(COMMON_BITS).take(CHAINED as usize).collect();
    for key in &chained {
        set(&handle, key.as_bytes(), b" ").expect("memory is free");
    }
    let mut gets = Gets::new(store);
    let mut moves = 0;
    for key in keys(PARTITION_BITS).filter(|key| !chained.contains(key)).take(1_200) {
        let write = || _ = set(&handle, key.as_bytes(), b" ").expect("memory is free");
        if store.usage().index_growing {
            // The next write moves a group.
            let key = |number| chained[number as usize].clone();
            moves += u64::from(gets.get(
                &handle,
                CHAINED,
                key,
                Fabric::has_overflow,
                Fabric::go_to_last_half,
                write,
            ));
        } else {
            write();
        }
    }
    assert!(moves > 15, "{moves} groups moved between two halves");
    assert!(store.usage().index_chain_buckets > 10, "the group has a chain");
}
