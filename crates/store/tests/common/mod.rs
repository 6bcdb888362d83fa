//! Shared helpers: a settable clock, and short forms of the operations.
#![allow(dead_code, reason = "each test uses a part")]

pub mod fabric;
pub mod flash;
pub mod outside;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabcache_store::clock::TimeSource;
use fabcache_store::{
    Change, Detail, Expiry, Get, Handle, ItemInfo, NewValue, OutOfMemory, Payload, Store, StoreOptions,
    Value, Write,
};

/// A clock that changes only when set. It counts milliseconds.
#[derive(Debug, Clone, Default)]
pub struct SetClock(Arc<AtomicU64>);

impl SetClock {
    pub fn advance(&self, seconds: u64) {
        self.advance_ms(seconds * 1000);
    }

    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }

    fn since(&self, seconds: u64) -> (u64, u32) {
        let ms = self.0.load(Ordering::Relaxed);
        (seconds + ms / 1000, (ms % 1000 * 1_000_000) as u32)
    }
}

impl TimeSource for SetClock {
    fn monotonic(&self) -> (u64, u32) {
        self.since(1_000)
    }

    fn wall(&self) -> (u64, u32) {
        self.since(1_700_000_000)
    }
}

/// Creates a store of `memory_bytes` and its clock.
pub fn store(memory_bytes: u64, evict: bool, threads: usize) -> (Arc<Store>, SetClock) {
    store_with(memory_bytes, StoreOptions { evict, threads, ..StoreOptions::default() })
}

/// Like [`store`], with other options.
pub fn store_with(memory_bytes: u64, options: StoreOptions) -> (Arc<Store>, SetClock) {
    let clock = SetClock::default();
    let options = StoreOptions {
        memory_bytes,
        memory_bytes_max: memory_bytes,
        time: Box::new(clock.clone()),
        ..options
    };
    (Arc::new(Store::open(options).expect("memory for a test")), clock)
}

/// Builds a plain write of a value.
pub fn plain(value: NewValue<'_>) -> Write<'_> {
    Write::plain(value)
}

/// Sets a key; returns its CAS value.
pub fn set(handle: &Handle, key: &[u8], value: &[u8]) -> Result<u64, OutOfMemory> {
    set_with(handle, key, value, 0, Expiry::NEVER)
}

/// Sets a key with flags and expiry.
pub fn set_with(
    handle: &Handle,
    key: &[u8],
    value: &[u8],
    flags: u32,
    expiry: Expiry,
) -> Result<u64, OutOfMemory> {
    let write = Write { flags, expiry, ..plain(NewValue::Is(Value::Bytes(value))) };
    handle.mutate(key, |_| (Change::Write(write), ())).map(|(_, written)| written.cas)
}

/// Removes a key; returns whether it existed.
pub fn delete(handle: &Handle, key: &[u8]) -> bool {
    handle
        .mutate(key, |existing| (Change::Remove, existing.info.is_ok()))
        .expect("removing needs no memory")
        .0
}

/// Reads a key.
pub fn get(handle: &Handle, key: &[u8]) -> Option<(ItemInfo, Vec<u8>)> {
    let mut out = b"before".to_vec();
    match handle.get(key, Detail::Basic, true, &mut out, |_, out| out.extend_from_slice(b"head")) {
        Get::Hit(info, Payload::Copied) => {
            assert_eq!(&out[..10], b"beforehead");
            assert_eq!(out.len() as u64 - 10, info.len);
            Some((info, out.split_off(10)))
        }
        Get::Hit(info, Payload::Pinned(pinned)) => {
            let value = pinned.slices().collect::<Vec<_>>().concat();
            assert_eq!((value.len() as u64, pinned.len()), (info.len, info.len));
            Some((info, value))
        }
        Get::OnFlash => panic!("a test with a flash tier reads it"),
        Get::Miss(_) => {
            assert_eq!(out, b"before", "a miss leaves the output unchanged");
            None
        }
    }
}
