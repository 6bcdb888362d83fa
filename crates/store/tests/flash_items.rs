//! Items of every kind from memory to flash and back, with reads that take their time.
#![cfg(not(loom))]

mod common;

use common::flash::{SEGMENT_BYTES, Tier, flash_options};
use fabcache_store::{
    Change, EvictionPolicy, Expiry, Fetched, FlashOptions, FlashSums, Get, ItemInfo, NewValue, OutOfMemory,
    Put, StoreOptions, Value, Write,
};
use fabcache_testbed::bytes::pattern;

const MEMORY_BYTES: u64 = 2 << 20;

fn sums(tier: &Tier) -> FlashSums {
    tier.store().flash_sums().expect("there is a tier")
}

/// A tier to which only items of 200 bytes and more go.
fn tier(segments: u64, options: StoreOptions) -> Tier {
    let flash = FlashOptions { item_bytes_min: 200, ..flash_options(&[segments]) };
    Tier::new(
        MEMORY_BYTES,
        &[],
        StoreOptions { flash: Some(flash), eviction: EvictionPolicy::Lru, ..options },
    )
}

/// Stores short items, which flash does not take, until the named items are there.
fn push_out(tier: &Tier, names: &[&[u8]]) {
    for n in 0..400_000u64 {
        let key = format!("short-{n}-{}", tier.store().sums().total_items).into_bytes();
        let probe = tier.handle.probe_for_write(&key);
        // Those that expire are apart from others.
        let expiry =
            if n % 3 == 0 { in_seconds(tier, [100, 500, 1_000][n as usize / 3 % 3]) } else { Expiry::NEVER };
        tier.handle
            .put(&Put { key: &key, value: &[7; 100], expiry, ..Put::default() }, &probe)
            .expect("others go");
        // Half of them go to the main queue, and push others out of it.
        for _ in 0..n / 9 % 2 * 3 {
            common::get(&tier.handle, &key);
        }
        if n % 64 == 0 {
            tier.drive();
            if names.iter().all(|name| is_on_flash(tier, name)) {
                return;
            }
        }
    }
    eprintln!("some stay in memory: {:?}", sums(tier));
    std::panic::panic_any(StaysInMemory);
}

/// Eviction kept an item in memory for as long as the test wrote.
struct StaysInMemory;

/// Runs a test, again with another hash seed if an item stays in memory.
fn with_items_on_flash(test: impl Fn()) {
    for _ in 0..5 {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(why) if why.is::<StaysInMemory>() => {}
            Err(why) => std::panic::resume_unwind(why),
        }
    }
    panic!("items stay in memory");
}

fn in_seconds(tier: &Tier, seconds: i64) -> Expiry {
    Expiry::from_client(seconds, tier.store().now(), tier.store().clock_origin())
}

fn set(tier: &Tier, key: &[u8], write: Write<'_>) -> u64 {
    tier.mutate(key, |_| (Change::Write(write), ())).expect("it fits").1.cas
}

fn plain(value: &[u8]) -> Write<'_> {
    Write::plain(NewValue::Is(Value::Bytes(value)))
}

fn is_on_flash(tier: &Tier, key: &[u8]) -> bool {
    matches!(
        tier.handle.get(key, fabcache_store::Detail::Basic, false, &mut Vec::new(), |_, _| {}),
        Get::OnFlash
    )
}

/// Reads a key without returning it to memory.
fn peek(tier: &Tier, key: &[u8]) -> Option<(ItemInfo, Vec<u8>)> {
    assert!(is_on_flash(tier, key));
    match tier.fetch(key)? {
        Fetched::Item(item) => Some((item.info(tier.store().now()), item.value().to_vec())),
        Fetched::Others(_) => None,
    }
}

/// Stores the item in memory again.
fn recache(tier: &Tier, key: &[u8]) {
    let fetched = tier.fetch(key).expect("it is on flash");
    tier.handle.use_fetched(fetched);
    tier.handle.store_fetched(key).expect("there is room");
    tier.handle.forget_fetched();
    assert!(!is_on_flash(tier, key));
}

#[test]
fn fields_survive_the_way_to_flash_and_back() {
    with_items_on_flash(check_fields_survive_the_way_to_flash_and_back);
}

fn check_fields_survive_the_way_to_flash_and_back() {
    for cas in [true, false] {
        let tier = tier(16, StoreOptions { cas, ..StoreOptions::default() });
        let expiry = in_seconds(&tier, 1_000);
        let value = pattern(1, 300);
        let forms: [Write<'_>; 5] = [
            plain(&value),
            Write { flags: u32::MAX, expiry, ..plain(&value) },
            Write { stale: true, ..plain(&value) },
            Write { stale: true, token_sent: true, binary_key: true, flags: 5, ..plain(&value) },
            Write { cas: cas.then_some(u64::MAX - 5), binary_key: true, ..plain(&value) },
        ];
        let names: [Vec<u8>; 5] = std::array::from_fn(|i| format!("form-{i}").into_bytes());
        let stored: Vec<u64> = names.iter().zip(forms).map(|(name, form)| set(&tier, name, form)).collect();
        let check = |at: &str| {
            for ((name, form), cas) in names.iter().zip(forms).zip(&stored) {
                let (info, found) = match is_on_flash(&tier, name) {
                    true => peek(&tier, name).expect("it is there"),
                    false => common::get(&tier.handle, name).expect("it is there"),
                };
                assert!(found == value, "{at}");
                assert_eq!((info.flags, info.expiry, info.cas), (form.flags, form.expiry, *cas), "{at}");
                let marks = (info.stale, info.token_sent, info.binary_key);
                assert_eq!(marks, (form.stale, form.token_sent, form.binary_key), "{at}");
            }
        };
        for _ in 0..3 {
            push_out(&tier, &names.each_ref().map(|name| &name[..]));
            check("on flash");
            names.iter().for_each(|name| recache(&tier, name));
            check("back in memory");
        }
        let sums = sums(&tier);
        // Twice all but those with marks return, which are written again.
        assert_eq!(
            (sums.returned, sums.objects_written, sums.recached),
            (2 * 3, 5 + 2 * 2, 3 * 5),
            "{sums:?}"
        );
    }
}

#[test]
fn changed_items_do_not_return_to_their_old_records() {
    with_items_on_flash(check_changed_items_do_not_return_to_their_old_records);
}

fn check_changed_items_do_not_return_to_their_old_records() {
    let tier = tier(16, StoreOptions::default());
    let value = pattern(1, 300);
    let names: [Vec<u8>; 6] = std::array::from_fn(|i| format!("item-{i}").into_bytes());
    let all = names.each_ref().map(|name| &name[..]);
    names.iter().for_each(|name| _ = set(&tier, name, plain(&value)));
    push_out(&tier, &all);
    names.iter().for_each(|name| recache(&tier, name));
    let expiry = in_seconds(&tier, 500);
    let same = Write { same_item: true, ..Write::plain(NewValue::Same) };
    let append = NewValue::Appended(Value::Bytes(b"more"));
    let newer = pattern(2, 300);
    set(&tier, &names[0], plain(&newer));
    set(&tier, &names[1], Write { same_item: true, ..Write::plain(append) });
    set(&tier, &names[2], Write { expiry, ..same });
    set(&tier, &names[3], Write { flags: 9, ..same });
    let marked = tier.mutate(&names[4], |_| (Change::Mark { token_sent: true, fetched: true }, ()));
    marked.expect("marks need no memory");
    let written = sums(&tier).objects_written;
    push_out(&tier, &all);
    assert_eq!((sums(&tier).objects_written - written, sums(&tier).returned), (5, 1));
    let peek = |i: usize| peek(&tier, &names[i]).expect("it is there");
    assert_eq!(peek(0).1, newer);
    assert_eq!(peek(1).1, [&value[..], b"more"].concat());
    assert_eq!((peek(2).0.expiry, peek(2).1), (expiry, value.clone()));
    assert_eq!((peek(3).0.flags, peek(3).1), (9, value.clone()));
    assert!(peek(4).0.token_sent && peek(4).1 == value);
    assert!(!peek(5).0.token_sent && peek(5).1 == value);
}

#[test]
fn changes_on_flash_see_the_item() {
    with_items_on_flash(check_changes_on_flash_see_the_item);
}

fn check_changes_on_flash_see_the_item() {
    let tier = tier(16, StoreOptions::default());
    let value = pattern(1, 300);
    let on_flash = |name: &[u8]| {
        let cas = set(&tier, name, Write { flags: 3, ..plain(&value) });
        push_out(&tier, &[name]);
        cas
    };
    // CAS: another one's value is unlike it.
    let cas = on_flash(b"cas");
    let compare = |with: u64| {
        let done = tier.mutate(b"cas", |existing| match existing.info {
            Ok(info) if info.cas == with => (Change::Write(plain(b"newer")), true),
            Ok(_) => (Change::Keep, false),
            Err(why) => panic!("{why:?}"),
        });
        done.expect("there is room").0
    };
    assert!(!compare(cas + 1) && is_on_flash(&tier, b"cas") && compare(cas) && !is_on_flash(&tier, b"cas"));
    // Marks are set in a copy in memory.
    on_flash(b"mark");
    let mark =
        |_: &mut fabcache_store::ExistingItem<'_>| (Change::Mark { token_sent: true, fetched: false }, ());
    tier.mutate(b"mark", mark).expect("there is room");
    let (info, found) = common::get(&tier.handle, b"mark").expect("it is in memory");
    assert!(info.token_sent && info.flags == 3 && found == value);
    // The value may be read to decide.
    on_flash(b"read");
    let read = tier.mutate(b"read", |existing| {
        let (short, long) = (existing.value(100).is_some(), existing.value(300).map(<[u8]>::to_vec));
        (Change::Keep, (short, long))
    });
    assert_eq!(read.expect("nothing is written").0, (false, Some(value.clone())));
    assert!(is_on_flash(&tier, b"read"));
    on_flash(b"gone");
    let removed = tier.mutate(b"gone", |existing| (Change::Remove, existing.info.is_ok()));
    assert!(removed.expect("removing needs no memory").0);
    assert_eq!(tier.get(b"gone"), None);
    assert_eq!(sums(&tier).mismatches, 0);
}

#[test]
fn expired_and_flushed_items_are_gone_from_flash() {
    with_items_on_flash(check_expired_and_flushed_items_are_gone_from_flash);
}

fn check_expired_and_flushed_items_are_gone_from_flash() {
    let tier = tier(16, StoreOptions::default());
    let value = pattern(1, 300);
    let after = |seconds| in_seconds(&tier, seconds);
    let touch = |name: &[u8]| {
        let write = Write { expiry: Expiry::NEVER, same_item: true, ..Write::plain(NewValue::Same) };
        let done = tier.mutate(name, |existing| match existing.info {
            Ok(_) => (Change::Write(write), true),
            Err(_) => (Change::Keep, false),
        });
        done.expect("there is room").0
    };
    let on_flash = |name: &[u8], expiry| {
        set(&tier, name, Write { expiry, ..plain(&value) });
        push_out(&tier, &[name]);
    };
    on_flash(b"read", after(100));
    on_flash(b"touched", after(100));
    on_flash(b"kept", after(100));
    on_flash(b"never", Expiry::NEVER);
    assert!(touch(b"kept"));
    let fetched = tier.fetch(b"touched").expect("it is there");
    tier.clock.advance(100);
    tier.handle.maintain();
    assert_eq!(tier.get(b"read"), None);
    // It was read in time, and expired before the change.
    tier.handle.use_fetched(fetched);
    assert!(!touch(b"touched"));
    assert!(!touch(b"read") && touch(b"kept") && tier.get(b"never").is_some());
    // A flush to come, which has come.
    on_flash(b"flushed", Expiry::NEVER);
    let fetched = tier.fetch(b"flushed").expect("it is there");
    tier.handle.flush(after(10));
    assert!(tier.fetch(b"flushed").is_some());
    tier.clock.advance(10);
    tier.handle.maintain();
    tier.handle.use_fetched(fetched);
    assert!(!touch(b"flushed") && tier.get(b"flushed").is_none());
    on_flash(b"later", Expiry::NEVER);
    assert!(touch(b"later"));
    // One at once, between the write of an item and its end.
    set(&tier, b"staged", plain(&value));
    let written = sums(&tier).objects_written;
    for n in 0..400_000u64 {
        if sums(&tier).objects_written > written {
            break;
        }
        set(&tier, format!("others-{n}").as_bytes(), plain(&[7; 100]));
    }
    assert_eq!(sums(&tier).objects_written, written + 1);
    tier.handle.flush(Expiry::AT_ONCE);
    tier.drive();
    assert_eq!((tier.get(b"staged"), tier.get(b"later")), (None, None));
    tier.handle.maintain();
    tier.drive();
    on_flash(b"newest", Expiry::NEVER);
    assert_eq!(peek(&tier, b"newest").map(|(_, found)| found), Some(value.clone()));
}

#[test]
fn values_of_any_length_go_to_flash_and_back() {
    let segment_bytes = 1 << 20;
    let flash = FlashOptions { device_bytes: vec![48 * segment_bytes], segment_bytes, ..flash_options(&[]) };
    let tier = Tier::new(8 << 20, &[], StoreOptions { flash: Some(flash), ..StoreOptions::default() });
    let payload = 4088;
    let lens = [
        0,
        1,
        payload - 40,
        payload - 16,
        payload,
        payload + 1,
        2 * payload,
        33 * payload,
        34 * payload,
        35 * payload,
        127 * payload,
        128 * payload,
        129 * payload,
        255 * payload,
        256 * payload - 60,
        256 * payload,
        300 * payload,
    ];
    let name = |len: usize| format!("item-{len}").into_bytes();
    for (n, len) in (0..).zip(lens) {
        set(&tier, &name(len), plain(&pattern(n, len)));
        tier.drive();
    }
    for n in 0..30_000 {
        let key = format!("other-{n}").into_bytes();
        set(&tier, &key, plain(&pattern(n, 700)));
        if tier.store().is_short_of_memory() {
            tier.drive();
        }
    }
    tier.drive();
    let mut on_flash = 0;
    for (n, len) in (0..).zip(lens) {
        on_flash += u64::from(is_on_flash(&tier, &name(len)));
        if let Some((info, found)) = tier.get(&name(len)) {
            assert!(info.len == len as u64 && found == pattern(n, len), "{len} bytes");
            let tail = NewValue::Appended(Value::Bytes(b"tail"));
            set(&tier, &name(len), Write { same_item: true, ..Write::plain(tail) });
            let (_, found) = tier.get(&name(len)).expect("it was just stored");
            assert!(found == [&pattern(n, len)[..], b"tail"].concat(), "{len} bytes and four");
        } else {
            assert!(len > 100 * payload, "{len} bytes");
        }
    }
    assert!(on_flash > 10, "{on_flash} went to flash");
    assert_eq!(sums(&tier).bad_pages, 0);
}

#[test]
fn pending_read_keeps_its_segment_and_revives_nothing() {
    with_items_on_flash(check_pending_read_keeps_its_segment_and_revives_nothing);
}

fn check_pending_read_keeps_its_segment_and_revives_nothing() {
    let tier = tier(4, StoreOptions::default());
    let (old, new) = (pattern(1, 300), pattern(2, 300));
    set(&tier, b"key", plain(&old));
    push_out(&tier, &[b"key"]);
    let read = tier.handle.read_flash(b"key").expect("it is on flash");
    let changed = tier.handle.read_flash(b"key").expect("it is on flash");
    let place = (read.device(), read.offset());
    tier.mutate(b"key", |_| (Change::Remove, ())).expect("removing needs no memory");
    // Items go to all other segments again and again, and the key's next version with them.
    let mut n = 0;
    let mut turn_over = |segments: u64| {
        let wanted = sums(&tier).pages_allocated + segments;
        while sums(&tier).pages_allocated < wanted {
            let key = format!("other-{n}").into_bytes();
            set(&tier, &key, plain(&pattern(n, 2_000)));
            tier.drive();
            n += 1;
        }
    };
    turn_over(6);
    set(&tier, b"key", plain(&new));
    turn_over(1);
    let Some(Fetched::Item(item)) = tier.finish(read, b"key") else { panic!("its segment was written") };
    assert!(*item.value() == old, "the item when the read began");
    tier.handle.promote(item);
    assert_eq!(tier.get(b"key").map(|(_, found)| found), Some(new.clone()));
    // What was read is of no use to a change.
    let fetched = tier.finish(changed, b"key").expect("its segment was not written");
    tier.handle.use_fetched(fetched);
    let seen = tier.handle.mutate(b"key", |existing| (Change::Keep, existing.info.map(|info| info.cas)));
    tier.handle.forget_fetched();
    match seen {
        Ok((seen, _)) => assert_eq!(seen.ok(), tier.get(b"key").map(|(info, _)| info.cas)),
        Err(why) => assert_eq!(why, OutOfMemory::OnFlash),
    }
    // Without readers it is written again.
    turn_over(6);
    let (device, at) = (place.0, place.1 as usize / SEGMENT_BYTES as usize * SEGMENT_BYTES as usize);
    let before = tier.devices.borrow()[device][at..at + SEGMENT_BYTES as usize].to_vec();
    turn_over(6);
    assert!(tier.devices.borrow()[device][at..at + SEGMENT_BYTES as usize] != before[..]);
}

#[test]
fn newest_items_are_found_though_memory_does_not_suffice_to_index_all() {
    let tier = Tier::new(MEMORY_BYTES, &[64, 64], StoreOptions::default());
    let value = |n: u64| pattern(n, 60);
    let items = 400_000;
    for n in 0..items {
        set(&tier, format!("item-{n}").as_bytes(), plain(&value(n)));
        if tier.store().is_short_of_memory() || n % 64 == 0 {
            tier.drive();
        }
    }
    let sums = sums(&tier);
    let newest = items - 80_000..items;
    let found = newest.clone().filter(|n| {
        let found = tier.get(format!("item-{n}").as_bytes());
        found.is_some_and(|(_, found)| found == value(*n))
    });
    let found = found.count();
    let is_wrong = found < 79_000 || tier.store().sums().evictions > 4_000;
    assert!(!is_wrong, "{found} found, {} evicted, {sums:?}", tier.store().sums().evictions);
    assert!(sums.pages_evicted > 20 && sums.objects_used > 80_000, "{sums:?}");
}
