//! A store whose flash tier is on files, with the server's reader and writer.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabcache_server::flash::{
    DeviceSettings, Devices, FlashReader, HEADER_AREA_BYTES, StoreWrites, ThreadControl, run_writer,
};
use fabcache_store::{
    Detail, Expiry, FlashOptions, FlashRead, FlashReadResult, Get, Handle, ItemInfo, Observer, Payload, Put,
    Store, StoreOptions,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use fabcache_testbed::io_uring::is_there_for_files;
use rustix::event::{PollFd, PollFlags, Timespec};

const SEGMENT: u64 = 1 << 20;
const ITEMS: u64 = 12_000;
const LONG: Duration = Duration::from_secs(60);
/// A new key may replace another one's item on flash, unread: once in about a hundred thousand.
const LOST_MAX: usize = 3;

#[derive(Debug)]
struct Notify(Arc<ThreadControl>);

impl Observer for Notify {
    fn is_listening(&self) -> bool {
        false
    }

    fn evicted(&self, _: &[u8], _: &ItemInfo) {}

    fn flash_has_writes(&self) {
        self.0.notify();
    }
}

/// A store with its writer.
struct Tier {
    folder: Folder,
    devices: Arc<Devices>,
    handle: Handle,
    control: Arc<ThreadControl>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Tier {
    /// A store in 4 MiB of memory and two devices of 12 MiB; none where io_uring is refused, as in most containers.
    fn new() -> Option<Tier> {
        if !is_there_for_files() {
            return None;
        }
        let folder = Folder::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "flash-store").expect("a folder");
        let device =
            |name| DeviceSettings { path: folder.path().join(name), bytes: HEADER_AREA_BYTES + 12 * SEGMENT };
        let devices = Arc::new(Devices::open(&["a", "b"].map(device), SEGMENT).expect("devices"));
        let flash = FlashOptions {
            device_bytes: devices.device_bytes(),
            segment_bytes: SEGMENT,
            item_bytes_min: 0,
            write_bytes_per_second: None,
            set_id: devices.set_id(),
            previous_set_id: devices.previous_set_id(),
        };
        let store = Store::open(StoreOptions {
            memory_bytes: 4 << 20,
            memory_bytes_max: 4 << 20,
            flash: Some(flash),
            threads: 2,
            ..StoreOptions::default()
        });
        let store = Arc::new(store.expect("memory"));
        let control = Arc::new(ThreadControl::new().expect("a descriptor"));
        store.observe(Box::new(Notify(Arc::clone(&control))));
        let queue = StoreWrites { handle: Handle::new(&store), memory_is_free: || {} };
        let writer = {
            let (devices, control) = (Arc::clone(&devices), Arc::clone(&control));
            thread::spawn(move || run_writer(&devices, &queue, &control))
        };
        let handle = Handle::new(&store);
        Some(Tier { folder, devices, handle, control, writer: Some(writer) })
    }

    fn put(&self, n: u64) {
        let (key, value) = (key(n), value(n));
        let put = Put { key: &key, value: &value, flags: n as u32, expiry: Expiry::NEVER };
        let began = Instant::now();
        while self.handle.store().is_short_of_memory() {
            assert!(began.elapsed() < LONG, "writes make memory free");
            thread::sleep(Duration::from_micros(100));
        }
        let probe = self.handle.probe_for_write(&key);
        self.handle.put(&put, &probe).expect("it fits");
    }

    /// Reads all items, many at a time; returns how many are missing.
    fn read_all(&self) -> usize {
        let mut reader: FlashReader<Box<FlashRead>, u64> = FlashReader::new(&self.devices).expect("a ring");
        let (mut found, mut next, mut again) = (HashMap::new(), 0, Vec::new());
        while found.len() < ITEMS as usize {
            // A worker's turn.
            for _ in 0..100 {
                let Some(n) = again.pop().or_else(|| (next < ITEMS).then_some(next)) else { break };
                next = next.max(n + 1);
                let mut out = Vec::new();
                match self.handle.get(&key(n), Detail::Basic, true, &mut out, |_, _| {}) {
                    Get::Hit(_, Payload::Copied) => _ = found.insert(n, Some(out)),
                    Get::Hit(_, Payload::Pinned(pinned)) => {
                        found.insert(n, Some(pinned.slices().collect::<Vec<_>>().concat()));
                    }
                    Get::Miss(_) => _ = found.insert(n, None),
                    Get::OnFlash => match self.handle.read_flash(&key(n)) {
                        Some(read) => reader.start(read, n),
                        // It moved meanwhile.
                        None => again.push(n),
                    },
                }
            }
            reader.submit().expect("the ring works");
            if !reader.is_idle() && (next == ITEMS && again.is_empty()) {
                sleep(reader.descriptor());
            }
            while let Some((read, n, buffer, result)) = reader.take() {
                match self.handle.finish_flash_read(read, buffer, result, &key(n), true) {
                    FlashReadResult::Item(item) => {
                        assert_eq!(item.info(0).flags, n as u32);
                        found.insert(n, Some(item.value().to_vec()));
                        self.handle.promote(item);
                    }
                    FlashReadResult::More(more) => reader.start(more, n),
                    FlashReadResult::Others(_) | FlashReadResult::Miss(_) => _ = found.insert(n, None),
                }
            }
        }
        let is_right =
            |(n, found): (&u64, &Option<Vec<u8>>)| found.as_ref().is_none_or(|found| *found == value(*n));
        assert!(found.iter().all(is_right), "no wrong value");
        found.values().filter(|found| found.is_none()).count()
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(writer) = self.writer.take() {
            let ended = writer.join();
            if !thread::panicking() {
                ended.expect("no panic").expect("the ring works");
            }
        }
    }
}

fn sleep(descriptor: impl AsFd) {
    let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
    let timeout = Timespec::try_from(LONG).expect("short");
    assert_ne!(rustix::event::poll(&mut watched, Some(&timeout)), Ok(0), "a read is late");
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    // Some of several pages, and some in chunks.
    pattern(n, if n.is_multiple_of(1000) { 100_000 } else { 100 + (n % 7 * 150) as usize })
}

#[test]
fn more_items_than_memory_holds_are_read_from_devices() {
    let Some(tier) = Tier::new() else { return };
    (0..ITEMS).for_each(|n| tier.put(n));
    for _ in 0..3 {
        let lost = tier.read_all();
        assert!(lost <= LOST_MAX, "{lost} items are lost");
    }
    let sums = tier.handle.store().flash_sums().expect("there is a tier");
    assert!(sums.objects_written > 5_000 && sums.objects_read > 5_000, "{sums:?}");
    assert_eq!((sums.bad_pages, sums.read_errors, sums.write_errors), (0, 0, 0));
}

#[test]
fn lost_devices_lead_to_misses() {
    let Some(tier) = Tier::new() else { return };
    (0..ITEMS).for_each(|n| tier.put(n));
    // Writes under way may make them longer again, with zeros before.
    for name in ["a", "b"] {
        let file =
            std::fs::File::options().write(true).open(tier.folder.path().join(name)).expect("a device");
        file.set_len(if name == "a" { HEADER_AREA_BYTES } else { 0 }).expect("shortened");
    }
    let lost = tier.read_all();
    let sums = tier.handle.store().flash_sums().expect("there is a tier");
    assert!(lost > 1_000 && sums.read_errors + sums.bad_pages > 1_000, "{lost} items are lost: {sums:?}");
    // It serves on.
    tier.put(1);
    let found = tier.handle.get(&key(1), Detail::Basic, true, &mut Vec::new(), |_, _| {});
    assert!(matches!(found, Get::Hit(..)));
}
