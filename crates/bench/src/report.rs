//! When and where something was measured, and how results are stored.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine;

/// When and where a run took place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// When, as seconds since 1970.
    pub unix_time: u64,
    /// Processor, kernel, number of CPUs.
    pub machine: String,
    /// Other facts about the machine by name: caches, memory, virtualisation, ….
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
}

/// When, where and how servers were measured, and which.
#[derive(Clone, Debug, Serialize)]
pub struct ServersHeader {
    /// When and where.
    #[serde(flatten)]
    pub run: Header,
    /// Each server's name and version. The last one is the baseline.
    pub servers: Vec<(String, String)>,
    /// The method, for the interpretation of the figures.
    pub method: String,
}

impl Header {
    /// Returns a header for the current time and machine.
    pub fn now() -> Header {
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Header { unix_time, machine: machine::line(), facts: machine::facts() }
    }
}

impl ServersHeader {
    /// Returns the name of the baseline server.
    pub fn base(&self) -> &str {
        self.servers.last().map_or("", |(name, _)| name)
    }

    /// Returns the text above a table.
    pub fn text(&self) -> String {
        format!("{}\n{}\n\n", self.run.machine, self.method)
    }
}

/// Writes results as JSON.
///
/// # Errors
/// The file cannot be written.
pub fn save(results: &impl Serialize, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(results).context("results are JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}
