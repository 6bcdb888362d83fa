//! Values that arrive in parts while memory is full and flash makes room.
#![cfg(not(loom))]

mod common;

use common::flash::Tier;
use fabcache_store::{Change, Expiry, NewValue, OutOfMemory, StoreOptions, Upload, Value, Write};
use fabcache_testbed::bytes::pattern;

const VALUE_BYTES: usize = 300_000;

#[test]
fn refused_parts_are_written_later() {
    let tier = Tier::new(4 << 20, &[200], StoreOptions { evict: false, ..StoreOptions::default() });
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
                assert!(why == OutOfMemory::Full && upload.is_blocked());
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
