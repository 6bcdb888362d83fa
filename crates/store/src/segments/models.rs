//! Models of the segments alone under loom: reservations, generations, pins.
#![expect(clippy::arc_with_non_send_sync, reason = "loom runs its threads one at a time")]

use std::sync::Arc;
use std::time::Duration;

use fabcache_layout::format::SEGMENT_ENTRY_BYTES;
use fabcache_layout::segment::Kind;
use fabcache_layout::sync::Ordering;
use fabcache_layout::{Geometry, Memory};
use loom::cell::UnsafeCell;
use loom::thread;

use super::{ClaimPurpose, PENDING_MASK, SEALED, Segments};
use crate::models::check;

const SEGMENT_SHIFT: u32 = 4;
const SEGMENTS: u32 = 4;
/// Bytes of an "item": half a segment, one word.
const ITEM_BYTES: u64 = 8;

#[derive(Clone, Copy)]
struct Place {
    segment: u32,
    offset: u64,
}

struct World {
    memory: Memory,
    segments: Segments,
}

impl World {
    fn new() -> Arc<World> {
        World::with_segments_of(SEGMENT_SHIFT)
    }

    fn with_segments_of(segment_shift: u32) -> Arc<World> {
        let first_segment = u64::from(SEGMENTS) * SEGMENT_ENTRY_BYTES;
        let region_bytes = first_segment + (u64::from(SEGMENTS) << segment_shift);
        let memory = Memory::zeroed(region_bytes);
        let geometry = Geometry {
            region_bytes,
            partition_bits: 0,
            block_shift: 0,
            segment_shift,
            segments: SEGMENTS,
            directory: 0,
            segment_table: 0,
            first_segment,
        };
        Arc::new(World {
            segments: Segments::new(memory.clone(), geometry, SEGMENTS, false, 1, Duration::ZERO),
            memory,
        })
    }

    /// Writes an "item" that never expires; returns its location.
    fn write(&self, value: u64) -> Place {
        self.write_until(value, 0)
    }

    /// Writes an "item" with an expiry second among those without; returns its location.
    fn write_until(&self, value: u64, expiry: u32) -> Place {
        let space = self.segments.reserve(0, ITEM_BYTES, 2, ClaimPurpose::Move).expect("there is room");
        let place = Place { segment: space.segment, offset: space.offset };
        self.memory.copy_in(space.offset, &value.to_le_bytes());
        self.segments.commit(space, expiry);
        place
    }

    fn read(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.copy_out(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

#[test]
fn reservations_do_not_overlap_and_open_segments_are_replaced_once() {
    check(2, || {
        let world = World::new();
        // One item fills half of the first segment. Of the three below one fills it, one opens another, and one uses
        // that, whichever thread opened it.
        world.write(1);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(2).offset)
        };
        let [third, fourth] = [3, 4].map(|value| world.write(value).offset);
        let second = other.join().expect("written");
        assert_eq!([second, third, fourth].map(|offset| world.read(offset)), [2, 3, 4]);
        assert_eq!(world.segments.free_count(), SEGMENTS as usize - 2, "one more was opened");
        let sealed: Vec<_> = world.segments.sealed(0..SEGMENTS).collect();
        assert_eq!((sealed.len(), sealed[0].used), (1, 1 << SEGMENT_SHIFT));
    });
}

#[test]
fn concurrently_sealed_segment_is_complete() {
    check(2, || {
        let world = World::new();
        let offset = world.write(1).offset;
        let writers = [2, 3].map(|value| {
            let world = Arc::clone(&world);
            // One fills the segment, one seals it and opens another.
            thread::spawn(move || world.write(value))
        });
        for sealed in world.segments.sealed(0..SEGMENTS) {
            assert_eq!((sealed.id, sealed.used), (0, 1 << SEGMENT_SHIFT), "as it was sealed");
            assert_ne!(sealed.order, 0, "the segment has its order");
            assert_eq!(world.read(offset), 1);
            assert_ne!(world.read(offset + ITEM_BYTES), 0, "committed, so whole");
        }
        for writer in writers {
            writer.join().expect("written");
        }
    });
}

#[test]
fn late_reservation_has_the_new_generation() {
    check(3, || {
        let world = World::new();
        let place = world.segments.reserve(0, ITEM_BYTES, 1, ClaimPurpose::Move).expect("there is room");
        let (segment, offset) = (place.segment, place.offset);
        world.segments.commit(place, 0);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.segments.seal_open(|_| true);
                if world.segments.sealed(0..SEGMENTS).any(|sealed| sealed.used == ITEM_BYTES as u32) {
                    assert!(world.segments.retire_generation(segment), "the segment is not pinned");
                    // Opens it again, last freed and first used, unless another is open by now.
                    world.write(2);
                }
            })
        };
        // It may have found the segment open before, and reserve in it after.
        let space = world.segments.reserve(0, ITEM_BYTES, 2, ClaimPurpose::Move).expect("there is room");
        if space.offset == offset {
            assert_eq!(world.segments.generation(segment), 1, "the segment was used before");
            assert_eq!(world.segments.opened(segment), 2, "it was opened again");
        }
        world.segments.commit(space, 0);
        other.join().expect("written");
    });
}

#[test]
fn published_last_expiry_covers_all_items() {
    check(3, || {
        let world = World::new();
        let place = world.write_until(1, 5);
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(2))
        };
        world.segments.seal_open(|_| true);
        let times = world.memory.load(u64::from(place.segment) * SEGMENT_ENTRY_BYTES + 16, Ordering::Acquire);
        let word = world.segments.segments[place.segment as usize].allocation.load(Ordering::Acquire);
        match times >> 32 {
            0 => {}
            last => assert_eq!((last, word & 0xffff_ffff), (5, ITEM_BYTES), "the other never expires"),
        }
        writer.join().expect("written");
    });
}

/// The bytes used of a segment that its table entry names as sealed.
fn sealed_in_the_table(world: &World, segment: u32) -> Option<u64> {
    let word = world.memory.load(u64::from(segment) * SEGMENT_ENTRY_BYTES + 8, Ordering::Acquire);
    (word & 0xff == Kind::Sealed as u64).then_some(word >> 32)
}

#[test]
fn sealed_is_published_after_the_last_commit() {
    check(3, || {
        let world = World::new();
        let place = world.write(1);
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(2).segment)
        };
        world.segments.seal_open(|_| true);
        if let Some(used) = sealed_in_the_table(&world, place.segment) {
            let word = world.segments.segments[place.segment as usize].allocation.load(Ordering::Acquire);
            assert_eq!(word, SEALED | used, "no reservation is pending");
            for at in (0..used).step_by(ITEM_BYTES as usize) {
                assert_ne!(world.read(place.offset + at), 0, "committed, so whole");
            }
        }
        let is_in_it = writer.join().expect("written") == place.segment;
        let used = ITEM_BYTES * (1 + u64::from(is_in_it));
        assert_eq!(sealed_in_the_table(&world, place.segment), Some(used), "the last commit published it");
    });
}

#[test]
fn committed_items_in_a_sealed_segment_are_whole() {
    check(3, || {
        let world = World::new();
        let offset = world.write(1).offset;
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(2).offset)
        };
        // Reclaim: seals open segments, and reads those that no thread writes any more.
        world.segments.seal_open(|_| true);
        for sealed in world.segments.sealed(0..SEGMENTS) {
            assert_eq!(world.read(offset), 1);
            if sealed.used > ITEM_BYTES as u32 {
                assert_eq!(world.read(offset + ITEM_BYTES), 2, "committed, so whole");
                assert_eq!(sealed.last_expiry, None, "it never expires, and said so before");
            }
        }
        writer.join().expect("written");
    });
}

#[test]
fn reader_of_a_reused_segment_sees_its_generation_end() {
    check(3, || {
        let world = World::new();
        let place = world.write(1);
        world.segments.seal_open(|_| true);
        let reclaim = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert!(world.segments.retire_generation(place.segment), "the segment is not pinned")
            })
        };
        // Another thread than the one that ended the generation writes there.
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                if world.segments.kind(place.segment) == Kind::Free {
                    world.write(2);
                }
            })
        };
        let is_free = world.segments.kind(place.segment) == Kind::Free;
        let generation = world.segments.generation(place.segment);
        assert!(generation != 0 || !is_free, "a free segment has ended its generation");
        let value = world.read(place.offset);
        if generation == 0 && world.segments.still(place.segment, generation) {
            assert_eq!(value, 1, "the generation's contents");
        }
        reclaim.join().expect("retired");
        writer.join().expect("written");
    });
}

#[test]
fn pinned_segment_is_not_reused() {
    check(3, || {
        let world = World::new();
        let place = world.write(1);
        world.segments.seal_open(|_| true);
        let generation = world.segments.generation(place.segment);
        // The same bytes again, so that loom detects concurrent reads and writes of them.
        let bytes = Arc::new(UnsafeCell::new(1));
        let reclaim = {
            let (world, bytes) = (Arc::clone(&world), Arc::clone(&bytes));
            thread::spawn(move || {
                let freed = world.segments.retire_generation(place.segment);
                if freed || world.segments.free_unpinned(place.segment) {
                    // SAFETY: this is what the model checks.
                    bytes.with_mut(|bytes| unsafe { *bytes = 2 });
                    world.write(2);
                }
            })
        };
        if world.segments.pin(place.segment, generation) {
            assert_eq!(world.read(place.offset), 1, "a pinned value stays");
            // SAFETY: as above.
            assert_eq!(bytes.with(|bytes| unsafe { *bytes }), 1);
            assert!(world.segments.pinned() <= 1);
            world.segments.unpin(place.segment);
        }
        reclaim.join().expect("retired");
        assert_eq!(world.segments.pinned(), 0);
    });
}

#[test]
fn last_of_two_pins_frees_the_segment() {
    check(2, || {
        let world = World::new();
        let place = world.write(1);
        world.segments.seal_open(|_| true);
        assert!(world.segments.pin(place.segment, 0));
        assert!(!world.segments.retire_generation(place.segment), "the segment is pinned");
        let senders = [(); 2].map(|()| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert_eq!(world.segments.generation(place.segment), 1);
                assert!(!world.segments.pin(place.segment, 0), "a pin of an ended generation fails");
            })
        });
        let value = world.read(place.offset);
        assert_eq!(value, 1);
        world.segments.unpin(place.segment);
        for sender in senders {
            sender.join().expect("sent");
        }
        assert!(world.segments.free_unpinned(place.segment));
        assert_eq!(world.segments.pinned(), 0);
    });
}

#[test]
fn sealing_ends_reservations() {
    check(3, || {
        let world = World::new();
        world.write(1);
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(2).segment)
        };
        world.segments.seal_open(|_| true);
        let word = world.segments.segments[0].allocation.load(Ordering::Acquire);
        let segment = writer.join().expect("written");
        assert_ne!(word & SEALED, 0);
        let used = word & 0xffff_ffff;
        assert_eq!(used == 2 * ITEM_BYTES, segment == 0, "in it before the seal, elsewhere after it");
        let now = world.segments.segments[0].allocation.load(Ordering::Acquire);
        assert_eq!((now & PENDING_MASK, now & 0xffff_ffff), (0, used));
    });
}

#[test]
fn no_deadline_is_lost() {
    check(3, || {
        let world = World::new();
        let write_until = |expiry: u32| {
            let space = world.segments.reserve(0, ITEM_BYTES, 2, ClaimPurpose::Move).expect("there is room");
            let place = Place { segment: space.segment, offset: space.offset };
            world.memory.copy_in(space.offset, &u64::from(expiry).to_le_bytes());
            world.segments.note_expiry(&space, expiry, 2);
            world.segments.commit(space, expiry);
            place
        };
        let first = write_until(10);
        let walker = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (deadline, written) = world.segments.take_deadline(first.segment);
                let Ok(written) = written else {
                    return world.segments.set_deadline(first.segment, deadline);
                };
                // Nothing is expired: the deadlines are those of all that is there.
                for at in (first.offset..first.offset + written).step_by(ITEM_BYTES as usize) {
                    let expiry = world.read(at) as u32;
                    world
                        .segments
                        .set_deadline(first.segment, world.segments.deadline(first.segment, expiry));
                }
            })
        };
        write_until(5);
        walker.join().expect("walked");
        assert_eq!(world.segments.take_deadline(first.segment).0, 6, "that of the second");
    });
}

#[test]
fn dead_segment_is_due_for_reclaim() {
    check(3, || {
        let world = World::new();
        let place = world.write(1);
        world.segments.count_live(place.offset, ITEM_BYTES, 1);
        let killer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.segments.count_dead(place.offset, ITEM_BYTES, 1))
        };
        world.segments.seal_open(|_| true);
        killer.join().expect("killed");
        assert!(world.segments.is_dead(place.segment));
        assert_eq!(world.segments.due(1), [place.segment]);
    });
}

/// Reserves space for two "items" and commits one of them; returns the offset of the one written, and, if the rest
/// could not be returned, that of a filler.
fn write_part(world: &World, value: u64) -> (u64, Option<u64>) {
    let fit = |left: u64| (left >= 2 * ITEM_BYTES).then_some(2 * ITEM_BYTES);
    let space = world.segments.reserve_fitting(0, ITEM_BYTES, true, 2, ClaimPurpose::Move, fit);
    let space = space.expect("there is room");
    let offset = space.offset;
    world.memory.copy_in(offset, &value.to_le_bytes());
    world.segments.note_last_expiry(&space, 0);
    let Err(space) = world.segments.commit_part(space, ITEM_BYTES) else { return (offset, None) };
    world.memory.copy_in(offset + ITEM_BYTES, &value.to_le_bytes());
    world.segments.commit_run(space);
    (offset, Some(offset + ITEM_BYTES))
}

#[test]
fn returned_space_is_reserved_once_and_sealed_whole() {
    check(3, || {
        let world = World::new();
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || write_part(&world, 1))
        };
        // Reclaim: seals open segments, and reads those that no thread writes any more.
        world.segments.seal_open(|_| true);
        for sealed in world.segments.sealed(0..SEGMENTS) {
            let start = world.segments.geometry.segment_offset(sealed.id);
            for at in (start..start + u64::from(sealed.used)).step_by(ITEM_BYTES as usize) {
                assert_eq!(world.read(at), 1, "committed, so whole");
            }
        }
        let (first, filler) = writer.join().expect("written");
        assert_eq!(world.read(first), 1);
        assert!(filler.is_none_or(|at| world.read(at) == 1));
    });
}

#[test]
fn space_with_a_reservation_behind_it_is_not_returned() {
    check(3, || {
        let world = World::with_segments_of(SEGMENT_SHIFT + 1);
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(2).offset)
        };
        let (first, filler) = write_part(&world, 1);
        let places = [(first, 1), (writer.join().expect("written"), 2), (world.write(3).offset, 3)];
        for (at, value) in places.into_iter().chain(filler.map(|at| (at, 1))) {
            assert_eq!(world.read(at), value, "nobody else wrote there");
        }
    });
}
