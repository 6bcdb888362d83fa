//! Pools of handles: copies of a model handle, as many as are needed at a time.
//!
//! Threads share a pool; a handle belongs to the thread that took it, until it is returned. The pool accesses handles
//! only under its lock. Settings changed through the pool apply to idle handles at once, and to others when they are
//! returned.

use std::ffi::c_char;
use std::ptr::{self, NonNull};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::behavior::{memcached_behavior_get, memcached_behavior_set};
use super::configuration::memcached;
use super::constants::*;
use super::create::{memcached_clone, memcached_free};
use super::ffi::{Out, put};
use super::types::memcached_st;
use crate::guarded;

/// A pool; opaque to programs.
#[derive(Debug)]
pub struct memcached_pool_st {
    handles: Mutex<Handles>,
    given_back: Condvar,
}

#[derive(Debug)]
struct Handles {
    /// The model of all handles. Only the pool uses it.
    model: Handle,
    /// The pool made it itself.
    owns_model: bool,
    /// Made and not taken.
    idle: Vec<Handle>,
    /// Made, taken or not.
    made: u32,
    most: u32,
}

/// A handle that the pool owns while it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle(NonNull<memcached_st>);

// SAFETY: it is used under the pool's lock only, by one thread at a time; all that a handle refers to is its own.
unsafe impl Send for Handle {}

impl Handle {
    fn as_ref(&self) -> &memcached_st {
        // SAFETY: a handle that the pool created, or was given to keep, and has not freed.
        unsafe { self.0.as_ref() }
    }

    fn copy(&self) -> Option<Handle> {
        // SAFETY: NULL, so the copy gets memory of its own.
        NonNull::new(unsafe { memcached_clone(ptr::null_mut(), Some(self.as_ref())) }).map(Handle)
    }

    fn free(self) {
        // SAFETY: a handle of the pool, which `self` owns and gives up here.
        unsafe { memcached_free(self.0.as_ptr()) };
    }

    /// It has all settings that were made through the pool.
    fn is_like(&self, other: Handle) -> bool {
        self.as_ref().configure.version.get() == other.as_ref().configure.version.get()
    }
}

impl Handles {
    fn grow(&mut self) -> Option<Handle> {
        let copy = self.model.copy()?;
        self.made += 1;
        Some(copy)
    }

    /// Takes one back; a copy in its place if it is out of date.
    fn take_back(&mut self, handle: Handle) {
        let current = if handle.is_like(self.model) {
            Some(handle)
        } else {
            let copy = self.model.copy();
            handle.free();
            copy
        };
        match current {
            Some(current) => self.idle.push(current),
            // The next one is created anew.
            None => self.made = self.made.saturating_sub(1),
        }
    }
}

impl memcached_pool_st {
    fn lock(&self) -> MutexGuard<'_, Handles> {
        // Nothing is half done where it could panic.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a handle back. One that was not taken is an invalid argument.
    fn take_back(&self, handle: Handle) -> memcached_return_t {
        let mut handles = self.lock();
        if handles.idle.contains(&handle) || handles.model == handle {
            // Two threads would have it at a time.
            return MEMCACHED_INVALID_ARGUMENTS;
        }
        handles.take_back(handle);
        drop(handles);
        self.given_back.notify_one();
        MEMCACHED_SUCCESS
    }

    /// Takes a handle, waiting according to the policy.
    fn take(&self, policy: WaitPolicy) -> Result<Handle, memcached_return_t> {
        let mut handles = self.lock();
        loop {
            if let Some(handle) = handles.idle.pop() {
                return Ok(handle);
            }
            if handles.made < handles.most {
                return handles.grow().ok_or(MEMCACHED_MEMORY_ALLOCATION_FAILURE);
            }
            handles = match policy {
                WaitPolicy::None => return Err(MEMCACHED_NOTFOUND),
                WaitPolicy::Endless => self.given_back.wait(handles).unwrap_or_else(PoisonError::into_inner),
                WaitPolicy::Until(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(MEMCACHED_TIMEOUT);
                    }
                    let waited = self.given_back.wait_timeout(handles, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[derive(Clone, Copy)]
enum WaitPolicy {
    None,
    Endless,
    Until(Instant),
}

/// Creates a pool of copies of a handle, which is lent to it until the pool is destroyed: `initial` at first, `max`
/// at most.
fn create(
    model: Option<NonNull<memcached_st>>,
    owns_model: bool,
    first: u32,
    most: u32,
) -> *mut memcached_pool_st {
    let Some(model) = model.filter(|_| (1..=most).contains(&first)).map(Handle) else {
        return ptr::null_mut();
    };
    let mut handles = Handles { model, owns_model: false, idle: Vec::new(), made: 0, most };
    for _ in 0..first {
        match handles.grow() {
            Some(handle) => handles.idle.push(handle),
            None => {
                handles.idle.drain(..).for_each(Handle::free);
                return ptr::null_mut();
            }
        }
    }
    handles.owns_model = owns_model;
    Box::into_raw(Box::new(memcached_pool_st { handles: Mutex::new(handles), given_back: Condvar::new() }))
}

/// Creates a pool of copies of a handle; NULL if the initial number is 0 or exceeds the maximum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_create(
    master: *mut memcached_st,
    initial: u32,
    max: u32,
) -> *mut memcached_pool_st {
    guarded(ptr::null_mut(), || create(NonNull::new(master), false, initial, max))
}

/// A pool as a configuration string describes it; null if that is not understood.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool(
    option_string: *const c_char,
    option_string_length: usize,
) -> *mut memcached_pool_st {
    guarded(ptr::null_mut(), || {
        // SAFETY: the arguments are passed on, to a function with the same contract.
        let model = NonNull::new(unsafe { memcached(option_string, option_string_length) });
        let Some(handle) = model.map(Handle) else { return ptr::null_mut() };
        let sizes = &handle.as_ref().configure;
        let pool = create(model, true, sizes.initial_pool_size.get(), sizes.max_pool_size.get());
        if pool.is_null() {
            handle.free();
        }
        pool
    })
}

/// Destroys a pool and frees its handles. Returns the model to the caller that passed it; NULL if the pool created
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_destroy(pool: *mut memcached_pool_st) -> *mut memcached_st {
    guarded(ptr::null_mut(), || {
        if pool.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: `Box::from_raw` takes back what `create` got from `Box::into_raw`; by the manual the caller gives
        // up the pool here.
        let pool = unsafe { Box::from_raw(pool) };
        let mut handles = pool.lock();
        handles.idle.drain(..).for_each(Handle::free);
        if handles.owns_model {
            handles.model.free();
            return ptr::null_mut();
        }
        handles.model.0.as_ptr()
    })
}

fn take_out(
    pool: Option<&memcached_pool_st>,
    policy: WaitPolicy,
    rc: Out<'_, memcached_return_t>,
) -> *mut memcached_st {
    let taken = pool.ok_or(MEMCACHED_INVALID_ARGUMENTS).and_then(|pool| pool.take(policy));
    put(rc, taken.err().unwrap_or(MEMCACHED_SUCCESS));
    taken.map_or(ptr::null_mut(), |handle| handle.0.as_ptr())
}

/// Takes a handle out; null if all are taken, and it is not to be waited for.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_pool_pop(
    pool: Option<&memcached_pool_st>,
    block: bool,
    rc: Out<'_, memcached_return_t>,
) -> *mut memcached_st {
    guarded(ptr::null_mut(), || {
        take_out(pool, if block { WaitPolicy::Endless } else { WaitPolicy::None }, rc)
    })
}

/// Takes a handle; NULL if none is returned in time. Without a time, or with a time of 0, it does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_pool_fetch(
    pool: Option<&memcached_pool_st>,
    relative_time: Option<&libc::timespec>,
    rc: Out<'_, memcached_return_t>,
) -> *mut memcached_st {
    guarded(ptr::null_mut(), || {
        let policy = match relative_time.map(|time| (time.tv_sec, time.tv_nsec)) {
            None | Some((0, 0)) => WaitPolicy::None,
            Some((seconds, nanoseconds)) => {
                let Ok(nanoseconds @ 0..1_000_000_000) = u32::try_from(nanoseconds) else {
                    put(rc, MEMCACHED_ERRNO);
                    return ptr::null_mut();
                };
                let time = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
                Instant::now().checked_add(time).map_or(WaitPolicy::Endless, WaitPolicy::Until)
            }
        };
        take_out(pool, policy, rc)
    })
}

/// Gives a handle back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_release(
    pool: Option<&memcached_pool_st>,
    mmc: *mut memcached_st,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let (Some(pool), Some(handle)) = (pool, NonNull::new(mmc).map(Handle)) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        pool.take_back(handle)
    })
}

/// Gives a handle back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_push(
    pool: Option<&memcached_pool_st>,
    mmc: *mut memcached_st,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let (Some(pool), Some(handle)) = (pool, NonNull::new(mmc).map(Handle)) else {
            return MEMCACHED_INVALID_ARGUMENTS;
        };
        pool.take_back(handle)
    })
}

/// Sets a behavior of all handles; for those in use, when they are returned.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_pool_behavior_set(
    pool: Option<&memcached_pool_st>,
    flag: memcached_behavior_t,
    data: u64,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let Some(pool) = pool else { return MEMCACHED_INVALID_ARGUMENTS };
        let mut handles = pool.lock();
        let model = handles.model;
        let rc = memcached_behavior_set(Some(model.as_ref()), flag, data);
        if rc != MEMCACHED_SUCCESS {
            return rc;
        }
        let version = model.as_ref().configure.version.get().wrapping_add(1);
        model.as_ref().configure.version.set(version);
        for handle in std::mem::take(&mut handles.idle) {
            let rc = memcached_behavior_set(Some(handle.as_ref()), flag, data);
            if rc == MEMCACHED_SUCCESS {
                handle.as_ref().configure.version.set(version);
            }
            handles.take_back(handle);
        }
        rc
    })
}

/// A behavior of the handles.
#[unsafe(no_mangle)]
pub extern "C" fn memcached_pool_behavior_get(
    pool: Option<&memcached_pool_st>,
    flag: memcached_behavior_t,
    value: Out<'_, u64>,
) -> memcached_return_t {
    guarded(MEMCACHED_FAILURE, || {
        let (Some(pool), Some(_)) = (pool, value) else { return MEMCACHED_INVALID_ARGUMENTS };
        let handles = pool.lock();
        put(value, memcached_behavior_get(Some(handles.model.as_ref()), flag));
        MEMCACHED_SUCCESS
    })
}
