//! The thread that finishes what a start over a kept memory file left to do, while the server serves.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fabcache_store::{Handle, Opening};

use crate::shared::{Phase, Shared};

/// The time between two lines about the progress of a recovery.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Starts the thread, if there is something to finish.
///
/// # Errors
/// The system starts no thread.
pub fn start(shared: &Arc<Shared>) -> Result<Option<JoinHandle<()>>> {
    if !matches!(shared.store.opening().0, Opening::Recovered { .. }) {
        return Ok(None);
    }
    let (shared, handle) = (Arc::clone(shared), Handle::new(&shared.store));
    let run = move || finish(&shared, &handle);
    let thread = Builder::new().name("restart".into()).spawn(run);
    thread.context("cannot start the thread that finishes the recovery").map(Some)
}

/// Finishes the recovery after a kill, unless the server drains: then its stop does.
fn finish(shared: &Shared, handle: &Handle) {
    let began = Instant::now();
    let mut logged = began;
    let mut go_on = || {
        if logged.elapsed() >= PROGRESS_EVERY {
            logged = Instant::now();
            let progress = shared.store.recovery_progress().unwrap_or_default();
            tracing::info!(
                "recovery: {} of {} groups of the index are checked",
                progress.groups_checked,
                progress.groups
            );
        }
        shared.phase() < Phase::Draining
    };
    if handle.finish_restart(&mut go_on) {
        let found = shared.store.recovery_progress().unwrap_or_default();
        tracing::info!(
            "recovered {} items of the memory file, and dropped {}, in {:?}",
            found.kept,
            found.dropped,
            began.elapsed()
        );
    }
}
