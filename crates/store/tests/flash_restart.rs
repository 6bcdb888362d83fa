//! The flash tier over restarts: a clean stop keeps the items in memory and those on flash, and nothing else leads to flash.
#![cfg(not(loom))]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::SetClock;
use common::flash::{SEGMENT_BYTES, Tier, flash_options};
use fabcache_layout::flash_slot::FlashItem;
use fabcache_layout::slot::Slot;
use fabcache_store::backing::BackingOptions;
use fabcache_store::restart::saved_state::StateError;
use fabcache_store::{
    Change, Expiry, FlashLoss, FlashOpening, FlashOptions, FlashSums, NewValue, Opening, Put, StoreOptions,
    Value, Write,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::random::SplitMix64;

const MEMORY_BYTES: u64 = 2 << 20;
const ITEMS: u64 = 6_000;
/// As in `flash.rs`.
const LOST_MAX: usize = 3;
/// Offset of the state in PATH.meta.
const STATE_AT: usize = 240;

/// A memory file, and devices whose headers have the id of their last opening.
struct Place {
    folder: Folder,
    memory_bytes: u64,
    evicts: bool,
    clock: SetClock,
    devices: RefCell<Vec<Vec<u8>>>,
    set_id: Cell<u128>,
}

impl Place {
    fn new(segments: &[u64]) -> Place {
        let devices = segments.iter().map(|segments| vec![0; (segments * SEGMENT_BYTES) as usize]).collect();
        Place {
            memory_bytes: MEMORY_BYTES,
            evicts: true,
            folder: Folder::new("fabcache-flash-restart").expect("a folder"),
            clock: SetClock::default(),
            devices: RefCell::new(devices),
            set_id: Cell::new(0),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("region")
    }

    fn meta(&self) -> PathBuf {
        self.folder.path().join("region.meta")
    }

    fn flash(&self) -> FlashOptions {
        let device_bytes = self.devices.borrow().iter().map(|device| device.len() as u64).collect();
        let previous_set_id = Some(self.set_id.get()).filter(|id| *id > 0);
        FlashOptions { device_bytes, set_id: self.set_id.get() + 1, previous_set_id, ..flash_options(&[]) }
    }

    /// Opens a store as a server does.
    fn open(&self) -> Tier {
        self.open_with(Some(self.flash()))
    }

    fn open_with(&self, flash: Option<FlashOptions>) -> Tier {
        let options = StoreOptions {
            memory_bytes: self.memory_bytes,
            memory_bytes_max: self.memory_bytes,
            evict: self.evicts,
            background_threads: 1,
            backing: BackingOptions { file: Some(self.path()), ..BackingOptions::default() },
            flash,
            ..StoreOptions::default()
        };
        let tier = Tier::open(options, &self.clock, self.devices.borrow().clone());
        self.set_id.set(self.set_id.get() + 1);
        tier
    }

    fn stop(&self, tier: Tier) {
        tier.store().keep().expect("nothing is in use").expect("it has a file");
        self.kill(tier);
    }

    fn kill(&self, tier: Tier) {
        *self.devices.borrow_mut() = tier.devices.take();
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    pattern(n, 300 + (n % 7 * 150) as usize)
}

fn put(tier: &Tier, n: u64, value: &[u8], expiry: Expiry) {
    let key = key(n);
    let put = Put { key: &key, value, flags: n as u32, expiry };
    let probe = tier.handle.probe_for_write(&key);
    tier.handle.put(&put, &probe).expect("it fits");
    if tier.store().is_short_of_memory() || n.is_multiple_of(64) {
        tier.drive();
    }
}

/// Stores more than memory holds.
fn fill(tier: &Tier) {
    (0..ITEMS).for_each(|n| put(tier, n, &value(n), Expiry::NEVER));
    assert!(sums(tier).objects_used > ITEMS / 2, "{:?}", sums(tier));
}

fn sums(tier: &Tier) -> FlashSums {
    tier.store().flash_sums().expect("there is a tier")
}

/// Returns how many of the items are found; each has its value.
fn found(tier: &Tier) -> usize {
    (0..ITEMS)
        .filter(|n| match tier.get(&key(*n)) {
            Some((info, found)) => {
                assert!(found == value(*n) && info.flags == *n as u32, "item {n}");
                true
            }
            None => false,
        })
        .count()
}

/// Writes until each flash segment was used again.
fn overwrite_flash(tier: &Tier) {
    let opened = sums(tier).pages_allocated + 2 * sums(tier).limit_maxbytes / SEGMENT_BYTES;
    let mut n = 1 << 32;
    while sums(tier).pages_allocated < opened {
        put(tier, n, &pattern(n, 4_000), Expiry::NEVER);
        n += 1;
    }
}

/// Returns the slots of the file that lead to flash, by offset.
fn slots_on_flash(place: &Place) -> Vec<u64> {
    let bytes = fs::read(place.path()).expect("our file");
    let words = bytes.as_chunks::<8>().0.iter().map(|word| Slot(u64::from_le_bytes(*word)));
    let segments: u64 = place.devices.borrow().iter().map(|device| device.len() as u64 / 4096).sum();
    let is_on_flash = |slot: Slot| {
        FlashItem::from_slot(slot).is_some_and(|item| u64::from(item.page) < segments && slot.frequency() < 2)
    };
    words.enumerate().filter(|(_, slot)| is_on_flash(*slot)).map(|(i, _)| 8 * i as u64).collect()
}

#[test]
fn clean_stop_keeps_items_in_memory_and_on_flash() {
    let place = Place::new(&[24, 20]);
    let mut tier = place.open();
    assert_eq!(tier.store().flash_opening(), FlashOpening::New);
    fill(&tier);
    let left = found(&tier);
    assert!(left >= ITEMS as usize - LOST_MAX, "{left}");
    for checks_first in [true, false, true] {
        let before = sums(&tier);
        place.stop(tier);
        tier = place.open();
        let Opening::Kept { items, .. } = tier.store().opening().0 else { panic!("it is kept") };
        assert_eq!(tier.store().flash_opening(), FlashOpening::Kept { items: before.objects_used });
        assert!(items > 0 && items + before.objects_used >= left as u64);
        // Else by the requests.
        if checks_first {
            assert!(tier.handle.finish_restart(&mut || true));
            assert_eq!(sums(&tier).objects_used, before.objects_used, "each is counted once");
        }
        let after = sums(&tier);
        assert!(after.pages_allocated == 0 && after.pages_used <= before.pages_used, "{after:?}");
        assert_eq!(found(&tier), left);
        assert_eq!(sums(&tier).bad_pages + sums(&tier).read_errors, 0);
    }
    overwrite_flash(&tier);
    assert!(sums(&tier).objects_evicted > 1_000);
}

#[test]
fn random_operations_go_on_over_restarts() {
    for (seed, segments, is_complete) in [(1, &[40, 24][..], true), (2, &[3, 2], false), (3, &[4], false)] {
        let place = Place::new(segments);
        let mut random = SplitMix64::new(seed);
        let mut known: HashMap<u64, u64> = HashMap::new();
        let (mut lost, mut version) = (0, 0);
        for restart in 0..8 {
            let tier = place.open();
            assert!(restart == 0 || tier.store().opening().0.name() == "kept");
            for _ in 0..3_000 + random.below(2_000) {
                let n = random.below(8_000) as u64;
                match random.below(8) {
                    0..=4 => {
                        version += 1;
                        known.insert(n, version);
                        put(&tier, n, &value(version), Expiry::NEVER);
                    }
                    5 => {
                        let is_there =
                            tier.mutate(&key(n), |existing| (Change::Remove, existing.info.is_ok()));
                        let (is_there, _) = is_there.expect("removing needs no memory");
                        assert!(!is_there || known.contains_key(&n), "{n} was deleted");
                        known.remove(&n);
                    }
                    6 => tier.handle.maintain(),
                    _ => match (tier.get(&key(n)), known.get(&n)) {
                        (Some((_, found)), Some(version)) => {
                            assert!(found == value(*version), "{n} is another value")
                        }
                        (Some(_), None) => panic!("{n} was deleted or never stored"),
                        (None, _) => lost += usize::from(known.remove(&n).is_some()),
                    },
                }
            }
            if random.below(2) == 0 {
                tier.handle.finish_restart(&mut || true);
            }
            place.stop(tier);
        }
        assert!(!is_complete || lost <= LOST_MAX, "{lost} items are lost");
    }
}

#[test]
fn values_of_several_flash_segments_are_kept() {
    let place = Place { memory_bytes: 8 << 20, ..Place::new(&[60, 60]) };
    let mut tier = place.open();
    let long = |n: u64| pattern(n, 300_000 + n as usize % 5 * 90_000);
    let store = |tier: &Tier, numbers: Range<u64>, drives: bool| {
        for n in numbers {
            let value = long(n);
            let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
            tier.mutate(&key(n), |_| (Change::Write(write), ())).expect("something can be evicted");
            if drives {
                tier.drive();
            }
        }
    };
    let left = |tier: &Tier| {
        let is_there = |n: &u64| match tier.get(&key(*n)) {
            Some((_, found)) => {
                assert!(found == long(*n), "item {n}");
                true
            }
            None => false,
        };
        (0..40).filter(is_there).count()
    };
    store(&tier, 0..40, true);
    // Some of the last ones are being written at the stop.
    store(&tier, 40..60, false);
    let expected = left(&tier);
    assert!(expected > 20, "{expected}");
    for checks_first in [true, false] {
        let before = sums(&tier);
        assert!(before.objects_used > 20, "parts of items: {before:?}");
        place.stop(tier);
        tier = place.open();
        let opening = tier.store().flash_opening();
        let FlashOpening::Kept { items } = opening else { panic!("{opening:?}") };
        assert!(items < before.objects_used, "{items} of {before:?}");
        if checks_first {
            assert!(tier.handle.finish_restart(&mut || true));
            assert_eq!(sums(&tier).objects_used, before.objects_used, "each part is counted once");
        }
        assert_eq!(left(&tier), expected);
        assert_eq!(sums(&tier).bad_pages, 0);
    }
    // The parts' segments are used again.
    store(&tier, 100..300, true);
    assert!(left(&tier) < expected / 2 && sums(&tier).bad_pages == 0);
}

#[test]
fn full_flash_is_not_taken_for_dead_before_its_items_are_counted() {
    let place = Place::new(&[24]);
    let tier = place.open();
    let mut n = 0;
    // No segment is retired, so the next server has to do it at once.
    while sums(&tier).pages_free > 0 {
        let key = key(n);
        let put = Put { key: &key, value: &value(n), flags: n as u32, expiry: Expiry::NEVER };
        tier.handle.put(&put, &tier.handle.probe_for_write(&key)).expect("something can be evicted");
        tier.write_all(|_, _| true);
        n += 1;
    }
    let on_flash = sums(&tier).objects_used;
    place.stop(tier);
    let tier = place.open();
    tier.handle.maintain_flash(|| {});
    let after = sums(&tier);
    assert!(after.pages_free >= 2 && after.objects_evicted > 0, "{after:?}");
    assert!(after.objects_used > on_flash * 3 / 4, "{on_flash} items were on flash: {after:?}");
    let wrong = (0..n).filter(|n| tier.get(&key(*n)).is_some_and(|(_, found)| found != value(*n))).count();
    assert_eq!((wrong, sums(&tier).bad_pages), (0, 0));
}

#[test]
fn growing_table_keeps_its_items_on_flash() {
    let place = Place::new(&[64]);
    let tier = place.open();
    let mut items = 0;
    while !(items > 5_000 && tier.store().usage().index_growing) {
        put(&tier, items, &value(items), Expiry::NEVER);
        items += 1;
        assert!(items < 60_000, "no table grew");
    }
    let on_flash = sums(&tier).objects_used;
    place.stop(tier);
    let tier = place.open();
    assert_eq!(tier.store().flash_opening(), FlashOpening::Kept { items: on_flash });
    assert!(tier.store().usage().index_growing);
    let missing =
        (0..items).filter(|n| tier.get(&key(*n)).is_none_or(|(_, found)| found != value(*n))).count();
    assert!(missing <= LOST_MAX, "{missing} of {items}");
    overwrite_flash(&tier);
}

#[test]
fn flash_begins_empty_unless_the_devices_are_the_same() {
    let shapes: [(&str, FlashLoss); 5] = [
        ("none", FlashLoss::NoDevices),
        ("larger", FlashLoss::Shape),
        ("segments", FlashLoss::Shape),
        ("swapped", FlashLoss::OtherSet),
        ("replaced", FlashLoss::OtherSet),
    ];
    for (name, why) in shapes {
        let place = Place::new(&[24, 20]);
        let tier = place.open();
        fill(&tier);
        let on_flash = sums(&tier).objects_used;
        place.stop(tier);
        let same = place.flash();
        let mut devices = place.devices.borrow().clone();
        let flash = match name {
            "none" => None,
            "larger" => {
                devices[1].extend(vec![0; SEGMENT_BYTES as usize]);
                let device_bytes = vec![24 * SEGMENT_BYTES, 21 * SEGMENT_BYTES];
                Some(FlashOptions { device_bytes, ..same })
            }
            "segments" => Some(FlashOptions { segment_bytes: SEGMENT_BYTES / 2, ..same }),
            // The headers do not form a set.
            "swapped" => Some(FlashOptions { previous_set_id: None, ..same }),
            _ => Some(FlashOptions { previous_set_id: Some(77), ..same }),
        };
        let is_there = flash.is_some();
        *place.devices.borrow_mut() = devices;
        let tier = place.open_with(flash);
        assert_eq!(tier.store().flash_opening(), FlashOpening::Lost { items: Some(on_flash), why }, "{name}");
        let Opening::Kept { items, .. } = tier.store().opening().0 else { panic!("memory is kept") };
        let left = found(&tier);
        assert!(items > 500 && left as u64 == items, "{name}: {left} of {items}");
        assert!(tier.handle.finish_restart(&mut || true));
        assert_eq!(tier.store().items_corrupt(), 0);
        if is_there {
            assert_eq!((sums(&tier).objects_used, sums(&tier).bad_pages), (0, 0), "{name}");
            fill(&tier);
        }
        place.stop(tier);
        // With the devices of the first server: nothing that this one wrote leads there.
        place.devices.borrow_mut()[1].truncate((20 * SEGMENT_BYTES) as usize);
        let tier = place.open();
        assert!(found(&tier) >= 500 && sums(&tier).bad_pages == 0, "{name}");
    }
}

#[test]
fn kill_loses_the_items_on_flash() {
    let place = Place::new(&[44]);
    let tier = place.open();
    fill(&tier);
    let on_flash = sums(&tier).objects_used;
    place.stop(tier);
    let tier = place.open();
    overwrite_flash(&tier);
    (0..200).for_each(|n| put(&tier, n, &value(n), Expiry::NEVER));
    // Segments that were written to flash after the start hold other items now.
    place.kill(tier);
    let tier = place.open();
    let lost = FlashOpening::Lost { items: None, why: FlashLoss::Unclean };
    assert_eq!((tier.store().flash_opening(), on_flash > 0), (lost, true));
    let left = found(&tier);
    assert!((200..=ITEMS as usize - on_flash as usize).contains(&left), "{left}");
    assert_eq!((sums(&tier).objects_used, sums(&tier).bad_pages), (0, 0));
    overwrite_flash(&tier);
}

#[test]
fn copies_of_the_saved_state_are_refused() {
    let place = Place::new(&[24, 20]);
    let tier = place.open();
    fill(&tier);
    place.stop(tier);
    let [region, meta] = [place.path(), place.meta()].map(|path| fs::read(path).expect("our file"));
    let set_id = place.set_id.get();
    let tier = place.open();
    (0..ITEMS).for_each(|n| put(&tier, n, b"another value", Expiry::NEVER));
    overwrite_flash(&tier);
    place.stop(tier);
    for has_other_headers in [true, false] {
        fs::write(place.path(), &region).expect("our file");
        fs::write(place.meta(), &meta).expect("our file");
        if !has_other_headers {
            // As if the headers were put back, too: the pages are still those of other segments.
            place.set_id.set(set_id);
        }
        let tier = place.open();
        let why = tier.store().flash_opening();
        match has_other_headers {
            true => assert!(matches!(why, FlashOpening::Lost { why: FlashLoss::OtherSet, .. }), "{why:?}"),
            false => assert!(matches!(why, FlashOpening::Kept { .. }), "{why:?}"),
        }
        assert!((500..ITEMS as usize / 2).contains(&found(&tier)));
        assert_eq!(sums(&tier).bad_pages > 1_000, !has_other_headers);
    }
}

#[test]
fn pages_of_another_tier_are_never_read() {
    let place = Place::new(&[44]);
    let tier = place.open();
    fill(&tier);
    let others = tier.devices.borrow().clone();
    drop(tier);
    // The same keys at the same places, with the same sequences, in a new tier.
    let place = Place { folder: Folder::new("fabcache-flash-restart").expect("a folder"), ..place };
    let tier = place.open();
    (0..ITEMS).for_each(|n| put(&tier, n, &pattern(!n, value(n).len()), Expiry::NEVER));
    *tier.devices.borrow_mut() = others;
    for n in 0..ITEMS {
        if let Some((_, found)) = tier.get(&key(n)) {
            assert!(found == pattern(!n, value(n).len()), "item {n} is of another tier");
        }
    }
    assert!(sums(&tier).bad_pages > 1_000);
}

#[test]
fn writes_that_have_not_ended_stay_in_memory() {
    let place = Place::new(&[24, 20]);
    let tier = place.open();
    fill(&tier);
    let mut n = ITEMS;
    // Writes that wait, one that is under way, and one that failed.
    let mut write = loop {
        let item = key(n);
        let put = Put { key: &item, value: &pattern(n, 3_000), flags: 0, expiry: Expiry::NEVER };
        let probe = tier.handle.probe_for_write(&item);
        tier.handle.put(&put, &probe).expect("it fits");
        n += 1;
        if let Some(write) = tier.store().take_flash_write() {
            break write;
        }
    };
    let buffer = write.take_buffer();
    tier.handle.finish_flash_write(write, buffer, false);
    let under_way = tier.store().take_flash_write();
    let expected = found(&tier);
    place.stop(tier);
    drop(under_way);
    let tier = place.open();
    assert!(expected >= ITEMS as usize - LOST_MAX);
    assert_eq!(found(&tier), expected);
    assert_eq!(sums(&tier).bad_pages, 0);
    overwrite_flash(&tier);
}

#[test]
fn expiry_and_flushes_go_on() {
    for flush in ["none", "before the stop", "after the stop"] {
        let place = Place::new(&[44]);
        let tier = place.open();
        let now = tier.store().now();
        let expiry = |n: u64| match n % 3 {
            0 => Expiry::NEVER,
            1 => Expiry::from_client(100, now, 0),
            _ => Expiry::from_client(1_000, now, 0),
        };
        (0..ITEMS).for_each(|n| put(&tier, n, &value(n), expiry(n)));
        match flush {
            "before the stop" => tier.handle.flush(Expiry::AT_ONCE),
            "after the stop" => tier.handle.flush(Expiry::from_client(50, now, 0)),
            _ => {}
        }
        place.stop(tier);
        place.clock.advance(200);
        let tier = place.open();
        assert!(matches!(tier.store().flash_opening(), FlashOpening::Kept { .. }));
        for n in 0..ITEMS {
            let is_there = tier.get(&key(n)).is_some();
            assert!(!is_there || flush == "none" && n % 3 != 1, "{flush}: {n} is gone");
        }
        let left = found(&tier);
        let expected = if flush == "none" { ITEMS as usize * 2 / 3 } else { 0 };
        assert!((expected.saturating_sub(LOST_MAX)..=expected).contains(&left), "{flush}: {left}");
        overwrite_flash(&tier);
    }
}

#[test]
fn damaged_saved_state_is_refused() {
    let place = Place::new(&[24, 20]);
    let tier = place.open();
    fill(&tier);
    place.stop(tier);
    let files = [place.path(), place.meta()].map(|path| (fs::read(&path).expect("our file"), path));
    let set_id = place.set_id.get();
    let len = files[1].0.len();
    // The flash tier's part is the last one.
    for at in (STATE_AT..len).rev().take(24).chain((STATE_AT..len).rev().step_by(97).take(24)) {
        for (bytes, path) in &files {
            fs::write(path, bytes).expect("our file");
        }
        let meta = File::options().write(true).open(place.meta()).expect("our file");
        meta.write_all_at(&[files[1].0[at] ^ 1 << (at % 8)], at as u64).expect("within the file");
        place.set_id.set(set_id);
        let tier = place.open();
        assert_eq!(tier.store().opening().0.name(), "recovered", "byte {at}");
        let why = FlashLoss::UnusableState(StateError::OtherBytes);
        assert_eq!(tier.store().flash_opening(), FlashOpening::Lost { items: None, why });
        assert!((500..ITEMS as usize / 2).contains(&found(&tier)), "byte {at}");
        assert_eq!(sums(&tier).bad_pages, 0);
    }
}

#[test]
fn damaged_groups_lose_their_items_only() {
    let place = Place::new(&[24, 20]);
    let tier = place.open();
    fill(&tier);
    // Items return to memory meanwhile, for which a table may begin to grow.
    let left = found(&tier);
    // A growing table is checked as a whole at the start.
    let mut n = 1 << 32;
    while tier.store().usage().index_growing {
        put(&tier, n, b"", Expiry::NEVER);
        n += 1;
    }
    let on_flash = sums(&tier).objects_used;
    place.stop(tier);
    let slots = slots_on_flash(&place);
    assert!(slots.len() as u64 >= on_flash);
    let mut random = SplitMix64::new(9);
    let file = File::options().read(true).write(true).open(place.path()).expect("our file");
    // Of each a bit of the page, the rest, the class or the marks.
    let damaged: BTreeMap<u64, u64> =
        (0..10).map(|_| (slots[random.below(slots.len())], 1 << random.below(64))).collect();
    for (at, bit) in &damaged {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, *at).expect("within the file");
        let word = u64::from_le_bytes(word) ^ bit;
        file.write_all_at(&word.to_le_bytes(), *at).expect("within the file");
    }
    let tier = place.open();
    assert_eq!(tier.store().flash_opening(), FlashOpening::Kept { items: on_flash });
    let after = found(&tier);
    assert!((left / 3..left).contains(&after), "{after} of {left}");
    assert!(tier.handle.finish_restart(&mut || true));
    let progress = tier.store().recovery_progress().expect("it was kept");
    assert!((4..=10).contains(&progress.groups_damaged), "{progress:?}");
    assert!(sums(&tier).objects_used < on_flash);
    overwrite_flash(&tier);
    place.stop(tier);
    let tier = place.open();
    assert_eq!(tier.store().opening().0.name(), "kept");
    overwrite_flash(&tier);
}

/// Stores an item without eviction. Returns whether there was room.
fn put_without_eviction(tier: &Tier, n: u64) -> bool {
    let value = value(n);
    let write = || Write::plain(NewValue::Is(Value::Bytes(&value)));
    let has_room = |_| {
        let is_stored = tier.mutate(&key(n), |_| (Change::Write(write()), ())).is_ok();
        if !is_stored {
            tier.drive();
            tier.handle.maintain();
            tier.clock.advance_ms(50);
        }
        is_stored
    };
    (0..40).any(has_room)
}

/// A stop while the items of a flash segment are moved leaves each item where its slot leads.
#[test]
fn half_compacted_flash_is_kept() {
    for reads in 1..=2 {
        for is_written in [false, true] {
            let place = Place { evicts: false, ..Place::new(&[16]) };
            let mut tier = place.open();
            let stored = (0..).take_while(|n| put_without_eviction(&tier, *n)).count() as u64;
            let (removed, kept): (Vec<u64>, Vec<u64>) = (0..stored).partition(|n| n % 3 > 0);
            for n in removed {
                tier.mutate(&key(n), |_| (Change::Remove, ())).expect("it needs no memory");
            }
            tier.handle.maintain_flash(|| {});
            for _ in 0..reads {
                tier.finish_for_store(tier.handle.take_maintenance_read().expect("a segment is compacted"));
            }
            let moved = sums(&tier).moved;
            assert_eq!(moved > 0, reads == 2);
            if is_written {
                tier.write_all(|_, _| true);
            }
            place.stop(tier);
            tier = place.open();
            let check = |tier: &Tier| {
                let value_of = |n: u64| tier.get(&key(n)).map(|(_, value)| value);
                let wrong =
                    (0..stored).find(|n| value_of(*n) != kept.binary_search(n).is_ok().then(|| value(*n)));
                assert_eq!(wrong, None, "{moved} items were moved");
            };
            check(&tier);
            let more = (stored..).take_while(|n| put_without_eviction(&tier, *n)).count() as u64;
            assert!(more > stored / 2 && sums(&tier).moved > 0, "{more} more, {:?}", sums(&tier));
            check(&tier);
        }
    }
}

/// Returns whether a flash segment is free.
fn has_free_segment(tier: &Tier) -> bool {
    tier.store().flash_segments(0, usize::MAX).iter().any(|segment| segment.sequence == 0)
}

/// A server that evicts may stop before it has evicted a segment. The next one loses nothing without eviction, and with it frees one.
#[test]
fn flash_saved_full_is_kept_without_eviction() {
    let mut place = Place::new(&[4]);
    let tier = place.open();
    let stored = (0..ITEMS).take_while(|n| {
        let (key, value) = (key(*n), value(*n));
        let put = Put { key: &key, value: &value, flags: 0, expiry: Expiry::NEVER };
        tier.handle.put(&put, &tier.handle.probe_for_write(&key)).expect("it fits");
        tier.write_all(|_, _| true);
        has_free_segment(&tier)
    });
    let stored = stored.count() as u64;
    assert!(!has_free_segment(&tier), "{stored} items, {:?}", sums(&tier));
    let is_there = |tier: &Tier, n: u64| tier.get(&key(n)).is_some_and(|(_, found)| found == value(n));
    place.stop(tier);
    place.evicts = false;
    let tier = place.open();
    assert_eq!(tier.store().opening().0.name(), "kept");
    assert!(!has_free_segment(&tier));
    let there: Vec<u64> = (0..stored).filter(|n| is_there(&tier, *n)).collect();
    assert!(there.len() as u64 > stored / 2, "{} of {stored}", there.len());
    let refused = (ITEMS..2 * ITEMS).find(|n| !put_without_eviction(&tier, *n));
    assert!(refused.is_some(), "it is full");
    assert_eq!(there.iter().find(|n| !is_there(&tier, **n)), None);
    place.stop(tier);
    place.evicts = true;
    let tier = place.open();
    tier.drive();
    assert!(has_free_segment(&tier));
}
