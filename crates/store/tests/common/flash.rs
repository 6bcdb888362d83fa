//! A flash tier whose device is memory, and the operations of a server with it.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use fabcache_store::{
    Change, Detail, ExistingItem, Fetched, FlashOptions, FlashRead, FlashReadResult, Get, Handle, ItemInfo,
    MaintenanceRead, OutOfMemory, Payload, Store, StoreOptions, StoredItem,
};

use super::{SetClock, store_with};

/// A store with a flash tier on devices in memory.
pub struct Tier {
    pub handle: Handle,
    pub clock: SetClock,
    /// The bytes of each device.
    pub devices: RefCell<Vec<Vec<u8>>>,
    /// The fault that each read meets.
    pub fault: RefCell<Fault>,
}

/// Changes the bytes that were read, of some place of the devices, or the result.
pub type Fault = Box<dyn FnMut(&[Vec<u8>], (usize, usize), &mut [u8]) -> io::Result<usize>>;

/// Reads that succeed.
pub fn no_fault() -> Fault {
    Box::new(|_, _, bytes| Ok(bytes.len()))
}

pub const SEGMENT_BYTES: u64 = 256 << 10;

/// Options of a tier with so many segments on each device.
pub fn flash_options(segments: &[u64]) -> FlashOptions {
    FlashOptions {
        device_bytes: segments.iter().map(|segments| segments * SEGMENT_BYTES).collect(),
        segment_bytes: SEGMENT_BYTES,
        item_bytes_min: 0,
        write_bytes_per_second: None,
        set_id: 1,
        previous_set_id: None,
    }
}

impl Tier {
    pub fn new(memory_bytes: u64, segments: &[u64], options: StoreOptions) -> Tier {
        let flash = options.flash.unwrap_or_else(|| flash_options(segments));
        let devices = flash.device_bytes.iter().map(|bytes| vec![0; *bytes as usize]).collect();
        let (store, clock) = store_with(memory_bytes, StoreOptions { flash: Some(flash), ..options });
        Tier {
            handle: Handle::new(&store),
            clock,
            devices: RefCell::new(devices),
            fault: RefCell::new(no_fault()),
        }
    }

    /// Opens a store whose devices hold these bytes, and that has this clock.
    pub fn open(options: StoreOptions, clock: &SetClock, devices: Vec<Vec<u8>>) -> Tier {
        let options = StoreOptions { time: Box::new(clock.clone()), ..options };
        let store = Arc::new(Store::open(options).expect("memory, or a file of ours"));
        Tier {
            handle: Handle::new(&store),
            clock: clock.clone(),
            devices: RefCell::new(devices),
            fault: RefCell::new(no_fault()),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        self.handle.store()
    }

    /// Performs all writes and reads that are due, and retires segments.
    pub fn drive(&self) {
        self.write_all(|_, _| true);
        self.read_for_store();
        self.handle.maintain_flash(|| {});
    }

    /// Performs the reads that the store itself needs.
    pub fn read_for_store(&self) {
        let mut next = self.handle.take_maintenance_read();
        while let Some(read) = next {
            let more = self.finish_for_store(read);
            next = more.or_else(|| self.handle.take_maintenance_read());
        }
    }

    /// Performs one of them; returns what is to be read next for it.
    pub fn finish_for_store(&self, mut read: MaintenanceRead) -> Option<MaintenanceRead> {
        let (device, offset) = (read.device(), read.offset() as usize);
        let (mut buffer, range) = read.take_buffer();
        let bytes = &mut buffer[range];
        bytes.copy_from_slice(&self.devices.borrow()[device][offset..offset + bytes.len()]);
        let result = (self.fault.borrow_mut())(&self.devices.borrow(), (device, offset), bytes);
        self.handle.finish_maintenance_read(read, buffer, result)
    }

    /// Performs all writes that are due; `succeeds` decides, by a write's device and offset, whether it succeeds.
    pub fn write_all(&self, mut succeeds: impl FnMut(usize, u64) -> bool) {
        while let Some(mut write) = self.store().take_flash_write() {
            let buffer = write.take_buffer();
            let (device, offset, len) = (write.device(), write.offset(), write.byte_len());
            let succeeds = succeeds(device, offset);
            if succeeds {
                let at = offset as usize;
                self.devices.borrow_mut()[device][at..at + len].copy_from_slice(&buffer[..len]);
            }
            self.handle.finish_flash_write(write, buffer, succeeds);
        }
    }

    /// Reads a key's item from flash.
    pub fn fetch(&self, key: &[u8]) -> Option<Fetched> {
        self.finish(self.handle.read_flash(key)?, key)
    }

    /// Completes a read, which may take several requests.
    pub fn finish(&self, mut read: Box<FlashRead>, key: &[u8]) -> Option<Fetched> {
        loop {
            let (device, offset) = (read.device(), read.offset() as usize);
            let (mut buffer, range) = read.take_buffer();
            let bytes = &mut buffer[range];
            bytes.copy_from_slice(&self.devices.borrow()[device][offset..offset + bytes.len()]);
            let result = (self.fault.borrow_mut())(&self.devices.borrow(), (device, offset), bytes);
            match self.handle.finish_flash_read(read, buffer, result, key, true) {
                FlashReadResult::Item(item) => return Some(Fetched::Item(item)),
                FlashReadResult::Others(others) => return Some(Fetched::Others(others)),
                FlashReadResult::Miss(_) => return None,
                FlashReadResult::More(more) => read = more,
            }
        }
    }

    pub fn get(&self, key: &[u8]) -> Option<(ItemInfo, Vec<u8>)> {
        let mut out = Vec::new();
        match self.handle.get(key, Detail::Basic, true, &mut out, |_, _| {}) {
            Get::Hit(info, Payload::Copied) => Some((info, out)),
            Get::Hit(info, Payload::Pinned(pinned)) => {
                Some((info, pinned.slices().collect::<Vec<_>>().concat()))
            }
            Get::Miss(_) => None,
            Get::OnFlash => match self.fetch(key)? {
                Fetched::Item(item) => {
                    let found = (item.info(self.store().now()), item.value().to_vec());
                    self.handle.promote(item);
                    Some(found)
                }
                Fetched::Others(_) => None,
            },
        }
    }

    pub fn mutate<'a, R>(
        &self,
        key: &[u8],
        mut decide: impl FnMut(&mut ExistingItem<'_>) -> (Change<'a>, R),
    ) -> Result<(R, StoredItem), OutOfMemory> {
        loop {
            let done = self.handle.mutate(key, &mut decide);
            self.handle.forget_fetched();
            match done {
                Err(OutOfMemory::OnFlash) => {
                    if let Some(fetched) = self.fetch(key) {
                        self.handle.use_fetched(fetched);
                    }
                }
                done => return done,
            }
        }
    }
}
