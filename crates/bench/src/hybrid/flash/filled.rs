//! A server with more items than its memory holds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabcache_client::Client;

use super::servers::{Amount, StartedServer};
use super::{FlashTier, KEY_BYTES, PageCache, figure, items};
use crate::fill::fill_with_refusals;
use crate::target::Target;

/// Time for a server to write and evict in the background.
const SETTLE: Duration = Duration::from_secs(2);
/// Time for a server that closed its connections to end.
const END_TIME: Duration = Duration::from_millis(200);
/// Memory that a filled server may take beside the memory in use and the values in flight.
const SPARE_BYTES: u64 = 8 << 20;
/// Items are stored in portions of this many bytes, between which a limited rate waits.
const PORTION_BYTES: u64 = 1 << 20;

/// A filled server.
#[derive(Debug)]
pub struct Filled {
    started: StartedServer,
    /// A client of the server.
    pub client: Client,
    /// Its items.
    pub amount: Amount,
    refused: u64,
    fill_time: Duration,
}

impl Filled {
    /// Starts a target's server, stores the items, and limits the server's memory.
    ///
    /// # Errors
    /// The server does not start or store, or uses more memory than its cgroup allows.
    pub fn new(tier: &FlashTier, target: &Target, amount: Amount) -> Result<Filled> {
        let server = tier.servers.of(target)?;
        let mut started = server.start(&amount, &tier.directory, tier.page_cache == PageCache::Limited)?;
        let begun = Instant::now();
        let stored = target.client().and_then(|client| {
            let refused = fill(tier, &client, &amount)?;
            Ok((client, refused))
        });
        let (client, refused) = stored.map_err(|error| match started.server.ended(END_TIME) {
            Some(end) => error.context(format!("the server ended while it was filled: {end}")),
            None => error,
        })?;
        let fill_time = begun.elapsed();
        ensure!(refused < amount.items, "the server stores no value of {} bytes", amount.value_bytes);
        std::thread::sleep(SETTLE);
        if let Some(group) = &started.group {
            if let Some(device) = &started.device {
                device.sync()?;
            }
            let in_flight = (tier.clients * tier.window(amount.value_bytes) * amount.value_bytes) as u64;
            group.set_limit(group.memory_use()?.other + SPARE_BYTES + in_flight)?;
        }
        Ok(Filled { started, client, amount, refused, fill_time })
    }

    /// Returns the server's CPU time in nanoseconds.
    ///
    /// # Errors
    /// The server has ended.
    pub fn cpu_ns(&self) -> Result<u64> {
        Ok(self.started.server.cpu_time()?.as_nanos() as u64)
    }

    /// Returns the figures of a server of which this part of the items was found.
    ///
    /// # Errors
    /// The system does not report them.
    pub fn figures(&self, success: f64) -> Result<Vec<(String, f64)>> {
        let Amount { value_bytes, items, .. } = self.amount;
        let accepted = ((items - self.refused) * (KEY_BYTES + value_bytes) as u64) as f64;
        let process = self.started.server.process();
        let found = items as f64 * success;
        let mut figures = vec![
            (figure::ITEMS, items as f64),
            (figure::REFUSED, self.refused as f64),
            (figure::FILL_PER_S, items as f64 / self.fill_time.as_secs_f64()),
            (figure::RESIDENT_BYTES_EACH, process.resident_bytes()? as f64 / found.max(1.0)),
        ];
        if self.started.device.is_some() {
            figures.push((figure::WRITTEN_EACH, process.written_bytes()? as f64 / accepted));
            if let Some(bytes) = self.statistic("extstore_bytes_written")? {
                figures.push((figure::TIER_WRITTEN_EACH, bytes as f64 / accepted));
            }
        }
        let named = figures.into_iter().map(|(name, value)| (name.to_owned(), value));
        Ok(named.chain(self.page_cache()?).collect())
    }

    /// Returns the figures of the page cache, if the server is in a cgroup.
    ///
    /// # Errors
    /// The system does not report them.
    pub fn page_cache(&self) -> Result<Vec<(String, f64)>> {
        let Some(group) = &self.started.group else { return Ok(Vec::new()) };
        let Amount { memory_bytes, value_bytes, items, .. } = self.amount;
        let page_cache = group.memory_use()?.page_cache as f64;
        let spilled = items as f64 * (KEY_BYTES + value_bytes) as f64 - memory_bytes as f64;
        Ok(vec![
            (figure::PAGE_CACHE_BYTES.to_owned(), page_cache),
            (figure::PAGE_CACHE_PART.to_owned(), page_cache / spilled.max(1.0)),
        ])
    }

    /// Returns a number of the server's statistics, if it reports that.
    ///
    /// # Errors
    /// The server does not answer, or the statistic is no number.
    pub fn statistic(&self, name: &str) -> Result<Option<u64>> {
        let stats = self.client.stats("").into_iter().next().context("no server")??;
        let value = stats.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        value.map(|value| value.parse().with_context(|| format!("{name} is {value:?}"))).transpose()
    }
}

/// Stores the items; returns the number of those refused.
fn fill(tier: &FlashTier, client: &Client, amount: &Amount) -> Result<u64> {
    let item_bytes = (KEY_BYTES + amount.value_bytes) as u64;
    let portion = match tier.fill_megabytes_per_s {
        Some(_) => (PORTION_BYTES / item_bytes).max(1),
        None => amount.items,
    };
    let items = items()?;
    let (begun, mut refused, mut next) = (Instant::now(), 0, 0);
    while next < amount.items {
        let end = amount.items.min(next + portion);
        refused += fill_with_refusals(client, &items, next..end, |_| amount.value_bytes)?;
        next = end;
        if let Some(megabytes) = tier.fill_megabytes_per_s {
            let due = Duration::from_secs_f64((next * item_bytes) as f64 / (megabytes * 1e6));
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    Ok(refused)
}
