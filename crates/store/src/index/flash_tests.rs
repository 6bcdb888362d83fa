//! Slots in memory and on flash in tables that grow. The page of an item on flash is its key's number.

use std::collections::HashSet;
use std::ops::ControlFlow;

use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::{KeyHash, Slot};
use fabcache_testbed::random::{SplitMix64, mix};

use super::lookup::Search;
use super::resize::Growth;
use super::tests::World;
use super::walk::Cursor;

/// A key that was inserted.
#[derive(Clone, Copy)]
struct Key {
    hash: KeyHash,
    /// Where it is in memory, or was.
    offset: u64,
    is_on_flash: bool,
}

fn page_of(slot: Slot) -> Option<u32> {
    FlashItem::from_slot(slot).map(|item| item.page)
}

/// Moves the item of a key to flash.
fn demote(world: &World, n: u32, key: &mut Key) {
    let group = world.index.lock(key.hash);
    let at = group.find(key.hash, |slot| slot.offset() == key.offset).expect("it is in memory");
    group.replace(at.at, group.flash_slot(key.hash, n, (n % 8) as u8, 3));
    key.is_on_flash = true;
    world.on_flash.borrow_mut().insert(n, key.hash);
}

/// Lets a table grow that should, once the keys are read that it asks for.
fn grow(world: &World, hash: KeyHash, roomy: bool) {
    if world.index.wants_growth(world.index.partition_of(hash), roomy)
        && world.grow_as(hash, roomy) == Growth::Blocked
    {
        assert_ne!(world.grow_as(hash, roomy), Growth::Blocked);
    }
}

/// Finds a key on flash, with the lock and without it. Returns whether it is there.
fn is_found(world: &World, n: u32, key: &Key) -> bool {
    let locked = world.index.lock(key.hash).find_on_flash(key.hash, |slot| page_of(slot) == Some(n));
    let skip = |_| ControlFlow::<()>::Continue(());
    let (found, _) = world.index.search_with(key.hash, skip, |slot| page_of(slot) == Some(n));
    assert_eq!(found, locked.map_or(Search::Absent, Search::OnFlash), "key {n}");
    if let Some(at) = locked {
        assert_eq!(
            (at.slot.frequency(), FlashItem::from_slot(at.slot).map(|item| item.page_class)),
            (3, Some((n % 8) as u8))
        );
    }
    locked.is_some()
}

/// Walks over the slots on flash; `between` is called between groups. Returns the pages that were seen.
fn walk(world: &mut World, mut between: impl FnMut(&mut World)) -> HashSet<u32> {
    let mut seen = HashSet::new();
    let mut cursor = Cursor::START;
    while !cursor.is_done() {
        cursor = world.index.walk_flash(cursor, |_, _, item| _ = seen.insert(item.page));
        between(world);
    }
    seen
}

/// Inserts keys up to `count`, moves some of them to flash and back, and lets tables grow.
fn run(seed: u64, count: u32, percent_on_flash: usize) {
    let mut world = World::new(64 << 20);
    let mut random = SplitMix64::new(seed);
    let mut keys: Vec<Key> = Vec::new();
    for n in 0..count {
        let hash = KeyHash(mix(seed << 32 | u64::from(n)));
        let offset = world.insert(hash);
        keys.push(Key { hash, offset, is_on_flash: false });
        grow(&world, hash, true);
        let other = random.below(keys.len());
        let key = &mut keys[other];
        match (key.is_on_flash, random.percent(percent_on_flash)) {
            (false, true) => demote(&world, other as u32, key),
            (true, false) => {
                let group = world.index.lock(key.hash);
                let at = group.find_on_flash(key.hash, |slot| page_of(slot) == Some(other as u32));
                let slot = Slot::item(key.hash.tag(), key.offset, 0, 0);
                group.replace(at.expect("it is there").at, slot);
                key.is_on_flash = false;
            }
            _ => {}
        }
    }
    // Of those that are there from start to end of a walk, all are seen, whatever grows meanwhile.
    let before = keys.clone();
    let mut more = (count..).map(|n| KeyHash(mix(seed << 32 | u64::from(n))));
    let seen = walk(&mut world, |world| {
        for hash in more.by_ref().take(30) {
            world.insert(hash);
            grow(world, hash, true);
        }
    });
    for (n, key) in (0..).zip(&before) {
        if key.is_on_flash {
            assert!(is_found(&world, n, key) && seen.contains(&n), "key {n} was there throughout");
        } else {
            assert_eq!(world.find(key.hash), Some(key.offset), "key {n}");
        }
    }
    let on_flash = before.iter().filter(|key| key.is_on_flash).count();
    assert!(on_flash > count as usize * percent_on_flash / 400 && seen.len() == on_flash);
    assert_eq!(walk(&mut world, |_| {}).len(), on_flash);
    assert!(world.evicted.borrow().is_empty());
}

#[test]
fn keys_on_flash_are_found_while_tables_grow() {
    for (seed, percent) in [(1, 10), (2, 50), (3, 95)] {
        run(seed, 60_000, percent);
    }
    // The first go there while a table is small, and it grows far.
    run(4, 400_000, 95);
}

/// The groups of the first partition at most, in tests of borders.
const GROUPS_MAX: u32 = 60;

/// Slots tell 24 bits of the hash. Returns keys on flash at all borders of groups of the first partition, which differ in the others.
fn keys_at_borders() -> (World, Vec<Key>) {
    let mut world = World::new(64 << 20);
    let bits = world.geometry.partition_bits;
    let mut hashes = Vec::new();
    for groups in (2..GROUPS_MAX).step_by(5) {
        for group in 1..groups {
            let border = KeyHash::first_of(0, bits, group, groups);
            hashes.extend([border, KeyHash(border.0 - 1)]);
        }
    }
    hashes.sort_unstable();
    hashes.dedup();
    let mut known = Vec::new();
    for (n, hash) in (0..).zip(hashes) {
        let mut key = Key { hash, offset: world.insert(hash), is_on_flash: false };
        demote(&world, n, &mut key);
        known.push(key);
        (0..4).for_each(|_| grow(&world, hash, false));
    }
    (world, known)
}

/// Adds a key to the first partition, which so grows.
fn add_to_first(world: &mut World, random: &mut SplitMix64) {
    let hash = KeyHash(random.next_u64() >> world.geometry.partition_bits);
    world.insert(hash);
    (0..4).for_each(|_| grow(world, hash, false));
}

#[test]
fn keys_at_the_borders_of_groups_are_found_while_tables_grow() {
    let (mut world, known) = keys_at_borders();
    let mut random = SplitMix64::new(1);
    while world.groups_of(KeyHash(0)) < GROUPS_MAX {
        add_to_first(&mut world, &mut random);
    }
    for (n, key) in (0..).zip(&known) {
        assert!(is_found(&world, n, key), "key {n}");
    }
    assert_eq!(walk(&mut world, |_| {}).len(), known.len());
    assert!(world.read.borrow().len() > 100, "{} were read", world.read.borrow().len());
}

/// A step may visit a slot whose key is in the next one. With the key's hash, it is in one of them.
#[test]
fn walk_visits_each_key_at_a_border_while_tables_grow() {
    let (mut world, known) = keys_at_borders();
    let (mut random, mut seen_twice) = (SplitMix64::new(1), 0);
    while world.groups_of(KeyHash(0)) < GROUPS_MAX {
        let (mut cursor, mut times, mut visits) = (Cursor::START, vec![0; known.len()], 0);
        while cursor.hash().is_some_and(|from| world.index.partition_of(from) == 0) {
            let mut pages = Vec::new();
            let next = world.index.walk(cursor, &world, |at, _| pages.extend(page_of(at.slot)));
            visits += pages.len();
            for page in pages {
                let hash = known[page as usize].hash;
                let is_listed = cursor.hash() <= Some(hash) && next.hash().is_none_or(|next| hash < next);
                times[page as usize] += u32::from(is_listed);
            }
            cursor = next;
            add_to_first(&mut world, &mut random);
        }
        assert!(times.iter().all(|times| *times == 1), "{times:?}");
        seen_twice += visits - known.len();
    }
    assert!(seen_twice > 0, "tables grew beside the walks");
}
