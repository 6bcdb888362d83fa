//! Models of the index alone under loom, over a simulated heap in which each "item" is the hash of its key.
//!
//! A bucket has two slots, a group two home buckets and one for overflow, a segment one block.
#![expect(clippy::arc_with_non_send_sync, reason = "loom runs its threads one at a time")]

use std::ops::ControlFlow;
use std::sync::Arc;

use fabcache_layout::format::PARTITION_BYTES;
use fabcache_layout::sync::{AtomicU32, Ordering};
use fabcache_layout::{Geometry, KeyHash, Memory, Slot};
use loom::cell::UnsafeCell;
use loom::thread;

use super::blocks::ChainUse;
use super::lookup::Search;
use super::resize::{Growth, Rehash};
use super::{Index, SlotSnapshot};
use crate::bounds::GROUP_LOCKS_MIN;
use crate::models::check;

const SEGMENT_SHIFT: u32 = 6;
const SEGMENTS: u32 = 12;
/// A word for each version of each key.
const ITEMS_AT: u64 = PARTITION_BYTES + ((SEGMENTS as u64) << SEGMENT_SHIFT);
const KEYS: u64 = 16;
const VERSIONS: u64 = 3;

struct World {
    memory: Memory,
    index: Index,
    segments_taken: AtomicU32,
}

/// Key `n`, whose home is `bucket` in a table of one group, and the upper bucket of a group in a table of two if `upper`.
fn key(n: u64, bucket: u64, upper: bool) -> KeyHash {
    assert!(n < KEYS && bucket < 2);
    KeyHash(bucket << 63 | u64::from(upper) << 62 | n)
}

/// Version `version` of a key.
fn item(hash: KeyHash, version: u64) -> Slot {
    let offset = ITEMS_AT + (u64::from(hash.tag()) * VERSIONS + version) * 8;
    Slot::item(hash.tag(), offset, 0, 0)
}

impl Rehash for World {
    fn hash_at(&self, offset: u64) -> Option<KeyHash> {
        Some(KeyHash(self.memory.load(offset, Ordering::Relaxed)))
    }

    fn hashes_on_flash(&self, _slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>> {
        panic!("no item is on flash");
    }

    fn discard(&self, seen: SlotSnapshot, _unlink: impl FnOnce()) {
        panic!("no item is damaged, as {seen:?}");
    }

    fn may_evict(&self) -> bool {
        true
    }

    fn evict(&self, _hash: KeyHash, seen: SlotSnapshot, _unlink: impl FnOnce()) {
        panic!("there is memory enough for {seen:?}");
    }
}

impl World {
    /// A world with these keys in it, in their first version.
    fn new(keys: &[KeyHash]) -> Arc<World> {
        let region_bytes = ITEMS_AT + KEYS * VERSIONS * 8;
        let memory = Memory::zeroed(region_bytes);
        let geometry = Geometry {
            region_bytes,
            partition_bits: 0,
            block_shift: 0,
            segment_shift: SEGMENT_SHIFT,
            segments: SEGMENTS,
            directory: 0,
            segment_table: 0,
            first_segment: PARTITION_BYTES,
        };
        let segments_taken = AtomicU32::new(0);
        let index = Index::new(memory.clone(), geometry, GROUP_LOCKS_MIN, || take_segment(&segments_taken));
        let world = World { memory, index: index.expect("a first block"), segments_taken };
        for hash in keys {
            for version in 0..VERSIONS {
                world.memory.store(item(*hash, version).offset(), hash.0, Ordering::Relaxed);
            }
            world.insert(*hash);
        }
        Arc::new(world)
    }

    fn insert(&self, hash: KeyHash) {
        loop {
            let group = self.index.lock(hash);
            if let Ok(at) = group.place_for(hash, ChainUse::Bounded) {
                return group.insert_at(at, item(hash, 0));
            }
            drop(group);
            let take = || take_segment(&self.segments_taken);
            self.index.add_chain_memory(hash, &take).expect("memory for chains");
        }
    }

    /// Points a key to another version of its item.
    fn replace(&self, hash: KeyHash, version: u64) {
        let group = self.index.lock(hash);
        let found = group.find(hash, |slot| self.hash_at(slot.offset()) == Some(hash));
        group.replace(found.expect("a key that is there is found under its lock").at, item(hash, version));
    }

    /// A lock-free search as `Handle::read` performs it: it checks the slot and the head again, and starts again when
    /// something changed, finally under the lock.
    fn get(&self, hash: KeyHash) -> Option<Slot> {
        let version = self.index.version(hash);
        let (search, _) = self.index.search(hash, |at| {
            if self.index.reload(at).is_none() || !self.index.is_current(hash, version) {
                return ControlFlow::Break(None);
            }
            if self.hash_at(at.slot.offset()) == Some(hash) {
                ControlFlow::Break(Some(at.slot))
            } else {
                ControlFlow::Continue(())
            }
        });
        match search {
            Search::Found(Some(slot)) => Some(slot),
            Search::Absent | Search::OnFlash(_) => None,
            Search::Found(None) | Search::Changed => {
                let group = self.index.lock(hash);
                group.find(hash, |slot| self.hash_at(slot.offset()) == Some(hash)).map(|at| at.slot)
            }
        }
    }

    /// Growth, as if the table were full.
    fn grow(&self) -> Growth {
        let partition = &self.index.partitions[0];
        let items = partition.items.swap(100, Ordering::Relaxed);
        let growth = self.index.grow(0, true, self, &|| take_segment(&self.segments_taken));
        partition.items.fetch_sub(100 - items, Ordering::Relaxed);
        growth
    }

    /// Returns all slots of a key.
    fn slots_of(&self, hash: KeyHash) -> Vec<SlotSnapshot> {
        let mut slots = Vec::new();
        let _ = self.index.lock(hash).visit_all(|at| {
            if at.slot.is_item() && self.hash_at(at.slot.offset()) == Some(hash) {
                slots.push(at);
            }
            ControlFlow::<()>::Continue(())
        });
        slots
    }

    fn check_only(&self, hash: KeyHash, version: u64) {
        let slots = self.slots_of(hash);
        assert_eq!(slots.len(), 1, "{hash:?} has one slot");
        assert!(slots[0].slot.same_item(item(hash, version)), "{hash:?} has its last version");
        assert!(self.get(hash).is_some_and(|slot| slot.same_item(item(hash, version))));
    }
}

fn take_segment(taken: &AtomicU32) -> Option<u64> {
    let segment = taken.fetch_add(1, Ordering::Relaxed);
    (segment < SEGMENTS).then(|| PARTITION_BYTES + (u64::from(segment) << SEGMENT_SHIFT))
}

/// Returns keys of one bucket, and what fills the others: two at home, two in the neighbour, two in the overflow
/// area; from the seventh on in a chain.
fn crowd(count: u64, bucket: u64) -> Vec<KeyHash> {
    (0..count).map(|n| key(n, bucket, n % 2 == 1)).collect()
}

/// A key in each of the places is found by a reader while its group moves, and afterwards.
fn found_while_its_group_moves(preemptions: usize, count: u64, which: u64, bucket: u64) {
    check(preemptions, move || {
        let keys = crowd(count, bucket);
        let world = World::new(&keys);
        let hash = keys[which as usize];
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert_eq!(world.grow(), Growth::Finished))
        };
        let found = world.get(hash);
        assert!(found.is_some_and(|slot| slot.same_item(item(hash, 0))), "never a miss");
        mover.join().expect("the group moved");
        for hash in keys {
            world.check_only(hash, 0);
        }
    });
}

#[test]
fn key_in_the_first_slot_is_found_while_its_group_moves() {
    found_while_its_group_moves(2, 2, 0, 0);
}

#[test]
fn key_in_its_home_bucket_is_found_while_its_group_moves() {
    found_while_its_group_moves(2, 2, 1, 1);
}

#[test]
fn key_in_the_neighbour_bucket_is_found_while_its_group_moves() {
    found_while_its_group_moves(2, 3, 2, 0);
}

#[test]
fn key_in_the_overflow_area_is_found_while_its_group_moves() {
    found_while_its_group_moves(2, 5, 4, 1);
}

#[test]
fn key_in_a_chain_is_found_while_its_group_moves() {
    found_while_its_group_moves(1, 7, 6, 0);
}

#[test]
fn key_is_found_while_it_moves_to_a_chain() {
    check(2, || {
        // The last slot of the overflow area becomes a link; its key goes to the chain.
        let keys = crowd(7, 0);
        let world = World::new(&keys[..6]);
        world.memory.store(item(keys[6], 0).offset(), keys[6].0, Ordering::Relaxed);
        let take = || take_segment(&world.segments_taken);
        world.index.add_chain_memory(keys[0], &take).expect("memory for chains");
        let writer = {
            let (world, hash) = (Arc::clone(&world), keys[6]);
            thread::spawn(move || world.insert(hash))
        };
        let found = world.get(keys[5]);
        assert!(found.is_some_and(|slot| slot.same_item(item(keys[5], 0))), "never a miss");
        writer.join().expect("inserted");
        for hash in keys {
            world.check_only(hash, 0);
        }
    });
}

#[test]
fn replaced_key_is_found_in_its_old_or_new_version() {
    check(3, || {
        let keys = crowd(5, 1);
        let world = World::new(&keys);
        let hash = keys[4];
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.replace(hash, 1))
        };
        let seen = [world.get(hash), world.get(hash)].map(|slot| slot.expect("never a miss"));
        let old = |slot: Slot| slot.same_item(item(hash, 0));
        assert!(seen.iter().all(|slot| old(*slot) || slot.same_item(item(hash, 1))));
        assert!(old(seen[0]) || !old(seen[1]), "never the old after the new");
        writer.join().expect("replaced");
        world.check_only(hash, 1);
    });
}

#[test]
fn replacement_during_a_group_move_is_not_lost() {
    check(2, || {
        let keys = crowd(2, 0);
        let world = World::new(&keys);
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert_eq!(world.grow(), Growth::Finished))
        };
        world.replace(keys[1], 1);
        assert!(world.get(keys[1]).is_some_and(|slot| slot.same_item(item(keys[1], 1))), "as answered");
        mover.join().expect("the group moved");
        world.check_only(keys[0], 0);
        world.check_only(keys[1], 1);
    });
}

#[test]
fn insert_during_a_group_move_is_not_lost() {
    check(2, || {
        let keys = crowd(2, 0);
        let world = World::new(&keys[..1]);
        world.memory.store(item(keys[1], 0).offset(), keys[1].0, Ordering::Relaxed);
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert_eq!(world.grow(), Growth::Finished))
        };
        world.insert(keys[1]);
        assert!(world.get(keys[1]).is_some(), "as answered");
        mover.join().expect("the group moved");
        for hash in keys {
            world.check_only(hash, 0);
        }
    });
}

#[test]
fn write_is_not_lost_in_a_reused_table() {
    // One preemption more: the writer must stop between its two reads of the head while the table is replaced twice.
    check(3, || {
        let hash = key(0, 0, false);
        let world = World::new(&[hash]);
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert_eq!(world.grow(), Growth::Finished);
                // The block of the first table is cleared for the third.
                assert_eq!(world.grow(), Growth::Moved);
            })
        };
        world.replace(hash, 1);
        mover.join().expect("the groups moved");
        world.check_only(hash, 1);
    });
}

#[test]
fn key_is_found_though_its_old_table_is_reused() {
    check(2, || {
        let hash = key(0, 0, true);
        let world = World::new(&[hash]);
        let first = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert_eq!(world.grow(), Growth::Finished))
        };
        // Another thread than the one that returned the block clears it.
        let second = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                first.join().expect("the group moved");
                assert_eq!(world.grow(), Growth::Moved);
            })
        };
        assert!(world.get(hash).is_some(), "never a miss");
        second.join().expect("a group moved");
        world.check_only(hash, 0);
    });
}

/// A reader knows the first table by its head, and finds the third's first block in its place, in the state in which
/// `leave` left it (it gets the block's offset) or cleared since.
fn found_though_its_table_has_other_blocks(leave: fn(&World, u64)) {
    check(2, move || {
        let hash = key(0, 0, false);
        let world = World::new(&[hash]);
        // Two for the second table, so that the third begins with the last one.
        let blocks = [(); 3].map(|()| take_segment(&world.segments_taken).expect("memory for blocks"));
        leave(&world, blocks[2]);
        world.index.blocks.give_back(blocks);
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert_eq!(world.grow(), Growth::Finished);
                assert_eq!(world.grow(), Growth::Moved);
            })
        };
        let found = world.get(hash).expect("never a miss");
        assert!(found.same_item(item(hash, 0)), "a slot left by an earlier table is not found");
        mover.join().expect("the groups moved");
    });
}

#[test]
fn key_is_found_though_its_table_has_other_blocks() {
    found_though_its_table_has_other_blocks(|_, _| {});
}

#[test]
fn slot_left_by_an_earlier_table_is_not_found() {
    found_though_its_table_has_other_blocks(|world, block| {
        world.memory.store(block, item(key(0, 0, false), 2).0, Ordering::Relaxed);
    });
}

#[test]
fn key_is_found_though_its_table_became_a_chain() {
    check(2, || {
        let hash = key(0, 0, false);
        let world = World::new(&[hash]);
        let mover = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert_eq!(world.grow(), Growth::Finished);
                // The block of the first table is cleared for chains of the second.
                let take = || take_segment(&world.segments_taken);
                world.index.add_chain_memory(hash, &take).expect("memory for chains");
            })
        };
        assert!(world.get(hash).is_some(), "never a miss");
        mover.join().expect("the groups moved");
        world.check_only(hash, 0);
    });
}

#[test]
fn slot_left_by_an_earlier_chain_is_not_found() {
    check(2, || {
        let keys = crowd(8, 0);
        let world = World::new(&keys[..6]);
        let (hash, gone) = (keys[6], keys[7]);
        for hash in [hash, gone] {
            world.memory.store(item(hash, 0).offset(), hash.0, Ordering::Relaxed);
        }
        let block = take_segment(&world.segments_taken).expect("memory for a block");
        // The first slot of the bucket is for the item whose place the link takes.
        world.memory.store(block + 8, item(gone, 0).0, Ordering::Relaxed);
        world.index.blocks.give_back([block]);
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.insert(hash))
        };
        assert_eq!(world.get(gone), None, "it was never in this table");
        writer.join().expect("inserted");
        world.check_only(hash, 0);
    });
}

#[test]
fn group_lock_is_exclusive_across_tables() {
    check(2, || {
        let hash = key(0, 0, true);
        let world = World::new(&[hash]);
        let guarded = Arc::new(UnsafeCell::new(0));
        let add = move |world: &World, guarded: &UnsafeCell<u32>| {
            let _group = world.index.lock(hash);
            // SAFETY: this is what the model checks.
            guarded.with_mut(|n| unsafe { *n += 1 });
        };
        let threads = [
            {
                let (world, guarded) = (Arc::clone(&world), Arc::clone(&guarded));
                thread::spawn(move || add(&world, &guarded))
            },
            {
                let world = Arc::clone(&world);
                thread::spawn(move || assert_eq!(world.grow(), Growth::Finished))
            },
        ];
        add(&world, &guarded);
        for thread in threads {
            thread.join().expect("locked and unlocked");
        }
        // SAFETY: both threads have ended.
        guarded.with(|n| assert_eq!(unsafe { *n }, 2));
    });
}

#[test]
fn counting_a_read_never_restores_an_old_item() {
    check(3, || {
        let keys = crowd(5, 1);
        let world = World::new(&keys);
        let reader = {
            let (world, hash) = (Arc::clone(&world), keys[0]);
            thread::spawn(move || {
                let (search, _) = world.index.search(hash, ControlFlow::Break);
                let Search::Found(at) = search else { panic!("its place is the same") };
                world.index.count_read(at);
                world.index.count_read(at);
            })
        };
        world.replace(keys[0], 1);
        reader.join().expect("counted");
        world.check_only(keys[0], 1);
        // The mark of the home bucket is in the same word.
        world.check_only(keys[4], 0);
    });
}
