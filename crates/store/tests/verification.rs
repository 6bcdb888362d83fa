//! Items of an earlier server are verified before they are used.
#![cfg(not(loom))]

mod common;

use std::fs;
use std::sync::Arc;

use common::{get, set};
use fabcache_layout::Slot;
use fabcache_layout::item::{NewItem, State};
use fabcache_store::backing::BackingOptions;
use fabcache_store::{Change, Handle, Located, NewValue, Opening, Probe, Store, StoreOptions, Value, Write};
use fabcache_testbed::cleanup::Folder;

const MEMORY_BYTES: u64 = 4 << 20;
/// The word of the incarnation, as in docs/region.md.
const INCARNATION_AT: usize = 148;
const KEYS: u32 = 200;
/// Of a group of the index, with those behind its buckets.
const GROUP_SLOTS: u64 = 288;

/// A memory file whose server stopped.
struct Stopped(Folder);

impl Stopped {
    /// Items of 1,000 bytes and one in chunks, `long`.
    fn new(is_clean: bool) -> Stopped {
        let stopped = Stopped(Folder::new("fabcache-verification").expect("a folder"));
        let handle = stopped.open();
        for i in 0..KEYS {
            set(&handle, &key(i), &value(i)).expect("memory is free");
        }
        set(&handle, b"long", &long()).expect("memory is free");
        // Seals the segments of these items, so that a kill leaves them in place.
        for i in 0..400 {
            set(&handle, format!("filler{i}").as_bytes(), &[1; 2000]).expect("memory is free");
        }
        if is_clean {
            handle.store().keep().expect("nothing is in use");
        }
        stopped
    }

    fn open(&self) -> Handle {
        let file = Some(self.0.path().join("region"));
        let options = StoreOptions {
            memory_bytes: MEMORY_BYTES,
            memory_bytes_max: MEMORY_BYTES,
            backing: BackingOptions { file, ..BackingOptions::default() },
            ..StoreOptions::default()
        };
        Handle::new(&Arc::new(Store::open(options).expect("a file of ours")))
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.0.path().join("region")).expect("our file")
    }

    /// Flips a bit of the first place with these bytes.
    fn flip(&self, bytes: &[u8]) {
        let mut region = self.bytes();
        let at = region.windows(bytes.len()).position(|window| window == bytes).expect("they are there");
        region[at + bytes.len() / 2] ^= 4;
        fs::write(self.0.path().join("region"), region).expect("our file");
    }

    /// Changes the tag in the slot of an item.
    fn damage_slot(&self, i: u32) {
        let mut region = self.bytes();
        let offset = item_at(&region, i) as u64;
        let words = region.as_chunks_mut::<8>().0.iter_mut();
        let leads_there = |slot: &Slot| slot.is_item() && slot.offset() == offset;
        let mut slots = words.filter(|word| leads_there(&Slot(u64::from_le_bytes(**word))));
        let word = slots.next().expect("it has a slot");
        let slot = Slot(u64::from_le_bytes(*word));
        let other = Slot::item(slot.tag() ^ 1, offset, slot.class(), slot.frequency());
        *word = other.with_overflowed_of(slot).0.to_le_bytes();
        fs::write(self.0.path().join("region"), region).expect("our file");
    }

    fn is_unverified(&self) -> bool {
        self.bytes()[INCARNATION_AT + 3] & 0x80 != 0
    }
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i}").into_bytes()
}

fn value(i: u32) -> Vec<u8> {
    (i + 1_000_000).to_le_bytes().repeat(250)
}

fn long() -> Vec<u8> {
    (0..50_000_u32).flat_map(|i| (i * i).to_le_bytes()).collect()
}

/// Returns the offset of an item.
fn item_at(region: &[u8], i: u32) -> usize {
    let written = [key(i), value(i)].concat();
    let header = NewItem { key: &key(i), value_len: 1000, cas: 1, ..NewItem::default() }.head_len();
    let key_at = region.windows(written.len()).position(|window| window == written).expect("it was stored");
    key_at + key(i).len() - header
}

fn is_located(handle: &Handle, key: &[u8]) -> bool {
    let mut probes = [Probe::NONE; 1];
    handle.probe_many(std::iter::once(key), &mut probes);
    matches!(handle.locate(key, &probes[0]), Located::Item(_))
}

#[test]
fn damaged_values_are_misses() {
    for (is_clean, damaged) in [(true, 7), (false, 8)] {
        let stopped = Stopped::new(is_clean);
        stopped.flip(&value(damaged));
        stopped.flip(&long()[..1000]);
        let handle = stopped.open();
        assert!(stopped.is_unverified());
        assert_eq!(handle.store().items_corrupt(), 0, "nothing was read");
        assert!(!is_located(&handle, &key(damaged)) && is_located(&handle, &key(9)));
        assert!(get(&handle, &key(damaged)).is_none() && get(&handle, b"long").is_none());
        assert_eq!(handle.store().items_corrupt(), 2);
        for i in (0..KEYS).filter(|i| *i != damaged) {
            assert!(get(&handle, &key(i)).is_none_or(|(_, found)| found == value(i)), "{i}");
        }
    }
}

#[test]
fn writes_build_on_no_damaged_value() {
    let stopped = Stopped::new(true);
    stopped.flip(&value(7));
    let handle = stopped.open();
    let append = |existing: &mut fabcache_store::ExistingItem<'_>| {
        let more = Write::plain(NewValue::Appended(Value::Bytes(b"more")));
        (if existing.info.is_ok() { Change::Write(more) } else { Change::Keep }, existing.info.is_ok())
    };
    assert!(!handle.mutate(&key(7), append).expect("memory is free").0);
    assert!(handle.mutate(&key(8), append).expect("memory is free").0);
    assert_eq!(get(&handle, &key(8)).expect("it was appended to").1, [&value(8)[..], b"more"].concat());
    set(&handle, &key(7), b"new").expect("memory is free");
    handle.finish_restart(&mut || true);
    assert_eq!(get(&handle, &key(7)).expect("just set").1, b"new");
    assert_eq!(handle.store().items_corrupt(), 1);
}

#[test]
fn scrub_drops_damaged_items_and_ends() {
    let stopped = Stopped::new(true);
    stopped.flip(&value(7));
    let handle = stopped.open();
    let (before, segments) = handle.store().scrubbed();
    assert!(before == 0 && segments > 3, "{segments} segments are unverified");
    handle.finish_restart(&mut || false);
    assert!(stopped.is_unverified() && handle.store().scrubbed().0 < segments, "it was stopped");
    let mut parts = 0;
    handle.finish_restart(&mut || {
        parts += 1;
        true
    });
    assert!(!stopped.is_unverified());
    assert_eq!(handle.store().scrubbed(), (segments, segments));
    assert_eq!(handle.store().items_corrupt(), 1, "after {parts} parts");
    for i in 0..KEYS {
        assert_eq!(get(&handle, &key(i)).map(|(_, found)| found), (i != 7).then(|| value(i)), "{i}");
    }
    assert_eq!(get(&handle, b"long").expect("it is intact").1, long());
    handle.store().keep().expect("nothing is in use");
    drop(handle);
    let handle = stopped.open();
    assert!(stopped.is_unverified(), "memory may change between any two servers");
    handle.finish_restart(&mut || true);
    assert!(!stopped.is_unverified() && handle.store().items_corrupt() == 0);
}

#[test]
fn eviction_moves_no_damaged_item() {
    let stopped = Stopped::new(true);
    (0..20).for_each(|i| stopped.flip(&value(i)));
    let handle = stopped.open();
    for round in 0..3 {
        for i in 0..1_000 {
            set(&handle, format!("more{round}-{i}").as_bytes(), &[2; 3000]).expect("others are evicted");
            let wanted = i % KEYS;
            let found = get(&handle, &key(wanted)).map(|(_, found)| found);
            assert!(found.is_none_or(|found| wanted >= 20 && found == value(wanted)), "{wanted}");
        }
    }
}

#[test]
fn damaged_index_is_recovered() {
    let stopped = Stopped::new(true);
    let handle = stopped.open();
    let items = handle.store().usage().items;
    handle.store().keep().expect("nothing is in use");
    let index_bytes = handle.store().usage().index_bytes;
    assert!(index_bytes > 0);
    drop(handle);
    // The directory's first block number.
    let mut region = stopped.bytes();
    let directory = u64::from_le_bytes(*region[32..].first_chunk().expect("a header")) as usize;
    region[directory + 8] ^= 1;
    fs::write(stopped.0.path().join("region"), region).expect("our file");
    let handle = stopped.open();
    let (opening, _) = handle.store().opening();
    assert!(matches!(opening, Opening::Recovered { .. }), "{opening:?}");
    assert!(handle.finish_restart(&mut || true));
    assert_eq!(handle.store().usage().items, items, "the flipped bit was one that nothing depends on");
}

/// The items of a damaged group count as alive until reclaim comes to them. The next start keeps the rest nevertheless.
#[test]
fn start_after_one_with_a_damaged_group_keeps_the_items() {
    let stopped = Stopped::new(true);
    stopped.damage_slot(7);
    let handle = stopped.open();
    assert!(get(&handle, &key(7)).is_none(), "its slot is damaged");
    let dropped = handle.store().items_corrupt();
    assert!((1..GROUP_SLOTS).contains(&dropped), "{dropped}");
    assert!(handle.finish_restart(&mut || true));
    assert_eq!(handle.store().items_corrupt(), dropped);
    set(&handle, &key(7), b"new").expect("memory is free");
    let found = |handle: &Handle| (0..KEYS).filter(|i| get(handle, &key(*i)).is_some()).count();
    let left = found(&handle);
    handle.store().keep().expect("nothing is in use");
    drop(handle);
    let handle = stopped.open();
    let (opening, _) = handle.store().opening();
    assert!(matches!(opening, Opening::Kept { .. }), "{opening:?}");
    assert!(handle.finish_restart(&mut || true));
    assert_eq!((handle.store().items_corrupt(), found(&handle)), (0, left));
    assert_eq!(get(&handle, &key(7)).expect("it was stored").1, b"new");
}

/// Deletes an item whose dead bit flipped before the server looked at it: it counted as alive, and does no longer.
#[test]
fn deleted_item_with_a_flipped_state_is_counted_as_dead() {
    let stopped = Stopped::new(true);
    let mut region = stopped.bytes();
    let at = item_at(&region, 7);
    region[at] ^= State::DEAD as u8;
    fs::write(stopped.0.path().join("region"), region).expect("our file");
    let handle = stopped.open();
    assert!(get(&handle, &key(7)).is_none(), "the bit that flipped is the state's");
    handle.store().keep().expect("nothing is in use");
    drop(handle);
    let (opening, _) = stopped.open().store().opening();
    assert!(matches!(opening, Opening::Kept { .. }), "{opening:?}");
}
