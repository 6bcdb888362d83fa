//! Figures as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::side_by_side::{Capacity, Measured, Round};
use crate::statistics::median;

/// When and where a run was.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// When, as seconds since 1970.
    pub unix_time: u64,
    /// Processor, kernel, number of CPUs.
    pub machine: String,
    /// What else is known of the machine, by name: caches, memory, whether it is virtualised, ….
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
}

/// When and where servers were measured, which, and how.
#[derive(Clone, Debug, Serialize)]
pub struct ServersHeader {
    /// When and where.
    #[serde(flatten)]
    pub run: Header,
    /// Each server's name and what its `-V` says. The last one is what the others are compared with.
    pub servers: Vec<(String, String)>,
    /// How: what a reader must know to judge the figures.
    pub method: String,
}

/// Everything of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, where, of what and how.
    #[serde(flatten)]
    pub header: ServersHeader,
    /// Items that fit.
    pub capacity: Vec<Capacity>,
    /// Workloads, with all rounds.
    pub throughput: Vec<Measured>,
}

impl Header {
    /// Of now and here.
    pub fn now() -> Header {
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Header { unix_time, machine: machine::line(), facts: machine::facts() }
    }
}

impl ServersHeader {
    /// The name of the server that others are compared with.
    pub fn base(&self) -> &str {
        self.servers.last().map_or("", |(name, _)| name)
    }

    /// What is written above a table.
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

impl Results {
    /// A table: medians, and how each server compares with the last one named: the median of the ratios in each round,
    /// for what disturbs a machine lasts longer than a round.
    pub fn table(&self) -> String {
        let mut text = self.header.text();
        let base = self.header.base();
        let _ = writeln!(
            text,
            "{:<18} {:<14} {:>12} {:>8} {:>14} {:>8}",
            "workload", "server", "op/s", "ratio", "server ns/op", "ratio"
        );
        for measured in &self.throughput {
            let peer = self.throughput.iter().find(|m| m.server == base && m.workload == measured.workload);
            let [(rate, rate_ratio), (cpu, cpu_ratio)] =
                [|round: &Round| round.operations_per_s, |round: &Round| round.server_cpu_ns]
                    .map(|figure| compare(measured, peer, figure));
            let _ = writeln!(
                text,
                "{:<18} {:<14} {rate:>12.0} {rate_ratio:>8.2} {cpu:>14.0} {cpu_ratio:>8.2}",
                measured.workload.name(),
                measured.server,
            );
        }
        for found in &self.capacity {
            let peer = self.capacity.iter().find(|c| c.server == base && c.value_bytes == found.value_bytes);
            let ratio = peer.map_or(f64::NAN, |peer| found.items as f64 / peer.items as f64);
            let _ = writeln!(
                text,
                "items at -m {}: {:<14} {:>8} of 20 + {} bytes ({ratio:.2}), {:.1} MB resident, {:.0} bytes an item",
                found.megabytes,
                found.server,
                found.items,
                found.value_bytes,
                found.resident_bytes as f64 / f64::from(1 << 20),
                found.resident_bytes as f64 / found.items as f64
            );
        }
        text
    }
}

/// The median of a figure, and that of its ratio to the peer's in the same round.
fn compare(measured: &Measured, peer: Option<&Measured>, figure: impl Fn(&Round) -> f64) -> (f64, f64) {
    let ratios = peer.map_or(f64::NAN, |peer| {
        let pairs = measured.rounds.iter().zip(&peer.rounds);
        median(pairs.map(|(own, others)| figure(own) / figure(others)))
    });
    (median(measured.rounds.iter().map(&figure)), ratios)
}
