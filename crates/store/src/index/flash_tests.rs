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

/// Moves the item of a key to flash, if its slot can tell where the key belongs.
fn demote(world: &World, n: u32, key: &mut Key) {
    let group = world.index.lock(key.hash);
    let at = group.find(key.hash, |slot| slot.offset() == key.offset).expect("it is in memory");
    if let Some(slot) = group.flash_slot(key.hash, n, (n % 8) as u8, 3) {
        group.replace(at.at, slot);
        key.is_on_flash = true;
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
    let grow = |world: &World, hash| {
        if world.index.wants_growth(world.index.partition_of(hash), true) {
            assert_ne!(world.grow(hash), Growth::Blocked);
        }
    };
    for n in 0..count {
        let hash = KeyHash(mix(seed << 32 | u64::from(n)));
        let offset = world.insert(hash);
        keys.push(Key { hash, offset, is_on_flash: false });
        grow(&world, hash);
        let other = random.below(keys.len());
        let is_discarded = world.discarded.borrow().contains(&(other as u32));
        let key = &mut keys[other];
        match (key.is_on_flash, random.percent(percent_on_flash)) {
            (false, true) => demote(&world, other as u32, key),
            (true, false) if !is_discarded => {
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
            grow(world, hash);
        }
    });
    let discarded = world.discarded.borrow().clone();
    for (n, key) in (0..).zip(&before) {
        if key.is_on_flash {
            let is_discarded = discarded.contains(&n);
            assert_eq!(is_found(&world, n, key), !is_discarded, "key {n}");
            assert!(is_discarded || seen.contains(&n), "key {n} was there throughout");
        } else {
            assert_eq!(world.find(key.hash), Some(key.offset), "key {n}");
        }
    }
    let on_flash = before.iter().filter(|key| key.is_on_flash).count();
    assert!(on_flash > count as usize * percent_on_flash / 400 && seen.len() <= on_flash + discarded.len());
    assert!(discarded.len() <= 2 + count as usize / 1_000, "{} of {count} are discarded", discarded.len());
    let now = walk(&mut world, |_| {});
    assert_eq!(
        now.len(),
        before.iter().zip(0..).filter(|(key, n)| key.is_on_flash && !discarded.contains(n)).count()
    );
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
