//! The ledger shared by writer and readers: the versions of each key that were started and acknowledged.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use fabcache_layout::checksum::SECRET_BYTES;
use fabcache_layout::{Memory, Secret};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

const CLOCK_ZERO_AT: u64 = 0;
const FLUSHES_AT: u64 = 8;
const SECRET_AT: u64 = 64;
const KEYS_AT: u64 = 4096;
const KEY_BYTES: u64 = 16;

/// The ledger. Each key has one writer.
#[derive(Debug)]
pub struct Ledger {
    memory: Memory,
    file: Option<OwnedFd>,
}

impl Ledger {
    /// Creates a ledger for this many keys, and other facts for readers.
    pub fn create(keys: usize, secret: &Secret, clock_zero_ns: i128) -> Ledger {
        let file = rustix::fs::memfd_create("ledger", MemfdFlags::CLOEXEC).expect("a memory file");
        let len = KEYS_AT + keys as u64 * KEY_BYTES;
        rustix::fs::ftruncate(&file, len).expect("memory for a ledger");
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len as usize, access, MapFlags::SHARED, &file, 0)
        };
        let base = NonNull::new(base.expect("memory to map").cast()).expect("not at address 0");
        // SAFETY: page-aligned, mapped and never unmapped; no references point into it.
        let memory = unsafe { Memory::new(base, len) };
        memory.copy_in(SECRET_AT, &secret.0);
        memory.store(CLOCK_ZERO_AT, clock_zero_ns as u64, Ordering::Relaxed);
        Ledger { memory, file: Some(file) }
    }

    /// Maps the ledger of another process.
    pub fn of(memory: Memory) -> Ledger {
        Ledger { memory, file: None }
    }

    /// Returns its memory, for the other process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("this process created the ledger").as_fd()
    }

    /// Returns the region's secret.
    pub fn secret(&self) -> Secret {
        let mut secret = [0; SECRET_BYTES];
        self.memory.copy_out(SECRET_AT, &mut secret);
        Secret(secret)
    }

    /// Returns the monotonic nanoseconds of the region's second 0.
    pub fn clock_zero_ns(&self) -> i64 {
        self.memory.load(CLOCK_ZERO_AT, Ordering::Relaxed) as i64
    }

    /// Returns the number of acknowledged flushes.
    pub fn flushes(&self) -> u64 {
        self.memory.load(FLUSHES_AT, Ordering::Acquire)
    }

    /// Counts an acknowledged flush.
    pub fn count_flush(&self) {
        self.memory.store(FLUSHES_AT, self.flushes() + 1, Ordering::Release);
    }

    /// Begins a write of the key; returns its version.
    pub fn begin(&self, key: usize) -> u64 {
        let version = self.begun(key) + 1;
        self.memory.store(Ledger::at(key) + 8, version, Ordering::SeqCst);
        version
    }

    /// Records that the write was acknowledged.
    pub fn answer(&self, key: usize, version: u64) {
        self.memory.store(Ledger::at(key), version, Ordering::SeqCst);
    }

    /// Returns the last version started.
    pub fn begun(&self, key: usize) -> u64 {
        self.memory.load(Ledger::at(key) + 8, Ordering::SeqCst)
    }

    /// Returns the last version acknowledged.
    pub fn answered(&self, key: usize) -> u64 {
        self.memory.load(Ledger::at(key), Ordering::SeqCst)
    }

    fn at(key: usize) -> u64 {
        KEYS_AT + key as u64 * KEY_BYTES
    }
}
