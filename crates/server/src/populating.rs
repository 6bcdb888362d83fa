//! The thread that populates page tables while the server serves a region that it took over. With `-k` it touches the rest
//! of the memory, too.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::server;
use crate::shared::{Phase, Shared};

/// The least favourable nice value: workers with requests go first.
const NICE: i32 = 19;

/// Starts the thread, if the region was taken over. It ends after one pass, or when the server drains.
///
/// # Errors
/// The system starts no thread.
pub fn start(shared: &Arc<Shared>) -> Result<Option<JoinHandle<()>>> {
    let (opening, _) = shared.store.opening();
    if !opening.is_takeover() {
        return Ok(None);
    }
    let shared = Arc::clone(shared);
    let run = move || {
        // On Linux this is the priority of the calling thread. Without it the thread works, too.
        let _ = rustix::process::nice(NICE);
        populate(&shared);
    };
    Builder::new().name("populate".into()).spawn(run).context("cannot start the populate thread").map(Some)
}

fn populate(shared: &Shared) {
    let began = Instant::now();
    let mut go_on = || shared.phase() < Phase::Draining;
    shared.store.populate(&mut go_on);
    tracing::debug!("populated the page tables of the kept items in {:?}", began.elapsed());
    if !shared.settings.lock_memory {
        return;
    }
    if !shared.store.touch_all(&mut go_on) {
        tracing::warn!(
            "cannot touch all memory (-k): there is too little; give less with -m and --memory-max"
        );
    } else if go_on() {
        server::log_locked(shared.settings.memory_bytes);
    }
}
