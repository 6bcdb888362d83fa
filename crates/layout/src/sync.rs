//! Atomics, fences and locks, in one place, so that loom can replace them (`--cfg loom`).

#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{Ordering, fence},
};

/// Lets other threads run.
#[cfg(not(loom))]
pub use std::thread::yield_now;

#[cfg(loom)]
pub use loom::thread::yield_now;

#[cfg(loom)]
pub use model::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// Returns whether the guard of this name is left out: never, except in a model that `cargo xtask loom` runs to see it
/// fail, and in a build for tests that must fail (`--cfg fabcache_without="X"`, see `cargo xtask torture`).
#[inline(always)]
pub fn without(guard: &str) -> bool {
    #[cfg(loom)]
    {
        static WITHOUT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        WITHOUT.get_or_init(|| std::env::var("FABCACHE_WITHOUT").ok()).as_deref() == Some(guard)
    }
    #[cfg(not(loom))]
    match guard {
        "behind" => cfg!(fabcache_without = "behind"),
        "checksum" => cfg!(fabcache_without = "checksum"),
        "dead_mark" => cfg!(fabcache_without = "dead_mark"),
        "generation" => cfg!(fabcache_without = "generation"),
        "grace" => cfg!(fabcache_without = "grace"),
        "lease" => cfg!(fabcache_without = "lease"),
        _ => false,
    }
}

/// Calls `first`, then `second`: in the other order without the guard.
#[inline(always)]
pub fn in_order(guard: &str, first: impl FnOnce(), second: impl FnOnce()) {
    if without(guard) {
        second();
        first();
    } else {
        first();
        second();
    }
}

/// loom's atomics, made up for two things that loom 0.7 lacks.
///
/// - It remembers only the last access of an atomic. A thread that loads and then stores hides another thread's
///   earlier load, and the executions in which the store comes first are never tried. So each access is preceded by
///   one of a second atomic that depends on all accesses before it: a compare-exchange that fails, which neither
///   stores nor synchronizes.
/// - It does not exclude another thread's plain store between the two halves of a read-modify-write, and lets an
///   earlier exchange overwrite the store. So a store is a swap. This hides little: a relaxed store would continue
///   the release sequence of the store before it.
#[cfg(loom)]
#[allow(missing_docs, reason = "the interface is the standard library's")]
mod model {
    use loom::sync::atomic::{self, Ordering};

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug)]
            pub struct $name {
                word: atomic::$name,
                turn: atomic::AtomicBool,
            }

            impl $name {
                pub fn new(value: $value) -> $name {
                    $name { word: atomic::$name::new(value), turn: atomic::AtomicBool::new(false) }
                }

                fn turn(&self) -> &atomic::$name {
                    let turn = self.turn.compare_exchange(true, true, Ordering::Relaxed, Ordering::Relaxed);
                    debug_assert_eq!(turn, Err(false));
                    &self.word
                }

                pub fn load(&self, order: Ordering) -> $value {
                    self.turn().load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    self.turn().swap(value, order);
                }

                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    self.turn().swap(value, order)
                }

                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.turn().compare_exchange(current, new, success, failure)
                }
            }

            impl Default for $name {
                fn default() -> $name {
                    $name::new(<$value>::default())
                }
            }
        };
    }

    macro_rules! number {
        ($name:ident, $value:ty) => {
            atomic!($name, $value);

            impl $name {
                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    self.turn().fetch_add(value, order)
                }

                pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    self.turn().fetch_sub(value, order)
                }

                pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    self.turn().fetch_or(value, order)
                }

                pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    self.turn().fetch_max(value, order)
                }

                pub fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                    self.turn().fetch_min(value, order)
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    number!(AtomicU32, u32);
    number!(AtomicU64, u64);
    number!(AtomicUsize, usize);
}
