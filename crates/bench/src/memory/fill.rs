//! Servers filled with items.
//!
//! A server is filled with distinct items until it has evicted as many bytes as it holds. Then its
//! anonymous, shared and huge pages are divided by its number of items. A sample of everything stored
//! is read back byte for byte, and must agree with that number.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::client::Client;
use super::mix::Mix;
use crate::server::{MeasuredProgram, Server};

/// Maximum memory overhead of an item, for the number of items to plan.
const OVERHEAD_BYTES_MAX: u64 = 64;
/// Bytes of requests sent before their responses are read.
const BATCH_BYTES: usize = 48 << 10;
/// Number of keys read back.
const SAMPLE: u64 = 4_000;
/// Time for memcached to evict in the background.
const SETTLE: Duration = Duration::from_secs(2);

/// One server filled with one mix.
#[derive(Clone, Debug, Serialize)]
pub struct FilledServer {
    /// The server.
    pub server: String,
    /// The mix of items.
    pub mix: Mix,
    /// Its memory limit in megabytes.
    pub megabytes: u32,
    /// Number of distinct items stored.
    pub stored: u64,
    /// Number of items that the server refused.
    pub refused: u64,
    /// Number of items that the server reports.
    pub items: u64,
    /// How many of [`FilledServer::sampled`] items were found, byte for byte.
    pub found: u64,
    /// Number of items sampled.
    pub sampled: u64,
    /// Anonymous, shared and huge pages of the process, in bytes.
    pub resident_bytes: u64,
    /// Overhead per item from `stats fabcache`: beside key and value, including the index. `None` if the
    /// server does not report it.
    pub overhead_bytes: Option<f64>,
}

impl FilledServer {
    /// Returns the resident memory per item.
    pub fn bytes_per_item(&self) -> f64 {
        self.resident_bytes as f64 / self.items as f64
    }
}

/// Fills every server with every mix, each in a fresh process.
///
/// # Errors
/// A server does not start, answers wrongly, or lacks items that it reports.
pub fn fill_all(
    servers: &[MeasuredProgram],
    mixes: &[Mix],
    megabytes: u32,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<FilledServer>> {
    let mut filled = Vec::new();
    for mix in mixes {
        for program in servers {
            progress(&format!("{}: {}", mix.name, program.name));
            let one = fill(program, mix, megabytes);
            filled.push(one.with_context(|| format!("{} with {}", program.name, mix.name))?);
        }
    }
    Ok(filled)
}

fn fill(program: &MeasuredProgram, mix: &Mix, megabytes: u32) -> Result<FilledServer> {
    let (server, address) = Server::start(program, &["-m", &megabytes.to_string()])?;
    let mut client = Client::connect(address)?;
    let budget = u64::from(megabytes) << 21;
    let written = (budget as f64 / (mix.mean_bytes() + OVERHEAD_BYTES_MAX as f64)) as u64;
    let mut stored = 0;
    let mut next = 0;
    let mut request = Vec::new();
    while next < written {
        request.clear();
        let first = next;
        while next < written && (next == first || request.len() < BATCH_BYTES) {
            mix.push_set(next, &mut request);
            next += 1;
        }
        stored += client.store(&request, next - first)?;
    }
    std::thread::sleep(SETTLE);
    let resident_bytes = server.resident_bytes()?;
    let items = client.stat("curr_items")?;
    let own = client.stats("stats fabcache").unwrap_or_default();
    let own = |name: &str| {
        own.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.parse::<f64>().ok())
    };
    let overhead_bytes = own("item_bytes").zip(own("index_bytes")).map(|(item_bytes, index_bytes)| {
        // The items stored first were evicted first.
        let payload: u64 =
            (written - items..written).map(|i| mix.lengths(i)).map(|(k, v)| (k + v) as u64).sum();
        (item_bytes - payload as f64 + index_bytes) / items as f64
    });
    let (found, sampled) = read_back(&mut client, mix, written)?;
    let share = found as f64 / sampled as f64;
    let expected = items as f64 / written as f64;
    let deviation = (expected * (1.0 - expected) / sampled as f64).sqrt();
    ensure!(
        (share - expected).abs() < 0.02 + 5.0 * deviation,
        "the server reports {items} of {written} items, but {found} of {sampled} were found"
    );
    Ok(FilledServer {
        server: program.name.clone(),
        mix: mix.clone(),
        megabytes,
        stored,
        refused: written - stored,
        items,
        found,
        sampled,
        resident_bytes,
        overhead_bytes,
    })
}

/// Reads items spread evenly over all stored ones; returns the number found and the number read.
fn read_back(client: &mut Client, mix: &Mix, written: u64) -> Result<(u64, u64)> {
    let sampled = written.min(SAMPLE);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut found = 0;
    for step in 0..sampled {
        let i = step * written / sampled;
        key.clear();
        mix.push_key(i, &mut key);
        if let Some(answer) = client.get(&key)? {
            value.clear();
            mix.push_value(i, &mut value);
            ensure!(*answer == *value, "item {i} has a wrong value");
            found += 1;
        }
    }
    Ok((found, sampled))
}
