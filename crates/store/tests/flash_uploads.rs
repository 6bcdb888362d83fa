//! Values that arrive in parts while memory is full and flash makes room.
#![cfg(not(loom))]

mod common;

use common::flash::Tier;
use fabcache_store::{Change, Expiry, NewValue, OutOfMemory, StoreOptions, Upload, Value, Write};
use fabcache_testbed::bytes::pattern;

const VALUE_BYTES: usize = 300_000;

#[test]
fn without_eviction_refused_parts_are_written_later() {
    let tier = Tier::new(4 << 20, &[200], StoreOptions { evict: false, ..StoreOptions::default() });
    check_refused_parts(&tier, OutOfMemory::Full);
}

#[test]
fn parts_that_wait_for_flash_are_written_later() {
    let tier = Tier::new(4 << 20, &[200], StoreOptions::default());
    tier.handle.wait_for_flash(true);
    check_refused_parts(&tier, OutOfMemory::FlashBusy);
}

fn check_refused_parts(tier: &Tier, expected: OutOfMemory) {
    let key = |n: usize| format!("key-{n}").into_bytes();
    let mut refused = 0;
    for n in 0..100 {
        let value = pattern(n as u64, VALUE_BYTES + n);
        let mut upload = Upload::begin(tier.handle.store(), &key(n), Expiry::NEVER, value.len() as u64);
        for (i, part) in value.chunks(16 << 10).enumerate() {
            let space = upload.space();
            let mut written = if i % 2 == 0 && space.len() >= part.len() {
                space[..part.len()].copy_from_slice(part);
                upload.fill(&tier.handle, part.len())
            } else {
                upload.write(&tier.handle, part)
            };
            while let Err(why) = written {
                assert!(why == expected && upload.is_blocked());
                refused += 1;
                tier.drive();
                written = upload.resume(&tier.handle);
            }
        }
        while upload.complete(&tier.handle).is_err() {
            refused += 1;
            tier.drive();
        }
        let uploaded = upload.complete(&tier.handle).expect("all is written");
        let change = || Change::Write(Write::plain(NewValue::Is(Value::CompletedUpload(uploaded))));
        while tier.mutate(&key(n), |_| (change(), ())).is_err() {
            tier.drive();
        }
    }
    assert!(refused > 10, "{refused} parts were refused");
    for n in 0..100 {
        let found = tier.get(&key(n)).map(|(_, value)| value);
        assert!(found == Some(pattern(n as u64, VALUE_BYTES + n)), "value {n}");
    }
}

/// Reclaim moves the table of a long value's chunks while the value is being written.
#[test]
fn long_values_that_move_meanwhile_are_written_once() {
    let tier = Tier::new(4 << 20, &[200], StoreOptions::default());
    let set = |key: &str, value: &[u8]| {
        let write = Write::plain(NewValue::Is(Value::Bytes(value)));
        tier.handle
            .overwrite(key.as_bytes(), |_| (Change::Write(write), ()))
            .expect("something can be evicted");
    };
    let mut held = Vec::new();
    for n in 0..1_000u64 {
        set(&format!("long-{n}"), &pattern(n, 30_000));
        // Short values that are replaced leave dead bytes around the tables.
        (0..40).for_each(|i| set(&format!("short-{i}"), &pattern(n + i, 200)));
        while let Some(write) = tier.store().take_flash_write() {
            held.push(write);
        }
        while held.len() > 3 || !held.is_empty() && tier.store().is_short_of_memory() {
            let mut write = held.remove(0);
            let (buffer, at, len) = (write.take_buffer(), write.offset() as usize, write.byte_len());
            tier.devices.borrow_mut()[0][at..at + len].copy_from_slice(&buffer[..len]);
            tier.handle.finish_flash_write(write, buffer, true);
            held.extend(tier.store().take_flash_write());
        }
    }
    let sums = tier.store().flash_sums().expect("there is a tier");
    assert!(tier.store().sums().items_moved > 5_000 && sums.objects_used > 800);
    assert!(sums.objects_written <= 1_000, "{sums:?}");
    tier.write_all(|_, _| true);
    for n in 0..1_000 {
        let found = tier.get(format!("long-{n}").as_bytes()).map(|(_, value)| value);
        assert!(found == Some(pattern(n, 30_000)), "value {n}");
    }
}
