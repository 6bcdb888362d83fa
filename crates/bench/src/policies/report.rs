//! Miss ratios as tables and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::compare::Row;
use super::policy::Name;
use super::servers::ServersRow;
use super::summary::{self, Summary};
use crate::report::Header;
use crate::trace::generate::Shape;
use crate::trace::tally::{Part, Tally};

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results<R> {
    /// When and where.
    #[serde(flatten)]
    pub header: Header,
    /// The size of synthetic traces.
    pub shape: Shape,
    /// The part of a trace's requests, in percent, that warms the cache up.
    pub warm_up_percent: f64,
    /// All traces at all sizes.
    pub rows: Vec<R>,
    /// Comparisons over all rows.
    pub summaries: Vec<Summary>,
}

/// The misses of one trace at one size.
#[derive(Clone, Debug)]
pub struct Line<'r> {
    /// The trace.
    pub trace: &'r str,
    /// Memory in percent of the footprint.
    pub percent: f64,
    /// Requests.
    pub requests: &'r Tally,
    /// Misses of everything that was compared; `None` where it was skipped.
    pub misses: Vec<Option<&'r Tally>>,
}

impl Line<'_> {
    /// Returns the miss ratio in one column.
    pub fn ratio(&self, column: usize, part: Part) -> Option<f64> {
        self.misses[column]?.ratio(self.requests, part)
    }

    /// Returns the trace and the size.
    pub fn label(&self) -> String {
        format!("{} {}%", self.trace, self.percent)
    }
}

/// The column of the store in [`Row::line`].
const STORE: usize = 0;

/// Compares the store with memcached's segmented LRU and with S3-FIFO.
pub fn summaries(rows: &[Row]) -> Vec<Summary> {
    let lines: Vec<Line<'_>> = rows.iter().map(Row::line).collect();
    let column = |name| Name::ALL.into_iter().position(|other| other == name).map_or(STORE, |at| at + 1);
    let against = |name: Name| summary::of(&lines, ("store", STORE), (name.heading(), column(name)));
    [Name::Segmented, Name::S3Fifo].into_iter().flat_map(against).collect()
}

/// Compares the second server with the first.
pub fn servers_summaries(names: [&str; 2], rows: &[ServersRow]) -> Vec<Summary> {
    let lines: Vec<Line<'_>> = rows.iter().map(ServersRow::line).collect();
    summary::of(&lines, (names[1], 1), (names[0], 0))
}

/// Returns the width of the traces' column.
fn width<'r>(traces: impl Iterator<Item = &'r str>) -> usize {
    traces.map(str::len).max().unwrap_or(0).max(14)
}

/// Returns miss ratios in percent, and the store's behaviour.
pub fn table(rows: &[Row]) -> String {
    let width = width(rows.iter().map(|row| row.trace.as_str()));
    let mut text = format!("{:<width$} {:>5} {:>9} {:>7}", "trace", "size", "memory", "store");
    for name in Name::ALL {
        let _ = write!(text, " {:>9}", name.heading());
    }
    let _ = writeln!(text, " {:>7} {:>7} {:>6} {:>6} {:>6}", "/best", "ns/req", "moved", "live", "over");
    for row in rows {
        let (percent, memory) = (row.percent, row.memory_bytes as f64 / f64::from(1 << 20));
        let _ = write!(text, "{:<width$} {percent:>4}% {memory:>6.1} MB", row.trace);
        write_ratio(&mut text, 7, row.store_ratio(Part::All));
        for name in Name::ALL {
            write_ratio(&mut text, 9, row.policy_ratio(name, Part::All));
        }
        if let (Some(store), Some(relative), Some(live)) = (&row.store, row.relative(), row.live_share()) {
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
    let names: Vec<&str> = ["store"].into_iter().chain(Name::ALL.map(Name::heading)).collect();
    let lines: Vec<Line<'_>> = rows.iter().map(Row::line).collect();
    text + &parts_tables(&names, &lines, width)
}

/// Returns miss ratios in percent and the memory of two servers.
pub fn servers_table(names: [&str; 2], rows: &[ServersRow]) -> String {
    let width = width(rows.iter().map(|row| row.trace.as_str()));
    let mut text = format!("{:<width$} {:>5}", "trace", "size");
    for name in names {
        let _ = write!(text, " {name:>10} {:>8} {:>8}", "-m", "resident");
    }
    let _ = writeln!(text, " {:>7}", "ratio");
    for row in rows {
        let _ = write!(text, "{:<width$} {:>4}%", row.trace, row.percent);
        if let (Some(runs), Some(ratios)) = (&row.runs, row.ratios()) {
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
    let lines: Vec<Line<'_>> = rows.iter().map(ServersRow::line).collect();
    text + &parts_tables(&names, &lines, width)
}

/// Returns a table of the misses after the warm-up, and one of the misses of each burst's reads if there are any.
fn parts_tables(names: &[&str], lines: &[Line<'_>], width: usize) -> String {
    let mut text = format!("\nafter the warm-up\n{:<width$} {:>5}", "trace", "size");
    names.iter().for_each(|name| text.extend([format!(" {name:>10}")]));
    text.push('\n');
    for line in lines {
        let _ = write!(text, "{:<width$} {:>4}%", line.trace, line.percent);
        write_ratios(&mut text, line, Part::Warm);
    }
    if lines.iter().all(|line| line.requests.bursts.is_empty()) {
        return text;
    }
    let _ = write!(
        text,
        "\nreads of each burst\n{:<width$} {:>5} {:>5} {:>8}",
        "trace", "size", "burst", "reads"
    );
    names.iter().for_each(|name| text.extend([format!(" {name:>10}")]));
    text.push('\n');
    for line in lines {
        for (burst, reads) in line.requests.bursts.iter().enumerate() {
            let number = burst + 1;
            let _ = write!(text, "{:<width$} {:>4}% {number:>5} {reads:>8}", line.trace, line.percent);
            write_ratios(&mut text, line, Part::Burst(burst));
        }
    }
    text
}

fn write_ratios(text: &mut String, line: &Line<'_>, part: Part) {
    (0..line.misses.len()).for_each(|column| write_ratio(text, 10, line.ratio(column, part)));
    text.push('\n');
}

/// Writes a miss ratio in percent, or a dash.
fn write_ratio(text: &mut String, width: usize, ratio: Option<f64>) {
    let _ = match ratio {
        Some(ratio) => write!(text, " {:>width$.3}", ratio * 100.0),
        None => write!(text, " {:>width$}", "-"),
    };
}

/// Describes the columns of [`table`].
pub const LEGEND: &str = "Misses in percent of all requests, of those after the warm-up, and of the reads of a burst. \
/best: the store's over the better of S3-FIFO and memcached's segmented LRU. ns/req: of the store. moved: item bytes \
that reclaim moved, a byte stored. live: part of the store's memory that valid items take at the end. over: bytes an \
item is charged beside key and value, measured in the store.\n";

/// Describes the columns of [`servers_table`].
pub const SERVERS_LEGEND: &str = "Misses in percent of all requests, of those after the warm-up, and of the reads of a \
burst; -m and resident memory (anonymous, shared and huge pages of the process) at the end, in MB; ratio: the second's \
misses over the first's.\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::replay::StoreRun;

    fn tally(all: u64, warm: u64, burst: u64) -> Tally {
        Tally { all, warm, bursts: vec![burst] }
    }

    #[test]
    fn tables_have_all_parts() {
        let row = Row {
            trace: "a-recorded-trace+bursts".into(),
            percent: 10.0,
            memory_bytes: 1 << 20,
            requests: tally(1_000, 800, 100),
            objects: 300,
            overhead_bytes: 30.0,
            store: Some(StoreRun { misses: tally(500, 320, 1), ..StoreRun::default() }),
            policies: Name::ALL.map(|name| (name, tally(600, 480, 75))).to_vec(),
        };
        let text = table(std::slice::from_ref(&row));
        let figures: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("a-recorded-trace+bursts"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(figures[0][4..6], ["50.000", "60.000"], "{text}");
        assert_eq!(figures[1][2..4], ["40.000", "60.000"], "{text}");
        assert_eq!(figures[2][1..6], ["10%", "1", "100", "1.000", "75.000"], "{text}");

        let summaries = summaries(std::slice::from_ref(&row));
        let bases: Vec<&str> = summaries.iter().map(|summary| summary.base.as_str()).collect();
        assert_eq!(bases, ["segmented", "segmented", "segmented", "S3-FIFO", "S3-FIFO", "S3-FIFO"]);

        let no_burst = |tally: &Tally| Tally { bursts: Vec::new(), ..tally.clone() };
        let skipped = Row { requests: no_burst(&row.requests), store: None, ..row };
        let text = table(&[skipped]);
        assert!(text.contains("  -") && !text.contains("reads of each burst"), "{text}");
    }
}
