//! Threads set, change and delete while others read, and a device ends its writes late and in any order. Values contain their
//! key and version, so that a reader detects a wrong one, and one older than a write that was answered before the read began.
#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use common::flash::{SEGMENT_BYTES, flash_options};
use common::store_with;
use fabcache_store::{
    Change, Detail, ExistingItem, Expiry, Fetched, FlashRead, FlashReadResult, FlashWrite, Get, Handle,
    NewValue, OutOfMemory, PageBuffer, Payload, Put, Store, StoreOptions, Value, Write,
};
use fabcache_testbed::random::SplitMix64;

const KEYS: usize = 6_000;
const WRITERS: usize = 3;
const READERS: usize = 3;
const DEVICES: usize = 2;
const DEVICE_SEGMENTS: u64 = 8;
/// How long a run may go on until it has read enough on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The versions of one key whose writes were begun and answered. Each key has one writer.
#[derive(Default)]
struct Versions {
    begun: AtomicU64,
    answered: AtomicU64,
}

struct Torture {
    store: Arc<Store>,
    /// Without eviction a write may be refused, and none is lost.
    evicts: bool,
    versions: Vec<Versions>,
    devices: Vec<RwLock<Vec<u8>>>,
    stop: AtomicBool,
    hits: AtomicU64,
    hits_on_flash: AtomicU64,
}

fn key(i: usize) -> Vec<u8> {
    format!("key-{i:06}-{}", "p".repeat(i % 40)).into_bytes()
}

/// A value that repeats its key and version throughout.
fn value(i: usize, version: u64, len: usize) -> Vec<u8> {
    let stamp = [(i as u64).to_le_bytes(), version.to_le_bytes()].concat();
    stamp.iter().copied().cycle().take(len.next_multiple_of(16).max(16)).collect()
}

/// Returns the version of a value to which others were appended.
fn check(i: usize, bytes: &[u8]) -> u64 {
    let (mut version, mut rest) = (0, bytes);
    assert!(!rest.is_empty() && rest.len().is_multiple_of(16), "key {i}: {} bytes", rest.len());
    while !rest.is_empty() {
        let next = u64::from_le_bytes(rest[8..16].try_into().expect("eight bytes"));
        assert!(next >= version, "key {i}: {next} behind {version}");
        version = next;
        let len = rest.chunks(16).take_while(|part| part[8..16] == rest[8..16]).count() * 16;
        assert!(rest[..len] == value(i, version, len), "key {i}: a torn or foreign value");
        rest = &rest[len..];
    }
    version
}

impl Torture {
    /// Performs a read; some reads take a while.
    fn read(&self, read: &mut FlashRead, random: &mut SplitMix64) -> (PageBuffer, io::Result<usize>) {
        let place = (read.device(), read.offset() as usize);
        let (mut buffer, range) = read.take_buffer();
        let result = self.read_at(place, &mut buffer[range], random);
        (buffer, result)
    }

    /// Reads from a device, now and then late.
    fn read_at(
        &self,
        (device, offset): (usize, usize),
        bytes: &mut [u8],
        random: &mut SplitMix64,
    ) -> io::Result<usize> {
        if random.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(2_000) as u64));
        }
        let from = self.devices[device].read().expect("no thread panics while it writes");
        bytes.copy_from_slice(&from[offset..offset + bytes.len()]);
        Ok(bytes.len())
    }

    fn fetch(&self, handle: &Handle, key: &[u8], random: &mut SplitMix64) -> Option<Fetched> {
        let mut read = handle.read_flash(key)?;
        loop {
            let (buffer, result) = self.read(&mut read, random);
            match handle.finish_flash_read(read, buffer, result, key, true) {
                FlashReadResult::Item(item) => return Some(Fetched::Item(item)),
                FlashReadResult::Others(others) => return Some(Fetched::Others(others)),
                FlashReadResult::Miss(_) => return None,
                FlashReadResult::More(more) => read = more,
            }
        }
    }

    fn mutate<'a, R>(
        &self,
        (handle, random): (&Handle, &mut SplitMix64),
        key: &[u8],
        mut decide: impl FnMut(&mut ExistingItem<'_>) -> (Change<'a>, R),
    ) -> Option<R> {
        loop {
            let done = handle.mutate(key, &mut decide);
            handle.forget_fetched();
            match done {
                Err(OutOfMemory::OnFlash) => {
                    if let Some(fetched) = self.fetch(handle, key, random) {
                        handle.use_fetched(fetched);
                    }
                }
                Err(_) if !self.evicts => return None,
                done => return Some(done.expect("something may be evicted").0),
            }
        }
    }

    fn write(&self, writer: usize, len_max: usize) {
        let handle = Handle::new(&self.store);
        let mut random = SplitMix64::new(writer as u64 + 1);
        let mut is_stored = vec![false; KEYS];
        while !self.stop.load(Ordering::Relaxed) {
            let i = random.below(KEYS / WRITERS) * WRITERS + writer;
            let known = &self.versions[i];
            let version = known.begun.load(Ordering::Relaxed) + 1;
            let len = if random.below(60) == 0 { random.below(len_max) } else { random.below(600) };
            let is_same = matches!(random.below(8), 6);
            if !is_same {
                known.begun.store(version, Ordering::SeqCst);
            }
            let done = if is_same {
                self.touch(&handle, &mut random, i);
                None
            } else {
                self.change(&handle, &mut random, i, &value(i, version, len), &mut is_stored[i])
            };
            if is_same || done.is_none() {
                // Nothing was written: the item has an earlier version, and may have one later.
                known.begun.store(version - 1, Ordering::SeqCst);
            } else {
                known.answered.store(version, Ordering::SeqCst);
            }
            while self.store.is_short_of_memory() && !self.stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
        for i in (0..KEYS).filter(|i| !self.evicts && is_stored[*i]) {
            let is_there = self
                .mutate((&handle, &mut random), &key(i), |existing| (Change::Keep, existing.info.is_ok()));
            assert_eq!(is_there, Some(true), "key {i} is lost");
        }
    }

    /// Writes a new version of a key, or removes it; `None` if nothing was done.
    fn change(
        &self,
        handle: &Handle,
        random: &mut SplitMix64,
        i: usize,
        new: &[u8],
        is_stored: &mut bool,
    ) -> Option<()> {
        let name = key(i);
        match random.below(14) {
            0..=8 if self.evicts => {
                let expiry = [0, 0, 0, 20][random.below(4)];
                let expiry = Expiry::from_client(expiry, self.store.now(), self.store.clock_origin());
                let probe = handle.probe_for_write(&name);
                let put = Put { key: &name, value: new, flags: 7, expiry };
                handle.put(&put, &probe).expect("something may be evicted");
            }
            0..=8 => {
                let write = Write { flags: 7, ..Write::plain(NewValue::Is(Value::Bytes(new))) };
                self.mutate((handle, random), &name, |_| (Change::Write(write), ()))?;
                *is_stored = true;
            }
            9..=11 => {
                let appended = NewValue::Appended(Value::Bytes(new));
                let done = self.mutate((handle, random), &name, |existing| match existing.info {
                    Ok(info) if info.len < 100_000 => {
                        (Change::Write(Write { flags: 7, ..Write::plain(appended) }), Some(()))
                    }
                    Ok(_) => (Change::Keep, None),
                    Err(_) => {
                        assert!(self.evicts || !*is_stored, "key {i} is lost");
                        (Change::Keep, None)
                    }
                });
                return done.flatten();
            }
            _ => {
                self.mutate((handle, random), &name, |_| (Change::Remove, ()))?;
                *is_stored = false;
            }
        }
        Some(())
    }

    /// As gat does.
    fn touch(&self, handle: &Handle, random: &mut SplitMix64, i: usize) {
        let write = Write { flags: 7, same_item: true, ..Write::plain(NewValue::Same) };
        self.mutate((handle, random), &key(i), |existing| match existing.info {
            Ok(info) => (Change::Write(Write { cas: Some(info.cas), ..write }), ()),
            Err(_) => (Change::Keep, ()),
        });
    }

    fn read_keys(&self, reader: usize) {
        let handle = Handle::new(&self.store);
        let mut random = SplitMix64::new(reader as u64 + 100);
        let mut pending: VecDeque<(usize, u64, Box<FlashRead>)> = VecDeque::new();
        while !self.stop.load(Ordering::Relaxed) {
            // Some keys are hot, so that readers and writers meet.
            let i = if random.below(3) == 0 { random.below(50) } else { random.below(KEYS) };
            let answered = self.versions[i].answered.load(Ordering::SeqCst);
            let mut out = Vec::new();
            match handle.get(&key(i), Detail::Basic, true, &mut out, |_, _| {}) {
                Get::Hit(_, Payload::Copied) => self.check(i, answered, &out),
                Get::Hit(_, Payload::Pinned(pinned)) => {
                    self.check(i, answered, &pinned.slices().collect::<Vec<_>>().concat());
                }
                Get::Miss(_) => {}
                Get::OnFlash => {
                    if let Some(read) = handle.read_flash(&key(i)) {
                        pending.push_back((i, answered, read));
                    }
                }
            }
            if pending.len() > random.below(16) {
                let at = random.below(pending.len());
                let (i, answered, read) = pending.swap_remove_back(at).expect("it is one of them");
                self.end_read(&handle, (i, answered), read, &mut random);
            }
        }
    }

    fn end_read(
        &self,
        handle: &Handle,
        (i, answered): (usize, u64),
        mut read: Box<FlashRead>,
        random: &mut SplitMix64,
    ) {
        loop {
            let (buffer, result) = self.read(&mut read, random);
            match handle.finish_flash_read(read, buffer, result, &key(i), true) {
                FlashReadResult::Item(item) => {
                    self.check(i, answered, &item.value());
                    self.hits_on_flash.fetch_add(1, Ordering::Relaxed);
                    handle.promote(item);
                    return;
                }
                FlashReadResult::More(more) => read = more,
                FlashReadResult::Others(_) | FlashReadResult::Miss(_) => return,
            }
        }
    }

    fn check(&self, i: usize, answered: u64, bytes: &[u8]) {
        let version = check(i, bytes);
        assert!(version >= answered, "key {i}: version {version} after {answered} was answered");
        assert!(version <= self.versions[i].begun.load(Ordering::SeqCst), "key {i}: version {version}");
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Does the reads that the store itself needs, in any order.
    fn read_for_store(&self) {
        let handle = Handle::new(&self.store);
        let mut random = SplitMix64::new(88);
        let mut pending = Vec::new();
        while !self.stop.load(Ordering::Relaxed) || !pending.is_empty() {
            pending.extend(handle.take_maintenance_read());
            if pending.is_empty() {
                std::thread::yield_now();
            } else if random.below(4) == 0 || self.stop.load(Ordering::Relaxed) {
                let mut read = pending.swap_remove(random.below(pending.len()));
                let place = (read.device(), read.offset() as usize);
                let (mut buffer, range) = read.take_buffer();
                let result = self.read_at(place, &mut buffer[range], &mut random);
                pending.extend(handle.finish_maintenance_read(read, buffer, result));
            }
        }
    }

    /// The devices: writes end in any order, after some time, and a few fail.
    fn drive(&self, fails: bool) {
        let handle = Handle::new(&self.store);
        let mut random = SplitMix64::new(77);
        let mut held: Vec<(FlashWrite, PageBuffer)> = Vec::new();
        while !self.stop.load(Ordering::Relaxed) || !held.is_empty() {
            while let Some(mut write) = self.store.take_flash_write() {
                let buffer = write.take_buffer();
                held.push((write, buffer));
            }
            std::thread::sleep(Duration::from_micros(random.below(500) as u64));
            if !held.is_empty() {
                let (write, buffer) = held.swap_remove(random.below(held.len()));
                let (device, at, len) = (write.device(), write.offset() as usize, write.byte_len());
                let is_written = !fails || random.below(50) > 0;
                let part = if is_written { len } else { len / 2 };
                let mut bytes = self.devices[device].write().expect("no thread panics while it writes");
                bytes[at..at + part].copy_from_slice(&buffer[..part]);
                drop(bytes);
                handle.finish_flash_write(write, buffer, is_written);
            }
            handle.maintain_flash(std::thread::yield_now);
        }
    }
}

fn torture(len_max: usize, fails: bool, evict: bool) {
    let flash = flash_options(&[DEVICE_SEGMENTS; DEVICES]);
    let threads = WRITERS + READERS + 3;
    let options = StoreOptions { threads, flash: Some(flash), evict, ..StoreOptions::default() };
    let (store, clock) = store_with(2 << 20, options);
    let shared = Torture {
        store,
        evicts: evict,
        versions: (0..KEYS).map(|_| Versions::default()).collect(),
        devices: (0..DEVICES)
            .map(|_| RwLock::new(vec![0; (DEVICE_SEGMENTS * SEGMENT_BYTES) as usize]))
            .collect(),
        stop: AtomicBool::new(false),
        hits: AtomicU64::new(0),
        hits_on_flash: AtomicU64::new(0),
    };
    let shared = &shared;
    let seconds = std::env::var("TORTURE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    std::thread::scope(|scope| {
        let mut threads =
            vec![scope.spawn(move || shared.drive(fails)), scope.spawn(move || shared.read_for_store())];
        threads.extend((0..WRITERS).map(|writer| scope.spawn(move || shared.write(writer, len_max))));
        threads.extend((0..READERS).map(|reader| scope.spawn(move || shared.read_keys(reader))));
        let handle = Handle::new(&shared.store);
        let end = Instant::now() + Duration::from_secs(seconds);
        let is_enough = || shared.hits_on_flash.load(Ordering::Relaxed) > 1_000;
        while (Instant::now() < end || !is_enough() && Instant::now() < end + TIME_LIMIT)
            && !threads.iter().any(|thread| thread.is_finished())
        {
            std::thread::sleep(Duration::from_millis(10));
            clock.advance_ms(if fails { 1_000 } else { 20 });
            handle.maintain();
        }
        shared.stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no thread failed"));
    });
    let sums = shared.store.flash_sums().expect("there is a tier");
    println!("{:?} hits, {:?} on flash, {sums:?}", shared.hits, shared.hits_on_flash);
    assert!(shared.hits_on_flash.load(Ordering::Relaxed) > 1_000, "{sums:?}");
    assert!(sums.bad_pages == 0 && sums.recached > 0, "{sums:?}");
    if evict {
        // Failed writes leave much of flash free.
        assert!(fails || sums.pages_evicted > 0, "{sums:?}");
    } else {
        assert!(sums.objects_evicted == 0 && shared.store.sums().evictions == 0, "{sums:?}");
        assert!(sums.moved > 0, "{sums:?}");
    }
}

#[test]
fn short_values_are_right_while_they_come_and_go() {
    torture(2_000, false, true);
}

#[test]
fn chunked_values_are_right_while_they_come_and_go() {
    torture(100_000, false, true);
}

#[test]
fn values_are_right_though_writes_fail() {
    torture(20_000, true, true);
}

#[test]
fn nothing_is_lost_without_eviction() {
    torture(2_000, false, false);
    torture(50_000, false, false);
}

#[test]
fn nothing_is_lost_without_eviction_though_writes_fail() {
    torture(20_000, true, false);
}
