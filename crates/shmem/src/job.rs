//! The job that this process is part of, and its symmetric heap.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use fabcache_layout::Memory;

use crate::context::Context;
use crate::environment::{heap_size, place_in_job};
use crate::error::Error;
use crate::library::{Library, THREAD_MULTIPLE};
use crate::remote_heaps::{Process, RemoteHeaps, SymmetricHeap};

/// Alignment of the heap: a page, as a region requires.
const ALIGNMENT: usize = 4096;

/// How long the end waits for the other PEs.
const FINISH_TIME_MAX: Duration = Duration::from_secs(5);

/// The job that this process is part of. It ends with the process.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub(crate) library: &'static Library,
    pe: usize,
    pes: usize,
}

impl Job {
    /// Starts this process's part of the job; collective. Of the signals' handlers it
    /// sets those of SIGHUP, SIGTERM and SIGUSR1 to the default, and replaces those of faults.
    ///
    /// # Errors
    /// There is no OpenSHMEM, or no job; on errors of its own OpenSHMEM ends the process.
    pub fn start() -> Result<Job, Error> {
        let (expected, _) = place_in_job().ok_or(Error::NoJob)?;
        let library = Library::open()?;
        let mut level = 0;
        // SAFETY: the function has no precondition but to be called once, before any other; `level` outlives the call.
        unsafe { (library.init_thread)(THREAD_MULTIPLE, &raw mut level) };
        if level < THREAD_MULTIPLE {
            return Err(Error::Threads(level));
        }
        // SAFETY: OpenSHMEM is initialized.
        let pe = unsafe { (library.my_pe)() };
        // SAFETY: OpenSHMEM is initialized.
        let pes = unsafe { (library.n_pes)() };
        // A batch script has Slurm's variables, too, but is one process.
        if pes as usize != expected {
            return Err(Error::NoJob);
        }
        for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1] {
            // SAFETY: the default action replaces a handler of OpenSHMEM's, which ends the process or does nothing; a handler set
            // later would call it, too.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(Job { library, pe: pe as usize, pes: pes as usize })
    }

    /// Returns where symmetric memory lies in this process, of each PE; none if it is not mapped at a page, as here.
    fn mapped(&self, base: NonNull<u8>) -> Arc<[Option<NonNull<u8>>]> {
        let pointer = |pe: usize| {
            // SAFETY: the address is one of the symmetric heap, and the PE exists.
            let pointer = unsafe { (self.library.pointer)(base.as_ptr().cast_const().cast(), pe as i32) };
            NonNull::new(pointer.cast::<u8>())
                .filter(|pointer| pointer.addr().get().is_multiple_of(ALIGNMENT))
        };
        (0..self.pes).map(pointer).collect()
    }

    /// Waits until all PEs have come here.
    pub fn barrier(&self) {
        // SAFETY: OpenSHMEM is initialized.
        unsafe { (self.library.barrier_all)() };
    }

    /// Lets this PE serve what others request of it; any thread may call this.
    pub fn progress(&self) {
        // SAFETY: OpenSHMEM is initialized for several threads, and Open MPI's progress engine with it.
        unsafe { (self.library.progress)() };
    }

    /// Ends the job with all other PEs, which call this too, and then the process; `shmem_finalize` is not run at exit.
    pub fn finish(self, status: i32) -> ! {
        // A PE that has ended otherwise does not come.
        std::thread::spawn(move || {
            std::thread::sleep(FINISH_TIME_MAX);
            self.leave(status)
        });
        self.barrier();
        // SAFETY: OpenSHMEM is initialized, and no thread uses it any more.
        unsafe { (self.library.finalize)() };
        self.leave(status)
    }

    /// Ends the process without the others.
    pub fn leave(self, status: i32) -> ! {
        // SAFETY: it ends the process; what OpenSHMEM has registered for the exit would wait for the other PEs.
        unsafe { libc::_exit(status) }
    }
}

impl Process for Job {
    fn pe(&self) -> usize {
        self.pe
    }

    fn pes(&self) -> usize {
        self.pes
    }

    fn allocate(&self, bytes: u64) -> Result<Arc<dyn SymmetricHeap>, Error> {
        // SAFETY: OpenSHMEM is initialized.
        let base = unsafe { (self.library.align)(ALIGNMENT, bytes as usize) };
        let too_small = || Error::Heap { wanted: bytes, given: heap_size() };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(too_small)?;
        // SAFETY: `bytes` bytes are allocated at `base`. No PE accesses another's before the barrier.
        unsafe { base.as_ptr().write_bytes(0, bytes as usize) };
        self.barrier();
        Ok(Arc::new(Heap { job: *self, base, bytes, mapped: self.mapped(base) }))
    }
}

/// Memory that a job has allocated. It stays until the process ends.
#[derive(Clone, Debug)]
pub struct Heap {
    pub job: Job,
    base: NonNull<u8>,
    bytes: u64,
    /// Where each PE's part begins in this process; none if it is not mapped.
    pub mapped: Arc<[Option<NonNull<u8>>]>,
}

// SAFETY: the memory is allocated until the process ends; this type hands out its address, and `Memory`, whose accesses
// are atomics and copies that any thread may make.
unsafe impl Send for Heap {}
// SAFETY: as for `Send`.
unsafe impl Sync for Heap {}

impl Heap {
    pub fn check(&self, offset: u64, len: u64) {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        assert!(is_inside, "{len} bytes at {offset} lie outside of a heap of {} bytes", self.bytes);
    }
}

impl SymmetricHeap for Heap {
    fn pe(&self) -> usize {
        self.job.pe
    }

    fn pes(&self) -> usize {
        self.job.pes
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address(&self, offset: u64) -> NonNull<u8> {
        self.check(offset, 0);
        // SAFETY: the offset is within the allocation, or one past it.
        unsafe { self.base.add(offset as usize) }
    }

    fn memory(&self, offset: u64, len: u64) -> Memory {
        self.check(offset, len);
        // SAFETY: the bytes are within the allocation, which stays until the process ends, and aligned: the base is at a page, and
        // the offset a multiple of 64, which `Memory::new` checks. Its users make no reference into this part, as other PEs write
        // it at any time.
        unsafe { Memory::new(self.address(offset), len) }
    }

    fn mapped(&self, pe: usize, offset: u64, len: u64) -> Option<Memory> {
        self.check(offset, len);
        let base = self.mapped[pe]?;
        // SAFETY: the offset is within that PE's allocation, checked above, which is mapped here as a whole.
        let address = unsafe { base.add(offset as usize) };
        // SAFETY: the bytes stay mapped until the process ends, and are aligned as in `memory`; nothing refers into them, as the PE
        // writes them at any time.
        Some(unsafe { Memory::new(address, len) })
    }

    fn word(&self, pe: usize, offset: u64) -> Option<&AtomicU32> {
        assert!(offset.is_multiple_of(4), "a word at {offset} is not aligned");
        self.check(offset, 4);
        let base = if pe == self.job.pe { self.base } else { self.mapped[pe]? };
        // SAFETY: the offset is within that PE's allocation, checked above, which is mapped here as a whole.
        let word = unsafe { base.add(offset as usize) };
        // SAFETY: aligned, as each heap begins at a page; it stays mapped until the process ends, and its users access it by
        // atomics only.
        Some(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    fn open(&self) -> Result<Box<dyn RemoteHeaps>, Error> {
        Ok(Box::new(Context::new(self.clone())?))
    }
}
