//! What the servers of a target take, as they tell it.

use anyhow::{Context, Result};
use fabcache_client::Client;

/// What all servers of a target take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The memory of all servers together.
    pub memory_bytes: u64,
    /// The largest item that every one of them takes: key, value and what the server adds.
    pub item_bytes: u64,
}

/// memcached's, where nothing else is asked for.
const MEMORY_BYTES: u64 = 64 << 20;
const ITEM_BYTES: u64 = 1 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_bytes: MEMORY_BYTES, item_bytes: ITEM_BYTES }
    }
}

impl Limits {
    /// Asks the servers.
    ///
    /// # Errors
    /// One does not answer, or does not tell.
    pub fn of(client: &Client) -> Result<Limits> {
        let memory = told(client, "", "limit_maxbytes")?;
        let items = told(client, "settings", "item_size_max")?;
        let item_bytes = items.into_iter().min().context("there is no server")?;
        Ok(Limits { memory_bytes: memory.iter().sum(), item_bytes })
    }
}

/// A number of the statistics of every server.
fn told(client: &Client, topic: &str, name: &str) -> Result<Vec<u64>> {
    let number = |stats: Result<Vec<(String, String)>, _>| {
        let stats: Vec<(String, String)> = stats?;
        let found = stats.iter().find(|(known, _)| known == name);
        let text = found.map(|(_, text)| text.as_str());
        let number = text.and_then(|text| text.parse().ok());
        number.with_context(|| format!("a server does not tell {name} in its statistics"))
    };
    client.stats(topic).into_iter().map(number).collect::<Result<Vec<u64>>>()
}
