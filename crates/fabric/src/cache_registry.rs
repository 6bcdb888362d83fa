//! The registration caches of a domain, which evict idle registrations at the limit of locked memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::error::Error;

/// A cache whose idle registrations can be ended.
pub(crate) trait IdleCache: Send + Sync {
    /// Ends all idle registrations, and returns whether there were any.
    fn end_idle(&self) -> bool;
}

/// The caches that hold registrations of one domain.
#[derive(Default)]
pub(crate) struct CacheRegistry(Mutex<Vec<Weak<dyn IdleCache>>>);

impl CacheRegistry {
    /// Adds a cache, unless it is known.
    pub(crate) fn add(&self, cache: &Arc<dyn IdleCache>) {
        let mut all = self.lock();
        all.retain(|one| one.strong_count() > 0);
        if !all.iter().any(|one| std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(cache))) {
            all.push(Arc::downgrade(cache));
        }
    }

    /// Calls `make`, which may exceed the limit of locked memory. If it fails, ends all idle registrations and calls
    /// it a second time.
    pub(crate) fn make_way<T>(&self, make: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        match make() {
            Err(error) if error.is_memory() && self.end_idle() => make(),
            made => made,
        }
    }

    fn end_idle(&self) -> bool {
        let all: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        let ended = all.iter().filter(|cache| cache.end_idle()).count();
        ended > 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn IdleCache>>> {
        self.0.lock().expect("no thread panics while it changes the list of caches")
    }
}

impl fmt::Debug for CacheRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheRegistry({})", self.lock().len())
    }
}
