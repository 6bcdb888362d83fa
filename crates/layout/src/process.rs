//! Which process this is. Two ends have a channel, and a stream of bytes: a child of fork(2) must use none of its parent's,
//! or each would take the other's answers.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often this process, or those before it, were forked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process: the one in which this was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// This one.
    pub fn current() -> Process {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handler stays as long as the library does, with which the C library forgets it; and it does
            // nothing that is not safe in a child of many threads.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
            assert_eq!(failed, 0, "there is memory for one more handler of fork(2)");
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// It is still this one. A load: made for every call.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// In the child.
extern "C" fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
