//! The flash tier on devices that fail, stall or return other bytes, and items of every kind there and back: an item is lost
//! at most, and never wrong.
#![cfg(not(loom))]

mod common;

use common::flash::{Tier, flash_options};
use fabcache_store::{
    Expiry, FlashOptions, FlashState, FlashSums, FlashWrite, PageBuffer, Put, StoreOptions,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

/// A slot may not tell where its key belongs, once in about a hundred thousand.
const LOST_MAX: u64 = 3;

fn set(tier: &Tier, key: &[u8], value: &[u8]) {
    let put = Put { key, value, flags: 7, expiry: Expiry::NEVER };
    let probe = tier.handle.probe_for_write(key);
    tier.handle.put(&put, &probe).expect("something may be evicted");
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(tier: &Tier, key: &[u8]) -> Option<Vec<u8>> {
    tier.get(key).map(|(_, value)| value)
}

fn sums(tier: &Tier) -> FlashSums {
    tier.store().flash_sums().expect("there is a tier")
}

/// Stores short items, which no test reads, until the tier has staged `items` others.
fn push_out(tier: &Tier, items: u64) {
    for n in 0.. {
        if sums(tier).objects_written >= items {
            return;
        }
        assert!(n < 1_000_000, "{:?}", sums(tier));
        set(tier, &format!("short-{n}").into_bytes(), b"short");
    }
}

/// Options of a tier to which only items of 200 bytes and more go.
fn selective(segments: &[u64]) -> StoreOptions {
    let flash = FlashOptions { item_bytes_min: 200, ..flash_options(segments) };
    StoreOptions { flash: Some(flash), ..StoreOptions::default() }
}

#[test]
fn newer_item_of_a_page_is_read() {
    let tier = Tier::new(2 << 20, &[], selective(&[8]));
    for version in 1..4 {
        set(&tier, b"key", &pattern(version, 300));
        push_out(&tier, version);
    }
    tier.drive();
    assert_eq!(value(&tier, b"key"), Some(pattern(3, 300)));
    assert_eq!(sums(&tier).objects_read, 1, "it was on flash");
}

#[test]
fn deleted_item_is_not_read_for_another_one_of_its_page() {
    let tier = Tier::new(2 << 20, &[], selective(&[8]));
    // Two keys whose slots on flash are the same: so many bits of their hashes tell them apart in no table of this size.
    let mut seen = std::collections::HashMap::new();
    let same = (0..8_000_000u64).find_map(|n| {
        let hash = tier.store().hash(&key(n));
        seen.insert(hash.0 >> 24, n).map(|other| (key(other), key(n)))
    });
    let (deleted, other) = same.expect("two of eight million have the same 40 bits, a birthday");
    set(&tier, &deleted, &pattern(1, 300));
    push_out(&tier, 1);
    assert!(common::delete(&tier.handle, &deleted));
    set(&tier, &other, &pattern(2, 300));
    push_out(&tier, 2);
    tier.drive();
    assert_eq!(value(&tier, &deleted), None);
    assert_eq!(sums(&tier).mismatches, 1, "the other one's slot may be its own");
    assert_eq!(value(&tier, &other), Some(pattern(2, 300)));
}

#[test]
fn long_items_leave_the_buffers_of_others() {
    let segment_bytes = 4 << 20;
    let flash = FlashOptions { device_bytes: vec![32 * segment_bytes], segment_bytes, ..flash_options(&[]) };
    let tier = Tier::new(24 << 20, &[], StoreOptions { flash: Some(flash), ..StoreOptions::default() });
    let long = |n: u64| pattern(n, 3 << 20);
    let short = |n: u64| {
        set(&tier, &key(n), &pattern(n, 1_000));
        if tier.store().is_short_of_memory() {
            tier.drive();
        }
    };
    (100..20_000).for_each(short);
    for n in 0..24 {
        set(&tier, &key(n), &long(n));
        tier.drive();
    }
    // Long values are evicted, too: they take more memory at once than is kept free.
    let refused = sums(&tier).refused;
    (20_000..60_000).for_each(short);
    let refused = sums(&tier).refused - refused;
    assert!(sums(&tier).objects_written > 30_000 && refused <= LOST_MAX, "{:?}", sums(&tier));
    let found =
        (0..24).filter_map(|n| value(&tier, &key(n)).map(|found| assert!(found == long(n), "item {n}")));
    assert!(found.count() > 8);
}

/// Writes that a device has taken and not ended.
type Held = Vec<(FlashWrite, PageBuffer)>;

/// Takes the writes that are due.
fn hold(tier: &Tier, held: &mut Held) {
    while let Some(mut write) = tier.store().take_flash_write() {
        let buffer = write.take_buffer();
        held.push((write, buffer));
    }
}

/// Ends one of the writes.
fn end(tier: &Tier, (write, buffer): (FlashWrite, PageBuffer), succeeds: bool) {
    let (device, at, len) = (write.device(), write.offset() as usize, write.byte_len());
    if succeeds {
        tier.devices.borrow_mut()[device][at..at + len].copy_from_slice(&buffer[..len]);
    }
    tier.handle.finish_flash_write(write, buffer, succeeds);
}

/// Stores items, more than memory holds; the device does what `drive` says.
fn fill(tier: &Tier, items: u64, mut drive: impl FnMut()) {
    for n in 0..items {
        set(tier, &key(n), &pattern(n, 400));
        if tier.store().is_short_of_memory() || n % 64 == 0 {
            drive();
        }
    }
}

/// Returns how many of the items are found, each with its value.
fn found(tier: &Tier, items: u64) -> u64 {
    let is_found =
        |n: &u64| value(tier, &key(*n)).map(|found| assert!(found == pattern(*n, 400), "item {n}"));
    (0..items).filter(|n| is_found(n).is_some()).count() as u64
}

#[test]
fn failing_writes_leave_a_store_in_memory() {
    let tier = Tier::new(2 << 20, &[32, 32], StoreOptions::default());
    let items = 10_000;
    fill(&tier, items, || tier.write_all(|_, _| false));
    let failed = sums(&tier);
    assert!(failed.write_errors > 0 && failed.refused > 1_000 && failed.objects_used == 0, "{failed:?}");
    assert_eq!(failed.state, FlashState::Failing);
    let in_memory = found(&tier, items);
    assert!(in_memory > 2_000, "{in_memory} in memory");
    // After a while the devices are tried again.
    tier.clock.advance(11);
    fill(&tier, items, || tier.drive());
    let working = sums(&tier);
    assert!(working.objects_used > 5_000 && working.state == FlashState::Working, "{working:?}");
    assert!(found(&tier, items) > items - items / 10);
}

#[test]
fn items_whose_writes_fail_are_not_read_from_flash() {
    for seed in 0..3 {
        let tier = Tier::new(2 << 20, &[16, 16], StoreOptions::default());
        let items = 10_000;
        let mut random = SplitMix64::new(seed);
        fill(&tier, items, || {
            tier.write_all(|_, _| random.below(3) > 0);
            tier.clock.advance(2);
        });
        let of_some = sums(&tier);
        assert!(of_some.write_errors > 0 && of_some.objects_used > 500, "{of_some:?}");
        found(&tier, items);
        assert_eq!(
            (sums(&tier).bad_pages, sums(&tier).mismatches),
            (0, 0),
            "no slot leads to a failed write"
        );
    }
}

#[test]
fn other_device_is_used_beside_a_failing_one() {
    let tier = Tier::new(2 << 20, &[32, 32], StoreOptions::default());
    let items = 20_000;
    fill(&tier, items, || {
        tier.write_all(|device, _| device == 1);
        tier.clock.advance(1);
    });
    let sums_then = sums(&tier);
    assert!(sums_then.write_errors > 5 && sums_then.objects_used > 5_000, "{sums_then:?}");
    assert!(found(&tier, items) > sums_then.objects_used);
    assert_eq!(sums(&tier).bad_pages, 0);
}

#[test]
fn stalled_device_leaves_a_store_in_memory() {
    for devices in [&[16][..], &[16, 16]] {
        let tier = Tier::new(2 << 20, devices, StoreOptions::default());
        let mut held = Held::new();
        set(&tier, b"hot", b"value");
        for n in 0..20_000 {
            set(&tier, &key(n), &pattern(n, 400));
            assert_eq!(value(&tier, b"hot").as_deref(), Some(&b"value"[..]), "in memory, and read often");
            // Of two devices the second one works.
            hold(&tier, &mut held);
            for at in (0..held.len()).rev().filter(|_| devices.len() == 2) {
                if held[at].0.device() == 1 {
                    end(&tier, held.swap_remove(at), true);
                }
            }
            // Some time, as many sets take at least.
            tier.clock.advance_ms(u64::from(n % 16 == 0));
        }
        let stalled = sums(&tier);
        assert!(!tier.store().is_short_of_memory() && stalled.refused > 10_000, "{stalled:?}");
        assert!(stalled.io_queue > 0 && stalled.objects_used <= 1_000, "{stalled:?}");
        let in_memory = found(&tier, 20_000);
        assert!(in_memory > 2_000, "{in_memory} in memory");
        // The writes end after all.
        held.into_iter().for_each(|write| end(&tier, write, true));
        fill(&tier, 10_000, || tier.drive());
        assert!(sums(&tier).objects_used > 5_000, "{:?}", sums(&tier));
        assert!(found(&tier, 10_000) > 9_000);
    }
}

#[test]
fn writers_wait_a_quarter_of_a_second_for_a_device() {
    let tier = Tier::new(2 << 20, &[16], StoreOptions::default());
    let mut held = Held::new();
    let mut n = 0;
    while !tier.store().is_short_of_memory() {
        set(&tier, &key(n), &pattern(n, 400));
        hold(&tier, &mut held);
        n += 1;
    }
    tier.clock.advance_ms(250);
    assert!(tier.store().is_short_of_memory(), "the device may be slow");
    tier.clock.advance_ms(1);
    assert!(!tier.store().is_short_of_memory(), "it is too slow to wait for");
    while let Some(write) = held.pop() {
        end(&tier, write, true);
        hold(&tier, &mut held);
    }
    assert_eq!((sums(&tier).io_queue, sums(&tier).refused), (0, 0));
}
