//! Items held as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::fill::FilledServer;
use crate::report::ServersHeader;

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// When, where, what and how it was measured.
    #[serde(flatten)]
    pub header: ServersHeader,
    /// Every server filled with every mix.
    pub filled: Vec<FilledServer>,
}

impl Results {
    /// Returns the items that fit in equal memory, relative to the last server; NaN if that lacks this mix.
    pub fn ratio(&self, one: &FilledServer) -> f64 {
        let base = self.header.base();
        let peer = self.filled.iter().find(|other| other.server == base && other.mix == one.mix);
        peer.map_or(f64::NAN, |peer| peer.bytes_per_item() / one.bytes_per_item())
    }

    /// Returns a table. The ratio is of the items that fit in equal memory, relative to the last server.
    pub fn table(&self) -> String {
        let mut text = self.header.text();
        let _ = writeln!(
            text,
            "{:<14} {:<12} {:>9} {:>9} {:>11} {:>11} {:>7}",
            "key + value", "server", "items", "MB", "bytes/item", "overhead", "ratio"
        );
        for one in &self.filled {
            let ratio = self.ratio(one);
            let overhead = one.overhead_bytes.map_or("-".to_owned(), |bytes| format!("{bytes:.2}"));
            let _ = writeln!(
                text,
                "{:<14} {:<12} {:>9} {:>9.1} {:>11.1} {overhead:>11} {ratio:>7.3}",
                one.mix.name,
                one.server,
                one.items,
                one.resident_bytes as f64 / f64::from(1 << 20),
                one.bytes_per_item(),
            );
        }
        text
    }
}
