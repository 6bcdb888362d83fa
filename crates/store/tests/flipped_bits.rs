//! Single bits of a memory file that flip while no server runs, each at the place where it does most harm.
#![cfg(not(loom))]

mod common;

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use common::{delete, get, set};
use fabcache_layout::slot::Slot;
use fabcache_store::backing::BackingOptions;
use fabcache_store::{Expiry, Handle, Opening, Store, StoreOptions};
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::report::not_run;

/// Offsets in the header, as in docs/region.md.
const SHAPE_AT: u64 = 24;
const DIRECTORY_AT: u64 = 32;
const FIRST_SEGMENT_AT: u64 = 48;
const HASH_SEED_AT: u64 = 56;
const FLUSH_EPOCH_AT: u64 = 136;
const CAS_LIMIT_AT: u64 = 472;
const BOOT_ID_AT: u64 = 512;
/// Of a partition in the directory: its bytes, and where its first table's block numbers are.
const PARTITION_BYTES: u64 = 2624;
const BLOCKS_AT: u64 = 64;
const BLOCKS_BYTES: u64 = 1280;
const PARTITIONS: u64 = 8;
/// With the slots behind its buckets.
const SLOTS_IN_GROUP: usize = 288;
/// See statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// The bit of a slot that is not an item's.
const SPECIAL_BIT: u32 = 62;

/// A memory file.
struct Place {
    folder: Folder,
    memory_bytes: u64,
}

/// A partition whose table grows.
struct Growing {
    /// Groups of its table, and how many of these have moved.
    groups: u64,
    moved: u64,
    /// The offset of each group.
    offsets: Vec<u64>,
}

impl Place {
    fn new(memory_bytes: u64) -> Place {
        Place { folder: Folder::new("fabcache-flipped").expect("a folder"), memory_bytes }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("region")
    }

    fn open(&self) -> Handle {
        let options = StoreOptions {
            memory_bytes: self.memory_bytes,
            memory_bytes_max: self.memory_bytes,
            background_threads: 1,
            backing: BackingOptions { file: Some(self.path()), ..BackingOptions::default() },
            ..StoreOptions::default()
        };
        Handle::new(&Arc::new(Store::open(options).expect("a file of ours")))
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.path()).expect("our file")
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file().read_exact_at(&mut bytes, at).expect("within the file");
        u64::from_le_bytes(bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.file().write_all_at(bytes, at).expect("within the file");
    }

    fn flip(&self, at: u64, bit: u32) {
        self.write(at, &(self.word(at) ^ 1 << bit).to_le_bytes());
    }

    /// The offsets of the groups of a partition's current table. A block has one group in a region this small.
    fn groups(&self, partition: u64) -> Vec<u64> {
        assert_eq!(self.word(SHAPE_AT) >> 8 & 0xff, 0, "groups in a block: 1");
        let at = self.word(DIRECTORY_AT) + partition * PARTITION_BYTES;
        let head = self.word(at);
        let (groups, table) = (head & 0x1_ffff, head >> 34 & 1);
        let mut numbers = vec![0; groups as usize * 4];
        let file = self.file();
        file.read_exact_at(&mut numbers, at + BLOCKS_AT + table * BLOCKS_BYTES).expect("within the file");
        numbers.as_chunks::<4>().0.iter().map(|number| u64::from(u32::from_le_bytes(*number)) * 256).collect()
    }

    /// Returns a partition in the middle of its growth.
    fn growing(&self) -> Option<Growing> {
        (0..PARTITIONS).find_map(|partition| {
            let head = self.word(self.word(DIRECTORY_AT) + partition * PARTITION_BYTES);
            let offsets = (head >> 35 & 1 == 1).then(|| self.groups(partition))?;
            let is_moved = |offset: &&u64| Slot(self.word(**offset)).is_moved();
            let (groups, moved) = (offsets.len() as u64, offsets.iter().filter(is_moved).count() as u64);
            Some(Growing { groups, moved, offsets })
        })
    }
}

fn name(i: usize) -> Vec<u8> {
    format!("k{i}").into_bytes()
}

fn store(handle: &Handle, keys: Range<usize>, value: &[u8]) {
    for i in keys {
        set(handle, &name(i), value).expect("memory is free, or others are evicted");
    }
}

fn stop(handle: Handle, is_clean: bool) {
    if is_clean {
        handle.store().keep().expect("nothing is in use");
    }
    drop(handle);
}

/// Stores keys until a table grows as wanted, flips the mark of a group, and starts again: then each key is written or
/// deleted, and no answer may show what it was before, while the growth goes on and after it.
fn flip_a_moved_mark(is_clean: bool, wanted: impl Fn(&Growing) -> Option<u64>) {
    let place = Place::new(8 << 20);
    let handle = place.open();
    let mut keys = 0;
    let group = loop {
        set(&handle, &name(keys), b"old").expect("memory is free");
        keys += 1;
        assert!(keys < 200_000, "no table grew");
        if let Some(group) = place.growing().as_ref().and_then(&wanted) {
            break group;
        }
    };
    stop(handle, is_clean);
    // Its first slot is empty, or reads MOVED: one bit makes one the other.
    let first = Slot(place.word(group));
    place.write(group, &if first.is_moved() { Slot::EMPTY } else { Slot::MOVED }.0.to_le_bytes());
    let handle = place.open();
    let check = |when: &str, i: usize| {
        let found = get(&handle, &name(i)).map(|(_, value)| value);
        assert_eq!(found.as_deref(), i.is_multiple_of(3).then_some(&b"new"[..]), "{when}: {i}");
    };
    let changed = || (0..keys).filter(|i| i % 3 != 2);
    for i in changed() {
        if i % 3 == 0 {
            set(&handle, &name(i), b"new").expect("memory is free");
        } else {
            delete(&handle, &name(i));
        }
        check("directly", i);
    }
    changed().for_each(|i| check("while the table grows", i));
    handle.finish_restart(&mut || true);
    handle.maintain();
    changed().for_each(|i| check("after the growth", i));
}

#[test]
fn moved_group_that_reads_unmoved_brings_nothing_back() {
    for is_clean in [false, true] {
        let first = |growing: &Growing| {
            let is_late = growing.moved >= 3 && growing.moved + 1 >= growing.groups;
            is_late.then(|| growing.offsets[0])
        };
        flip_a_moved_mark(is_clean, first);
    }
}

#[test]
fn unmoved_group_that_reads_moved_brings_nothing_back() {
    for is_clean in [false, true] {
        for ahead in [0, 1] {
            let next = |growing: &Growing| {
                let at = growing.offsets.get((growing.moved + ahead) as usize).copied()?;
                (growing.moved >= 1).then_some(at)
            };
            flip_a_moved_mark(is_clean, next);
        }
    }
}

#[test]
fn flipped_words_of_the_header_are_found() {
    for (at, bit) in [(HASH_SEED_AT, 3), (FLUSH_EPOCH_AT, 0), (CAS_LIMIT_AT, 20)] {
        let place = Place::new(4 << 20);
        let handle = place.open();
        set(&handle, b"flushed", b"old").expect("memory is free");
        handle.flush(Expiry::AT_ONCE);
        store(&handle, 0..6000, b"value");
        stop(handle, true);
        place.flip(at, bit);
        let handle = place.open();
        let (opening, _) = handle.store().opening();
        assert!(matches!(opening, Opening::Discarded(_)), "{at}: {opening:?}");
        assert!(get(&handle, b"flushed").is_none());
    }
}

/// A killed server's header is in no checksum: with another hash seed each key is a miss, and the tables still grow.
#[test]
fn flipped_hash_seed_after_a_kill_loses_items_only() {
    let place = Place::new(4 << 20);
    let handle = place.open();
    store(&handle, 0..6000, b"old");
    stop(handle, false);
    place.flip(HASH_SEED_AT, 3);
    let handle = place.open();
    store(&handle, 0..60_000, b"new");
    assert!((0..60_000).all(|i| get(&handle, &name(i)).is_none_or(|(_, value)| value == b"new")));
}

/// A dead item's length hides the next item, which is damaged as well, while others die under the walk.
#[test]
fn dead_item_hides_no_damaged_one() {
    let value = |i: usize| (i as u32 + 1_000_000).to_le_bytes().repeat(250);
    let place = Place::new(1 << 30);
    let handle = place.open();
    let key = |i: usize| format!("key{i:04}").into_bytes();
    for i in 0..5000 {
        set(&handle, &key(i), &value(i)).expect("memory is free");
    }
    assert!(delete(&handle, &key(1200)));
    stop(handle, true);
    let first = place.word(FIRST_SEGMENT_AT);
    let mut region = vec![0; 16 << 20];
    place.file().read_exact_at(&mut region, first).expect("within the file");
    let find = |i: usize| {
        let bytes = [key(i), value(i)].concat();
        region.windows(bytes.len()).position(|window| window == bytes).expect("stored") as u64 + first
    };
    let (dead, live) = (find(1200), find(1201));
    // The length is the header's last field. One bit makes it that of two items.
    place.write(dead - 2, &2024_u16.to_le_bytes());
    place.flip(live / 8 * 8 + 504, 2);
    let handle = place.open();
    let mut is_set = false;
    assert!(handle.finish_restart(&mut || {
        // Behind the walk, which has passed these.
        if handle.store().is_recovered() && !std::mem::replace(&mut is_set, true) {
            for i in 10..13 {
                set(&handle, &key(i), b"short").expect("memory is free");
            }
        }
        true
    }));
    assert!(get(&handle, &key(1201)).is_none(), "its value is damaged");
    assert!(handle.store().items_corrupt() > 0);
}

/// After a power failure the file of a device may be as before the second server wrote.
#[test]
fn saved_state_is_used_once() {
    let place = Place::new(4 << 20);
    let handle = place.open();
    set(&handle, b"key", b"old").expect("memory is free");
    stop(handle, true);
    let before = fs::read(place.path()).expect("our file");
    let handle = place.open();
    set(&handle, b"key", b"new").expect("memory is free");
    stop(handle, false);
    fs::write(place.path(), before).expect("our file");
    place.write(BOOT_ID_AT, &[9; 16]);
    let handle = place.open();
    let (opening, _) = handle.store().opening();
    if rustix::fs::statfs(place.folder.path()).expect("our folder").f_type == TMPFS {
        let why = "a power failure leaves nothing of the file system that tests use";
        return not_run("saved_state_is_used_once", &why);
    }
    assert!(matches!(opening, Opening::Discarded(_)), "{opening:?}");
    assert!(get(&handle, b"key").is_none());
}

/// One damaged slot costs the items of its group, no others, also when the system starts again behind the next clean stop.
#[test]
fn repaired_index_is_kept_over_a_boot() {
    let place = Place::new(16 << 20);
    let handle = place.open();
    store(&handle, 0..20_000, b"value");
    handle.maintain();
    stop(handle, true);
    let group = place.groups(3)[0];
    let slot = (group..).step_by(8).find(|at| Slot(place.word(*at)).is_item()).expect("a group is not empty");
    place.flip(slot, 3);
    let handle = place.open();
    handle.finish_restart(&mut || true);
    stop(handle, true);
    place.write(BOOT_ID_AT, &[9; 16]);
    let handle = place.open();
    let (opening, _) = handle.store().opening();
    assert!(matches!(opening, Opening::Kept { .. }), "{opening:?}");
    let lost = (0..20_000).filter(|i| get(&handle, &name(*i)).is_none()).count();
    assert!((1..=SLOTS_IN_GROUP).contains(&lost), "{lost}");
}

/// Slots of garbage are no items that were counted: else too few count, and in the end fewer than none.
#[test]
fn garbage_in_groups_makes_no_table_grow() {
    let place = Place::new(16 << 20);
    let handle = place.open();
    store(&handle, 0..20_000, b"value");
    handle.maintain();
    let segments = handle.store().usage().segments_index;
    stop(handle, true);
    let mut random = 88_172_645_463_325_252_u64;
    for group in &place.groups(3)[..2] {
        for at in (*group..*group + 8 * SLOTS_IN_GROUP as u64).step_by(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            place.write(at, &(random & !(1 << SPECIAL_BIT)).to_le_bytes());
        }
    }
    let handle = place.open();
    handle.finish_restart(&mut || true);
    for i in 0..20_000 {
        delete(&handle, &name(i));
    }
    for i in 0..2000 {
        set(&handle, &name(i), b"value").expect("memory is free");
        handle.maintain();
    }
    assert_eq!(handle.store().usage().segments_index, segments);
}
