//! Reused request objects with reused buffers allocate nothing.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Running, client};
use fabcache_client::{Client, Request, Ttl};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting each thread's allocations.
struct Counting;

// SAFETY: every call is forwarded to the system's allocator, which keeps the contract; counting neither allocates nor
// unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's layout meets this function's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's memory is from `alloc`, hence from the system, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn round(
    cache: &Client,
    requests: &mut [Request],
    buffers: &mut [(Vec<u8>, Vec<u8>)],
    bytes: &[u8],
    done: &mut usize,
) {
    for (request, (key, value)) in requests.iter_mut().zip(&mut *buffers) {
        value.clear();
        value.extend_from_slice(bytes);
        request.iset(std::mem::take(key), std::mem::take(value), Ttl::seconds(60));
    }
    for (request, (key, value)) in requests.iter_mut().zip(&mut *buffers) {
        let completed = request.wait();
        *done += usize::from(completed.result.is_ok());
        request.iget(completed.key, completed.value);
        let completed = request.wait();
        *done += usize::from(completed.value == bytes);
        (*key, *value) = (completed.key, completed.value);
        request.bset(key, bytes, Ttl::NEVER);
        *done += usize::from(request.wait().result.is_ok());
        request.bget(key, std::mem::take(value));
        while !request.test() {
            std::thread::yield_now();
        }
        *value = request.wait().value;
        *done += usize::from(value == bytes && cache.address_of(key).is_ok());
    }
}

#[test]
fn reused_requests_and_buffers_allocate_nothing() {
    let server = Running::tcp("");
    let cache = client(&server.address());
    let mut requests: Vec<Request> = (0..32).map(|_| cache.request()).collect();
    // A text key, and a key that is sent in base64.
    let mut buffers: Vec<(Vec<u8>, Vec<u8>)> =
        (0..32u8).map(|i| (vec![if i % 2 == 0 { b'a' + i / 2 } else { i }; 20], Vec::new())).collect();
    // The requests in flight fit any socket, so nothing is copied later that was not copied before.
    let bytes = vec![7; 1_000];
    let mut done = 0;
    for _ in 0..3 {
        round(&cache, &mut requests, &mut buffers, &bytes, &mut done);
    }
    let before = ALLOCATIONS.get();
    assert!(before > 0, "the allocator counts");
    for _ in 0..20 {
        round(&cache, &mut requests, &mut buffers, &bytes, &mut done);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(done, 23 * 32 * 4);
}
