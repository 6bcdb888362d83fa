//! Keys that are made to collide, as every reader of the region can make them: the header has the hash seed.
#![cfg(not(loom))]

mod common;

use common::outside::map_all;
use common::{delete, get, set, set_with, store};
use fabcache_layout::{KeyHash, header};
use fabcache_store::{Expiry, Handle, OutOfMemory};

/// The leading bits that colliding keys have in common: those of their partition and seven more. No border of a group
/// divides them in tables of up to 13 groups, as these tests have them.
const COMMON_BITS: u32 = 12;
const COMMON: u64 = 0x5a5;
const PARTITION_BITS: u32 = 5;
/// More than home and neighbour bucket, or two of each, overflow area and a chain of 32 buckets.
const GROUP_KEYS_MAX: usize = 4 * 8 + 4 * 8 + 32 * 7;

/// Returns keys whose hash begins with the same bits, found as another process would.
fn colliding(handle: &Handle, count: usize) -> Vec<String> {
    let header = header::read(&map_all(handle.store().region().expect("a memory file"))).expect("a region");
    let collides =
        |key: &String| KeyHash::of(key.as_bytes(), header.hash_seed).0 >> (64 - COMMON_BITS) == COMMON;
    (0_u64..).map(|n| format!("c{n}")).filter(collides).take(count).collect()
}

fn others(handle: &Handle, count: usize) -> Vec<String> {
    let collides = |key: &String| handle.store().hash(key.as_bytes()).0 >> (64 - COMMON_BITS) == COMMON;
    (0_u64..).map(|n| format!("other{n}")).filter(|key| !collides(key)).take(count).collect()
}

/// Returns whether a key is of the partition of those that collide.
fn is_neighbour(handle: &Handle, key: &str) -> bool {
    let partition = handle.store().hash(key.as_bytes()).0 >> (64 - PARTITION_BITS);
    partition == COMMON >> (COMMON_BITS - PARTITION_BITS)
}

/// Returns how many of the keys are stored, with their value.
fn stored(handle: &Handle, keys: &[String]) -> usize {
    let is_stored = |key: &&String| match get(handle, key.as_bytes()) {
        Some((_, value)) => {
            assert_eq!(value, key.as_bytes());
            true
        }
        None => false,
    };
    keys.iter().filter(is_stored).count()
}

#[test]
fn every_set_of_colliding_keys_succeeds_and_evicts_of_their_group_only() {
    let handle = Handle::new(&store(64 << 20, true, 1).0);
    let others = others(&handle, 20_000);
    let (before, after) = others.split_at(10_000);
    for key in before {
        set(&handle, key.as_bytes(), key.as_bytes()).expect("memory is free");
    }
    let keys = colliding(&handle, 2_000);
    for key in &keys {
        set(&handle, key.as_bytes(), key.as_bytes()).expect("a colliding key is stored");
        assert!(get(&handle, key.as_bytes()).is_some(), "and found");
    }
    // The tables grow and move the group.
    for key in after {
        set(&handle, key.as_bytes(), key.as_bytes()).expect("memory is free");
    }
    handle.maintain();
    let (kept, evictions) = (stored(&handle, &keys), handle.store().sums().evictions as usize);
    assert!((GROUP_KEYS_MAX / 2..=GROUP_KEYS_MAX).contains(&kept), "{kept} are left");
    let mut lost = keys.len() - kept;
    for key in others.iter().filter(|key| get(&handle, key.as_bytes()).is_none()) {
        assert!(is_neighbour(&handle, key), "{key} is of another partition");
        lost += 1;
    }
    assert_eq!(lost, evictions, "nothing is lost but what eviction chose");
    assert!(lost + kept - keys.len() < GROUP_KEYS_MAX, "others were lost of one group");
    assert!(handle.store().usage().index_chain_buckets <= 33 + 32, "of the group, and of chance");
}

#[test]
fn without_eviction_a_full_group_refuses_and_keeps_what_it_has() {
    let (store, clock) = store(64 << 20, false, 1);
    let handle = Handle::new(&store);
    let mut others = others(&handle, 60_000);
    for key in &others[..30_000] {
        set(&handle, key.as_bytes(), key.as_bytes()).expect("memory is free");
    }
    let keys = colliding(&handle, 2_000);
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    for key in &keys {
        match set(&handle, key.as_bytes(), key.as_bytes()) {
            Ok(_) => kept.push(key.clone()),
            Err(error) => {
                assert_eq!(error, OutOfMemory::GroupFull, "memory is free");
                refused.push(key.clone());
            }
        }
    }
    assert!(kept.len() <= GROUP_KEYS_MAX && kept.len() > 256, "{} are stored", kept.len());
    assert_eq!(store.sums().out_of_memory as usize, refused.len());
    // Other groups have room as ever, and the tables grow with what this one has.
    let before = others.len();
    let mut done = 0;
    others.retain(|key| {
        done += 1;
        match set(&handle, key.as_bytes(), key.as_bytes()) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, OutOfMemory::GroupFull);
                assert!(done > 30_000, "what is stored can be replaced");
                assert!(is_neighbour(&handle, key), "{key} is of another partition");
                false
            }
        }
    });
    assert!(before - others.len() < GROUP_KEYS_MAX / 2, "{} of one group", before - others.len());
    handle.maintain();
    assert!(store.usage().index_slots > 60_000 && !store.usage().index_growing, "the tables grew");
    assert_eq!((stored(&handle, &kept), stored(&handle, &others)), (kept.len(), others.len()));
    assert_eq!((store.sums().evictions, stored(&handle, &refused)), (0, 0));
    // Stored keys can be replaced, and deleted ones make room.
    for key in &kept {
        set(&handle, key.as_bytes(), key.as_bytes()).expect("its slot is there");
    }
    let full = |key: &String| set(&handle, key.as_bytes(), key.as_bytes()) == Err(OutOfMemory::GroupFull);
    let at = refused.iter().position(full).expect("the group is full again");
    assert!(delete(&handle, kept[0].as_bytes()));
    let soon = Expiry::from_client(1, store.now(), store.clock_origin());
    let again =
        refused[at..].iter().find(|key| set_with(&handle, key.as_bytes(), key.as_bytes(), 0, soon).is_ok());
    assert!(again.is_some(), "a deleted key leaves a slot");
    clock.advance(3);
    store.tick();
    assert!(!refused[at..].iter().all(full), "and an expired one, too");
    assert_eq!(store.sums().evictions, 0);
}
