//! One thread's access to the other PEs' memory.

use std::marker::PhantomData;

use fabcache_layout::sync::{Ordering, fence};

use crate::error::Error;
use crate::job::Heap;
use crate::library::{CONTEXT_PRIVATE, ContextHandle};
use crate::remote_heaps::{Process, RemoteHeaps, SymmetricHeap};

/// A context of OpenSHMEM: the thread that made it uses it, and no other thread progresses it. It stays until the process
/// ends.
#[derive(Debug)]
pub struct Context {
    heap: Heap,
    handle: ContextHandle,
    /// Neither `Send` nor `Sync`: a private context belongs to its thread.
    of_thread: PhantomData<*mut ()>,
}

impl Context {
    pub fn new(heap: Heap) -> Result<Context, Error> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: OpenSHMEM is initialized for several threads, and `handle` outlives the call.
        match unsafe { (heap.job.library.context_create)(CONTEXT_PRIVATE, &raw mut handle) } {
            0 => Ok(Context { heap, handle, of_thread: PhantomData }),
            error => Err(Error::Context(error)),
        }
    }

    /// Returns a PE's number as OpenSHMEM takes it.
    fn number(&self, pe: usize) -> i32 {
        assert!(pe < self.heap.job.pes(), "the job has no PE {pe}");
        pe as i32
    }

    /// Returns the address of an aligned word within the heap, and a PE's number.
    fn word(&self, pe: usize, offset: u64) -> (*mut u64, i32) {
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        self.heap.check(offset, 8);
        (self.heap.address(offset).as_ptr().cast(), self.number(pe))
    }
}

impl RemoteHeaps for Context {
    fn pe(&self) -> usize {
        self.heap.job.pe()
    }

    fn pes(&self) -> usize {
        self.heap.job.pes()
    }

    fn get(&mut self, pe: usize, offset: u64, into: &mut [u8]) {
        self.heap.check(offset, into.len() as u64);
        let (from, number) = (self.heap.address(offset), self.number(pe));
        // SAFETY: the range is within the heap, checked above, and the PE exists; `into` is written within the call, and any
        // local memory may be the target.
        unsafe {
            (self.heap.job.library.get)(
                self.handle,
                into.as_mut_ptr().cast(),
                from.as_ptr().cast_const().cast(),
                into.len(),
                number,
            );
        }
    }

    fn put(&mut self, pe: usize, offset: u64, from: &[u8]) {
        self.heap.check(offset, from.len() as u64);
        let (to, number) = (self.heap.address(offset), self.number(pe));
        // SAFETY: the range is within the heap, checked above, and the PE exists; `from` was read when the call returns. What
        // is written is another process's memory, or this one's that is only accessed through `Memory`.
        unsafe {
            (self.heap.job.library.put)(
                self.handle,
                to.as_ptr().cast(),
                from.as_ptr().cast(),
                from.len(),
                number,
            );
        }
    }

    fn put_word(&mut self, pe: usize, offset: u64, word: u64) {
        let (to, number) = self.word(pe, offset);
        // SAFETY: `word` has checked that the word is within the heap and that the PE exists; it is aligned, as the heap begins at
        // a page.
        unsafe { (self.heap.job.library.put_word)(self.handle, to, word, number) };
    }

    fn compare_swap(&mut self, pe: usize, offset: u64, expected: u64, new: u64) -> u64 {
        let (word, number) = self.word(pe, offset);
        // SAFETY: `word` has checked that the word is within the heap and that the PE exists; it is aligned, as the heap begins at
        // a page. Of this PE's own threads none refers to it: they access it through OpenSHMEM only.
        unsafe { (self.heap.job.library.compare_swap)(self.handle, word, expected, new, number) }
    }

    fn atomic_set(&mut self, pe: usize, offset: u64, word: u64) {
        let (to, number) = self.word(pe, offset);
        // SAFETY: as for `compare_swap`.
        unsafe { (self.heap.job.library.atomic_set)(self.handle, to, word, number) };
    }

    fn fence(&mut self) {
        // OpenSHMEM's orders writes only.
        fence(Ordering::Release);
        // SAFETY: the context is this thread's.
        unsafe { (self.heap.job.library.fence)(self.handle) };
    }

    fn progress(&mut self) {
        self.heap.job.progress();
    }
}
