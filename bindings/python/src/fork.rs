//! The cache behind a Python client, as long as the process is the one that made it.

use std::sync::atomic::{AtomicU64, Ordering};

use fabcache_client::Client;

use crate::settings::Settings;

/// How often this process, or those before it, were forked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Python calls this in the child after a fork.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// What was made in this process. In a child it is left as it was: locks may be held by threads that it does not have, and
/// connections are the parent's.
pub struct ForkGuarded<T> {
    forks: u64,
    made: Option<T>,
}

impl<T> ForkGuarded<T> {
    pub fn new(made: T) -> ForkGuarded<T> {
        ForkGuarded { forks: FORKS.load(Ordering::Relaxed), made: Some(made) }
    }

    /// None in a child.
    pub fn get(&self) -> Option<&T> {
        self.made.as_ref().filter(|_| self.forks == FORKS.load(Ordering::Relaxed))
    }
}

impl<T> Drop for ForkGuarded<T> {
    fn drop(&mut self) {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            std::mem::forget(self.made.take());
        }
    }
}

/// The objects that a call needs: each call holds them, even if the Python client changes meanwhile.
pub struct Current {
    pub cache: ForkGuarded<Client>,
    pub settings: std::sync::Arc<Settings>,
}
