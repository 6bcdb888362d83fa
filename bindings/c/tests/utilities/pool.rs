//! Pools of handles.

use std::collections::HashSet;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabcache::libmemcached::behavior::memcached_behavior_get;
use fabcache::libmemcached::pool::*;
use fabcache::libmemcached::*;

use crate::common::{Code, Handle, Running};

/// A pool that threads share, destroyed on drop.
struct Pool(*mut memcached_pool_st);

// SAFETY: pools may be shared among threads.
unsafe impl Sync for Pool {}

impl Pool {
    fn of(string: &str) -> Option<Pool> {
        // SAFETY: the string has the stated length.
        let pool = unsafe { memcached_pool(string.as_ptr().cast(), string.len()) };
        (!pool.is_null()).then_some(Pool(pool))
    }

    fn some(&self) -> Option<&memcached_pool_st> {
        // SAFETY: the pool lives as long as `self`.
        unsafe { self.0.as_ref() }
    }

    fn pop(&self, block: bool) -> Result<*mut memcached_st, memcached_return_t> {
        let code = Code::new();
        let handle = memcached_pool_pop(self.some(), block, code.out());
        assert_eq!(handle.is_null(), code.get() != MEMCACHED_SUCCESS);
        if handle.is_null() { Err(code.get()) } else { Ok(handle) }
    }

    fn fetch(&self, seconds: i64, nanoseconds: i64) -> Result<*mut memcached_st, memcached_return_t> {
        let (code, time) = (Code::new(), libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds });
        let handle = memcached_pool_fetch(self.some(), Some(&time), code.out());
        if handle.is_null() { Err(code.get()) } else { Ok(handle) }
    }

    fn push(&self, handle: *mut memcached_st) -> memcached_return_t {
        // SAFETY: a pool, and a handle of it that is not used any more.
        unsafe { memcached_pool_push(self.some(), handle) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool is from `memcached_pool_create`, and this owner drops it.
        unsafe { memcached_pool_destroy(self.0) };
    }
}

#[test]
fn pool_hands_out_at_most_its_size() {
    let pool = Pool::of("--SERVER=localhost --POOL-MIN=1 --POOL-MAX=3").expect("a pool");
    let taken: HashSet<_> = (0..3).map(|_| pool.pop(false).expect("a free handle")).collect();
    assert_eq!(taken.len(), 3);
    assert_eq!(pool.pop(false), Err(MEMCACHED_NOTFOUND));
    assert_eq!(pool.fetch(0, 0), Err(MEMCACHED_NOTFOUND));
    assert_eq!(pool.fetch(-1, 0), Err(MEMCACHED_TIMEOUT));
    assert_eq!(pool.fetch(0, 1_000_000_000), Err(MEMCACHED_ERRNO));
    let begun = Instant::now();
    assert_eq!(pool.fetch(0, 50_000_000), Err(MEMCACHED_TIMEOUT));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    for handle in taken {
        assert_eq!(pool.push(handle), MEMCACHED_SUCCESS);
    }
    let again = pool.pop(false).expect("all handles are free");
    assert_eq!(pool.push(again), MEMCACHED_SUCCESS);
    assert_eq!(pool.push(again), MEMCACHED_INVALID_ARGUMENTS, "the handle was not taken");
    let handed_out: HashSet<_> = (0..3).map(|_| pool.pop(false).expect("a free handle")).collect();
    assert_eq!(handed_out.len(), 3);
    assert_eq!(pool.pop(false), Err(MEMCACHED_NOTFOUND));
    for handle in handed_out {
        assert_eq!(pool.push(handle), MEMCACHED_SUCCESS);
    }
}

#[test]
fn impossible_pools_are_rejected() {
    assert!(Pool::of("--SERVER=localhost --POOL-MIN=4 --POOL-MAX=3").is_none());
    assert!(Pool::of("--NO-SUCH-OPTION").is_none());
    let handle = Handle::new("--SERVER=localhost");
    for (first, most) in [(0, 0), (0, 2), (3, 2)] {
        // SAFETY: a handle.
        assert!(unsafe { memcached_pool_create(handle.0, first, most) }.is_null());
    }
    // SAFETY: here and below, null arguments.
    assert!(unsafe { memcached_pool_create(ptr::null_mut(), 1, 1) }.is_null());
    // SAFETY: as above.
    assert!(unsafe { memcached_pool_destroy(ptr::null_mut()) }.is_null());
    let code = Code::new();
    assert!(memcached_pool_pop(None, true, code.out()).is_null());
    assert_eq!(code.get(), MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: as above.
    assert_eq!(unsafe { memcached_pool_release(None, handle.0) }, MEMCACHED_INVALID_ARGUMENTS);
    assert_eq!(memcached_pool_behavior_set(None, 0, 1), MEMCACHED_INVALID_ARGUMENTS);
}

#[test]
fn destroying_a_pool_returns_the_cloned_handle() {
    let handle = Handle::new("--SERVER=localhost --NAMESPACE=\"mine\"");
    // SAFETY: a handle.
    let pool = unsafe { memcached_pool_create(handle.0, 1, 2) };
    assert!(!pool.is_null());
    // SAFETY: the pool was just created.
    let some = unsafe { pool.as_ref() };
    // SAFETY: a pool, and a handle that it copies and does not hand out.
    assert_eq!(unsafe { memcached_pool_push(some, handle.0) }, MEMCACHED_INVALID_ARGUMENTS);
    // SAFETY: the pool is from `memcached_pool_create`, and is not used afterwards.
    assert_eq!(unsafe { memcached_pool_destroy(pool) }, handle.0);
}

#[test]
fn behavior_reaches_every_pooled_handle() {
    let pool = Pool::of("--SERVER=localhost --POOL-MAX=2").expect("a pool");
    let is_verifying = |handle: *mut memcached_st| {
        // SAFETY: a handle taken from the pool.
        let handle = unsafe { handle.as_ref() };
        memcached_behavior_get(handle, MEMCACHED_BEHAVIOR_VERIFY_KEY)
    };
    let (taken, idle) = (pool.pop(false).unwrap(), pool.pop(false).unwrap());
    assert_eq!(pool.push(idle), MEMCACHED_SUCCESS);
    let rc = memcached_pool_behavior_set(pool.some(), MEMCACHED_BEHAVIOR_VERIFY_KEY, 1);
    assert_eq!(rc, MEMCACHED_SUCCESS);
    assert_eq!(is_verifying(taken), 0);
    let idle = pool.pop(false).expect("a free handle");
    assert_eq!(is_verifying(idle), 1);
    assert_eq!(pool.push(taken), MEMCACHED_SUCCESS);
    let taken = pool.pop(false).expect("a free handle");
    assert_eq!(is_verifying(taken), 1);
    for handle in [taken, idle] {
        assert_eq!(pool.push(handle), MEMCACHED_SUCCESS);
    }
    let value = std::cell::Cell::new(std::mem::MaybeUninit::new(7));
    let rc = memcached_pool_behavior_get(pool.some(), MEMCACHED_BEHAVIOR_VERIFY_KEY, Some(&value));
    // SAFETY: it was initialized.
    assert_eq!((rc, unsafe { value.into_inner().assume_init() }), (MEMCACHED_SUCCESS, 1));
}

#[test]
fn threads_share_pooled_handles() {
    let (_server, socket) = Running::shared("pool");
    let pool = Pool::of(&format!("{socket} --POOL-MIN=1 --POOL-MAX=3")).expect("a pool");
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (pool, taken) = (&pool, &taken);
            scope.spawn(move || {
                for turn in 0..50 {
                    let handle = if turn % 2 == 0 { pool.pop(true) } else { pool.fetch(60, 0) };
                    let handle = std::mem::ManuallyDrop::new(Handle(handle.expect("a handle is returned")));
                    assert!(taken.fetch_add(1, Ordering::Relaxed) < 3);
                    let (key, value) = (format!("key{thread}"), format!("{thread}:{turn}"));
                    assert_eq!(handle.set(&key, &value), MEMCACHED_SUCCESS);
                    assert_eq!(handle.get(&key), Some(value));
                    taken.fetch_sub(1, Ordering::Relaxed);
                    assert_eq!(pool.push(handle.0), MEMCACHED_SUCCESS);
                }
            });
        }
    });
}
