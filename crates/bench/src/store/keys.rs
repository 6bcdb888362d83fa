//! Keys and the store for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use fabcache_store::clock::TimeSource;
use fabcache_store::{
    Change, Detail, Expiry, Get, Handle, NewValue, Payload, Store, StoreOptions, Value, Write,
};

/// Bytes of a key.
pub const KEY_BYTES: usize = 20;
/// Upper bound of an item's overhead, index included.
const OVERHEAD_BYTES: u64 = 60;
/// Keys made in advance, so that making them is not timed; few enough to stay in the cache.
pub const BATCH: usize = 512;

/// Returns the key with this number.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key-0000000000000000";
    for (i, byte) in key[4..].iter_mut().rev().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (4 * i) & 15) as usize];
    }
    key
}

/// A clock that advances only when told.
#[derive(Clone, Debug, Default)]
pub struct SetClock(Arc<AtomicU64>);

impl SetClock {
    /// Advances the clock.
    pub fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl TimeSource for SetClock {
    fn monotonic(&self) -> (u64, u32) {
        (self.0.load(Ordering::Relaxed), 0)
    }

    fn wall(&self) -> (u64, u32) {
        (1_700_000_000 + self.0.load(Ordering::Relaxed), 0)
    }
}

/// Returns the memory for so many items with values of `value_bytes`, with room to spare.
pub fn memory_for(items: u64, value_bytes: usize) -> u64 {
    let bytes = items * (KEY_BYTES as u64 + value_bytes as u64 + OVERHEAD_BYTES);
    (bytes + bytes / 4).max(8 << 20)
}

/// Creates a store for `threads` handles, and its clock.
///
/// # Errors
/// Memory is exhausted.
pub fn store(memory_bytes: u64, threads: usize) -> Result<(Arc<Store>, SetClock)> {
    let clock = SetClock::default();
    Ok((store_with(memory_bytes, threads, Box::new(clock.clone()))?, clock))
}

/// Creates a store for `threads` handles with this source of time.
///
/// # Errors
/// Memory is exhausted.
pub fn store_with(memory_bytes: u64, threads: usize, time: Box<dyn TimeSource>) -> Result<Arc<Store>> {
    let options = StoreOptions {
        memory_bytes,
        memory_bytes_max: memory_bytes,
        threads,
        time,
        ..StoreOptions::default()
    };
    Ok(Arc::new(Store::open(options).context("no memory for a store")?))
}

/// Returns a write without options.
fn write(value: NewValue<'_>, expiry: Expiry) -> Write<'_> {
    Write { expiry, ..Write::plain(value) }
}

/// Sets a key.
#[inline]
pub fn set(handle: &Handle, key: &[u8], value: &[u8], expiry: Expiry) {
    let write = write(NewValue::Is(Value::Bytes(value)), expiry);
    handle.mutate(key, |_| (Change::Write(write), ())).expect("what is there may be evicted");
}

/// Reads a key into `out`; returns whether it was present.
#[inline]
pub fn get(handle: &Handle, key: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    match handle.get(key, Detail::Basic, true, out, |_, _| {}) {
        Get::Hit(_, Payload::Copied) => true,
        Get::Hit(_, Payload::Pinned(value)) => !value.is_empty(),
        // This store has no flash.
        Get::Miss(_) | Get::OnFlash => false,
    }
}

/// Removes a key; returns whether it was present.
#[inline]
pub fn delete(handle: &Handle, key: &[u8]) -> bool {
    let done = handle.mutate(key, |existing| (Change::Remove, existing.info.is_ok()));
    done.expect("removing needs no memory").0
}

/// Adds one to a number.
#[inline]
pub fn increment(handle: &Handle, key: &[u8]) {
    let done = handle.mutate(key, |existing| {
        let digits = existing.value(20).and_then(|value| std::str::from_utf8(value).ok());
        let number = digits.and_then(|digits| digits.parse::<u64>().ok()).expect("a number");
        let value = NewValue::Number { number: number + 1, width: 1 };
        (Change::Write(Write { same_item: true, ..write(value, Expiry::NEVER) }), ())
    });
    done.expect("what is there may be evicted");
}

/// Stores the keys with numbers below `items`.
pub fn fill(handle: &Handle, items: u64, value_bytes: usize) {
    let value = vec![b'v'; value_bytes];
    for number in 0..items {
        set(handle, &key(number), &value, Expiry::NEVER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_match_their_names() {
        let (store, clock) = store(8 << 20, 1).expect("memory for a test");
        let handle = Handle::new(&store);
        fill(&handle, 1_000, 100);
        assert_eq!(store.usage().items, 1_000);
        let mut out = Vec::new();
        assert!(get(&handle, &key(999), &mut out) && out == [b'v'; 100]);
        assert!(!get(&handle, &key(1_000), &mut out));
        set(&handle, &key(7), b"41", Expiry::from_client(9, store.now(), store.clock_origin()));
        increment(&handle, &key(7));
        assert!(get(&handle, &key(7), &mut out) && out == b"42");
        assert!(delete(&handle, &key(8)) && !delete(&handle, &key(8)));
        set(&handle, &key(9), b"soon gone", Expiry::from_client(9, store.now(), store.clock_origin()));
        clock.advance(20);
        handle.maintain();
        assert!(!get(&handle, &key(9), &mut out));
    }

    #[test]
    fn keys_differ() {
        assert_eq!(&key(0x1f), b"key-000000000000001f");
        assert_eq!(key(u64::MAX)[4..], *b"ffffffffffffffff");
    }
}
