//! A store over memory that the test allocated.
#![cfg(not(loom))]

mod common;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{get, set};
use fabcache_store::backing::Given;
use fabcache_store::{CreateError, Handle, Store, StoreOptions};
use fabcache_testbed::bytes::pattern;

const BYTES: usize = 16 << 20;

/// An allocation whose middle is given: bytes before and after it must stay as they are.
struct Heap {
    start: NonNull<u8>,
    is_freed: Arc<AtomicBool>,
}

// SAFETY: the pointer is used by one thread at a time, or through a store.
unsafe impl Send for Heap {}
// SAFETY: as for Send.
unsafe impl Sync for Heap {}

impl Heap {
    const MARGIN: usize = 64;

    fn layout() -> Layout {
        Layout::from_size_align(BYTES + 2 * Heap::MARGIN, 4096).expect("a small power of two")
    }

    fn new(is_freed: Arc<AtomicBool>) -> Heap {
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc_zeroed(Heap::layout()) }).expect("memory");
        for at in Heap::margins() {
            // SAFETY: within the allocation, which nothing else uses yet.
            unsafe { start.as_ptr().wrapping_add(at).write(0xa5) };
        }
        Heap { start, is_freed }
    }

    /// Offsets of the bytes that are not given.
    fn margins() -> impl Iterator<Item = usize> {
        (0..Heap::MARGIN).chain(Heap::MARGIN + BYTES..BYTES + 2 * Heap::MARGIN)
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.start.as_ptr().wrapping_add(Heap::MARGIN)).expect("within the allocation")
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        for at in Heap::margins() {
            // SAFETY: within the allocation, and the store that used the bytes between is dropped.
            assert_eq!(unsafe { self.start.as_ptr().wrapping_add(at).read() }, 0xa5, "{at}");
        }
        self.is_freed.store(true, Ordering::Relaxed);
        // SAFETY: allocated by this layout, and nothing uses it any more.
        unsafe { dealloc(self.start.as_ptr(), Heap::layout()) };
    }
}

/// Makes options with memory of [`BYTES`], and a flag that is set once the memory is freed.
fn options(memory_bytes: u64) -> (StoreOptions, Arc<AtomicBool>) {
    let is_freed = Arc::new(AtomicBool::new(false));
    let heap = Arc::new(Heap::new(Arc::clone(&is_freed)));
    // SAFETY: the heap owns these zeroed bytes, uses only those around them, and forms no references.
    let given = unsafe { Given::new(heap.base(), BYTES as u64, heap) };
    let options = StoreOptions {
        memory_bytes,
        memory_bytes_max: memory_bytes,
        given: Some(given),
        ..StoreOptions::default()
    };
    (options, is_freed)
}

#[test]
fn store_works_over_given_memory_and_frees_nothing_of_it() {
    let (options, is_freed) = options(BYTES as u64);
    let handle = Handle::new(&Arc::new(Store::open(options).expect("enough memory")));
    let store = handle.store();
    assert_eq!(store.share_region().expect("there is nothing to do"), None);
    assert!(store.region().is_none());
    for number in 0..500_u64 {
        set(&handle, &number.to_le_bytes(), &pattern(number, 100_000)).expect("items are evicted");
        handle.touch_ahead();
    }
    handle.set_memory_limit(8 << 20).expect("items are evicted");
    handle.set_memory_limit(BYTES as u64).expect("reserved");
    for number in 500..1_000_u64 {
        set(&handle, &number.to_le_bytes(), &pattern(number, 100_000)).expect("items are evicted");
    }
    let kept = (0..1_000_u64).filter_map(|number| {
        let (_, value) = get(&handle, &number.to_le_bytes())?;
        assert_eq!(value, pattern(number, 100_000), "{number}");
        Some(number)
    });
    assert!(kept.count() > 80);
    assert!(!is_freed.load(Ordering::Relaxed));
    drop(handle);
    assert!(is_freed.load(Ordering::Relaxed), "the store was the last user");
}

#[test]
fn too_little_given_memory_is_an_error() {
    let (options, is_freed) = options(2 * BYTES as u64);
    let error = Store::open(options).expect_err("half of it is given");
    assert!(
        matches!(error, CreateError::GivenTooShort { bytes, needed } if bytes == BYTES as u64 && needed == 2 * bytes),
        "{error}"
    );
    assert!(is_freed.load(Ordering::Relaxed));
}

#[test]
#[should_panic(expected = "aligned to cache lines")]
fn given_memory_is_aligned_to_cache_lines() {
    let heap = Heap::new(Arc::default());
    let base = NonNull::new(heap.base().as_ptr().wrapping_add(8)).expect("within the allocation");
    // SAFETY: as in `options`, and eight bytes of the margin are given too.
    let _ = unsafe { Given::new(base, BYTES as u64, Arc::new(heap)) };
}
