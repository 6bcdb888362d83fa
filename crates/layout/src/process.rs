//! The identity of this process. A child of fork(2) must not use its parent's channels and streams, or each would
//! consume the other's answers.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the forks of this process and its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process that created this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the current process.
    pub fn current() -> Process {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handler stays as long as the library, with which the C library removes it; and it is safe in
            // a child of a multithreaded process.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
            assert_eq!(failed, 0, "there is memory for one more handler of fork(2)");
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this is still the same process. A plain load, as every call uses it.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// Runs in the child.
extern "C" fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
