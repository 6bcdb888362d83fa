//! Miss ratios as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::compare::Row;
use super::policy::Name;
use super::servers::ServersRow;
use crate::report::Header;
use crate::trace::generate::Shape;

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results<R> {
    /// When and where.
    #[serde(flatten)]
    pub header: Header,
    /// The size of synthetic traces.
    pub shape: Shape,
    /// All traces at all sizes.
    pub rows: Vec<R>,
}

/// Returns miss ratios in percent, and the store's behaviour.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<14} {:>5} {:>9} {:>7}", "trace", "size", "memory", "store");
    for name in Name::ALL {
        let _ = write!(text, " {:>9}", name.heading());
    }
    let _ = writeln!(text, " {:>7} {:>7} {:>6} {:>6} {:>6}", "/best", "ns/req", "moved", "live", "over");
    for row in rows {
        let (percent, memory) = (row.percent, row.memory_bytes as f64 / f64::from(1 << 20));
        let _ = write!(text, "{:<14} {percent:>4}% {memory:>6.1} MB", row.trace);
        let _ = match row.store_ratio() {
            Some(ratio) => write!(text, " {:>7.3}", ratio * 100.0),
            None => write!(text, " {:>7}", "-"),
        };
        for name in Name::ALL {
            let _ = write!(text, " {:>9.3}", row.policy_ratio(name) * 100.0);
        }
        if let (Some(store), Some(relative), Some(live)) = (row.store, row.relative(), row.live_share()) {
            let moved = store.moved_bytes as f64 / store.stored_bytes.max(1) as f64;
            let (ns, over) = (store.ns_per_request, row.overhead_bytes);
            let _ = write!(text, " {relative:>7.4} {ns:>7.0} {moved:>6.2} {live:>6.3} {over:>6.1}");
            if store.refused > 0 {
                let _ = write!(text, "  ({} SETs refused)", store.refused);
            }
        } else {
            let _ = write!(text, "  (skipped: no store is that small)");
        }
        text.push('\n');
    }
    text
}

/// Returns miss ratios in percent and the memory of two servers.
pub fn servers_table(names: [&str; 2], rows: &[ServersRow]) -> String {
    let mut text = format!("{:<14} {:>5}", "trace", "size");
    for name in names {
        let _ = write!(text, " {name:>10} {:>8} {:>8}", "-m", "resident");
    }
    let _ = writeln!(text, " {:>7}", "ratio");
    for row in rows {
        let _ = write!(text, "{:<14} {:>4}%", row.trace, row.percent);
        if let (Some(runs), Some(ratios)) = (row.runs, row.ratios()) {
            let megabytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            for (run, ratio) in runs.iter().zip(ratios) {
                let (limit, resident) = (megabytes(run.memory_bytes), megabytes(run.resident_bytes));
                let _ = write!(text, " {:>10.3} {limit:>8.1} {resident:>8.1}", ratio * 100.0);
            }
            let _ = write!(text, " {:>7.4}", ratios[1] / ratios[0]);
            for (name, run) in names.iter().zip(runs) {
                if run.refused > 0 {
                    let _ = write!(text, "  ({name} refused {} SETs)", run.refused);
                }
                if run.late_ms > 0 {
                    let _ = write!(text, "  ({name} was up to {} ms late)", run.late_ms);
                }
            }
        } else {
            let _ = write!(text, "  skipped: {}", row.skipped.as_deref().unwrap_or("unknown"));
        }
        text.push('\n');
    }
    text
}

/// Describes the columns of [`table`].
pub const LEGEND: &str = "Misses in percent of all requests. /best: the store's over the better of S3-FIFO and \
memcached's segmented LRU. ns/req: of the store. moved: item bytes that reclaim moved, a byte stored. live: part of the \
store's memory that valid items take at the end. over: bytes an item is charged beside key and value, measured in the \
store.\n";

/// Describes the columns of [`servers_table`].
pub const SERVERS_LEGEND: &str = "Misses in percent of all requests; -m and resident memory (anonymous, shared and huge \
pages of the process) at the end, in MB; ratio: the second's misses over the first's.\n";
