//! A job whose PEs are threads of this process. Its heaps stay allocated until the process ends, as those of a job do.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use fabcache_layout::Memory;
use rustix::fs::{MemfdFlags, Mode};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::Error;
use crate::remote_heaps::{Process, RemoteHeaps, SymmetricHeap};

/// The heaps of all PEs of a job in this process. Clones are the same job.
#[derive(Clone, Debug)]
pub struct LocalJob(Arc<[OwnedHeap]>);

#[derive(Debug)]
struct OwnedHeap {
    base: NonNull<u8>,
    memory: Memory,
    /// Accesses to it wait.
    is_stopped: AtomicBool,
    /// Other PEs have it mapped, as on the same host.
    is_mapped: bool,
}

// SAFETY: the memory stays allocated, and all access is through `Memory`.
unsafe impl Send for OwnedHeap {}
// SAFETY: as for `Send`.
unsafe impl Sync for OwnedHeap {}

impl OwnedHeap {
    fn word(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && self.memory.contains(offset, 4), "no word at {offset}");
        // SAFETY: the word is within the allocation, checked above.
        let word = unsafe { self.base.add(offset as usize) };
        // SAFETY: the allocation stays and is aligned; the users of the word access it by atomics only.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }
}

impl LocalJob {
    /// Starts a job of so many PEs, each with so many bytes, which are 0 and mapped by all.
    ///
    /// # Panics
    /// `bytes` is 0.
    pub fn new(pes: usize, bytes: u64) -> LocalJob {
        LocalJob::on_heap(pes, bytes, true)
    }

    /// Starts a job as [`LocalJob::new`] does, each PE on a host of its own: none has another's memory mapped.
    ///
    /// # Panics
    /// `bytes` is 0.
    pub fn apart(pes: usize, bytes: u64) -> LocalJob {
        LocalJob::on_heap(pes, bytes, false)
    }

    fn on_heap(pes: usize, bytes: u64, are_mapped: bool) -> LocalJob {
        assert!(bytes > 0, "an empty heap");
        let layout =
            Layout::from_size_align(bytes as usize, 4096).expect("a length that fits the address space");
        LocalJob::on(pes, bytes, are_mapped, || {
            // SAFETY: the layout has bytes.
            let base = unsafe { alloc_zeroed(layout) };
            NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout))
        })
    }

    /// Starts a job as [`LocalJob::new`] does, whose heaps are memory files that this process has open.
    ///
    /// # Panics
    /// `bytes` is 0, or the system has no memory or no descriptors left.
    pub fn on_files(pes: usize, bytes: u64) -> LocalJob {
        LocalJob::on(pes, bytes, true, || {
            let file = rustix::fs::memfd_create("symmetric-heap", MemfdFlags::CLOEXEC).expect("a descriptor");
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).expect("it is ours");
            rustix::fs::ftruncate(&file, bytes).expect("memory");
            let (anywhere, len) = (std::ptr::null_mut(), bytes as usize);
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
            let base = unsafe { rustix::mm::mmap(anywhere, len, access, MapFlags::SHARED, &file, 0) };
            // It stays open, as the mapping stays.
            let _ = file.into_raw_fd();
            NonNull::new(base.expect("memory").cast()).expect("a mapping is not at address 0")
        })
    }

    /// Starts a job whose heaps are allocated so: aligned to a page, zeroed, and until the process ends.
    fn on(pes: usize, bytes: u64, is_mapped: bool, allocate: impl Fn() -> NonNull<u8>) -> LocalJob {
        let heaps = (0..pes).map(|_| {
            let base = allocate();
            // SAFETY: the bytes stay allocated, and nothing refers into them.
            let memory = unsafe { Memory::new(base, bytes) };
            OwnedHeap { base, memory, is_stopped: AtomicBool::new(false), is_mapped }
        });
        LocalJob(heaps.collect())
    }

    /// Returns the access of a thread of this PE.
    pub fn of(&self, pe: usize) -> LocalHeaps {
        LocalHeaps { job: self.clone(), pe }
    }

    /// Returns a PE's own memory.
    pub fn memory(&self, pe: usize) -> &Memory {
        &self.0[pe].memory
    }

    /// Returns the `len` bytes at `offset` of a PE's own memory, a multiple of 64.
    ///
    /// # Panics
    /// The heap is shorter.
    pub fn part(&self, pe: usize, offset: u64, len: u64) -> Memory {
        let heap = &self.0[pe];
        assert!(heap.memory.contains(offset, len), "{len} bytes at {offset} lie outside of the heap");
        // SAFETY: the offset is within the allocation, checked above.
        let base = unsafe { heap.base.add(offset as usize) };
        // SAFETY: the bytes stay allocated, and nothing refers into them.
        unsafe { Memory::new(base, len) }
    }

    /// Stops or resumes a PE: while it is stopped, reads of its memory and its own accesses wait.
    pub fn stop(&self, pe: usize, is_stopped: bool) {
        self.0[pe].is_stopped.store(is_stopped, Ordering::SeqCst);
    }
}

/// The access of one thread of a PE.
#[derive(Clone, Debug)]
pub struct LocalHeaps {
    job: LocalJob,
    pe: usize,
}

impl LocalHeaps {
    /// Waits while a PE is stopped.
    fn wait_for(&self, pe: usize) {
        while self.job.0[pe].is_stopped.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl RemoteHeaps for LocalHeaps {
    fn pe(&self) -> usize {
        self.pe
    }

    fn pes(&self) -> usize {
        self.job.0.len()
    }

    fn get(&mut self, pe: usize, offset: u64, into: &mut [u8]) {
        self.wait_for(self.pe);
        self.wait_for(pe);
        self.job.memory(pe).copy_out(offset, into);
    }

    fn put(&mut self, pe: usize, offset: u64, from: &[u8]) {
        self.wait_for(self.pe);
        self.job.memory(pe).copy_in(offset, from);
    }

    fn put_word(&mut self, pe: usize, offset: u64, word: u64) {
        self.wait_for(self.pe);
        self.job.memory(pe).store(offset, word, Ordering::Relaxed);
    }

    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64 {
        self.wait_for(self.pe);
        self.wait_for(pe);
        let order = Ordering::Relaxed;
        self.job.memory(pe).compare_exchange(offset, expected, new, order, order).unwrap_or_else(|word| word)
    }

    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64) {
        self.wait_for(self.pe);
        // Open MPI swaps, and waits for what was there.
        self.wait_for(pe);
        self.job.memory(pe).store(offset, word, Ordering::Relaxed);
    }

    fn fence(&mut self) {
        fence(Ordering::Release);
    }

    fn progress(&mut self) {}
}

impl SymmetricHeap for LocalHeaps {
    fn pe(&self) -> usize {
        self.pe
    }

    fn pes(&self) -> usize {
        self.job.0.len()
    }

    fn bytes(&self) -> u64 {
        self.job.memory(self.pe).len()
    }

    fn address(&self, offset: u64) -> NonNull<u8> {
        let heap = &self.job.0[self.pe];
        assert!(heap.memory.contains(offset, 0), "offset {offset} lies outside of the heap");
        // SAFETY: the offset is within the allocation, or one past it.
        unsafe { heap.base.add(offset as usize) }
    }

    fn memory(&self, offset: u64, len: u64) -> Memory {
        self.job.part(self.pe, offset, len)
    }

    fn mapped(&self, pe: usize, offset: u64, len: u64) -> Option<Memory> {
        (self.job.0[pe].is_mapped || pe == self.pe).then(|| self.job.part(pe, offset, len))
    }

    fn word(&self, pe: usize, offset: u64) -> Option<&AtomicU32> {
        (self.job.0[pe].is_mapped || pe == self.pe).then(|| self.job.0[pe].word(offset))
    }

    fn open(&self) -> Result<Box<dyn RemoteHeaps>, Error> {
        Ok(Box::new(self.clone()))
    }
}

/// A PE of a job in this process.
#[derive(Debug)]
pub struct LocalProcess {
    pe: usize,
    shared: Arc<Allocations>,
    /// Allocations of this PE so far.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Allocations {
    pes: usize,
    /// Starts the job that an allocation is.
    start: fn(usize, u64) -> LocalJob,
    made: Mutex<Vec<LocalJob>>,
    all: Barrier,
}

impl LocalProcess {
    /// Starts a job of so many PEs on one host, which have each other's memory mapped.
    pub fn start(pes: usize) -> Vec<LocalProcess> {
        LocalProcess::start_with(pes, LocalJob::new)
    }

    /// Starts a job of so many PEs, [each on a host of its own](LocalJob::apart).
    pub fn start_apart(pes: usize) -> Vec<LocalProcess> {
        LocalProcess::start_with(pes, LocalJob::apart)
    }

    /// Starts a job of so many PEs, whose allocations are [on files](LocalJob::on_files).
    pub fn start_on_files(pes: usize) -> Vec<LocalProcess> {
        LocalProcess::start_with(pes, LocalJob::on_files)
    }

    fn start_with(pes: usize, start: fn(usize, u64) -> LocalJob) -> Vec<LocalProcess> {
        let shared = Arc::new(Allocations { pes, start, made: Mutex::default(), all: Barrier::new(pes) });
        let process = |pe| LocalProcess { pe, shared: Arc::clone(&shared), count: AtomicUsize::new(0) };
        (0..pes).map(process).collect()
    }

    /// Returns what was allocated so far.
    pub fn allocations(&self) -> Vec<LocalJob> {
        self.shared.made.lock().expect(NO_PANIC).clone()
    }
}

const NO_PANIC: &str = "no thread panics while it allocates";

impl Process for LocalProcess {
    fn pe(&self) -> usize {
        self.pe
    }

    fn pes(&self) -> usize {
        self.shared.pes
    }

    fn allocate(&self, bytes: u64) -> Result<Arc<dyn SymmetricHeap>, Error> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut made = self.shared.made.lock().expect(NO_PANIC);
        if made.len() == number {
            made.push((self.shared.start)(self.shared.pes, bytes));
        }
        let heap = made[number].of(self.pe);
        drop(made);
        self.shared.all.wait();
        Ok(Arc::new(heap))
    }
}
