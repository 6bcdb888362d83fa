//! The thread that populates page tables while the server serves a region that it took over.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use anyhow::{Context as _, Result};
use fabcache_store::Opening;

use crate::shared::{Phase, Shared};

/// The least favourable nice value: workers with requests go first.
const NICE: i32 = 19;

/// Starts the thread, if the region was taken over. It ends after one pass, or when the server drains.
///
/// # Errors
/// The system starts no thread.
pub fn start(shared: &Arc<Shared>) -> Result<Option<JoinHandle<()>>> {
    let (opening, _) = shared.store.opening();
    if !matches!(opening, Opening::Kept { .. } | Opening::Recovered { .. }) {
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
    shared.store.populate(&mut || shared.phase() < Phase::Draining);
    tracing::debug!("populated the page tables of the kept items in {:?}", began.elapsed());
}
