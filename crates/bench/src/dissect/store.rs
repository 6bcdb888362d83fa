//! The store's own time for the operation, in this process.

use std::time::Instant;

use anyhow::{Result, ensure};
use fabcache_client::Client;
use fabcache_store::{Expiry, Handle};

use super::Call;
use crate::limits::Limits;
use crate::store::keys;
use fabcache_testbed::statistics::median;

/// Operations between clock readings, because a reading takes as long as an operation.
const STEPS: u64 = 16;
/// Maximum memory of the store.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of untimed sets before the timed ones.
const REWRITES_MAX: u64 = 20_000;
/// Maximum number of bytes copied.
const BYTES_MAX: u64 = 64 << 20;
/// Minimum and maximum number of runs.
const RUNS: [u64; 2] = [5, 500];

/// Returns whether all servers are fabcached, which has this store.
pub fn is_ours(client: &Client) -> bool {
    let stats = client.stats("fabcache");
    stats.iter().all(|stats| stats.as_ref().is_ok_and(|stats| !stats.is_empty()))
}

/// Returns the median nanoseconds of an operation over so many items, in a store with as much memory as the servers
/// of `client` report.
///
/// # Errors
/// There is no memory for them.
pub fn measure(call: &Call<'_>, client: &Client, items: u64) -> Result<f64> {
    let reported = Limits::of(client).unwrap_or_default().memory_bytes;
    let memory = reported.min(MEMORY_BYTES_MAX).max(keys::memory_for(items, call.value_bytes));
    let (store, _clock) = keys::store(memory, 1)?;
    let handle = Handle::new(&store);
    let all: Vec<Vec<u8>> = (0..items)
        .map(|number| {
            let mut key = Vec::new();
            call.items.key(number, &mut key);
            key
        })
        .collect();
    let mut value = Vec::new();
    for (number, key) in all.iter().enumerate() {
        call.items.value(number as u64, call.value_bytes, &mut value);
        keys::set(&handle, key, &value, Expiry::NEVER);
    }
    // Each set writes to fresh memory: touch it before timing.
    let bytes = (call.value_bytes + call.items.key_bytes()).max(1) as u64;
    let rewrites = if call.sets { (memory / bytes).min(REWRITES_MAX) } else { 0 };
    for key in all.iter().cycle().take(rewrites as usize) {
        keys::set(&handle, key, &value, Expiry::NEVER);
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
