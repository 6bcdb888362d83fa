//! The thread that finishes a takeover while workers answer: it completes the recovery after a kill, then verifies the items.

use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fabcache_store::{Handle, Opening};

use crate::shared::{Phase, Shared};

/// Pause between parts of the verification, so that a worker on the same CPU is not delayed for long.
const PAUSE: Duration = Duration::from_micros(200);

/// The time between two lines about the progress of a recovery.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Starts the thread, if the region was taken over.
///
/// # Errors
/// The system starts no thread.
pub fn start(shared: &Arc<Shared>) -> Result<Option<JoinHandle<()>>> {
    if !shared.store.opening().0.is_takeover() {
        return Ok(None);
    }
    let (shared, handle) = (Arc::clone(shared), Handle::new(&shared.store));
    let run = move || finish(&shared, &handle);
    let thread = Builder::new().name("restart".into()).spawn(run);
    thread.context("cannot start the thread that finishes the restart").map(Some)
}

/// Finishes the restart, unless the server drains: its stop finishes a recovery, and the next server verifies.
fn finish(shared: &Shared, handle: &Handle) {
    let store = &shared.store;
    let began = Instant::now();
    let (mut logged, mut was_recovering) = (began, matches!(store.opening().0, Opening::Recovered { .. }));
    let is_done = handle.finish_restart(&mut || {
        if store.is_recovered() {
            if std::mem::take(&mut was_recovering) {
                log_recovered(shared, began);
            }
            thread::sleep(PAUSE);
        } else if logged.elapsed() >= PROGRESS_EVERY {
            logged = Instant::now();
            let progress = store.recovery_progress().unwrap_or_default();
            let (checked, groups) = (progress.groups_checked, progress.groups);
            tracing::info!("recovery: {checked} of {groups} groups of the index are checked");
        }
        shared.phase() < Phase::Draining
    });
    if was_recovering && store.is_recovered() {
        log_recovered(shared, began);
    }
    let ((verified, segments), corrupt, took) = (store.scrubbed(), store.items_corrupt(), began.elapsed());
    if !is_done {
        tracing::info!(
            "verified {verified} of {segments} segments before the stop; the next server verifies all"
        );
    } else if corrupt == 0 {
        tracing::info!("verified the items of {segments} segments in {took:?}");
    } else {
        tracing::warn!(
            "verified {segments} segments in {took:?}, and dropped {corrupt} items: the memory file was damaged while no server \
             ran; check the memory or the device"
        );
    }
}

fn log_recovered(shared: &Shared, began: Instant) {
    let found = shared.store.recovery_progress().unwrap_or_default();
    tracing::info!(
        "recovered {} items of the memory file, and dropped {}, in {:?}",
        found.kept,
        found.dropped,
        began.elapsed()
    );
}
