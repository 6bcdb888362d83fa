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
    let mut recovering = matches!(store.opening().0, Opening::Recovered { .. });
    let (mut logged, mut verifying_since) = (began, began);
    let mut note_recovered = || {
        if store.is_recovered() && std::mem::take(&mut recovering) {
            log_recovered(shared, began);
            verifying_since = Instant::now();
        }
    };
    let is_done = handle.finish_restart(&mut || {
        note_recovered();
        if store.is_recovered() {
            thread::sleep(PAUSE);
        } else if logged.elapsed() >= PROGRESS_EVERY {
            logged = Instant::now();
            let progress = store.recovery_progress().unwrap_or_default();
            let (checked, groups) = (progress.groups_checked, progress.groups);
            tracing::info!("recovery: {checked} of {groups} groups of the index are checked");
        }
        shared.phase() < Phase::Draining
    });
    note_recovered();
    log_verified(shared, is_done, verifying_since.elapsed());
}

fn log_verified(shared: &Shared, is_done: bool, took: Duration) {
    let ((verified, segments), corrupt) = (shared.store.scrubbed(), shared.store.items_corrupt());
    let progress = if is_done {
        format!("verified {segments} segments in {took:?}")
    } else {
        format!("verified {verified} of {segments} segments before the stop")
    };
    if corrupt > 0 {
        tracing::warn!(
            "{progress}, and dropped {corrupt} items: the memory file was damaged while no server ran; check the memory or \
             the device"
        );
    } else if is_done {
        tracing::info!("verified the items of {segments} segments in {took:?}");
    } else {
        tracing::info!("{progress}; the next server verifies all");
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
