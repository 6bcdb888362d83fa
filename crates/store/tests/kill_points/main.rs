//! A server is killed between any two stores of an operation, and in the middle of each copy. The next one must find
//! what was acknowledged, of the interrupted operation all or nothing or a miss, and never what was overwritten or deleted
//! before. Then it works like any other, and a clean stop keeps all of it.
//!
//! The killed server is a copy of its files, made at the kill point (`fabcache_layout::kill_points`); the thread then goes
//! on to the next. Of operations with thousands of stores the first 200 kill points are checked, the first few of each
//! place in the code, and then one in as many as the test says.
#![cfg(not(loom))]

mod check;
#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod world;

use check::Kills;
use fabcache_layout::{KeyHash, header};
use fabcache_store::{Handle, Opening, StoreSums};
use ledger::MayLose;
use world::{Setup, World};

#[test]
fn set_of_a_new_key() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        world.set("set", 300);
        world.put("put", 300);
        world.set("empty", 0);
    });
}

#[test]
fn replacement() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        for key in ["old-3", "new-3"] {
            let len = world.ledger.borrow().contents(key.as_bytes()).expect("present").value.len();
            world.set(key, len);
            world.put(key, len);
            world.set(key, 700);
            world.put(key, 1);
        }
        world.set("gone-3", 50);
    });
}

#[test]
fn run_of_sets() {
    let world = World::populated(Setup::SMALL);
    let new: Vec<String> = (0..16).map(|number| format!("run-{number}")).collect();
    // Over the ends of several segments, which are sealed.
    let mut sets: Vec<(&str, usize)> = new.iter().map(|key| (key.as_str(), 900)).collect();
    sets.extend([("old-5", 185), ("new-5", 55), ("run-3", 20), ("gone-5", 20), ("run-long", 9_000)]);
    sets.extend(new.iter().take(8).map(|key| (key.as_str(), 900)));
    Kills::ALL.during(&world, |world| world.put_many(&sets));
}

#[test]
fn value_in_chunks() {
    let world = World::populated(Setup::SMALL);
    Kills::one_of(5).during(&world, |world| {
        world.set("long", 20_000);
        world.set("old-long-0", 12_000);
        world.set("old-long-1", 10);
        world.set("old-4", 12_000);
    });
}

#[test]
fn upload() {
    let world = World::populated(Setup::SMALL);
    Kills::one_of(5).during(&world, |world| {
        world.upload("uploaded", 14_000, |upload, handle, value| {
            upload.write(handle, value).expect("there is room");
        });
        world.upload("old-long-0", 11_000, |upload, handle, value| {
            let mut rest = value;
            while upload.missing() > 0 {
                let received = upload.receive_chunk(handle, |space, _| {
                    // As a client that stalls.
                    let len = space.len().div_ceil(2);
                    space[..len].copy_from_slice(&rest[..len]);
                    rest = &rest[len..];
                    len
                });
                assert!(received.is_some(), "the next bytes are of a chunk");
            }
        });
        // The upload is abandoned.
        world.handle(|handle| {
            let expiry = fabcache_store::Expiry::NEVER;
            let mut upload = fabcache_store::Upload::begin(handle.store(), b"old-6", expiry, 30_000);
            upload.write(handle, &[b'x'; 20_000]).expect("there is room");
        });
    });
}

#[test]
fn append_and_prepend() {
    let world = World::populated(Setup::SMALL);
    Kills::one_of(3).during(&world, |world| {
        for after in [true, false] {
            world.join("old-7", 30, after);
            world.join("new-7", 30, after);
            world.join("old-long-0", 3_000, after);
        }
        world.join("old-8", 9_000, true);
    });
}

#[test]
fn increment() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        world.increment("old-number", 7);
        world.increment("old-number", 1_000);
        world.increment("new-number", 1);
    });
}

#[test]
fn delete() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        for key in ["old-9", "new-9", "old-long-0", "old-long-2", "absent"] {
            world.delete(key);
        }
    });
}

#[test]
fn touch() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        for key in ["old-10", "new-10", "old-long-0"] {
            world.touch(key, 100);
            world.touch(key, 0);
        }
        world.advance(1);
        world.touch("old-11", 20);
    });
}

#[test]
fn reads_and_marks() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        for key in ["old-12", "new-12", "old-long-0"] {
            (0..4).for_each(|_| world.read(key));
            world.mark(key);
        }
    });
}

#[test]
fn flush() {
    let world = World::populated(Setup::SMALL);
    Kills::ALL.during(&world, |world| {
        world.flush();
        world.set("old-13", 100);
        world.set("long", 9_000);
        world.flush();
        world.maintain();
        world.set("old-14", 100);
    });
}

#[test]
fn delayed_flush() {
    let world = World::populated(Setup::SMALL);
    let kills = Kills {
        then: |handle, clock, ledger, found| {
            clock.advance(30);
            handle.store().tick();
            let after = check::survey(handle);
            let is_flushed = after.is_empty();
            let lasting = found.iter().filter(|(_, contents)| contents.expiry == 0);
            assert!(is_flushed || after.iter().eq(lasting), "a flush removes all");
            assert!(ledger.flushes.contains(&None) || is_flushed, "the flush was forgotten");
            assert!(ledger.flushes != [None] || found.is_empty() || !is_flushed, "nobody asked for a flush");
        },
        ..Kills::ALL
    };
    kills.during(&world, |world| {
        world.flush_in(20);
        world.set("old-15", 100);
        world.flush_in(10);
        world.set("new-15", 100);
    });
    Kills::ALL.during(&world, |world| {
        world.advance(10);
        world.handle(|handle| handle.store().tick());
        world.set("new-16", 100);
    });
}

#[test]
fn expiry_without_access() {
    let world = World::populated(Setup::SMALL);
    for number in 0..60 {
        let expiry = world.expiry(if number % 3 == 0 { 5 } else { 50 }).second();
        world.set_bytes(&format!("short-{number}"), world.value(200), expiry).expect("there is room");
    }
    for key in ["old-16", "old-long-0"] {
        world.touch(key, 5);
    }
    let expired = world.counted(
        |handle| handle.store().sums().reclaimed,
        || {
            Kills::one_of(7).during(&world, |world| {
                for _ in 0..10 {
                    world.advance(6);
                    world.maintain();
                }
            });
        },
    );
    assert!(expired >= 60, "{expired} items were found to be expired");
}

/// Sets values until memory is full.
fn fill(world: &World, len: usize, until: impl Fn(&Handle) -> bool) {
    for number in 0.. {
        world.set(&format!("fill-{number}"), len);
        if world.handle(&until) {
            return;
        }
        assert!(number < 30_000, "memory does not fill");
    }
}

#[test]
fn eviction() {
    let world = World::populated(Setup::SMALL);
    world.may_lose(MayLose::Anything);
    fill(&world, 1_500, |handle| handle.store().sums().evictions > 50);
    let evictions = |handle: &Handle| handle.store().sums().evictions;
    let evicted = world.counted(evictions, || {
        Kills::one_of(37).during(&world, |world| {
            for number in 0..90 {
                world.set(&format!("more-{number}"), 1_000);
                if number % 10 == 0 {
                    world.delete(&format!("fill-{}", 2 * number));
                }
            }
            world.set("long", 30_000);
        });
    });
    assert!(evicted > 20, "{evicted} items were evicted");
}

/// Fills memory, and deletes two items of three.
fn sparse(setup: Setup) -> World {
    let world = World::populated(setup);
    let is_nearly_full = |handle: &Handle| handle.store().usage().segments_free < 9;
    fill(&world, 1_300, is_nearly_full);
    let keys: Vec<_> = world.ledger.borrow().present();
    for (number, key) in keys.iter().enumerate() {
        let key = std::str::from_utf8(key).expect("text");
        if key.starts_with("fill-") && number % 3 != 0 {
            world.delete(key);
        }
    }
    world
}

/// Sets values until `count` rises by so many.
fn set_until(world: &World, name: &str, len: usize, count: fn(&StoreSums) -> u64, risen: u64) {
    let counted = || world.handle(|handle| count(&handle.store().sums()));
    let before = counted();
    for number in 0..700 {
        world.set(&format!("{name}-{number}"), len);
        if counted() >= before + risen {
            return;
        }
    }
    panic!("it rose from {before} to {}", counted());
}

#[test]
fn compaction() {
    for setup in [Setup::KEEPING, Setup::SMALL] {
        let world = sparse(setup);
        set_until(&world, "before", 1_300, |sums| sums.items_moved, 1);
        Kills::one_of(7).during(&world, |world| {
            set_until(world, "more", 1_300, |sums| sums.segments_compacted, 4);
            world.maintain();
        });
        assert_eq!(world.handle(|handle| handle.store().sums().evictions), 0);
    }
}

#[test]
fn moves_of_chunks() {
    let world = World::new(Setup::KEEPING);
    for number in 0..30 {
        world.set(&format!("long-{number}"), 13_000);
        world.set(&format!("short-{number}"), 1_000);
    }
    world.restart();
    for number in 0..30 {
        world.delete(&format!("short-{number}"));
        if number % 3 != 0 {
            world.delete(&format!("long-{number}"));
        }
    }
    set_until(&world, "before", 1_500, |sums| sums.bytes_moved, 1);
    Kills::one_of(7).during(&world, |world| {
        set_until(world, "more", 1_500, |sums| sums.bytes_moved, 8_000);
    });
}

/// Sets small values until the table of one partition grows.
fn growing(world: &World) {
    for key in keys_with(world, 3, 5) {
        world.set(&key, 8);
        if world.handle(|handle| handle.store().usage().index_growing) {
            return;
        }
    }
}

#[test]
fn growth_of_a_table() {
    let world = World::populated(Setup::SMALL);
    growing(&world);
    let resized = |handle: &Handle| handle.store().sums().tables_resized;
    let count = world.counted(resized, || {
        Kills::one_of(59).during(&world, |world| {
            world.set("growing", 30);
            world.delete("old-22");
            world.maintain();
            world.set("grown", 30);
        });
    });
    assert!(count > 0, "no table has grown");
    // From its beginning.
    Kills::one_of(59).during(&world, growing);
}

/// Returns keys whose hash begins with these bits.
fn keys_with(world: &World, bits: u32, wanted: u64) -> impl Iterator<Item = String> {
    let region = std::fs::read(&world.files.region).expect("our file");
    let birth = header::from_bytes(region.first_chunk().expect("a header"), region.len() as u64);
    let seed = birth.expect("a region").hash_seed;
    let has_them = move |key: &String| KeyHash::of(key.as_bytes(), seed).0 >> (64 - bits) == wanted;
    (0_u64..).map(move |number| format!("{bits}-{number}")).filter(has_them)
}

/// Keys of one bucket.
fn colliding(world: &World) -> Vec<String> {
    keys_with(world, 10, 0x155).take(60).collect()
}

#[test]
fn chain_buckets() {
    let world = World::populated(Setup::SMALL);
    let keys = colliding(&world);
    let chained = |handle: &Handle| handle.store().usage().index_chain_buckets;
    let count = world.counted(chained, || {
        Kills::one_of(11).during(&world, |world| {
            keys.iter().for_each(|key| world.set(key, 5));
            keys.iter().step_by(2).for_each(|key| world.delete(key));
            keys.iter().step_by(4).for_each(|key| world.put(key, 15));
        });
    });
    assert!(count > 0, "no chain bucket is in use");
}

#[test]
fn segments_that_are_retired() {
    let world = sparse(Setup::SMALL);
    let mut free = Vec::new();
    Kills::one_of(37).during(&world, |world| {
        let keys: Vec<_> = world.ledger.borrow().present();
        for key in keys.iter().filter(|key| key.starts_with(b"fill-")) {
            world.delete(std::str::from_utf8(key).expect("text"));
        }
        world.maintain();
        free.push(world.handle(|handle| handle.store().usage().segments_free));
        for bytes in [700 << 10, 1 << 20] {
            world.handle(|handle| handle.set_memory_limit(bytes)).expect("within the region");
            world.set("limited", 100);
        }
    });
    assert!(free[0] > 30, "{free:?} segments are free");
}

/// Kills the server, and the next one while it recovers.
fn recovery_of(world: &World, stride: usize) {
    world.kill();
    Kills::one_of(stride).during(world, |world| {
        let opening = world.start().expect("a region");
        assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
    });
}

#[test]
fn recovery() {
    let world = World::populated(Setup::SMALL);
    recovery_of(&world, 1);
    // Nothing is open now but what the recovery filled.
    recovery_of(&world, 1);
    world.set("old-17", 500);
    world.flush();
    world.set("old-18", 500);
    recovery_of(&world, 5);
}

#[test]
fn recovery_of_a_growing_table() {
    let world = World::populated(Setup::SMALL);
    growing(&world);
    recovery_of(&world, 19);
    world.maintain();
    recovery_of(&world, 19);
}

#[test]
fn recovery_of_full_memory() {
    let world = sparse(Setup::KEEPING);
    for number in 0..60 {
        world.set(&format!("more-{number}"), 1_300);
    }
    recovery_of(&world, 19);
    let world = World::populated(Setup::SMALL);
    world.may_lose(MayLose::Anything);
    fill(&world, 1_500, |handle| handle.store().sums().evictions > 50);
    recovery_of(&world, 19);
}

#[test]
fn recovery_of_chain_buckets_and_expired_items() {
    let world = World::populated(Setup::SMALL);
    let keys = colliding(&world);
    for key in &keys {
        world.set(key, 5);
    }
    recovery_of(&world, 3);
    world.restart();
    world.advance(1);
    world.touch("old-19", 5);
    world.advance(10);
    recovery_of(&world, 3);
}

#[test]
fn clean_stop() {
    let world = World::populated(Setup::SMALL);
    world.advance(2);
    world.flush_in(1_000);
    Kills { after: true, ..Kills::ALL }.during(&world, |world| {
        world.handle(|handle| handle.store().keep()).expect("nothing is in use");
    });
}

#[test]
fn start_after_a_clean_stop() {
    let world = World::populated(Setup::SMALL);
    world.handle(|handle| handle.store().keep()).expect("nothing is in use");
    world.kill();
    world.advance(3);
    Kills { after: true, ..Kills::ALL }.during(&world, |world| {
        let opening = world.start().expect("a region");
        assert!(matches!(opening, Opening::Kept { .. }), "{opening:?}");
        world.set("old-20", 60);
    });
}

#[test]
fn growth_of_the_region() {
    for is_clean in [true, false] {
        let mut world = World::populated(Setup::SMALL);
        if is_clean {
            world.handle(|handle| handle.store().keep()).expect("nothing is in use");
        }
        world.kill();
        world.setup.memory_bytes_max = 2 << 20;
        world.setup.memory_bytes = 3 << 19;
        Kills { after: true, ..Kills::one_of(11) }.during(&world, |world| {
            world.start().expect("a region");
            assert_eq!(world.handle(|handle| handle.store().region_bytes()), 2 << 20);
            world.set("old-21", 60);
        });
    }
}

#[test]
fn creation() {
    let world = World::void(Setup::SMALL);
    Kills { after: true, is_creation: true, ..Kills::one_of(53) }.during(&world, |world| {
        assert_eq!(world.start().expect("a new file"), Opening::New);
    });
}
