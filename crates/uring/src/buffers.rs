//! The buffers that the kernel fills: one mapping, with the ring that provides them at its start.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes of one buffer: most pipelines of requests fit.
pub const BUFFER_BYTES: usize = 8 << 10;

/// Buffers of a ring, a power of two. All are 512 KiB: more would leave the processor's L2 cache.
pub const BUFFERS: usize = 64;

/// Where the buffers begin: the ring before them must begin at a page, and takes less than one.
const OFFSET: usize = 4 << 10;
const MAPPING_BYTES: usize = OFFSET + BUFFERS * BUFFER_BYTES;
const _: () = assert!(BUFFERS.is_power_of_two() && BUFFERS * size_of::<RingEntry>() <= OFFSET);

/// `struct io_uring_buf`. The first one's last field is the ring's tail (`struct io_uring_buf_ring`).
#[repr(C)]
struct RingEntry {
    address: AtomicU64,
    len: AtomicU32,
    id: AtomicU16,
    tail: AtomicU16,
}

/// A received buffer's name within its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(u16);

/// The memory, and who owns which buffer.
pub(crate) struct Buffers {
    base: NonNull<u8>,
    tail: u16,
    /// The received bytes of each buffer that is here; 0: the kernel has the buffer.
    received: [u32; BUFFERS],
    /// The kernel may still write, so the mapping stays.
    is_leaked: bool,
}

// SAFETY: the mapping is this value's own, and bound to no thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Maps the memory and provides all buffers.
    pub fn new() -> io::Result<Buffers> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place of a new mapping.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), MAPPING_BYTES, access, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut buffers = Buffers { base, tail: 0, received: [0; BUFFERS], is_leaked: false };
        (0..BUFFERS as u16).for_each(|id| buffers.provide(id));
        Ok(buffers)
    }

    /// Returns the address of the ring of entries.
    pub fn ring_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn entries(&self) -> &[RingEntry; BUFFERS] {
        let entries = self.base.cast::<[RingEntry; BUFFERS]>();
        // SAFETY: the mapping begins with them at a page's start, all zero at first, and outlives `self`'s borrow. This
        // process and the kernel access them as atomics only; no buffer overlaps them.
        unsafe { entries.as_ref() }
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        self.base.as_ptr().wrapping_add(OFFSET + usize::from(id) * BUFFER_BYTES)
    }

    /// Gives a buffer to the kernel.
    fn provide(&mut self, id: u16) {
        let address = self.buffer(id) as u64;
        let entries = self.entries();
        let entry = &entries[usize::from(self.tail) % BUFFERS];
        entry.address.store(address, Ordering::Relaxed);
        entry.len.store(BUFFER_BYTES as u32, Ordering::Relaxed);
        entry.id.store(id, Ordering::Relaxed);
        let tail = self.tail.wrapping_add(1);
        // The kernel reads the entry after the tail.
        entries[0].tail.store(tail, Ordering::Release);
        self.tail = tail;
    }

    /// Takes over a buffer that a completion reported with `len` received bytes.
    pub fn take(&mut self, id: u16, len: u32) -> BufferId {
        let received = &mut self.received[usize::from(id)];
        assert!(*received == 0 && (1..=BUFFER_BYTES as u32).contains(&len), "the kernel owns the buffer");
        *received = len;
        BufferId(id)
    }

    /// Returns a received buffer's bytes.
    pub fn bytes(&self, BufferId(id): BufferId) -> &[u8] {
        let len = self.received[usize::from(id)];
        assert!(len > 0, "the buffer was given back");
        // SAFETY: the buffer lies in the mapping, is initialised (zero at first), and `len` is at most its length. Its
        // completion was reaped and it was not provided since, so the kernel does not write to it; to provide it, `give_back`
        // needs `self` exclusively, which ends this borrow.
        unsafe { std::slice::from_raw_parts(self.buffer(id), len as usize) }
    }

    /// Gives a received buffer back to the kernel.
    pub fn give_back(&mut self, BufferId(id): BufferId) {
        let len = std::mem::take(&mut self.received[usize::from(id)]);
        assert!(len > 0, "the buffer was given back before");
        self.provide(id);
    }

    /// Gives back a buffer that a completion without bytes reported.
    pub fn return_unused(&mut self, id: u16) {
        assert_eq!(self.received[usize::from(id)], 0, "the kernel owns the buffer");
        self.provide(id);
    }

    /// Leaves the mapping in place for ever.
    pub fn leak(&mut self) {
        self.is_leaked = true;
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.is_leaked {
            return;
        }
        // SAFETY: the mapping is this value's own, nothing borrows from it any more, and the kernel has no request that
        // may write to it: the ring was never used, or has ended all (`Ring::drop`).
        let _ = unsafe { munmap(self.base.as_ptr().cast(), MAPPING_BYTES) };
    }
}
