//! Stores in this process: one to measure the store's own time for the operation, one for the dummy to share.

use std::time::Instant;

use anyhow::{Result, ensure};
use fabcache_client::Client;
use fabcache_layout::slot::FREQUENCY_MAX;
use fabcache_store::clock::SystemTimeSource;
use fabcache_store::{Expiry, Handle};

use super::Call;
use crate::limits::Limits;
use crate::store::keys;
use fabcache_testbed::statistics::median;

/// Operations between clock readings, because a reading takes as long as an operation.
const STEPS: u64 = 16;
/// Maximum memory of the store.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Minimum bytes of a value in untimed sets before the timed ones.
const LONG_BYTES: usize = 16 << 10;
/// Maximum number of bytes copied.
const BYTES_MAX: u64 = 64 << 20;
/// Minimum and maximum number of runs.
const RUNS: [u64; 2] = [5, 500];

/// Returns whether all servers are fabcached, which has this store.
pub fn is_ours(client: &Client) -> bool {
    let stats = client.stats("fabcache");
    stats.iter().all(|stats| stats.as_ref().is_ok_and(|stats| !stats.is_empty()))
}

/// Returns a handle of a store with so many items, each read so often that readers report no more reads of it. The store has
/// as much memory as the servers of `client` report.
///
/// # Errors
/// There is no memory for them.
pub fn shared(call: &Call<'_>, client: &Client, items: u64) -> Result<Handle> {
    let memory = memory_bytes(call, client, items);
    let handle = Handle::new(&keys::store_with(memory, 1, Box::new(SystemTimeSource))?);
    let (all, mut out) = (fill(&handle, call, items), Vec::new());
    for key in all.iter().cycle().take(all.len() * usize::from(FREQUENCY_MAX)) {
        keys::get(&handle, key, &mut out);
    }
    Ok(handle)
}

/// Returns the bytes of a store's memory.
fn memory_bytes(call: &Call<'_>, client: &Client, items: u64) -> u64 {
    let reported = Limits::or_default(client).memory_bytes;
    reported.min(MEMORY_BYTES_MAX).max(keys::memory_for(items, call.value_bytes))
}

/// Stores the items; returns their keys.
fn fill(handle: &Handle, call: &Call<'_>, items: u64) -> Vec<Vec<u8>> {
    let mut value = Vec::new();
    let stored = (0..items).map(|number| {
        let mut key = Vec::new();
        call.items.key(number, &mut key);
        call.items.value(number, call.value_bytes, &mut value);
        keys::set(handle, &key, &value, Expiry::NEVER);
        key
    });
    stored.collect()
}

/// Returns the median nanoseconds of an operation over so many items, in a store with as much memory as the servers
/// of `client` report.
///
/// # Errors
/// There is no memory for them.
pub fn measure(call: &Call<'_>, client: &Client, items: u64) -> Result<f64> {
    let memory = memory_bytes(call, client, items);
    let (store, _clock) = keys::store(memory, 1)?;
    let handle = Handle::new(&store);
    let all = fill(&handle, call, items);
    let mut value = Vec::new();
    call.items.value(0, call.value_bytes, &mut value);
    if call.sets {
        // Each set writes to fresh memory: touch it before timing.
        let long = vec![0; call.value_bytes.max(LONG_BYTES)];
        for key in all.iter().cycle().take(memory as usize / long.len()) {
            keys::set(&handle, key, &long, Expiry::NEVER);
        }
    }
    let runs = (BYTES_MAX / (STEPS * call.value_bytes.max(1) as u64)).clamp(RUNS[0], RUNS[1]);
    let (mut out, mut found, mut next) = (Vec::new(), 0u64, all.iter().cycle());
    let times: Vec<f64> = (0..runs)
        .map(|_| {
            let begun = Instant::now();
            for key in next.by_ref().take(STEPS as usize) {
                if call.sets {
                    keys::set(&handle, key, &value, Expiry::NEVER);
                } else {
                    found += u64::from(keys::get(&handle, key, &mut out));
                }
            }
            begun.elapsed().as_nanos() as f64 / STEPS as f64
        })
        .collect();
    ensure!(call.sets || found > 0 || call.value_bytes == 0, "the store has none of {items} items");
    Ok(median(times))
}
