//! The limits that a target's servers report.

use anyhow::{Context, Result};
use fabcache_client::Client;

/// Limits that all servers of a target accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The sum of the servers' memory limits.
    pub memory_bytes: u64,
    /// The largest item that all servers accept: key, value and overhead.
    pub item_bytes: u64,
}

/// memcached's default.
const MEMORY_BYTES: u64 = 64 << 20;
const ITEM_BYTES: u64 = 1 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_bytes: MEMORY_BYTES, item_bytes: ITEM_BYTES }
    }
}

impl Limits {
    /// Reads the limits from the servers' statistics.
    ///
    /// # Errors
    /// A server does not answer, or does not report its limits.
    pub fn of(client: &Client) -> Result<Limits> {
        let memory = statistic(client, "", "limit_maxbytes")?;
        let items = statistic(client, "settings", "item_size_max")?;
        let item_bytes = items.into_iter().min().context("no server")?;
        Ok(Limits { memory_bytes: memory.into_iter().fold(0, u64::saturating_add), item_bytes })
    }

    /// Returns [`Limits::of`], or memcached's defaults if a server does not report its limits.
    pub fn or_default(client: &Client) -> Limits {
        Limits::of(client).unwrap_or_default()
    }

    /// Returns how many items of a size to store, at most `most`, if items of `sizes` sizes are stored in
    /// turn.
    ///
    /// All of them together take half of the memory, because memcached does not reuse memory of one size
    /// for another.
    pub fn items_of(&self, item_bytes: usize, sizes: usize, most: u64) -> u64 {
        let share = self.memory_bytes / 2 / sizes.max(1) as u64;
        (share / item_bytes.max(1) as u64).clamp(1, most)
    }
}

/// Returns a number from the statistics of every server.
fn statistic(client: &Client, topic: &str, name: &str) -> Result<Vec<u64>> {
    let number = |stats: Result<Vec<(String, String)>, _>| {
        let stats: Vec<(String, String)> = stats?;
        let found = stats.iter().find(|(known, _)| known == name);
        let text = found.map(|(_, text)| text.as_str());
        let number = text.and_then(|text| text.parse().ok());
        number.with_context(|| format!("a server does not report {name} in its statistics"))
    };
    client.stats(topic).into_iter().map(number).collect::<Result<Vec<u64>>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sizes_together_leave_memory_free() {
        let sizes: Vec<usize> = (0..20).map(|power| 20 + (1 << power)).collect();
        for memory_bytes in [64 << 20, 1 << 30] {
            let limits = Limits { memory_bytes, ..Limits::default() };
            let stored = |size: &usize| limits.items_of(*size, sizes.len(), 1_000) * *size as u64;
            let bytes: u64 = sizes.iter().map(stored).sum();
            assert!(bytes <= memory_bytes / 2, "{bytes} of {memory_bytes}");
        }
        assert_eq!(Limits::default().items_of(20, 20, 1_000), 1_000);
        assert_eq!(
            Limits { memory_bytes: 1 << 20, item_bytes: 0 }.items_of(1 << 30, 1, 10),
            1,
            "at least one"
        );
    }
}
